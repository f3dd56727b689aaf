// SPDX-License-Identifier: Apache-2.0
#include "queue_kernels.hpp"

#include "weft/channel/kernel_end.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::tool {

namespace {

using std::chrono::nanoseconds;
using wall = std::chrono::steady_clock;

// Far more looks than those take: a kernel whose partner has given up is told by the queue, which is closed then.
constexpr std::uint64_t polls = 20'000'000'000;

WEFT_KERNEL(bench_answers,
            (WEFT_RING in, WEFT_RING out, uint64_t count, uint64_t looks, WEFT_OUT(uint64_t, whole) done), {
              uint64_t word = 0;
              uint64_t n = 0;
              for (; n < count; ++n) {
                if (weft_ring_receive(in, &word, looks) != WEFT_RING_OK) break;
                word = word * 3 + 1;
                if (weft_ring_send(out, &word, looks) != WEFT_RING_OK) break;
              }
              done[0] = n;
              done[1] = 0;
            });

WEFT_KERNEL(bench_asks,
            (WEFT_RING out, WEFT_RING in, uint64_t first, uint64_t count, uint64_t looks,
             WEFT_OUT(uint64_t, whole) done),
            {
              uint64_t n = 0;
              uint64_t wrong = 0;
              for (; n < count && wrong == 0; ++n) {
                uint64_t word = first + n;
                if (weft_ring_send(out, &word, looks) != WEFT_RING_OK) break;
                if (weft_ring_receive(in, &word, looks) != WEFT_RING_OK) break;
                if (word != (first + n) * 3 + 1) wrong = word;
              }
              done[0] = n;
              done[1] = wrong;
            });

/// Two queues between a pair, with a kernel of the destination at the far ends.
class kernel_cell {
 public:
  kernel_cell(const machine& m, const queue_row& row)
      : there_(m, row.src, row.dst, options(row)),
        back_(m, row.dst, row.src, options(row)),
        there_in_(there_.open_sender()),
        there_out_(there_.open_receiver()),
        back_in_(back_.open_sender()),
        back_out_(back_.open_receiver()),
        answered_(m[row.dst], 2),
        asked_(m[row.src], 2),
        answering_(m[row.dst]),
        asking_(m[row.src]) {}
  kernel_cell(const kernel_cell&) = delete;
  kernel_cell& operator=(const kernel_cell&) = delete;
  /// A kernel that still waits sees the end of its queue.
  ~kernel_cell() { close(); }

  /// Why the row cannot be had; empty when it can.
  std::string missing(queue_row& row) {
    in_.emplace(there_out_);
    row.delivery = in_->delivery();
    if (row.mode == transfer_mode::direct && row.delivery == ring_delivery::in_place) {
      if (!there_.is_direct()) return there_.why();
      if (!back_.is_direct()) return "the way back: " + back_.why();
    }
    out_.emplace(back_in_);
    if (row.kind == queue_kind::round_trip_of_kernels) {
      asks_.emplace(there_in_);
      hears_.emplace(back_out_);
    }
    for (const auto* const end : {&in_, &out_, &asks_, &hears_}) {
      if (*end && (*end)->visibility() != ring_visibility::immediate)
        return "kernels see messages at the borders of their launches: none can answer while it runs";
    }
    return {};
  }

  void measure(queue_row& row, const queue_plan& plan, nanoseconds share) {
    const auto began = wall::now();
    const bool kernels = row.kind == queue_kind::round_trip_of_kernels;
    const auto leg = [&](std::uint64_t count) { return kernels ? between_kernels(row, count) : to_kernel(row, count); };
    const double wanted = seconds_of(plan.sample_time) / 2;
    leg(1);  // the first launch loads its kernel
    const double launching = kernels ? leg(1) : 0;
    std::uint64_t count = 16;
    // longer and longer, until what is not a round trip is hidden
    for (double took = leg(count) - launching;
         good(row) && took < wanted && count < 1'000'000 && wall::now() - began < share / 2;) {
      count *= 2;
      took = leg(count) - launching;
    }
    std::vector<double> samples;
    while (good(row) && !interrupted()) {
      const double whole = leg(count);
      // what launching and waiting take goes with two legs that differ in their round trips alone
      const double little = kernels ? leg(1) : 0;
      const double trips = static_cast<double>(kernels ? count - 1 : count);
      if (good(row)) samples.push_back((whole - little) / trips);
      if (are_enough(samples.size(), plan.samples, began + share)) break;
    }
    row.messages = 2 * number_;
    if (!good(row)) return;
    row.verified = true;
    if (samples.empty()) {
      row.state = row_state::skipped;
      row.why = stopped_by_user;
      return;
    }
    put_times(row, std::move(samples), count);
  }

 private:
  /// A figure only where the difference of two measurements is more than their noise.
  static void put_times(queue_row& row, std::vector<double> samples, std::uint64_t count) {
    const statistics found = summarise(std::move(samples));
    if (found.p5 > 0) {
      row.seconds = found;
    } else {
      row.why =
          fmt::format("lost in the noise: {} round trips took no longer than one in a part of the samples", count);
    }
  }
  static queue_options options(const queue_row& row) {
    queue_options made;
    made.capacity = 64;
    made.mode = row.mode;
    made.timeout = longest_wait;
    made.for_kernels = row.kind == queue_kind::round_trip_of_kernels;
    return made;
  }

  static bool good(const queue_row& row) { return row.state == row_state::done && row.verified.value_or(true); }

  void close() {
    there_.close();
    back_.close();
  }

  double spoil(queue_row& row, row_state state, std::string why) {
    if (good(row)) {
      row.state = state;
      row.why = std::move(why);
    }
    close();
    return 0;
  }
  double spoil(queue_row& row, queue_status status, const std::optional<error>& cause) {
    if (status == queue_status::timed_out)
      return spoil(row, row_state::no_answer,
                   fmt::format("the kernel did not answer within {} s", longest_wait.count()));
    return spoil(row, row_state::failed, cause ? cause->what : fmt::format("the queue is {}", to_string(status)));
  }

  event answer(std::uint64_t count) const {
    return launch<bench_answers>(answering_, range(1), *in_, *out_, count, polls, answered_);
  }

  /// The launch has ended after `count` messages, none of them wrong.
  bool ended(queue_row& row, const event& running, const buffer<std::uint64_t>& done, std::uint64_t count) {
    if (running.wait_for(longest_wait) != wait_outcome::ok) {
      spoil(row, row_state::no_answer, fmt::format("a kernel did not end within {} s", longest_wait.count()));
      return false;
    }
    std::array<std::uint64_t, 2> told{};
    weft::copy(told, done);
    if (told[1] != 0) {
      row.verified = false;
      spoil(row, row_state::done, {});
      row.why = fmt::format("answer {} to a kernel: got 0x{:016x}", number_ + told[0] - 1, told[1]);
    } else if (told[0] != count) {
      spoil(row, row_state::failed, fmt::format("a kernel saw {} of {} messages", told[0], count));
    }
    return good(row);
  }

  /// Seconds of `count` round trips from this thread to a kernel, which has answered one more before.
  double to_kernel(queue_row& row, std::uint64_t count) {
    const event running = answer(count + 1);
    wall::time_point start;
    for (std::uint64_t n = 0; n <= count; ++n, ++number_) {
      if (n == 1) start = wall::now();
      std::uint64_t word = 0;
      if (const auto sent = there_in_.send(number_); sent != queue_status::ok)
        return spoil(row, sent, there_in_.failure());
      if (const auto got = back_out_.receive(word); got != queue_status::ok)
        return spoil(row, got, back_out_.failure());
      if (word == number_ * 3 + 1) continue;
      row.verified = false;
      row.why = fmt::format("answer {}: expected 0x{:016x}, got 0x{:016x}", number_, number_ * 3 + 1, word);
      return spoil(row, row_state::done, {});
    }
    const auto stop = wall::now();
    return ended(row, running, answered_, count + 1) ? seconds_of(stop - start) : 0;
  }

  /// Seconds of a launch that asks `count` times, and of waiting for its end.
  double between_kernels(queue_row& row, std::uint64_t count) {
    const event answers = answer(count);
    const auto start = wall::now();
    const event asks = launch<bench_asks>(asking_, range(1), *asks_, *hears_, number_, count, polls, asked_);
    const bool well = asks.wait_for(longest_wait) == wait_outcome::ok;
    const auto stop = wall::now();
    if (!well) return spoil(row, queue_status::timed_out, std::nullopt);
    if (!ended(row, asks, asked_, count) || !ended(row, answers, answered_, count)) return 0;
    number_ += count;
    return seconds_of(stop - start);
  }

  message_queue<std::uint64_t> there_, back_;
  sender<std::uint64_t> there_in_;
  receiver<std::uint64_t> there_out_;
  sender<std::uint64_t> back_in_;
  receiver<std::uint64_t> back_out_;
  buffer<std::uint64_t> answered_, asked_;
  std::optional<kernel_end> in_, out_, asks_, hears_;
  stream answering_, asking_;
  std::uint64_t number_ = 0;  // of the next message
};

}  // namespace

void measure_by_kernels(const machine& m, queue_row& row, const queue_plan& plan, nanoseconds share) {
  kernel_cell cell{m, row};
  if (std::string why = cell.missing(row); !why.empty()) {
    end_row(row, row_state::not_offered, std::move(why));
    return;
  }
  cell.measure(row, plan, share);
}

}  // namespace weft::tool
