// SPDX-License-Identifier: Apache-2.0
// The loops that bench_kernel_host_loop compares kernels with: as one writes them, compiled with -O3 -march=native.
#pragma once

#include <cstdint>

namespace weft::bench {

void plain_affine(const float* input, float* output, std::int64_t count);
void plain_saxpy(const float* input, float* output, float scale, std::int64_t count);
void plain_polynomial(const float* input, float* output, std::int64_t count);
/// The mean of an element and its eight neighbours; not of those at the border.
void plain_mean_2d(const float* input, float* output, std::int64_t width, std::int64_t height);
/// … of it and its six neighbours.
void plain_mean_3d(const float* input, float* output, std::int64_t width, std::int64_t height, std::int64_t depth);

}  // namespace weft::bench
