// SPDX-License-Identifier: Apache-2.0
// What the tests of folds share: data, and a fold written down element by element.
#pragma once

#include "collective/fold/fold.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace folds {

using weft::bfloat16;
using weft::half;
using weft::reduction_op;
using weft::detail::fold_request;
using kind = reduction_op::kind;

template <class T>
inline constexpr bool is_sixteen = std::is_same_v<T, half> || std::is_same_v<T, bfloat16>;
template <class T>
using worked_in = std::conditional_t<is_sixteen<T>, float, T>;

inline std::uint64_t mixed(std::uint64_t x) {
  x = (x + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  return x ^ x >> 27;
}

/// Elements that differ by place and by input: all bits of an integer, numbers of several sizes and both signs of the
/// others, with holes that are not a number where they are asked for.
template <class T>
T element(std::uint64_t place, std::uint64_t input, bool with_holes = false) {
  const std::uint64_t x = mixed(place * 64 + input);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(x);
  } else {
    if (with_holes && x % 3 == 0) return T{std::numeric_limits<float>::quiet_NaN()};
    const double size = std::ldexp(static_cast<double>(x >> 40) + 1, static_cast<int>(x % 11) - 30);
    return static_cast<T>(static_cast<float>((x >> 20 & 1) != 0 ? -size : size));
  }
}

template <class T>
std::vector<T> elements(std::size_t count, std::uint64_t input, bool with_holes = false) {
  std::vector<T> made(count);
  for (std::size_t at = 0; at < count; ++at) made[at] = element<T>(at, input, with_holes);
  return made;
}

/// Two to one, as the documentation says it.
template <class W>
W combined(kind op, W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    using wide = std::uint64_t;
    switch (op) {
      case kind::product:
        return static_cast<W>(static_cast<wide>(a) * static_cast<wide>(b));
      case kind::min:
        return std::min(a, b);
      case kind::max:
        return std::max(a, b);
      default:
        return static_cast<W>(static_cast<wide>(a) + static_cast<wide>(b));
    }
  } else {
    switch (op) {
      case kind::product:
        return a * b;
      case kind::min:
      case kind::max:
        if (std::isnan(a)) return b;
        if (std::isnan(b)) return a;
        return op == kind::min ? (b < a ? b : a) : (b > a ? b : a);
      default:
        return a + b;
    }
  }
}

template <class W>
W divided(W sum, std::int64_t by) {
  if (by <= 1) return sum;
  if constexpr (std::is_signed_v<W> && std::is_integral_v<W>) {
    return static_cast<W>(std::int64_t{sum} / by);
  } else if constexpr (std::is_unsigned_v<W>) {
    return static_cast<W>(std::uint64_t{sum} / static_cast<std::uint64_t>(by));
  } else {
    return sum / static_cast<W>(by);
  }
}

/// In the order of the inputs. What is sixteen bits wide is rounded behind the first eight and each seven after them.
template <class T>
std::vector<T> expected_of(kind op, const std::vector<std::vector<T>>& inputs, std::int64_t divide_by) {
  using W = worked_in<T>;
  std::vector<T> made(inputs[0].size());
  for (std::size_t at = 0; at < made.size(); ++at) {
    auto value = static_cast<W>(inputs[0][at]);
    for (std::size_t n = 1; n < inputs.size(); ++n) {
      if (n >= 8 && (n - 8) % 7 == 0) value = static_cast<W>(static_cast<T>(value));
      value = combined<W>(op, value, static_cast<W>(inputs[n][at]));
    }
    made[at] = static_cast<T>(divided<W>(value, divide_by));
  }
  return made;
}

/// Bit for bit, but for what is not a number: any of them will do.
template <class T>
testing::AssertionResult same(const T* got, const std::vector<T>& expected) {
  for (std::size_t at = 0; at < expected.size(); ++at) {
    if constexpr (!std::is_integral_v<T>) {
      if (std::isnan(static_cast<worked_in<T>>(got[at])) && std::isnan(static_cast<worked_in<T>>(expected[at])))
        continue;
    }
    if (std::memcmp(&got[at], &expected[at], sizeof(T)) != 0) {
      return testing::AssertionFailure() << "first bad offset " << at << ": expected "
                                         << +static_cast<worked_in<T>>(expected[at]) << ", got "
                                         << +static_cast<worked_in<T>>(got[at]);
    }
  }
  return testing::AssertionSuccess();
}

template <class T>
std::vector<void*> addresses(std::vector<std::vector<T>>& memory) {
  std::vector<void*> made;
  made.reserve(memory.size());
  for (auto& each : memory) made.push_back(each.data());
  return made;
}

template <class T>
fold_request request_of(kind op, std::size_t count, std::span<void* const> inputs, std::span<void* const> outputs) {
  fold_request made;
  made.type = weft::data_type_of<T>;
  made.op = op;
  made.count = static_cast<std::int64_t>(count);
  made.divide_by = op == kind::average ? static_cast<std::int64_t>(inputs.size()) : 1;
  made.inputs = inputs;
  made.outputs = outputs;
  return made;
}

inline constexpr kind all_kinds[] = {kind::sum, kind::product, kind::min, kind::max, kind::average};

// Not commutative: what comes first shows.
WEFT_KERNEL(fold_affine, (WEFT_INOUT(int32_t) into, WEFT_IN(int32_t) more),
            { into[i] = (int32_t)((uint32_t)into[i] * 31u + (uint32_t)more[i]); });

inline std::vector<std::int32_t> affine_of(const std::vector<std::vector<std::int32_t>>& inputs) {
  auto made = inputs[0];
  for (std::size_t n = 1; n < inputs.size(); ++n) {
    for (std::size_t at = 0; at < made.size(); ++at)
      made[at] = static_cast<std::int32_t>(static_cast<std::uint32_t>(made[at]) * 31U +
                                           static_cast<std::uint32_t>(inputs[n][at]));
  }
  return made;
}

inline fold_request affine_request(std::span<void* const> inputs, std::span<void* const> outputs) {
  auto made = request_of<std::int32_t>(kind::user, 900, inputs, outputs);
  made.user = reduction_op::by<fold_affine>().kernel();
  return made;
}

using all_types = testing::Types<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                                 std::uint32_t, std::uint64_t, half, bfloat16, float, double>;

}  // namespace folds
