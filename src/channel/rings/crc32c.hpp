// SPDX-License-Identifier: Apache-2.0
// The Castagnoli checksum of RFC 3720, by the instruction that x86 has for it or by a table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weft::detail {

[[nodiscard]] inline std::uint32_t crc32c_by_table(const std::byte* data, std::size_t size) noexcept {
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

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) inline std::uint32_t crc32c_by_instruction(const std::byte* data,
                                                                             std::size_t size) noexcept {
  std::uint64_t sum = 0xffffffffU;
  std::size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, sizeof word);
    sum = __builtin_ia32_crc32di(sum, word);
  }
  auto rest = static_cast<std::uint32_t>(sum);
  for (; at < size; ++at) rest = __builtin_ia32_crc32qi(rest, std::to_integer<unsigned char>(data[at]));
  return ~rest;
}
#endif

[[nodiscard]] inline std::uint32_t crc32c(const std::byte* data, std::size_t size) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_by_instruction(data, size);
#endif
  return crc32c_by_table(data, size);
}

}  // namespace weft::detail
