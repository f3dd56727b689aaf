// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "health_words.hpp"
#include "weft/core/version.hpp"
#include "weft/distributed/world.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft::tool {

namespace {

json backends_json(const machine& m) {
  json list = json::array();
  for (const backend_status& b : m.backends()) {
    list.push_back({{"name", b.name},
                    {"available", b.available},
                    {"looked_at", b.looked_at},
                    {"why", b.why.empty() ? json(nullptr) : json(b.why)}});
  }
  return list;
}

std::string backends_text(const session& run, const machine& m) {
  text_table table{{"backend", "available", "remark"}};
  for (const backend_status& b : m.backends()) {
    table.row({b.name,
               b.available   ? "yes"
               : b.looked_at ? "no"
                             : "?",
               b.why},
              {style::plain, b.available ? style::good : style::faint, style::faint});
  }
  return table.render(run);
}

std::string engines_text(const session& run) {
  text_table table{{"between nodes", "available", "remark"}};
  for (const world_engine_status& e : world_engines())
    table.row({e.name, e.available ? "yes" : "no", e.what},
              {style::plain, e.available ? style::good : style::faint, style::faint});
  return table.render(run);
}

struct peer_summary {
  std::size_t pairs = 0;
  std::size_t offered = 0;
};

peer_summary peers_of(const machine& m) {
  const auto pairs = peer_topology(m);
  return {pairs.size(), static_cast<std::size_t>(std::ranges::count_if(pairs, &peer_pair::supported))};
}

}  // namespace

json devices_json(const machine& m) {
  json list = json::array();
  for (const device& d : m.devices()) {
    json one;
    one["index"] = d.id().value();
    one["name"] = d.name();
    one["backend"] = to_string(d.kind());
    one["kind"] = to_string(d.kind());
    one["uuid"] = d.uuid();
    one["pci_address"] = d.pci_address().empty() ? json(nullptr) : json(d.pci_address());
    one["numa_node"] = or_null(d.numa_node());
    one["memory_bytes"] = d.total_memory().value();
    one["free_bytes"] = d.free_memory().value();
    one["compute_units"] = d.compute_units();
    one["part_of"] = d.part_of().empty() ? json(nullptr) : json(d.part_of());
    one["capabilities"] = names_of(d.capabilities());
    one["simulated"] = d.simulated();
    const known_health health = health_of(d);
    one["health"] = health_json(health);
    one["health_why"] = health.why.empty() ? json(nullptr) : json(health.why);
    std::string why;
    if (d.pci_address().empty()) why = "no PCI address: not a device on a PCI bus";
    if (!d.numa_node()) why += std::string{why.empty() ? "" : "; "} + "the NUMA node is not known";
    one["why"] = why.empty() ? json(nullptr) : json(why);
    list.push_back(std::move(one));
  }
  return list;
}

json engines_json() {
  json list = json::array();
  for (const world_engine_status& e : world_engines()) {
    list.push_back({{"name", e.name},
                    {"available", e.available},
                    {"what", e.available ? json(e.what) : json(nullptr)},
                    {"why", e.available ? json(nullptr) : json(e.what)}});
  }
  return list;
}

exit_code run_devices(session& run) {
  const machine& m = run.open_machine();
  json doc = run.document("weft.devices/1");
  doc["devices"] = devices_json(m);
  doc["backends"] = backends_json(m);
  doc["engines"] = engines_json();
  run.emit(doc);

  text_table table{{"device", "name", "backend", "memory", "free", "units", "PCI address", "NUMA", "uuid"},
                   {false, false, false, true, true, true, false, true, false}};
  for (const device& d : m.devices()) {
    table.row({to_string(d.id()), d.name() + (d.part_of().empty() ? "" : ", part of " + d.part_of()),
               fmt::format("{}{}", to_string(d.kind()), d.simulated() ? ", simulated" : ""),
               to_string(d.total_memory()), to_string(d.free_memory()), std::to_string(d.compute_units()),
               d.pci_address().empty() ? "-" : d.pci_address(),
               d.numa_node() ? std::to_string(*d.numa_node()) : std::string{"-"}, d.uuid()});
  }
  run.print(run.machine_title() + "\n\n" + table.render(run) + health_text(run, m) + "\n" + backends_text(run, m) +
            "\n" + engines_text(run));
  return exit_code::ok;
}

exit_code run_summary(session& run) {
  const machine& m = run.open_machine();
  const auto devices = m.devices();
  const peer_summary peers = peers_of(m);
  bytes memory;
  int units = 0;
  for (const device& d : devices) {
    memory += d.total_memory();
    units += d.compute_units();
  }
  struct suggestion {
    std::string_view command, what;
  };
  static constexpr suggestion next[] = {
      {"weft demo", "a tour: topology, verified copies, images blurred on four devices"},
      {"weft topo", "how the devices are linked"},
      {"weft bench copy", "how fast each pair copies, with the data checked"},
      {"weft topo --sim dgx_h100", "the same on a machine that you do not have"},
  };

  json doc = run.document("weft.summary/1");
  doc["devices"] = devices.size();
  doc["memory_bytes"] = memory.value();
  doc["compute_units"] = units;
  doc["peer_pairs"] = {{"all", peers.pairs}, {"can_access", peers.offered}};
  doc["backends"] = backends_json(m);
  json commands = json::array();
  for (const auto& [command, what] : next) commands.push_back({{"command", command}, {"what", what}});
  doc["next"] = std::move(commands);
  run.emit(doc);

  std::string text;
  const auto say = [&](std::string_view label, std::string_view what) {
    text += run.paint(style::heading, fmt::format("{:<10}", label)) + std::string{what} + "\n";
  };
  std::string here;
  std::string absent;
  bool all_looked_at = true;
  for (const backend_status& b : m.backends()) {
    all_looked_at = all_looked_at && b.looked_at;
    if (!b.looked_at) continue;  // nobody knows
    std::string& list = b.available ? here : absent;
    list += (list.empty() ? "" : ", ") + b.name;
  }
  std::string models;
  if (!devices.empty()) {
    const auto model = [](const device& d) {
      return d.part_of().empty() ? d.name() : d.name().substr(0, d.name().rfind(", part "));
    };
    const bool equal = std::ranges::all_of(devices, [&](const device& d) { return model(d) == model(devices[0]); });
    models = equal ? model(devices[0]) : "different models";
    if (equal && !devices[0].part_of().empty()) models += ", parts of one or more";
  }
  std::string links;
  const std::vector<std::string> classes = link_classes(m.layout());
  for (const device& a : devices) {
    for (const device& b : devices) {
      if (a == b) continue;
      const std::string& link = classes[m.layout().pair(a.id(), b.id())];
      if ((", " + links + ",").find(", " + link + ",") == std::string::npos)
        links += (links.empty() ? "" : ", ") + link;
    }
  }
  say("weft", fmt::format("{} (commit {})", library_version(), library_commit()));
  say("machine", run.machine_title());
  say("devices", fmt::format("{} x {}", devices.size(), models));
  say("memory", fmt::format("{} in all", to_string(memory)));
  say("compute", fmt::format("{} compute unit{} in all", units, units == 1 ? "" : "s"));
  say("peers", fmt::format("{} of {} ordered pairs can access each other's memory", peers.offered, peers.pairs));
  say("links", links.empty() ? "none" : links);
  say("clock", run.virtual_time() ? "virtual: times are simulated" : "wall");
  say("backends", fmt::format("{}{}{}", here, absent.empty() ? "" : "; absent: ", absent));
  say("why", !absent.empty() ? "weft devices says why a backend is absent"
             : all_looked_at ? "every backend of this build is there"
                             : "the other backends were not asked for, and not looked at");
  text += "\n" + run.paint(style::heading, "next") + "\n";
  for (const auto& [command, what] : next) text += fmt::format("  {:<26}{}\n", command, what);
  run.print(text);
  return exit_code::ok;
}

}  // namespace weft::tool
