// SPDX-License-Identifier: Apache-2.0
// How the two kernels that a reduction becomes (kernel_text.hpp) are launched. A pure function of the launch and the
// device, so that a device gives the same bits in every run.
#pragma once

#include "weft/backend/kernel_code.hpp"

#include <cstdint>
#include <span>

namespace weft {

/// What a device is like, as far as it decides how many lanes share a reduction.
struct reduction_device {
  int compute_units = 1;
  bool is_processor = false;       // few lanes, each over neighbouring items; else neighbouring lanes take them
  std::int64_t largest_group = 1;  // work items of a group
};

/// A lane is one work item of the first kernel; it has a result of its own for every element of every reduction.
/// Shape: `groups` groups of `group` lanes in one dimension, whatever the kernel's; all of them run.
struct reduction_grid {
  std::int64_t groups = 1;
  std::int64_t group = 1;
  std::int64_t step = 1;      // from one item of a lane to its next: 1, or the number of lanes
  std::int64_t elements = 0;  // of the longest reduction: work items that the second kernel needs
  std::uint64_t scratch = 0;  // bytes that the first kernel writes and the second reads; nothing needs to be in them

  [[nodiscard]] std::int64_t lanes() const { return groups * group; }
};

/// No lane has fewer items than results to set up and join, and scratch is at most 64 MiB unless one lane's results
/// are more; so a result with more elements than there are items is made by one lane.
[[nodiscard]] reduction_grid reduction_grid_for(const kernel_code& code, const kernel_range& range,
                                                std::span<const kernel_argument> arguments,
                                                const reduction_device& device);

}  // namespace weft
