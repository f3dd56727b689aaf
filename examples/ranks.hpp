// SPDX-License-Identifier: Apache-2.0
// What examples share that run as several processes too.
#pragma once

#include "weft/distributed/world.hpp"

#include <optional>
#include <string>

namespace examples {

/// Where a launcher, or a shell, says that this process is one of several.
inline std::optional<weft::world_place> place_in_a_world() {
  try {
    const weft::world_place place = weft::world_place::from_environment();
    return place.size > 1 ? std::optional{place} : std::nullopt;
  } catch (const weft::error_exception& alone) {
    // alone where nobody says how many there are; a launcher that leaves out the rest is to be heard of
    if (alone.cause().what.find("WORLD_SIZE") == std::string::npos) throw;
    return std::nullopt;
  }
}

}  // namespace examples
