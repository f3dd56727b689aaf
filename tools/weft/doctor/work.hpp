// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "command_line/output.hpp"

namespace weft::tool {

/// This computer, or that the machine is simulated, as a weft.machine/1 document with a part "work". Uses every device,
/// within about ten seconds: verifies and measures each pair, the way between each device and host memory near and far,
/// and runs a kernel on each. What fails is told there; an interrupt ends it with what it has.
[[nodiscard]] json gather_with_work(session& run, const machine& m);

}  // namespace weft::tool
