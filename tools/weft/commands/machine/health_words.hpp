// SPDX-License-Identifier: Apache-2.0
// How devices are, as the tool says it.
#pragma once

#include "command_line/output.hpp"

#include <optional>
#include <string>

namespace weft::tool {

/// What sensors tell of a device now, or why nothing does.
struct known_health {
  std::optional<device_health> now;
  std::string why;
};
[[nodiscard]] known_health health_of(const device& d);

/// Every field, null where no sensor tells; null where nothing does.
[[nodiscard]] json health_json(const known_health& health);

/// A blank line, then a table of the devices of which something is known; empty without any.
[[nodiscard]] std::string health_text(const session& run, const machine& m);

}  // namespace weft::tool
