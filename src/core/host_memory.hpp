// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/host_memory.hpp"

#include <string>

namespace weft::detail {

/// As memory_of_host(), with files of the system below `root`.
[[nodiscard]] host_memory memory_below(const std::string& root);

}  // namespace weft::detail
