// SPDX-License-Identifier: Apache-2.0
// The way that each move of a schedule takes over a machine, with peer access on wherever it is offered.
#pragma once

#include "weft/core/topology.hpp"
#include "weft/memory/route.hpp"

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace weft::detail {

/// Thread: one at a time.
class move_ways {
 public:
  /// What one step of a copy crosses.
  struct leg {
    link_path path;
    std::vector<int> wires;  // of its links
  };
  /// A copy from device to device: all of it over one leg, or in chunks over two.
  struct way {
    const leg* first = nullptr;   // null: there is no way
    const leg* second = nullptr;  // staged and relayed
    std::uint64_t chunk = 0;
    int depth = 0;
  };

  explicit move_ways(const topology& machine);

  /// Of two devices that differ.
  [[nodiscard]] const way& of(device_id from, device_id to, std::uint64_t size);
  [[nodiscard]] static std::size_t wires_of(const topology& machine);

 private:
  struct known_way {
    std::uint64_t size = 0;
    way taken;
  };
  struct pair_legs {
    leg peer, down, up;  // empty until they are used
    known_way last;
  };
  [[nodiscard]] way choose(device_id from, device_id to, std::uint64_t size);
  [[nodiscard]] pair_legs& legs(device_id from, device_id to) { return pairs_[machine_.pair(from, to)]; }
  [[nodiscard]] const leg* peer(device_id from, device_id to);
  const leg* fill(leg& one, const link_path& path) const;

  const topology& machine_;
  route_facts facts_;
  std::unordered_map<std::size_t, pair_legs> pairs_;
};

}  // namespace weft::detail
