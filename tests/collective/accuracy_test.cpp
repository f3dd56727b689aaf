// SPDX-License-Identifier: Apache-2.0
// How far each algorithm's sums are from those in a wider type.
#include "weft/collective/communicator.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace accuracy_test {

using weft::collective_algorithm;

template <class T>
constexpr double half_of_a_unit = 0;
template <>
constexpr double half_of_a_unit<float> = 0x1p-24;
template <>
constexpr double half_of_a_unit<weft::half> = 0x1p-11;
template <>
constexpr double half_of_a_unit<weft::bfloat16> = 0x1p-8;

/// Numbers of both signs over six powers of ten.
template <class T>
std::vector<T> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random{seed};
  std::uniform_real_distribution<float> exponent{-3, 3}, sign{-1, 1};
  std::vector<T> made;
  made.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    made.push_back(static_cast<T>(std::copysign(std::pow(10.0F, exponent(random)), sign(random))));
  return made;
}

template <class T>
class accuracy_of : public testing::Test {};
using types = testing::Types<float, weft::half, weft::bfloat16>;
TYPED_TEST_SUITE(accuracy_of, types);

TYPED_TEST(accuracy_of, every_algorithms_sum_is_within_an_error_for_each_addition) {
  constexpr std::size_t count = 5001;
  for (const int n : {2, 3, 5, 8}) {
    weft::machine_options options;
    options.devices = n;
    const weft::machine m{options};
    weft::communicator all{m};
    std::vector<std::vector<TypeParam>> in;
    for (int r = 0; r < n; ++r) in.push_back(numbers<TypeParam>(count, static_cast<unsigned>(n * 100 + r)));
    for (const auto algorithm : {collective_algorithm::naive, collective_algorithm::tree, collective_algorithm::ring,
                                 collective_algorithm::halving_doubling, collective_algorithm::direct}) {
      std::vector<weft::buffer<TypeParam>> memory;
      for (int r = 0; r < n; ++r) {
        memory.emplace_back(m[r], count);
        weft::copy(memory.back(), in[static_cast<std::size_t>(r)]);
      }
      weft::collective_options how;
      how.algorithm = algorithm;
      all.all_reduce(memory, weft::reduce_op::sum, how).wait();
      for (int r = 0; r < n; ++r) {
        std::vector<TypeParam> got(count);
        weft::copy(got, memory[static_cast<std::size_t>(r)]);
        for (std::size_t i = 0; i < count; ++i) {
          double exact = 0, magnitude = 0;
          for (const auto& one : in) {
            exact += static_cast<double>(static_cast<float>(one[i]));
            magnitude += std::fabs(static_cast<double>(static_cast<float>(one[i])));
          }
          const double off = std::fabs(static_cast<double>(static_cast<float>(got[i])) - exact);
          // an addition in between may have rounded up the numbers that the next one rounds
          ASSERT_LE(off, 1.01 * (n - 1) * half_of_a_unit<TypeParam> * magnitude)
              << to_string(algorithm) << ", " << n << " ranks, rank " << r << ", element " << i;
        }
      }
    }
  }
}

}  // namespace accuracy_test
