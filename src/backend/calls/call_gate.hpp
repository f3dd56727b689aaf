// SPDX-License-Identifier: Apache-2.0
// Who is inside a backend: closing ends its work, then waits here until the last call has come back, and only then
// takes memory and the driver's objects away.
#pragma once

#include "os/fork_watch.hpp"
#include "weft/core/error.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace weft::detail {

/// Thread: any. Cost of a call that nothing shuts out: one exchange in a cache line that other threads seldom use.
class call_gate {
  struct alignas(64) place {
    std::atomic<std::uintptr_t> thread{0};  // whose it is; 0: nobody's
    int depth = 0;                          // of its calls inside each other; its own to write
  };

 public:
  /// One call, from its begin to its end on one thread.
  class pass {
   public:
    explicit pass(call_gate& gate) noexcept;
    ~pass();
    pass(const pass&) = delete;
    pass& operator=(const pass&) = delete;
    /// False where the gate is shut, and in the child of a fork: then nothing may be called.
    explicit operator bool() const noexcept { return is_inside_; }

   private:
    friend call_gate;
    call_gate& gate_;
    place* place_ = nullptr;  // null: in the list
    bool is_inside_ = false;
    std::uintptr_t thread_;
    pass *previous_ = nullptr, *next_ = nullptr;
  };

  /// No call begins from now on.
  void shut() noexcept { is_shut_.store(true, std::memory_order_seq_cst); }
  /// Waits until every call of other threads has come back.
  void wait_until_empty() noexcept;
  /// Whether a call of this thread is under way.
  [[nodiscard]] bool is_inside() noexcept;
  [[nodiscard]] bool forked() const noexcept { return here_.forked(); }
  /// What a call is told that was not let in.
  [[nodiscard]] error refusal() const;

 private:
  static constexpr std::size_t places = 64;  // a power of two
  static constexpr std::size_t tries = 4;    // places that a thread looks at before it takes the list

  [[nodiscard]] bool others_inside() noexcept;

  fork_watch here_;
  std::atomic<bool> is_shut_{false};
  std::array<place, places> places_;
  std::mutex list_mutex_;
  pass* list_ = nullptr;  // calls that found no place, on their threads' stacks
};

}  // namespace weft::detail
