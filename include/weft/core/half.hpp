// SPDX-License-Identifier: Apache-2.0
// Sixteen-bit floating-point numbers, to store and to send. Arithmetic is done in float: convert, compute, convert
// back.
#pragma once

#include <bit>
#include <cstdint>

namespace weft {

/// IEEE 754 binary16: 11 significant bits, largest 65,504. Conversion from float rounds to the nearest, ties to even;
/// what is too large becomes infinite, and a NaN stays one.
class half {
 public:
  constexpr half() = default;
  constexpr explicit half(float value) : bits_(rounded(value)) {}
  [[nodiscard]] static constexpr half from_bits(std::uint16_t bits) {
    half made;
    made.bits_ = bits;
    return made;
  }

  [[nodiscard]] constexpr std::uint16_t bits() const { return bits_; }
  constexpr explicit operator float() const {
    const std::uint32_t sign = (bits_ & 0x8000U) << 16;
    const std::uint32_t magnitude = bits_ & 0x7fffU;
    if (magnitude >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
    // 2^-24 per unit is exact for subnormal numbers; normal ones only move their exponent
    if (magnitude < 0x400U) {
      const float value = static_cast<float>(magnitude) * 0x1p-24F;
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
  }

  /// As numbers: zeros of both signs are equal, and a NaN equals nothing.
  friend constexpr bool operator==(half a, half b) { return static_cast<float>(a) == static_cast<float>(b); }

 private:
  static constexpr std::uint16_t rounded(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = all >> 16 & 0x8000U;
    const std::uint32_t magnitude = all & 0x7fffffffU;
    std::uint32_t made = 0;
    if (magnitude > 0x7f800000U) {
      made = 0x7e00U;
    } else if (magnitude >= 0x477ff000U) {  // 65,520 and more
      made = 0x7c00U;
    } else if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
      const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
      made = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
    } else {
      made = (magnitude - (112U << 23) + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
    }
    return static_cast<std::uint16_t>(sign | made);
  }

  std::uint16_t bits_ = 0;
};

/// The upper half of a float: its range with 8 significant bits. Conversion rounds to the nearest, ties to even.
class bfloat16 {
 public:
  constexpr bfloat16() = default;
  constexpr explicit bfloat16(float value) : bits_(rounded(value)) {}
  [[nodiscard]] static constexpr bfloat16 from_bits(std::uint16_t bits) {
    bfloat16 made;
    made.bits_ = bits;
    return made;
  }

  [[nodiscard]] constexpr std::uint16_t bits() const { return bits_; }
  constexpr explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits_} << 16); }

  /// As numbers: zeros of both signs are equal, and a NaN equals nothing.
  friend constexpr bool operator==(bfloat16 a, bfloat16 b) { return static_cast<float>(a) == static_cast<float>(b); }

 private:
  static constexpr std::uint16_t rounded(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    if ((all & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(all >> 16 | 0x40U);
    return static_cast<std::uint16_t>((all + 0x7fffU + (all >> 16 & 1U)) >> 16);
  }

  std::uint16_t bits_ = 0;
};

}  // namespace weft
