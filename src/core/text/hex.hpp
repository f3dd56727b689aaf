// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace weft {

/// An address as messages show it: "0x7f…".
[[nodiscard]] inline std::string hex(const void* address) {
  char text[2 + 2 * sizeof(void*) + 1];
  std::snprintf(text, sizeof text, "0x%zx", reinterpret_cast<std::size_t>(address));
  return text;
}

}  // namespace weft
