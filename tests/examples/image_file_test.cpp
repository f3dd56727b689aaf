// SPDX-License-Identifier: Apache-2.0
#include "image_pipeline/image_file.hpp"

#include "image_pipeline/sample_images.hpp"
#include "weft/core/raise.hpp"

#include <gtest/gtest.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace image_file_test {

using namespace weft::images;
using bytes_of_file = std::vector<std::uint8_t>;
namespace fs = std::filesystem;

class image_file : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "weft-images-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  void save(const std::string& name, const bytes_of_file& content) const {
    std::ofstream out{folder / name, std::ios::binary};
    out.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  }
  [[nodiscard]] bytes_of_file content_of(const std::string& name) const {
    std::ifstream in{folder / name, std::ios::binary};
    return {std::istreambuf_iterator<char>{in}, {}};
  }

  fs::path folder;
};

image position_dependent(int width, int height, int channels) {
  image picture{width, height, channels, {}};
  for (std::size_t i = 0; i < static_cast<std::size_t>(width * height * channels); ++i) {
    picture.pixels.push_back(static_cast<std::uint8_t>(i * 7 + i / 251));
  }
  return picture;
}

/// Noise: its file is about as large as the picture.
image noise(int width, int height, int channels) {
  image picture{width, height, channels, {}};
  std::mt19937 random{7};
  for (int i = 0; i < width * height * channels; ++i) picture.pixels.push_back(static_cast<std::uint8_t>(random()));
  return picture;
}

struct foreign_png {
  int width, height, depth, colour_type;
  bool interlaced = false;
};

/// A PNG of a kind that weft itself does not write; `row(y)` gives the bytes of a row as they are stored.
template <class Row>
bytes_of_file make_png(const foreign_png& about, Row row, const std::vector<png_color>& palette = {},
                       const bytes_of_file& palette_alpha = {}) {
  bytes_of_file made;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &made,
      [](png_structp p, png_bytep data, std::size_t count) {
        auto* out = static_cast<bytes_of_file*>(png_get_io_ptr(p));
        out->insert(out->end(), data, data + count);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(about.width), static_cast<png_uint_32>(about.height), about.depth,
               about.colour_type, about.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!palette.empty()) png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  if (!palette_alpha.empty()) {
    png_set_tRNS(png, info, palette_alpha.data(), static_cast<int>(palette_alpha.size()), nullptr);
  }
  png_write_info(png, info);
  std::vector<bytes_of_file> rows;
  std::vector<png_bytep> pointers;
  for (int y = 0; y < about.height; ++y) rows.push_back(row(y));
  for (auto& r : rows) pointers.push_back(r.data());
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return made;
}

TEST_F(image_file, a_png_comes_back_as_it_was_written) {
  for (const int channels : {1, 3}) {
    for (const auto& [width, height] : {std::pair{1, 1}, {1, 9}, {9, 1}, {255, 257}, {640, 3}}) {
      const image picture = position_dependent(width, height, channels);
      ASSERT_TRUE(write_png(folder / "a.png", picture));
      const auto back = read_image(folder / "a.png");
      ASSERT_TRUE(back) << back.error().what;
      EXPECT_EQ(*back, picture) << width << " x " << height << " x " << channels;
    }
  }
}

TEST_F(image_file, a_jpeg_comes_back_with_its_sizes_and_nearly_its_pixels) {
  for (const named_image& sample : sample_images()) {
    if (!sample.name.starts_with("waves") && !sample.name.starts_with("gradient")) continue;
    ASSERT_TRUE(write_jpeg(folder / "a.jpg", sample.picture, 95));
    const auto back = read_image(folder / "a.jpg");
    ASSERT_TRUE(back) << back.error().what;
    EXPECT_EQ(back->width, sample.picture.width);
    EXPECT_EQ(back->height, sample.picture.height);
    ASSERT_EQ(back->channels, sample.picture.channels);
    int worst = 0;
    for (std::size_t i = 0; i < back->pixels.size(); ++i) {
      worst = std::max(worst, std::abs(back->pixels[i] - sample.picture.pixels[i]));
    }
    EXPECT_LE(worst, 24) << sample.name;
  }
}

TEST_F(image_file, the_first_bytes_tell_the_format_and_not_the_name) {
  const image picture = position_dependent(17, 5, 3);
  ASSERT_TRUE(write_png(folder / "really_a_png.jpg", picture));
  const auto back = read_image(folder / "really_a_png.jpg");
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(*back, picture);
}

TEST_F(image_file, an_interlaced_png_is_read) {
  const image picture = position_dependent(13, 11, 3);
  const auto file = make_png({13, 11, 8, PNG_COLOR_TYPE_RGB, true}, [&](int y) {
    return bytes_of_file(picture.pixels.begin() + y * 39, picture.pixels.begin() + (y + 1) * 39);
  });
  const auto back = decode_image(file, "interlaced.png");
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(*back, picture);
}

TEST_F(image_file, sixteen_bits_become_eight) {
  const auto file =
      make_png({2, 1, 16, PNG_COLOR_TYPE_GRAY}, [](int) { return bytes_of_file{0xFF, 0xFF, 0x80, 0x80}; });
  const auto back = decode_image(file, "deep.png");
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(*back, (image{2, 1, 1, {255, 128}}));
}

TEST_F(image_file, one_bit_of_grey_becomes_black_and_white) {
  const auto file = make_png({5, 1, 1, PNG_COLOR_TYPE_GRAY}, [](int) { return bytes_of_file{0b10110000}; });
  const auto back = decode_image(file, "bits.png");
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(*back, (image{5, 1, 1, {255, 0, 255, 255, 0}}));
}

TEST_F(image_file, a_palette_becomes_colours_and_what_is_transparent_becomes_white) {
  const auto file = make_png({3, 1, 8, PNG_COLOR_TYPE_PALETTE}, [](int) { return bytes_of_file{0, 1, 2}; },
                             {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}}, {255, 0, 255});
  const auto back = decode_image(file, "palette.png");
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(*back, (image{3, 1, 3, {10, 20, 30, 255, 255, 255, 70, 80, 90}}));
}

TEST_F(image_file, an_alpha_channel_is_laid_on_white) {
  const auto colours =
      make_png({2, 1, 8, PNG_COLOR_TYPE_RGB_ALPHA}, [](int) { return bytes_of_file{100, 0, 200, 51, 1, 2, 3, 255}; });
  const auto colour = decode_image(colours, "colour.png");
  ASSERT_TRUE(colour) << colour.error().what;
  EXPECT_EQ(*colour, (image{2, 1, 3, {224, 204, 244, 1, 2, 3}}));
  const auto greys = make_png({2, 1, 8, PNG_COLOR_TYPE_GRAY_ALPHA}, [](int) { return bytes_of_file{7, 255, 7, 0}; });
  const auto grey = decode_image(greys, "grey.png");
  ASSERT_TRUE(grey) << grey.error().what;
  EXPECT_EQ(*grey, (image{2, 1, 1, {7, 255}}));
}

TEST_F(image_file, a_file_cut_off_anywhere_is_an_error_that_names_it) {
  const image picture = position_dependent(23, 19, 3);
  ASSERT_TRUE(write_png(folder / "whole.png", picture));
  ASSERT_TRUE(write_jpeg(folder / "whole.jpg", picture));
  for (const char* name : {"whole.png", "whole.jpg"}) {
    const bytes_of_file content = content_of(name);
    ASSERT_TRUE(decode_image(content, name));
    for (std::size_t size = 0; size < content.size(); ++size) {
      const auto back = decode_image(std::span{content}.first(size), "cut_off");
      ASSERT_FALSE(back) << name << " with " << size << " of " << content.size() << " bytes";
      EXPECT_NE(back.error().what.find("cut_off"), std::string::npos) << back.error().what;
    }
  }
}

TEST_F(image_file, a_file_with_changed_bytes_is_read_or_refused_and_nothing_else) {
  const image picture = position_dependent(23, 19, 3);
  ASSERT_TRUE(write_png(folder / "whole.png", picture));
  ASSERT_TRUE(write_jpeg(folder / "whole.jpg", picture));
  for (const char* name : {"whole.png", "whole.jpg"}) {
    const bytes_of_file content = content_of(name);
    std::mt19937 random{20240601};
    for (int round = 0; round < 2000; ++round) {
      bytes_of_file changed = content;
      const auto at = random() % 600 % changed.size();  // mostly in the headers
      changed[at] = static_cast<std::uint8_t>(random());
      const auto back = decode_image(changed, name);
      if (back) {
        EXPECT_EQ(what_is_wrong_with(*back), "") << name << ", byte " << at;
      }
    }
  }
}

TEST_F(image_file, a_png_with_a_wrong_checksum_is_an_error) {
  ASSERT_TRUE(write_png(folder / "a.png", position_dependent(23, 19, 3)));
  bytes_of_file content = content_of("a.png");
  content[content.size() - 14] ^= 1;  // in the checksum of the last rows; the pixels themselves are whole
  const auto back = decode_image(content, "a.png");
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, weft::errc::corrupt);
}

TEST_F(image_file, a_header_that_asks_for_too_much_is_refused_before_memory_is_taken) {
  ASSERT_TRUE(write_png(folder / "a.png", position_dependent(2, 2, 1)));
  bytes_of_file content = content_of("a.png");
  for (const std::size_t at : {std::size_t{17}, std::size_t{21}}) content[at] = 0x0F;  // a million each way
  unsigned long checksum = 0xFFFFFFFFUL;                                               // of the header, as PNG has it
  for (std::size_t i = 12; i < 29; ++i) {
    checksum ^= content[i];
    for (int bit = 0; bit < 8; ++bit) checksum = (checksum >> 1) ^ ((checksum & 1) != 0 ? 0xEDB88320UL : 0UL);
  }
  checksum ^= 0xFFFFFFFFUL;
  for (std::size_t i = 0; i < 4; ++i) content[29 + i] = static_cast<std::uint8_t>(checksum >> (24 - 8 * i));
  const auto back = decode_image(content, "bomb.png");
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, weft::errc::unsupported) << back.error().what;
  EXPECT_NE(back.error().what.find("bomb.png has 983042 x 983042 pixels"), std::string::npos) << back.error().what;
}

TEST_F(image_file, the_colours_of_print_are_refused_by_name) {
  const bytes_of_file ink(16 * 16 * 4, 77);
  unsigned char* made = nullptr;
  unsigned long size = 0;
  tjhandle codec = tjInitCompress();
  ASSERT_EQ(tjCompress2(codec, ink.data(), 16, 0, 16, TJPF_CMYK, &made, &size, TJSAMP_444, 90, 0), 0);
  const auto back = decode_image({made, size}, "poster.jpg");
  tjFree(made);
  tjDestroy(codec);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, weft::errc::unsupported);
  EXPECT_NE(back.error().what.find("poster.jpg"), std::string::npos);
}

TEST_F(image_file, a_folder_gives_its_pictures_in_order_and_names_every_other_file) {
  ASSERT_TRUE(write_png(folder / "b.png", position_dependent(3, 3, 1)));
  ASSERT_TRUE(write_jpeg(folder / "a.jpg", position_dependent(8, 8, 3)));
  save("notes.txt", {'h', 'e', 'l', 'l', 'o'});
  save("empty.png", {});
  save(".hidden", {'x'});
  bytes_of_file half = content_of("b.png");
  half.resize(half.size() / 2);
  save("half.png", half);
  fs::create_directory(folder / "folder.png");
  ASSERT_EQ(::mkfifo((folder / "pipe.jpg").c_str(), 0600), 0);
  fs::create_symlink(folder / "nowhere.png", folder / "loose.png");

  const image_list list = load_images(folder);
  ASSERT_EQ(list.images.size(), 2U);
  EXPECT_EQ(list.images[0].name, "a.jpg");
  EXPECT_EQ(list.images[1].name, "b.png");
  std::vector<std::string> failed;
  for (const auto& failure : list.failures) {
    failed.push_back(failure.name);
    EXPECT_NE(failure.why.find(failure.name), std::string::npos) << failure.why;
  }
  EXPECT_EQ(failed, (std::vector<std::string>{"empty.png", "half.png", "loose.png", "notes.txt", "pipe.jpg"}));
}

TEST_F(image_file, a_folder_that_is_not_there_is_an_error_that_names_it) {
  try {
    static_cast<void>(load_images(folder / "nowhere"));
    FAIL() << "no error";
  } catch (const weft::error_exception& e) {
    EXPECT_EQ(e.code(), weft::errc::io_failed);
    EXPECT_NE(e.cause().what.find("nowhere"), std::string::npos) << e.cause().what;
  }
}

TEST_F(image_file, a_picture_whose_sizes_do_not_fit_is_not_written) {
  for (const image& wrong : {image{}, image{3, 3, 2, bytes_of_file(18)}, image{3, 3, 1, bytes_of_file(8)}}) {
    const auto written = write_png(folder / "a.png", wrong);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, weft::errc::invalid_argument);
    EXPECT_FALSE(write_jpeg(folder / "a.jpg", wrong));
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(image_file, a_folder_that_cannot_be_written_to_is_an_error_that_names_the_file) {
  const auto written = write_png(folder / "nowhere" / "a.png", position_dependent(3, 3, 1));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, weft::errc::io_failed);
  EXPECT_NE(written.error().what.find("a.png"), std::string::npos) << written.error().what;
}

/// Runs `body` in a child whose files may not grow past a limit, as on a disk that is full; true if it returned true.
template <class Body>
bool holds_with_a_full_disk(rlim_t limit, Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit most{limit, limit};
    const bool held = ::setrlimit(RLIMIT_FSIZE, &most) == 0 && body();
    ::_exit(held ? 0 : 1);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(image_file, a_full_disk_leaves_nothing_half_written) {
  const image picture = noise(200, 200, 3);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1}, rlim_t{4096}}) {
    EXPECT_TRUE(holds_with_a_full_disk(limit, [&] {
      const auto written = write_png(folder / "new.png", picture);
      return !written && written.error().code == weft::errc::io_failed && written.error().native_code == EFBIG &&
             written.error().what.find("new.png") != std::string::npos;
    }));
    EXPECT_TRUE(fs::is_empty(folder));
  }
}

TEST_F(image_file, a_full_disk_leaves_the_file_that_was_there) {
  const image before = position_dependent(5, 5, 1);
  ASSERT_TRUE(write_png(folder / "a.png", before));
  EXPECT_TRUE(holds_with_a_full_disk(4096, [&] { return !write_png(folder / "a.png", noise(200, 200, 3)); }));
  const auto after = read_image(folder / "a.png");
  ASSERT_TRUE(after) << after.error().what;
  EXPECT_EQ(*after, before);
  EXPECT_EQ(std::distance(fs::directory_iterator{folder}, {}), 1);
}

TEST_F(image_file, the_samples_are_written_read_back_and_the_same_each_time) {
  const auto files = make_sample_images(folder / "samples");
  const image_list list = load_images(folder / "samples");
  EXPECT_TRUE(list.failures.empty());
  ASSERT_EQ(list.images.size(), files.size());
  const auto samples = sample_images();
  ASSERT_EQ(samples.size(), files.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(list.images[i].name, samples[i].name);  // made in the order of their names
    EXPECT_EQ(list.images[i].picture.channels, samples[i].picture.channels);
    if (files[i].extension() == ".png") {
      EXPECT_EQ(list.images[i].picture, samples[i].picture);
    }
  }
}

TEST_F(image_file, samples_that_cannot_be_written_are_an_error_that_names_the_file) {
  EXPECT_TRUE(holds_with_a_full_disk(64, [&] {
    try {
      make_sample_images(folder / "samples");
    } catch (const weft::error_exception& e) {
      return e.code() == weft::errc::io_failed && e.cause().what.find("checker_colour.png") != std::string::npos;
    }
    return false;
  }));
  EXPECT_TRUE(fs::is_empty(folder / "samples"));
}

}  // namespace image_file_test
