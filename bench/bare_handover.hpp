// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/parking.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace weft::bench {

/// The least that any hand-over does: a word to another thread and a word back, waiting as the library waits.
class bare_handover {
 public:
  explicit bare_handover(waiting policy) : policy_(policy), thread_([this] { serve(); }) {}
  ~bare_handover() {
    end_.store(true, std::memory_order_release);
    ring();
    thread_.join();
  }

  void round_trip() {
    const std::uint32_t turn = ++turn_;
    ask_.store(turn, std::memory_order_release);
    if (policy_ != waiting::spin) parking::wake_all(ask_);
    await(answer_, turn);
  }

 private:
  void ring() {
    ask_.fetch_add(1, std::memory_order_release);
    parking::wake_all(ask_);
  }
  void await(std::atomic<std::uint32_t>& word, std::uint32_t wanted) const {
    for (;;) {
      std::uint32_t seen = word.load(std::memory_order_acquire);
      if (seen == wanted) return;
      if (policy_ == waiting::spin) {
        parking::pause();
        continue;
      }
      parking::park(word, seen, std::chrono::steady_clock::time_point::max());
    }
  }
  void serve() {
    std::uint32_t turn = 0;
    for (;;) {
      std::uint32_t seen = ask_.load(std::memory_order_acquire);
      if (end_.load(std::memory_order_acquire)) return;
      if (seen == turn) {
        if (policy_ == waiting::spin) {
          parking::pause();
        } else {
          parking::park(ask_, seen, std::chrono::steady_clock::time_point::max());
        }
        continue;
      }
      turn = seen;
      answer_.store(turn, std::memory_order_release);
      if (policy_ != waiting::spin) parking::wake_all(answer_);
    }
  }

  waiting policy_;
  std::atomic<bool> end_{false};
  alignas(64) std::atomic<std::uint32_t> ask_{0};
  alignas(64) std::atomic<std::uint32_t> answer_{0};
  std::uint32_t turn_ = 0;
  std::thread thread_;
};

}  // namespace weft::bench
