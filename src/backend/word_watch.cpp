// SPDX-License-Identifier: Apache-2.0
#include "backend/word_watch.hpp"

#include "os/parking.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace weft::detail {
namespace {

// Of the process: a word may be watched by one backend and written by another.
std::atomic<std::uint32_t> writes{0};
std::atomic<std::uint32_t> sleepers{0};

constexpr std::chrono::microseconds shortest{50};
constexpr std::chrono::microseconds longest{1000};

}  // namespace

void word_written() noexcept {
  writes.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) parking::wake_all(writes);
}

void watch_word(const std::function<bool()>& holds, const std::stop_token& stop, waiting policy) {
  {
    parking::spinner spinner{policy};
    do {
      if (stop.stop_requested() || holds()) return;
    } while (policy != waiting::park && spinner.spin());
  }
  const std::stop_callback stopped{stop, [] { word_written(); }};
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  for (std::chrono::microseconds pause = shortest;; pause = std::min(2 * pause, longest)) {
    const std::uint32_t seen = writes.load(std::memory_order_seq_cst);
    if (stop.stop_requested() || holds()) break;
    parking::park(writes, seen, std::chrono::steady_clock::now() + pause);
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace weft::detail
