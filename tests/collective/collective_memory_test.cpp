// SPDX-License-Identifier: Apache-2.0
// The memory that the calls of both communicators take.
#include "weft/collective/communicator.hpp"
#include "weft/collective/rank_communicator.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace collective_memory_test {

using weft::communicator;
using weft::device_span;
using weft::rank;
using weft::rank_communicator;
using weft::reduce_op;

template <class C, class In, class Out>
concept reduces = requires(C c, In in, Out out) { c.all_reduce(in, out, reduce_op::sum); };
template <class C, class In, class Out>
concept scatters_sums = requires(C c, In in, Out out) { c.reduce_scatter(in, out, reduce_op::sum); };
template <class C, class In, class Out>
concept gathers_all = requires(C c, In in, Out out) { c.all_gather(in, out); };
template <class C, class In, class Out>
concept exchanges_all = requires(C c, In in, Out out) { c.all_to_all(in, out); };
template <class C, class In, class Out>
constexpr bool takes =
    reduces<C, In, Out> || scatters_sums<C, In, Out> || gathers_all<C, In, Out> || exchanges_all<C, In, Out>;
template <class C, class In, class Out>
constexpr bool takes_all =
    reduces<C, In, Out> && scatters_sums<C, In, Out> && gathers_all<C, In, Out> && exchanges_all<C, In, Out>;
template <class T>
using views = std::vector<device_span<T>>;
template <class C, class One, class List>
concept roots_read = requires(C c, One one, List list) { c.scatter(one, list); };
template <class C, class List, class One>
concept roots_write = requires(C c, List list, One one) {
  c.gather(list, one);
  c.reduce(list, one, reduce_op::sum);
};
template <class C, class List, class One>
concept roots_write_either = requires(C c, List list, One one) { c.gather(list, one); } ||
                             requires(C c, List list, One one) { c.reduce(list, one, reduce_op::sum); };
template <class C, class List>
concept broadcasts = requires(C c, List list) { c.broadcast(list); };
template <class C, class Src, class Dst>
concept sends = requires(C c, Src src, Dst dst) { c.send(rank{0}, src, rank{1}, dst); };
template <class C, class Dst>
concept receives = requires(C c, Dst dst) { c.receive(rank{0}, dst); };

TEST(collective_memory, an_output_is_neither_const_nor_of_another_type_than_its_input) {
  static_assert(takes_all<communicator, views<const float>, views<float>> &&
                !takes<communicator, views<float>, views<const float>> &&
                !takes<communicator, views<float>, views<int>>);
  static_assert(takes_all<rank_communicator, device_span<const float>, device_span<float>> &&
                !takes<rank_communicator, device_span<float>, device_span<const float>> &&
                !takes<rank_communicator, device_span<float>, device_span<int>>);
  static_assert(roots_read<communicator, device_span<const float>, views<float>> &&
                !roots_read<communicator, device_span<float>, views<const float>> &&
                !roots_read<communicator, device_span<float>, views<int>>);
  static_assert(roots_write<communicator, views<const float>, device_span<float>> &&
                !roots_write_either<communicator, views<float>, device_span<const float>> &&
                !roots_write_either<communicator, views<float>, device_span<int>>);
  static_assert(roots_read<rank_communicator, device_span<const float>, device_span<float>> &&
                !roots_read<rank_communicator, device_span<float>, device_span<const float>> &&
                !roots_read<rank_communicator, device_span<float>, device_span<int>>);
  static_assert(roots_write<rank_communicator, device_span<const float>, device_span<float>> &&
                !roots_write_either<rank_communicator, device_span<float>, device_span<const float>> &&
                !roots_write_either<rank_communicator, device_span<float>, device_span<int>>);
  static_assert(broadcasts<communicator, views<float>> && !broadcasts<communicator, views<const float>>);
  static_assert(broadcasts<rank_communicator, device_span<float>> &&
                !broadcasts<rank_communicator, device_span<const float>>);
  static_assert(sends<communicator, device_span<const float>, device_span<float>> &&
                !sends<communicator, device_span<float>, device_span<const float>> &&
                !sends<communicator, device_span<float>, device_span<int>>);
  static_assert(receives<rank_communicator, device_span<float>> &&
                !receives<rank_communicator, device_span<const float>>);
  static_assert(receives<rank_communicator::exchange, device_span<float>> &&
                !receives<rank_communicator::exchange, device_span<const float>>);
}

}  // namespace collective_memory_test
