// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule/move_ways.hpp"

#include "core/modelled_time.hpp"

#include <algorithm>

namespace weft::detail {

move_ways::move_ways(const topology& machine) : machine_(machine), facts_(route_facts_of(machine)) {}

std::size_t move_ways::wires_of(const topology& machine) {
  std::size_t count = 0;
  for (const topology_link& link : machine.links) count = std::max(count, static_cast<std::size_t>(link.wire) + 1);
  return count;
}

const move_ways::leg* move_ways::fill(leg& one, const link_path& path) const {
  if (one.wires.empty()) {
    one.path = path;
    one.wires.reserve(path.links.size());
    for (const int link : path.links) one.wires.push_back(machine_.links[static_cast<std::size_t>(link)].wire);
  }
  return &one;
}

const move_ways::leg* move_ways::peer(device_id from, device_id to) {
  return fill(legs(from, to).peer, machine_.peer_paths[machine_.pair(from, to)]);
}

move_ways::way move_ways::choose(device_id from, device_id to, std::uint64_t size) {
  const auto chosen = route(facts_, from, to, bytes{size});
  if (!chosen) return {};
  switch (chosen->path) {
    case copy_path::direct:
      return {peer(from, to), nullptr, size, 1};
    case copy_path::relayed:
      return {peer(from, chosen->via), peer(chosen->via, to), chosen->chunk, chosen->depth};
    default:
      break;
  }
  pair_legs& own = legs(from, to);
  const leg* const down = fill(own.down, machine_.to_host[from.index()]);
  // from the memory of the sender's socket on: one step over all links on the way
  if (own.up.wires.empty()) fill(own.up, way_from_host_near(machine_, from, to));
  return {down, &own.up, chosen->chunk, chosen->depth};
}

const move_ways::way& move_ways::of(device_id from, device_id to, std::uint64_t size) {
  // most moves between two devices are of one size
  known_way& last = legs(from, to).last;
  if (last.taken.first == nullptr || last.size != size) {
    const way found = choose(from, to, size);
    last = {size, found};
  }
  return last.taken;
}

}  // namespace weft::detail
