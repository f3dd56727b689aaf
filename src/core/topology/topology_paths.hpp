// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/topology.hpp"

#include <optional>
#include <string>

namespace weft::detail {

/// What is wrong with a topology, and the part of it that is: "links", "peer_access", "devices[2]".
struct topology_problem {
  std::string part;
  std::string text;
};

/// Fills peer_paths, to_host, from_host and between_sockets of a topology whose nodes and links are sound.
/// Order: widest bottleneck, then least latency, then fewest links, then the links named first.
/// Cost: one search of the switches and sockets per device and distinct bottleneck.
[[nodiscard]] std::optional<topology_problem> derive_paths(topology& machine);

/// Checks everything and fills what is derived; complete_topology() with the part named apart.
[[nodiscard]] std::optional<topology_problem> complete(topology& machine);

/// The links of one kind alone, over which devices reach each other directly or through its switches.
class fabric {
 public:
  fabric(const topology& machine, link_kind kind);
  /// Links bonded from a device to each other node; 0 where there is no way. A link that does not say how many it is
  /// made of counts as one.
  [[nodiscard]] std::vector<int> links_from(int from) const;

 private:
  const topology& machine_;
  std::vector<std::vector<const topology_link*>> out_of_;
};

}  // namespace weft::detail
