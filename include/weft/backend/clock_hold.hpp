// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace weft {

/// Keeps a virtual clock from going on while somebody who has seen something happen has yet to decide what follows at
/// that instant: what it submits then starts then, however slow its thread is. A wall clock takes no notice.
/// Thread: any.
class clock_hold {
 public:
  void take() noexcept { count_.fetch_add(1, std::memory_order_acq_rel); }
  void give() noexcept {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) count_.notify_all();  // pairs with acquire in wait
  }
  /// The calling thread is the one that decides: it may let the clock run by waiting for it.
  void decided_here() noexcept { decider_.store(std::this_thread::get_id(), std::memory_order_release); }

  [[nodiscard]] bool stops_caller() const noexcept {
    return count_.load(std::memory_order_acquire) != 0 &&
           decider_.load(std::memory_order_acquire) != std::this_thread::get_id();
  }
  /// Returns when it was given back.
  void wait() const noexcept {
    for (std::uint32_t held = count_.load(std::memory_order_acquire); held != 0;
         held = count_.load(std::memory_order_acquire)) {
      count_.wait(held, std::memory_order_acquire);
    }
  }

 private:
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::thread::id> decider_{};
};

}  // namespace weft
