// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <stop_token>

namespace weft {

struct fill_request {
  void* dst = nullptr;
  std::uint64_t count = 0;  // patterns
  std::array<std::byte, 16> pattern{};
  std::uint32_t pattern_size = 1;  // 1, 2, 4, 8 or 16
  std::stop_token stop;
  std::source_location where{};

  /// Bytes that are written; the largest number when that is more than 64 bits hold.
  [[nodiscard]] std::uint64_t total() const {
    std::uint64_t size = 0;
    return __builtin_mul_overflow(count, pattern_size, &size) ? ~std::uint64_t{0} : size;
  }
};

}  // namespace weft
