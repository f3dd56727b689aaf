// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/balance_simulation.hpp"

#include <algorithm>
#include <bit>

namespace weft {
namespace {

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;  // splitmix64 (S. Vigna, public domain)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Nearly normal, mean 0 and deviation 1: twelve uniform numbers. No library function, whose last bit may differ.
double normal(std::uint64_t seed, std::uint64_t device, std::uint64_t number) {
  std::uint64_t state = mixed(mixed(mixed(seed) ^ device) ^ number);
  double sum = -6;
  for (int i = 0; i < 12; ++i) {
    state = mixed(state);
    sum += static_cast<double>(state >> 11) * 0x1p-53;
  }
  return sum;
}

/// What the items of a piece cost together, in items of mean cost.
double work_of(const balance_scenario& scenario, const piece& p) {
  const auto count = static_cast<double>(p.count);
  if (scenario.cost == item_cost::even) return count;
  const double middle = (static_cast<double>(p.first) + count / 2) / static_cast<double>(scenario.items);
  return count * 2 * (scenario.cost == item_cost::growing ? middle : 1 - middle);
}

/// When a device that begins at `start` has done `work`.
double end_of(const simulated_device& d, double start, double work) {
  const double later = d.items_per_second * d.changes_by;
  if (start >= d.changes_at) return start + work / later;
  const double before = (d.changes_at - start) * d.items_per_second;
  return work <= before ? start + work / d.items_per_second : d.changes_at + (work - before) / later;
}

struct running {
  bool is_busy = false;
  double begin = 0;
  double end = 0;
  std::uint64_t number = 0;  // in the order of submission: decides between equal ends
  piece what;
};

}  // namespace

double ideal_seconds(const balance_scenario& scenario) {
  std::vector<double> changes{0};
  for (const simulated_device& d : scenario.devices) changes.push_back(d.changes_at);
  std::sort(changes.begin(), changes.end());
  auto left = static_cast<double>(scenario.items);
  double now = 0;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    now = changes[i];
    double speed = 0;
    for (const simulated_device& d : scenario.devices) {
      speed += d.items_per_second * (now >= d.changes_at ? d.changes_by : 1);
    }
    const double until = i + 1 < changes.size() ? changes[i + 1] : std::numeric_limits<double>::infinity();
    const double needed = left / speed;
    if (needed <= until - now) return now + needed;
    left -= speed * (until - now);
  }
  return now;
}

simulated_run simulate(const balance_scenario& scenario, const piece_source& source) {
  simulated_run run;
  run.ideal_seconds = ideal_seconds(scenario);
  run.devices.resize(scenario.devices.size());
  run.trace_hash = mixed(static_cast<std::uint64_t>(scenario.items));
  const auto trace = [&](std::uint64_t word) { run.trace_hash = mixed(run.trace_hash ^ word); };
  std::vector<running> at(scenario.devices.size());
  std::uint64_t number = 0;

  const auto ask = [&](std::size_t i, double now) {
    const auto given = source.next(device_id{static_cast<int>(i)});
    if (!given) return;
    const simulated_device& d = scenario.devices[i];
    simulated_share& mine = run.devices[i];
    const double factor =
        scenario.noise == 0
            ? 1
            : std::max(0.1, 1 + scenario.noise * normal(scenario.seed, i, static_cast<std::uint64_t>(mine.pieces)));
    running& r = at[i];
    r = {true, now, end_of(d, now + d.chunk_seconds, work_of(scenario, *given) * factor), number++, *given};
    ++mine.pieces;
    mine.items += given->count;
    run.pieces.push_back(*given);
    for (const std::uint64_t word :
         {std::uint64_t{i}, static_cast<std::uint64_t>(given->first), static_cast<std::uint64_t>(given->count),
          std::bit_cast<std::uint64_t>(r.begin), std::bit_cast<std::uint64_t>(r.end)}) {
      trace(word);
    }
  };

  for (std::size_t i = 0; i < at.size(); ++i) ask(i, 0);
  for (;;) {
    std::size_t first = at.size();
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (!at[i].is_busy) continue;
      const bool earlier = first == at.size() || at[i].end < at[first].end ||
                           (at[i].end == at[first].end && at[i].number < at[first].number);
      if (earlier) first = i;
    }
    if (first == at.size()) return run;
    running& done = at[first];
    done.is_busy = false;
    const double now = done.end;
    run.seconds = now;
    run.devices[first].busy_seconds += now - done.begin;
    run.devices[first].end_seconds = now;
    source.finished(done.what, now - done.begin);
    ask(first, now);
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (!at[i].is_busy) ask(i, now);
    }
  }
}

simulated_run simulate(const balance_scenario& scenario, balancer& work) {
  return simulate(scenario, {[&](device_id device) { return work.next(device); },
                             [&](const piece& done, double seconds) { work.finished(done, seconds); }});
}

}  // namespace weft
