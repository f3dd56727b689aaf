#pragma once
// SPDX-License-Identifier: Apache-2.0
// The words in which a kernel's parameters are spoken of: what they are, who writes them, and which
// elements one work item may reach. Plain values; they mean the same on every backend.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace weft {

enum class element_type : std::uint8_t { int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64 };

enum class parameter_direction : std::uint8_t { in, out, inout, scalar };

enum class access_kind : std::uint8_t { one_to_one, halo, rows, whole, reduce, wrap };

enum class reduce_op : std::uint8_t { sum, product, min, max };

/// Which elements of a buffer one work item reaches; this decides how a launch may be split.
/// Shape: counted along the outermost dimension o of the range (i in 1-D, y in 2-D, z in 3-D). One step of o is one
///   element in 1-D and one slab (a row, a plane) in 2-D and 3-D. one_to_one reaches step o, halo(r) the steps
///   o - r … o + r, rows(k) the steps o * k … o * k + k - 1, whole and reduce(op) every element. wrap(r) reaches as
///   halo(r) does, in an array without ends: step -1 is the last, and the step after the last is the first.
struct access_rule {
  access_kind kind = access_kind::one_to_one;
  std::int64_t amount = 0;
  reduce_op op = reduce_op::sum;

  friend constexpr bool operator==(const access_rule&, const access_rule&) = default;
};

namespace access {

constexpr access_rule halo(std::int64_t radius) { return {access_kind::halo, radius, reduce_op::sum}; }
constexpr access_rule wrap(std::int64_t radius) { return {access_kind::wrap, radius, reduce_op::sum}; }
constexpr access_rule rows(std::int64_t count) { return {access_kind::rows, count, reduce_op::sum}; }
constexpr access_rule whole() { return {access_kind::whole, 0, reduce_op::sum}; }
constexpr access_rule reduce(reduce_op op) { return {access_kind::reduce, 0, op}; }

}  // namespace access

/// Half open ranges of global ids, x (or i) first; dimensions that are not used hold 0 … 1.
struct kernel_range {
  int dimensions = 1;
  std::array<std::int64_t, 3> begin{0, 0, 0};
  std::array<std::int64_t, 3> end{0, 1, 1};
};

/// One argument of a launch with its type erased: a buffer's address, or a scalar's bytes.
/// Shape: `address` is where element `first` lies, and `count` elements may be reached from there, so that a piece of a
///   split array keeps its global indices; of a periodic halo it may be negative. `slab` is the number of elements in
///   one step of the outermost dimension of a 2-D or 3-D launch; 0 means unknown, and then check mode checks the reach
///   alone.
struct kernel_argument {
  element_type type = element_type::float32;
  parameter_direction direction = parameter_direction::scalar;
  void* address = nullptr;
  std::int64_t count = 0;
  std::int64_t first = 0;
  std::int64_t slab = 0;
  alignas(8) std::array<std::byte, 8> scalar{};
};

/// The first access of a checked run that was not allowed.
/// Shape: `limit` is the bound that was crossed: an index below it if `index` lies under it, else one past the last
///   index allowed. `write` tells that the parameter is one that is written: of inout a read counts too. `undeclared`
///   tells an access inside the buffer, but outside what the parameter declares.
struct access_violation {
  std::size_t parameter = 0;
  std::int64_t index = 0;
  std::int64_t limit = 0;
  bool write = false;
  bool undeclared = false;
  std::array<std::int64_t, 3> item{0, 0, 0};
};

namespace detail {

template <class T, class... Choices>
inline constexpr bool is_any_of = (std::is_same_v<T, Choices> || ...);

}  // namespace detail

/// The types that a kernel parameter may have: the fixed-width integers of 8 to 64 bits, float and double.
template <class T>
concept kernel_element = detail::is_any_of<T, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                                           std::uint16_t, std::uint32_t, std::uint64_t, float, double>;

template <kernel_element T>
constexpr element_type element_type_of() {
  if constexpr (std::is_same_v<T, float>) {
    return element_type::float32;
  } else if constexpr (std::is_same_v<T, double>) {
    return element_type::float64;
  } else {
    constexpr int log2_of_size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return static_cast<element_type>((std::is_signed_v<T> ? 0 : 4) + log2_of_size);
  }
}

constexpr std::size_t size_of(element_type type) {
  switch (type) {
    case element_type::int8:
    case element_type::uint8:
      return 1;
    case element_type::int16:
    case element_type::uint16:
      return 2;
    case element_type::int32:
    case element_type::uint32:
    case element_type::float32:
      return 4;
    case element_type::int64:
    case element_type::uint64:
    case element_type::float64:
      return 8;
  }
  return 0;
}

}  // namespace weft
