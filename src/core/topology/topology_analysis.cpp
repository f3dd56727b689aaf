// SPDX-License-Identifier: Apache-2.0
#include "weft/core/topology_analysis.hpp"

#include <algorithm>

namespace weft {

topology_analysis analyse(const topology& machine) {
  topology_analysis found;
  const int n = machine.device_count();
  const auto rate = [&](device_id a, device_id b) { return machine.peer_paths[machine.pair(a, b)].bytes_per_second; };
  found.fully_connected = true;
  double sum = 0;
  int peers = 0;
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < n; ++k) {
      const device_id a{i};
      const device_id b{k};
      if (a == b) continue;
      if (!machine.can_access(a, b)) {
        found.fully_connected = false;
        continue;
      }
      if (rate(a, b) > 0) {  // 0: unknown
        sum += rate(a, b);
        ++peers;
      }
      if (!machine.can_access(b, a)) {
        found.one_way.emplace_back(a, b);
      } else if (rate(a, b) > 0 && rate(a, b) < 0.9 * rate(b, a)) {
        found.uneven.emplace_back(a, b);
      }
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < n; ++k) {
      if (i != k && machine.can_access(device_id{i}, device_id{k}) && rate(device_id{i}, device_id{k}) > 0 &&
          rate(device_id{i}, device_id{k}) < sum / peers / 2) {
        found.bottlenecks.emplace_back(device_id{i}, device_id{k});
      }
    }
  }
  std::vector<bool> placed(static_cast<std::size_t>(n), false);
  for (int i = 0; i < n; ++i) {
    if (placed[static_cast<std::size_t>(i)]) continue;
    std::vector<device_id> cluster{device_id{i}};
    placed[static_cast<std::size_t>(i)] = true;
    for (std::size_t next = 0; next < cluster.size(); ++next) {
      for (int k = 0; k < n; ++k) {
        const device_id other{k};
        if (placed[other.index()] || !machine.can_access(cluster[next], other) ||
            !machine.can_access(other, cluster[next]))
          continue;
        placed[other.index()] = true;
        cluster.push_back(other);
      }
    }
    std::sort(cluster.begin(), cluster.end());
    found.clusters.push_back(std::move(cluster));
  }
  return found;
}

}  // namespace weft
