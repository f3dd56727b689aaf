#pragma once
// SPDX-License-Identifier: Apache-2.0
// The error of the function kernels, measured against a type with more digits.

#include "portable_kernels.hpp"

#include <array>
#include <cfloat>
#include <cmath>
#include <string_view>

namespace portable {

/// What docs/reference/kernels.md promises, in units in the last place of the correctly rounded result.
struct function_bound {
  std::string_view name;
  double host;
  double opencl_float;
  double opencl_double;
};

inline constexpr std::array<function_bound, function_count> functions = {{
    {"sqrt", 0.5, 3, 0.5},
    {"rsqrt", 1.5, 2, 2},
    {"exp", 1, 3, 3},
    {"log", 1, 3, 3},
    {"sin", 1, 4, 4},
    {"cos", 1, 4, 4},
    {"tan", 1, 5, 5},
    {"pow", 1, 16, 16},
    {"fabs", 0, 0, 0},
    {"floor", 0, 0, 0},
    {"ceil", 0, 0, 0},
    {"fmin", 0, 0, 0},
    {"fmax", 0, 0, 0},
    {"fma", 0.5, 0.5, 0.5},
}};

template <class Wide>
Wide reference_of(std::size_t function, Wide a, Wide b) {
  switch (function) {
    case 0:
      return std::sqrt(a);
    case 1:
      return 1 / std::sqrt(a);
    case 2:
      return std::exp(b);
    case 3:
      return std::log(a);
    case 4:
      return std::sin(b);
    case 5:
      return std::cos(b);
    case 6:
      return std::tan(b);
    case 7:
      return std::pow(a, b);
    case 8:
      return std::fabs(b);
    case 9:
      return std::floor(b);
    case 10:
      return std::ceil(b);
    case 11:
      return std::fmin(a, b);
    case 12:
      return std::fmax(a, b);
    default:
      return std::fma(a, b, a);
  }
}

/// The largest error of each function in the results of a function kernel, in units in the last place.
template <class T, class Wide>
std::array<double, function_count> errors_of(const std::vector<value>& values) {
  const std::vector<T> a = values[0].as<T>();
  const std::vector<T> b = values[1].as<T>();
  const std::vector<T> got = values[2].as<T>();
  std::array<double, function_count> worst{};
  for (std::size_t item = 0; item < a.size(); ++item) {
    for (std::size_t f = 0; f < function_count; ++f) {
      const Wide exact = reference_of<Wide>(f, a[item], b[item]);
      const T rounded = std::fabs(static_cast<T>(exact));
      const Wide unit = static_cast<Wide>(std::nextafter(rounded, HUGE_VALF) - rounded);
      const Wide error = std::fabs(static_cast<Wide>(got[item * function_count + f]) - exact) / unit;
      worst[f] = std::fmax(worst[f], std::isnan(error) ? HUGE_VAL : static_cast<double>(error));
    }
  }
  return worst;
}

}  // namespace portable
