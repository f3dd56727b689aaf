// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "command_line/output.hpp"
#include "weft/distributed/world.hpp"

#include <chrono>

namespace weft::tool {

/// The world of which its launcher has made this process a rank. Errors: failure.
[[nodiscard]] world joined_world(session& run, std::chrono::nanoseconds limit = std::chrono::seconds{60});

}  // namespace weft::tool
