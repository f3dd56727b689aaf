// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "ipc_bench.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft::tool {

namespace {

ipc_plan plan_for(const machine& m, const ipc_bench_options& options) {
  ipc_plan plan;
  plan.sizes = options.sizes;
  if (plan.sizes.empty()) plan.sizes = {std::uint64_t{1} << 20, std::uint64_t{options.quick ? 8U : 64U} << 20};
  if (options.quick) {
    plan.open_size = std::uint64_t{64} << 20;
    plan.touch_size = std::uint64_t{8} << 20;
  }
  plan.samples = options.samples.value_or(options.quick ? 3 : 31);
  plan.budget = options.budget;
  for (const auto& [from, to] : options.pairs)
    plan.pairs.push_back({require_device(m.layout(), from), require_device(m.layout(), to)});
  if (plan.pairs.empty()) plan.pairs.emplace_back(device_id{0}, device_id{m.device_count() > 1 ? 1 : 0});
  return plan;
}

/// A line for each kind, pair and size: between processes, and in one.
std::string table_text(const session& run, const std::vector<ipc_row>& rows) {
  text_table table{{run.simulated() ? "what (simulated)" : "what", "pair", "size", "between processes", "p5..p95",
                    "rate", "of limit", "one process", "rate", "between / one", "data"},
                   {false, false, true, true, true, true, true, true, true, true, false}};
  const auto percent = [](const std::optional<double>& share) {
    return share ? fmt::format("{:.0f}%", 100 * *share) : std::string{"-"};
  };
  const auto rate = [](const ipc_row& row) {
    const auto value = row.bytes_per_second();
    return value ? rate_text(*value) : std::string{"-"};
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ipc_row& between = rows[i];
    if (between.path != ipc_path::between_processes) continue;
    const bool paired = i + 1 < rows.size() && rows[i + 1].path == ipc_path::one_process;
    const ipc_row* one = paired ? &rows[i + 1] : nullptr;
    std::vector<std::string> line{std::string{to_string(between.kind)},
                                  fmt::format("{}-{}", to_string(between.src), to_string(between.dst)),
                                  size_name(between.size),
                                  median_text(between.seconds),
                                  spread_text(between.seconds),
                                  rate(between),
                                  percent(between.share()),
                                  one != nullptr ? median_text(one->seconds) : "-",
                                  one != nullptr ? rate(*one) : "-",
                                  percent(between.share_of_one_process),
                                  verified_text<ipc_row>({&between, one})};
    table.row(line, style_of_verified(line.back()));
  }
  return table.render(run);
}

std::string ipc_head_text(const session& run, const machine& m, bool host) {
  std::string head = fmt::format("memory of another process on {}\n", run.machine_title());
  if (run.virtual_time()) {
    head += "All times are simulated: a model of the topology's links, no measurement.\n";
  } else if (host && m.simulated()) {
    head += "The machine is simulated; times are those of this host's memory, not a GPU figure.\n";
  }
  return head +
         "open: until a shared buffer can be used. first_touch: a kernel reads a byte of each page. read, write: "
         "copies\n"
         "from and to the other process. Median of the samples, all verified; 1 GB = 1e9 bytes." +
         (host ? " The limit is the best\nplain copy in this host's memory.\n\n" : std::string{"\n\n"});
}

}  // namespace

exit_code run_bench_ipc(session& run, const ipc_bench_options& options) {
  const results_output file{run, options.output};
  memory_holder other{run};  // forked before this process has a machine
  const machine& m = run.open_machine(peer_verification::never);
  file.require_own();
  const ipc_plan plan = plan_for(m, options);
  const std::vector<ipc_row> rows = run_ipc(run, m, plan, other);

  const json doc = bench_document(run, "weft.bench.ipc/1", all_measured(rows), rows_json(rows));
  run.emit(doc);
  run.print(ipc_head_text(run, m, m[0].kind() == backend_kind::host) + table_text(run, rows) +
            reasons_of_rows(run, rows));
  file.write(doc);
  return verdict_of_bench(rows);
}

}  // namespace weft::tool
