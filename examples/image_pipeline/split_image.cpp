// SPDX-License-Identifier: Apache-2.0
#include "image_pipeline/split_image.hpp"

#include "image_pipeline/gaussian.hpp"
#include "weft/core/raise.hpp"

#include <chrono>
#include <span>

namespace weft::images {

split_report blur_split(const machine& m, const image& picture, const spread_options& how) {
  if (const std::string wrong = what_is_wrong_with(picture); !wrong.empty()) {
    raise(errc::invalid_argument, "the picture cannot be divided: " + wrong);
  }
  split_report made;
  made.result = picture;  // touches every page now, so that the download is not timed with page faults
  made.pixels = picture.pixel_count();
  const auto started = m.now();
  const array<std::uint8_t> input{m, std::span<const std::uint8_t>{picture.pixels}};
  array<std::uint8_t> output{m, picture.pixels.size()};
  const auto weights = blur_weights();
  // An item is a pixel, and pieces are whole rows: halo(2) of the kernel brings two rows of each neighbour.
  const launch_run run =
      launch<gaussian_blur>(m, how, range(picture.width, picture.height), input, output, weights,
                            std::int64_t{picture.width}, std::int64_t{picture.height}, std::int64_t{picture.channels});
  run.wait();
  output.read(made.result.pixels);
  made.seconds = std::chrono::duration<double>(m.now() - started).count();
  made.launch = run.report();
  made.moved = input.traffic();
  return made;
}

image huge_image(int width, int height) {
  if (width < 1 || height < 1 || static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height) > max_pixels) {
    raise(errc::invalid_argument, "a picture of " + std::to_string(width) + " x " + std::to_string(height) + " pixels");
  }
  image made{width, height, 1, {}};
  made.pixels.resize(static_cast<std::size_t>(made.pixel_count()));
  std::uint32_t noise = 1;
  for (std::size_t k = 0; k < made.pixels.size(); ++k) {
    noise = noise * 1664525U + 1013904223U;
    made.pixels[k] = static_cast<std::uint8_t>((k >> 6 & 0x7FU) + (noise >> 25));
  }
  return made;
}

}  // namespace weft::images
