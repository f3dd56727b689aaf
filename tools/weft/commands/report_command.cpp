// SPDX-License-Identifier: Apache-2.0
#include "bench/collective/collective_bench.hpp"
#include "bench/collective/collective_words.hpp"
#include "bench/copy/copy_matrix.hpp"
#include "bench/copy/copy_patterns.hpp"
#include "command_line/commands.hpp"
#include "command_line/json_parts.hpp"
#include "doctor/report.hpp"
#include "doctor/work.hpp"
#include "pictures/html_page.hpp"
#include "pictures/topo_picture.hpp"
#include "weft/core/version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace weft::tool {

namespace {

using table_rows = std::vector<std::vector<std::string>>;

std::string rate_or_dash(const std::optional<double>& rate) { return rate ? rate_text(*rate) : "-"; }

std::string data_word(const std::optional<bool>& verified) { return !verified ? "-" : *verified ? "ok" : "BAD"; }

/// What is known of the host; empty where it says nothing.
std::string known(const json& host, const std::string& what) { return string_in(host, what).value_or(""); }

/// Why copies have no figure, each reason once: a picture has no room for it.
void add_reasons(html_page& page, const std::vector<copy_row>& rows) {
  std::set<std::string> told;
  for (const copy_row& row : rows) {
    const bool is_missing = row.state != row_state::done && row.state != row_state::not_offered;
    if (is_missing && told.insert(row.why).second) page.paragraph(fmt::format("{}: {}", row.name, row.why));
  }
}

void add_devices(html_page& page, const machine& m) {
  page.heading("Devices");
  table_rows rows;
  for (const device& d : m.devices()) {
    rows.push_back({to_string(d.id()), d.name(), std::string{to_string(d.kind())}, to_string(d.total_memory()),
                    std::to_string(d.compute_units()), d.pci_address().empty() ? "-" : d.pci_address(),
                    d.numa_node() ? std::to_string(*d.numa_node()) : "-", d.driver().empty() ? "-" : d.driver()});
  }
  page.table({"device", "name", "backend", "memory", "units", "PCI address", "NUMA", "driver"}, rows);
  page.picture(topology_svg(m.layout()));
}

exit_code add_copies(html_page& page, session& run, const machine& m, const report_options& options) {
  copy_plan plan;
  plan.sizes = {std::uint64_t{options.quick ? 1U : 64U} << 20};
  for (const device& a : m.devices()) {
    for (const device& b : m.devices()) plan.pairs.emplace_back(a.id(), b.id());
  }
  plan.by_kernel = false;
  plan.samples = options.quick ? 3 : 9;
  plan.budget = options.budget / 3;
  const auto rows = run_copies(run, m, plan);
  const auto patterns = run_patterns(run, m, plan.sizes.front(), 3, options.budget / 3);
  page.heading(fmt::format("Copies of {}", size_name(plan.sizes.front())));
  constexpr std::size_t most = 64;  // devices that a picture can show
  if (m.devices().size() <= most) page.picture(copy_matrix_svg(run, rows, plan.sizes.front(), m.devices().size()));
  add_reasons(page, rows);
  table_rows cells;
  for (const pattern_row& row : patterns) {
    cells.push_back({row.name, std::to_string(row.copies), median_text(row.seconds),
                     rate_or_dash(row.bytes_per_second()), data_word(row.verified), row.why});
  }
  if (!cells.empty()) page.table({"at the same time", "copies", "time", "rate of all", "data", "remark"}, cells);
  const exit_code of_rows = verdict_of(rows);
  return of_rows == exit_code::ok ? verdict_of(patterns) : of_rows;
}

exit_code add_collectives(html_page& page, session& run, const machine& m, const report_options& options) {
  collective_plan plan;
  plan.collectives = {collective::all_reduce, collective::all_gather, collective::reduce_scatter};
  plan.algorithms = {collective_algorithm::automatic};
  plan.sizes = {4096, std::uint64_t{1} << 20};
  if (!options.quick) plan.sizes.push_back(std::uint64_t{64} << 20);
  const std::vector<device_id> devices = devices_of_ranks(m.layout(), {}, {});
  plan.ranks = static_cast<int>(devices.size());
  plan.samples = options.quick ? 3 : 9;
  plan.budget = options.budget / 3;
  const auto rows = run_collectives(run, m, devices, plan);
  page.heading(plan.ranks == m.device_count() ? "Collectives over all devices"
                                              : fmt::format("Collectives over {} devices", plan.ranks));
  table_rows cells;
  for (const collective_row& row : rows) {
    cells.push_back({std::string{to_string(row.task.shape.what)}, size_name(row.size),
                     std::string{to_string(row.algorithm)}, median_text(row.seconds),
                     rate_or_dash(row.algorithm_bandwidth()), rate_or_dash(row.bus_bandwidth()),
                     data_word(row.verified), row.why});
  }
  page.table({"collective", "size", "algorithm", "time", "algbw", "busbw", "data", "remark"}, cells);
  return verdict_of(rows);
}

}  // namespace

exit_code run_report(session& run, const report_options& options) {
  require_place(options.output);
  const machine& m = run.open_machine(peer_verification::never);
  const system_record record{gather_with_work(run, m), "this computer"};
  const machine_facts facts{record};
  const diagnosis found = diagnose(facts);

  html_page page{"weft report: " + run.machine_title()};
  const json about = run.document("weft.report/1");
  const json& host = about.at("host");
  page.paragraph(fmt::format("{}, weft {} (commit {}), {} {}, {}", about.at("time_utc").get<std::string>(),
                             library_version(), library_commit(), known(host, "system"), known(host, "kernel"),
                             known(host, "cpu")));
  if (const auto note = run.figures_note()) page.paragraph(*note);
  if (run.virtual_time()) page.paragraph("All times are simulated: a model of the topology's links, no measurement.");
  add_devices(page, m);
  page.heading("What weft doctor found");
  add_doctor(page, facts, found);
  exit_code worst = found.count(verdict::failed) > 0 ? exit_code::falls_short : exit_code::ok;
  for (const auto& add : {add_copies, add_collectives}) {
    const exit_code code = add(page, run, m, options);
    if (code != exit_code::ok && worst == exit_code::ok) worst = code;
  }
  write_file(options.output, page.finish());
  json document = run.document("weft.report/1");  // with the warnings of what was measured since
  document["output"] = options.output;
  add_diagnosis(document, facts, found, {});
  run.emit(document);
  run.print(fmt::format("weft report: {}\nwrote {}\n", headline(facts, found), options.output));
  return worst;
}

}  // namespace weft::tool
