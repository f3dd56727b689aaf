// SPDX-License-Identifier: Apache-2.0
// A kernel's results made into one number without ever being there all at once: map_reduce<square>(machine, range(n),
// reduce_op::sum, x).
#pragma once

#include "weft/exec/reduce.hpp"

#include <array>
#include <memory>
#include <source_location>
#include <span>
#include <tuple>
#include <utility>

namespace weft {
namespace detail {

template <class List>
struct last_parameter;
template <class... P>
struct last_parameter<parameter_list<P...>> {
  using type = parameter_traits<std::tuple_element_t<sizeof...(P) - 1, std::tuple<P...>>>;
};

/// Runs the map and the reduction, slice by slice. `arguments` has one more than the caller gave, for what is mapped.
[[nodiscard]] reduction map_and_reduce(const machine& m, const std::shared_ptr<const kernel_code>& code,
                                       const kernel_range& over, reduce_op op, std::span<spread_argument> arguments,
                                       const spread_options& options, std::source_location where);

}  // namespace detail

/// Runs a kernel whose last parameter is WEFT_OUT(T), one value for each item, and reduces those values. `args` are the
/// others; the last is the library's, and only slices of it exist, on the devices that made them.
/// Shape: one dimension, from 0. The result has the bits that reducing the whole of the mapped array would have.
/// Errors: as launch() and launch_reduce(); invalid_argument for a range that does not begin at 0.
/// Cost: two launches for each slice of up to 2^20 items, as many slices at once as there are devices; smaller ones
/// where
///   memory is short. It waits, since later slices are submitted when earlier ones have ended. What an item reads as a
///   whole is best an array: host memory is brought again for each slice.
template <class Kernel, class... Args>
[[nodiscard]] auto map_reduce(const machine& m, const spread_options& options, const detail::placed_range& over,
                              reduce_op op, Args&&... args) {
  using mapped = typename detail::last_parameter<detail::parameters_of<Kernel>>::type;
  static_assert(mapped::direction == parameter_direction::out && mapped::access.kind == access_kind::one_to_one &&
                    Kernel::weft_about().dimensions == 1,
                "map_reduce takes a kernel of one dimension whose last parameter is WEFT_OUT(T): one value per item");
  using element = typename mapped::element;
  detail::check_spread<Args..., array<element>&>(detail::parameters_of<Kernel>{});
  std::array<detail::spread_argument, sizeof...(Args) + 1> list{
      detail::make_spread_argument(std::forward<Args>(args))...};
  return detail::map_and_reduce(m, detail::code_of<Kernel>(), over.over, op, list, options, over.where)
      .template result<reduced<element>>();
}
template <class Kernel, class... Args>
[[nodiscard]] auto map_reduce(const machine& m, const detail::placed_range& over, reduce_op op, Args&&... args) {
  return map_reduce<Kernel>(m, spread_options{}, over, op, std::forward<Args>(args)...);
}

}  // namespace weft
