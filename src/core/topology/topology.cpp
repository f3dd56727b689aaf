// SPDX-License-Identifier: Apache-2.0
#include "weft/core/topology.hpp"

#include "core/at.hpp"
#include "core/topology/topology_paths.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <utility>

namespace weft {
namespace {

using detail::at;
using detail::topology_problem;

std::string element(const char* array, std::size_t index) { return array + ("[" + std::to_string(index) + "]"); }

constexpr capability always_there =
    capability::pinned_memory | capability::timing | capability::priorities | capability::kernels;

// A wire is a number in tables. host_topology(max_devices) has a million.
constexpr int max_wires = 4 * max_devices * max_devices;

std::optional<topology_problem> check_devices(const topology& machine) {
  if (machine.devices.empty()) return topology_problem{"devices", "expected at least one device, got none"};
  if (machine.devices.size() > static_cast<std::size_t>(max_devices)) {
    return topology_problem{"devices", "expected at most " + std::to_string(max_devices) + " devices, got " +
                                           std::to_string(machine.devices.size())};
  }
  std::set<std::string_view> addresses;
  for (std::size_t i = 0; i < machine.devices.size(); ++i) {
    const topology_device& device = machine.devices[i];
    const std::string part = element("devices", i);
    if (device.memory.value() == 0) return topology_problem{part, "expected memory, got none"};
    if (device.compute_units < 1) return topology_problem{part, "expected at least one compute unit"};
    if (!(device.speed > 0) || !std::isfinite(device.speed)) return topology_problem{part, "expected a speed above 0"};
    if (!(device.bytes_per_second >= 0) || !std::isfinite(device.bytes_per_second))
      return topology_problem{part, "expected a memory bandwidth of 0 (unknown) or more"};
    if (device.max_peers < 0) return topology_problem{part, "expected max_peers of 0 (no limit) or more"};
    if (!device.pci_address.empty() && !addresses.insert(device.pci_address).second)
      return topology_problem{part, "the PCI address " + device.pci_address + " belongs to another device too"};
  }
  return std::nullopt;
}

std::optional<topology_problem> check_nodes(const topology& machine) {
  const int nodes = static_cast<int>(machine.nodes.size());
  if (nodes < machine.device_count())
    return topology_problem{"devices", "expected one node for each device at the start of the nodes"};
  std::set<std::string_view> names;
  for (int i = 0; i < nodes; ++i) {
    const topology_node& node = machine.nodes[at(i)];
    if ((node.kind == node_kind::device) != (i < machine.device_count()))
      return topology_problem{"devices", "expected the devices, in order, as the first nodes"};
    const int computers = std::max(1, static_cast<int>(machine.computers.size()));
    if (node.computer < 0 || node.computer >= computers)
      return topology_problem{"node", node.name + " is in a node that is not there"};
    if (node.name.empty() || !names.insert(node.name).second)
      return topology_problem{"name", "two places are called \"" + node.name + "\""};
    if (!node.parent) continue;
    if (*node.parent < 0 || *node.parent >= nodes)
      return topology_problem{
          "parent", node.name + " hangs on node " + std::to_string(*node.parent) + ", of " + std::to_string(nodes)};
    const node_kind parent = machine.nodes[at(*node.parent)].kind;
    if (node.kind == node_kind::socket || (parent != node_kind::socket && parent != node_kind::pcie_switch))
      return topology_problem{"parent", node.name + " may not hang on " + machine.nodes[at(*node.parent)].name};
  }
  for (const topology_node& node : machine.nodes) {
    const topology_node* above = &node;
    for (int steps = 0; above->parent; ++steps) {
      if (steps > nodes) return topology_problem{"switches", node.name + " hangs below itself"};
      above = &machine.nodes[at(*above->parent)];
    }
  }
  return std::nullopt;
}

std::optional<topology_problem> check_links(const topology& machine) {
  const int nodes = static_cast<int>(machine.nodes.size());
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    const topology_link& link = machine.links[i];
    const std::string which = "link " + std::to_string(i) + ": ";
    if (link.from < 0 || link.from >= nodes || link.to < 0 || link.to >= nodes || link.from == link.to)
      return topology_problem{"links", which + "expected two different nodes"};
    if (link.wire < 0 || link.wire >= max_wires)
      return topology_problem{"links", which + "expected a wire from 0 to " + std::to_string(max_wires - 1)};
    if (!(link.bytes_per_second >= 0) || !std::isfinite(link.bytes_per_second))
      return topology_problem{"links", which + "expected a rate of 0 (unknown) or more"};
    if (link.latency < std::chrono::nanoseconds{0} || link.latency > std::chrono::hours{1})
      return topology_problem{"links", which + "expected a latency from 0 to one hour"};
    const topology_node &a = machine.nodes[at(link.from)], &b = machine.nodes[at(link.to)];
    const bool joins_sockets = a.kind == node_kind::socket && b.kind == node_kind::socket;
    if (link.kind == link_kind::network && (!joins_sockets || a.computer == b.computer))
      return topology_problem{
          "links", which + "a link of kind network joins sockets of two nodes, not " + a.name + " and " + b.name};
    if (joins_sockets && a.computer != b.computer && link.kind != link_kind::network)
      return topology_problem{"links",
                              which + a.name + " and " + b.name + " are of two nodes: expected a link of kind network"};
    if (link.generation < 0 || link.lanes < 0)
      return topology_problem{"links", which + "expected a generation and lanes of 0 (none) or more"};
  }
  return std::nullopt;
}

std::optional<topology_problem> check_faults(const topology& machine) {
  const auto is_device = [&](const std::optional<device_id>& id) {
    return !id || (id->value() >= 0 && id->value() < machine.device_count());
  };
  for (std::size_t i = 0; i < machine.faults.size(); ++i) {
    const topology_fault& fault = machine.faults[i];
    const std::string part = element("faults", i);
    if (!is_device(fault.device) || !is_device(fault.from) || !is_device(fault.to))
      return topology_problem{part, "names a device that is not there"};
    if (fault.link && (*fault.link < 0 || *fault.link >= static_cast<int>(machine.links.size())))
      return topology_problem{part, "names a link that is not there"};
    if (fault.what != topology_fault::kind::drops_data) continue;
    if (!fault.from || !fault.to) return topology_problem{part, "expected the two devices, from and to"};
    if (!machine.can_access(*fault.from, *fault.to)) {
      return topology_problem{part, to_string(*fault.from) + " may not access " + to_string(*fault.to) +
                                        ": only a pair that advertises access can drop data"};
    }
  }
  return std::nullopt;
}

// Who may map whom, against the paths; and what follows from it for the devices.
std::optional<topology_problem> derive_capabilities(topology& machine) {
  for (int from = 0; from < machine.device_count(); ++from) {
    topology_device& device = machine.devices[at(from)];
    bool peers = false;
    bool atomics = false;
    for (int to = 0; to < machine.device_count(); ++to) {
      const std::size_t pair = machine.pair(device_id{from}, device_id{to});
      if (from == to) machine.access[pair] = false;  // a device reaches its own memory without being its own peer
      if (!machine.access[pair]) continue;
      if (machine.peer_paths[pair].links.empty()) {
        return topology_problem{"peer_access", to_string(device_id{from}) + " may access " + to_string(device_id{to}) +
                                                   ", but no links lead there: add one or remove the pair"};
      }
      for (const int link : machine.peer_paths[pair].links) {
        if (machine.links[at(link)].kind != link_kind::network) continue;
        return topology_problem{"peer_access", to_string(device_id{from}) + " may access " + to_string(device_id{to}) +
                                                   " over a network, over which no memory is mapped: remove the pair"};
      }
      peers = true;
      atomics = atomics || machine.peer_paths[pair].native_atomics;
    }
    const capability own = device.capabilities & capability::unified_memory;
    device.capabilities = always_there | own | (peers ? capability::peer_to_peer : capability::none) |
                          (atomics ? capability::native_atomics : capability::none);
  }
  return std::nullopt;
}

}  // namespace

namespace detail {

std::optional<topology_problem> complete(topology& machine) {
  if (auto problem = check_devices(machine)) return problem;
  if (auto problem = check_nodes(machine)) return problem;
  if (auto problem = check_links(machine)) return problem;
  if (machine.access.size() != machine.devices.size() * machine.devices.size()) {
    return topology_problem{
        "peer_access", "expected one entry for each pair of devices, got " + std::to_string(machine.access.size())};
  }
  if (auto problem = derive_paths(machine)) return problem;
  if (auto problem = derive_capabilities(machine)) return problem;
  return check_faults(machine);
}

}  // namespace detail

std::string_view to_string(link_kind kind) {
  switch (kind) {
    case link_kind::unknown:
      return "unknown";
    case link_kind::host_memory:
      return "host_memory";
    case link_kind::pcie:
      return "pcie";
    case link_kind::nvlink:
      return "nvlink";
    case link_kind::infinity_fabric:
      return "infinity_fabric";
    case link_kind::xe_link:
      return "xe_link";
    case link_kind::socket:
      return "socket";
    case link_kind::network:
      return "network";
    case link_kind::device_memory:
      return "device_memory";
  }
  return "unknown";
}

std::string_view to_string(topology_fault::kind kind) {
  switch (kind) {
    case topology_fault::kind::copy_fails:
      return "copy_fails";
    case topology_fault::kind::device_stalls:
      return "device_stalls";
    case topology_fault::kind::drops_data:
      return "drops_data";
    case topology_fault::kind::device_lost:
      return "device_lost";
    case topology_fault::kind::call_fails:
      return "call_fails";
    case topology_fault::kind::corrupts:
      return "corrupts";
  }
  return "unknown";
}

std::optional<int> topology::socket_of(device_id device) const {
  if (device.index() >= nodes.size()) return std::nullopt;
  std::optional<int> node = device.value();
  for (std::size_t steps = 0; node && steps <= nodes.size(); ++steps) {
    if (nodes[at(*node)].kind == node_kind::socket) return node;
    node = nodes[at(*node)].parent;
  }
  return std::nullopt;
}

int topology::computer_of(device_id device) const {
  const std::optional<int> socket = socket_of(device);
  return socket ? nodes[at(*socket)].computer : 0;
}

result<topology> complete_topology(topology machine) {
  if (const auto problem = detail::complete(machine)) {
    return error{.code = errc::invalid_topology,
                 .what = "topology " + machine.name + ": " + problem->part + ": " + problem->text};
  }
  return machine;
}

topology host_topology(int device_count, bytes memory_per_device) {
  const int count = std::clamp(device_count, 0, max_devices);
  const std::size_t n = at(count);
  topology machine;
  machine.name = "host";
  machine.description = "Virtual devices that share the memory of this host";
  machine.simulated = false;
  machine.devices.resize(n);
  machine.access.assign(n * n, true);
  machine.peer_paths.resize(n * n);
  machine.to_host.resize(n);
  machine.from_host.resize(n);
  machine.between_sockets.resize(n * n);
  const auto join = [&](int from, int to) {
    const int link = static_cast<int>(machine.links.size());
    machine.links.push_back(
        {.from = from, .to = to, .wire = link, .kind = link_kind::host_memory, .native_atomics = true});
    return link_path{.links = {link}, .native_atomics = true};
  };
  for (int d = 0; d < count; ++d) {
    topology_device& device = machine.devices[at(d)];
    device.name = "host device";
    device.memory = memory_per_device;
    device.capabilities = always_there | capability::unified_memory;
    if (count > 1) device.capabilities = device.capabilities | capability::peer_to_peer | capability::native_atomics;
    machine.nodes.push_back({.kind = node_kind::device, .name = to_string(device_id{d}), .parent = count});
    machine.access[machine.pair(device_id{d}, device_id{d})] = false;
    machine.to_host[at(d)] = join(d, count);
    machine.from_host[at(d)] = join(count, d);
    for (int other = 0; other < count; ++other) {
      if (other != d) machine.peer_paths[machine.pair(device_id{d}, device_id{other})] = join(d, other);
    }
  }
  machine.nodes.push_back({.kind = node_kind::socket, .name = "socket0"});
  return machine;
}

namespace {

constexpr std::array fabrics{std::pair{link_kind::device_memory, "MEM"}, std::pair{link_kind::nvlink, "NV"},
                             std::pair{link_kind::infinity_fabric, "XG"}, std::pair{link_kind::xe_link, "XL"}};

std::string fabric_class(link_kind kind, const char* letters, int links) {
  return kind == link_kind::device_memory ? letters : letters + std::to_string(links);
}

/// Places above a device, the nearest first.
std::vector<int> places_above(const topology& machine, device_id device) {
  std::vector<int> places;
  for (auto node = machine.nodes[device.index()].parent; node && places.size() <= machine.nodes.size();
       node = machine.nodes[at(*node)].parent) {
    places.push_back(*node);
  }
  return places;
}

/// By the lowest place above both, and how many switches are passed on the way.
std::string_view host_class(const topology& machine, const std::vector<int>& a, const std::vector<int>& b) {
  for (const int place : a) {
    const auto met = std::ranges::find(b, place);
    if (met == b.end()) continue;
    if (machine.nodes[at(place)].kind == node_kind::socket) return "PHB";
    return place == a.front() && met == b.begin() ? "PIX" : "PXB";
  }
  if (a.empty() || b.empty()) return "SYS";
  if (machine.nodes[at(a.back())].computer != machine.nodes[at(b.back())].computer) return "NET";
  const std::optional<int> here = machine.nodes[at(a.back())].numa_node;
  return here && here == machine.nodes[at(b.back())].numa_node ? "NODE" : "SYS";
}

}  // namespace

std::string link_class(const topology& machine, device_id from, device_id to) {
  if (from == to) return "X";
  for (const auto& [kind, letters] : fabrics) {
    const detail::fabric fabric{machine, kind};
    const int links =
        std::min(fabric.links_from(from.value())[at(to.value())], fabric.links_from(to.value())[at(from.value())]);
    if (links > 0) return fabric_class(kind, letters, links);
  }
  return std::string{host_class(machine, places_above(machine, from), places_above(machine, to))};
}

std::vector<std::string> link_classes(const topology& machine) {
  const int count = machine.device_count();
  const auto devices = at(count);
  std::vector<std::string> made(devices * devices);
  for (const auto& [kind, letters] : fabrics) {
    const detail::fabric fabric{machine, kind};
    std::vector<std::vector<int>> links;
    links.reserve(devices);
    for (int from = 0; from < count; ++from) links.push_back(fabric.links_from(from));
    for (std::size_t a = 0; a < devices; ++a) {
      for (std::size_t b = 0; b < devices; ++b) {
        const int both = std::min(links[a][b], links[b][a]);
        if (both > 0 && made[a * devices + b].empty()) made[a * devices + b] = fabric_class(kind, letters, both);
      }
    }
  }
  std::vector<std::vector<int>> above;
  above.reserve(devices);
  for (int d = 0; d < count; ++d) above.push_back(places_above(machine, device_id{d}));
  for (std::size_t a = 0; a < devices; ++a) {
    for (std::size_t b = 0; b < devices; ++b) {
      if (std::string& one = made[a * devices + b]; a == b)
        one = "X";
      else if (one.empty())
        one = host_class(machine, above[a], above[b]);
    }
  }
  return made;
}

}  // namespace weft
