// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_pairs.hpp"
#include "command_line/commands.hpp"
#include "queue_bench.hpp"
#include "queue_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace weft::tool {

namespace {

queue_plan plan_for(const machine& m, const queue_bench_options& options) {
  const int count = m.device_count();
  if (options.kernel_ends == true && std::ranges::find(options.sizes, kernel_message_size) == options.sizes.end()) {
    throw failure{
        exit_code::usage,
        fmt::format("messages between kernels are timed with {} bytes only: add {} to --sizes, or leave --ends out",
                    kernel_message_size, kernel_message_size)};
  }
  queue_plan plan;
  plan.sizes = options.sizes;
  plan.batches = options.batches;
  plan.host_ends = options.host_ends;
  plan.kernel_ends = options.kernel_ends;
  if (options.direct) plan.modes.push_back(transfer_mode::direct);
  if (options.host_staged) plan.modes.push_back(transfer_mode::host_staged);
  plan.samples = options.samples.value_or(options.quick ? 3 : 15);
  if (options.quick) plan.sample_time = std::chrono::microseconds{200};
  plan.budget = options.budget;
  for (const auto& [from, to] : options.pairs)
    plan.pairs.push_back({require_device(m.layout(), from), require_device(m.layout(), to)});
  if (!plan.pairs.empty()) return plan;
  for (const auto& id : {options.from, options.to}) {
    if (id) require_device(m.layout(), *id);
  }
  // a device with itself has to be asked for, unless there is no other
  const bool alone = count == 1 || (options.from && options.to);
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if ((options.from && from != *options.from) || (options.to && to != *options.to)) continue;
      if (from != to || alone) plan.pairs.emplace_back(device_id{from}, device_id{to});
    }
  }
  return plan;
}

/// A line per pair and size; for each mode the round trip with its spread, then the rate by each batch.
std::string table_text(const session& run, const queue_plan& plan, const std::vector<queue_row>& rows) {
  std::vector<std::string> header{run.simulated() ? "pair (simulated)" : "pair", "size"};
  for (const transfer_mode mode : plan.modes) {
    header.push_back(mode == transfer_mode::direct ? "direct: there and back" : "staged: there and back");
    header.emplace_back("p5..p95");
    for (const std::size_t batch : plan.batches) {
      header.push_back(batch == 1 ? std::string{"one by one"} : fmt::format("by {}", batch));
    }
  }
  header.emplace_back("data");
  std::vector<bool> right(header.size(), true);
  right.front() = right.back() = false;
  text_table table{std::move(header), std::move(right)};

  std::map<std::tuple<std::uint64_t, device_id, device_id>, std::vector<const queue_row*>> by_pair;
  for (const queue_row& row : rows) {
    if (!has_kernels(row.kind)) by_pair[{row.size, row.src, row.dst}].push_back(&row);
  }
  if (by_pair.empty()) return {};
  for (const auto& [key, line_rows] : by_pair) {
    const auto& [size, src, dst] = key;
    std::vector<std::string> line{fmt::format("{}-{}", to_string(src), to_string(dst)), size_name(size)};
    for (const queue_row* row : line_rows) {  // in the order of the header: that of the plan
      if (row->kind == queue_kind::throughput) {
        const auto rate = row->messages_per_second();
        line.push_back(rate ? message_rate_text(*rate) : "-");
        continue;
      }
      line.push_back(median_text(row->seconds));
      line.push_back(spread_text(row->seconds));
    }
    line.push_back(verified_text(line_rows));
    table.row(line, style_of_verified(line.back()));
  }
  return table.render(run);
}

/// A line per pair and mode: round trips to a kernel, and between kernels; empty without any.
std::string kernels_text(const session& run, const std::vector<queue_row>& rows) {
  text_table table{{run.simulated() ? "pair (simulated)" : "pair", "size", "mode", "to a kernel and back", "p5..p95",
                    "between kernels", "p5..p95", "data"},
                   {false, true, false, true, true, true, true, false}};
  std::map<std::tuple<device_id, device_id, transfer_mode>, std::vector<const queue_row*>> by_pair;
  for (const queue_row& row : rows) {
    if (has_kernels(row.kind)) by_pair[{row.src, row.dst, row.mode}].push_back(&row);
  }
  bool is_brought = false;
  for (const auto& [key, line_rows] : by_pair) {
    const auto& [src, dst, mode] = key;
    const auto brought = line_rows.front()->delivery.value_or(ring_delivery::in_place);
    is_brought = is_brought || brought != ring_delivery::in_place;
    std::vector<std::string> line{
        fmt::format("{}-{}", to_string(src), to_string(dst)), size_name(line_rows.front()->size),
        brought == ring_delivery::in_place ? std::string{to_string(mode)}
                                           : fmt::format("{} by {}", to_string(mode), to_string(brought))};
    for (const queue_row* row : line_rows) {  // to a kernel first: the order of the plan
      line.push_back(median_text(row->seconds));
      line.push_back(spread_text(row->seconds));
    }
    line.push_back(verified_text(line_rows));
    table.row(line, style_of_verified(line.back()));
  }
  if (by_pair.empty()) return {};
  return table.render(run) + (is_brought ? "by stores, by copies: messages go to the kernel's GPU so, and its answers "
                                           "through host memory\n"
                                         : "");
}

std::string queue_head_text(const session& run, const machine& m, bool host) {
  std::string head = fmt::format("queues on {}\n", run.machine_title());
  if (run.virtual_time()) {
    return head +
           "The clock is simulated and has no model of a queue: messages are checked, not timed. For times: --clock "
           "wall.\n\n";
  }
  if (host) {
    head += m.simulated()
                ? "The machine is simulated; times are those of this host's memory and cores, not a GPU figure.\n"
                : "Times are those of this host's memory and cores, not a GPU figure.\n";
  }
  const auto cores = cores_of_two_threads();
  head += cores ? fmt::format("One thread at each end, on cores {} and {}. ", cores->first, cores->second)
                : "One thread at each end, not bound to cores: this process may use one only. ";
  return head + "Median of the samples, every message checked; M/s: million messages a second.\n\n";
}

}  // namespace

exit_code run_bench_queue(session& run, const queue_bench_options& options) {
  if (options.world) {
    return run_rank_pairs(run, {rank_work::queues, options.sizes, options.samples.value_or(options.quick ? 3 : 15),
                                row_budget{options.budget}, options.output});
  }
  const results_output file{run, options.output};
  const machine& m = run.open_machine(peer_verification::never);
  file.require_own();
  const queue_plan plan = plan_for(m, options);
  const std::vector<queue_row> rows = run_queues(run, m, plan);

  const auto cores = cores_of_two_threads();
  const json doc = bench_document(run, "weft.bench.queue/1", all_measured(rows), rows_json(rows),
                                  {{"cores", cores ? json::array({cores->first, cores->second}) : json(nullptr)}});
  run.emit(doc);

  const std::string hosts = table_text(run, plan, rows);
  const std::string kernels = kernels_text(run, rows);
  run.print(queue_head_text(run, m, m[0].kind() == backend_kind::host) + hosts +
            (hosts.empty() || kernels.empty() ? "" : "\n") + kernels + reasons_of_rows(run, rows));
  file.write(doc);
  return verdict_of_bench(rows);
}

}  // namespace weft::tool
