// SPDX-License-Identifier: Apache-2.0
// The figures of a published multi-GPU programming guide, and the same done again: on a virtual clock with the devices
// and links that the guide has in mind, and on this computer. "The guide" is that document; what it says is in
// guide_tables.cpp, word for word as numbers, with a note wherever it says two things that do not go together.
#pragma once

#include "weft/runtime/machine.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::tool {

inline constexpr double giga = 1e9;

/// One line of one table.
struct guide_figure {
  std::string_view table;
  std::string_view row;
  std::string_view unit;
  double low = 0;   // 0: the guide has no figure, and the line is there because it explains one that it has
  double high = 0;  // as low unless it gives a range
  std::string_view note{};

  [[nodiscard]] bool is_given() const { return low > 0; }
  [[nodiscard]] bool is_range() const { return high > low; }
};

/// Every figure, table by table.
[[nodiscard]] std::span<const guide_figure> guide_figures();

/// The tables in their order, each once.
[[nodiscard]] std::vector<std::string_view> guide_table_names();

/// What the guide says in one line. Errors: not_found, for a line that is not there.
[[nodiscard]] double figure_of(std::string_view table, std::string_view row);

/// A number, or why there is none; a number may come with a remark on how it was made.
struct guide_value {
  std::optional<double> number;
  std::string why;
};

/// What was found for a table, by row. Rows that are not in it have `otherwise` as their reason.
struct guide_values {
  std::map<std::string_view, guide_value> rows;
  std::string otherwise;

  [[nodiscard]] static guide_values nothing(std::string_view why) { return {{}, std::string{why}}; }

  void put(std::string_view row, double number, std::string remark = {}) {
    rows[row] = guide_value{number, std::move(remark)};
  }
  void leave(std::string_view row, std::string why) { rows[row] = guide_value{std::nullopt, std::move(why)}; }
  [[nodiscard]] guide_value of(std::string_view row) const {
    const auto at = rows.find(row);
    return at == rows.end() ? guide_value{std::nullopt, otherwise} : at->second;
  }
};

struct guide_plan {
  bool quick = false;  // sizes that take no time: a look, not a figure to quote
};

/// Thrown by stop_if_interrupted(), which measurements call between their samples, once the user has stopped the
/// command.
struct guide_stopped {};
void stop_if_interrupted();

/// A table on the virtual clock: the library's own copies, launches and pipelines, in a model's time. Data is checked.
/// Errors: failure when data is wrong; as the operations.
[[nodiscard]] guide_values simulate_table(std::string_view table);

/// A table on the host devices of `m`, by the wall clock. Data is checked. Errors: as simulate_table().
[[nodiscard]] guide_values measure_table(std::string_view table, const machine& m, const guide_plan& plan);

/// Of these, all-reduce.
[[nodiscard]] guide_values simulate_all_reduce();
[[nodiscard]] guide_values measure_all_reduce(const machine& m, const guide_plan& plan);

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

}  // namespace weft::tool
