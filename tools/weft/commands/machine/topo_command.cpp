// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "command_line/interruption.hpp"
#include "core/text/nearest.hpp"
#include "measured_rates.hpp"
#include "pictures/topo_picture.hpp"
#include "weft/distributed/world.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
namespace weft::tool {

namespace {

/// What the checks of --verify found, by ordered pair; empty when they were not asked for.
using pair_checks = std::map<std::pair<int, int>, peer_check>;

pair_checks run_checks(session& run, const machine& m) {
  pair_checks checks;
  for (const peer_check& check : verify_peers(m, false, interruption())) {
    checks[{check.from.value(), check.to.value()}] = check;
    if (!check.offered || check.arrived) continue;
    run.warn(fmt::format("{} to {}: peer access is offered, but {}{}", to_string(check.from), to_string(check.to),
                         check.outcome == peer_outcome::not_tried ? "could not be tried: "
                         : check.outcome == peer_outcome::failed  ? "fails: "
                                                                  : "data does not arrive: ",
                         check.why));
  }
  return checks;
}

exit_code result_of(const pair_checks& checks) {
  const bool is_well = std::ranges::all_of(checks, [](const auto& c) { return !c.second.offered || c.second.arrived; });
  return is_well ? exit_code::ok : exit_code::falls_short;
}

/// What a measurement between two devices was of: their link, or this host's memory, where that plays their memories.
std::string_view measured_on(const machine& m, device_id a, device_id b) {
  return is_played(m[a]) && is_played(m[b]) && m.clock() == clock_kind::wall ? "host_memory" : "link";
}

void for_each_pair(const machine& m, const pair_checks& checks, const session::json_sink& to) {
  const std::vector<std::string> classes = link_classes(m.layout());
  const int count = m.device_count();
  for (int a = 0; a < count && !interrupted(); ++a) {
    for (int b = 0; b < count; ++b) {
      if (a == b) continue;
      const auto known = capability_between(m, device_id{a}, device_id{b});
      if (!known) continue;
      json one;
      one["from"] = a;
      one["to"] = b;
      one["can_access"] = known->supported;
      one["can_copy"] = known->can_copy;
      one["link"] = to_string(known->link);
      one["class"] = classes[m.layout().pair(device_id{a}, device_id{b})];
      one["rank"] = or_null(known->performance_rank);
      one["native_rank"] = or_null(known->native_rank);
      one["hops"] = known->hops > 0 ? json(known->hops) : json(nullptr);
      one["atomics"] = known->atomics;
      one["native_atomics"] = known->native_atomics;
      one["bandwidth_bytes_per_second"] = or_null(known->bytes_per_second);
      one["latency_seconds"] =
          known->latency ? json(std::chrono::duration<double>(*known->latency).count()) : json(nullptr);
      one["measured"] = known->measured;
      one["measured_on"] = known->measured ? json(measured_on(m, device_id{a}, device_id{b})) : json(nullptr);
      one["enabled"] = known->enabled;
      one["trusted"] = known->trusted;
      const auto check = checks.find({a, b});
      const peer_outcome outcome = check == checks.end() ? peer_outcome::not_tried : check->second.outcome;
      one["verified"] = outcome == peer_outcome::not_tried ? json(nullptr) : json(check->second.arrived);
      one["outcome"] = check == checks.end() ? json(nullptr) : json(to_string(outcome));
      std::string why = known->why;
      if (check != checks.end() && !check->second.why.empty() && check->second.why != why) {
        why += (why.empty() ? "" : "; ") + check->second.why;
      }
      const bool absent = !known->performance_rank || known->hops == 0 || !known->bytes_per_second || !known->latency;
      if (why.empty() && absent) why = "not known for this machine until measured: weft topo --measure";
      one["why"] = why.empty() ? json(nullptr) : json(why);
      to(one);
    }
  }
}

/// Cells of a matrix with its header; the first column names the row.
struct matrix {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

std::string cpus_of(const std::optional<int>& numa_node) {
  if (!numa_node) return "N/A";
  std::ifstream in{fmt::format("/sys/devices/system/node/node{}/cpulist", *numa_node)};
  std::string list;
  return std::getline(in, list) && !list.empty() ? list : "N/A";
}

matrix class_matrix(const machine& m) {
  matrix made;
  const auto devices = m.devices();
  made.header.emplace_back();
  for (const device& d : devices) made.header.push_back(fmt::format("GPU{}", d.id().value()));
  made.header.insert(made.header.end(), {"CPU Affinity", "NUMA Affinity"});
  const std::vector<std::string> classes = link_classes(m.layout());
  for (const device& from : devices) {
    std::vector<std::string> row{fmt::format("GPU{}", from.id().value())};
    for (const device& to : devices) {
      row.push_back(from == to ? " X " : classes[m.layout().pair(from.id(), to.id())]);
    }
    // The processors of a simulated machine are not those of this host.
    row.push_back(from.simulated() ? "N/A" : cpus_of(from.numa_node()));
    row.push_back(from.numa_node() ? std::to_string(*from.numa_node()) : "N/A");
    made.rows.push_back(std::move(row));
  }
  return made;
}

matrix access_matrix(const machine& m, const pair_checks& checks) {
  matrix made;
  const auto devices = m.devices();
  made.header.emplace_back();
  for (const device& d : devices) made.header.push_back(fmt::format("GPU{}", d.id().value()));
  if (!checks.empty()) made.header.emplace_back("Verified");
  for (const device& from : devices) {
    std::vector<std::string> row{fmt::format("GPU{}", from.id().value())};
    int offered = 0;
    int arrived = 0;
    for (const device& to : devices) {
      if (from == to) {
        row.emplace_back(" X ");
        continue;
      }
      const auto check = checks.find({from.id().value(), to.id().value()});
      const bool can = can_access_peer(m, from.id(), to.id());
      const auto known = capability_between(m, from.id(), to.id());
      const bool is_tried = check != checks.end() && check->second.offered;
      if (is_tried) {
        ++offered;
        if (check->second.arrived) ++arrived;
      }
      peer_outcome outcome = is_tried ? check->second.outcome : peer_outcome::arrived;
      if (!known->trusted && outcome != peer_outcome::failed) outcome = peer_outcome::wrong_data;
      row.emplace_back(outcome == peer_outcome::wrong_data  ? "BAD"
                       : outcome == peer_outcome::failed    ? "FAIL"
                       : outcome == peer_outcome::not_tried ? "?"
                       : can                                ? "OK"
                       : known->can_copy                    ? "CP"
                                                            : "NS");
    }
    if (!checks.empty()) row.push_back(fmt::format("{}/{}", arrived, offered));
    made.rows.push_back(std::move(row));
  }
  return made;
}

std::string tabbed(const matrix& m) {
  std::string text = fmt::format("{}\n", fmt::join(m.header, "\t"));
  for (const auto& row : m.rows) text += fmt::format("{}\n", fmt::join(row, "\t"));
  return text;
}

std::string matrix_text(const session& run, const matrix& m) {
  text_table table{m.header};
  for (const auto& row : m.rows) {
    std::vector<style> styles(row.size(), style::plain);
    for (std::size_t c = 1; c < row.size(); ++c) {
      if (row[c] == "BAD" || row[c] == "FAIL") styles[c] = style::bad;
      if (row[c] == "OK") styles[c] = style::good;
      if (row[c] == "?") styles[c] = style::caution;
      if (row[c] == "NS") styles[c] = style::faint;
    }
    table.row(row, std::move(styles));
  }
  return table.render(run);
}

std::string class_legend() {
  return "\nLegend:\n\n"
         "  X    = Self\n"
         "  MEM  = Within the memory of one GPU\n"
         "  SYS  = Through PCIe and the link between sockets (NUMA nodes)\n"
         "  NODE = Through PCIe and the link between host bridges of one NUMA node\n"
         "  PHB  = Through PCIe and a host bridge (the socket)\n"
         "  PXB  = Through several PCIe switches, without a host bridge\n"
         "  PIX  = Through one PCIe switch at most\n"
         "  NV#  = Through # NVLinks side by side\n"
         "  XG#  = Through # Infinity Fabric links side by side\n"
         "  XL#  = Through # Xe Links side by side\n"
         "  NET  = On another computer, through the network\n";
}

bool has(const matrix& m, std::string_view cell) {
  return std::any_of(m.rows.begin(), m.rows.end(),
                     [&](const auto& row) { return std::find(row.begin(), row.end(), cell) != row.end(); });
}

std::string access_legend(const matrix& shown, bool verified) {
  std::string text =
      "\nLegend:\n\n"
      "  X    = Self\n"
      "  OK   = The row's device can map the memory of the column's\n"
      "  NS   = Not supported\n";
  if (has(shown, "CP")) text += "  CP   = Not supported, but the driver copies between the two directly\n";
  if (verified || has(shown, "BAD"))
    text += "  BAD  = Offered, but a written pattern did not arrive: staged through the host instead\n";
  if (has(shown, "FAIL")) text += "  FAIL = Offered, but a copy or a kernel over it failed: the warning says why\n";
  if (has(shown, "?")) text += "  ?    = Offered, but could not be tried: the warning says why\n";
  if (verified) text += "  Verified = pairs that passed, of those offered\n";
  if (!verified && has(shown, "OK")) text += "\nThis is what the driver says. --verify tries whether data arrives.\n";
  return text;
}

/// Rates of all pairs, and those that lost data; what --verify and --measure found, if it was asked for.
std::string pairs_picture(const session& run, const machine& m, const pair_checks& checks) {
  const auto count = static_cast<std::size_t>(m.device_count());
  heat_map map;
  map.devices = count;
  map.simulated = run.simulated();
  map.unit = "GB/s";
  map.title = "Rates between devices";
  map.subtitle =
      checks.empty() ? "measured; data was not verified" : "outlined: peer access is offered, and data did not arrive";
  map.values.resize(count * count);
  map.failed.resize(count * count);
  for (const device& from : m.devices()) {
    for (const device& to : m.devices()) {
      const auto known = capability_between(m, from.id(), to.id());
      if (!known) continue;
      const std::size_t i = from.id().index() * count + to.id().index();
      if (known->bytes_per_second) map.values[i] = *known->bytes_per_second / 1e9;
      const auto check = checks.find({from.id().value(), to.id().value()});
      map.failed[i] = !known->trusted || (check != checks.end() && !check->second.arrived &&
                                          check->second.outcome != peer_outcome::not_tried);
    }
  }
  return heat_map_svg(map);
}

std::string pair_lines(const session& run, const machine& m) {
  const bool simulated = run.simulated();
  text_table table{
      {simulated ? "pair (simulated)" : "pair", "link", "class", "hops", "rank", "rate", "latency", "figures"},
      {false, false, false, true, true, true, true, false}};
  const std::vector<std::string> classes = link_classes(m.layout());
  bool any = false;
  for (const device& a : m.devices()) {
    for (const device& b : m.devices()) {
      const auto known = capability_between(m, a.id(), b.id());
      if (!known || !known->supported) continue;
      any = true;
      table.row({fmt::format("{}-{}", to_string(a.id()), to_string(b.id())), std::string{to_string(known->link)},
                 classes[m.layout().pair(a.id(), b.id())], known->hops > 0 ? std::to_string(known->hops) : "-",
                 known->performance_rank ? std::to_string(*known->performance_rank) : "-",
                 known->bytes_per_second ? rate_text(*known->bytes_per_second) : "-",
                 known->latency ? time_text(std::chrono::duration<double>(*known->latency).count()) : "-",
                 !known->measured                                  ? "published"
                 : run.virtual_time()                              ? "measured, simulated"
                 : measured_on(m, a.id(), b.id()) == "host_memory" ? "measured: host memory, not the link"
                                                                   : "measured"});
    }
  }
  return any ? table.render(run) : "No pair has peer access: weft bench copy measures staged copies.\n";
}

/// By what messages would go to other computers, where this one is not simulated.
std::string engine_line(const machine& m) {
  if (m.simulated()) return {};
  const auto engines = world_engines();
  const auto first = std::ranges::find_if(engines, &world_engine_status::available);
  return first == engines.end() ? "\nNothing here carries messages between nodes: weft devices says why.\n"
                                : fmt::format("\nMessages between nodes go by {}.\n", first->what);
}

}  // namespace

json pairs_json(const machine& m) {
  json list = json::array();
  for_each_pair(m, {}, [&](const json& one) { list.push_back(one); });
  return list;
}

exit_code run_topo(session& run, const topo_options& options) {
  static constexpr std::string_view endings[] = {".svg", ".json", ".dot", ".txt"};
  std::string ending;
  if (!options.output.empty()) {
    const auto dot = options.output.rfind('.');
    if (dot != std::string::npos && options.output.find('/', dot) == std::string::npos)
      ending = options.output.substr(dot);
    // A device such as /dev/full has no ending: text goes there.
    if (ending.empty() && options.output.starts_with("/dev/")) ending = ".txt";
    if (std::ranges::find(endings, ending) == std::ranges::end(endings)) {
      const auto nearest = nearest_name(ending, endings);
      throw failure{exit_code::usage,
                    fmt::format("{}: the ending says the format, one of {}{}", options.output, fmt::join(endings, ", "),
                                nearest ? fmt::format("; did you mean {}?", *nearest) : "")};
    }
  }

  const machine& m = run.open_machine();
  pair_checks checks;
  if (options.verify) checks = run_checks(run, m);
  if (options.measure) static_cast<void>(measure_rates(m));

  json doc;
  const auto write_document = [&](const text_sink& to) {
    session::emit(doc, [&](const session::json_sink& each) { for_each_pair(m, checks, each); }, to);
  };
  if (run.options().json || ending == ".json") {
    doc = run.document("weft.topo/1");
    json devices = json::array();
    for (const device& d : m.devices()) {
      devices.push_back({{"index", d.id().value()}, {"name", d.name()}, {"numa_node", or_null(d.numa_node())}});
    }
    doc["devices"] = std::move(devices);
    doc["pairs"] = nullptr;  // written one by one: a thousand devices have a million
    doc["sources"] = m.layout().sources;
    doc["engines"] = engines_json();
    if (run.options().json) write_document(show);
    if (ending.empty()) return result_of(checks);
  }

  const matrix classes = class_matrix(m);
  const matrix access = access_matrix(m, checks);
  const std::string plain =
      options.p2p ? tabbed(access) + access_legend(access, !checks.empty()) : tabbed(classes) + class_legend();
  if (options.matrix_only) {
    run.print(plain);
  } else {
    std::string text = run.machine_title() + "\n";
    if (m.simulated() && !m.layout().description.empty())
      text += run.paint(style::faint, m.layout().description) + "\n";
    text += "\n" + (options.p2p ? matrix_text(run, access) + access_legend(access, !checks.empty())
                                : matrix_text(run, classes) + class_legend());
    if (options.verify && !options.p2p) text += "\n" + matrix_text(run, access) + access_legend(access, true);
    if (options.measure) text += "\n" + pair_lines(run, m);
    text += engine_line(m);
    run.print(text);
  }

  if (!options.output.empty()) {
    std::string content;
    if (ending == ".svg") content = topology_svg(m.layout());
    if (ending == ".svg" && (options.verify || options.measure))
      content = stacked_svg(content, pairs_picture(run, m, checks));
    if (ending == ".dot") content = topology_dot(m.layout());
    if (ending == ".txt") content = run.machine_title() + "\n\n" + plain;
    if (ending == ".json") write_file(options.output, write_document);
    if (ending != ".json") write_file(options.output, content);
    run.note("wrote " + options.output);
  }
  return result_of(checks);
}

}  // namespace weft::tool
