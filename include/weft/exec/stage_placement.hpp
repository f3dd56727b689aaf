// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/ids.hpp"

#include <string>
#include <vector>

namespace weft {

/// Where the stages go, and what follows from it if the costs are right and each edge has two buffers.
/// N batches take first_seconds + (N − 1) · period_seconds.
struct stage_placement {
  std::vector<device_id> device_of;  // of each stage
  std::vector<std::string> why;      // of each stage
  double period_seconds = 0;         // from batch to batch, once all devices are busy
  double first_seconds = 0;          // from a batch's start to its result, in an empty line
  double fill_seconds = 0;           // until the last device begins its first batch
  double drain_seconds = 0;          // from the end of the first device's last batch to the last result
  bool exact = false;                // no placement of consecutive stages has a shorter period
};

}  // namespace weft
