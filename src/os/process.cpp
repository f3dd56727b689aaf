// SPDX-License-Identifier: Apache-2.0
#include "os/process.hpp"

#include "core/errors/make_error.hpp"
#include "os/system_error.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>

namespace weft::detail {

std::uint64_t start_time_of(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) return 0;
  std::array<char, 1024> text;
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  if (count <= 0) return 0;
  const std::string_view line{text.data(), static_cast<std::size_t>(count)};
  // The second field is the program's name in parentheses, with any characters; the start time is field 22.
  auto at = line.rfind(')');
  for (int field = 2; at != std::string_view::npos && field < 22; ++field) at = line.find(' ', at + 1);
  std::uint64_t ticks = 0;
  if (at == std::string_view::npos) return 0;
  std::from_chars(line.data() + at + 1, line.data() + line.size(), ticks);
  return ticks;
}

result<descriptor> watch_process(pid_t pid, std::uint64_t start_time) {
  descriptor made{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  const std::string who = "process " + std::to_string(pid);
  if (!made) {
    if (errno == ESRCH) return make_error(errc::peer_dead, who + " has ended", error_scope::process);
    return system_error("cannot watch " + who, errno);
  }
  // The pid may have gone to another process between its message and now; its start time has not.
  const std::uint64_t now = start_time_of(pid);
  if (now != 0 && start_time != 0 && now != start_time) {
    return make_error(errc::peer_dead, who + " has ended, and another one has its number", error_scope::process);
  }
  return made;
}

bool is_process_descriptor(int fd) noexcept {
  return ::syscall(SYS_pidfd_send_signal, fd, 0, nullptr, 0) == 0 || errno == ESRCH || errno == EPERM;
}

}  // namespace weft::detail
