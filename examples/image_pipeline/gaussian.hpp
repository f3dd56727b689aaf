// SPDX-License-Identifier: Apache-2.0
// The 5x5 Gaussian blur twice: as a kernel for devices, and as a plain reference that shares nothing with it.
#pragma once

#include "image_pipeline/image_file.hpp"
#include "weft/kernel/define.hpp"

#include <array>
#include <cstdint>

namespace weft::images {

// An item is a pixel. Pixels beyond the edge count as the nearest one.
//
// Weights are whole numbers that add up to 2^24. So there is no rounding on the way, every backend gives the same
// bits, and a constant image stays constant. The largest sum, 255 * 2^24 + 2^23, fits 32 bits.
WEFT_KERNEL_2D(gaussian_blur,
               (WEFT_IN(uint8_t, halo(2)) input, WEFT_OUT(uint8_t) output, WEFT_IN(uint32_t, whole) weights,
                int64_t width, int64_t height, int64_t channels),
               {
                 for (int64_t channel = 0; channel < channels; ++channel) {
                   uint32_t sum = 8388608u;
                   for (int64_t dy = -2; dy <= 2; ++dy) {
                     const int64_t row = weft_clamp(y + dy, (int64_t)0, height - 1);
                     for (int64_t dx = -2; dx <= 2; ++dx) {
                       const int64_t column = weft_clamp(x + dx, (int64_t)0, width - 1);
                       const uint32_t value = input[(row * width + column) * channels + channel];
                       sum += weights[(dy + 2) * 5 + dx + 2] * value;
                     }
                   }
                   output[(y * width + x) * channels + channel] = (uint8_t)(sum >> 24);
                 }
               });

/// The kernel's weights, row by row: exp(-(dx² + dy²) / 8) over their sum, times 2^24, rounded; the middle one takes
/// what rounding left over.
[[nodiscard]] std::array<std::uint32_t, 25> blur_weights();

/// The blurred value of one byte before rounding, by the definition, in double precision.
[[nodiscard]] double blurred_exactly(const image& original, int column, int row, int channel);

/// How many pixels of `blurred` are not the blur of `original`; all of them when the sizes differ.
///
/// A byte is right when it is within 0.5005 of the exact value. Half a unit is the rounding to the nearest whole
/// number. The rest allows for the kernel's weights: each is off by at most 2^-25, the middle one by at most 24 *
/// 2^-25, together 255 * 48 * 2^-25 < 0.0004; so near a tie, and only there, a byte may be rounded the other way.
[[nodiscard]] std::uint64_t count_wrong_pixels(const image& original, const image& blurred);

}  // namespace weft::images
