// SPDX-License-Identifier: Apache-2.0
// What a device takes for n items, t = a + b n: from it follows how many devices are worth starting, with no threshold
// written anywhere.
#pragma once

#include "exec/balance/split.hpp"

namespace weft {

/// Time of one launch on one device: what every launch pays, and what each item adds.
struct affine_cost {
  double seconds = 0;
  double seconds_per_item = 0;

  /// Units: seconds; nothing for nothing.
  [[nodiscard]] double of(std::int64_t items) const {
    return items == 0 ? 0 : seconds + seconds_per_item * static_cast<double>(items);
  }
};

struct costed_device {
  device_id id;
  affine_cost cost;
  std::int64_t cap = no_cap;
};

/// Shares that end together; a device whose start costs more than the others need is left out.
struct equal_finish {
  item_split split;
  double seconds = 0;  // until the last is done
  int devices = 0;     // with work
};

/// The shares with the earliest end: the least T with Σ clamp((T − a) / b, 0, cap) ≥ items, in whole granules.
/// Caps that together do not hold all: a + b n becomes (a / cap + b) n, the cost of many passes.
/// Errors: as split(); invalid_argument for a cost that cannot be, the device named.
/// Cost: n log n for n devices, two allocations.
[[nodiscard]] result<equal_finish> finish_together(std::int64_t items, std::span<const costed_device> devices,
                                                   const split_options& options = {});

/// Is another split worth moving data for? Only for more than 2 %, and when the gain over the repeats still expected
/// pays for the move; otherwise data would wander between devices as their times waver.
[[nodiscard]] bool worth_moving(double seconds_now, double seconds_then, double repeats, double seconds_to_move);

}  // namespace weft
