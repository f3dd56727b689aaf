// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/error.hpp"

#include <string>

namespace weft::detail {

/// What a system call that failed with `number` means: resource_exhausted for want of descriptors or memory, io_failed
/// otherwise.
[[nodiscard]] error system_error(std::string doing, int number);

}  // namespace weft::detail
