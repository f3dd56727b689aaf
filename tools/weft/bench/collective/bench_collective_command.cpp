// SPDX-License-Identifier: Apache-2.0
#include "collective_bench.hpp"
#include "collective_words.hpp"
#include "command_line/commands.hpp"
#include "commands/joined_world.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft::tool {

namespace {

constexpr int few_ranks = 4;  // up to here the default sizes are those of a large message

collective_plan plan_for(const collective_bench_options& options, int ranks) {
  collective_plan plan;
  plan.collectives = options.collectives;
  plan.algorithms = options.algorithms;
  plan.ranks = ranks;
  plan.processes = options.processes.value_or(0);
  plan.type = options.type;
  plan.operation = options.operation;
  plan.order = options.order;
  plan.in_place = options.in_place;
  plan.samples = options.samples.value_or(options.quick ? 3 : 15);
  plan.budget = options.budget;
  plan.sizes = options.sizes;
  if (plan.sizes.empty()) {
    for (std::uint64_t size = 4; size <= std::uint64_t{ranks > few_ranks ? 4U : 64U} << 20; size *= 16) {
      if (size >= size_of(plan.type)) plan.sizes.push_back(size);
    }
  }
  return plan;
}

std::string table_text(const session& run, const collective_plan& plan, const std::vector<collective_row>& rows) {
  const std::string mark = run.virtual_time() ? " (simulated)" : "";
  std::string text;
  for (const collective what : plan.collectives) {
    text += "\n";
    if (plan.collectives.size() > 1) text += run.paint(style::heading, to_string(what)) + "\n";
    text_table table{{"size", "count", "type", "algorithm", "time" + mark, "p5..p95", "algbw", "busbw", "wrong"},
                     {true, true, false, false, true, true, true, true, true}};
    for (const collective_row& row : rows) {
      if (row.task.shape.what != what) continue;
      const auto rate = [](const std::optional<double>& value) { return value ? rate_text(*value) : std::string{"-"}; };
      std::vector<std::string> line{size_name(row.size),
                                    std::to_string(row.count),
                                    std::string{to_string(row.task.type)},
                                    std::string{to_string(row.algorithm)},
                                    median_text(row.seconds),
                                    spread_text(row.seconds),
                                    rate(row.algorithm_bandwidth()),
                                    rate(row.bus_bandwidth()),
                                    row.wrong ? std::to_string(*row.wrong) : "-"};
      table.row(std::move(line), !row.wrong ? style::faint : *row.wrong == 0 ? style::good : style::bad);
    }
    text += table.render(run);
  }
  return text;
}

std::string callers_text(const collective_plan& plan, const std::optional<world>& everyone) {
  if (!everyone) return plan.processes > 0 ? "a process each, symmetric memory" : "one caller";
  return fmt::format("a process each on {} node{}, by {}, memory symmetric inside a node", everyone->nodes(),
                     everyone->nodes() == 1 ? "" : "s",
                     everyone->nodes() == 1 ? "shared memory" : std::string_view{everyone->engine()});
}

std::string collective_head_text(const session& run, const collective_plan& plan, const std::optional<world>& everyone,
                                 const std::vector<device_id>& devices, bool host) {
  std::vector<std::string> names;
  names.reserve(devices.size());
  for (const device_id id : devices) names.push_back(to_string(id));
  std::string head =
      fmt::format("{} on {}\n", plan.collectives.size() == 1 ? to_string(plan.collectives.front()) : "collectives",
                  run.machine_title());
  head += fmt::format("{} rank{}, {}: {}\n", plan.ranks, plan.ranks == 1 ? "" : "s", callers_text(plan, everyone),
                      fmt::join(names, " "));
  if (std::ranges::any_of(plan.collectives, combines)) {
    head += fmt::format("{}, order {}, {}\n", operation_of(plan.operation).name(), to_string(plan.order),
                        plan.in_place ? "in place" : "out of place");
  }
  if (run.virtual_time()) {
    head += "All times are simulated: a model of the topology's links, no measurement.\n";
  } else if (host) {
    head += "Times are those of this host's memory and cores, not a GPU figure.\n";
  }
  return head +
         "Median of the samples; algbw: bytes by time; busbw: as nccl-tests count it, what a link must carry. Every\n"
         "element of every rank is checked before the samples and after them; wrong: how many were not right.\n";
}

}  // namespace

exit_code run_bench_collective(session& run, const collective_bench_options& options) {
  const bool wants_virtual = run.options().clock == clock_kind::virtual_time;
  const results_output file{run, options.output, options.world};
  if ((options.processes || options.world) && wants_virtual) {
    throw failure{exit_code::usage,
                  "every process has a machine of its own, and a virtual clock is one machine's: drop --clock virtual, "
                  "--processes or --world"};
  }
  std::vector<device_id> devices;
  std::vector<collective_row> rows;
  collective_plan plan;
  std::optional<world> everyone;
  if (options.world) {
    everyone.emplace(joined_world(run));
    if (!options.devices.empty() && options.devices.size() != static_cast<std::size_t>(everyone->size())) {
      throw failure{exit_code::usage, fmt::format("--devices names {} ranks, and the world has {}",
                                                  options.devices.size(), everyone->size())};
    }
    require_place_at_first(*everyone, options.output);
    plan = plan_for(options, everyone->size());
    auto report = run_collective_world(run, *everyone, options.devices, plan);
    if (everyone->self() != rank{0}) return verdict_of_bench(report.rows);  // the first speaks for all
    rows = std::move(report.rows);
    devices = std::move(report.devices);
  } else if (options.processes) {
    plan = plan_for(options, *options.processes);
    auto report = run_collective_processes(run, options.devices, plan);  // forks before this process has a machine
    rows = std::move(report.rows);
    devices = std::move(report.devices);
  } else {
    const machine& mine = run.open_machine(peer_verification::never);
    file.require_own();
    devices = devices_of_ranks(mine.layout(), options.devices, options.ranks);
    plan = plan_for(options, static_cast<int>(devices.size()));
    rows = run_collectives(run, mine, devices, plan);
  }
  const machine& m = run.open_machine(peer_verification::never);
  file.require_own();  // of processes, which had their machines each, only now
  const bool host = m[devices.front()].kind() == backend_kind::host;

  json about;
  about["callers"] = plan.processes > 0 || everyone ? "a process for each rank" : "one for all ranks";
  about["nodes"] = everyone ? everyone->nodes() : 1;
  about["engine"] = everyone && !everyone->engine().empty() ? json(everyone->engine()) : json(nullptr);
  about["devices"] = json::array();
  for (const device_id id : devices) about["devices"].push_back(id.value());
  about["operation"] = operation_of(plan.operation).name();
  about["order"] = to_string(plan.order);
  about["in_place"] = plan.in_place;
  const json doc = bench_document(run, "weft.bench.collective/1", all_measured(rows), rows_json(rows), about);
  run.emit(doc);
  run.print(collective_head_text(run, plan, everyone, devices, host) + table_text(run, plan, rows) +
            reasons_of_rows(run, rows));
  file.write(doc);
  return verdict_of_bench(rows);
}

}  // namespace weft::tool
