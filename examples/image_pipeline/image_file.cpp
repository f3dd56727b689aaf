// SPDX-License-Identifier: Apache-2.0
#include "image_pipeline/image_file.hpp"

#include "weft/core/raise.hpp"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <new>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace weft::images {

namespace {

error failure(errc code, std::string what, int native = 0) {
  error cause;
  cause.code = code;
  cause.native_code = native;
  cause.what = std::move(what);
  return cause;
}

std::string system_text(int number) { return std::generic_category().message(number); }

error too_large(std::string_view name, std::uint64_t width, std::uint64_t height) {
  return failure(errc::unsupported, std::string{name} + " has " + std::to_string(width) + " x " +
                                        std::to_string(height) + " pixels: more than " + std::to_string(max_pixels));
}

class descriptor {
 public:
  explicit descriptor(int number) : number_(number) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] int close() { return ::close(std::exchange(number_, -1)); }

 private:
  int number_;
};

result<std::vector<std::uint8_t>> read_file(const std::filesystem::path& file) {
  // Not blocking: opening a pipe that nobody writes would wait for ever.
  const descriptor in{::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (in.get() < 0) {
    const int number = errno;
    return failure(number == ENOENT ? errc::not_found : errc::io_failed,
                   "cannot open " + file.string() + ": " + system_text(number), number);
  }
  struct stat about{};
  if (::fstat(in.get(), &about) != 0) {
    return failure(errc::io_failed, "cannot read " + file.string() + ": " + system_text(errno), errno);
  }
  if (!S_ISREG(about.st_mode)) return failure(errc::unsupported, file.string() + " is not a regular file");
  std::vector<std::uint8_t> content(static_cast<std::size_t>(about.st_size));
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(in.get(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure(errc::io_failed, "cannot read " + file.string() + ": " + system_text(errno), errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

result<void> write_file(const std::filesystem::path& file, std::span<const std::uint8_t> content) {
  static std::atomic<unsigned> count{0};
  // Short, in the same folder (a rename does not cross file systems), and of this process alone.
  const std::filesystem::path part =
      file.parent_path() / (".part-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
  const auto give_up = [&](int number) {
    return failure(errc::io_failed, "cannot write " + file.string() + ": " + system_text(number), number);
  };
  descriptor out{::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  if (out.get() < 0) return give_up(errno);
  int number = 0;
  std::size_t done = 0;
  while (done < content.size() && number == 0) {
    const ssize_t put = ::write(out.get(), content.data() + done, content.size() - done);
    if (put >= 0) {
      done += static_cast<std::size_t>(put);
    } else if (errno != EINTR) {
      number = errno;
    }
  }
  if (out.close() != 0 && number == 0) number = errno;
  if (number == 0 && ::rename(part.c_str(), file.c_str()) != 0) number = errno;
  if (number != 0) {
    ::unlink(part.c_str());
    return give_up(number);
  }
  return {};
}

// ---- PNG: libpng leaves its functions by longjmp, so what it jumps over holds no objects; they live one frame up.

struct png_message {
  std::array<char, 160> text{};
};

[[noreturn]] void on_png_error(png_structp png, png_const_charp text) {
  auto* message = static_cast<png_message*>(png_get_error_ptr(png));
  std::strncpy(message->text.data(), text, message->text.size() - 1);
  png_longjmp(png, 1);
}

// Remarks, such as about colour profiles, say nothing about the pixels.
void on_png_warning(png_structp /*png*/, png_const_charp /*text*/) {}

struct png_reading {
  png_message message;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::uint8_t> rest;
  std::uint64_t width = 0;
  std::uint64_t height = 0;
  std::size_t channels = 0;
  std::size_t stride = 0;
  int passes = 1;
  std::vector<std::uint8_t> samples;

  png_reading() = default;
  png_reading(const png_reading&) = delete;
  png_reading& operator=(const png_reading&) = delete;
  ~png_reading() { png_destroy_read_struct(&png, &info, nullptr); }
};

void read_png_bytes(png_structp png, png_bytep out, std::size_t count) {
  auto* reading = static_cast<png_reading*>(png_get_io_ptr(png));
  if (count > reading->rest.size()) png_error(png, "the file ends too early");
  std::memcpy(out, reading->rest.data(), count);
  reading->rest = reading->rest.subspan(count);
}

bool read_png_header(png_reading& r) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  png_set_read_fn(r.png, &r, read_png_bytes);
  png_read_info(r.png, r.info);
  r.width = png_get_image_width(r.png, r.info);
  r.height = png_get_image_height(r.png, r.info);
  png_set_expand(r.png);
  png_set_scale_16(r.png);
  r.passes = png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  r.channels = png_get_channels(r.png, r.info);
  r.stride = png_get_rowbytes(r.png, r.info);
  return true;
}

bool read_png_rows(png_reading& r) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  for (int pass = 0; pass < r.passes; ++pass) {
    for (std::size_t y = 0; y < r.height; ++y) png_read_row(r.png, r.samples.data() + y * r.stride, nullptr);
  }
  png_read_end(r.png, nullptr);  // the last checksums are behind the last row
  return true;
}

// Without its last channel, alpha, and laid on white.
void drop_alpha(std::vector<std::uint8_t>& samples, std::size_t channels) {
  const std::size_t pixels = samples.size() / channels;
  const std::size_t kept = channels - 1;
  for (std::size_t p = 0; p < pixels; ++p) {
    const unsigned alpha = samples[p * channels + kept];
    for (std::size_t c = 0; c < kept; ++c) {
      const unsigned blended = samples[p * channels + c] * alpha + 255U * (255U - alpha);
      samples[p * kept + c] = static_cast<std::uint8_t>((blended + 127U) / 255U);
    }
  }
  samples.resize(pixels * kept);
}

result<image> decode_png(std::span<const std::uint8_t> content, std::string_view name) {
  png_reading r;
  r.rest = content;
  const auto damaged = [&] {
    return failure(errc::corrupt, std::string{name} + " is damaged: " + r.message.text.data());
  };
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r.message, on_png_error, on_png_warning);
  if (r.png != nullptr) r.info = png_create_info_struct(r.png);
  if (r.info == nullptr) return failure(errc::resource_exhausted, "libpng cannot start reading " + std::string{name});
  if (!read_png_header(r)) return damaged();
  if (r.width * r.height > max_pixels) return too_large(name, r.width, r.height);
  r.samples.resize(r.height * r.stride);
  if (!read_png_rows(r)) return damaged();
  if (r.channels == 2 || r.channels == 4) drop_alpha(r.samples, r.channels--);
  return image{static_cast<int>(r.width), static_cast<int>(r.height), static_cast<int>(r.channels),
               std::move(r.samples)};
}

struct png_writing {
  png_message message;
  png_structp png = nullptr;
  png_infop info = nullptr;
  const image* picture = nullptr;
  std::vector<std::uint8_t> out;

  png_writing() = default;
  png_writing(const png_writing&) = delete;
  png_writing& operator=(const png_writing&) = delete;
  ~png_writing() { png_destroy_write_struct(&png, &info); }
};

bool append(std::vector<std::uint8_t>& out, const std::uint8_t* data, std::size_t count) noexcept {
  try {
    out.insert(out.end(), data, data + count);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void write_png_bytes(png_structp png, png_bytep data, std::size_t count) {
  if (!append(static_cast<png_writing*>(png_get_io_ptr(png))->out, data, count)) png_error(png, "out of memory");
}

void flush_png_bytes(png_structp /*png*/) {}

bool write_png_rows(png_writing& w) {
  if (setjmp(png_jmpbuf(w.png)) != 0) return false;
  png_set_write_fn(w.png, &w, write_png_bytes, flush_png_bytes);
  png_set_IHDR(w.png, w.info, static_cast<png_uint_32>(w.picture->width), static_cast<png_uint_32>(w.picture->height),
               8, w.picture->channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_compression_level(w.png, 2);  // of a photograph, level 6 saves a few percent in several times the time
  png_set_filter(w.png, PNG_FILTER_TYPE_BASE, PNG_FILTER_SUB);
  png_write_info(w.png, w.info);
  const std::size_t stride = static_cast<std::size_t>(w.picture->width) * static_cast<std::size_t>(w.picture->channels);
  for (std::size_t y = 0; y < static_cast<std::size_t>(w.picture->height); ++y) {
    png_write_row(w.png, w.picture->pixels.data() + y * stride);
  }
  png_write_end(w.png, w.info);
  return true;
}

// ---- JPEG

struct jpeg_end {
  void operator()(void* codec) const { tjDestroy(codec); }
};
using jpeg_codec = std::unique_ptr<void, jpeg_end>;

result<image> decode_jpeg(std::span<const std::uint8_t> content, std::string_view name) {
  const jpeg_codec codec{tjInitDecompress()};
  if (!codec) return failure(errc::resource_exhausted, "libjpeg-turbo cannot start reading " + std::string{name});
  const auto damaged = [&] {
    return failure(errc::corrupt, std::string{name} + " is damaged: " + tjGetErrorStr2(codec.get()));
  };
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colours = 0;
  const auto size = static_cast<unsigned long>(content.size());
  if (tjDecompressHeader3(codec.get(), content.data(), size, &width, &height, &subsampling, &colours) != 0) {
    return damaged();
  }
  if (colours == TJCS_CMYK || colours == TJCS_YCCK) {
    return failure(errc::unsupported, std::string{name} + " has the colours of print (CMYK): convert it to RGB");
  }
  const auto pixels = static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
  if (pixels > max_pixels) {
    return too_large(name, static_cast<std::uint64_t>(width), static_cast<std::uint64_t>(height));
  }
  const bool grey = colours == TJCS_GRAY;
  image picture{width, height, grey ? 1 : 3, {}};
  picture.pixels.resize(static_cast<std::size_t>(pixels) * static_cast<std::size_t>(picture.channels));
  // A remark of this library means that it made pixels up ("premature end of file"): here that is a failure. And a
  // small file may ask for endless refinements of a large picture.
  const int flags = TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS;
  if (tjDecompress2(codec.get(), content.data(), size, picture.pixels.data(), width, width * picture.channels, height,
                    grey ? TJPF_GRAY : TJPF_RGB, flags) != 0) {
    return damaged();
  }
  return picture;
}

struct jpeg_free {
  void operator()(unsigned char* memory) const { tjFree(memory); }
};

bool starts_with(std::span<const std::uint8_t> content, std::initializer_list<int> signature) {
  return content.size() >= signature.size() &&
         std::equal(signature.begin(), signature.end(), content.begin(), [](int a, std::uint8_t b) { return a == b; });
}

}  // namespace

std::string what_is_wrong_with(const image& picture) {
  if (picture.width <= 0 || picture.height <= 0) {
    return "it has " + std::to_string(picture.width) + " x " + std::to_string(picture.height) + " pixels";
  }
  if (picture.channels != 1 && picture.channels != 3) {
    return "it has " + std::to_string(picture.channels) + " channels; 1 and 3 are possible";
  }
  if (picture.pixel_count() > max_pixels) return "it has more than " + std::to_string(max_pixels) + " pixels";
  const std::uint64_t expected = picture.pixel_count() * static_cast<std::uint64_t>(picture.channels);
  if (picture.pixels.size() != expected) {
    return "it has " + std::to_string(picture.pixels.size()) + " bytes instead of " + std::to_string(expected);
  }
  return {};
}

result<image> decode_image(std::span<const std::uint8_t> content, std::string_view name) {
  try {
    if (starts_with(content, {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'})) return decode_png(content, name);
    if (starts_with(content, {0xFF, 0xD8, 0xFF})) return decode_jpeg(content, name);
  } catch (const std::bad_alloc&) {
    return failure(errc::resource_exhausted, "not enough memory to read " + std::string{name});
  }
  if (content.empty()) return failure(errc::corrupt, std::string{name} + " is empty");
  return failure(errc::unsupported, std::string{name} + " is neither a JPEG nor a PNG");
}

result<image> read_image(const std::filesystem::path& file) {
  auto content = read_file(file);
  if (!content) return std::move(content).error();
  return decode_image(*content, file.string());
}

image_list load_images(const std::filesystem::path& folder) {
  std::error_code problem;
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator entries{folder, problem};
  if (problem) raise(errc::io_failed, "cannot read the folder " + folder.string() + ": " + problem.message());
  for (const std::filesystem::directory_iterator end; entries != end; entries.increment(problem)) {
    std::error_code ignored;
    if (entries->path().filename().string().starts_with('.') || entries->is_directory(ignored)) continue;
    files.push_back(entries->path());
  }
  if (problem) raise(errc::io_failed, "cannot read the folder " + folder.string() + ": " + problem.message());
  std::sort(files.begin(), files.end());
  image_list list;
  for (const auto& file : files) {
    auto picture = read_image(file);
    if (picture) {
      list.images.push_back({file.filename().string(), std::move(picture).value()});
    } else {
      list.failures.push_back({file.filename().string(), picture.error().what});
    }
  }
  return list;
}

result<void> write_png(const std::filesystem::path& file, const image& picture) {
  if (const std::string wrong = what_is_wrong_with(picture); !wrong.empty()) {
    return failure(errc::invalid_argument, "cannot write " + file.string() + ": " + wrong);
  }
  png_writing w;
  w.picture = &picture;
  w.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &w.message, on_png_error, on_png_warning);
  if (w.png != nullptr) w.info = png_create_info_struct(w.png);
  if (w.info == nullptr || !write_png_rows(w)) {
    return failure(errc::resource_exhausted, "cannot make " + file.string() + ": " + w.message.text.data());
  }
  return write_file(file, w.out);
}

result<void> write_jpeg(const std::filesystem::path& file, const image& picture, int quality) {
  if (const std::string wrong = what_is_wrong_with(picture); !wrong.empty()) {
    return failure(errc::invalid_argument, "cannot write " + file.string() + ": " + wrong);
  }
  const jpeg_codec codec{tjInitCompress()};
  unsigned char* made = nullptr;
  unsigned long size = 0;
  const bool grey = picture.channels == 1;
  const int code = codec == nullptr
                       ? -1
                       : tjCompress2(codec.get(), picture.pixels.data(), picture.width,
                                     picture.width * picture.channels, picture.height, grey ? TJPF_GRAY : TJPF_RGB,
                                     &made, &size, grey ? TJSAMP_GRAY : TJSAMP_420, quality, 0);
  const std::unique_ptr<unsigned char, jpeg_free> owner{made};
  if (code != 0) {
    return failure(errc::invalid_argument, "cannot make " + file.string() + ": " + tjGetErrorStr2(codec.get()));
  }
  return write_file(file, {made, size});
}

}  // namespace weft::images
