// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/exec/launch.hpp"
#include "weft/runtime/device_query.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <stop_token>
#include <vector>

namespace weft {

struct pipeline_options {
  /// Buffers on each edge (one where both its ends work in one stream), and batches between two stages at most.
  int depth = 2;
  device_query devices{};              // that may take part, where the placement is by cost
  std::vector<device_id> placement{};  // the device of each stage, in place of `devices`; empty: by cost
  bool overlap_hops = true;            // copies run beside the stages; false: in the stream of the stage before
  std::stop_token stop{};              // batches that have not begun their next hop end as cancelled
  std::size_t keep_batches = 4096;     // in the report; older ones are forgotten
};

struct stage_options {
  /// Of one batch, per item of its input. Without it a stage counts as the mean of those that have one. On a virtual
  /// clock it is also the time of a kernel given by type.
  std::optional<kernel_cost> cost{};
  /// Output elements of so many input elements; empty: as many.
  std::function<std::size_t(std::size_t)> count{};
};

}  // namespace weft
