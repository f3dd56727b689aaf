// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/internals.hpp"
#include "weft/exec/array.hpp"
#include "weft/exec/launch.hpp"

#include <memory>
#include <ranges>
#include <type_traits>
#include <utility>

namespace weft::detail {

/// One argument of a launch over devices.
struct spread_argument {
  launch_argument plain;
  std::shared_ptr<array_body> array;  // of an array<T>
  bool is_host = false;
};

template <class T>
struct is_array : std::false_type {};
template <class T>
struct is_array<array<T>> : std::true_type {};

template <class A>
spread_argument make_spread_argument(A&& a) {
  using plain = std::remove_cvref_t<A>;
  spread_argument made;
  if constexpr (std::is_arithmetic_v<plain>) {
    made.plain = make_argument(a);
  } else if constexpr (is_array<plain>::value) {
    made.plain.type = element_type_of<typename plain::value_type>();
    made.plain.is_memory = true;
    made.plain.is_const = std::is_const_v<std::remove_reference_t<A>>;
    made.plain.memory.size = a.size_bytes().value();
    made.array = detail::internals::body(a);
  } else {
    const auto span = borrow(a);
    using span_type = std::remove_cvref_t<decltype(span)>;
    if constexpr (is_device_span<span_type>::value) {
      made.plain = make_argument(span);
    } else {
      static_assert(std::is_lvalue_reference_v<A> || std::ranges::borrowed_range<plain>,
                    "host memory has to outlive the launch: pass a variable or a span, not a temporary");
      using element = typename span_type::element_type;
      made.plain.type = element_type_of<std::remove_cv_t<element>>();
      made.plain.is_memory = true;
      made.plain.is_const = std::is_const_v<element>;
      made.plain.memory = untyped(span);
      made.is_host = true;
    }
  }
  return made;
}

/// Does an argument fit a parameter? As fits(), with arrays and host memory.
template <class P, class A>
constexpr bool fits_spread() {
  using plain = std::remove_cvref_t<A>;
  using traits = parameter_traits<P>;
  if constexpr (is_array<plain>::value) {
    return traits::direction != parameter_direction::scalar &&
           std::is_same_v<typename plain::value_type, typename traits::element> &&
           (traits::direction == parameter_direction::in || !std::is_const_v<std::remove_reference_t<A>>);
  } else if constexpr (std::is_arithmetic_v<plain>) {
    return fits<P, plain>();
  } else {
    using given = typename std::remove_cvref_t<decltype(borrow(std::declval<A&>()))>::element_type;
    return traits::direction != parameter_direction::scalar &&
           std::is_same_v<std::remove_cv_t<given>, typename traits::element> &&
           (traits::direction == parameter_direction::in || !std::is_const_v<given>);
  }
}

template <class... Args, class... P>
constexpr void check_spread(parameter_list<P...>) {
  static_assert(sizeof...(Args) == sizeof...(P), "the number of arguments is not that of the kernel's parameters");
  if constexpr (sizeof...(Args) == sizeof...(P)) {
    static_assert((fits_spread<P, Args>() && ...),
                  "an argument does not fit its parameter: type, constness, or memory where a value belongs");
  }
}

}  // namespace weft::detail
