// SPDX-License-Identifier: Apache-2.0
#include "core/topology/joined_topology.hpp"

#include "core/at.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::detail {
namespace {

class joiner {
 public:
  explicit joiner(std::span<const topology* const> parts) : parts_(parts) {
    made_.simulated = false;
    for (const topology* part : parts) {
      made_.name += (made_.name.empty() ? "" : "+") + part->name;
      made_.simulated = made_.simulated || part->simulated;
      made_.sources.insert(made_.sources.end(), part->sources.begin(), part->sources.end());
    }
    made_.description = "The devices of several backends, joined at the memory of the host";
  }

  topology run() {
    add_devices();
    for (const topology* part : parts_) add(*part);
    join_strays();
    return std::move(made_);
  }

 private:
  void add_devices() {
    for (const topology* part : parts_) {
      const int first = static_cast<int>(made_.devices.size());
      for (int d = 0; d < part->device_count(); ++d) {
        topology_device device = part->devices[at(d)];
        // a device that appears twice because that was asked for; addresses are unique in a topology
        if (!device.pci_address.empty() && !addresses_.insert(device.pci_address).second) device.pci_address.clear();
        made_.devices.push_back(std::move(device));
        topology_node node = part->nodes[at(d)];
        if (node.name == to_string(device_id{d})) node.name = to_string(device_id{first + d});
        node.parent.reset();  // known when the rest of the part is there
        node.name = unique(std::move(node.name), part->name);
        made_.nodes.push_back(std::move(node));
      }
    }
    made_.access.assign(made_.devices.size() * made_.devices.size(), false);
  }

  std::string unique(std::string name, std::string_view part) {
    if (names_.insert(name).second) return name;
    std::string longer = std::string{part} + " " + name;
    while (!names_.insert(longer).second) longer += "'";
    return longer;
  }

  void add(const topology& part) {
    const std::vector<int> places = add_nodes(part);
    for (int from = 0; from < part.device_count(); ++from) {
      for (int to = 0; to < part.device_count(); ++to) {
        made_.access[made_.pair(device_id{first_ + from}, device_id{first_ + to})] =
            part.can_access(device_id{from}, device_id{to});
      }
    }
    const int first_link = static_cast<int>(made_.links.size());
    const int first_wire = next_wire_;
    for (topology_link link : part.links) {
      link.from = places[at(link.from)];
      link.to = places[at(link.to)];
      link.wire += first_wire;
      next_wire_ = std::max(next_wire_, link.wire + 1);
      made_.links.push_back(link);
    }
    for (topology_fault fault : part.faults) {
      for (std::optional<device_id>* id : {&fault.device, &fault.from, &fault.to}) {
        if (*id) *id = device_id{first_ + (*id)->value()};
      }
      if (fault.link) *fault.link += first_link;
      made_.faults.push_back(std::move(fault));
    }
    first_ += part.device_count();
  }

  /// Where the nodes of a part went.
  std::vector<int> add_nodes(const topology& part) {
    std::vector<int> places(part.nodes.size(), -1);
    for (int d = 0; d < part.device_count(); ++d) places[at(d)] = first_ + d;
    const std::size_t known = sockets_.size();
    std::size_t nth = 0;
    for (std::size_t i = part.devices.size(); i < part.nodes.size(); ++i) {
      const topology_node& node = part.nodes[i];
      if (node.kind == node_kind::socket) {
        const auto same = socket_like(part, node, nth++, known);
        // two sockets of a part are two places
        if (same && std::find(places.begin(), places.end(), *same) == places.end()) {
          places[i] = *same;
          continue;
        }
        sockets_.push_back(static_cast<int>(made_.nodes.size()));
        if (known > 0) strays_.push_back(sockets_.back());
      }
      places[i] = static_cast<int>(made_.nodes.size());
      topology_node copy = node;
      copy.parent.reset();
      copy.name = unique(std::move(copy.name), part.name);
      made_.nodes.push_back(std::move(copy));
    }
    for (std::size_t i = 0; i < part.nodes.size(); ++i) {
      if (part.nodes[i].parent) made_.nodes[at(places[i])].parent = places[at(*part.nodes[i].parent)];
    }
    return places;
  }

  [[nodiscard]] std::optional<int> socket_like(const topology& part, const topology_node& node, std::size_t nth,
                                               std::size_t known) const {
    for (std::size_t i = 0; i < known; ++i) {
      if (node.numa_node && made_.nodes[at(sockets_[i])].numa_node == node.numa_node) return sockets_[i];
    }
    // numbers that differ are different places; where one of them has none, the order is what there is
    if (nth >= known) return std::nullopt;
    const auto number = made_.nodes[at(sockets_[nth])].numa_node;
    if (node.numa_node && number) return std::nullopt;
    const bool is_anothers = number && std::any_of(part.nodes.begin(), part.nodes.end(),
                                                   [&](const topology_node& n) { return n.numa_node == number; });
    return is_anothers ? std::nullopt : std::optional{sockets_[nth]};
  }

  /// Links that no part has come last, so that those of the parts keep their order.
  void join_strays() {
    for (const int stray : strays_) {
      for (const auto& [from, to] : {std::pair{stray, sockets_.front()}, std::pair{sockets_.front(), stray}})
        made_.links.push_back({.from = from, .to = to, .wire = next_wire_++, .kind = link_kind::socket});
    }
  }

  std::span<const topology* const> parts_;
  topology made_;
  int first_ = 0;
  int next_wire_ = 0;
  std::vector<int> sockets_, strays_;
  std::set<std::string> names_, addresses_;
};

}  // namespace

result<topology> join_topologies(std::span<const topology* const> parts) {
  topology made = joiner{parts}.run();
  std::vector<capability> own;
  own.reserve(made.devices.size());
  for (const topology_device& device : made.devices) own.push_back(device.capabilities);
  auto complete = complete_topology(std::move(made));
  if (!complete) return complete;
  // what a backend says of its devices stands
  for (std::size_t i = 0; i < own.size(); ++i) complete->devices[i].capabilities = own[i];
  return complete;
}

}  // namespace weft::detail
