// SPDX-License-Identifier: Apache-2.0
// handover/…: an empty operation submitted and waited for, against a bare hand-over between two threads with the same
// way of waiting. Bars: under 1 us above the hand-over; 1,000 queued operations under 0.3 us each.

#include "backend/parking.hpp"
#include "paired.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <atomic>
#include <cstdio>
#include <thread>

namespace {

/// The least that any hand-over does: a word to another thread and a word back, waiting as the library waits.
class bare_handover {
 public:
  explicit bare_handover(weft::waiting policy) : policy_(policy), thread_([this] { serve(); }) {}
  ~bare_handover() {
    end_.store(true, std::memory_order_release);
    ring();
    thread_.join();
  }

  void round_trip() {
    const std::uint32_t turn = ++turn_;
    ask_.store(turn, std::memory_order_release);
    if (policy_ != weft::waiting::spin) weft::parking::wake_all(ask_);
    await(answer_, turn);
  }

 private:
  void ring() {
    ask_.fetch_add(1, std::memory_order_release);
    weft::parking::wake_all(ask_);
  }
  void await(std::atomic<std::uint32_t>& word, std::uint32_t wanted) const {
    for (;;) {
      std::uint32_t seen = word.load(std::memory_order_acquire);
      if (seen == wanted) return;
      if (policy_ == weft::waiting::spin) {
        weft::parking::pause();
        continue;
      }
      weft::parking::park(word, seen, std::chrono::steady_clock::time_point::max());
    }
  }
  void serve() {
    std::uint32_t turn = 0;
    for (;;) {
      std::uint32_t seen = ask_.load(std::memory_order_acquire);
      if (end_.load(std::memory_order_acquire)) return;
      if (seen == turn) {
        if (policy_ == weft::waiting::spin) {
          weft::parking::pause();
        } else {
          weft::parking::park(ask_, seen, std::chrono::steady_clock::time_point::max());
        }
        continue;
      }
      turn = seen;
      answer_.store(turn, std::memory_order_release);
      if (policy_ != weft::waiting::spin) weft::parking::wake_all(answer_);
    }
  }

  weft::waiting policy_;
  std::atomic<bool> end_{false};
  alignas(64) std::atomic<std::uint32_t> ask_{0};
  alignas(64) std::atomic<std::uint32_t> answer_{0};
  std::uint32_t turn_ = 0;
  std::thread thread_;
};

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  for (const weft::waiting policy : {weft::waiting::spin, weft::waiting::park}) {
    const bool spin = policy == weft::waiting::spin;
    weft::machine_options chosen;
    chosen.backend = "host";
    chosen.devices = 1;
    chosen.wait_policy = policy;
    const weft::machine m{chosen};
    const weft::stream order{m[0]};
    bare_handover bare{policy};
    const int repeats = spin ? 500 : 100;
    compare(spin ? "handover/spin: submit an empty operation and wait"
                 : "handover/park: submit an empty operation and wait",
            {{"weft record + wait", [&] { return seconds_of(repeats, [&] { order.record().wait(); }); }},
             {"bare hand-over", [&] { return seconds_of(repeats, [&] { bare.round_trip(); }); }}},
            how);
  }
  weft::machine_options chosen;
  chosen.backend = "host";
  chosen.devices = 1;
  const weft::machine m{chosen};
  const weft::stream order{m[0]};
  compare("queued/1000: per operation of 1,000 on one stream, submitted and waited for",
          {{"weft",
            [&] {
              return seconds_of(1,
                                [&] {
                                  for (int i = 0; i < 999; ++i) static_cast<void>(order.record());
                                  order.record().wait();
                                }) /
                     1000;
            }}},
          how);
  return 0;
}
