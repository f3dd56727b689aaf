// SPDX-License-Identifier: Apache-2.0
// Children of a test: forked, watched, and never left behind.
#pragma once

#include "os/parking.hpp"
#include "support/hang.hpp"
#include "weft/core/raise.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <dirent.h>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
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

/// How far a test and its children have come, told between them. Who waits sleeps on the word: nobody polls.
class steps {
 public:
  void say(int now) {
    word_.store(static_cast<std::uint32_t>(now), std::memory_order_release);  // pairs with acquire in now
    weft::parking::wake_all(word_, weft::parking::word_scope::shared);
  }
  [[nodiscard]] int now() const { return static_cast<int>(word_.load(std::memory_order_acquire)); }
  /// False when it was not said in time.
  [[nodiscard]] bool hear(int wanted, std::chrono::nanoseconds limit = samples::only_a_hang) const {
    const auto until = std::chrono::steady_clock::now() + limit;
    for (int seen = now(); seen < wanted; seen = now()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      weft::parking::park(word_, static_cast<std::uint32_t>(seen), until, weft::parking::word_scope::shared);
    }
    return true;
  }

 private:
  mutable std::atomic<std::uint32_t> word_{0};
};

/// Asks until it is so, giving the core away in between: for what tells nobody when it changes, as counts in /proc.
template <class F>
bool comes_true(F&& f) {
  const auto until = std::chrono::steady_clock::now() + samples::only_a_hang;
  while (!f()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Descriptors of this process whose file has `name` in its own.
inline std::size_t open_descriptors(std::string_view name = {}) {
  std::size_t count = 0;
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (const dirent* one = ::readdir(folder)) {
      std::array<char, 256> file{};
      if (::readlinkat(::dirfd(folder), one->d_name, file.data(), file.size()) < 0) continue;
      if (std::string_view{file.data(), file.size()}.find(name) != std::string_view::npos) ++count;
    }
    ::closedir(folder);
  }
  return count;
}

/// Runs `f` while no descriptor numbered `limit` or higher can be opened, then throws what `f` threw.
/// UndefinedBehaviorSanitizer opens a pipe to look at an object of a type that it has not seen, and without one takes
/// it for garbage: so it is shown one of weft's exceptions first, and what `f` threw is looked at afterwards.
template <class F>
void with_descriptors_below(std::size_t limit, F&& f) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{limit, before.rlim_max};
  std::exception_ptr thrown;
  try {
    weft::raise(weft::errc::not_found, "nothing is wrong");
  } catch (const weft::error_exception& seen) {
    static_cast<void>(seen.cause());
  }
  ::setrlimit(RLIMIT_NOFILE, &low);
  try {
    f();
  } catch (...) {
    thrown = std::current_exception();
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  if (thrown) std::rethrow_exception(thrown);
}

/// Mappings whose line in /proc/self/maps contains `what`, a name: those without one come and go as the C library's and
/// a sanitizer's heaps grow.
inline std::size_t mappings_of(const std::string& what) {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += static_cast<std::size_t>(line.find(what) != std::string::npos);
  return count;
}

/// The bytes of address space this process has taken, with memory behind them or without.
inline std::uint64_t address_space() {
  std::ifstream statm{"/proc/self/statm"};
  std::uint64_t pages = 0;
  statm >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace processes
