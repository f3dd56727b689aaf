// SPDX-License-Identifier: Apache-2.0
// Rates between devices that no topology tells: measured on request, and kept for later commands until the computer
// starts again.
#pragma once

#include "command_line/output.hpp"
#include "weft/memory/route.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::tool {

struct measured_rates {
  std::map<std::pair<int, int>, lane_facts> pairs;  // (from, to)
  std::vector<lane_facts> to_host, from_host;       // by device; a rate of 0 is unknown
  std::string source;                               // "measured now", "measured at TIME[ and later]"; empty: none

  /// Fills in what is not known.
  void apply(route_facts& facts) const;
  /// The same for links: one is as fast as the fastest way over it that was measured, and the time before a way's first
  /// byte is spread over its links.
  void apply(topology& machine) const;
};

/// Measures every pair and the ways to the host, and keeps what is of real devices: those with a driver's version and a
/// PCI address each. The file is XDG_CACHE_HOME/weft/rates.json, or HOME/.cache/weft/rates.json; one that cannot be
/// written keeps nothing.
[[nodiscard]] measured_rates measure_rates(const machine& m);

/// What an earlier command has kept of this machine, since the computer was started.
[[nodiscard]] measured_rates kept_rates(const machine& m);

}  // namespace weft::tool
