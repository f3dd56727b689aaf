// SPDX-License-Identifier: Apache-2.0
// Copies between devices, timed on the machine's clock and verified with a pattern that differs at every place.
#pragma once

#include "bench/bench_row.hpp"
#include "weft/memory/route.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

/// What a rate is compared with: a link's published rate, or a plain copy in this host's memory.
struct rate_limit {
  std::optional<double> bytes_per_second;
  std::string from;  // "link" or "host_copy"
  std::string why;   // why there is none
};

/// Who makes a copy: the driver by a command, with its copy engine as a rule, or a kernel.
enum class copy_maker : std::uint8_t { engine, kernel };
[[nodiscard]] std::string_view to_string(copy_maker by);

/// One way between one pair at one size.
struct copy_row {
  std::string name;
  device_id src;
  device_id dst;
  copy_path path = copy_path::direct;
  copy_maker by = copy_maker::engine;
  std::optional<device_id> ran_on;  // the kernel
  std::uint64_t size = 0;
  row_state state = row_state::done;
  std::optional<statistics> seconds;
  std::optional<bool> verified;
  std::optional<double> predicted_seconds;
  rate_limit limit;
  std::string why;

  [[nodiscard]] std::optional<double> bytes_per_second() const;
  [[nodiscard]] std::optional<double> share() const;
  /// A limit that a copy has passed is none.
  void check_limit();
};

struct copy_plan {
  std::vector<std::uint64_t> sizes;
  std::vector<std::pair<device_id, device_id>> pairs;  // (src, dst)
  bool direct = true;
  bool staged = true;
  bool by_engine = true;
  std::optional<bool> by_kernel;  // none: where a device is not the host's
  int samples = 15;
  std::chrono::nanoseconds min_time{0};
  std::chrono::nanoseconds budget = std::chrono::seconds{10};
};

/// Runs the plan, small sizes first; what does not fit into the budget or into a quarter of the free memory is there as
/// a row that says so. Stops at an interrupt.
[[nodiscard]] std::vector<copy_row> run_copies(session& run, const machine& m, const copy_plan& plan);

/// results[] of weft.bench.copy/1.
[[nodiscard]] json rows_json(const std::vector<copy_row>& rows);

/// The best that a plain copy in this host's memory reaches at this size, measured now.
[[nodiscard]] double host_copy_rate(std::uint64_t size);

/// Why a row would use more than a quarter of the free memory of its devices or of this host; empty when it fits.
[[nodiscard]] std::optional<std::string> too_large(const machine& m, const copy_row& row);

}  // namespace weft::tool
