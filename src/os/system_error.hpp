// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/error.hpp"

#include <string>

namespace weft::detail {

/// The error of a system call that failed with `number`: resource_exhausted for want of descriptors or memory, else
/// io_failed.
[[nodiscard]] error system_error(std::string doing, int number);

}  // namespace weft::detail
