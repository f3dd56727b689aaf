// SPDX-License-Identifier: Apache-2.0
// Children of a test: forked, watched, and never left behind.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <dirent.h>
#include <exception>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace processes {

/// A forked child that runs `body` and ends with its value; killed when the test lets it go.
class child {
 public:
  template <class F>
  explicit child(F&& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int value = 99;
    try {
      value = body();
    } catch (const std::exception& e) {
      static_cast<void>(!::write(STDERR_FILENO, e.what(), std::string{e.what()}.size()));
    }
    ::_exit(value);
  }
  child(child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  child& operator=(child&&) = delete;
  ~child() {
    if (pid_ <= 0) return;
    kill(SIGKILL);
    static_cast<void>(wait());
  }

  void kill(int signal) const { ::kill(pid_, signal); }
  /// The child's value, or minus the signal that ended it.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

/// One T that a test and its children see.
template <class T>
class shared {
 public:
  shared() : memory_(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    value_ = ::new (memory_) T{};
  }
  shared(const shared&) = delete;
  shared& operator=(const shared&) = delete;
  ~shared() { ::munmap(memory_, sizeof(T)); }
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  void* memory_;
  T* value_;
};

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
  }
  return count;
}

/// Mappings whose line in /proc/self/maps contains `what`.
inline std::size_t mappings_of(const std::string& what) {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += static_cast<std::size_t>(line.find(what) != std::string::npos);
  return count;
}

}  // namespace processes
