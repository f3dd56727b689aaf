// SPDX-License-Identifier: Apache-2.0
// One kernel over several devices: how well each strategy balances it on a simulated clock, and what a launch costs on
// this computer's own.
#pragma once

#include "bench_row.hpp"
#include "command_line/options.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/trace.hpp"
#include "weft/exec/balance.hpp"
#include "weft/exec/launch_report.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

/// What devices and work are like. Items cost the same unless a scenario says otherwise; 20 us for each piece.
struct launch_scenario {
  std::string_view name;
  std::string_view people;
  double piece_seconds = 20e-6;
  double noise = 0;                 // standard deviation of a piece's time, relative
  bool first_device_slows = false;  // to half its speed, after half the ideal time
  int growth = 0;                   // 1: items cost 0 at the first … twice the mean at the last; -1: the other way

  /// The virtual clock knows kernels whose items cost the same on devices that stay as they are. The others are played
  /// by weft::simulate(): the same decisions, but no launch.
  [[nodiscard]] bool runs_on_devices() const { return !first_device_slows && growth == 0; }
};
inline constexpr std::array<launch_scenario, 6> launch_scenarios{{{"A", "exact"},
                                                                  {"B", "5 % noise", 20e-6, 0.05},
                                                                  {"C", "gpu0 halves", 20e-6, 0, true},
                                                                  {"D", "cost grows", 20e-6, 0, false, 1},
                                                                  {"D2", "cost falls", 20e-6, 0, false, -1},
                                                                  {"E", "2 ms a piece", 2e-3}}};

inline constexpr std::array<balance, 7> all_strategies{
    balance::static_equal, balance::weighted,      balance::dynamic,  balance::guided,
    balance::memory_aware, balance::work_stealing, balance::automatic};

/// What was known before the launch that counts.
enum class launch_history_kind : std::uint8_t { right, none };
[[nodiscard]] std::string_view to_string(launch_history_kind known);

/// One strategy in one scenario, or one way to launch.
struct launch_row {
  std::string name;
  std::string strategy;
  std::string scenario;  // of launch_scenarios, or "overhead"
  std::optional<launch_history_kind> history;
  int devices = 0;
  row_state state = row_state::done;
  std::optional<statistics> seconds;
  std::optional<double> slowest;  // seconds; where there are several seeds
  std::optional<double> ideal_seconds;
  std::optional<double> predicted_seconds;
  bool simulated = false;
  bool launched = true;  // false: played by the model alone
  std::optional<bool> verified;
  std::string why;

  /// Ideal time by time taken. Above 1 where noise made the work cheaper than its mean.
  [[nodiscard]] std::optional<double> efficiency() const;
  [[nodiscard]] std::optional<double> worst_efficiency() const;
};

struct launch_plan {
  std::vector<balance> strategies;
  std::vector<launch_scenario> scenarios;
  bool overhead = true;
  int seeds = 100;   // of a scenario with noise
  int samples = 15;  // of the overhead
  std::chrono::nanoseconds budget = std::chrono::seconds{30};
};

/// Scenarios on a machine like `balanced` with a virtual clock: a million items that all its devices together do in a
/// second. Then the overhead on `measured`, on the wall clock. Every item of every launch is checked.
[[nodiscard]] std::vector<launch_row> run_launches(session& run, const topology& balanced, const machine* measured,
                                                   const launch_plan& plan);

/// results[] of weft.bench.launch/1.
[[nodiscard]] json rows_json(const std::vector<launch_row>& rows);

/// One launch that was watched.
struct watched_launch {
  balance asked = balance::automatic;
  launch_report report;
  std::vector<trace_record> pieces;  // kernels, by their begin; from the submission of the launch on
  bool verified = false;
};

/// A million items by each strategy in turn, on one machine with a virtual clock: what the first ones find out of the
/// speeds serves the next ones.
[[nodiscard]] std::vector<watched_launch> watch_launches(const topology& layout,
                                                         const std::vector<balance>& strategies);

/// A bar for each device and launch, over one axis of time: # and = are pieces in turns, a point is a time without.
[[nodiscard]] std::string balance_text(const std::vector<watched_launch>& launches);
/// The same as SVG.
[[nodiscard]] std::string balance_svg(const std::vector<watched_launch>& launches, std::string_view title);

}  // namespace weft::tool
