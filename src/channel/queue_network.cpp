// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/queue_network.hpp"

#include "weft/core/raise.hpp"

#include <algorithm>
#include <string>
#include <string_view>

namespace weft {
namespace {

std::string named(const queue_edge& edge) { return to_string(edge.from) + " -> " + to_string(edge.to); }

template <class Things, class Name>
std::string listed(const Things& things, Name&& name) {
  std::string text;
  for (const auto& thing : things) text += (text.empty() ? "" : ", ") + name(thing);
  return text.empty() ? "none" : text;
}

void check_devices(std::string_view what, std::span<const device_id> devices, std::source_location where) {
  const auto names = [&] { return listed(devices, [](device_id id) { return to_string(id); }); };
  if (devices.size() < 2) {
    raise(errc::invalid_argument,
          "a " + std::string{what} + " needs at least two devices, it was given: " + names() +
              "; for a queue from a device to itself use make_pair",
          where);
  }
  for (auto at = devices.begin(); at != devices.end(); ++at) {
    if (std::find(devices.begin(), at, *at) != at) {
      raise(errc::invalid_argument,
            to_string(*at) + " stands twice in a " + std::string{what} + " of " + names() + "; name each device once",
            where);
    }
  }
}

}  // namespace

std::vector<queue_edge> both_ways(device_id a, device_id b, std::source_location where) {
  if (a == b) {
    raise(errc::invalid_argument,
          "both ways between " + to_string(a) + " and itself is one queue; use make_pair for it", where);
  }
  return {{a, b}, {b, a}};
}

std::vector<queue_edge> ring_edges(std::span<const device_id> devices, std::source_location where) {
  check_devices("ring", devices, where);
  std::vector<queue_edge> edges;
  edges.reserve(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) edges.push_back({devices[i], devices[(i + 1) % devices.size()]});
  return edges;
}

std::vector<queue_edge> mesh_edges(std::span<const device_id> devices, std::source_location where) {
  check_devices("mesh", devices, where);
  std::vector<queue_edge> edges;
  edges.reserve(devices.size() * (devices.size() - 1));
  for (const device_id from : devices) {
    for (const device_id to : devices) {
      if (from != to) edges.push_back({from, to});
    }
  }
  return edges;
}

namespace detail {

void check_edges(std::span<const queue_edge> edges, std::source_location where) {
  if (edges.empty()) raise(errc::invalid_argument, "a network needs at least one queue, it was given none", where);
  for (auto at = edges.begin(); at != edges.end(); ++at) {
    if (std::find(edges.begin(), at, *at) != at) {
      raise(errc::invalid_argument,
            "a network has one queue for each pair, and " + named(*at) +
                " stands twice; for several senders set queue_options::producers",
            where);
    }
  }
}

std::size_t index_of_edge(std::span<const queue_edge> edges, device_id from, device_id to, std::source_location where) {
  const auto found = std::find(edges.begin(), edges.end(), queue_edge{from, to});
  if (found == edges.end()) {
    raise(errc::not_found, "no queue " + named({from, to}) + " in this network; it has " + listed(edges, named), where);
  }
  return static_cast<std::size_t>(found - edges.begin());
}

void raise_no_such_sender(const queue_edge& edge, std::size_t asked, std::size_t producers,
                          std::source_location where) {
  raise(errc::not_found,
        "no sender " + std::to_string(asked) + " of the queue " + named(edge) + ": it has " +
            std::to_string(producers) + ", counted from 0; set queue_options::producers",
        where);
}

}  // namespace detail
}  // namespace weft
