// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unistd.h>

namespace weft {

/// Of the memory of this system, in bytes.
[[nodiscard]] inline std::size_t page_size() noexcept {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}
[[nodiscard]] inline std::size_t whole_pages(std::uint64_t size) {
  return (size + page_size() - 1) / page_size() * page_size();
}

}  // namespace weft
