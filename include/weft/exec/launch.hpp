// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/kernel_code.hpp"
#include "weft/core/kernel_cost.hpp"
#include "weft/exec/kernels.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/event.hpp"
#include "weft/runtime/stream.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <stop_token>
#include <string_view>
#include <type_traits>

namespace weft {

/// Indices that a kernel runs over, from 0 in each dimension.
[[nodiscard]] constexpr kernel_range range(std::int64_t nx) { return {1, {0, 0, 0}, {nx, 1, 1}}; }
[[nodiscard]] constexpr kernel_range range(std::int64_t nx, std::int64_t ny) { return {2, {0, 0, 0}, {nx, ny, 1}}; }
[[nodiscard]] constexpr kernel_range range(std::int64_t nx, std::int64_t ny, std::int64_t nz) {
  return {3, {0, 0, 0}, {nx, ny, nz}};
}

struct launch_options {
  std::stop_token stop{};              // honoured until the launch has reached the head of its stream
  std::optional<kernel_cost> model{};  // what it costs on a virtual clock; without it, what its bytes cost
  std::array<int, 3> block{0, 0, 0};   // work items of a block in each dimension, on GPUs; 0: the library's choice
};

namespace detail {

/// One argument as it was handed in, before it is checked against the kernel's parameter.
struct launch_argument {
  element_type type{};
  bool is_memory = false;
  bool is_const = false;
  memory_ref memory;
  std::array<std::byte, 8> scalar{};
};

template <class A>
launch_argument make_argument(const A& a) {
  launch_argument made;
  if constexpr (std::is_arithmetic_v<A>) {
    made.type = element_type_of<A>();
    static_assert(sizeof(A) <= 8);
    std::memcpy(made.scalar.data(), &a, sizeof(A));
  } else {
    const auto span = borrow(a);
    using span_type = std::remove_cvref_t<decltype(span)>;
    static_assert(is_device_span<span_type>::value, "a kernel takes device memory and scalars");
    using element = typename span_type::element_type;
    made.type = element_type_of<std::remove_cv_t<element>>();
    made.is_memory = true;
    made.is_const = std::is_const_v<element>;
    made.memory = untyped(span);
  }
  return made;
}

event launch_in(const stream& order, std::shared_ptr<const kernel_code> code, const kernel_range& over,
                std::span<const launch_argument> arguments, const launch_options& options, std::source_location where);
void prepare_on(const device& on, const kernel_code& code, std::source_location where);
void prepare_named(const device& on, std::string_view name, std::source_location where);
event launch_named(const stream& order, std::string_view name, const kernel_range& over,
                   std::span<const launch_argument> arguments, const launch_options& options,
                   std::source_location where);

/// Does an argument of type A fit parameter P?
template <class P, class A>
constexpr bool fits() {
  using traits = parameter_traits<P>;
  using element = typename traits::element;
  if constexpr (std::is_arithmetic_v<A>) {
    return traits::direction == parameter_direction::scalar && std::is_same_v<A, element>;
  } else {
    using given = typename std::remove_cvref_t<borrowed<const A&>>::element_type;
    return traits::direction != parameter_direction::scalar && std::is_same_v<std::remove_cv_t<given>, element> &&
           (traits::direction == parameter_direction::in || !std::is_const_v<given>);
  }
}

template <class... Args, class... P>
constexpr void check_arguments(parameter_list<P...>) {
  static_assert(sizeof...(Args) == sizeof...(P), "the number of arguments is not that of the kernel's parameters");
  if constexpr (sizeof...(Args) == sizeof...(P)) {
    static_assert((fits<P, Args>() && ...),
                  "an argument does not fit its parameter: type, constness, or memory where a value belongs");
  }
}

/// Made once and never destroyed: launches may happen while the process ends.
template <class Kernel>
const std::shared_ptr<const kernel_code>& code_of() {
  static const auto& code = *new std::shared_ptr<const kernel_code>(make_kernel_code<Kernel>());
  return code;
}

/// A name with the place of the call: the only way to have a source location before a parameter pack.
struct placed_name {
  std::string_view name;
  std::source_location where;
  template <class S>
    requires std::is_convertible_v<S, std::string_view>
  placed_name(const S& text,
              std::source_location at = std::source_location::current())  // NOLINT(google-explicit-constructor)
      : name(text), where(at) {}
};
struct placed_range {
  kernel_range over;
  std::source_location where;
  placed_range(const kernel_range& r,
               std::source_location at = std::source_location::current())  // NOLINT(google-explicit-constructor)
      : over(r), where(at) {}
};

}  // namespace detail

/// Compiles and loads a kernel for a device ahead of its first launch. Needed where kernels wait for each other through
/// rings: a driver may load one only when the device has nothing else to do, which it never has while another waits.
/// Errors: those of launch(), except for its arguments.
template <class Kernel>
void prepare(const device& on, std::source_location where = std::source_location::current()) {
  detail::prepare_on(on, *detail::code_of<Kernel>(), where);
}
/// The same for a kernel of the machine's registry, by name.
inline void prepare(const device& on, const detail::placed_name& kernel) {
  detail::prepare_named(on, kernel.name, kernel.where);
}

/// Runs a kernel of the machine's registry, by name, on the stream's device. Arguments are checked against the
/// kernel's parameters: number, type and constness.
/// Errors: not_found (nearest names), incompatible (position named), out_of_range, not_found (freed memory),
///   invalid_argument (a negative range, a block that no device has, a stream that was moved from), unsupported (a
///   periodic halo, a block for a kernel that reduces), wrong_device (memory of another machine), peer_unsupported
///   (memory of a device that stores do not reach), now; illegal_access at wait when the device has no right to an
///   argument: the device is lost.
template <class... Args>
event launch(const stream& order, const detail::placed_name& kernel, const kernel_range& over, const Args&... args) {
  const std::array<detail::launch_argument, sizeof...(Args)> list{detail::make_argument(args)...};
  return detail::launch_named(order, kernel.name, over, list, {}, kernel.where);
}

/// The same with options.
template <class... Args>
event launch(const stream& order, const launch_options& options, const detail::placed_name& kernel,
             const kernel_range& over, const Args&... args) {
  const std::array<detail::launch_argument, sizeof...(Args)> list{detail::make_argument(args)...};
  return detail::launch_named(order, kernel.name, over, list, options, kernel.where);
}

/// The same by type: wrong arguments do not compile, and nothing needs to be registered.
template <class Kernel, class... Args>
event launch(const stream& order, const detail::placed_range& over, const Args&... args) {
  detail::check_arguments<Args...>(detail::parameters_of<Kernel>{});
  const std::array<detail::launch_argument, sizeof...(Args)> list{detail::make_argument(args)...};
  return detail::launch_in(order, detail::code_of<Kernel>(), over.over, list, {}, over.where);
}

/// The same with options.
template <class Kernel, class... Args>
event launch(const stream& order, const launch_options& options, const detail::placed_range& over,
             const Args&... args) {
  detail::check_arguments<Args...>(detail::parameters_of<Kernel>{});
  const std::array<detail::launch_argument, sizeof...(Args)> list{detail::make_argument(args)...};
  return detail::launch_in(order, detail::code_of<Kernel>(), over.over, list, options, over.where);
}

}  // namespace weft
