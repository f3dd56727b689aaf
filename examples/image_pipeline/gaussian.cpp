// SPDX-License-Identifier: Apache-2.0
#include "image_pipeline/gaussian.hpp"

#include <algorithm>
#include <cmath>

namespace weft::images {

std::array<std::uint32_t, 25> blur_weights() {
  constexpr double one = 16777216.0;
  std::array<double, 25> exact{};
  double total = 0;
  for (int k = 0; k < 25; ++k) {
    const int dx = k % 5 - 2;
    const int dy = k / 5 - 2;
    exact[static_cast<std::size_t>(k)] = std::exp(-(dx * dx + dy * dy) / 8.0);
    total += exact[static_cast<std::size_t>(k)];
  }
  std::array<std::uint32_t, 25> weights{};
  std::uint32_t left = static_cast<std::uint32_t>(one);
  for (std::size_t k = 0; k < 25; ++k) {
    weights[k] = static_cast<std::uint32_t>(std::lround(exact[k] / total * one));
    if (k != 12) left -= weights[k];
  }
  weights[12] = left;
  return weights;
}

double blurred_exactly(const image& original, int column, int row, int channel) {
  // The Gaussian is a product, exp(-dx²/8) exp(-dy²/8): the reference goes that way, the kernel the other.
  static const std::array<double, 5> part{std::exp(-0.5), std::exp(-0.125), 1.0, std::exp(-0.125), std::exp(-0.5)};
  static const double whole = (part[0] + part[1] + part[2] + part[3] + part[4]);
  double value = 0;
  for (int j = 0; j < 5; ++j) {
    const int from_row = std::min(std::max(row + j - 2, 0), original.height - 1);
    double along = 0;
    for (int i = 0; i < 5; ++i) {
      const int from_column = std::min(std::max(column + i - 2, 0), original.width - 1);
      const auto at = (static_cast<std::size_t>(from_row) * static_cast<std::size_t>(original.width) +
                       static_cast<std::size_t>(from_column)) *
                          static_cast<std::size_t>(original.channels) +
                      static_cast<std::size_t>(channel);
      along += part[static_cast<std::size_t>(i)] * original.pixels[at];
    }
    value += part[static_cast<std::size_t>(j)] * along;
  }
  return value / (whole * whole);
}

std::uint64_t count_wrong_pixels(const image& original, const image& blurred) {
  if (!what_is_wrong_with(original).empty() || !what_is_wrong_with(blurred).empty() ||
      original.width != blurred.width || original.height != blurred.height || original.channels != blurred.channels) {
    return std::max(original.pixel_count(), std::uint64_t{1});
  }
  constexpr double tolerance = 0.5005;
  std::uint64_t wrong = 0;
  std::size_t at = 0;
  for (int y = 0; y < original.height; ++y) {
    for (int x = 0; x < original.width; ++x) {
      bool right = true;
      for (int c = 0; c < original.channels; ++c, ++at) {
        right = right && std::fabs(blurred.pixels[at] - blurred_exactly(original, x, y, c)) <= tolerance;
      }
      wrong += right ? 0 : 1;
    }
  }
  return wrong;
}

}  // namespace weft::images
