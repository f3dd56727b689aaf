// SPDX-License-Identifier: Apache-2.0
// Which device does which stage of a pipeline, as a pure function: costs in, devices and the period of the pipeline
// out.
#pragma once

#include "weft/core/result.hpp"
#include "weft/exec/stage_placement.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace weft {

/// One stage as the placement sees it.
struct stage_cost {
  std::string name;
  double seconds = 0;           // of one batch, on a device of speed 1
  std::uint64_t bytes_out = 0;  // handed on for one batch
  std::uint64_t memory = 0;     // bytes that the stage keeps on its device
};

struct stage_device {
  device_id id;
  double speed = 1;
  std::optional<std::uint64_t> memory{};  // bytes that the stages may take; none: no limit
};

/// The problem that a placement solves.
struct placement_problem {
  std::vector<stage_cost> stages;
  std::vector<stage_device> devices;
  std::uint64_t bytes_in = 0;  // of one batch, from the host to the first stage
  /// Seconds that bytes need between two devices; device_id{} is the host. Empty: nothing.
  std::function<double(device_id from, device_id to, std::uint64_t size)> hop_seconds{};
  /// Hops run beside the stages. Otherwise the device that hands on is busy with it; the first one takes in as well.
  bool overlap_hops = true;
};

/// The devices for which the busiest of them, or the longest hop, takes least; among those, the ones for which a single
/// batch is done soonest. A device takes consecutive stages; with fewer devices than stages some take several, with
/// more some are left out.
///
/// Exact over all orders of the devices for up to 10 of them. Above that three orders are tried (as given, fastest
/// first, slowest first), each of them exactly.
/// Errors: invalid_argument (no stage, no device, a cost or speed that is none); out_of_memory when the limits hold no
///   placement, with the stage that no device holds where there is one.
/// Cost: k stages, P ≤ 10 devices: at most k² · P² · 2^P steps, usually far fewer.
[[nodiscard]] result<stage_placement> place_stages(const placement_problem& problem);

/// The same figures for a placement that was chosen elsewhere, consecutive or not. Memory limits are not looked at.
/// Errors: invalid_argument as place_stages, or when there is not one device of the problem for each stage.
[[nodiscard]] result<stage_placement> judge_placement(const placement_problem& problem,
                                                      const std::vector<device_id>& device_of);

}  // namespace weft
