// SPDX-License-Identifier: Apache-2.0
#include "os/memory_file.hpp"

#include "core/errors/make_error.hpp"
#include "weft/core/bytes.hpp"

#include <cerrno>
#include <fcntl.h>
#include <linux/magic.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <system_error>
#include <unistd.h>

namespace weft::detail {

namespace {

error no_memory(std::string_view what, int number) {
  return make_error(number == ENOMEM || number == ENOSPC ? errc::out_of_memory : errc::resource_exhausted,
                    "no memory for " + std::string{what} + ": " + std::generic_category().message(number) +
                        (number == EMFILE ? "; raise the process's limit of open files (ulimit -n)" : ""),
                    error_scope::call, number);
}

}  // namespace

result<descriptor> make_memory_file(const char* name, std::uint64_t size, memory_file_pages pages,
                                    std::string_view what) {
  descriptor file{::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!file) return no_memory(what, errno);
  const auto length = static_cast<off_t>(size);
  int number = 0;
  if (pages == memory_file_pages::all_there) {
    while ((number = ::posix_fallocate(file.get(), 0, length)) == EINTR) {
    }
  } else if (::ftruncate(file.get(), length) != 0) {
    number = errno;
  }
  if (number != 0) return no_memory(std::string{what} + ", " + to_string(bytes{size}), number);
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return no_memory(what, errno);
  return file;
}

result<void> check_memory_file(int file, std::uint64_t size, memory_file_pages pages, std::string_view what) {
  const auto refused = [&](const std::string& why) {
    return make_error(errc::corrupt, "what was offered as " + std::string{what} + " " + why);
  };
  struct stat about{};
  const int seals = ::fstat(file, &about) == 0 && S_ISREG(about.st_mode) ? ::fcntl(file, F_GET_SEALS) : -1;
  if (seals < 0) return refused("is not a memory file");
  constexpr int needed = F_SEAL_SHRINK | F_SEAL_SEAL;
  if ((seals & needed) != needed) return refused("is not sealed: its owner could take the memory away");
  struct statfs system{};
  if (::fstatfs(file, &system) != 0 || system.f_type == HUGETLBFS_MAGIC)
    return refused("lies in huge pages, of which none may be left when it is touched");
  const auto has = static_cast<std::uint64_t>(about.st_size), there = static_cast<std::uint64_t>(about.st_blocks) * 512;
  if (has < size) {
    return refused("has " + to_string(bytes{has}) + " (" + std::to_string(has) + " bytes), not " +
                   to_string(bytes{size}) + " (" + std::to_string(size) + " bytes)");
  }
  if (pages == memory_file_pages::all_there && there < size)
    return refused("has " + to_string(bytes{size}) + ", of which only " + to_string(bytes{there}) + " are there");
  return {};
}

}  // namespace weft::detail
