// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace weft::tool {

/// Middle and spread of repeated measurements of one thing.
struct statistics {
  double median = 0;
  double p5 = 0;
  double p95 = 0;
  std::size_t samples = 0;
};

/// The value below which the share `q` of a sorted sample lies, between neighbours by a straight line.
[[nodiscard]] inline double quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
}

[[nodiscard]] inline statistics summarise(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::ranges::sort(samples);
  return {quantile(samples, 0.5), quantile(samples, 0.05), quantile(samples, 0.95), samples.size()};
}

[[nodiscard]] inline double seconds_of(std::chrono::nanoseconds t) { return std::chrono::duration<double>(t).count(); }

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return seconds_of(std::chrono::steady_clock::now() - start);
}

}  // namespace weft::tool
