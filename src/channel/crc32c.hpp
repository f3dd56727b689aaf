// SPDX-License-Identifier: Apache-2.0
// The Castagnoli checksum of RFC 3720, which finds every flip of up to three bits in a message of a queue's size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::detail {

[[nodiscard]] inline std::uint32_t crc32c(const std::byte* data, std::size_t size) noexcept {
  static constexpr auto table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1U) != 0 ? 0x82f63b78U : 0U);
      made[i] = value;
    }
    return made;
  }();
  std::uint32_t sum = ~std::uint32_t{0};
  for (std::size_t i = 0; i < size; ++i)
    sum = (sum >> 8) ^ table[(sum ^ std::to_integer<std::uint32_t>(data[i])) & 0xffU];
  return ~sum;
}

}  // namespace weft::detail
