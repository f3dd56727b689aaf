// SPDX-License-Identifier: Apache-2.0
// Pictures spread over the devices of a machine, blurred there, and gathered on the first device over peer copies.
#pragma once

#include "image_pipeline/image_file.hpp"
#include "image_pipeline/sample_images.hpp"
#include "weft/core/ids.hpp"
#include "weft/runtime/machine.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace weft::images {

struct pipeline_options {
  std::vector<device_id> devices;  // images go to them in turn; the first one gathers; empty is all
  std::filesystem::path output;    // folder of the PNGs, made when missing; empty writes none
  bool verify = true;              // compare every pixel with the reference
  int in_flight = 0;               // images at work per device, so that uploads overlap kernels; 0 is 2, but 1 on
                                   // virtual devices, whose copies and kernels run on the same cores
};

/// Images that came to the gathering device, by the way they took.
struct gather_counts {
  std::uint64_t local = 0;    // were computed there
  std::uint64_t direct = 0;   // one peer copy
  std::uint64_t staged = 0;   // through the host
  std::uint64_t relayed = 0;  // through a third device
};

struct device_share {
  device_id device;
  std::uint64_t images = 0;
  std::uint64_t pixels = 0;
};

struct pipeline_report {
  std::uint64_t images = 0;  // processed
  std::uint64_t pixels = 0;
  double seconds = 0;  // from the first upload until the last image is back; files and checks are not in it
  double images_per_second = 0;
  bool simulated = false;  // `seconds` is virtual time: a model, not a measurement
  std::vector<device_share> devices;
  gather_counts gathered;
  std::uint64_t pixels_checked = 0;
  std::uint64_t pixels_wrong = 0;
  std::vector<std::filesystem::path> files;  // written, in the order of the images
  std::vector<named_failure> failures;       // images not processed or not written, and why
  std::vector<std::string> notes;            // links that are not used, and why
};

/// Blurs every image on a device. An image that cannot be processed or written is a failure with its name; the others
/// go on. Copies of the same machine made elsewhere meanwhile are counted in `gathered` too.
/// Errors: invalid_device for a device that does not exist or is named twice; invalid_argument when in_flight is
///   negative; io_failed when the output folder cannot be made.
/// Cost: per image one upload, one kernel, one peer copy (none on the first device), one download.
[[nodiscard]] pipeline_report run_image_pipeline(const machine& m, std::span<const named_image> images,
                                                 const pipeline_options& options);

/// The file names of the results: the image's with the ending .png; where two would be equal, the whole name and .png.
[[nodiscard]] std::vector<std::string> output_names(std::span<const named_image> images);

}  // namespace weft::images
