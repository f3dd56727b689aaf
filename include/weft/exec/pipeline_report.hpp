// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/ids.hpp"
#include "weft/exec/stage_placement.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

/// The work of a pipeline so far. Times are those of the machine's clock.
struct pipeline_report {
  struct batch {
    std::uint64_t number = 0;
    std::size_t items = 0;  // of its input
    std::chrono::nanoseconds pushed{0}, finished{0};
    bool failed = false;
  };
  struct stage {
    std::string name;
    device_id device;
    std::chrono::nanoseconds busy{0};
    double share = 0;  // of the time from the first push to the last result
    std::string why;   // it is there
  };
  struct hop {
    device_id from, to;  // none: the host
    std::chrono::nanoseconds busy{0};
  };
  struct edge {
    std::string name;  // "double → root"; its buffers on the device that is named last
    device_id device;
    int buffers = 0;
    int peak = 0;  // batches that were on it at once
  };
  std::vector<batch> batches;
  std::vector<stage> stages;
  std::vector<hop> hops;
  std::vector<edge> edges;
  std::uint64_t pushed = 0, finished = 0, failed = 0;  // with those that push() refused for what a stage threw
  std::chrono::nanoseconds period{0};                  // median from result to result
  std::chrono::nanoseconds fill{0};                    // until the last device began its first batch
  std::chrono::nanoseconds drain{0};  // from the end of the first device's last batch to the last result
  std::chrono::nanoseconds elapsed{0};
  double batches_per_second = 0;
  stage_placement placement;  // and what it was predicted to take
  bool has_costs = false;     // without costs of the stages the prediction says nothing
  bool simulated = false;     // the clock is virtual: a model's times, not measurements
};

}  // namespace weft
