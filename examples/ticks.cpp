// SPDX-License-Identifier: Apache-2.0
// Market ticks from one device to another: one thread sends them, another keeps their volume-weighted average price.
#include "play.hpp"
#include "weft/channel/message_queue.hpp"

#include <cstdint>
#include <iomanip>
#include <iostream>
#include <thread>

struct tick {
  std::uint64_t number;
  std::int64_t cents;  // the price; whole numbers, so that two sums are the same to the last bit
  std::int64_t shares;
};

// The market: a price that wanders around 100, and volumes that differ from tick to tick.
tick tick_of(std::uint64_t number) {
  const std::uint64_t noise = (number + 1) * 0x9E3779B97F4A7C15ULL;
  return {number, 10'000 + static_cast<std::int64_t>(noise >> 40) % 500 - 250,
          1 + static_cast<std::int64_t>(noise >> 20 & 0xFF)};
}

struct average {
  std::int64_t value = 0, shares = 0;
  void add(const tick& t) {
    value += t.cents * t.shares;
    shares += t.shares;
  }
  friend bool operator==(const average&, const average&) = default;
  friend std::ostream& operator<<(std::ostream& out, const average& a) {
    return out << std::fixed << std::setprecision(4)
               << static_cast<double>(a.value) / static_cast<double>(a.shares) / 100;
  }
};

int show(const weft::machine& m) {
  constexpr std::uint64_t count = 1'000'000;
  const weft::message_queue<tick> queue{m, m[0], m[1]};
  std::cout << "gpu0 -> gpu1: " << to_string(queue.mode()) << (queue.why().empty() ? "" : ", ") << queue.why() << "\n";

  std::jthread producer{[to = queue.open_sender()]() mutable {
    for (std::uint64_t n = 0; n < count; ++n) {
      if (to.send(tick_of(n)) != weft::queue_status::ok) return;  // waits while the queue is full
    }
  }};  // the sender closes here: the receiver gets the rest, then `closed`

  average running;
  std::uint64_t next = 0, out_of_order = 0;
  auto from = queue.open_receiver();
  for (tick t{}; from.receive(t) == weft::queue_status::ok; ++next) {  // waits for the next tick
    if (t.number != next) ++out_of_order;
    running.add(t);
    if ((next + 1) % (count / 4) == 0) std::cout << "after " << next + 1 << " ticks: " << running << "\n";
  }

  average plain;
  for (std::uint64_t n = 0; n < count; ++n) plain.add(tick_of(n));
  const weft::queue_statistics s = queue.statistics();
  std::cout << s.sent << " sent, " << s.received << " received, " << out_of_order << " out of order, " << s.lost
            << " lost; " << s.direct.messages << " direct, " << s.staged.messages << " staged\n"
            << (running == plain ? "the same as a plain sum\n" : "NOT what a plain sum gives\n");
  return running == plain ? 0 : 1;
}

int main(int argc, char** argv) {
  return examples::run([&] { return show(examples::play(argc, argv, "pair_nvlink")); });
}
