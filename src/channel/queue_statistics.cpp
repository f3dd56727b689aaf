// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/queue_statistics.hpp"

#include "weft/channel/queue_status.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace weft {
namespace {

// Buckets 0 … 7 are single nanoseconds; from there each power of two has four.
std::size_t bucket_of(std::uint64_t ns) noexcept {
  if (ns < 8) return static_cast<std::size_t>(ns);
  const auto power = static_cast<std::size_t>(std::bit_width(ns) - 1);
  const auto quarter = static_cast<std::size_t>((ns >> (power - 2)) & 3);
  return std::min(8 + (power - 3) * 4 + quarter, duration_histogram::buckets - 1);
}

std::uint64_t upper_edge(std::size_t bucket) noexcept {
  if (bucket < 8) return bucket;
  const std::size_t power = (bucket - 8) / 4 + 3;
  return (std::uint64_t{4 + (bucket - 8) % 4 + 1} << (power - 2)) - 1;
}

}  // namespace

void duration_histogram::add(std::chrono::nanoseconds sample) noexcept {
  const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(sample.count(), 0));
  ++counts[bucket_of(ns)];
  ++samples;
  total_ns += ns;
}

std::chrono::nanoseconds duration_histogram::mean() const noexcept {
  return std::chrono::nanoseconds{samples == 0 ? 0 : static_cast<std::int64_t>(total_ns / samples)};
}

std::chrono::nanoseconds duration_histogram::quantile(double share) const noexcept {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(std::clamp(share, 0.0, 1.0) * static_cast<double>(samples)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets; ++i) {
    seen += counts[i];
    if (seen != 0 && seen >= wanted) return std::chrono::nanoseconds{static_cast<std::int64_t>(upper_edge(i))};
  }
  return std::chrono::nanoseconds{0};
}

std::string_view to_string(queue_status status) {
  switch (status) {
    case queue_status::ok:
      return "ok";
    case queue_status::partial:
      return "partial";
    case queue_status::full:
      return "full";
    case queue_status::empty:
      return "empty";
    case queue_status::timed_out:
      return "timed_out";
    case queue_status::cancelled:
      return "cancelled";
    case queue_status::closed:
      return "closed";
    case queue_status::failed:
      return "failed";
  }
  return "?";
}

std::string_view to_string(transfer_mode mode) {
  switch (mode) {
    case transfer_mode::adaptive:
      return "adaptive";
    case transfer_mode::direct:
      return "direct";
    case transfer_mode::host_staged:
      return "host_staged";
    case transfer_mode::rdma:
      return "rdma";
    case transfer_mode::network:
      return "network";
  }
  return "?";
}

std::string_view to_string(backpressure policy) {
  switch (policy) {
    case backpressure::block:
      return "block";
    case backpressure::reject:
      return "reject";
    case backpressure::drop_newest:
      return "drop_newest";
    case backpressure::overwrite_oldest:
      return "overwrite_oldest";
    case backpressure::spill:
      return "spill";
  }
  return "?";
}

}  // namespace weft
