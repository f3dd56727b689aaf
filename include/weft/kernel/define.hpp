#pragma once
// SPDX-License-Identifier: Apache-2.0
// WEFT_KERNEL: one definition of a kernel that is compiled as C++ for the host, three times (raw, checked, and dry: its
// indices alone), and kept as text for the run-time compilers of the devices. docs/reference/kernels.md says what a
// body may contain.

#include "weft/kernel/detail/body_reading.hpp"
#include "weft/kernel/math.hpp"
#include "weft/kernel/parameter.hpp"
#include "weft/kernel/ring.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

// g++ 12 vectorises at -O3 only, so the host loop asks for it itself; the other words say that no multiply-add is
// fused (same bits with and without -march=native) and that nobody watches floating-point traps, which would hold back
// the vectoriser. clang vectorises at -O2, and learns about fusing from a pragma. Without optimisation nothing is
// asked for, so that a debugger can step through a body; checks alone are kept from costing a multiple, by -Og.
#if defined(__clang__)
#define WEFT_DETAIL_HOST_LOOP
#define WEFT_DETAIL_DRY_LOOP
#define WEFT_DETAIL_CHECKED_LOOP
#define WEFT_DETAIL_INDEPENDENT
#define WEFT_DETAIL_NO_CONTRACTION _Pragma("clang fp contract(off)")
#else
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
#define WEFT_DETAIL_CHECKED_LOOP [[gnu::optimize("Og", "fp-contract=off")]]
#endif
#define WEFT_DETAIL_INDEPENDENT _Pragma("GCC ivdep")
#define WEFT_DETAIL_NO_CONTRACTION
#endif

// A host loop works in the widest vectors that its processor has: it is compiled for SSE2, AVX2 and AVX-512, and chosen
// when it runs. Nothing is fused, so the bits are the same. A program compiled for AVX2 or more has that alone.
#if defined(__OPTIMIZE__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__AVX2__)
#define WEFT_DETAIL_WIDE [[gnu::target("avx2")]]
#if defined(__clang__)
#define WEFT_DETAIL_WIDEST [[gnu::target("avx2,avx512f,avx512bw,avx512dq,avx512vl")]]
#else  // which would use half of them
#define WEFT_DETAIL_WIDEST [[gnu::target("avx2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]]
#endif
#endif

// Dry runs pay where they are optimised. SSE2 compares no numbers of 64 bits, which indices are: they are compiled for
// SSE4.2 and for AVX2.
#if defined(__OPTIMIZE__)
#define WEFT_DETAIL_DRY
#if defined(WEFT_DETAIL_WIDE)
#define WEFT_DETAIL_DRY_NARROW [[gnu::target("sse4.2")]]
#else
#define WEFT_DETAIL_DRY_NARROW
#endif
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

// ---- check mode

constexpr bool is_local(access_rule access) {
  return access.kind != access_kind::whole && access.kind != access_kind::reduce;
}
constexpr std::int64_t each_of(access_rule access) { return access.kind == access_kind::rows ? access.amount : 1; }
constexpr std::int64_t around_of(access_rule access) { return access.kind == access_kind::rows ? 0 : access.amount; }

struct check_state {
  bool is_inside = false;  // all that the parameters declare for the items is in the arguments
  bool is_refused = false;
  int answers = 0;  // to refused accesses
  access_violation violation;
  alignas(8) std::array<std::byte, 8> spare{};
};

// Ends an item early, inside of check_row() and try_row() alone. Without exceptions, as in a program that is built so,
// a refused read gives 1, which is harmless to divide by; and after so many 0, so that a search for 0 ends.
#if defined(__cpp_exceptions)
inline constexpr bool can_end_items = true;
struct item_end {};
#define WEFT_DETAIL_END_ITEM \
  throw item_end {}
#define WEFT_DETAIL_TRY try
#define WEFT_DETAIL_ENDED catch (const item_end&)
#else
inline constexpr bool can_end_items = false;
#define WEFT_DETAIL_END_ITEM static_cast<void>(0)
#define WEFT_DETAIL_TRY
#define WEFT_DETAIL_ENDED if constexpr (false)
#endif
inline constexpr int harmless_answers = 1000;

// Allows what the argument reaches and the parameter declares. Anything else is noted once and lands in a spare
// element, so that a wrong kernel corrupts nothing. In plain words, since programs are also checked unoptimised.
template <class T, parameter_direction Direction, access_rule Access, int Dimensions>
class checked_buffer {
 public:
  static constexpr bool is_written = Direction != parameter_direction::in;
  static constexpr std::int64_t each = each_of(Access), around = around_of(Access);
  static constexpr bool is_moving = is_local(Access) && Dimensions == 1;  // each item has elements of its own
  using element = std::conditional_t<is_written, T, const T>;

  [[gnu::always_inline]] checked_buffer(const kernel_argument& argument, element* zero, std::size_t parameter,
                                        const std::int64_t& at, check_state& state)
      : zero_(zero),
        low_(argument.first),
        count_(static_cast<std::uint64_t>(argument.count)),
        argument_(&argument),
        parameter_(parameter),
        at_(&at),
        state_(&state) {
    if constexpr (is_moving) {
      count_ = state.is_inside ? (2 * around + 1) * each : 0;
    } else if constexpr (is_local(Access)) {
      if (argument.slab <= 0) return;
      const std::int64_t end = argument.first + argument.count;
      const std::int64_t low = (at - around) * each * argument.slab;
      const std::int64_t high = (at + around + 1) * each * argument.slab;
      if (low > low_) low_ = low;
      count_ = static_cast<std::uint64_t>(high < low_ || end < low_ ? 0 : (high < end ? high : end) - low_);
    }
  }

  template <std::integral Index>
  [[gnu::always_inline]] element& operator[](Index asked) const {
    if (static_cast<std::uint64_t>(asked) - static_cast<std::uint64_t>(is_moving ? (*at_ - around) * each : low_) >=
        count_) [[unlikely]] {
      return judged<can_end_items>(*argument_, zero_, parameter_, *at_, *state_, static_cast<std::int64_t>(asked));
    }
    return zero_[static_cast<std::int64_t>(asked)];
  }

 private:
  /// The exact answer, for where the quick one is not yes. A program may have it with and without exceptions.
  template <bool CanEnd>
  [[gnu::noinline]] static element& judged(const kernel_argument& argument, element* zero, std::size_t parameter,
                                           std::int64_t at, check_state& state, std::int64_t index) {
    const std::int64_t step = Dimensions == 1 ? 1 : argument.slab;
    std::int64_t low = argument.first, high = argument.first + argument.count;
    const bool undeclared = index >= low && index < high;
    if (undeclared) {
      if (!is_local(Access) || step <= 0) return zero[index];
      low = (at - around) * each * step;
      high = (at + around + 1) * each * step;
      if (index >= low && index < high) return zero[index];
    }
    if (!state.is_refused) {
      state.is_refused = true;
      state.violation = {parameter, index, index < low ? low : high, is_written, undeclared, {}};
    }
    WEFT_DETAIL_END_ITEM;
    return *::new (static_cast<void*>(&state.spare)) T(state.answers++ < harmless_answers ? 1 : 0);
  }

  element* zero_;
  std::int64_t low_;
  std::uint64_t count_;
  const kernel_argument* argument_;
  std::size_t parameter_;
  const std::int64_t* at_;  // the outermost id of the item
  check_state* state_;
};

template <int Dimensions>
struct checked_view {
  template <class T, parameter_direction Direction, access_rule Access = access_rule{}>
  using buffer = const checked_buffer<T, Direction, Access, Dimensions>&;
  using ring = ::weft_ring*;  // its functions keep to the ring by themselves
};

// A dry run asks of many items at once whether all they access is allowed, and computes nothing else: nothing is
// written. Branches and early ends, which hold back the vectoriser in a checked view, are left to those items for which
// the answer is not a plain yes. It computes the indices of the real run because no index depends on what another item
// writes: of a blind body none depends on any result; of others each item reads back one element, its own alone. Where
// a value that the real run does not read may do harm, the item ends instead.
struct dry_item {
  std::int64_t x;
  std::int64_t at;          // the outermost id
  std::uint64_t doubt = 0;  // its highest bit
  std::uint64_t some = 0;   // of index - x, where elements are an item's own if that is one number for all items
  std::uint64_t all = ~std::uint64_t{0};
};

template <class T, parameter_direction Direction, access_rule Access, int Dimensions, bool IsBlind, bool Ends>
class dry_buffer {
 public:
  static constexpr bool is_written = Direction != parameter_direction::in;
  static constexpr std::int64_t each = each_of(Access), around = around_of(Access);
  static constexpr bool is_private =
      Dimensions == 1 && (Access.kind == access_kind::one_to_one || Access.kind == access_kind::rows);

  // All that a parameter declares is there, which was asked before.
  [[gnu::always_inline]] dry_buffer(const kernel_argument& argument, const T* zero, dry_item& item)
      : zero_(zero), low_(argument.first), count_(argument.count), item_(&item) {
    if constexpr (is_local(Access)) {
      const std::int64_t step = each * (Dimensions == 1 ? 1 : argument.slab);
      low_ = (item.at - around) * step;
      count_ = (2 * around + 1) * step;
    }
  }

  template <std::integral Index>
  [[gnu::always_inline]] T operator[](Index asked) const
    requires(!is_written)
  {
    const auto index = static_cast<std::int64_t>(asked);
    const bool outside = is_outside(index);
    if (Ends && outside) [[unlikely]]
      WEFT_DETAIL_END_ITEM;
    return outside ? T{1} : zero_[index];
  }
  template <std::integral Index>
  [[gnu::always_inline]] T& operator[](Index asked) const
    requires is_written
  {
    const auto index = static_cast<std::int64_t>(asked);
    const bool outside = is_outside(index);
    if constexpr (IsBlind) {
      value_ = T{1};
    } else {
      if (Ends && outside) [[unlikely]]
        WEFT_DETAIL_END_ITEM;
      if (!is_known_) {
        is_known_ = true;
        index_ = index;
        value_ = outside ? T{1} : zero_[index];
      }
      const auto other = static_cast<std::uint64_t>(index) ^ static_cast<std::uint64_t>(index_);
      item_->doubt |= other | (0 - other);
      if (Ends && other != 0) [[unlikely]]
        WEFT_DETAIL_END_ITEM;
      if constexpr (!is_private) {
        const auto from_x = static_cast<std::uint64_t>(index) - static_cast<std::uint64_t>(item_->x);
        item_->some |= from_x;
        item_->all &= from_x;
      }
    }
    return value_;
  }

 private:
  /// By the signs of differences, since SSE2 compares no numbers of 64 bits.
  [[gnu::always_inline]] [[nodiscard]] bool is_outside(std::int64_t index) const {
    const auto above = static_cast<std::uint64_t>(index) - static_cast<std::uint64_t>(low_);
    const std::uint64_t outside = above | (static_cast<std::uint64_t>(count_) - 1 - above);
    item_->doubt |= outside;
    return outside >> 63U != 0;
  }

  const T* zero_;
  std::int64_t low_;
  std::int64_t count_;
  dry_item* item_;
  mutable bool is_known_ = false;
  mutable std::int64_t index_ = 0;
  mutable T value_{};
};

template <int Dimensions, bool IsBlind, bool Ends>
struct dry_view {
  template <class T, parameter_direction Direction, access_rule Access = access_rule{}>
  using buffer = const dry_buffer<T, Direction, Access, Dimensions, IsBlind, Ends>&;
  using ring = ::weft_ring*;
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

  [[gnu::always_inline]] static T raw(const kernel_argument& argument) {
    T value;
    __builtin_memcpy(&value, &argument.scalar, sizeof(T));
    return value;
  }
  template <int Dimensions>
  [[gnu::always_inline]] static T checked(const kernel_argument& argument, std::size_t, const std::int64_t&,
                                          check_state&) {
    return raw(argument);
  }
  template <int Dimensions, bool IsBlind, bool Ends>
  [[gnu::always_inline]] static T dry(const kernel_argument& argument, dry_item&) {
    return raw(argument);
  }
  template <int Dimensions>
  static void keep_inside(const kernel_argument&, std::int64_t&, std::int64_t&) {}
};

template <class T, parameter_direction Direction, access_rule Access>
struct parameter_traits<described_buffer<T, Direction, Access>> {
  static constexpr std::int64_t largest_amount = std::int64_t{1} << 31;
  static constexpr bool is_allowed = kernel_element<T>;
  static constexpr bool is_access_allowed =
      Access.amount >= (Access.kind == access_kind::rows ? 1 : 0) && Access.amount <= largest_amount &&
      (Access.kind != access_kind::wrap || Direction == parameter_direction::in) &&
      (Access.kind != access_kind::reduce || Direction == parameter_direction::inout);
  static constexpr bool is_reduction = Access.kind == access_kind::reduce;
  static constexpr bool is_ring = false;
  static constexpr parameter_direction direction = Direction;
  static constexpr access_rule access = Access;
  using element = T;

  // As in a C kernel the pointer is that of element 0, even if this piece of the array starts later. Then it lies
  // outside the piece, which pointer arithmetic may not do, so the address is computed as a number.
  [[gnu::always_inline]] static auto* raw(const kernel_argument& argument) {
    using pointer = std::conditional_t<Direction == parameter_direction::in, const T*, T*>;
    const auto offset = static_cast<std::uintptr_t>(argument.first) * sizeof(T);
    return reinterpret_cast<pointer>(reinterpret_cast<std::uintptr_t>(argument.address) - offset);
  }
  template <int Dimensions>
  [[gnu::always_inline]] static checked_buffer<T, Direction, Access, Dimensions> checked(
      const kernel_argument& argument, std::size_t parameter, const std::int64_t& at, check_state& state) {
    return {argument, raw(argument), parameter, at, state};
  }
  template <int Dimensions, bool IsBlind, bool Ends>
  [[gnu::always_inline]] static dry_buffer<T, Direction, Access, Dimensions, IsBlind, Ends> dry(
      const kernel_argument& argument, dry_item& item) {
    return {argument, raw(argument), item};
  }
  /// Leaves those of the outermost ids begin … end - 1 for which all that the parameter declares is in the argument.
  template <int Dimensions>
  static void keep_inside(const kernel_argument& argument, std::int64_t& begin, std::int64_t& end) {
    if constexpr (is_local(Access)) {
      const std::int64_t step = Dimensions == 1 ? 1 : argument.slab;
      std::int64_t each = 0;
      if (step <= 0 || __builtin_mul_overflow(step, each_of(Access), &each)) {
        end = begin;
        return;
      }
      constexpr std::int64_t around = around_of(Access);
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
  template <int Dimensions>
  [[gnu::always_inline]] static ::weft_ring* checked(const kernel_argument& argument, std::size_t, const std::int64_t&,
                                                     check_state&) {
    return raw(argument);
  }
  template <int Dimensions>
  static void keep_inside(const kernel_argument&, std::int64_t&, std::int64_t&) {}
};

template <class... Parameters>
struct parameter_list {
  static constexpr std::size_t size = sizeof...(Parameters);
  static constexpr bool are_allowed = (parameter_traits<Parameters>::is_allowed && ...);
  static constexpr bool are_accesses_allowed = (parameter_traits<Parameters>::is_access_allowed && ...);
  static constexpr bool has_reduction = (parameter_traits<Parameters>::is_reduction || ...);
  static constexpr bool has_ring = (parameter_traits<Parameters>::is_ring || ...);
  static constexpr std::array<bool, size> are_written{
      (parameter_traits<Parameters>::direction == parameter_direction::out ||
       parameter_traits<Parameters>::direction == parameter_direction::inout)...};
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

template <class Kernel>
inline constexpr body_reading reading_of =
    read_body(Kernel::weft_about().parameter_text, Kernel::weft_expanded_body(), parameters_of<Kernel>::are_written);

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

// A reduction and a ring do carry something from one item to the next, so there the loop is not called independent.
template <class Kernel, class... Values>
[[gnu::always_inline]] inline void run_items(const kernel_range& range, Values... values) {
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

// Not inlined: each asks for its own optimisation and vectors.
template <class Kernel, class... Values>
WEFT_DETAIL_HOST_LOOP [[gnu::noinline]] void run_items_narrow(const kernel_range& range, Values... values) {
  run_items<Kernel>(range, values...);
}
#if defined(WEFT_DETAIL_WIDE)
template <class Kernel, class... Values>
WEFT_DETAIL_WIDE WEFT_DETAIL_HOST_LOOP [[gnu::noinline]] void run_items_wide(const kernel_range& range,
                                                                             Values... values) {
  run_items<Kernel>(range, values...);
}
template <class Kernel, class... Values>
WEFT_DETAIL_WIDEST WEFT_DETAIL_HOST_LOOP [[gnu::noinline]] void run_items_widest(const kernel_range& range,
                                                                                 Values... values) {
  run_items<Kernel>(range, values...);
}
#endif

enum class vector_width : std::uint8_t { narrow, wide, widest };
/// Of this processor and this build. AVX-512 counts with VBMI2 only: processors before lower their clock for 512 bits.
[[nodiscard]] inline vector_width widest_here() {
#if defined(WEFT_DETAIL_WIDE)
  if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bw")) return vector_width::widest;
  if (__builtin_cpu_supports("avx2")) return vector_width::wide;
#endif
  return vector_width::narrow;
}

// The items of one row: x from begin[0] to end[0]. Ends with the first that did something not allowed: what it computes
// after that means nothing.
template <class Kernel, class... Values>
[[gnu::always_inline]] inline bool check_row(const kernel_range& range, std::int64_t y, std::int64_t z,
                                             std::int64_t& at, check_state& state, const Values&... values) {
  constexpr int dimensions = Kernel::weft_about().dimensions;
  const std::int64_t end = range.end[0];
  std::int64_t x = range.begin[0];
  WEFT_DETAIL_TRY {
    for (; x < end; ++x) {
      if constexpr (dimensions == 1) at = x;
      run_item<Kernel, checked_view<dimensions>>(x, y, z, values...);
      if (state.is_refused) [[unlikely]]
        break;
    }
  }
  WEFT_DETAIL_ENDED {}
  if (x < end) state.violation.item = {x, y, z};
  return x >= end;
}
// It asks for the same optimisation as the raw loop, so that both give the same bits.
template <class Kernel, class... P, std::size_t... N>
WEFT_DETAIL_CHECKED_LOOP [[gnu::noinline]] std::optional<access_violation> run_items_checked(
    parameter_list<P...>, std::index_sequence<N...>, const kernel_range& range, bool is_inside,
    [[maybe_unused]] const kernel_argument* arguments) {
  constexpr int dimensions = Kernel::weft_about().dimensions;
  const std::int64_t end_y = dimensions > 1 ? range.end[1] : 1;
  const std::int64_t end_z = dimensions > 2 ? range.end[2] : 1;
  check_state state;
  state.is_inside = is_inside;
  for (std::int64_t z = dimensions > 2 ? range.begin[2] : 0; z < end_z; ++z) {
    for (std::int64_t y = dimensions > 1 ? range.begin[1] : 0; y < end_y; ++y) {
      std::int64_t at = dimensions == 2 ? y : z;
      if (!check_row<Kernel>(range, y, z, at, state,
                             parameter_traits<P>::template checked<dimensions>(arguments[N], N, at, state)...)) {
        return state.violation;
      }
    }
  }
  return std::nullopt;
}

#if defined(WEFT_DETAIL_DRY)
// The items of one row: x from begin[0] to end[0]. True when all that they access is allowed.
template <class Kernel, class... P, std::size_t... N>
[[gnu::always_inline]] inline bool try_row(parameter_list<P...>, std::index_sequence<N...>, const kernel_range* row,
                                           [[maybe_unused]] const kernel_argument* arguments) {
  constexpr int dimensions = Kernel::weft_about().dimensions;
  const std::int64_t begin = row->begin[0], end = row->end[0], y = row->begin[1], z = row->begin[2];
  constexpr body_reading body = reading_of<Kernel>;
  constexpr bool ends = body.has_loop || body.may_fault;
  std::uint64_t doubtful = 0, some = 0, all = ~std::uint64_t{0};
  WEFT_DETAIL_TRY {
    for (std::int64_t x = begin; x < end; ++x) {
      dry_item item{x, dimensions == 1 ? x : dimensions == 2 ? y : z};
      run_item<Kernel, dry_view<dimensions, body.is_blind, ends>>(
          x, y, z, parameter_traits<P>::template dry<dimensions, body.is_blind, ends>(arguments[N], item)...);
      doubtful += item.doubt >> 63U;  // a sum, so that the bits of one item do not wait for those of the one before
      some |= item.some;
      all &= item.all;
    }
  }
  WEFT_DETAIL_ENDED { return false; }
  return doubtful == 0 && (some & ~all) == 0;
}
template <class Kernel, class... P>
WEFT_DETAIL_DRY_NARROW WEFT_DETAIL_DRY_LOOP [[gnu::noinline]] bool try_row_narrow(const kernel_range* row,
                                                                                  const kernel_argument* arguments) {
  return try_row<Kernel>(parameter_list<P...>{}, std::index_sequence_for<P...>{}, row, arguments);
}
#if defined(WEFT_DETAIL_WIDE)
template <class Kernel, class... P>
WEFT_DETAIL_WIDE WEFT_DETAIL_DRY_LOOP [[gnu::noinline]] bool try_row_wide(const kernel_range* row,
                                                                          const kernel_argument* arguments) {
  return try_row<Kernel>(parameter_list<P...>{}, std::index_sequence_for<P...>{}, row, arguments);
}
#endif

/// Whether no buffer that is written overlaps another.
inline bool are_apart(std::span<const kernel_argument> arguments, const bool* are_written, const std::size_t* sizes) {
  const auto begin = [&](std::size_t n) { return reinterpret_cast<std::uintptr_t>(arguments[n].address); };
  const auto end = [&](std::size_t n) { return begin(n) + static_cast<std::uintptr_t>(arguments[n].count) * sizes[n]; };
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    for (std::size_t other = 0; are_written[n] && other < arguments.size(); ++other) {
      if (other != n && begin(n) < end(other) && begin(other) < end(n)) return false;
    }
  }
  return true;
}
#endif

template <class Kernel, class List>
struct host_runner;

template <class Kernel, class... P>
struct host_runner<Kernel, parameter_list<P...>> {
  static void run(const kernel_range& range, std::span<const kernel_argument> arguments) {
    run_in(widest_here(), range, arguments);
  }
  static void run_in([[maybe_unused]] vector_width vectors, const kernel_range& range,
                     [[maybe_unused]] std::span<const kernel_argument> arguments) {
    [&]<std::size_t... N>(std::index_sequence<N...>) {
#if defined(WEFT_DETAIL_WIDE)
      if constexpr (!parameter_list<P...>::has_ring) {
        if (vectors == vector_width::widest)
          return run_items_widest<Kernel>(range, parameter_traits<P>::raw(arguments[N])...);
        if (vectors == vector_width::wide)
          return run_items_wide<Kernel>(range, parameter_traits<P>::raw(arguments[N])...);
      }
#endif
      run_items_narrow<Kernel>(range, parameter_traits<P>::raw(arguments[N])...);
    }(std::index_sequence_for<P...>{});
  }

  // Items whose accesses a dry run allows run as they are; the others one by one, so that the first fault is found.
  static std::optional<access_violation> run_checked(const kernel_range& range,
                                                     [[maybe_unused]] std::span<const kernel_argument> arguments) {
    constexpr int dimensions = Kernel::weft_about().dimensions;
    constexpr auto outer = static_cast<std::size_t>(dimensions - 1);
    std::int64_t begin = range.begin[outer], end = range.end[outer];
    [&]<std::size_t... N>(std::index_sequence<N...>) {
      (parameter_traits<P>::template keep_inside<dimensions>(arguments[N], begin, end), ...);
    }(std::index_sequence_for<P...>{});
    if (begin >= end) return run_exactly(range, false, arguments);
    kernel_range part = range;
    part.end[outer] = begin;
    if (auto violation = run_exactly(part, false, arguments)) return violation;
    part.begin[outer] = begin;
    part.end[outer] = end;
    if (auto violation = run_inside(part, arguments)) return violation;
    part.begin[outer] = end;
    part.end[outer] = range.end[outer];
    return run_exactly(part, false, arguments);
  }

 private:
  static std::optional<access_violation> run_inside(const kernel_range& range,
                                                    std::span<const kernel_argument> arguments) {
#if defined(WEFT_DETAIL_DRY)
    constexpr body_reading body = reading_of<Kernel>;
    // what a body reads back may be another element than its own, and then a loop may not end
    constexpr bool is_dry = !parameter_list<P...>::has_ring && body.is_pure && (body.is_blind || !body.has_loop) &&
                            (can_end_items || !(body.has_loop || body.may_fault));
    constexpr std::array<std::size_t, sizeof...(P)> sizes{sizeof(typename parameter_traits<P>::element)...};
    if constexpr (is_dry) {
      if (are_apart(arguments, parameter_list<P...>::are_written.data(), sizes.data())) {
        return run_in_rows(range, arguments);
      }
    }
#endif
    return run_exactly(range, true, arguments);
  }
#if defined(WEFT_DETAIL_DRY)
  static std::optional<access_violation> run_in_rows(const kernel_range& range,
                                                     std::span<const kernel_argument> arguments) {
    constexpr int dimensions = Kernel::weft_about().dimensions;
    constexpr std::int64_t most = 1024;  // items at once: what they read stays in the first cache until they run
    bool is_plain = true;                // a kernel that once was not is likely to be so again
    auto try_it = &try_row_narrow<Kernel, P...>;
#if defined(WEFT_DETAIL_WIDE)
    is_plain = __builtin_cpu_supports("sse4.2") != 0;
    if (widest_here() != vector_width::narrow) try_it = &try_row_wide<Kernel, P...>;
#endif
    const std::int64_t end_y = dimensions > 1 ? range.end[1] : 1;
    const std::int64_t end_z = dimensions > 2 ? range.end[2] : 1;
    for (std::int64_t z = dimensions > 2 ? range.begin[2] : 0; z < end_z; ++z) {
      for (std::int64_t y = dimensions > 1 ? range.begin[1] : 0; y < end_y; ++y) {
        for (std::int64_t x = range.begin[0]; x < range.end[0]; x += most) {
          const kernel_range row{dimensions, {x, y, z}, {std::min(range.end[0] - x, most) + x, y + 1, z + 1}};
          is_plain = is_plain && try_it(&row, arguments.data());
          if (is_plain) {
            run(row, arguments);
          } else if (auto violation = run_exactly(row, true, arguments)) {
            return violation;
          }
        }
      }
    }
    return std::nullopt;
  }
#endif
  static std::optional<access_violation> run_exactly(const kernel_range& range, bool is_inside,
                                                     std::span<const kernel_argument> arguments) {
    return run_items_checked<Kernel>(parameter_list<P...>{}, std::index_sequence_for<P...>{}, range, is_inside,
                                     arguments.data());
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
    static constexpr const char* weft_expanded_body() { return #__VA_ARGS__; }                                         \
    using weft_parameters =                                                                                            \
        ::weft::detail::parameters_of_function<dimension_count,                                                        \
                                               decltype(&weft_body<::weft::detail::describing_view>)>::type;           \
    static_assert(weft_parameters::are_allowed,                                                                        \
                  "weft: the parameters of kernel " #name " may be int8_t to int64_t, uint8_t to uint64_t, float and " \
                  "double, by value or in WEFT_IN, WEFT_OUT or WEFT_INOUT, and WEFT_RING");                            \
    static_assert(weft_parameters::are_accesses_allowed,                                                               \
                  "weft: in kernel " #name " a halo may not be negative, rows must be at least one, and both at most " \
                  "2^31; wrap is of WEFT_IN alone, reduce of WEFT_INOUT alone");                                       \
  }
// clang-format on
