// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "command_line/output.hpp"
#include "weft/distributed/world.hpp"

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::tool {

/// How long a rank waits for the others.
inline constexpr std::chrono::seconds world_timeout{60};

/// The world of which its launcher has made this process a rank. Errors: failure.
[[nodiscard]] world joined_world(session& run, std::chrono::nanoseconds timeout = world_timeout);

/// In each round every rank has at most one partner, and after `rounds_of(size)` has met each other one once: the
/// circle method. Nothing where the rank has none in this round.
[[nodiscard]] std::optional<rank> partner(rank self, int size, int round);
[[nodiscard]] constexpr int rounds_of(int size) { return size + size % 2 - 1; }

/// What every rank of a world says, by way of rank 0.
[[nodiscard]] std::vector<std::vector<std::byte>> gather_in(world& of, std::span<const std::byte> mine);

/// require_place() on rank 0, which writes the file if it has a name there; where that fails, every rank ends. Errors:
/// failure.
void require_place_at_first(world& of, const std::string& path);

}  // namespace weft::tool
