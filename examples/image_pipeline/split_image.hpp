// SPDX-License-Identifier: Apache-2.0
// One huge picture over several devices: each blurs some of its rows, and sees two more on either side.
#pragma once

#include "image_pipeline/image_file.hpp"
#include "weft/exec/launch_run.hpp"

#include <cstdint>
#include <string>

namespace weft::images {

struct split_report {
  image result;
  launch_report launch;
  double seconds = 0;   // from the first upload until the result is back; virtual time when `launch.simulated`
  array_traffic moved;  // by the picture: its rows, and the neighbours' of each border
  std::uint64_t pixels = 0;
};

/// Blurs one picture on the devices that `how` chooses, divided by rows as its strategy says. The bits are the same
/// however it is divided.
/// Errors: invalid_argument (a picture that is none, with the reason), as launch.
/// Cost: one upload, the rows at each border twice; one download.
[[nodiscard]] split_report blur_split(const machine& m, const image& picture, const spread_options& how);

/// A grey picture of any size, made from a formula without repetition.
/// Errors: invalid_argument when it has no pixel, or more than max_pixels.
[[nodiscard]] image huge_image(int width, int height);

}  // namespace weft::images
