// SPDX-License-Identifier: Apache-2.0
// exec/balance: all strategies in one table; docs/reference/execution.md quotes some figures of it. Every figure is
// simulated: part of the ideal time that a strategy reaches on devices of 450,000, 300,000 and 250,000 items/s, a
// million items, 20 us for each piece.
//
// usage: bench_exec_balance [SEEDS]

#include "exec/balance/balance_simulation.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

using weft::balance;
using weft::balance_scenario;
using weft::device_id;
using weft::piece;

constexpr std::int64_t items = 1'000'000;
constexpr double speeds[] = {450e3, 300e3, 250e3};
constexpr double believed[] = {360e3, 340e3, 300e3};  // up to 20 % off

struct column {
  std::string_view name;
  balance_scenario scenario;
  bool is_noisy = false;
};

std::vector<column> columns() {
  balance_scenario plain;
  plain.items = items;
  for (const double speed : speeds) plain.devices.push_back({speed, 20e-6});
  std::vector<column> made(6, {"A exact", plain});
  made[1] = {"B 5 % noise", plain, true};
  made[1].scenario.noise = 0.05;
  made[2].name = "C dev0 halves";
  made[2].scenario.devices[0].changes_at = 0.5;
  made[2].scenario.devices[0].changes_by = 0.5;
  made[3].name = "D cost grows";
  made[3].scenario.cost = weft::item_cost::growing;
  made[4].name = "D2 cost falls";
  made[4].scenario.cost = weft::item_cost::falling;
  made[5].name = "E 2 ms/piece";
  for (auto& d : made[5].scenario.devices) d.chunk_seconds = 2e-3;
  return made;
}

enum class knows { all, wrongly, nothing };

/// A row of the library's own.
struct strategy_row {
  std::string_view name;
  balance strategy;
  knows what;
  double divisor = 2;
};
constexpr strategy_row rows[] = {
    {"static_equal", balance::static_equal, knows::all},
    {"weighted 45/30/25", balance::weighted, knows::all},
    {"dynamic, right history", balance::dynamic, knows::all},
    {"dynamic, history 20 % wrong", balance::dynamic, knows::wrongly},
    {"guided, right history", balance::guided, knows::all},
    {"guided, history 20 % wrong", balance::guided, knows::wrongly},
    {"guided, no history", balance::guided, knows::nothing},
    {"guided k = 1, right history", balance::guided, knows::all, 1},
    {"guided k = 3, right history", balance::guided, knows::all, 3},
    {"guided k = 6, right history", balance::guided, knows::all, 6},
    {"memory_aware, right history", balance::memory_aware, knows::all},
    {"work_stealing, right history", balance::work_stealing, knows::all},
    {"work_stealing, no history", balance::work_stealing, knows::nothing},
    {"automatic, right history", balance::automatic, knows::all},
    {"automatic, no history", balance::automatic, knows::nothing},
};

double efficiency(const strategy_row& row, const balance_scenario& scenario) {
  weft::balance_request request;
  request.items = scenario.items;
  request.strategy = row.strategy;
  request.guided_divisor = row.divisor;
  for (int i = 0; i < 3; ++i) {
    weft::balance_device d;
    d.id = device_id{i};
    d.items_per_second = row.what == knows::all ? speeds[i] : row.what == knows::wrongly ? believed[i] : 0;
    d.chunk_seconds = scenario.devices[0].chunk_seconds;
    d.weight = speeds[i];
    request.devices.push_back(d);
  }
  const auto plan = weft::plan_balance(request);
  if (!plan) {
    std::fprintf(stderr, "%s\n", to_string(plan.error()).c_str());
    std::exit(1);
  }
  weft::balancer work{request, *plan};
  return simulate(scenario, work).efficiency();
}

/// Rules that weft does not offer, for comparison: a chunk from what is left.
struct other_row {
  std::string_view name;
  std::int64_t (*chunk)(std::int64_t left);
};
constexpr other_row others[] = {
    {"fixed chunks N/64", [](std::int64_t) { return items / 64; }},
    {"fixed chunks N/512", [](std::int64_t) { return items / 512; }},
    {"R/P, speeds not used", [](std::int64_t left) { return left / 3; }},
    {"R/(2P), speeds not used", [](std::int64_t left) { return left / 6; }},
};

double efficiency(const other_row& row, const balance_scenario& scenario) {
  std::int64_t at = 0;
  const auto next = [&](device_id device) -> std::optional<piece> {
    const std::int64_t left = items - at;
    if (left == 0) return std::nullopt;
    const piece p{device, at, std::min(left, std::max<std::int64_t>(row.chunk(left), 1'000))};
    at += p.count;
    return p;
  };
  return simulate(scenario, {next, [](const piece&, double) {}}).efficiency();
}

template <class Row>
void print(const Row& row, const std::vector<column>& over, int seeds) {
  std::printf("| %-28s |", std::string{row.name}.c_str());
  for (const column& c : over) {
    balance_scenario scenario = c.scenario;
    std::vector<double> reached;
    for (int seed = 1; seed <= (c.is_noisy ? seeds : 1); ++seed) {
      scenario.seed = static_cast<std::uint64_t>(seed);
      reached.push_back(100 * efficiency(row, scenario));
    }
    std::sort(reached.begin(), reached.end());
    if (c.is_noisy) {
      std::printf(" %5.1f / %5.1f |", reached.front(), reached[reached.size() / 2]);
    } else {
      std::printf(" %5.1f |", reached.front());
    }
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 100;
  const std::vector<column> over = columns();
  std::printf(
      "Simulated, not measured: %% of the ideal time. Speeds 450/300/250 k items/s, N = 1,000,000, 20 us a piece.\n");
  std::printf("B: worst / median of %d seeds; above 100 where noise made the work cheaper than its mean.\n\n", seeds);
  std::printf("| strategy |");
  for (const column& c : over) std::printf(" %s |", std::string{c.name}.c_str());
  std::printf("\n|---|");
  for (std::size_t i = 0; i < over.size(); ++i) std::printf("---|");
  std::printf("\n");
  for (const strategy_row& row : rows) print(row, over, seeds);
  for (const other_row& row : others) print(row, over, seeds);
}
