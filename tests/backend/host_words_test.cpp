// SPDX-License-Identifier: Apache-2.0
// Words that streams of the host backend write and wait for: on both clocks, with one operation at a time, after a loss
// and a reset, and in the eyes of the check for order.
#include "support/samples.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace host_words_test {

using samples::byte_buffer;
using samples::error_of;
using samples::gpu0;
using samples::soon;
using samples::wired;
using std::chrono::nanoseconds;
using weft::clock_kind;
using weft::errc;
using weft::event;
using weft::machine;
using weft::stream;
using weft::wait_outcome;
using weft::word_comparison;
using word_buffer = weft::buffer<std::uint32_t>;

TEST(host_words, hand_a_counter_back_and_forth_between_streams_of_two_devices) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = samples::play(wired(2), clock);
    const auto leases = weft::enable_all_peers(m);
    const stream ping{m[0]}, pong{m[1]};
    const word_buffer word{m[0], 1};
    fill(ping, word, 0U).wait();
    std::vector<std::uint32_t> seen;  // by whoever has the turn
    constexpr std::uint32_t rounds = 100;
    for (std::uint32_t i = 0; i < rounds; ++i) {
      ping.wait_value(word.data(), 2 * i, word_comparison::equal);
      ping.call([&, i] { seen.push_back(2 * i); });
      ping.write_value(word.data(), 2 * i + 1);
      pong.wait_value(word.data(), 2 * i + 1, word_comparison::equal);
      pong.call([&, i] { seen.push_back(2 * i + 1); });
      pong.write_value(word.data(), 2 * i + 2);
    }
    m.synchronize();
    ASSERT_EQ(seen.size(), 2 * rounds);
    for (std::uint32_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], i);
  }
}

TEST(host_words, are_looked_at_only_once_their_turn_has_come) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = samples::play(wired(1), clock);
    const stream order{m[0]}, other{m[0]};
    const word_buffer word{m[0], 1};
    fill(order, word, 1U).wait();  // the value is there, and goes before the wait begins
    const event gone = order.write_value(word.data(), 0);
    const event reached = order.wait_value(word.data(), 1, word_comparison::equal);
    EXPECT_EQ(reached.wait_for(std::chrono::milliseconds{3}), wait_outcome::timed_out);
    ASSERT_EQ(gone.wait_for(soon), wait_outcome::ok);  // or it would come behind the value
    other.write_value(word.data(), 1);
    EXPECT_EQ(reached.wait_for(soon), wait_outcome::ok);
  }
}

TEST(host_words, take_no_virtual_time_beyond_the_moment_of_the_value) {
  const machine m = samples::play(wired(2, {.host_rate = 1e9, .host_latency = 1000}), clock_kind::virtual_time);
  const stream writer{m[0]}, reader{m[0]};
  const word_buffer word{m[0], 1};
  fill(writer, word, 0U).wait();
  const byte_buffer memory{m[0], 1'000'000};
  const weft::pinned_buffer<std::uint8_t> pinned{m[0], 1'000'000};
  const nanoseconds begin = m.now();
  const event reached = reader.wait_value(word.data(), 1);
  copy(writer, memory, pinned);
  const event written = writer.write_value(word.data(), 1);
  reached.wait();
  EXPECT_EQ(m.now() - begin, nanoseconds{1'001'000}) << "of the copy before the value";
  EXPECT_EQ(weft::elapsed(written, written), nanoseconds{0});
}

TEST(host_words, keep_nobody_from_the_only_place_of_a_device_while_a_stream_waits) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    weft::machine_options options;
    options.machine = wired(1);
    options.clock = clock;
    options.max_in_flight = 1;
    const machine m{options};
    const stream first{m[0]}, second{m[0]};
    const word_buffer word{m[0], 1};
    fill(first, word, 0U).wait();
    const event reached = first.wait_value(word.data(), 1);
    const event behind = first.call([] {});
    EXPECT_EQ(reached.wait_for(std::chrono::milliseconds{3}), wait_outcome::timed_out);
    second.call([] {});
    second.write_value(word.data(), 1);
    EXPECT_EQ(behind.wait_for(soon), wait_outcome::ok);
  }
}

TEST(host_words, endless_waits_end_with_a_loss_a_reset_and_the_machine) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    weft::topology layout = wired(2);
    weft::topology_fault fault;
    fault.what = weft::topology_fault::kind::device_lost;
    fault.device = gpu0;
    fault.nth = 2;
    layout.faults.push_back(fault);
    machine m = samples::play(layout, clock);
    const weft::pinned_buffer<std::uint64_t> word{m[1], 1};
    const stream stuck{m[0]}, order{m[0]}, fine{m[1]};
    std::atomic_ref{word.host()[0]}.store(0);
    const event here = stuck.wait_value(word.data(), 1);
    const event there = fine.wait_value(word.data(), 1);
    order.call([] {}).wait();
    EXPECT_EQ(error_of([&] { order.call([] {}).wait(); }).code, errc::device_lost);
    wait_outcome outcome = wait_outcome::ok;
    EXPECT_EQ(error_of([&] { outcome = here.wait_for(soon); }).code, errc::device_lost);
    EXPECT_FALSE(there.ready()) << "a loss takes no other device";
    m[0].reset();
    const event again = stuck.wait_value(word.data(), 1);
    m[0].reset();
    EXPECT_TRUE(again.ready());
    EXPECT_EQ(error_of([&] { again.wait(); }).code, errc::device_lost);
    EXPECT_EQ(std::atomic_ref{word.host()[0]}.load(), 0U) << "nothing was written to let the waits go";
    m.close();
    EXPECT_EQ(error_of([&] { there.wait(); }).code, errc::cancelled);
  }
}

TEST(host_words, are_waited_for_and_not_written_where_their_device_may_only_read) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = samples::play(wired(1), clock);
    const stream order{m[0]};
    weft::mapping held{weft::physical_block{m[0], weft::granularity(m).minimum}};
    held.grant(gpu0, weft::access_right::read_write);
    const auto word = held.span<std::uint32_t>(gpu0).first(1);
    fill(order, word, 1U).wait();
    held.grant(gpu0, weft::access_right::read);
    EXPECT_EQ(order.wait_value(word.data(), 1).wait_for(soon), wait_outcome::ok);
    const event written = order.write_value(word.data(), 2);
    EXPECT_EQ(error_of([&] { written.wait(); }).code, errc::illegal_access);
    EXPECT_TRUE(m[0].is_lost()) << "as by a kernel";
  }
}

TEST(host_words, are_not_waited_for_behind_a_failure_of_the_stream_or_of_what_it_waits_for) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = samples::play(wired(2), clock);
    const stream failing{m[0]}, dependent{m[1]};
    const weft::pinned_buffer<std::uint32_t> word{m[0], 1};
    std::atomic_ref{word.host()[0]}.store(0);
    const event failed = failing.call([] { throw std::runtime_error{"on purpose"}; });
    const event behind = failing.wait_value(word.data(), 1);
    dependent.wait(failed);
    const event elsewhere = dependent.wait_value(word.data(), 1);
    for (const event& one : {behind, elsewhere}) {
      wait_outcome outcome = wait_outcome::ok;
      EXPECT_EQ(error_of([&] { outcome = one.wait_for(soon); }).code, errc::kernel_failed);
      EXPECT_NE(outcome, wait_outcome::timed_out);
    }
    std::atomic_ref{word.host()[0]}.store(1);
  }
}

TEST(host_words, are_seen_wherever_a_thread_of_the_host_stores_them) {
  const machine m = samples::play(wired(1));
  const stream order{m[0]};
  const weft::pinned_buffer<std::uint64_t> word{m[0], 1};
  std::atomic_ref<std::uint64_t> mine{word.host()[0]};
  mine.store(0);
  for (std::uint64_t i = 1; i <= 50; ++i) {
    const event reached = order.wait_value(word.data(), i);
    std::thread writer{[&] { mine.store(i); }};
    EXPECT_EQ(reached.wait_for(soon), wait_outcome::ok);
    writer.join();
  }
}

machine checked() {
  weft::machine_options options;
  options.machine = wired(1);
  options.check_order = true;
  return machine{options};
}

TEST(host_words, order_what_is_before_the_write_and_behind_the_wait_for_the_check_too) {
  for (const auto& [wait_first, by_a_fill] :
       {std::pair{false, false}, std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
#ifdef WEFT_TSAN
    if (by_a_fill) continue;  // its stores are plain ones, as those of a kernel may be
#endif
    const machine m = checked();
    const stream writer{m[0]}, reader{m[0]};
    const word_buffer word{m[0], 1};
    const byte_buffer memory{m[0], 100}, seen{m[0], 100};
    fill(writer, word, 0U).wait();
    const auto read = [&reader, &word, &seen, &memory] {
      event reached = reader.wait_value(word.data(), 1);
      copy(reader, seen, memory);
      return reached;
    };
    event reached;
    if (wait_first) reached = read();
    fill(writer, memory, std::uint8_t{1});
    if (by_a_fill) {
      fill(writer, word, 1U);  // or a kernel, of which nobody knows that a value is in it
    } else {
      writer.write_value(word.data(), 1);
    }
    if (!wait_first) reached = read();
    while (!reached.ready()) std::this_thread::yield();  // before the host knows that the writer has ended
    m.synchronize();
    EXPECT_TRUE(m.order_violations().empty()) << m.order_violations().front().what;
#ifndef WEFT_TSAN  // which says so too
    fill(writer, memory, std::uint8_t{2});
    copy(reader, seen, memory);
    m.synchronize();
    EXPECT_EQ(m.order_violations().size(), 1U);
#endif
  }
}

}  // namespace host_words_test
