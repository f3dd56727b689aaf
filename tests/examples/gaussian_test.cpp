// SPDX-License-Identifier: Apache-2.0
#include "image_pipeline/gaussian.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace gaussian_test {

using namespace weft::images;

TEST(gaussian, the_weights_add_up_to_one_and_are_symmetric) {
  const auto weights = blur_weights();
  EXPECT_EQ(std::accumulate(weights.begin(), weights.end(), std::uint64_t{0}), std::uint64_t{1} << 24);
  for (std::size_t k = 0; k < 25; ++k) {
    EXPECT_EQ(weights[k], weights[24 - k]) << k;
    EXPECT_EQ(weights[k], weights[k % 5 * 5 + k / 5]) << k;
  }
}

TEST(gaussian, the_weights_are_the_ones_of_the_formula) {
  const auto weights = blur_weights();
  double total = 0;
  for (int dy = -2; dy <= 2; ++dy) {
    for (int dx = -2; dx <= 2; ++dx) total += std::exp(-(dx * dx + dy * dy) / 8.0);
  }
  for (int dy = -2; dy <= 2; ++dy) {
    for (int dx = -2; dx <= 2; ++dx) {
      const double exact = std::exp(-(dx * dx + dy * dy) / 8.0) / total * 16777216.0;
      const auto k = static_cast<std::size_t>((dy + 2) * 5 + dx + 2);
      EXPECT_NEAR(weights[k], exact, dx == 0 && dy == 0 ? 12.5 : 0.5) << dx << ", " << dy;
    }
  }
}

TEST(gaussian, the_reference_spreads_one_bright_pixel_by_the_formula) {
  image picture{9, 9, 1, std::vector<std::uint8_t>(81, 0)};
  picture.pixels[4 * 9 + 4] = 200;
  double total = 0;
  for (int dy = -2; dy <= 2; ++dy) {
    for (int dx = -2; dx <= 2; ++dx) total += std::exp(-(dx * dx + dy * dy) / 8.0);
  }
  for (int y = 0; y < 9; ++y) {
    for (int x = 0; x < 9; ++x) {
      const int dx = x - 4;
      const int dy = y - 4;
      const bool near = std::abs(dx) <= 2 && std::abs(dy) <= 2;
      const double expected = near ? 200.0 * std::exp(-(dx * dx + dy * dy) / 8.0) / total : 0.0;
      EXPECT_NEAR(blurred_exactly(picture, x, y, 0), expected, 1e-9) << x << ", " << y;
    }
  }
}

TEST(gaussian, the_reference_repeats_the_edges) {
  // Two columns, 0 and 255: left of the first there is more of it.
  const image picture{2, 1, 1, {0, 255}};
  const double e1 = std::exp(-0.125);
  const double e2 = std::exp(-0.5);
  const double whole = 1 + 2 * e1 + 2 * e2;
  EXPECT_NEAR(blurred_exactly(picture, 0, 0, 0), 255 * (e1 + e2) / whole, 1e-9);
  EXPECT_NEAR(blurred_exactly(picture, 1, 0, 0), 255 * (1 + e1 + e2) / whole, 1e-9);
}

TEST(gaussian, the_reference_keeps_channels_apart) {
  image picture{5, 5, 3, {}};
  for (int i = 0; i < 25; ++i) picture.pixels.insert(picture.pixels.end(), {10, 20, 30});
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(blurred_exactly(picture, 2, 0, c), 10.0 * (c + 1), 1e-9);
}

TEST(gaussian, a_single_wrong_byte_is_counted) {
  const image flat{7, 5, 3, std::vector<std::uint8_t>(105, 90)};
  image blurred = flat;
  EXPECT_EQ(count_wrong_pixels(flat, blurred), 0U);
  blurred.pixels[50] = 91;
  EXPECT_EQ(count_wrong_pixels(flat, blurred), 1U);
  blurred.pixels[51] = 88;  // of the next pixel
  blurred.pixels[52] = 88;  // of the same one
  EXPECT_EQ(count_wrong_pixels(flat, blurred), 2U);
}

TEST(gaussian, a_picture_of_another_size_is_wrong_everywhere) {
  const image flat{7, 5, 1, std::vector<std::uint8_t>(35, 90)};
  EXPECT_EQ(count_wrong_pixels(flat, image{5, 7, 1, flat.pixels}), 35U);
  EXPECT_EQ(count_wrong_pixels(flat, image{}), 35U);
}

}  // namespace gaussian_test
