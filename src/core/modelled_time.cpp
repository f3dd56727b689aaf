// SPDX-License-Identifier: Apache-2.0
#include "core/modelled_time.hpp"

#include <algorithm>
#include <cmath>

namespace weft::detail {

std::chrono::nanoseconds modelled_time(double seconds) noexcept {
  constexpr double thirty_years = 1e9;
  return std::chrono::nanoseconds{std::llround(std::min(seconds, thirty_years) * 1e9)};
}

std::chrono::nanoseconds time_over(const link_path& way, std::uint64_t bytes) noexcept {
  return way.latency + time_in_memory(way.bytes_per_second, bytes);
}

std::chrono::nanoseconds time_in_memory(double bytes_per_second, std::uint64_t bytes) noexcept {
  if (bytes_per_second <= 0) return {};
  return modelled_time(static_cast<double>(bytes) / bytes_per_second);
}

link_path way_from_host_near(const topology& machine, device_id near, device_id to) {
  const link_path& across = machine.between_sockets[machine.pair(near, to)];
  const link_path& up = machine.from_host[to.index()];
  link_path sum = across;
  sum.links.insert(sum.links.end(), up.links.begin(), up.links.end());
  sum.latency += up.latency;
  if (across.links.empty()) {
    sum.bytes_per_second = up.bytes_per_second;
  } else if (!up.links.empty()) {
    sum.bytes_per_second = std::min(across.bytes_per_second, up.bytes_per_second);
  }
  return sum;
}

}  // namespace weft::detail
