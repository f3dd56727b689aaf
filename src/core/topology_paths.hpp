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

/// Links bonded between two devices over one fabric kind alone, directly or through fabric switches; 0 if there are
/// none. A link that does not say how many it is made of counts as one.
[[nodiscard]] int fabric_links(const topology& machine, link_kind kind, int from, int to);

}  // namespace weft::detail
