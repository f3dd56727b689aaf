// SPDX-License-Identifier: Apache-2.0
#include "launch_bench.hpp"

#include "exec/balance/balance_simulation.hpp"
#include "exec/balance/launch_history.hpp"
#include "pictures/trace_picture.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

namespace weft::tool {

namespace {

using std::chrono::nanoseconds;
using wall = std::chrono::steady_clock;

constexpr std::int64_t items = 1'000'000;

WEFT_KERNEL(bench_visit, (WEFT_INOUT(uint8_t) visits), { visits[i] = (uint8_t)(visits[i] + 1); });
WEFT_KERNEL(bench_count, (WEFT_INOUT(int32_t) count), { count[i] = count[i] + 1; });

double speed_sum(const topology& layout) {
  double sum = 0;
  for (const topology_device& d : layout.devices) sum += d.speed;
  return sum;
}

/// All devices together do all items in a second.
double items_per_second(const topology& layout, std::size_t device) {
  return layout.devices[device].speed / speed_sum(layout) * static_cast<double>(items);
}

balance_scenario scenario_for(const launch_scenario& what, const topology& layout) {
  balance_scenario made;
  made.items = items;
  made.noise = what.noise;
  made.cost = what.growth > 0 ? item_cost::growing : what.growth < 0 ? item_cost::falling : item_cost::even;
  for (std::size_t d = 0; d < layout.devices.size(); ++d) {
    made.devices.push_back({items_per_second(layout, d), what.piece_seconds});
  }
  if (what.first_device_slows) {
    made.devices.front().changes_at = 0.5;
    made.devices.front().changes_by = 0.5;
  }
  return made;
}

std::vector<double> speeds_of(const topology& layout) {
  std::vector<double> speeds;
  speeds.reserve(layout.devices.size());
  for (const topology_device& d : layout.devices) speeds.push_back(d.speed);
  return speeds;
}

bool all_are_one(const std::vector<std::uint8_t>& visits) {
  return std::ranges::all_of(visits, [](std::uint8_t v) { return v == 1; });
}

machine simulated_machine(const topology& layout, const simulation& model) {
  machine_options options;
  options.backend = "host";
  options.machine = layout;
  options.clock = clock_kind::virtual_time;
  options.model = model;
  return machine{options};
}

/// Fills in what past launches would have left: sizes of three classes, and the first sample that is always dropped.
void remember(const machine& m, const topology& layout, const launch_scenario& what) {
  for (std::size_t d = 0; d < layout.devices.size(); ++d) {
    const device on = m[static_cast<int>(d)];
    const double each = 1 / items_per_second(layout, d);
    for (const bool resident : {false, true}) {
      const work_key key{"bench_visit", on.uuid(), resident, true};
      for (const std::int64_t n : {items, items, items / 8, items / 64}) {
        history_of(m).record(key, n, what.piece_seconds + each * static_cast<double>(n));
      }
    }
  }
}

struct one_run {
  double seconds = 0;
  std::optional<double> predicted;
  bool verified = true;
};

one_run run_on_devices(const launch_scenario& what, const topology& layout, const spread_options& how,
                       launch_history_kind known, std::uint64_t seed) {
  simulation model;
  model.launch_latency = nanoseconds{static_cast<std::int64_t>(what.piece_seconds * 1e9)};
  model.noise = what.noise;
  model.seed = seed;
  const machine m = simulated_machine(layout, model);
  if (known == launch_history_kind::right) remember(m, layout, what);
  array<std::uint8_t> visits{m, static_cast<std::size_t>(items), std::uint8_t{0}};
  const launch_run run = launch<bench_visit>(m, how, range(items), visits);
  run.wait();
  const launch_report report = run.report();
  one_run made{report.seconds, {}, all_are_one(visits.host())};
  if (report.predicted_seconds > 0) made.predicted = report.predicted_seconds;
  return made;
}

one_run run_in_model(const launch_scenario& what, const topology& layout, const spread_options& how,
                     launch_history_kind known) {
  balance_request request;
  request.items = items;
  request.strategy = how.strategy;
  request.keeps_data = true;  // as a launch on an array
  for (std::size_t d = 0; d < layout.devices.size(); ++d) {
    balance_device one;
    one.id = device_id{static_cast<int>(d)};
    one.weight = layout.devices[d].speed;
    if (known == launch_history_kind::right) {
      one.items_per_second = items_per_second(layout, d);
      one.chunk_seconds = what.piece_seconds;
    }
    request.devices.push_back(one);
  }
  const balance_plan plan = value_or_raise(plan_balance(request));
  balancer work{request, plan};
  const simulated_run played = simulate(scenario_for(what, layout), work);
  one_run made;
  made.seconds = played.seconds;
  if (plan.predicted_seconds > 0) made.predicted = plan.predicted_seconds;
  made.verified = work.is_done();
  return made;
}

launch_row balance_row(const launch_scenario& what, const topology& layout, balance strategy,
                       launch_history_kind known) {
  launch_row row;
  row.strategy = to_string(strategy);
  row.scenario = what.name;
  row.history = known;
  row.devices = layout.device_count();
  row.simulated = true;
  row.launched = what.runs_on_devices();
  row.name = fmt::format("launch/{}/{}/{}/{}", what.name, row.strategy,
                         known == launch_history_kind::right ? "history" : "no_history", row.devices);
  return row;
}

void play(launch_row& row, const launch_scenario& what, const topology& layout, balance strategy, int seeds,
          const row_budget& budget) {
  spread_options how;
  how.strategy = strategy;
  if (strategy == balance::weighted) how.weights = speeds_of(layout);
  how.model = kernel_cost{.seconds = 0, .seconds_per_item = speed_sum(layout) / static_cast<double>(items)};
  std::vector<double> times;
  bool verified = true;
  const int runs = what.noise > 0 ? seeds : 1;
  for (int seed = 1; seed <= runs && !interrupted() && (times.empty() || !budget.is_spent()); ++seed) {
    const one_run got = row.launched ? run_on_devices(what, layout, how, *row.history, static_cast<std::uint64_t>(seed))
                                     : run_in_model(what, layout, how, *row.history);
    times.push_back(got.seconds);
    verified = verified && got.verified;
    row.predicted_seconds = got.predicted;
  }
  if (times.empty()) {
    end_row(row, row_state::skipped, stopped_by_user);
    return;
  }
  row.verified = verified;
  if (!verified) {
    row.why = "an item was not done once";
    return;
  }
  row.ideal_seconds = ideal_seconds(scenario_for(what, layout));
  row.slowest = *std::ranges::max_element(times);
  row.seconds = summarise(std::move(times));
  if (!row.predicted_seconds) row.why = "no prediction: a speed was not known";
}

// ---- overhead -------------------------------------------------------------------------------------------------------

enum class launch_way : std::uint8_t { in_stream, by_type, by_name };
constexpr std::string_view name_of(launch_way way) {
  return way == launch_way::in_stream ? "stream" : way == launch_way::by_type ? "by_type" : "by_name";
}

launch_row overhead_row(launch_way way, int devices) {
  launch_row row;
  row.strategy = to_string(balance::static_equal);
  row.scenario = "overhead";
  row.devices = devices;
  row.name = fmt::format("launch/overhead/{}/{}", name_of(way), devices);
  return row;
}

/// From the call to the end of the wait, for a kernel with next to nothing to do whose data is in place.
void measure(launch_row& row, launch_way way, const machine& m, int samples, const row_budget& budget,
             nanoseconds share) {
  const auto began = wall::now();
  constexpr std::int64_t few = 64;
  constexpr int in_sample = 32;
  spread_options how;
  how.strategy = balance::static_equal;
  for (int d = 0; d < row.devices; ++d) how.devices.ids.push_back(device_id{d});
  kernels(m).add<bench_count>();
  const stream order{m[0]};
  buffer<std::int32_t> alone{m[0], static_cast<std::size_t>(few)};
  fill(alone, std::int32_t{0});
  array<std::int32_t> spread{m, static_cast<std::size_t>(few), 0};

  const auto once = [&] {
    switch (way) {
      case launch_way::in_stream:
        return launch<bench_count>(order, range(few), alone).wait();
      case launch_way::by_type:
        return launch<bench_count>(m, how, range(few), spread).wait();
      case launch_way::by_name:
        return launch(m, how, "bench_count", range(few), spread).wait();
    }
  };
  for (int warm = 0; warm < in_sample; ++warm) once();
  std::int32_t launches = in_sample;
  std::vector<double> times = take_samples(budget, samples, began + share, [&] {
    const auto begin = wall::now();
    for (int k = 0; k < in_sample; ++k) once();
    launches += in_sample;
    return seconds_since(begin) / in_sample;
  });
  std::vector<std::int32_t> counted(static_cast<std::size_t>(few));
  if (way == launch_way::in_stream) {
    copy(counted, alone);
  } else {
    spread.read(counted);
  }
  row.verified = std::ranges::all_of(counted, [&](std::int32_t c) { return c == launches; });
  if (!*row.verified) {
    row.why = fmt::format("{} launches counted {}", launches, counted.front());
  } else if (times.empty()) {
    row.state = row_state::skipped;
    row.why = stopped_by_user;
  } else {
    row.seconds = summarise(std::move(times));
    row.why = "an empty kernel has no ideal time, and nothing is predicted of it";
  }
}

}  // namespace

std::string_view to_string(launch_history_kind known) { return known == launch_history_kind::right ? "right" : "none"; }

std::optional<double> launch_row::efficiency() const {
  if (!seconds || !ideal_seconds || seconds->median <= 0) return std::nullopt;
  return *ideal_seconds / seconds->median;
}

std::optional<double> launch_row::worst_efficiency() const {
  if (!slowest || !ideal_seconds || *slowest <= 0) return std::nullopt;
  return *ideal_seconds / *slowest;
}

std::vector<launch_row> run_launches(session& run, const topology& balanced, const machine* measured,
                                     const launch_plan& plan) {
  struct task {
    launch_row row;
    std::function<void(launch_row&, nanoseconds share)> work;
  };
  row_budget budget{plan.budget};
  std::vector<task> tasks;
  for (const launch_scenario& what : plan.scenarios) {
    for (const balance strategy : plan.strategies) {
      // these two ask for no speed
      const bool asks = strategy != balance::static_equal && strategy != balance::weighted;
      for (const launch_history_kind known : {launch_history_kind::right, launch_history_kind::none}) {
        if (known == launch_history_kind::none && !asks) continue;
        tasks.push_back({balance_row(what, balanced, strategy, known),
                         [&what, &balanced, &plan, &budget, strategy](launch_row& r, nanoseconds) {
                           play(r, what, balanced, strategy, plan.seeds, budget);
                         }});
      }
    }
  }
  if (plan.overhead && measured != nullptr) {
    const auto by = [&plan, &budget, measured](launch_way way) {
      return [&plan, &budget, measured, way](launch_row& r, nanoseconds share) {
        measure(r, way, *measured, plan.samples, budget, share);
      };
    };
    tasks.push_back({overhead_row(launch_way::in_stream, 1), by(launch_way::in_stream)});
    for (int devices = 1; devices <= std::min(2, measured->device_count()); ++devices) {
      for (const launch_way way : {launch_way::by_type, launch_way::by_name}) {
        tasks.push_back({overhead_row(way, devices), by(way)});
      }
    }
  }

  progress shown{run, "launches", tasks.size()};
  std::vector<launch_row> rows;
  for (task& t : tasks) {
    shown.step(rows.size(), t.row.name);
    try {
      if (!budget.leaves_out(t.row)) t.work(t.row, budget.share_of(tasks.size() - rows.size()));
    } catch (const error_exception& e) {
      end_row(t.row, e.cause());
    }
    rows.push_back(std::move(t.row));
  }
  budget.tell(run, rows.size());
  return rows;
}

json rows_json(const std::vector<launch_row>& rows) {
  json all = json::array();
  for (const launch_row& row : rows) {
    json one;
    one["name"] = row.name;
    one["strategy"] = row.strategy;
    one["scenario"] = row.scenario;
    one["devices"] = row.devices;
    one["efficiency"] = or_null(row.efficiency());
    one["predicted_seconds"] = or_null(row.predicted_seconds);
    one["seconds"] = seconds_json(row.seconds);
    one["simulated"] = row.simulated;
    one["launched"] = row.launched;
    one["history"] = row.history ? json(to_string(*row.history)) : json(nullptr);
    one["ideal_seconds"] = or_null(row.ideal_seconds);
    one["worst_efficiency"] = or_null(row.worst_efficiency());
    one["verified"] = or_null(row.verified);
    one["why"] = row.why.empty() ? json(nullptr) : json(row.why);
    all.push_back(std::move(one));
  }
  return all;
}

// ---- pictures -------------------------------------------------------------------------------------------------------

std::vector<watched_launch> watch_launches(const topology& layout, const std::vector<balance>& strategies) {
  const machine m = simulated_machine(layout, {.launch_latency = std::chrono::microseconds{20}});
  const auto sink = std::make_shared<trace_sink>();
  m.trace_to(sink);
  std::vector<watched_launch> made;
  for (const balance strategy : strategies) {
    spread_options how;
    how.strategy = strategy;
    if (strategy == balance::weighted) how.weights = speeds_of(layout);
    how.model = kernel_cost{.seconds = 0, .seconds_per_item = speed_sum(layout) / static_cast<double>(items)};
    array<std::uint8_t> visits{m, static_cast<std::size_t>(items), std::uint8_t{0}};
    static_cast<void>(sink->take());
    const nanoseconds begin = m.now();
    const launch_run run = launch<bench_visit>(m, how, range(items), visits);
    run.wait();
    watched_launch one;
    one.asked = strategy;
    one.report = run.report();
    for (trace_record& record : sink->take()) {
      if (record.kind != trace_kind::kernel) continue;
      record.started -= begin;
      record.ended -= begin;
      one.pieces.push_back(std::move(record));
    }
    std::ranges::sort(one.pieces, {}, [](const trace_record& r) { return std::pair{r.started, r.ended}; });
    one.verified = all_are_one(visits.host());
    made.push_back(std::move(one));
  }
  m.trace_to(nullptr);
  return made;
}

std::string balance_text(const std::vector<watched_launch>& launches) {
  constexpr std::size_t width = 60;
  double longest = 0;
  for (const watched_launch& one : launches) longest = std::max(longest, one.report.seconds);
  std::string text;
  for (const watched_launch& one : launches) {
    text += fmt::format("  {}: {}, {:.1f} % of the ideal (simulated)\n", to_string(one.asked),
                        time_text(one.report.seconds), 100 * one.report.efficiency());
    for (const device_account& d : one.report.devices) {
      std::string bar(width, '.');
      bool odd = false;
      for (const trace_record& piece : one.pieces) {
        if (piece.device != d.device) continue;
        const auto cell = [&](nanoseconds t) {
          return std::min(width,
                          static_cast<std::size_t>(std::lround(seconds_of(t) / longest * static_cast<double>(width))));
        };
        std::fill(bar.begin() + static_cast<std::ptrdiff_t>(cell(piece.started)),
                  bar.begin() + static_cast<std::ptrdiff_t>(cell(piece.ended)), odd ? '=' : '#');
        odd = !odd;
      }
      text += fmt::format("    {} |{}| {:>5.1f} % of the items, {} piece{}\n", to_string(d.device), bar,
                          100 * static_cast<double>(d.items) / static_cast<double>(items), d.pieces,
                          d.pieces == 1 ? "" : "s");
    }
  }
  return text;
}

std::string balance_svg(const std::vector<watched_launch>& launches, std::string_view title) {
  trace_file drawn;
  drawn.clock = "virtual";
  drawn.simulated = true;
  for (const watched_launch& one : launches) {
    for (const device_account& d : one.report.devices) {
      trace_track track;
      track.process = fmt::format("{}: {:.1f} % of the ideal", to_string(one.asked), 100 * one.report.efficiency());
      track.name = to_string(d.device);
      for (const trace_record& piece : one.pieces) {
        if (piece.device != d.device) continue;
        track.events.push_back({fmt::format("{} items", piece.items), "kernel", seconds_of(piece.started) * 1e6,
                                seconds_of(piece.ended - piece.started) * 1e6, piece.failed});
        drawn.end = std::max(drawn.end, seconds_of(piece.ended) * 1e6);
        ++drawn.events;
      }
      drawn.tracks.push_back(std::move(track));
    }
  }
  return trace_svg(drawn, title);
}

}  // namespace weft::tool
