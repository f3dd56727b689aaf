// SPDX-License-Identifier: Apache-2.0
// Ranges of the host's time for the profilers of the vendors: Nsight Systems (NVTX) and rocprof (rocTX).
#pragma once

#include <atomic>
#include <string>

namespace weft::detail {

/// From its construction to its end the calling thread does what `words` says, if a profiler has put itself into this
/// process. Ranges of a thread nest. Cost without a profiler: one load.
class profiler_range {
 public:
  /// `words` is called, without arguments for a string, only where somebody listens.
  template <class Words>
  explicit profiler_range(const Words& words) noexcept {
    if (!is_listening()) return;
    try {
      push(words());
      is_open_ = true;
    } catch (...) {  // NOLINT(bugprone-empty-catch): without memory for the words nothing is told
    }
  }
  profiler_range(const profiler_range&) = delete;
  profiler_range& operator=(const profiler_range&) = delete;
  ~profiler_range() {
    if (is_open_) pop();
  }

 private:
  enum class listener : unsigned char { unknown, none, nvtx, roctx };
  [[nodiscard]] static bool is_listening() noexcept {
    const listener now = found.load(std::memory_order_acquire);  // pairs with the release of look()
    return now == listener::unknown ? look() : now != listener::none;
  }
  [[nodiscard]] static bool look() noexcept;
  static void push(const std::string& words);
  static void pop() noexcept;

  static std::atomic<listener> found;
  bool is_open_ = false;
};

}  // namespace weft::detail
