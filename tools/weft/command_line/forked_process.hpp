// SPDX-License-Identifier: Apache-2.0
// Other processes of the tool's own, for what happens between processes.
#pragma once

#include "output.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <system_error>
#include <type_traits>
#include <unistd.h>
#include <utility>

namespace weft::tool {

/// Forks while this process has no machine: the child of a process with one cannot use it. The child runs `body`, says
/// nothing, and ends with its value. It ends with this process, and with this object at the latest.
class forked_process {
 public:
  /// Throws std::system_error when no process can be started.
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, forked_process>)
  explicit forked_process(F&& body) : parent_(::getpid()), child_(::fork()) {
    if (child_ < 0) throw std::system_error{errno, std::generic_category(), "a process of its own"};
    if (child_ == 0) ::_exit(in_child(body));
  }
  forked_process(forked_process&& other) noexcept : parent_(other.parent_), child_(std::exchange(other.child_, -1)) {}
  forked_process& operator=(forked_process&&) = delete;
  ~forked_process() {
    // what a later child has inherited is not its child
    if (child_ <= 0 || ::getpid() != parent_) return;
    ::kill(child_, SIGKILL);
    static_cast<void>(wait());
  }

  /// True when it ended with 0. The body bounds its own time.
  bool wait() {
    if (child_ <= 0) return false;  // waitpid() would take any other child
    int status = -1;
    while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    child_ = -1;
    return status == 0;
  }
  [[nodiscard]] pid_t pid() const { return child_; }
  /// How it has ended already, where that was not its own will: "signal 11 (Segmentation fault)". Never waits.
  [[nodiscard]] std::optional<std::string> killed_by() {
    int status = 0;
    if (child_ <= 0 || ::waitpid(child_, &status, WNOHANG) != child_) return std::nullopt;
    child_ = -1;
    if (!WIFSIGNALED(status)) return std::nullopt;
    return fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }

 private:
  template <class F>
  int in_child(F& body) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent_) return 1;  // it ended in the meantime
    try {
      return body();
    } catch (const std::exception&) {
      return 1;  // whoever waits for this process is told by its connection
    }
  }

  pid_t parent_;
  pid_t child_;
};

}  // namespace weft::tool
