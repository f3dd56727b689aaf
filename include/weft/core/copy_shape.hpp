// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft {

/// A box of bytes: `width` contiguous bytes, `height` rows a pitch apart, `depth` slices a slice apart.
struct copy_shape {
  std::uint64_t width = 0;
  std::uint64_t height = 1;
  std::uint64_t depth = 1;
  std::uint64_t dst_pitch = 0, dst_slice = 0;
  std::uint64_t src_pitch = 0, src_slice = 0;

  /// Bytes that are copied; the largest number when that is more than 64 bits hold.
  [[nodiscard]] std::uint64_t total() const { return times(times(width, height), depth); }
  /// Bytes from the first to one past the last that are touched on a side with this pitch and slice.
  [[nodiscard]] std::uint64_t extent(std::uint64_t pitch, std::uint64_t slice) const {
    return total() == 0 ? 0 : plus(plus(times(depth - 1, slice), times(height - 1, pitch)), width);
  }

 private:
  // Saturating: a shape from outside must not wrap around into one that fits.
  static std::uint64_t times(std::uint64_t a, std::uint64_t b) {
    std::uint64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? ~std::uint64_t{0} : product;
  }
  static std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
    std::uint64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? ~std::uint64_t{0} : sum;
  }
};

}  // namespace weft
