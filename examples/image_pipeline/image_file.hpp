// SPDX-License-Identifier: Apache-2.0
// Pictures and the files they live in: JPEG by libjpeg-turbo, PNG by libpng. A damaged file is an error with its name,
// never half a picture; a file is written completely or not at all.
#pragma once

#include "weft/core/result.hpp"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::images {

/// Rows from the top, pixels in a row from the left, one byte per channel: 1 is grey, 3 is red, green, blue.
struct image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> pixels;

  [[nodiscard]] std::uint64_t pixel_count() const {
    return static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
  }
  friend bool operator==(const image&, const image&) = default;
};

struct named_image {
  std::string name;  // of the file, without its folder
  image picture;
};

/// A file or image that was left out, and why.
struct named_failure {
  std::string name;
  std::string why;
};

struct image_list {
  std::vector<named_image> images;
  std::vector<named_failure> failures;
};

/// Pictures with more pixels than this are refused: a few bytes of a file can ask for any amount of memory.
inline constexpr std::uint64_t max_pixels = std::uint64_t{1} << 28;

/// The picture in a JPEG or PNG file; which one it is, its first bytes say. Colours with an alpha channel are laid on
/// white, 16 bits become 8, palettes become colours.
/// Errors: not_found, io_failed, unsupported (another format, CMYK, too large), corrupt (damaged or truncated).
[[nodiscard]] result<image> read_image(const std::filesystem::path& file);
[[nodiscard]] result<image> decode_image(std::span<const std::uint8_t> content, std::string_view name);

/// Every picture of a folder, by file name; other files are failures with their reason. Hidden files and folders inside
/// it are passed over. Errors: io_failed when the folder itself cannot be read.
[[nodiscard]] image_list load_images(const std::filesystem::path& folder);

/// Writes under a temporary name and renames: after a failure the folder is as it was before.
/// Errors: invalid_argument (a picture whose sizes do not fit), io_failed with the file and the system's reason.
[[nodiscard]] result<void> write_png(const std::filesystem::path& file, const image& picture);
[[nodiscard]] result<void> write_jpeg(const std::filesystem::path& file, const image& picture, int quality = 92);

/// Why a picture cannot be processed: empty when width, height, channels and the number of bytes fit together.
[[nodiscard]] std::string what_is_wrong_with(const image& picture);

}  // namespace weft::images
