// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "launch_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace weft::tool {

namespace {

constexpr std::string_view machine_of_unlike_devices = "mixed_3";

bool is_balance(const launch_row& row) { return row.scenario != "overhead"; }

launch_plan plan_for(const session& run, const launch_bench_options& options) {
  launch_plan plan;
  plan.strategies = options.strategies;
  if (plan.strategies.empty()) plan.strategies.assign(all_strategies.begin(), all_strategies.end());
  const auto wanted = [&](std::string_view name) {
    return options.scenarios.empty() || std::ranges::find(options.scenarios, name) != options.scenarios.end();
  };
  for (const launch_scenario& s : launch_scenarios) {
    if (wanted(s.name)) plan.scenarios.push_back(s);
  }
  plan.overhead = wanted("overhead") && !run.virtual_time();
  plan.seeds = options.seeds.value_or(options.quick ? 3 : 100);
  plan.samples = options.samples.value_or(options.quick ? 3 : 15);
  plan.budget = options.budget;
  if (run.virtual_time() && plan.scenarios.empty()) {
    throw failure{exit_code::usage,
                  "the overhead is real time, and a virtual clock has none of it: drop --clock virtual, or name a "
                  "scenario"};
  }
  if (!options.output.empty() && !plan.overhead) {
    throw failure{
        exit_code::usage,
        fmt::format("{} is not written: times of a virtual clock are simulated, and results files are for "
                    "measurements; {}, or drop -o",
                    options.output, run.virtual_time() ? "drop --clock virtual" : "add overhead to --scenario")};
  }
  return plan;
}

/// "########.. 75.0", of ten cells.
std::string cell_text(const launch_row& row) {
  const auto share = row.efficiency();
  if (!share) return "-";
  const auto full = static_cast<std::size_t>(std::clamp(10 * *share + 0.5, 0.0, 10.0));
  return fmt::format("{}{} {:>5.1f}", std::string(full, '#'), std::string(10 - full, '.'), 100 * *share);
}

/// A line for each strategy, a column for each scenario.
std::string balance_table(const session& run, const std::vector<launch_row>& rows,
                          const std::vector<launch_scenario>& scenarios) {
  std::vector<std::string> header{"strategy (simulated)"};
  for (const launch_scenario& s : scenarios) {
    header.push_back(fmt::format("{} {}", s.name, s.people));
    if (s.noise > 0) header.emplace_back("worst");
  }
  std::vector<bool> right(header.size(), true);
  right.front() = false;
  text_table table{header, right};
  std::vector<std::pair<std::string, std::map<std::string, const launch_row*>>> lines;
  for (const launch_row& row : rows) {
    if (!is_balance(row)) continue;
    const bool asks = row.strategy != to_string(balance::static_equal) && row.strategy != to_string(balance::weighted);
    std::string name = row.strategy;
    if (asks) name += row.history == launch_history_kind::right ? ", right history" : ", no history";
    auto line = std::ranges::find(lines, name, [](const auto& l) { return l.first; });
    if (line == lines.end()) line = lines.insert(line, {name, {}});
    line->second[row.scenario] = &row;
  }
  for (const auto& [name, by_scenario] : lines) {
    std::vector<std::string> cells{name};
    std::vector<style> styles{style::plain};
    for (const launch_scenario& s : scenarios) {
      const auto at = by_scenario.find(std::string{s.name});
      const launch_row* row = at == by_scenario.end() ? nullptr : at->second;
      const bool bad = row != nullptr && row->verified && !*row->verified;
      cells.push_back(row == nullptr ? "-" : bad ? "BAD" : cell_text(*row));
      styles.push_back(bad ? style::bad : style::plain);
      if (s.noise <= 0) continue;
      const auto worst = row == nullptr ? std::nullopt : row->worst_efficiency();
      cells.push_back(worst ? fmt::format("{:.1f}", 100 * *worst) : "-");
      styles.push_back(style::plain);
    }
    table.row(std::move(cells), std::move(styles));
  }
  return table.render(run);
}

std::string overhead_table(const session& run, const std::vector<launch_row>& rows) {
  text_table table{{"from call to result", "devices", "median", "p5..p95", "data"}, {false, true, true, true, false}};
  for (const launch_row& row : rows) {
    if (is_balance(row)) continue;
    const std::string way = row.name.substr(row.name.find("overhead/") + 9);
    const std::string data = verified_text<launch_row>({&row});
    table.row({way.starts_with("stream")    ? "in a stream, no array"
               : way.starts_with("by_type") ? "over devices, by type"
                                            : "over devices, by name",
               std::to_string(row.devices), median_text(row.seconds), spread_text(row.seconds), data},
              style_of_verified(data));
  }
  return table.render(run);
}

std::string text_of(const session& run, const topology& balanced, const launch_plan& plan,
                    const std::vector<launch_row>& rows) {
  std::string text;
  if (!plan.scenarios.empty()) {
    std::vector<std::string> speeds;
    speeds.reserve(balanced.devices.size());
    for (const topology_device& d : balanced.devices) speeds.push_back(fmt::format("{:g}", d.speed));
    text += fmt::format("balance on {}: {} device{}, speeds {} (simulated)\n", balanced.name, balanced.device_count(),
                        balanced.device_count() == 1 ? "" : "s", fmt::join(speeds, " : "));
    text += "Part of the ideal time, in percent. A model's, no measurement: it shows balance, never speed.\n\n";
    text += balance_table(run, rows, plan.scenarios);
    std::set<std::string> modelled;
    for (const launch_row& row : rows) {
      if (is_balance(row) && !row.launched) modelled.insert(row.scenario);
    }
    if (!modelled.empty()) {
      text += fmt::format("{}: played by the balance model alone; the others are launches on a virtual clock\n",
                          fmt::join(modelled, ", "));
    }
  }
  if (plan.overhead) {
    text += fmt::format("{}overhead on {}\n", plan.scenarios.empty() ? "" : "\n", run.machine_title());
    text +=
        "Measured: a kernel of 64 items whose data is in place. Median of the samples, each the mean of 32 "
        "launches.\n\n";
    text += overhead_table(run, rows);
  }
  std::vector<std::pair<std::string, std::string>> reasons;
  for (const launch_row& row : rows) {
    if (!row.seconds) reasons.emplace_back(row.name, row.why);
  }
  return text + reasons_text(run, reasons);
}

}  // namespace

exit_code run_bench_launch(session& run, const launch_bench_options& options) {
  const launch_plan plan = plan_for(run, options);
  const results_output file{run, options.output};
  const machine& m = run.open_machine(peer_verification::never);
  file.require_own();
  // its devices unless they are all alike and nobody chose them
  const topology balanced = run.options().sim || m.layout().simulated
                                ? m.layout()
                                : value_or_raise(load_topology(std::string{machine_of_unlike_devices}));
  std::vector<launch_row> rows = run_launches(run, balanced, plan.overhead ? &m : nullptr, plan);

  json about;
  const bool cores = m[0].kind() == backend_kind::host || run.virtual_driver();
  about["note"] = plan.overhead && cores ? json(fmt::format("{}: the time of this computer's cores, not a GPU figure",
                                                            run.virtual_driver() ? "a virtual driver" : "host devices"))
                                         : json(nullptr);
  json speeds = json::array();
  for (const topology_device& d : balanced.devices) speeds.push_back(d.speed);
  about["balanced"] = {{"machine", balanced.name}, {"speeds", speeds}};
  json doc = bench_document(run, "weft.bench.launch/1", all_measured(rows), rows_json(rows), about);
  run.emit(doc);
  run.print(text_of(run, balanced, plan, rows));

  if (!options.output.empty()) {
    std::vector<launch_row> measured;
    std::ranges::copy_if(rows, std::back_inserter(measured), [](const launch_row& r) { return !r.simulated; });
    doc["results"] = named_results(run, rows_json(measured));
    file.write(doc.dump(2, ' ', false, json::error_handler_t::replace) + "\n",
               fmt::format(": the {} measured rows; simulated ones are no results", measured.size()));
  }
  return verdict_of_bench(rows);
}

}  // namespace weft::tool
