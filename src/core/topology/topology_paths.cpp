// SPDX-License-Identifier: Apache-2.0
#include "core/topology/topology_paths.hpp"

#include "core/at.hpp"

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace weft::detail {
namespace {

constexpr double unreachable = -1.0;
// Steps of searches and links of paths: what a machine of the largest size needs many times over, in seconds.
constexpr std::size_t most_work = 400'000'000;

// The best paths from one node to others. No single label orders paths by (bottleneck, latency, count): a path may be
// narrow at its start and be narrowed further anyway. So the widest bottleneck is found first, then the quickest path
// among the links that are wide enough. Devices are never passed, so the searches cover switches and sockets only.
class path_search {
 public:
  explicit path_search(const topology& machine)
      : machine_(machine), inward_(machine.nodes.size()), outward_(machine.nodes.size()), ends_(machine.nodes.size()) {
    for (int link = 0; link < static_cast<int>(machine.links.size()); ++link) {
      const topology_link& l = machine.links[at(link)];
      if (!is_device(l.to)) {
        outward_[at(l.from)].push_back(link);
      } else if (is_device(l.from)) {
        ends_[at(l.from)].push_back(link);
      } else {
        inward_[at(l.to)].push_back(link);
      }
    }
    for (std::vector<int>& direct : ends_) {
      std::ranges::sort(direct, {}, [&](int link) { return std::pair{machine_.links[at(link)].to, link}; });
    }
  }

  // Calls done(target, path) for each target that can be reached; false when the work grows beyond all measure.
  template <class Done>
  bool run(int source, std::span<const int> targets, const Done& done) {
    find_widths(source);
    std::vector<std::pair<double, int>> wanted;
    for (const int target : targets) {
      const double width = width_of(source, target);
      if (width != unreachable && target != source) wanted.emplace_back(width, target);
    }
    std::ranges::sort(wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (i == 0 || wanted[i].first != wanted[i - 1].first) find_quickest(source, wanted[i].first);
      done(wanted[i].second, path_to(source, wanted[i].second, wanted[i].first));
      if (work_ > most_work) return false;
    }
    return true;
  }

 private:
  struct label {
    std::int64_t latency = std::numeric_limits<std::int64_t>::max();
    int count = 0;
    int link = -1;  // the last of the path

    [[nodiscard]] bool reached() const { return latency != std::numeric_limits<std::int64_t>::max(); }
    friend auto operator<=>(const label&, const label&) = default;
  };

  [[nodiscard]] bool is_device(int node) const { return node < machine_.device_count(); }

  // The links that lead straight from one device to another.
  [[nodiscard]] std::span<const int> direct(int source, int target) const {
    const std::vector<int>& links = ends_[at(source)];
    const auto range =
        std::ranges::equal_range(links, target, {}, [&](int link) { return machine_.links[at(link)].to; });
    return {range.begin(), range.end()};
  }

  void find_widths(int source) {
    width_.assign(machine_.nodes.size(), unreachable);
    width_[at(source)] = std::numeric_limits<double>::infinity();
    std::priority_queue<std::pair<double, int>> open;
    open.emplace(width_[at(source)], source);
    while (!open.empty()) {
      const auto [width, node] = open.top();
      open.pop();
      if (width < width_[at(node)]) continue;
      for (const int link : outward_[at(node)]) {
        ++work_;
        const topology_link& l = machine_.links[at(link)];
        const double through = std::min(width, l.bytes_per_second);
        if (through > width_[at(l.to)]) {
          width_[at(l.to)] = through;
          open.emplace(through, l.to);
        }
      }
    }
  }

  double width_of(int source, int target) {
    if (!is_device(target)) return width_[at(target)];
    double widest = unreachable;
    for (const int link : direct(source, target)) widest = std::max(widest, machine_.links[at(link)].bytes_per_second);
    for (const int link : inward_[at(target)]) {
      const topology_link& l = machine_.links[at(link)];
      widest = std::max(widest, std::min(width_[at(l.from)], l.bytes_per_second));
    }
    work_ += inward_[at(target)].size();
    return widest;
  }

  [[nodiscard]] static label longer(const label& path, const topology_link& by, int link) {
    return {path.latency + by.latency.count(), path.count + 1, link};
  }

  void find_quickest(int source, double width) {
    label_.assign(machine_.nodes.size(), label{});
    label_[at(source)] = {0, 0, -1};
    using entry = std::tuple<std::int64_t, int, int>;  // latency, count, node
    std::priority_queue<entry, std::vector<entry>, std::greater<>> open;
    open.emplace(0, 0, source);
    while (!open.empty()) {
      const auto [latency, count, node] = open.top();
      open.pop();
      if (std::tie(latency, count) > std::tie(label_[at(node)].latency, label_[at(node)].count)) continue;
      for (const int link : outward_[at(node)]) {
        ++work_;
        const topology_link& l = machine_.links[at(link)];
        if (l.bytes_per_second < width) continue;
        const label next = longer(label_[at(node)], l, link);
        label& known = label_[at(l.to)];
        if (std::tie(next.latency, next.count) < std::tie(known.latency, known.count)) {
          known = next;
          open.emplace(next.latency, next.count, l.to);
        }
      }
    }
  }

  link_path path_to(int source, int target, double width) {
    label best = is_device(target) ? label{} : label_[at(target)];
    if (is_device(target)) {
      for (const int link : direct(source, target)) {
        const topology_link& l = machine_.links[at(link)];
        if (l.bytes_per_second >= width) best = std::min(best, longer({0, 0, -1}, l, link));
      }
      for (const int link : inward_[at(target)]) {
        const topology_link& l = machine_.links[at(link)];
        const label& before = label_[at(l.from)];
        if (l.bytes_per_second >= width && before.reached()) best = std::min(best, longer(before, l, link));
      }
    }
    link_path path;
    path.bytes_per_second = width;
    path.latency = std::chrono::nanoseconds(best.latency);
    path.native_atomics = true;
    path.links.resize(at(best.count));
    int link = best.link;
    for (std::size_t i = path.links.size(); i-- > 0;) {
      const topology_link& l = machine_.links[at(link)];
      path.links[i] = link;
      path.native_atomics = path.native_atomics && l.native_atomics;
      link = label_[at(l.from)].link;
    }
    work_ += path.links.size();
    return path;
  }

  const topology& machine_;
  std::vector<std::vector<int>> inward_;   // per device: links from switches and sockets
  std::vector<std::vector<int>> outward_;  // per node: links to switches and sockets
  std::vector<std::vector<int>> ends_;     // per device: links straight to other devices, by the other
  std::vector<double> width_;
  std::vector<label> label_;
  std::size_t work_ = 0;
};

topology_problem not_joined(const topology& machine, int from, int to) {
  return {"links", "expected a way from " + machine.nodes[at(from)].name + " to " + machine.nodes[at(to)].name +
                       ", got none: add a link between them"};
}

}  // namespace

std::optional<topology_problem> derive_paths(topology& machine) {
  const int count = machine.device_count();
  const std::size_t n = machine.devices.size();
  const auto too_large = [] {
    return topology_problem{"links", "more paths than can be worked out: use fewer devices, switches or links"};
  };
  machine.peer_paths.assign(n * n, {});
  machine.to_host.assign(n, {});
  machine.from_host.assign(n, {});
  machine.between_sockets.assign(n * n, {});

  std::vector<int> socket_of(n);
  for (int d = 0; d < count; ++d) {
    const std::optional<int> socket = machine.socket_of(device_id{d});
    if (!socket) return topology_problem{"devices[" + std::to_string(d) + "]", "hangs on no socket: give it a parent"};
    socket_of[at(d)] = *socket;
  }

  path_search search(machine);
  std::vector<int> targets(n + 1);
  for (int d = 0; d < count; ++d) targets[at(d)] = d;
  for (int d = 0; d < count; ++d) {
    targets[n] = socket_of[at(d)];
    const bool finished = search.run(d, targets, [&](int target, link_path path) {
      (target < count ? machine.peer_paths[machine.pair(device_id{d}, device_id{target})] : machine.to_host[at(d)]) =
          std::move(path);
    });
    if (!finished) return too_large();
    if (machine.to_host[at(d)].links.empty()) return not_joined(machine, d, socket_of[at(d)]);
  }

  std::vector<std::vector<int>> devices_on(machine.nodes.size());
  for (int d = 0; d < count; ++d) devices_on[at(socket_of[at(d)])].push_back(d);
  std::vector<int> sockets;
  for (int node = 0; node < static_cast<int>(machine.nodes.size()); ++node) {
    if (!devices_on[at(node)].empty()) sockets.push_back(node);
  }
  for (const int socket : sockets) {
    targets = sockets;
    targets.insert(targets.end(), devices_on[at(socket)].begin(), devices_on[at(socket)].end());
    std::vector<link_path> reached(machine.nodes.size());
    const bool finished =
        search.run(socket, targets, [&](int target, link_path path) { reached[at(target)] = std::move(path); });
    if (!finished) return too_large();
    for (const int target : targets) {
      if (target != socket && reached[at(target)].links.empty()) return not_joined(machine, socket, target);
    }
    for (const int d : devices_on[at(socket)]) {
      machine.from_host[at(d)] = std::move(reached[at(d)]);
      for (int other = 0; other < count; ++other) {
        if (socket_of[at(other)] != socket) {
          machine.between_sockets[machine.pair(device_id{d}, device_id{other})] = reached[at(socket_of[at(other)])];
        }
      }
    }
  }
  return std::nullopt;
}

fabric::fabric(const topology& machine, link_kind kind) : machine_(machine), out_of_(machine.nodes.size()) {
  for (const topology_link& l : machine.links) {
    if (l.kind == kind) out_of_[at(l.from)].push_back(&l);
  }
}

std::vector<int> fabric::links_from(int from) const {
  std::vector<int> most(machine_.nodes.size(), 0);
  std::vector<int> open{from};
  most[at(from)] = std::numeric_limits<int>::max();
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    for (const topology_link* l : out_of_[at(node)]) {
      const int through = std::min(most[at(node)], std::max(l->lanes, 1));
      if (through <= most[at(l->to)]) continue;
      most[at(l->to)] = through;
      if (machine_.nodes[at(l->to)].kind == node_kind::fabric_switch) open.push_back(l->to);
    }
  }
  most[at(from)] = 0;
  return most;
}

}  // namespace weft::detail
