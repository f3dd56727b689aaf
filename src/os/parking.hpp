// SPDX-License-Identifier: Apache-2.0
// Waiting for a word to change: spin for a while, then sleep in the kernel. std::atomic::wait has no deadline.
#pragma once

#include "weft/core/waiting.hpp"

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weft::parking {

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Cores this process may use: a container or taskset may leave fewer than the machine has.
[[nodiscard]] int cores() noexcept;

/// Counts the queues of this process that have work. An owner adds 1 when its queue gets work, and takes it back when
/// the queue is empty, or while the work waits for a value that another program may write much later.
void count_at_work(int change) noexcept;
/// More of them than cores(): who spins keeps one of them from its work.
[[nodiscard]] bool is_crowded() noexcept;

/// Whether a word lies in this process's memory or is shared with others.
enum class word_scope : int { process = FUTEX_PRIVATE_FLAG, shared = 0 };

inline void wake_all(std::atomic<std::uint32_t>& word, word_scope scope = word_scope::process) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE | static_cast<int>(scope), INT_MAX, nullptr,
          nullptr, 0);
}

/// Orders every running thread of this process (of every process that asked for it, when shared) as if each had run a
/// full fence: so that who sleeps pays for it, and who works does not. False where the kernel does not offer it.
[[nodiscard]] bool heavy_fence(word_scope scope) noexcept;
/// Asks for heavy_fence(); false where it is not offered. Once per process is enough.
[[nodiscard]] bool offers_heavy_fence(word_scope scope) noexcept;

/// Sleeps while the word is `seen`, until woken or `until`; may return early.
inline void park(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::steady_clock::time_point until,
                 word_scope scope = word_scope::process) noexcept {
  timespec limit{};
  const timespec* bound = nullptr;
  if (until != std::chrono::steady_clock::time_point::max()) {
    // FUTEX_WAIT_BITSET takes an absolute time on CLOCK_MONOTONIC, which is libstdc++'s steady clock
    const auto ns = until.time_since_epoch().count();
    limit.tv_sec = static_cast<std::time_t>(ns / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    bound = &limit;
  }
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_BITSET | static_cast<int>(scope), seen, bound,
          nullptr, FUTEX_BITSET_MATCH_ANY);
}

/// A bounded spin. No more threads spin at a time than there are cores; others park at once. A hand-over between two
/// running threads takes the first turns; after them, where spinners hold all cores, one gives its core to any thread
/// that has work for it.
class spinner {
 public:
  explicit spinner(waiting policy, std::uint32_t turns = usual) noexcept;
  ~spinner();
  spinner(const spinner&) = delete;
  spinner& operator=(const spinner&) = delete;

  /// Pauses once; false when it is time to park.
  bool spin() noexcept {
    if (!allowed_) return false;
    pause();
    ++turns_;
    if (turns_ % 8 == 0 && turns_ >= alone_ && !give_way()) return forever_;
    return forever_ || turns_ < limit_;
  }
  [[nodiscard]] bool time_to_look() const noexcept { return turns_ % 64 == 0; }

 private:
  // Some tens of microseconds of pauses: longer than a hand-over between two running threads takes, and about what a
  // futex sleep and wake costs (bench/runtime/handover_bench shows both).
  static constexpr std::uint32_t usual = 600;
  static constexpr std::uint32_t of_a_handover = 64;

  /// False where that costs much now: better to sleep, and be woken at once.
  static bool give_way() noexcept;

  std::uint32_t turns_ = 0;
  std::uint32_t limit_;
  std::uint32_t alone_ = 0;  // turns without giving way
  bool forever_ = false;
  bool allowed_ = true;
};

}  // namespace weft::parking
