// SPDX-License-Identifier: Apache-2.0
#include "support/rank_data.hpp"

#include "weft/core/half.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ranks {

int number(int r, std::size_t i) {
  return static_cast<int>((i * 37 + static_cast<std::size_t>(r) * 101 + i / 251) % 25) - 12;
}

namespace {

/// Factors whose product over eight ranks every type holds.
int factor(int r, std::size_t i) {
  return (i + static_cast<std::size_t>(r)) % 3 == 0 ? 2 : (i + static_cast<std::size_t>(r)) % 5 == 0 ? -1 : 1;
}

template <class T>
T as(double value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(value));
  } else if constexpr (sizeof(T) == 2) {
    return T{static_cast<float>(value)};
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace

template <class T>
std::vector<T> input(int r, std::size_t count, weft::reduction_op::kind op) {
  const bool product = op == weft::reduction_op::kind::product;
  const std::size_t period = product ? count : std::size_t{25} * 251;  // of number()
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    made[i] = i >= period ? made[i - period]
                          : as<T>(product ? factor(r, i) : number(r, i) & (std::is_unsigned_v<T> ? 15 : ~0));
  }
  return made;
}

template <class T>
std::vector<T> reduced(int n, std::size_t count, weft::reduction_op::kind op) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    double all = 0;
    for (int r = 0; r < n; ++r) {
      double one =
          op == weft::reduction_op::kind::product ? factor(r, i) : number(r, i) & (std::is_unsigned_v<T> ? 15 : ~0);
      if (r == 0) {
        all = one;
      } else if (op == weft::reduction_op::kind::product) {
        all *= one;
      } else if (op == weft::reduction_op::kind::min) {
        all = std::min(all, one);
      } else if (op == weft::reduction_op::kind::max) {
        all = std::max(all, one);
      } else {
        all += one;
      }
    }
    if (op == weft::reduction_op::kind::average) {
      if constexpr (std::is_integral_v<T>) {
        all = static_cast<double>(static_cast<std::int64_t>(all) / n);
      } else if constexpr (sizeof(T) <= 4) {
        all = static_cast<double>(static_cast<float>(all) / static_cast<float>(n));
      } else {
        all /= n;
      }
    }
    made[i] = as<T>(all);
  }
  return made;
}

template <class T>
std::vector<T> zeros(std::size_t count) {
  return std::vector<T>(count);
}

template <class T>
std::string same(const std::vector<T>& got, const std::vector<T>& expected, const std::string& what) {
  const auto text = [](const T& value) {
    if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) {
      return std::to_string(static_cast<float>(value));
    } else {
      return std::to_string(value);
    }
  };
  if (got.size() != expected.size()) return what + ": " + std::to_string(got.size()) + " elements";
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0)
      return what + ": first bad offset " + std::to_string(i) + ": expected " + text(expected[i]) + ", got " +
             text(got[i]);
  }
  return {};
}

#define RANK_DATA_OF(T)                                                        \
  template std::vector<T> input(int, std::size_t, weft::reduction_op::kind);   \
  template std::vector<T> reduced(int, std::size_t, weft::reduction_op::kind); \
  template std::vector<T> zeros(std::size_t);                                  \
  template std::string same(const std::vector<T>&, const std::vector<T>&, const std::string&)
RANK_DATA_OF(std::int8_t);
RANK_DATA_OF(std::int16_t);
RANK_DATA_OF(std::int32_t);
RANK_DATA_OF(std::int64_t);
RANK_DATA_OF(std::uint8_t);
RANK_DATA_OF(std::uint16_t);
RANK_DATA_OF(std::uint32_t);
RANK_DATA_OF(std::uint64_t);
RANK_DATA_OF(weft::half);
RANK_DATA_OF(weft::bfloat16);
RANK_DATA_OF(float);
RANK_DATA_OF(double);
#undef RANK_DATA_OF

}  // namespace ranks
