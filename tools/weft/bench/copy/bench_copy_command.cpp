// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_pairs.hpp"
#include "command_line/commands.hpp"
#include "copy_bench.hpp"
#include "copy_matrix.hpp"
#include "copy_patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace weft::tool {

namespace {

copy_plan plan_for(const machine& m, const copy_bench_options& options) {
  const int count = m.device_count();
  copy_plan plan;
  plan.sizes = options.sizes;
  if (plan.sizes.empty()) {
    plan.sizes = {std::uint64_t{1} << 20, count > 4 ? std::uint64_t{8} << 20 : std::uint64_t{64} << 20};
  }
  for (const auto& [from, to] : options.pairs)
    plan.pairs.push_back({require_device(m.layout(), from), require_device(m.layout(), to)});
  if (plan.pairs.empty()) {
    for (int a = 0; a < count; ++a) {
      for (int b = 0; b < count; ++b) plan.pairs.emplace_back(device_id{a}, device_id{b});
    }
  }
  plan.direct = !options.no_p2p;
  plan.by_engine = options.by_engine;
  plan.by_kernel = options.by_kernel;
  plan.samples = options.samples;
  plan.min_time = options.min_time;
  plan.budget = options.budget;
  if (options.latency) {
    if (options.sizes.empty()) plan.sizes = {8, 64, 512, 4096, std::uint64_t{64} << 10};
    plan.by_kernel = plan.by_kernel.value_or(false);
  }
  return plan;
}

std::vector<std::string> cells_of(const copy_row* row) {
  if (row == nullptr || !row->seconds) return {"-", "-", "-", "-"};
  const auto rate = row->bytes_per_second();
  const auto share = row->share();
  return {median_text(row->seconds), spread_text(row->seconds), rate ? rate_text(*rate) : "-",
          share ? *share < 0.01 ? std::string{"<1%"} : fmt::format("{:.0f}%", 100 * *share) : "-"};
}

using copy_key = std::tuple<std::uint64_t, device_id, device_id>;

/// What a command of the driver and a kernel make of the same copy, side by side; empty without a kernel.
std::string makers_text(const session& run, const std::vector<copy_row>& rows) {
  const std::string mark = run.simulated() ? " (simulated)" : "";
  text_table table{{"pair" + mark, "size", "by the engine", "rate", "by a kernel", "p5..p95", "rate", "of the engine",
                    "kernel on", "data"},
                   {false, true, true, true, true, true, true, true, false, false}};
  std::map<copy_key, const copy_row*> engine;
  for (const copy_row& row : rows) {
    if (row.by == copy_maker::engine && row.path != copy_path::staged) engine[{row.size, row.src, row.dst}] = &row;
  }
  bool any = false;
  for (const copy_row& row : rows) {
    if (row.by != copy_maker::kernel) continue;
    any = true;
    const auto found = engine.find({row.size, row.src, row.dst});
    const copy_row* const beside = found == engine.end() ? nullptr : found->second;
    const auto ours = cells_of(&row);
    const auto theirs = cells_of(beside);
    const auto rate = row.bytes_per_second();
    const auto other = beside != nullptr ? beside->bytes_per_second() : std::nullopt;
    const std::string data = verified_text<copy_row>({&row});
    std::vector<std::string> line{fmt::format("{}-{}", to_string(row.src), to_string(row.dst)),
                                  size_name(row.size),
                                  theirs[0],
                                  theirs[2],
                                  ours[0],
                                  ours[1],
                                  ours[2],
                                  rate && other ? fmt::format("{:.2f}", *rate / *other) : "-",
                                  row.ran_on ? to_string(*row.ran_on) : "-",
                                  data};
    table.row(std::move(line), style_of_verified(data));
  }
  return any ? table.render(run) : std::string{};
}

/// Rows of one pair and size side by side: direct (or within one device), and staged.
std::string table_text(const session& run, const std::vector<copy_row>& rows) {
  const std::string mark = run.simulated() ? " (simulated)" : "";
  text_table table{
      {"pair" + mark, "size", "direct", "p5..p95", "rate", "of limit", "staged", "p5..p95", "rate", "of limit", "data"},
      {false, true, true, true, true, true, true, true, true, true, false}};
  std::map<copy_key, std::pair<const copy_row*, const copy_row*>> by_pair;
  for (const copy_row& row : rows) {
    if (row.by == copy_maker::kernel) continue;
    auto& slot = by_pair[{row.size, row.src, row.dst}];
    (row.path == copy_path::staged ? slot.second : slot.first) = &row;
  }
  for (const auto& [key, pair] : by_pair) {
    const auto& [size, src, dst] = key;
    std::vector<std::string> line{fmt::format("{}-{}", to_string(src), to_string(dst)), size_name(size)};
    for (const copy_row* row : {pair.first, pair.second}) {
      for (std::string& cell : cells_of(row)) line.push_back(std::move(cell));
    }
    const std::string data = verified_text<copy_row>({pair.first, pair.second});
    line.push_back(data);
    table.row(std::move(line), style_of_verified(data));
  }
  return by_pair.empty() ? std::string{} : table.render(run);
}

std::vector<std::pair<std::string, std::string>> reasons_of(const std::vector<copy_row>& rows) {
  std::vector<std::pair<std::string, std::string>> reasons;
  reasons.reserve(rows.size());
  for (const copy_row& row : rows) {
    const bool passed_limit = row.why.empty() && row.limit.from == "host_copy";
    reasons.emplace_back(row.name, passed_limit ? row.limit.why : row.why);
  }
  return reasons;
}

}  // namespace

exit_code run_bench_copy(session& run, const copy_bench_options& options) {
  if (options.world) {
    const std::vector<std::uint64_t> usual = options.latency ? std::vector<std::uint64_t>{8, 512, 4096, 65536}
                                                             : std::vector<std::uint64_t>{65536, 1048576, 16777216};
    return run_rank_pairs(run, {rank_work::copies, options.sizes.empty() ? usual : options.sizes, options.samples,
                                row_budget{options.budget}, options.output});
  }
  const results_output file{run, options.output};
  const machine& m = run.open_machine(peer_verification::never);
  file.require_own();
  const copy_plan plan = plan_for(m, options);
  const std::vector<copy_row> rows = run_copies(run, m, plan);
  std::vector<pattern_row> patterns;
  const std::uint64_t largest = *std::ranges::max_element(plan.sizes);
  // of chosen pairs, or without peers, nothing else was asked for
  const bool has_patterns = options.pairs.empty() && options.by_engine && !options.no_p2p && !options.latency;
  if (has_patterns) patterns = run_patterns(run, m, largest, std::min(options.samples, 5), options.budget / 2);

  const bool host = m[0].kind() == backend_kind::host;
  json doc = bench_document(run, "weft.bench.copy/1", all_measured(rows) && all_measured(patterns), rows_json(rows));
  doc["patterns"] = named_results(run, patterns_json(patterns));
  run.emit(doc);

  std::string head = fmt::format("copies on {}\n", run.machine_title());
  if (run.virtual_time()) {
    head += "All times are simulated: a model of the topology's links, no measurement.\n";
  } else if (host && m.simulated()) {
    head +=
        "The machine is simulated; times are those of this host's memory, host devices: CPU memory, not a GPU "
        "figure.\n";
  }
  head += fmt::format(
      "Median of the samples, every pair verified; 1 GB = 1e9 bytes. The limit is {}.\n\n",
      host && !run.virtual_time() ? "the best plain copy in this host's memory" : "the rate of the slowest link");
  std::string text = head;
  const auto shown = static_cast<std::size_t>(m.device_count());
  const auto quantity = options.latency ? copy_quantity::latency : copy_quantity::rate;
  for (const std::uint64_t size : plan.sizes) {
    const bool is_shown = options.by_engine && options.pairs.empty() && (options.latency || size == largest);
    if (is_shown) text += copy_matrix_text(run, m, rows, size, quantity, shown) + "\n";
  }
  for (const std::string& table : {patterns_text(run, patterns), table_text(run, rows), makers_text(run, rows)}) {
    if (!table.empty()) text += table + "\n";
  }
  if (text.ends_with("\n\n")) text.pop_back();
  run.print(text + reasons_text(run, reasons_of(rows)) + reasons_of_rows(run, patterns));

  if (options.output.ends_with(".svg")) {
    file.write(copy_matrix_svg(run, rows, largest, shown));
  } else {
    file.write(doc);
  }
  const exit_code of_patterns = verdict_of(patterns);
  const exit_code of_pairs = verdict_of_bench(rows);
  return of_pairs == exit_code::ok ? of_patterns : of_pairs;
}

}  // namespace weft::tool
