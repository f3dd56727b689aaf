// SPDX-License-Identifier: Apache-2.0
#include "interruption.hpp"

#include "core/environment.hpp"
#include "output.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <poll.h>
#include <semaphore.h>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace weft::tool {

namespace {

volatile std::sig_atomic_t stop_requested = 0;
sem_t asked;

extern "C" void note_interrupt(int number) {
  const int before = errno;
  stop_requested = 1;
  std::signal(number, SIG_DFL);  // the second one ends the process
  ::sem_post(&asked);
  errno = before;
}

/// Kept for ever: a thread may look at it while the process ends.
std::stop_source& source() {
  static auto* const made = new std::stop_source;
  return *made;
}

struct half_written {
  std::mutex mutex;
  std::string file;
};
half_written& unfinished_file() {
  static auto* const made = new half_written;
  return *made;
}

void end_after(std::chrono::milliseconds grace) {
  while (::sem_wait(&asked) != 0) {
  }
  source().request_stop();
  std::this_thread::sleep_for(grace);
  // Not waiting: for whoever writes at this moment and has the lock, nor for a reader who has stopped.
  pollfd room{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, 0) == 1 && ::ftrylockfile(stdout) == 0) ::fflush_unlocked(stdout);
  if (half_written& half = unfinished_file(); half.mutex.try_lock() && !half.file.empty()) ::unlink(half.file.c_str());
  constexpr std::string_view words = "weft: interrupted\n";
  static_cast<void>(!::write(STDERR_FILENO, words.data(), words.size()));
  ::_exit(static_cast<int>(exit_code::interrupted));
}

}  // namespace

std::chrono::milliseconds interrupt_grace() try {
  return std::chrono::milliseconds{detail::environment_number("WEFT_INTERRUPT_GRACE", 1, 3'600'000).value_or(800)};
} catch (const error_exception& e) {
  throw failure{exit_code::usage, e.cause().what};
}

void watch_interrupts(std::chrono::milliseconds grace) {
  static_cast<void>(source());
  ::sem_init(&asked, 0, 0);
  try {
    std::thread{end_after, grace}.detach();
  } catch (const std::system_error&) {
    // without a thread a command still stops where it looks
  }
  std::signal(SIGINT, note_interrupt);
  std::signal(SIGTERM, note_interrupt);
  std::signal(SIGXFSZ, SIG_IGN);
}

void remove_when_ended(const std::string& unfinished) {
  half_written& half = unfinished_file();
  const std::lock_guard lock{half.mutex};
  half.file = unfinished;
}

bool interrupted() { return stop_requested != 0; }

std::stop_token interruption() { return source().get_token(); }

}  // namespace weft::tool
