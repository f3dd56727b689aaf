// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/topology.hpp"

#include <span>

namespace weft::detail {

/// Several topologies of one computer as one: devices, links and faults of each after those of the one before, in the
/// same order, and their sockets one and the same: those with the same NUMA node, else the nth of each. A socket that
/// only one of them knows hangs on the first socket by links of unknown rate. Between devices of two of them nobody
/// has access. Errors: invalid_topology.
[[nodiscard]] result<topology> join_topologies(std::span<const topology* const> parts);

}  // namespace weft::detail
