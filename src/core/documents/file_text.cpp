// SPDX-License-Identifier: Apache-2.0
#include "core/documents/file_text.hpp"

#include "core/errors/make_error.hpp"
#include "weft/core/bytes.hpp"
#include "weft/core/unique_handle.hpp"

#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace weft::detail {
namespace {

struct open_file_traits {
  using type = int;
  static type none() noexcept { return -1; }
  static void release(type& file) noexcept { ::close(file); }
};

error failed(const std::string& file, int number) {
  const bool is_absent = number == ENOENT || number == ENOTDIR;
  return make_error(
      is_absent ? errc::not_found : errc::io_failed,
      file + (is_absent ? ": no such file" : ": cannot be read: " + std::generic_category().message(number)),
      error_scope::call, number);
}

}  // namespace

result<std::string> file_text(const std::string& file, std::uint64_t largest) {
  // not blocking: opening a FIFO would wait for its writer
  const unique_handle<open_file_traits> opened{::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (!opened) return failed(file, errno);
  struct stat about{};
  if (::fstat(opened.get(), &about) != 0) return failed(file, errno);
  if (S_ISDIR(about.st_mode)) return make_error(errc::io_failed, file + ": is a directory; name a file in it");
  if (!S_ISREG(about.st_mode))
    return make_error(errc::io_failed, file + ": is a pipe or a device, not a file: save what it gives, and name that");
  const auto too_large = [&] {
    return make_error(errc::out_of_range, file + ": has more than " + to_string(bytes{largest}));
  };
  if (static_cast<std::uint64_t>(about.st_size) > largest) return too_large();
  // it may have no size (files of the kernel), or grow
  std::string text(static_cast<std::size_t>(about.st_size) + 1, '\0');
  for (std::size_t size = 0;;) {
    if (size == text.size()) text.resize(size * 2);
    const ssize_t got = ::read(opened.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(file, errno);
    size += static_cast<std::size_t>(got);
    if (size > largest) return too_large();
    if (got == 0) {
      text.resize(size);
      return text;
    }
  }
}

}  // namespace weft::detail
