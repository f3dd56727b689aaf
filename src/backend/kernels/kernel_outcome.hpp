// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/kernel_code.hpp"
#include "weft/core/error.hpp"
#include "weft/core/ids.hpp"

#include <optional>
#include <span>

namespace weft {

/// Runs a kernel's host version on this thread, as work of the device `by` where there is one; nothing if it ended
/// well. Errors: kernel_failed – it threw; illegal_access – with `checks_access`. Their scope is the call without a
/// device.
[[nodiscard]] std::optional<error> kernel_outcome(const kernel_code& kernel, const kernel_range& range,
                                                  std::span<const kernel_argument> arguments, bool checks_access,
                                                  std::optional<device_id> by);

}  // namespace weft
