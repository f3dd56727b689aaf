// SPDX-License-Identifier: Apache-2.0
#include "core/topology/topology_reader.hpp"

#include "core/at.hpp"
#include "core/documents/document_fields.hpp"
#include "core/text/nearest.hpp"
#include "core/text/quantity.hpp"
#include "core/topology/topology_paths.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft::detail {
namespace {

constexpr std::string_view schema = "weft.topology/1";
constexpr int max_sockets = 64;
constexpr int max_switches = 256;

constexpr std::array<std::string_view, 9> link_kinds{
    "unknown", "host_memory", "pcie", "nvlink", "infinity_fabric", "xe_link", "socket", "network", "device_memory"};

struct link_spec {
  link_kind kind = link_kind::unknown;
  int generation = 0;
  int lanes = 0;
  double bytes_per_second = 0;
  std::chrono::nanoseconds latency{0};
  bool half_duplex = false;
  bool native_atomics = false;
};

// Bytes per second and direction of one lane or link, after line coding; 0 where nothing is published.
double published_rate(link_kind kind, int generation) {
  // PCIe: 2.5, 5, 8, 16, 32, 64 GT/s; 8b/10b, then 128b/130b, then 242 of 256 bytes of a flit (PCI-SIG).
  constexpr std::array pcie{
      0.25e9, 0.5e9, 8e9 / 8 * 128 / 130, 16e9 / 8 * 128 / 130, 32e9 / 8 * 128 / 130, 64e9 / 8 * 242 / 256};
  // NVLink: 20, 25, 25, 25, 50 GB/s per link and direction (NVIDIA's papers on P100, V100, A100, H100, B200).
  constexpr std::array nvlink{20e9, 25e9, 25e9, 25e9, 50e9};
  const std::size_t i = at(generation) - 1;
  if (kind == link_kind::pcie && i < pcie.size()) return pcie[i];
  if (kind == link_kind::nvlink && i < nvlink.size()) return nvlink[i];
  return 0;
}

link_spec read_link_spec(const fields& f, link_kind fallback) {
  link_spec spec;
  spec.kind = static_cast<link_kind>(f.word("kind", link_kinds, static_cast<std::size_t>(fallback)));
  const bool published = spec.kind == link_kind::pcie || spec.kind == link_kind::nvlink;
  spec.generation = f.integer("generation", 0, 1,
                              spec.kind == link_kind::pcie     ? 6
                              : spec.kind == link_kind::nvlink ? 5
                                                               : 99);
  spec.lanes = f.integer("lanes", 0, 1, 64);
  spec.latency =
      f.quantity<std::chrono::nanoseconds>("latency", {}, parse_duration, "a duration up to an hour such as \"500ns\"");
  constexpr std::array<std::string_view, 2> duplex{"full", "half"};
  spec.half_duplex = f.word("duplex", duplex, 0) == 1;
  spec.native_atomics = f.boolean("native_atomics", false);
  if (f.has("bandwidth")) {
    spec.bytes_per_second = f.rate("bandwidth");
  } else if (published && spec.generation > 0 && spec.lanes > 0) {
    spec.bytes_per_second = published_rate(spec.kind, spec.generation) * spec.lanes;
  } else if (published && (spec.generation > 0 || spec.lanes > 0)) {
    f.fail(spec.generation > 0 ? "lanes" : "generation", "expected beside \"" +
                                                             std::string(spec.generation > 0 ? "generation" : "lanes") +
                                                             "\" where no bandwidth is given, got nothing");
  }
  return spec;
}

// A device, socket or switch of the file: what its node needs beyond itself.
struct place {
  const document* object = nullptr;
  std::string path{};
};

class topology_builder {
 public:
  topology_builder(const document& root, failure& wrong)
      : wrong_(wrong),
        top_(wrong, root, "",
             {"schema", "name", "description", "sources", "devices", "sockets", "switches", "links", "peer_access",
              "faults"}) {}

  topology build() {
    read_head();
    read_devices();
    read_sockets();
    read_switches();
    if (wrong_.first) return {};
    hang_on_parents();
    if (wrong_.first) return {};
    read_links();
    if (wrong_.first) return {};
    read_access();
    read_faults();
    return std::move(machine_);
  }

 private:
  void read_head() {
    if (!top_.has("schema") || top_.text("schema") != schema) top_.expected("schema", in_quotes(schema));
    if (!top_.has("name")) top_.expected("name", "a name");
    machine_.name = top_.text("name", "a name");
    machine_.description = top_.text("description");
    for (const document& source : top_.array("sources")) {
      if (source.kind != document_kind::string)
        wrong_.set(source.line, "sources", "expected strings, got " + found(source));
      machine_.sources.push_back(source.text);
    }
  }

  void read_devices() {
    const std::span<const document> devices = top_.array("devices");
    if (devices.empty()) top_.fail("devices", "expected at least one device, got none");
    for (std::size_t i = 0; i < devices.size() && !wrong_.first; ++i) {
      const std::string path = "devices[" + std::to_string(i) + "]";
      const fields f(wrong_, devices[i], path,
                     {"name", "count", "memory", "compute_units", "speed", "memory_bandwidth", "pci_address",
                      "numa_node", "parent", "uplink", "capabilities", "max_peers"});
      const topology_device device = read_device(f);
      const int count = f.integer("count", 1, 1, 1'000'000'000);
      if (count > max_devices - machine_.device_count()) {
        wrong_.set(f.has("count") ? f.find("count")->line : f.line(), f.has("count") ? f.path("count") : path,
                   "expected at most " + std::to_string(max_devices) + " devices in all, got " +
                       std::to_string(static_cast<std::int64_t>(count) + machine_.device_count()));
        return;
      }
      if (count > 1 && f.has("pci_address"))
        f.fail("pci_address", "one address for " + std::to_string(count) + " devices");
      for (int k = 0; k < count; ++k) {
        machine_.devices.push_back(device);
        const std::string name = to_string(device_id{machine_.device_count() - 1});
        add_node({.kind = node_kind::device, .name = name, .numa_node = device.numa_node}, {&devices[i], path});
      }
    }
  }

  topology_device read_device(const fields& f) {
    topology_device device;
    device.name = f.has("name") ? f.text("name", "a name") : "GPU";
    if (!f.has("memory")) f.expected("memory", "a size such as \"80GiB\"");
    device.memory = bytes{f.quantity<std::uint64_t>("memory", 0, parse_size, "a size up to 1024TiB such as \"80GiB\"")};
    if (device.memory.value() == 0) f.expected("memory", "a size above 0 such as \"80GiB\"");
    device.compute_units = f.integer("compute_units", 1, 1, 1'000'000);
    if (const document* const speed = f.find("speed"); speed != nullptr) {
      device.speed = speed->number;
      if (speed->kind != document_kind::number || !(speed->number > 0) || !(speed->number <= 1e9))
        f.expected("speed", "a number above 0");
    }
    device.bytes_per_second = f.rate("memory_bandwidth");
    device.pci_address = read_pci_address(f);
    device.numa_node = read_numa_node(f);
    device.max_peers = f.integer("max_peers", 0, 0, max_devices);
    device.capabilities = read_capabilities(f);
    return device;
  }

  std::string read_pci_address(const fields& f) {
    constexpr std::string_view shape = "hhhh:hh:hh.d";
    std::string address = f.text("pci_address", "an address such as \"0000:17:00.0\"");
    if (address.empty()) return address;
    bool good = address.size() == shape.size();
    for (std::size_t i = 0; good && i < shape.size(); ++i) {
      const char c = address[i];
      const bool digit = c >= '0' && c <= '9';
      if (shape[i] == 'h')
        good = digit || (c >= 'a' && c <= 'f');
      else if (shape[i] == 'd')
        good = c >= '0' && c <= '7';
      else
        good = c == shape[i];
    }
    if (!good) f.expected("pci_address", "an address such as \"0000:17:00.0\"");
    const auto [first, fresh] = addresses_.emplace(address, f.path("pci_address"));
    if (!fresh) f.fail("pci_address", in_quotes(address) + " is taken by " + first->second);
    return address;
  }

  static std::optional<int> read_numa_node(const fields& f) {
    const document* const value = f.find("numa_node");
    if (value == nullptr || value->kind == document_kind::null) return std::nullopt;
    return f.integer("numa_node", 0, 0, 1023);
  }

  capability read_capabilities(const fields& f) {
    if (!f.has("capabilities")) return capability::unified_memory;
    capability all = capability::none;
    for (const document& word : f.array("capabilities")) {
      constexpr std::array<std::string_view, 5> words{"unified_memory", "pinned_memory", "timing", "priorities",
                                                      "kernels"};
      if (word.text == "peer_to_peer" || word.text == "native_atomics") {
        wrong_.set(word.line, f.path("capabilities"),
                   in_quotes(word.text) + " follows from peer_access and the links: leave it out");
      } else if (word.kind != document_kind::string || std::ranges::find(words, word.text) == words.end()) {
        wrong_.set(word.line, f.path("capabilities"), "expected " + listed(words) + ", got " + found(word));
      }
      if (word.text == "unified_memory") all = capability::unified_memory;
    }
    return all;
  }

  void read_sockets() {
    const std::span<const document> sockets = top_.array("sockets");
    if (top_.has("sockets") && sockets.empty())
      top_.fail("sockets", "expected at least one socket, got none: leave the key out for a machine of one");
    if (sockets.empty()) {
      socket_count_ = 1;
      add_node({.kind = node_kind::socket, .name = "socket0"},
               {.path = "the one socket of a machine without \"sockets\""});
      return;
    }
    if (sockets.size() > static_cast<std::size_t>(max_sockets))
      top_.fail("sockets",
                "expected at most " + std::to_string(max_sockets) + " sockets, got " + std::to_string(sockets.size()));
    for (std::size_t i = 0; i < sockets.size() && !wrong_.first; ++i) {
      const std::string path = "sockets[" + std::to_string(i) + "]";
      const fields f(wrong_, sockets[i], path, {"name", "numa_node", "node"});
      if (!f.has("name")) f.expected("name", "a name such as \"socket0\"");
      add_node({.kind = node_kind::socket,
                .name = f.text("name", "a name such as \"socket0\""),
                .numa_node = read_numa_node(f),
                .computer = computer_of(f, sockets.front())},
               {&sockets[i], path});
      ++socket_count_;
    }
  }

  // Sockets that name a node are of that computer: all of them name one, or none.
  int computer_of(const fields& socket, const document& first) {
    constexpr const char* what = "the name of a node such as \"node0\", of each socket or of none";
    if (socket.has("node") != (first.find("node") != nullptr)) socket.expected("node", what);
    if (!socket.has("node")) return 0;
    const std::string name = socket.text("node", what);
    const auto known = std::ranges::find(machine_.computers, name);
    if (known == machine_.computers.end()) machine_.computers.push_back(name);
    return static_cast<int>(std::ranges::find(machine_.computers, name) - machine_.computers.begin());
  }

  void read_switches() {
    const std::span<const document> switches = top_.array("switches");
    if (switches.size() > static_cast<std::size_t>(max_switches))
      top_.fail("switches", "expected at most " + std::to_string(max_switches) + " switches, got " +
                                std::to_string(switches.size()));
    for (std::size_t i = 0; i < switches.size() && !wrong_.first; ++i) {
      const std::string path = "switches[" + std::to_string(i) + "]";
      const fields f(wrong_, switches[i], path, {"name", "kind", "parent", "uplink"});
      constexpr std::array<std::string_view, 2> kinds{"pcie", "fabric"};
      if (!f.has("name")) f.expected("name", "a name such as \"switch0\"");
      const bool fabric = f.word("kind", kinds, 0) == 1;
      add_node({.kind = fabric ? node_kind::fabric_switch : node_kind::pcie_switch,
                .name = f.text("name", "a name such as \"switch0\"")},
               {&switches[i], path});
    }
  }

  void add_node(topology_node node, place where) {
    const bool named_like_device = node.kind != node_kind::device && node.name.starts_with("gpu");
    if (named_like_device) {
      wrong_.set(where.object->find("name")->line, where.path + ".name",
                 in_quotes(node.name) + " could be a device: names that begin with \"gpu\" are theirs");
    }
    const auto [first, fresh] = nodes_.emplace(node.name, static_cast<int>(machine_.nodes.size()));
    if (!fresh && where.object != nullptr) {
      wrong_.set(where.object->find("name")->line, where.path + ".name",
                 in_quotes(node.name) + " is taken by " + places_[at(first->second)].path);
    }
    machine_.nodes.push_back(std::move(node));
    places_.push_back(std::move(where));
  }

  // The node of a name; wrong and empty when there is none.
  std::optional<int> node_of(const document& name, const std::string& path) {
    if (name.kind == document_kind::string) {
      if (const auto match = nodes_.find(name.text); match != nodes_.end()) return match->second;
      std::vector<std::string_view> known;
      known.reserve(machine_.nodes.size());
      for (const topology_node& node : machine_.nodes) known.emplace_back(node.name);
      const auto nearest = nearest_name(name.text, known);
      wrong_.set(name.line, path,
                 "no device, socket or switch is called " + in_quotes(name.text) +
                     (nearest ? ", did you mean \"" + std::string(*nearest) + "\"?"
                              : ": devices are gpu0 to " + machine_.nodes[machine_.devices.size() - 1].name));
      return std::nullopt;
    }
    wrong_.set(name.line, path, "expected the name of a device, socket or switch, got " + found(name));
    return std::nullopt;
  }

  std::optional<device_id> device_of(const document& name, const std::string& path) {
    const std::optional<int> node = node_of(name, path);
    if (!node) return std::nullopt;
    if (*node >= machine_.device_count()) {
      wrong_.set(name.line, path, "expected a device, got " + in_quotes(name.text));
      return std::nullopt;
    }
    return device_id{*node};
  }

  void hang_on_parents() {
    const int first_socket = machine_.device_count();
    for (int i = 0; i < static_cast<int>(machine_.nodes.size()) && !wrong_.first; ++i) {
      const topology_node& node = machine_.nodes[at(i)];
      if (node.kind == node_kind::socket) continue;
      const place& where = places_[at(i)];
      const document* const parent = where.object->find("parent");
      if (parent != nullptr) {
        const std::optional<int> above = node_of(*parent, where.path + ".parent");
        if (!above) return;
        const node_kind kind = machine_.nodes[at(*above)].kind;
        if (kind != node_kind::socket && kind != node_kind::pcie_switch) {
          wrong_.set(
              parent->line, where.path + ".parent",
              "expected a socket or a switch of kind pcie, got " + in_quotes(parent->text) + ": join it in \"links\"");
          return;
        }
        machine_.nodes[at(i)].parent = above;
      } else if (node.kind == node_kind::fabric_switch) {
        if (where.object->find("uplink") != nullptr)
          wrong_.set(where.object->find("uplink")->line, where.path + ".uplink",
                     "expected a parent beside it, got none");
        continue;
      } else if (socket_count_ > 1) {
        wrong_.set(where.object->line, where.path + ".parent",
                   "expected the name of a socket or switch, since there are several sockets, got nothing");
        return;
      } else {
        machine_.nodes[at(i)].parent = first_socket;
      }
    }
    refuse_cycles();
    if (wrong_.first) return;
    for (int i = 0; i < static_cast<int>(machine_.nodes.size()); ++i) {
      topology_node& node = machine_.nodes[at(i)];
      if (!node.parent) continue;
      const place& where = places_[at(i)];
      link_spec spec{.kind = link_kind::pcie};
      if (const document* const uplink = where.object->find("uplink"); uplink != nullptr) {
        const fields f(wrong_, *uplink, where.path + ".uplink",
                       {"kind", "generation", "lanes", "bandwidth", "latency", "duplex", "native_atomics"});
        spec = read_link_spec(f, link_kind::pcie);
      }
      join(i, *node.parent, spec, true);
      if (node.kind == node_kind::device && !node.numa_node) {
        node.numa_node = machine_.nodes[at(*machine_.socket_of(device_id{i}))].numa_node;
        machine_.devices[at(i)].numa_node = node.numa_node;
      }
    }
  }

  void refuse_cycles() {
    for (int i = machine_.device_count(); i < static_cast<int>(machine_.nodes.size()); ++i) {
      std::string way = machine_.nodes[at(i)].name;
      std::optional<int> above = machine_.nodes[at(i)].parent;
      for (int steps = 0; above && steps <= max_switches; ++steps) {
        if (steps < 8) way += " -> " + machine_.nodes[at(*above)].name;
        if (*above == i) {
          const document* const parent = places_[at(i)].object->find("parent");
          wrong_.set(parent->line, places_[at(i)].path + ".parent",
                     "a cycle of parents: " + way + (steps < 8 ? "" : " -> …"));
          return;
        }
        above = machine_.nodes[at(*above)].parent;
      }
    }
  }

  void join(int from, int to, const link_spec& spec, bool both_ways) {
    const auto add = [&](int a, int b, int wire) {
      machine_.links.push_back({.from = a,
                                .to = b,
                                .wire = wire,
                                .kind = spec.kind,
                                .generation = spec.generation,
                                .lanes = spec.lanes,
                                .bytes_per_second = spec.bytes_per_second,
                                .latency = spec.latency,
                                .native_atomics = spec.native_atomics});
    };
    add(from, to, wires_++);
    if (both_ways) add(to, from, spec.half_duplex ? wires_ - 1 : wires_++);
  }

  // Two different names in an array: ["gpu0", "gpu1"].
  std::optional<std::pair<int, int>> pair_of(const document& value, const std::string& path) {
    if (value.kind != document_kind::array || value.elements.size() != 2) {
      wrong_.set(value.line, path,
                 "expected two names such as [\"gpu0\", \"gpu1\"], got " +
                     (value.kind == document_kind::array ? "an array of " + std::to_string(value.elements.size())
                                                         : found(value)));
      return std::nullopt;
    }
    const std::optional<int> from = node_of(value.elements[0], path);
    const std::optional<int> to = node_of(value.elements[1], path);
    if (!from || !to) return std::nullopt;
    if (*from == *to) {
      wrong_.set(value.line, path, "expected two different names, got " + found(value.elements[0]) + " twice");
      return std::nullopt;
    }
    return std::pair{*from, *to};
  }

  void read_links() {
    const std::span<const document> links = top_.array("links");
    for (std::size_t i = 0; i < links.size() && !wrong_.first; ++i) {
      const fields f(
          wrong_, links[i], "links[" + std::to_string(i) + "]",
          {"between", "from", "to", "kind", "generation", "lanes", "bandwidth", "latency", "duplex", "native_atomics"});
      if (!f.has("kind")) f.expected("kind", listed(link_kinds));
      const link_spec spec = read_link_spec(f, link_kind::unknown);
      const bool both_ways = f.has("between");
      std::optional<std::pair<int, int>> ends;
      if (both_ways && (f.has("from") || f.has("to"))) {
        f.fail("between", "stands for both directions: use it or \"from\" and \"to\"");
      } else if (both_ways) {
        ends = pair_of(*f.find("between"), f.path("between"));
      } else if (!f.has("from") || !f.has("to")) {
        f.fail("between", "expected two names such as [\"gpu0\", \"gpu1\"], or \"from\" and \"to\", got nothing");
      } else {
        const std::optional<int> from = node_of(*f.find("from"), f.path("from"));
        const std::optional<int> to = node_of(*f.find("to"), f.path("to"));
        if (from && to && *from == *to) f.fail("to", "expected another place than \"from\"");
        if (f.has("duplex")) f.fail("duplex", "belongs to links \"between\" two places: this one has one direction");
        if (from && to) ends = std::pair{*from, *to};
      }
      if (wrong_.first || !ends) return;
      const auto is_socket = [&](int node) { return machine_.nodes[at(node)].kind == node_kind::socket; };
      if (spec.kind == link_kind::socket && !(is_socket(ends->first) && is_socket(ends->second))) {
        f.fail("kind", "a link of kind socket joins two sockets, not " + machine_.nodes[at(ends->first)].name +
                           " and " + machine_.nodes[at(ends->second)].name);
        return;
      }
      join(ends->first, ends->second, spec, both_ways);
    }
  }

  // Joined by one kind of fabric, without PCIe or sockets between.
  [[nodiscard]] std::vector<bool> linked_pairs() const {
    const std::size_t n = machine_.devices.size();
    std::vector<bool> linked(n * n, false);
    std::vector<std::vector<const topology_link*>> outward(machine_.nodes.size());
    for (const topology_link& link : machine_.links) {
      if (machine_.nodes[at(link.to)].kind == node_kind::device ||
          machine_.nodes[at(link.to)].kind == node_kind::fabric_switch) {
        outward[at(link.from)].push_back(&link);
      }
    }
    for (std::size_t d = 0; d < n; ++d) {
      std::vector<bool> seen(machine_.nodes.size(), false);
      std::vector<std::size_t> open{d};
      while (!open.empty()) {
        const std::size_t node = open.back();
        open.pop_back();
        for (const topology_link* const link : outward[node]) {
          const std::size_t to = at(link->to);
          if (seen[to]) continue;
          seen[to] = true;
          if (to < n)
            linked[d * n + to] = true;
          else
            open.push_back(to);
        }
      }
    }
    return linked;
  }

  // Below one switch, however many switches are between.
  [[nodiscard]] std::optional<int> topmost_switch(int device) const {
    std::optional<int> top;
    for (std::optional<int> node = machine_.nodes[at(device)].parent; node; node = machine_.nodes[at(*node)].parent) {
      if (machine_.nodes[at(*node)].kind == node_kind::pcie_switch) top = node;
    }
    return top;
  }

  void read_access() {
    const int count = machine_.device_count();
    machine_.access.assign(at(count) * at(count), false);
    const document* const object = top_.find("peer_access");
    if (object == nullptr) return;
    const fields f(wrong_, *object, "peer_access", {"rule", "add", "remove"});
    if (wrong_.first) return;
    constexpr std::array<std::string_view, 5> rules{"none", "all", "linked", "same_switch", "same_socket"};
    const std::string_view rule = rules[f.word("rule", rules, 0)];
    if (rule == "linked") machine_.access = linked_pairs();
    std::vector<std::optional<int>> group(at(count));
    for (int d = 0; d < count; ++d) {
      if (rule == "all") group[at(d)] = 0;
      if (rule == "same_switch") group[at(d)] = topmost_switch(d);
      if (rule == "same_socket") group[at(d)] = machine_.socket_of(device_id{d});
    }
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        const std::size_t pair = machine_.pair(device_id{from}, device_id{to});
        if (from != to && group[at(from)] && group[at(from)] == group[at(to)]) machine_.access[pair] = true;
      }
    }
    for (const auto& [key, value] : {std::pair{"add", true}, std::pair{"remove", false}}) {
      std::size_t i = 0;
      for (const document& entry : f.array(key)) {
        const std::string path = f.path(key) + "[" + std::to_string(i++) + "]";
        const auto ends = pair_of(entry, path);
        if (!ends) return;
        if (std::max(ends->first, ends->second) >= count) {
          wrong_.set(entry.line, path,
                     "expected two devices, got " + machine_.nodes[at(ends->first)].name + " and " +
                         machine_.nodes[at(ends->second)].name);
          return;
        }
        machine_.access[machine_.pair(device_id{ends->first}, device_id{ends->second})] = value;
      }
    }
  }

  void read_faults() {
    const std::span<const document> faults = top_.array("faults");
    for (std::size_t i = 0; i < faults.size() && !wrong_.first; ++i) {
      const fields f(wrong_, faults[i], "faults[" + std::to_string(i) + "]",
                     {"kind", "link", "device", "from", "to", "call", "nth", "duration"});
      if (!wrong_.first) machine_.faults.push_back(read_fault(f));
    }
  }

  topology_fault read_fault(const fields& f) {
    using kind = topology_fault::kind;
    struct shape {
      std::string_view name;
      std::string_view needs;  // words in spaces
      std::string_view takes;
    };
    // In the order of topology_fault::kind.
    constexpr std::array<shape, 6> shapes{
        shape{"copy_fails", "", " from to link nth "}, shape{"device_stalls", " device duration ", " nth "},
        shape{"drops_data", " from to ", ""},          shape{"device_lost", " device ", " nth "},
        shape{"call_fails", " call ", " device nth "}, shape{"corrupts", " from to ", " nth "}};
    std::array<std::string_view, shapes.size()> names{};
    for (std::size_t i = 0; i < shapes.size(); ++i) names[i] = shapes[i].name;
    topology_fault fault;
    if (!f.has("kind")) f.expected("kind", listed(names));
    const shape& s = shapes[f.word("kind", names, 0)];
    fault.what = static_cast<kind>(&s - shapes.data());
    if (wrong_.first) return fault;

    for (const std::string_view key : {"link", "device", "from", "to", "call", "nth", "duration"}) {
      const std::string word = " " + std::string(key) + " ";
      const bool needed = s.needs.find(word) != std::string_view::npos;
      if (needed && !f.has(key)) f.fail(key, "expected with " + in_quotes(s.name) + ", got nothing");
      if (!needed && f.has(key) && s.takes.find(word) == std::string_view::npos)
        f.fail(key, in_quotes(s.name) + " does not take it");
    }
    if (fault.what == kind::copy_fails && (f.has("link") == f.has("from") || f.has("from") != f.has("to")))
      f.fail("link", "expected either a link or both \"from\" and \"to\" with \"copy_fails\"");
    if (wrong_.first) return fault;

    if (f.has("device")) fault.device = device_of(*f.find("device"), f.path("device"));
    if (f.has("from")) fault.from = device_of(*f.find("from"), f.path("from"));
    if (f.has("to")) fault.to = device_of(*f.find("to"), f.path("to"));
    fault.call = f.text("call", "the name of a call");
    fault.nth = fault.what == kind::drops_data ? 0 : static_cast<std::uint64_t>(f.integer("nth", 1, 0, 2'000'000'000));
    fault.duration = f.quantity<std::chrono::nanoseconds>("duration", {}, parse_duration,
                                                          "a duration up to an hour such as \"50ms\"");
    if (f.has("link")) {
      if (const auto ends = pair_of(*f.find("link"), f.path("link"))) {
        const auto match = std::ranges::find_if(machine_.links, [&](const topology_link& link) {
          return link.from == ends->first && link.to == ends->second;
        });
        if (match == machine_.links.end()) {
          f.fail("link", "no link leads straight from " + machine_.nodes[at(ends->first)].name + " to " +
                             machine_.nodes[at(ends->second)].name);
        }
        fault.link = static_cast<int>(match - machine_.links.begin());
      }
    }
    return fault;
  }

  failure& wrong_;
  fields top_;
  topology machine_;
  std::map<std::string, int, std::less<>> nodes_;
  std::map<std::string, std::string> addresses_;
  std::vector<place> places_;  // by node
  int socket_count_ = 0;
  int wires_ = 0;
};

// The line of "devices[2]", "peer_access"; of the whole file for anything else.
int line_of(const document& root, const std::string& part) {
  const std::size_t bracket = part.find('[');
  const document* const value = root.find(part.substr(0, bracket));
  if (value == nullptr) return root.line;
  if (bracket == std::string::npos) return value->line;
  const std::size_t index = std::stoul(part.substr(bracket + 1));
  return index < value->elements.size() ? value->elements[index].line : value->line;
}

}  // namespace

result<topology> read_topology(const document& root, std::string_view origin) {
  failure wrong{origin};
  topology machine = topology_builder(root, wrong).build();
  if (!wrong.first) {
    if (const auto problem = complete(machine)) wrong.set(line_of(root, problem->part), problem->part, problem->text);
  }
  if (wrong.first) return std::move(*wrong.first);
  return machine;
}

}  // namespace weft::detail
