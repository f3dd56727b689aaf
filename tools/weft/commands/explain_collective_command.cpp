// SPDX-License-Identifier: Apache-2.0
#include "bench/collective/collective_words.hpp"
#include "command_line/commands.hpp"
#include "commands/machine/measured_rates.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft::tool {

namespace {

std::uint64_t busiest_link(const collective_cost& cost) {
  return cost.bytes_on_link.empty() ? 0 : *std::ranges::max_element(cost.bytes_on_link);
}

json candidate_json(const collective_candidate& one) {
  const auto known = [&](double value) { return one.possible && value > 0 ? json(value) : json(nullptr); };
  json row;
  row["algorithm"] = to_string(one.algorithm);
  row["possible"] = one.possible;
  row["predicted_seconds"] = known(one.cost.seconds);
  row["algbw_bytes_per_second"] = known(one.algorithm_bandwidth);
  row["busbw_bytes_per_second"] = known(one.bus_bandwidth);
  row["rounds"] = one.possible ? json(one.cost.rounds) : json(nullptr);
  row["busiest_link_bytes"] = one.possible ? json(busiest_link(one.cost)) : json(nullptr);
  row["scratch_bytes"] = one.possible ? json(one.cost.scratch_bytes) : json(nullptr);
  row["why"] = one.why;
  return row;
}

std::string table_text(const session& run, const collective_choice& choice) {
  // the machine that predicts is the one that the title names, and what it predicts is no measurement of anything
  text_table table{{"", "algorithm", "predicted", "algbw", "busbw", "rounds", "busiest link", "scratch", "why"},
                   {false, false, true, true, true, true, true, true, false}};
  for (const collective_candidate& one : choice.candidates) {
    const bool is_chosen = &one == &choice.candidates.front();
    const auto rate = [](double value) { return value > 0 ? rate_text(value) : std::string{"-"}; };
    std::vector<std::string> cells{is_chosen ? ">" : "",
                                   std::string{to_string(one.algorithm)},
                                   one.cost.seconds > 0 ? time_text(one.cost.seconds) : "-",
                                   rate(one.algorithm_bandwidth),
                                   rate(one.bus_bandwidth),
                                   one.possible ? std::to_string(one.cost.rounds) : "-",
                                   one.possible ? to_string(bytes{busiest_link(one.cost)}) : "-",
                                   one.possible ? to_string(bytes{one.cost.scratch_bytes}) : "-",
                                   one.why};
    const style look = is_chosen ? style::good : one.possible ? style::plain : style::faint;
    table.row(std::move(cells), std::vector<style>(9, look));
  }
  return table.render(run);
}

std::string rates_words(const measured_rates& rates, const collective_choice& choice) {
  if (!rates.source.empty()) return fmt::format(" (those that no topology tells were {})", rates.source);
  const collective_cost& chosen = choice.candidates.front().cost;
  return chosen.seconds > 0 || busiest_link(chosen) == 0 ? " of the topology" : ", which --measure finds";
}

}  // namespace

exit_code run_explain_collective(session& run, const explain_collective_options& options) {
  const machine& m = run.open_machine();
  topology layout = m.layout();
  const measured_rates rates = options.measure ? measure_rates(m) : kept_rates(m);
  rates.apply(layout);
  const std::vector<device_id> devices = devices_of_ranks(layout, options.devices, options.ranks);
  const auto ranks = static_cast<int>(devices.size());
  const std::int64_t count = options.size == 0 ? 0 : elements_of(options.size, options.type);
  const auto chosen = choose_collective(shape_of(options.what, ranks, count), size_of(options.type), layout, devices,
                                        options.order, options.algorithm);
  if (!chosen) {
    const bool is_absent = chosen.error().code == errc::unsupported;
    throw failure{is_absent ? exit_code::absent : exit_code::usage, chosen.error().what};
  }

  json doc = run.document("weft.explain.collective/1");
  doc["collective"] = to_string(options.what);
  doc["bytes"] = static_cast<std::uint64_t>(count) * size_of(options.type);
  doc["count"] = count;
  doc["type"] = to_string(options.type);
  doc["order"] = to_string(options.order);
  doc["ranks"] = ranks;
  doc["rates"] = rates.source.empty() ? json(nullptr) : json(rates.source);
  doc["devices"] = json::array();
  std::vector<std::string> names;
  names.reserve(devices.size());
  for (const device_id id : devices) {
    doc["devices"].push_back(id.value());
    names.push_back(to_string(id));
  }
  doc["asked"] = to_string(options.algorithm);
  doc["algorithm"] = to_string(chosen->algorithm);
  doc["candidates"] = json::array();
  for (const collective_candidate& one : chosen->candidates) doc["candidates"].push_back(candidate_json(one));
  run.emit(doc);

  run.print(
      fmt::format("{} of {} ({} {}) over {} rank{} on {}\n"
                  "ranks in order: {}; order of combining: {}\n\n{}\n"
                  "Predicted by the latency and rate of each link{}, with {} for the start of a kernel; "
                  "not measured.\n"
                  "algbw: bytes by time; busbw: what a link must carry for it, as nccl-tests count it. Busiest link: "
                  "bytes that the\n"
                  "link with most to carry carries.\n",
                  to_string(options.what), to_string(bytes{doc["bytes"].get<std::uint64_t>()}), count,
                  to_string(options.type), ranks, ranks == 1 ? "" : "s", run.machine_title(), fmt::join(names, " "),
                  to_string(options.order), table_text(run, *chosen), rates_words(rates, *chosen),
                  time_text(std::chrono::duration<double>(usual_launch_latency).count())));
  return exit_code::ok;
}

}  // namespace weft::tool
