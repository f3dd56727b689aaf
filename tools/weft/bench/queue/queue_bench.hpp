// SPDX-License-Identifier: Apache-2.0
// Messages between devices, timed with a thread at each end and checked on arrival.
#pragma once

#include "bench/bench_row.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/channel/queue_options.hpp"
#include "weft/core/ids.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::tool {

/// A queue's size is known to the compiler, so these are the sizes that there are.
inline constexpr std::array<std::uint64_t, 12> queue_sizes{8,   16,   32,   64,   128,   256,
                                                           512, 1024, 2048, 4096, 16384, 65536};

/// For one message, and for a launch of a kernel to end.
inline constexpr std::chrono::seconds longest_wait{10};

/// Bytes that depend on their place and on the message's number.
template <std::size_t Bytes>
struct numbered_message {
  static constexpr std::size_t words = Bytes / 8;
  std::array<std::uint64_t, words> word;

  static constexpr std::uint64_t expected(std::size_t place, std::uint64_t number) {
    return (number + 1) * 0x9E3779B97F4A7C15ULL + place * 0xD6E8FEB86659FD93ULL;
  }
  void fill(std::uint64_t number) {
    for (std::size_t i = 0; i < words; ++i) word[i] = expected(i, number);
  }
  /// The first and the last word only: what a timed message costs must be the queue, not its pattern.
  void mark(std::uint64_t number) {
    word.front() = expected(0, number);
    word.back() = expected(words - 1, number);
  }
  /// The place of the first word that is not the expected one; `words` when all are. Not `whole`: of those that mark()
  /// writes.
  [[nodiscard]] std::size_t first_bad(std::uint64_t number, bool whole) const {
    if (!whole) {
      if (word.front() != expected(0, number)) return 0;
      return word.back() == expected(words - 1, number) ? words : words - 1;
    }
    for (std::size_t i = 0; i < words; ++i) {
      if (word[i] != expected(i, number)) return i;
    }
    return words;
  }
};

/// Whose messages: those of host threads, or round trips from a host thread to a kernel, or from a kernel to another.
enum class queue_kind : std::uint8_t { round_trip, throughput, round_trip_to_kernel, round_trip_of_kernels };
[[nodiscard]] std::string_view to_string(queue_kind kind);
[[nodiscard]] constexpr bool has_kernels(queue_kind kind) {
  return kind == queue_kind::round_trip_to_kernel || kind == queue_kind::round_trip_of_kernels;
}

/// One measurement: messages of one size between one pair, by one mode.
struct queue_row {
  std::string name;
  device_id src;
  device_id dst;
  transfer_mode mode = transfer_mode::direct;
  queue_kind kind = queue_kind::throughput;
  std::uint64_t size = 0;
  std::size_t batch = 1;
  row_state state = row_state::done;
  std::optional<statistics> seconds;      // of a round trip, or per message
  std::uint64_t messages = 0;             // that arrived and were checked
  std::optional<ring_delivery> delivery;  // to the kernel there
  std::optional<bool> verified;
  std::string why;

  /// A round trip is two messages.
  [[nodiscard]] std::optional<double> messages_per_second() const;
};

struct queue_plan {
  std::vector<std::uint64_t> sizes;                    // of queue_sizes
  std::vector<std::pair<device_id, device_id>> pairs;  // (src, dst)
  std::vector<transfer_mode> modes;                    // adaptive: what the queue itself chooses
  std::vector<std::size_t> batches;                    // of throughput
  bool round_trips = true;
  bool host_ends = true;
  std::optional<bool> kernel_ends;  // none: between GPUs of CUDA, whose kernels run while the host goes on
  int samples = 15;
  std::chrono::nanoseconds sample_time = std::chrono::microseconds{500};
  std::chrono::nanoseconds budget = std::chrono::seconds{10};
};

/// The cores that the two threads of a measurement are bound to; none where this process may use one core only.
[[nodiscard]] std::optional<std::pair<int, int>> cores_of_two_threads();

/// Runs the plan, small sizes first. Every byte of the messages before and after the samples is checked, and of those
/// in the samples the first and the last word. On a virtual clock, which has no model of a queue, nothing is timed.
/// What does not fit into the budget or into a quarter of the free memory is there as a row that says so.
[[nodiscard]] std::vector<queue_row> run_queues(session& run, const machine& m, const queue_plan& plan);

/// results[] of weft.bench.queue/1.
[[nodiscard]] json rows_json(const std::vector<queue_row>& rows);

/// "12.3 M/s".
[[nodiscard]] std::string message_rate_text(double messages_per_second);

}  // namespace weft::tool
