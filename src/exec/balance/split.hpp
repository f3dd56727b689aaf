// SPDX-License-Identifier: Apache-2.0
// Who does which part of a range, as a pure function: every index exactly once, for every count, weight and cap.
#pragma once

#include "weft/core/result.hpp"
#include "weft/exec/balance.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

/// What a split looks at for one device.
struct split_device {
  device_id id;
  double weight = 1;          // its part of the work, relative to the others'; 0: none
  std::int64_t cap = no_cap;  // items that it can hold; 0: none
};

struct split_options {
  /// Every border between two pieces is a multiple of it: a row, a work-group.
  std::int64_t granularity = 1;
  /// Pieces stay on their devices until the launch ends, so that a cap limits the whole share. Otherwise a cap limits
  /// a piece, and a share larger than that is done in several.
  bool keeps_data = true;
};

/// Shares in the order of the devices; one of 0 items for a device without work.
struct item_split {
  std::vector<share> shares;
  bool in_passes = false;  // the caps together do not hold all: data has to leave before the launch ends
};

/// Splits 0 … items−1 in proportion to the weights; what a device cannot hold goes to the others in proportion.
/// Equal weights: shares differ by one granule, the larger first. Otherwise by largest remainder: within one granule of
/// the exact proportion below 2^53 granules, within 2^-52 of it above.
/// Errors: invalid_argument – a weight, cap or granularity that cannot be, or nobody with a weight; out_of_memory –
///   no device holds one granule, named with their caps.
/// Cost: at most (devices)² steps.
[[nodiscard]] result<item_split> split(std::int64_t items, std::span<const split_device> devices,
                                       const split_options& options = {});

}  // namespace weft
