// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/topology.hpp"

#include <utility>
#include <vector>

namespace weft {

/// What stands out in a machine.
struct topology_analysis {
  std::vector<std::vector<device_id>> clusters;              // devices that reach each other both ways, by device id
  std::vector<std::pair<device_id, device_id>> bottlenecks;  // peers of known rate, at less than half the mean of those
  std::vector<std::pair<device_id, device_id>> one_way;      // access in this direction only
  std::vector<std::pair<device_id, device_id>> uneven;       // both ways, of known rates, this one > 10 % slower
  bool fully_connected = false;                              // every device reaches every other
};

[[nodiscard]] topology_analysis analyse(const topology& machine);

}  // namespace weft
