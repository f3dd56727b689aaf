// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/collective_cost.hpp"
#include "weft/memory/route.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <tuple>

namespace weft {
namespace {

/// Up to so many devices every order is tried: 7! of them, as a ring begins anywhere.
constexpr std::size_t exact_limit = 8;

/// What a copy between two devices can count on. Whole numbers, so that equal rings are equal in whatever order they
/// are summed.
struct neighbour_link {
  std::int64_t bytes_per_second = 0;
  std::int64_t latency_ns = 0;
};

neighbour_link whole(double bytes_per_second, double latency_seconds) {
  return {static_cast<std::int64_t>(std::min(bytes_per_second, 1e15)),
          static_cast<std::int64_t>(std::min(latency_seconds, 1e6) * 1e9)};
}

neighbour_link link_between(const route_facts& facts, device_id from, device_id to) {
  if (from == to) return whole(1e15, 0);
  const pair_facts& pair = facts.pair(from, to);
  if (pair.usable) return whole(pair.lane.bytes_per_second, pair.lane.latency_seconds);
  const lane_facts& down = facts.to_host[from.index()];
  const lane_facts& up = facts.from_host[from.index() * facts.devices + to.index()];
  // the same bytes cross the host's memory twice; a peer link of the same rate is the better neighbour
  return whole(std::min(down.bytes_per_second, up.bytes_per_second) / 2, down.latency_seconds + up.latency_seconds);
}

/// A ring of devices: the slowest link decides about a ring, then all of them, then how far they reach.
struct ring_quality {
  std::int64_t slowest = std::numeric_limits<std::int64_t>::max();
  std::int64_t rates = 0;
  std::int64_t latency = 0;
  int apart = 0;  // of the devices' numbers: where nothing else is known, near ones stay together

  void add(const neighbour_link& link, int distance) {
    slowest = std::min(slowest, link.bytes_per_second);
    rates += link.bytes_per_second;
    latency += link.latency_ns;
    apart += distance;
  }
  [[nodiscard]] bool is_better_than(const ring_quality& other) const {
    return std::tuple{-slowest, -rates, latency, apart} <
           std::tuple{-other.slowest, -other.rates, other.latency, other.apart};
  }
};

int distance_of(device_id a, device_id b) { return std::abs(a.value() - b.value()); }

}  // namespace

std::vector<device_id> neighbour_order(const topology& machine, std::span<const device_id> devices) {
  std::vector<device_id> best{devices.begin(), devices.end()};
  std::sort(best.begin(), best.end());
  if (best.size() < 3) return best;
  const route_facts facts = route_facts_of(machine);
  const auto both = [&](device_id a, device_id b) {  // a ring may be run either way
    const neighbour_link there = link_between(facts, a, b);
    const neighbour_link back = link_between(facts, b, a);
    return neighbour_link{std::min(there.bytes_per_second, back.bytes_per_second),
                          std::max(there.latency_ns, back.latency_ns)};
  };
  if (best.size() > exact_limit) {
    for (std::size_t i = 1; i + 1 < best.size(); ++i) {
      const auto rest = best.begin() + static_cast<std::ptrdiff_t>(i);
      const device_id last = *(rest - 1);
      const auto next = std::min_element(rest, best.end(), [&](device_id a, device_id b) {
        const neighbour_link to_a = both(last, a);
        const neighbour_link to_b = both(last, b);
        return std::tuple{-to_a.bytes_per_second, to_a.latency_ns, distance_of(last, a), a} <
               std::tuple{-to_b.bytes_per_second, to_b.latency_ns, distance_of(last, b), b};
      });
      std::rotate(rest, next, next + 1);
    }
    return best;
  }
  const std::size_t n = best.size();
  std::vector<neighbour_link> links(n * n);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < n; ++b) links[a * n + b] = both(best[a], best[b]);
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  const auto quality_of = [&](const std::vector<std::size_t>& ring) {
    ring_quality made;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t a = ring[i];
      const std::size_t b = ring[(i + 1) % n];
      made.add(links[a * n + b], distance_of(best[a], best[b]));
    }
    return made;
  };
  std::vector<std::size_t> chosen = order;
  ring_quality quality = quality_of(order);
  while (std::next_permutation(order.begin() + 1, order.end())) {
    const ring_quality other = quality_of(order);
    if (!other.is_better_than(quality)) continue;
    quality = other;
    chosen = order;
  }
  std::vector<device_id> made;
  made.reserve(n);
  for (const std::size_t i : chosen) made.push_back(best[i]);
  return made;
}

}  // namespace weft
