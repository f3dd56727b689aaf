// SPDX-License-Identifier: Apache-2.0
// Two sides of one run, each on a core of its own, with the bounce of a cache line measured right before and right
// after: a virtual machine may put both of its cores on the two threads of one real core, and then every queue is four
// times faster. A figure without that reading is noise.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <sched.h>
#include <string_view>
#include <thread>
#include <utility>

namespace weft::bench {

enum class side { first, second };

/// Waits by spinning, and ends the program with the name of what it waited for rather than wait for ever.
class patience {
 public:
  explicit patience(const char* what) : what_(what) {}
  void operator()() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if ((++spins_ & 0xfffff) == 0) [[unlikely]]
      look_at_the_clock();
  }

 private:
  void look_at_the_clock();

  const char* what_;
  std::uint32_t spins_ = 0;
  double since_ = 0;
};

struct bounce_time {
  double one_line_ns = 0, two_lines_ns = 0;
};

/// Where the two sides meet: lies in memory that both see, of one process or shared by two.
class meeting {
 public:
  /// Returns once the other side is here too. Nobody sleeps.
  void meet(side who);
  /// Nanoseconds from a store here to the answer of the other core. Both sides call it. In one line that both write,
  /// and in a line there and another one back, as queues do it: a processor may be much faster at the first.
  bounce_time bounce(side who);

 private:
  struct alignas(128) word {
    std::atomic<std::uint32_t> value{0};
  };
  double bounce_in(side who, std::atomic<std::uint32_t>& there, std::atomic<std::uint32_t>& back);

  word here_[2];
  word there_, back_;
};

enum class placement { two_cores, one_core, moved, disturbed };
[[nodiscard]] std::string_view to_string(placement where);

/// What one run said.
struct reading {
  double seconds = 0;  // for all of the timed work
  bounce_time before, after;
  [[nodiscard]] placement where() const;
};

/// The two cores that this program may use, and whether it may ask for real-time priority; first == second: there is
/// one core only.
struct cores {
  std::size_t first = 0, second = 0;
};
[[nodiscard]] cores find_cores();
void pin_to(std::size_t core);

/// The calling thread on one core until the end of the scope. Threads that it makes before or after are free.
class pinned {
 public:
  explicit pinned(std::size_t core);
  ~pinned();
  pinned(const pinned&) = delete;
  pinned& operator=(const pinned&) = delete;

 private:
  cpu_set_t before_;
};

/// Real-time priority from here to the end of the scope, where the system grants it: a run of a few milliseconds is
/// then not interrupted by whatever else the machine does.
class undisturbed {
 public:
  explicit undisturbed(bool wanted);
  ~undisturbed();
  undisturbed(const undisturbed&) = delete;
  undisturbed& operator=(const undisturbed&) = delete;
  [[nodiscard]] static bool is_granted();

 private:
  bool raised_ = false;
};

/// Work of one side: `count` messages from number `first` on.
using side_work = std::function<void(std::uint64_t first, std::uint64_t count)>;

struct run_length {
  std::uint64_t warm = 0, timed = 0;  // messages
  bool priority = true;               // false where a third thread has to have its turn
};

/// One side of a run: bounce, warm-up, timed part, bounce.
reading run_side(meeting& at, side who, const run_length& length, const side_work& work);

/// A thread on the second core. Sleeps between runs, never in one.
class second_thread {
 public:
  explicit second_thread(const cores& where);
  ~second_thread();
  second_thread(const second_thread&) = delete;
  second_thread& operator=(const second_thread&) = delete;

  /// Both sides; `first` on the calling thread.
  reading run(const run_length& length, const side_work& first, const side_work& second);

 private:
  void serve();

  cores where_;
  meeting at_;
  std::mutex guard_;
  std::condition_variable changed_;
  std::function<void()> job_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace weft::bench
