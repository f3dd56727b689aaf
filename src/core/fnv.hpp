// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft::detail {

/// FNV-1a of 64 bits: tells texts and records apart, and finds accidents, not forgeries.
/// Source: Fowler, Noll, Vo, http://www.isthe.com/chongo/tech/comp/fnv
class fnv {
 public:
  constexpr void add_byte(unsigned char byte) noexcept { value_ = (value_ ^ byte) * 0x100000001b3U; }
  constexpr void add_text(std::string_view text) noexcept {
    for (const char letter : text) add_byte(static_cast<unsigned char>(letter));
  }
  void add_bytes(const void* data, std::size_t size) noexcept {
    for (std::size_t i = 0; i < size; ++i) add_byte(static_cast<const unsigned char*>(data)[i]);
  }
  /// Its eight bytes, the lowest first.
  constexpr void add_number(std::uint64_t number) noexcept {
    for (int shift = 0; shift < 64; shift += 8) add_byte(static_cast<unsigned char>(number >> shift));
  }
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

}  // namespace weft::detail
