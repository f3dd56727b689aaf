// SPDX-License-Identifier: Apache-2.0
// A launch played without devices: what a strategy makes of speeds, starts, noise and load that changes. It shows
// balance, counts and order; never the speed of anything real. Every time in it is simulated.
#pragma once

#include "exec/balance/balancer.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace weft {

struct simulated_device {
  double items_per_second = 1;
  double chunk_seconds = 0;  // paid by each piece before its items
  double changes_at = std::numeric_limits<double>::infinity();
  double changes_by = 1;  // its speed from then on, times this
};

/// What an item costs by its place; the mean is 1.
enum class item_cost : std::uint8_t {
  even,
  growing,  // from 0 at the first to 2 at the last
  falling,  // the other way
};

/// Device i of the scenario is device_id{i}.
struct balance_scenario {
  std::int64_t items = 0;
  std::vector<simulated_device> devices;
  item_cost cost = item_cost::even;
  double noise = 0;  // standard deviation of a piece's time, relative
  std::uint64_t seed = 1;
};

struct simulated_share {
  std::int64_t items = 0;
  std::int64_t pieces = 0;
  double busy_seconds = 0;
  double end_seconds = 0;  // of its last piece
};

struct simulated_run {
  double seconds = 0;
  double ideal_seconds = 0;  // all devices busy with items to the end, without noise and starts
  std::vector<simulated_share> devices;
  std::vector<piece> pieces;     // in the order in which they were handed out
  std::uint64_t trace_hash = 0;  // of every piece, its begin and its end

  /// Above 1 where noise made the pieces cheaper than their mean.
  [[nodiscard]] double efficiency() const { return seconds > 0 ? ideal_seconds / seconds : 1; }
};

/// Who decides: the next piece for a free device, and what a finished one took.
struct piece_source {
  std::function<std::optional<piece>(device_id)> next;
  std::function<void(const piece&, double)> finished;
};

/// Plays a scenario until nobody is given more. Same scenario and same source: same run, to the last bit.
/// Noise is a hash of (seed, device, number of its piece), so that it does not depend on who asked first.
[[nodiscard]] simulated_run simulate(const balance_scenario& scenario, const piece_source& source);
[[nodiscard]] simulated_run simulate(const balance_scenario& scenario, balancer& work);

/// The least time in which the devices of a scenario can do it.
[[nodiscard]] double ideal_seconds(const balance_scenario& scenario);

}  // namespace weft
