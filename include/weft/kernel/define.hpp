#pragma once
// SPDX-License-Identifier: Apache-2.0
// WEFT_KERNEL: one definition of a kernel that is compiled as C++ for the host, twice (raw and checked), and kept as
// text for the run-time compilers of the devices. docs/reference/kernels.md says what a body may contain.

#include "weft/kernel/math.hpp"
#include "weft/kernel/parameter.hpp"
#include "weft/kernel/ring.h"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

// g++ 12 vectorises at -O3 only, so the host loop asks for it itself; the other words say that no multiply-add is
// fused (same bits with and without -march=native) and that nobody watches floating-point traps, which would hold back
// the vectoriser. clang vectorises at -O2, and learns about fusing from a pragma. Without optimisation nothing is
// asked for, so that a debugger can step through a body.
#if defined(__clang__)
#define WEFT_DETAIL_HOST_LOOP
#define WEFT_DETAIL_CHECKED_LOOP
#define WEFT_DETAIL_INDEPENDENT
#define WEFT_DETAIL_NO_CONTRACTION _Pragma("clang fp contract(off)")
#elif defined(__GNUC__)
#if defined(__OPTIMIZE__)
#if !defined(WEFT_DETAIL_HOST_LOOP)  // a source of the library may ask for less
#define WEFT_DETAIL_HOST_LOOP [[gnu::optimize("O3", "fp-contract=off", "no-trapping-math")]]
#endif
// no vectoriser passes the checks of a checked view
#define WEFT_DETAIL_CHECKED_LOOP [[gnu::optimize("O2", "fp-contract=off", "no-trapping-math")]]
#else
#define WEFT_DETAIL_HOST_LOOP
#define WEFT_DETAIL_CHECKED_LOOP
#endif
#define WEFT_DETAIL_INDEPENDENT _Pragma("GCC ivdep")
#define WEFT_DETAIL_NO_CONTRACTION
#else
#define WEFT_DETAIL_HOST_LOOP
#define WEFT_DETAIL_CHECKED_LOOP
#define WEFT_DETAIL_INDEPENDENT
#define WEFT_DETAIL_NO_CONTRACTION
#endif

namespace weft {

using host_entry = void (*)(const kernel_range&, std::span<const kernel_argument>);
using host_checked_entry = std::optional<access_violation> (*)(const kernel_range&, std::span<const kernel_argument>);

namespace detail {

struct kernel_about {
  const char* name;
  int dimensions;
  const char* parameter_text;
  const char* body_text;
  const char* file;
  int line;
};

// ---- the three readings of WEFT_IN, WEFT_OUT, WEFT_INOUT and WEFT_RING

template <class T, parameter_direction Direction, access_rule Access>
struct described_buffer {};
struct described_ring {};

struct describing_view {
  template <class T, parameter_direction Direction, access_rule Access = access_rule{}>
  using buffer = described_buffer<T, Direction, Access>;
  using ring = described_ring;
};

template <class T, parameter_direction Direction>
struct raw_buffer {
  using type = T* __restrict;
};
template <class T>
struct raw_buffer<T, parameter_direction::in> {
  using type = const T* __restrict;
};

struct raw_view {
  template <class T, parameter_direction Direction, access_rule Access = access_rule{}>
  using buffer = typename raw_buffer<T, Direction>::type;
  using ring = ::weft_ring*;
};

struct check_state {
  int dimensions = 1;
  std::array<std::int64_t, 3> item{0, 0, 0};
  std::optional<access_violation> violation;

  [[nodiscard]] std::int64_t outermost() const { return item[static_cast<std::size_t>(dimensions - 1)]; }
};

// Allows what the argument reaches and the parameter declares. Anything else is noted once and lands in an element of
// the view's own, so that a wrong kernel corrupts nothing.
template <class T, parameter_direction Direction, access_rule Access>
class checked_buffer {
 public:
  static constexpr bool is_written = Direction != parameter_direction::in;
  using reference = std::conditional_t<is_written, T&, const T&>;

  checked_buffer(const kernel_argument& argument, std::size_t parameter, check_state& state)
      : elements_(static_cast<T*>(argument.address)),
        first_(argument.first),
        last_(argument.first + argument.count),
        step_(state.dimensions == 1 ? 1 : argument.slab),
        parameter_(parameter),
        state_(&state) {}

  template <std::integral Index>
  reference operator[](Index asked) const {
    const auto index = static_cast<std::int64_t>(asked);
    if (index < first_ || index >= last_) [[unlikely]] {
      return refuse(index, index < first_ ? first_ : last_, false);
    }
    const auto [low, high] = declared();
    if (index < low || index >= high) [[unlikely]] {
      return refuse(index, index < low ? low : high, true);
    }
    return elements_[index - first_];
  }

 private:
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> declared() const {
    if constexpr (Access.kind == access_kind::whole || Access.kind == access_kind::reduce) {
      return {first_, last_};
    } else {
      if (step_ <= 0) {
        return {first_, last_};
      }
      const std::int64_t at = state_->outermost();
      if constexpr (Access.kind == access_kind::halo || Access.kind == access_kind::wrap) {
        return {(at - Access.amount) * step_, (at + Access.amount + 1) * step_};
      } else if constexpr (Access.kind == access_kind::rows) {
        return {at * Access.amount * step_, (at + 1) * Access.amount * step_};
      } else {
        return {at * step_, (at + 1) * step_};
      }
    }
  }

  reference refuse(std::int64_t index, std::int64_t limit, bool undeclared) const {
    if (!state_->violation) {
      state_->violation = access_violation{parameter_, index, limit, is_written, undeclared, state_->item};
    }
    spare_ = T{};
    return spare_;
  }

  T* elements_;
  std::int64_t first_;
  std::int64_t last_;
  std::int64_t step_;
  std::size_t parameter_;
  check_state* state_;
  mutable T spare_{};
};

struct checked_view {
  template <class T, parameter_direction Direction, access_rule Access = access_rule{}>
  using buffer = checked_buffer<T, Direction, Access>;
  using ring = ::weft_ring*;  // its functions keep to the ring by themselves
};

// ---- what one declared parameter is, and how it is taken out of an argument

template <class T>
struct parameter_traits {  // a scalar, or something that is not allowed
  static constexpr bool is_allowed = kernel_element<T>;
  static constexpr bool is_access_allowed = true;
  static constexpr bool is_reduction = false;
  static constexpr bool is_ring = false;
  static constexpr parameter_direction direction = parameter_direction::scalar;
  static constexpr access_rule access{};
  using element = T;

  static T raw(const kernel_argument& argument) {
    T value;
    std::memcpy(&value, argument.scalar.data(), sizeof(T));
    return value;
  }
  static T checked(const kernel_argument& argument, std::size_t, check_state&) { return raw(argument); }
};

template <class T, parameter_direction Direction, access_rule Access>
struct parameter_traits<described_buffer<T, Direction, Access>> {
  static constexpr std::int64_t largest_amount = std::int64_t{1} << 31;
  static constexpr bool is_allowed = kernel_element<T>;
  static constexpr bool is_access_allowed = Access.amount >= (Access.kind == access_kind::rows ? 1 : 0) &&
                                            Access.amount <= largest_amount &&
                                            (Access.kind != access_kind::wrap || Direction == parameter_direction::in);
  static constexpr bool is_reduction = Access.kind == access_kind::reduce;
  static constexpr bool is_ring = false;
  static constexpr parameter_direction direction = Direction;
  static constexpr access_rule access = Access;
  using element = T;

  // As in a C kernel the pointer is that of element 0, even if this piece of the array starts later. Then it lies
  // outside the piece, which pointer arithmetic may not do, so the address is computed as a number.
  static auto* raw(const kernel_argument& argument) {
    using pointer = std::conditional_t<Direction == parameter_direction::in, const T*, T*>;
    const auto offset = static_cast<std::uintptr_t>(argument.first) * sizeof(T);
    return reinterpret_cast<pointer>(reinterpret_cast<std::uintptr_t>(argument.address) - offset);
  }
  static checked_buffer<T, Direction, Access> checked(const kernel_argument& argument, std::size_t parameter,
                                                      check_state& state) {
    return {argument, parameter, state};
  }
};

template <>
struct parameter_traits<described_ring> {
  static constexpr bool is_allowed = true;
  static constexpr bool is_access_allowed = true;
  static constexpr bool is_reduction = false;
  static constexpr bool is_ring = true;
  static constexpr parameter_direction direction = parameter_direction::inout;
  static constexpr access_rule access = access::whole();
  using element = std::uint64_t;

  static ::weft_ring* raw(const kernel_argument& argument) { return static_cast<::weft_ring*>(argument.address); }
  static ::weft_ring* checked(const kernel_argument& argument, std::size_t, check_state&) { return raw(argument); }
};

template <class... Parameters>
struct parameter_list {
  static constexpr std::size_t size = sizeof...(Parameters);
  static constexpr bool are_allowed = (parameter_traits<Parameters>::is_allowed && ...);
  static constexpr bool are_accesses_allowed = (parameter_traits<Parameters>::is_access_allowed && ...);
  static constexpr bool has_reduction = (parameter_traits<Parameters>::is_reduction || ...);
  static constexpr bool has_ring = (parameter_traits<Parameters>::is_ring || ...);
};

template <int Dimensions, class Function>
struct parameters_of_function;
template <class... P>
struct parameters_of_function<1, void (*)(std::int64_t, P...)> {
  using type = parameter_list<P...>;
};
template <class... P>
struct parameters_of_function<2, void (*)(std::int64_t, std::int64_t, P...)> {
  using type = parameter_list<P...>;
};
template <class... P>
struct parameters_of_function<3, void (*)(std::int64_t, std::int64_t, std::int64_t, P...)> {
  using type = parameter_list<P...>;
};

template <class Kernel>
using parameters_of = typename parameters_of_function<Kernel::weft_about().dimensions,
                                                      decltype(&Kernel::template weft_body<describing_view>)>::type;

// ---- the host loops

template <class Kernel, class View, class... Values>
[[gnu::always_inline]] inline void run_item(std::int64_t x, [[maybe_unused]] std::int64_t y,
                                            [[maybe_unused]] std::int64_t z, const Values&... values) {
  constexpr int dimensions = Kernel::weft_about().dimensions;
  if constexpr (dimensions == 1) {
    Kernel::template weft_body<View>(x, values...);
  } else if constexpr (dimensions == 2) {
    Kernel::template weft_body<View>(x, y, values...);
  } else {
    Kernel::template weft_body<View>(x, y, z, values...);
  }
}

// Not inlined: the optimisation asked for is that of this one function. A reduction and a ring do carry something from
// one item to the next, so there the loop is not called independent.
template <class Kernel, class... Values>
WEFT_DETAIL_HOST_LOOP [[gnu::noinline]] void run_items(const kernel_range& range, Values... values) {
  constexpr int dimensions = Kernel::weft_about().dimensions;
  const std::int64_t begin_x = range.begin[0];
  const std::int64_t end_x = range.end[0];
  const std::int64_t end_y = dimensions > 1 ? range.end[1] : 1;
  const std::int64_t end_z = dimensions > 2 ? range.end[2] : 1;
  for (std::int64_t z = dimensions > 2 ? range.begin[2] : 0; z < end_z; ++z) {
    for (std::int64_t y = dimensions > 1 ? range.begin[1] : 0; y < end_y; ++y) {
      if constexpr (parameters_of<Kernel>::has_reduction || parameters_of<Kernel>::has_ring) {
        for (std::int64_t x = begin_x; x < end_x; ++x) {
          run_item<Kernel, raw_view>(x, y, z, values...);
        }
      } else {
        WEFT_DETAIL_INDEPENDENT
        for (std::int64_t x = begin_x; x < end_x; ++x) {
          run_item<Kernel, raw_view>(x, y, z, values...);
        }
      }
    }
  }
}

// Ends with the first item that did something not allowed: what it computes after that means nothing. It asks for
// the same optimisation as the raw loop, so that both give the same bits.
template <class Kernel, class... Values>
WEFT_DETAIL_CHECKED_LOOP [[gnu::noinline]] std::optional<access_violation> run_items_checked(const kernel_range& range,
                                                                                             check_state& state,
                                                                                             Values... values) {
  constexpr int dimensions = Kernel::weft_about().dimensions;
  const std::int64_t end_y = dimensions > 1 ? range.end[1] : 1;
  const std::int64_t end_z = dimensions > 2 ? range.end[2] : 1;
  for (std::int64_t z = dimensions > 2 ? range.begin[2] : 0; z < end_z; ++z) {
    for (std::int64_t y = dimensions > 1 ? range.begin[1] : 0; y < end_y; ++y) {
      for (std::int64_t x = range.begin[0]; x < range.end[0]; ++x) {
        state.item = {x, y, z};
        run_item<Kernel, checked_view>(x, y, z, values...);
        if (state.violation) [[unlikely]] {
          return state.violation;
        }
      }
    }
  }
  return std::nullopt;
}

template <class Kernel, class List>
struct host_runner;

template <class Kernel, class... P>
struct host_runner<Kernel, parameter_list<P...>> {
  static void run(const kernel_range& range, [[maybe_unused]] std::span<const kernel_argument> arguments) {
    [&]<std::size_t... N>(std::index_sequence<N...>) {
      run_items<Kernel>(range, parameter_traits<P>::raw(arguments[N])...);
    }(std::index_sequence_for<P...>{});
  }

  static std::optional<access_violation> run_checked(const kernel_range& range,
                                                     [[maybe_unused]] std::span<const kernel_argument> arguments) {
    check_state state;
    state.dimensions = Kernel::weft_about().dimensions;
    return [&]<std::size_t... N>(std::index_sequence<N...>) {
      return run_items_checked<Kernel>(range, state, parameter_traits<P>::checked(arguments[N], N, state)...);
    }(std::index_sequence_for<P...>{});
  }
};

}  // namespace detail

/// Runs a kernel's items on the calling thread, straight on the memory of its arguments.
/// Shape: one argument per parameter, in order, of its type and direction; nothing is checked here.
/// Thread: any; disjoint ranges of one launch may run at the same time.
template <class Kernel>
inline constexpr host_entry host_entry_of = &detail::host_runner<Kernel, detail::parameters_of<Kernel>>::run;

/// Runs a kernel's items with every access checked; the answer is the first one that was not allowed, if any.
/// Thread: any; disjoint ranges of one launch may run at the same time.
template <class Kernel>
inline constexpr host_checked_entry host_checked_entry_of =
    &detail::host_runner<Kernel, detail::parameters_of<Kernel>>::run_checked;

}  // namespace weft

/// A buffer that the body only reads, only writes, or both; a second argument is the access:
/// halo(r), wrap(r), rows(k), whole, reduce(sum | product | min | max). Without one, item i reaches element i.
#define WEFT_IN(...) WEFT_DETAIL_BUFFER(in, __VA_ARGS__)
#define WEFT_OUT(...) WEFT_DETAIL_BUFFER(out, __VA_ARGS__)
#define WEFT_INOUT(...) WEFT_DETAIL_BUFFER(inout, __VA_ARGS__)

/// One end of a ring, as in (WEFT_RING in, WEFT_RING out): the body sees a pointer for weft_ring_send and its kin.
/// Shape: its argument is memory of ring_words uint64 in which the end lies; a launch with a ring is never split.
#define WEFT_RING typename WeftView::ring

/// Defines the kernel `name`, a type, at namespace scope; its body sees its global index as `i`.
/// Shape: WEFT_KERNEL(name, (parameters), { body }); the 2-D form gives x and y, the 3-D form x, y and z, all int64_t.
#define WEFT_KERNEL(name, parameters, ...)                                                                          \
  WEFT_DETAIL_KERNEL(name, 1, WEFT_DETAIL_ITEM_1 parameters, WEFT_DETAIL_TEXT(#name, 1, #parameters, #__VA_ARGS__), \
                     __VA_ARGS__)
#define WEFT_KERNEL_2D(name, parameters, ...)                                                                       \
  WEFT_DETAIL_KERNEL(name, 2, WEFT_DETAIL_ITEM_2 parameters, WEFT_DETAIL_TEXT(#name, 2, #parameters, #__VA_ARGS__), \
                     __VA_ARGS__)
#define WEFT_KERNEL_3D(name, parameters, ...)                                                                       \
  WEFT_DETAIL_KERNEL(name, 3, WEFT_DETAIL_ITEM_3 parameters, WEFT_DETAIL_TEXT(#name, 3, #parameters, #__VA_ARGS__), \
                     __VA_ARGS__)

#define WEFT_DETAIL_BUFFER(direction, type, ...)                                              \
  typename WeftView::template buffer<type, ::weft::parameter_direction::direction __VA_OPT__( \
                                               , WEFT_DETAIL_ACCESS(__VA_ARGS__))>
#define WEFT_DETAIL_ACCESS(word) WEFT_DETAIL_ACCESS_##word
#define WEFT_DETAIL_ACCESS_halo(radius) ::weft::access::halo(radius)
#define WEFT_DETAIL_ACCESS_wrap(radius) ::weft::access::wrap(radius)
#define WEFT_DETAIL_ACCESS_rows(count) ::weft::access::rows(count)
#define WEFT_DETAIL_ACCESS_whole ::weft::access::whole()
#define WEFT_DETAIL_ACCESS_reduce(op) ::weft::access::reduce(::weft::reduce_op::op)

#define WEFT_DETAIL_ITEM_1(...) ([[maybe_unused]] const std::int64_t i __VA_OPT__(, ) __VA_ARGS__)
#define WEFT_DETAIL_ITEM_2(...) \
  ([[maybe_unused]] const std::int64_t x, [[maybe_unused]] const std::int64_t y __VA_OPT__(, ) __VA_ARGS__)
#define WEFT_DETAIL_ITEM_3(...)                                                  \
  ([[maybe_unused]] const std::int64_t x, [[maybe_unused]] const std::int64_t y, \
   [[maybe_unused]] const std::int64_t z __VA_OPT__(, ) __VA_ARGS__)

// The text is made here, one level up from the body, where the arguments have not been expanded yet.
#define WEFT_DETAIL_TEXT(name, dimensions, parameters, body) {name, dimensions, parameters, body, __FILE__, __LINE__}

// A member template, so that one body is compiled once per view; named so that no body is likely to shadow it. A
// parameter that a body leaves unused is no mistake: kernels of one family share a signature.
// clang-format off
#define WEFT_DETAIL_KERNEL(name, dimension_count, signature, text, ...)                                                \
  struct name {                                                                                                        \
    _Pragma("GCC diagnostic push")                                                                                     \
    _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"")                                                           \
    template <class WeftView>                                                                                          \
    [[gnu::always_inline]] static inline void weft_body signature {                                                    \
      WEFT_DETAIL_NO_CONTRACTION                                                                                       \
      __VA_ARGS__                                                                                                      \
    }                                                                                                                  \
    _Pragma("GCC diagnostic pop")                                                                                      \
    static constexpr ::weft::detail::kernel_about weft_about() { return text; }                                        \
    using weft_parameters =                                                                                            \
        ::weft::detail::parameters_of_function<dimension_count,                                                        \
                                               decltype(&weft_body<::weft::detail::describing_view>)>::type;           \
    static_assert(weft_parameters::are_allowed,                                                                        \
                  "weft: the parameters of kernel " #name " may be int8_t to int64_t, uint8_t to uint64_t, float and " \
                  "double, by value or in WEFT_IN, WEFT_OUT or WEFT_INOUT, and WEFT_RING");                            \
    static_assert(weft_parameters::are_accesses_allowed,                                                               \
                  "weft: in kernel " #name " a halo may not be negative, rows must be at least one, and both at most " \
                  "2^31; wrap is of WEFT_IN alone");                                                                   \
  }
// clang-format on
