// SPDX-License-Identifier: Apache-2.0
// The messages of a run and the two sides that move them: every message is written whole, copied out whole and checked.
#pragma once

#include "two_cores.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weft::bench {

enum class traffic_kind { single, batch, round_trip };
inline constexpr std::size_t batch_messages = 64;

constexpr std::string_view to_string(traffic_kind kind) {
  switch (kind) {
    case traffic_kind::single:
      return "single";
    case traffic_kind::batch:
      return "batch 64";
    case traffic_kind::round_trip:
      return "round trip";
  }
  return "";
}

/// The compiler may not know what is in it from here on, and has to have written it.
template <class T>
[[gnu::always_inline]] inline void settle(T& value) {
  asm volatile("" : "+m"(value));
}

/// A message that knows its number in every word.
template <std::size_t Bytes>
struct payload {
  static constexpr std::uint64_t words = Bytes / 8;
  static constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;

  std::array<std::uint64_t, words> word;

  void fill(std::uint64_t number) {
    for (std::uint64_t i = 0; i < words; ++i) word[i] = number + i * odd;
    settle(*this);
  }
  /// Up to 512 bytes all words are added up; of larger ones a word of every line, another one each time.
  [[nodiscard]] bool holds(std::uint64_t number) {
    settle(*this);
    constexpr std::uint64_t step = Bytes > 512 ? 8 : 1;
    constexpr std::uint64_t terms = words / step;
    const std::uint64_t start = number % step;
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < terms; ++i) sum += word[start + i * step];
    return sum == terms * number + odd * (terms * start + step * (terms * (terms - 1) / 2));
  }
};

/// Messages that were not what they should have been; in memory that both sides see.
struct findings {
  std::atomic<std::uint64_t> wrong{0};
};

template <class Queue, class T>
[[gnu::always_inline]] inline void send_waiting(Queue& queue, const T& message) {
  patience wait{"space in a queue"};
  while (!queue.try_send(message)) wait();
}
template <class Queue, class T>
[[gnu::always_inline]] inline void receive_waiting(Queue& queue, T& message) {
  patience wait{"a message"};
  while (!queue.try_receive(message)) wait();
}

/// One side of a run of `kind`. Throughput goes through `there` only; a round trip comes back through `back`.
template <std::size_t Bytes, class Queue>
void move_messages(side who, traffic_kind kind, Queue& there, Queue& back, std::uint64_t first, std::uint64_t count,
                   findings& found) {
  using message = payload<Bytes>;
  const std::uint64_t end = first + count;
  std::uint64_t wrong = 0;
  if (kind == traffic_kind::single && who == side::first) {
    message out;
    for (std::uint64_t number = first; number != end; ++number) {
      out.fill(number);
      send_waiting(there, out);
    }
  } else if (kind == traffic_kind::single) {
    message in;
    for (std::uint64_t number = first; number != end; ++number) {
      receive_waiting(there, in);
      if (!in.holds(number)) ++wrong;
    }
  } else if (kind == traffic_kind::batch && who == side::first) {
    std::vector<message> out(batch_messages);
    for (std::uint64_t number = first; number != end; number += batch_messages) {
      for (std::size_t i = 0; i < batch_messages; ++i) out[i].fill(number + i);
      patience wait{"space in a queue"};
      for (std::size_t done = 0; done != batch_messages;) {
        const std::size_t some = there.try_send_some(out.data() + done, batch_messages - done);
        if (some == 0) wait();
        done += some;
      }
    }
  } else if (kind == traffic_kind::batch) {
    std::vector<message> in(batch_messages);
    patience wait{"a message"};
    for (std::uint64_t number = first; number != end;) {
      const std::size_t some = there.try_receive_some(in.data(), batch_messages);
      if (some == 0) wait();
      for (std::size_t i = 0; i < some; ++i) {
        if (!in[i].holds(number + i)) ++wrong;
      }
      number += some;
    }
  } else if (who == side::first) {
    message out;
    message in;
    for (std::uint64_t number = first; number != end; ++number) {
      out.fill(number);
      send_waiting(there, out);
      receive_waiting(back, in);
      if (!in.holds(number)) ++wrong;
    }
  } else {
    message held;
    for (std::uint64_t number = first; number != end; ++number) {
      receive_waiting(there, held);
      settle(held);
      send_waiting(back, held);
    }
  }
  if (wrong != 0) found.wrong.fetch_add(wrong);
}

}  // namespace weft::bench
