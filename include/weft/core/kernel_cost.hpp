// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft {

/// What a kernel is taken to cost on a virtual clock, on a device of speed 1. A model, never a measurement.
/// Units: seconds.
struct kernel_cost {
  double seconds = 0;  // of every piece, whatever its size
  double seconds_per_item = 0;
};

}  // namespace weft
