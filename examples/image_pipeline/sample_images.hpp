// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "image_pipeline/image_file.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace weft::images {

/// Twelve pictures made from formulas: gradients, rings, checkers and waves, grey and in colour, of odd sizes down to
/// one pixel. The same on every machine.
[[nodiscard]] std::vector<named_image> sample_images();

/// Writes them into a folder as PNG and JPEG, by the ending of their names; makes the folder. Gives the files.
/// Errors: io_failed with the file that could not be written.
std::vector<std::filesystem::path> make_sample_images(const std::filesystem::path& folder);

}  // namespace weft::images
