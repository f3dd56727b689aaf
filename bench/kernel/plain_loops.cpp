// SPDX-License-Identifier: Apache-2.0
#include "kernel/plain_loops.hpp"

namespace weft::bench {

void plain_affine(const float* __restrict input, float* __restrict output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) output[i] = input[i] * 2.0F + 1.0F;
}

void plain_saxpy(const float* __restrict input, float* __restrict output, float scale, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) output[i] += scale * input[i];
}

void plain_polynomial(const float* __restrict input, float* __restrict output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float sum = 0.1F;
    for (int k = 0; k < 16; ++k) sum = sum * input[i] + 0.3F;
    output[i] = sum;
  }
}

void plain_mean_2d(const float* __restrict input, float* __restrict output, std::int64_t width, std::int64_t height) {
  for (std::int64_t y = 1; y < height - 1; ++y) {
    for (std::int64_t x = 1; x < width - 1; ++x) {
      const std::int64_t at = y * width + x;
      output[at] = (input[at - width - 1] + input[at - width] + input[at - width + 1] + input[at - 1] + input[at] +
                    input[at + 1] + input[at + width - 1] + input[at + width] + input[at + width + 1]) *
                   (1.0F / 9);
    }
  }
}

void plain_mean_3d(const float* __restrict input, float* __restrict output, std::int64_t width, std::int64_t height,
                   std::int64_t depth) {
  const std::int64_t plane = width * height;
  for (std::int64_t z = 1; z < depth - 1; ++z) {
    for (std::int64_t y = 1; y < height - 1; ++y) {
      for (std::int64_t x = 1; x < width - 1; ++x) {
        const std::int64_t at = z * plane + y * width + x;
        output[at] = (input[at] + input[at - 1] + input[at + 1] + input[at - width] + input[at + width] +
                      input[at - plane] + input[at + plane]) *
                     (1.0F / 7);
      }
    }
  }
}

}  // namespace weft::bench
