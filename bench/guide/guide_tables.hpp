// SPDX-License-Identifier: Apache-2.0
// The figures of a published multi-GPU programming guide ("the guide"), and the same computed by weft on a virtual
// clock with the devices and links that the guide has in mind. docs/explanation/guide.md is the page; its notes say
// where the guide contradicts itself and what was fed to the simulation.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>

namespace weft::bench {

inline constexpr double giga = 1e9;

/// One line of one table.
struct guide_figure {
  std::string_view table;
  std::string_view row;
  std::string_view unit;
  double low = 0;     // 0: the guide has no figure; the line explains one that it has
  double high = low;  // higher: a range
};

/// Every figure, table by table.
[[nodiscard]] std::span<const guide_figure> guide_figures();

/// The guide's figure. Errors: not_found, for a line that is not there.
[[nodiscard]] double figure_of(std::string_view table, std::string_view row);

/// Simulated values of one table, by row.
using guide_values = std::map<std::string_view, double>;

/// A table on the virtual clock: the library's own copies, launches, pipelines and collectives, in a model's time. Data
/// is checked. Errors: corrupt when data is wrong; as the operations.
[[nodiscard]] guide_values simulate_table(std::string_view table);

/// Of these, all-reduce.
[[nodiscard]] guide_values simulate_all_reduce();

/// The part p of the work that cannot be divided, from a speed-up on N devices: 1 / (p + (1 − p) / N).
[[nodiscard]] constexpr double serial_part(double speed_up, int devices) {
  const double share = 1.0 / devices;
  return (1 / speed_up - share) / (1 - share);
}

/// One device that has the data, and others that have to fetch it and bring it back: from how many items on a second
/// device is worth starting. By weft::finish_together.
struct crossover_costs {
  double first_seconds = 0;  // of a start where the data is
  double first_seconds_per_item = 0;
  double other_seconds = 0;  // of a start elsewhere
  double other_seconds_per_item = 0;
};
[[nodiscard]] std::int64_t crossover_items(const crossover_costs& costs, int devices);

}  // namespace weft::bench
