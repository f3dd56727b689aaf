// SPDX-License-Identifier: Apache-2.0
#include "image_pipeline/sample_images.hpp"

#include "weft/core/raise.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <system_error>

namespace weft::images {

namespace {

/// Brightness 0 … 1 of a channel at a place; u and v run from 0 to 1 over the longer side.
using formula = std::function<double(double u, double v, int channel)>;

named_image draw(std::string name, int width, int height, int channels, const formula& f) {
  image picture{width, height, channels, {}};
  picture.pixels.reserve(static_cast<std::size_t>(picture.pixel_count()) * static_cast<std::size_t>(channels));
  const double side = std::max({width - 1, height - 1, 1});
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const double value = std::clamp(f(x / side, y / side, c), 0.0, 1.0);
        picture.pixels.push_back(static_cast<std::uint8_t>(std::lround(value * 255.0)));
      }
    }
  }
  return {std::move(name), std::move(picture)};
}

double gradient(double u, double v, int channel) { return channel == 0 ? u : channel == 1 ? v : 1.0 - (u + v) / 2.0; }

double rings(double u, double v, int channel) {
  const double radius = std::hypot(u - 0.5, v - 0.35);
  return 0.5 + 0.5 * std::sin(60.0 * radius + 2.0 * channel);
}

double checker(double u, double v, int channel) {
  const double squares = 8.0 * (channel + 1);
  return (static_cast<int>(u * squares) + static_cast<int>(v * squares)) % 2 == 0 ? 1.0 : 0.0;
}

double waves(double u, double v, int channel) {
  return 0.5 + 0.25 * std::sin(19.0 * u + channel) + 0.25 * std::cos(23.0 * v - 7.0 * u * channel);
}

double flat(double /*u*/, double /*v*/, int channel) { return 0.2 + 0.3 * channel; }

}  // namespace

std::vector<named_image> sample_images() {
  std::vector<named_image> all;
  all.push_back(draw("checker_colour.png", 641, 479, 3, checker));
  all.push_back(draw("checker_grey.png", 255, 257, 1, checker));
  all.push_back(draw("column.jpg", 3, 301, 1, waves));
  all.push_back(draw("flat.png", 321, 123, 3, flat));
  all.push_back(draw("gradient_colour.jpg", 799, 601, 3, gradient));
  all.push_back(draw("gradient_grey.png", 1023, 5, 1, gradient));
  all.push_back(draw("one_pixel.png", 1, 1, 3, flat));
  all.push_back(draw("rings_colour.jpg", 1021, 767, 3, rings));
  all.push_back(draw("rings_grey.jpg", 513, 385, 1, rings));
  all.push_back(draw("row.png", 1279, 1, 3, waves));
  all.push_back(draw("waves_colour.png", 639, 853, 3, waves));
  all.push_back(draw("waves_grey.jpg", 767, 511, 1, waves));
  return all;
}

std::vector<std::filesystem::path> make_sample_images(const std::filesystem::path& folder) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) raise(errc::io_failed, "cannot make the folder " + folder.string() + ": " + problem.message());
  std::vector<std::filesystem::path> files;
  for (const named_image& sample : sample_images()) {
    files.push_back(folder / sample.name);
    value_or_raise(files.back().extension() == ".png" ? write_png(files.back(), sample.picture)
                                                      : write_jpeg(files.back(), sample.picture));
  }
  return files;
}

}  // namespace weft::images
