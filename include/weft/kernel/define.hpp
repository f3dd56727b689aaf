#pragma once
// SPDX-License-Identifier: Apache-2.0
// WEFT_KERNEL: one definition of a kernel that is compiled as C++ for the host, three times (raw, checked, and dry: its
// indices alone), and kept as text for the run-time compilers of the devices. docs/reference/kernels.md says what a
// body may contain.

#include "weft/kernel/math.hpp"
#include "weft/kernel/parameter.hpp"
#include "weft/kernel/ring.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

// g++ 12 vectorises at -O3 only, so the host loop asks for it itself; the other words say that no multiply-add is
// fused (same bits with and without -march=native) and that nobody watches floating-point traps, which would hold back
// the vectoriser. clang vectorises at -O2, and learns about fusing from a pragma. Without optimisation nothing is
// asked for, so that a debugger can step through a body.
#if defined(__clang__)
#define WEFT_DETAIL_HOST_LOOP
#define WEFT_DETAIL_DRY_LOOP
#define WEFT_DETAIL_CHECKED_LOOP
#define WEFT_DETAIL_INDEPENDENT
#define WEFT_DETAIL_NO_CONTRACTION _Pragma("clang fp contract(off)")
#elif defined(__GNUC__)
#if defined(__OPTIMIZE__)
#if !defined(WEFT_DETAIL_HOST_LOOP)  // a source of the library may ask for less
#define WEFT_DETAIL_HOST_LOOP [[gnu::optimize("O3", "fp-contract=off", "no-trapping-math")]]
#endif
// of a dry run the vectoriser sees indices alone; a function that may set errno would be called for its value's sake
#define WEFT_DETAIL_DRY_LOOP [[gnu::optimize("O3", "fp-contract=off", "no-trapping-math", "no-math-errno")]]
// no vectoriser passes the checks of a checked view
#define WEFT_DETAIL_CHECKED_LOOP [[gnu::optimize("O2", "fp-contract=off", "no-trapping-math")]]
#else
#define WEFT_DETAIL_HOST_LOOP
#define WEFT_DETAIL_DRY_LOOP
#define WEFT_DETAIL_CHECKED_LOOP
#endif
#define WEFT_DETAIL_INDEPENDENT _Pragma("GCC ivdep")
#define WEFT_DETAIL_NO_CONTRACTION
#else
#define WEFT_DETAIL_HOST_LOOP
#define WEFT_DETAIL_DRY_LOOP
#define WEFT_DETAIL_CHECKED_LOOP
#define WEFT_DETAIL_INDEPENDENT
#define WEFT_DETAIL_NO_CONTRACTION
#endif

// SSE2 compares no numbers of 64 bits, which indices are: a dry run is also compiled for AVX2, and chosen when it runs.
// Values of floating point are the same.
#if defined(__OPTIMIZE__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__AVX2__)
#define WEFT_DETAIL_DRY_WIDE [[gnu::target("avx2")]]
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
  std::int64_t at = 0;  // the outermost id of the item
  std::array<std::int64_t, 3> item{0, 0, 0};
  std::optional<access_violation> violation;
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
    // in plain words, since programs are also checked where nothing is optimised
    if constexpr (Access.kind != access_kind::whole && Access.kind != access_kind::reduce) {
      constexpr std::int64_t each = Access.kind == access_kind::rows ? Access.amount : 1;
      constexpr std::int64_t around = Access.kind == access_kind::rows ? 0 : Access.amount;
      const std::int64_t low = (state_->at - around) * each * step_;
      const std::int64_t high = (state_->at + around + 1) * each * step_;
      if (step_ > 0 && (index < low || index >= high)) [[unlikely]] {
        return refuse(index, index < low ? low : high, true);
      }
    }
    return elements_[index - first_];
  }

 private:
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

// A dry run asks of many items at once whether all they access is allowed, and computes nothing else: what is written
// stays in the view, where only the item that wrote it sees it. Branches and early ends, which hold back the vectoriser
// in a checked view, are left to those items for which the answer is not a plain yes.
template <class T, parameter_direction Direction, access_rule Access, int Dimensions>
class dry_buffer {
 public:
  static constexpr bool is_written = Direction != parameter_direction::in;
  static constexpr bool is_local = Access.kind != access_kind::whole && Access.kind != access_kind::reduce;

  [[gnu::always_inline]] dry_buffer(const T* zero, std::int64_t first, std::int64_t count, std::int64_t step,
                                    std::int64_t at, std::uint64_t& doubt)
      : zero_(zero), first_(first), count_(count), step_(step), at_(at), doubt_(&doubt) {}

  template <std::integral Index>
  [[gnu::always_inline]] T operator[](Index asked) const
    requires(!is_written)
  {
    const auto index = static_cast<std::int64_t>(asked);
    const std::uint64_t outside = doubt_of(index);
    *doubt_ |= outside;
    return outside >> 63U == 0 ? value_at(index) : T{};
  }
  // One element for each item: which one it was, and what it has become, is known without memory.
  template <std::integral Index>
  [[gnu::always_inline]] T& operator[](Index asked) const
    requires is_written
  {
    const auto index = static_cast<std::int64_t>(asked);
    const std::uint64_t outside = doubt_of(index);
    if (!is_known_) {
      is_known_ = true;
      index_ = index;
      value_ = outside >> 63U == 0 ? value_at(index) : T{};
    }
    const auto other = static_cast<std::uint64_t>(index) ^ static_cast<std::uint64_t>(index_);
    *doubt_ |= outside | other | (0 - other);
    return value_;
  }

 private:
  /// Its highest bit is set where the parameter does not declare the element for the item; that all it declares is
  /// there was asked before. By the signs of differences, since SSE2 compares no numbers of 64 bits.
  [[gnu::always_inline]] [[nodiscard]] std::uint64_t doubt_of(std::int64_t index) const {
    const std::int64_t step = Dimensions == 1 ? 1 : step_;
    const auto outside = [&](std::int64_t low, std::int64_t count) {
      const auto above = static_cast<std::uint64_t>(index) - static_cast<std::uint64_t>(low);
      return above | (static_cast<std::uint64_t>(count) - 1 - above);
    };
    if constexpr (!is_local) {
      return outside(first_, count_);
    } else if constexpr (Access.kind == access_kind::rows) {
      return outside(at_ * Access.amount * step, Access.amount * step);
    } else {
      return outside((at_ - Access.amount) * step, (2 * Access.amount + 1) * step);
    }
  }
  [[gnu::always_inline]] [[nodiscard]] T value_at(std::int64_t index) const { return zero_[index - first_]; }

  const T* zero_;
  std::int64_t first_;
  std::int64_t count_;
  std::int64_t step_;
  std::int64_t at_;
  std::uint64_t* doubt_;
  mutable bool is_known_ = false;
  mutable std::int64_t index_ = 0;
  mutable T value_{};
};

template <int Dimensions>
struct dry_view {
  template <class T, parameter_direction Direction, access_rule Access = access_rule{}>
  using buffer = dry_buffer<T, Direction, Access, Dimensions>;
  using ring = ::weft_ring*;
};

/// Whether a body calls the library's functions alone, which do nothing but give a value.
constexpr bool is_pure(std::string_view body) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (body.find("static") != std::string_view::npos) return false;
  for (std::size_t at = 0; (at = body.find('(', at)) != std::string_view::npos; ++at) {
    std::size_t end = at;
    while (end > 0 && (body[end - 1] == ' ' || body[end - 1] == '\n' || body[end - 1] == '\t')) --end;
    std::size_t begin = end;
    while (begin > 0 && is_word(body[begin - 1])) --begin;
    const std::string_view word = body.substr(begin, end - begin);
    if (!word.empty() && !word.starts_with("weft_") && word != "if" && word != "for" && word != "while" &&
        word != "switch" && word != "return") {
      return false;
    }
  }
  return true;
}

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
  static constexpr bool is_dry = true;
  template <int Dimensions>
  [[gnu::always_inline]] static T dry(const kernel_argument& argument, std::int64_t, std::uint64_t&) {
    return raw(argument);
  }
  template <int Dimensions>
  static void keep_inside(const kernel_argument&, std::int64_t&, std::int64_t&) {}
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
  // Who may write everything may read what another item wrote.
  static constexpr bool is_dry = Direction == parameter_direction::in || Access.kind == access_kind::one_to_one ||
                                 Access.kind == access_kind::rows || Access.kind == access_kind::reduce;
  template <int Dimensions>
  [[gnu::always_inline]] static dry_buffer<T, Direction, Access, Dimensions> dry(const kernel_argument& argument,
                                                                                 std::int64_t at,
                                                                                 std::uint64_t& doubt) {
    return {static_cast<const T*>(argument.address), argument.first, argument.count, argument.slab, at, doubt};
  }
  /// Leaves those of the outermost ids begin … end - 1 for which all that the parameter declares is in the argument.
  template <int Dimensions>
  static void keep_inside(const kernel_argument& argument, std::int64_t& begin, std::int64_t& end) {
    if constexpr (Access.kind != access_kind::whole && Access.kind != access_kind::reduce) {
      const std::int64_t step = Dimensions == 1 ? 1 : argument.slab;
      std::int64_t each = 0;
      if (step <= 0 || __builtin_mul_overflow(step, Access.kind == access_kind::rows ? Access.amount : 1, &each)) {
        end = begin;
        return;
      }
      const std::int64_t around = Access.kind == access_kind::rows ? 0 : Access.amount;
      const std::int64_t first = argument.first, last = first + argument.count;
      begin = std::max(begin, first / each + (first % each > 0 ? 1 : 0) + around);
      end = std::min(end, last / each - (last % each < 0 ? 1 : 0) - around);
    }
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
  static constexpr bool is_dry = false;  // what it sends is sent
};

template <class... Parameters>
struct parameter_list {
  static constexpr std::size_t size = sizeof...(Parameters);
  static constexpr bool are_allowed = (parameter_traits<Parameters>::is_allowed && ...);
  static constexpr bool are_accesses_allowed = (parameter_traits<Parameters>::is_access_allowed && ...);
  static constexpr bool has_reduction = (parameter_traits<Parameters>::is_reduction || ...);
  static constexpr bool has_ring = (parameter_traits<Parameters>::is_ring || ...);
  static constexpr bool are_dry = (parameter_traits<Parameters>::is_dry && ...);
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
        state.at = dimensions == 1 ? x : dimensions == 2 ? y : z;
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

// The items of one row: x from begin[0] to end[0]. True when all that they access is allowed.
template <class Kernel, class... P, std::size_t... N>
[[gnu::always_inline]] inline bool try_row(parameter_list<P...>, std::index_sequence<N...>, const kernel_range& row,
                                           [[maybe_unused]] const kernel_argument* arguments) {
  constexpr int dimensions = Kernel::weft_about().dimensions;
  const std::int64_t begin = row.begin[0], end = row.end[0], y = row.begin[1], z = row.begin[2];
  [[maybe_unused]] const std::array<kernel_argument, sizeof...(P)> given{arguments[N]...};
  std::uint64_t doubtful = 0;
  for (std::int64_t x = begin; x < end; ++x) {
    [[maybe_unused]] const std::int64_t at = dimensions == 1 ? x : dimensions == 2 ? y : z;
    std::uint64_t doubt = 0;
    run_item<Kernel, dry_view<dimensions>>(x, y, z,
                                           parameter_traits<P>::template dry<dimensions>(given[N], at, doubt)...);
    doubtful += doubt >> 63U;  // a sum, so that the bits of one item do not wait for those of the one before
  }
  return doubtful == 0;
}
template <class Kernel, class... P>
WEFT_DETAIL_DRY_LOOP [[gnu::noinline]] bool try_row_anywhere(const kernel_range& row,
                                                             const kernel_argument* arguments) {
  return try_row<Kernel>(parameter_list<P...>{}, std::index_sequence_for<P...>{}, row, arguments);
}
#if defined(WEFT_DETAIL_DRY_WIDE)
template <class Kernel, class... P>
WEFT_DETAIL_DRY_WIDE WEFT_DETAIL_DRY_LOOP [[gnu::noinline]] bool try_row_wide(const kernel_range& row,
                                                                              const kernel_argument* arguments) {
  return try_row<Kernel>(parameter_list<P...>{}, std::index_sequence_for<P...>{}, row, arguments);
}
#endif

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
#if defined(__OPTIMIZE__)
    if constexpr (parameter_list<P...>::are_dry && is_pure(Kernel::weft_about().body_text)) {
      return run_in_rows(range, arguments);
    }
#endif
    return run_exactly(range, arguments);
  }

 private:
  // Items whose accesses a dry run allows run as they are; the others one by one, so that the first fault is found.
  static std::optional<access_violation> run_in_rows(const kernel_range& range,
                                                     std::span<const kernel_argument> arguments) {
    constexpr int dimensions = Kernel::weft_about().dimensions;
    constexpr auto outer = static_cast<std::size_t>(dimensions - 1);
    std::int64_t begin = range.begin[outer], end = range.end[outer];
    [&]<std::size_t... N>(std::index_sequence<N...>) {
      (parameter_traits<P>::template keep_inside<dimensions>(arguments[N], begin, end), ...);
    }(std::index_sequence_for<P...>{});
    if (begin >= end) return run_exactly(range, arguments);
    kernel_range part = range;
    part.end[outer] = begin;
    if (auto violation = run_exactly(part, arguments)) return violation;
    part.begin[outer] = begin;
    part.end[outer] = end;
    if (auto violation = run_inside(part, arguments)) return violation;
    part.begin[outer] = end;
    part.end[outer] = range.end[outer];
    return run_exactly(part, arguments);
  }
  static std::optional<access_violation> run_inside(const kernel_range& range,
                                                    std::span<const kernel_argument> arguments) {
    constexpr int dimensions = Kernel::weft_about().dimensions;
    constexpr std::int64_t most = 1024;  // items at once: what they read stays in the first cache until they run
    auto try_it = &try_row_anywhere<Kernel, P...>;
#if defined(WEFT_DETAIL_DRY_WIDE)
    if (__builtin_cpu_supports("avx2")) try_it = &try_row_wide<Kernel, P...>;
#endif
    bool is_plain = true;  // a kernel that once was not is likely to be so again
    const std::int64_t end_y = dimensions > 1 ? range.end[1] : 1;
    const std::int64_t end_z = dimensions > 2 ? range.end[2] : 1;
    for (std::int64_t z = dimensions > 2 ? range.begin[2] : 0; z < end_z; ++z) {
      for (std::int64_t y = dimensions > 1 ? range.begin[1] : 0; y < end_y; ++y) {
        for (std::int64_t x = range.begin[0]; x < range.end[0]; x += most) {
          const kernel_range row{dimensions, {x, y, z}, {std::min(range.end[0] - x, most) + x, y + 1, z + 1}};
          is_plain = is_plain && try_it(row, arguments.data());
          if (is_plain) {
            run(row, arguments);
          } else if (auto violation = run_exactly(row, arguments)) {
            return violation;
          }
        }
      }
    }
    return std::nullopt;
  }
  static std::optional<access_violation> run_exactly(const kernel_range& range,
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
