// SPDX-License-Identifier: Apache-2.0
// Copies at the same time: to the host and back, both ways of a pair, all to one, one to all.
#pragma once

#include "copy_bench.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

enum class copy_pattern : std::uint8_t { from_host, to_host, both_ways, all_to_one, one_to_all };
[[nodiscard]] std::string_view to_string(copy_pattern what);

/// One pattern around one device, or between two.
struct pattern_row {
  std::string name;  // "copy/both_ways/64MiB/gpu0-gpu1"
  copy_pattern what = copy_pattern::to_host;
  device_id first;
  std::optional<device_id> second;  // of both_ways
  std::uint64_t size = 0;           // of each copy
  std::size_t copies = 0;           // at the same time
  row_state state = row_state::done;
  std::optional<statistics> seconds;  // until the last of them has ended
  std::optional<bool> verified;
  std::string why;

  /// Of all copies together.
  [[nodiscard]] std::optional<double> bytes_per_second() const;
};

/// Measures every pattern at one size. What does not fit into the budget, or into a quarter of the free memory, is
/// there as a row that says so. Stops at an interrupt.
[[nodiscard]] std::vector<pattern_row> run_patterns(session& run, const machine& m, std::uint64_t size, int samples,
                                                    std::chrono::nanoseconds budget);

/// The same fields as a row of a copy, as far as it has them.
[[nodiscard]] json patterns_json(const std::vector<pattern_row>& rows);
[[nodiscard]] std::string patterns_text(const session& run, const std::vector<pattern_row>& rows);

}  // namespace weft::tool
