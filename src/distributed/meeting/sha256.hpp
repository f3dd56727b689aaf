// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace weft::detail {

using sha256_digest = std::array<std::byte, 32>;

/// SHA-256. Source: FIPS 180-4. The library links no cryptography, and a token of a world must not be told by its
/// answers.
class sha256 {
 public:
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] sha256_digest digest() noexcept;  // ends it

 private:
  void mix() noexcept;

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::uint64_t length_ = 0;  // bytes
};

/// HMAC with SHA-256 over all parts in a row. Source: RFC 2104.
[[nodiscard]] sha256_digest hmac_sha256(std::string_view key,
                                        std::span<const std::span<const std::byte>> parts) noexcept;

/// Compares in a time that does not depend on where they differ.
[[nodiscard]] bool are_equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

}  // namespace weft::detail
