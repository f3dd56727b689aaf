// SPDX-License-Identifier: Apache-2.0
// Words that streams of the CUDA backend write and wait for, on the virtual driver: whose commands they are, and how a
// wait ends whose value never comes.
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpu_words_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::soon;
using weft::errc;
using weft::event;
using weft::machine;
using weft::stream;
using weft::wait_outcome;
using weft::word_comparison;
using word_buffer = weft::buffer<std::uint32_t>;

class gpu_words : public samples::virtual_cuda_test {};

TEST_F(gpu_words, are_written_and_waited_for_by_the_driver_alone) {
  const machine m = open();
  const stream writer{m[0]}, reader{m[1]};
  const weft::pinned_buffer<std::uint64_t> word{m[0], 1};
  const word_buffer result{m[1], 1};
  std::atomic_ref{word.host()[0]}.store(0);
  const auto waits = driver.calls("cuStreamWaitValue64");
  const auto writes = driver.calls("cuStreamWriteValue64");
  const event reached = reader.wait_value(word.data(), 1);
  const event done = fill(reader, result, 3U);
  EXPECT_EQ(driver.calls("cuStreamWaitValue64"), waits + 1) << "it is the driver's before the value is there";
  EXPECT_FALSE(reached.ready());
  writer.write_value(word.data(), 1);
  EXPECT_EQ(done.wait_for(soon), wait_outcome::ok);
  EXPECT_EQ(driver.calls("cuStreamWriteValue64"), writes + 1);
}

TEST_F(gpu_words, the_host_watches_words_of_managed_memory) {
  const machine m = open();
  const stream writer{m[0]}, reader{m[1]};
  const weft::unified_buffer<std::uint32_t> word{m[0], 1};
  std::atomic_ref{word.host()[0]}.store(0);
  const auto waits = driver.calls("cuStreamWaitValue32");
  const event reached = reader.wait_value(word.data(), 2);
  EXPECT_EQ(reached.wait_for(std::chrono::milliseconds{2}), wait_outcome::timed_out);
  writer.write_value(word.data(), 2);
  EXPECT_EQ(reached.wait_for(soon), wait_outcome::ok);
  EXPECT_EQ(driver.calls("cuStreamWaitValue32"), waits) << "CUDA takes no managed memory there";
}

TEST_F(gpu_words, endless_waits_and_the_work_behind_them_are_cancelled_with_the_machine) {
  for (const word_comparison how :
       {word_comparison::greater_equal, word_comparison::equal, word_comparison::bits_any, word_comparison::nor}) {
    machine m = open();
    const stream held{m[0]}, behind{m[1]}, on_host{m[0]};
    const word_buffer words{m[0], 2};
    const weft::pinned_buffer<std::uint32_t> pinned{m[0], 1};
    const std::uint32_t never = how == word_comparison::nor ? ~0U : 0U;  // does not compare with 1
    fill(held, words, never).wait();
    std::atomic_ref{pinned.host()[0]}.store(never);
    const event first = held.wait_value(words.data(), 1, how);
    const event second = held.wait_value(words.data() + 1, 1, how);
    const event filled = fill(held, words, 1U);
    behind.wait(filled);
    const event elsewhere = behind.record();
    const event of_pinned = on_host.wait_value(pinned.data(), 1, how);
    EXPECT_FALSE(first.ready());
    m.close();
    for (const event& one : {first, second, filled, elsewhere, of_pinned}) {
      ASSERT_TRUE(one.ready());
      EXPECT_EQ(error_of([&] { one.wait(); }).code, errc::cancelled);
    }
  }
}

// Each hardware queue has waits at its head: a value that goes through one of them stands behind them. So the GPU gets
// no more of these than it may have queues, until some of them have come through; the next go round the queues.
TEST_F(gpu_words, endless_waits_end_where_they_hold_every_queue_of_the_gpu) {
  for (const bool on_device : {true, false}) {
    driver.limit_connections(8);
    machine m = open();
    const word_buffer words{m[0], 32};
    const weft::pinned_buffer<std::uint32_t> pinned{m[0], 32};
    fill(words, 0U);
    for (std::uint32_t& one : pinned.host()) std::atomic_ref{one}.store(0);
    std::vector<stream> held;
    std::vector<event> never;
    for (std::size_t n = 0; n < 32; ++n) {
      held.emplace_back(m[0]);
      never.push_back(held.back().wait_value(on_device ? words.data() + n : pinned.data() + n, 1));
    }
    const auto writes = driver.calls("cuStreamWriteValue32");
    m.close();
    for (const event& one : never) EXPECT_EQ(error_of([&] { one.wait(); }).code, errc::cancelled);
    EXPECT_LT(driver.calls("cuStreamWriteValue32") - writes, 500U);
  }
}

/// Two waits that no one value lets go for long: what lets one go takes the other's away.
struct rivals {
  word_comparison how;
  std::uint32_t first, second;
};
constexpr rivals all_rivals[] = {{word_comparison::equal, 1, 2},
                                 {word_comparison::bits_any, 1, 2},
                                 {word_comparison::greater_equal, 5, 1},
                                 {word_comparison::equal, 2, 1}};

TEST_F(gpu_words, several_endless_waits_for_one_word_end) {
  for (const rivals& both : all_rivals) {
    for (const bool in_one_stream : {true, false}) {
      machine m = open();
      const stream held{m[0]}, other{m[0]};
      const word_buffer on_device{m[0], 1};
      const weft::pinned_buffer<std::uint32_t> pinned{m[0], 1};
      fill(held, on_device, 0U).wait();
      std::atomic_ref{pinned.host()[0]}.store(0);
      const stream& second = in_one_stream ? held : other;
      std::vector<event> never;
      never.push_back(held.wait_value(pinned.data(), both.first, both.how));
      never.push_back(second.wait_value(pinned.data(), both.second, both.how));
      never.push_back(held.wait_value(on_device.data(), both.first, both.how));
      never.push_back(second.wait_value(on_device.data(), both.second, both.how));
      m.close();
      for (const event& one : never) EXPECT_EQ(error_of([&] { one.wait(); }).code, errc::cancelled);
    }
  }
}

// The second wait is behind the first: its value, written after the other's in each round, would let nobody go.
TEST_F(gpu_words, endless_waits_for_one_word_at_several_addresses_end) {
  constexpr std::size_t page = 4096;
  const int file = ::memfd_create("one word", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, page), 0);
  std::array<std::uint32_t*, 2> word{};
  for (std::uint32_t*& one : word) {
    void* const seen = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ASSERT_NE(seen, MAP_FAILED);
    one = static_cast<std::uint32_t*>(seen);
  }
  ::close(file);
  std::sort(word.begin(), word.end());  // waits are let go in the order of their addresses
  {
    machine m = open();
    const weft::adopted_memory<std::uint32_t> here{m[0], {word[0], page / 4}}, there{m[0], {word[1], page / 4}};
    const stream held{m[0]};
    const event first = held.wait_value(here.span().data(), 1, word_comparison::equal);
    const event second = held.wait_value(there.span().data(), 2, word_comparison::equal);
    EXPECT_FALSE(first.ready());
    m.close();
    for (const event& one : {first, second}) EXPECT_EQ(error_of([&] { one.wait(); }).code, errc::cancelled);
  }
  for (std::uint32_t* const one : word) ::munmap(one, page);
}

TEST_F(gpu_words, endless_waits_end_with_a_reset_and_new_ones_work_after_it) {
  const machine m = open();
  const stream held{m[0]}, fine{m[1]};
  const weft::pinned_buffer<std::uint32_t> word{m[1], 2};
  for (std::uint32_t& one : word.host()) one = 0;
  const event ended = held.wait_value(word.data(), 1);
  const event stays = fine.wait_value(word.data() + 1, 1);
  EXPECT_FALSE(ended.ready());
  m[0].reset();
  EXPECT_TRUE(ended.ready());
  EXPECT_EQ(error_of([&] { ended.wait(); }).code, errc::device_lost);
  EXPECT_EQ(stays.wait_for(std::chrono::milliseconds{2}), wait_outcome::timed_out) << "that is another device's";
  std::atomic_ref{word.host()[0]}.store(0);
  const event again = held.wait_value(word.data(), 1);
  EXPECT_EQ(again.wait_for(std::chrono::milliseconds{30}), wait_outcome::timed_out);
  std::atomic_ref{word.host()[0]}.store(1);
  std::atomic_ref{word.host()[1]}.store(1);
  EXPECT_EQ(again.wait_for(soon), wait_outcome::ok);
  EXPECT_EQ(stays.wait_for(soon), wait_outcome::ok);
}

TEST_F(gpu_words, are_written_by_a_reset_of_a_part_before_it_returns) {
  weft::machine_options options = samples::virtual_cuda_options();
  options.logical_devices = 2;
  const machine m{options};
  const weft::peer_access lease{m, gpu0, gpu1};
  const stream held{m[0]}, fine{m[1]};
  const word_buffer word{m[1], 1};
  fill(fine, word, 0U).wait();
  const event never = held.wait_value(word.data(), 1);
  EXPECT_FALSE(never.ready());
  driver.hold_values(1);  // the second lets the stream go, the first would let a later wait go
  std::atomic<bool> returned{false};
  std::thread resets{[&] {
    m[0].reset();
    returned.store(true);
  }};
  while (!never.ready()) std::this_thread::yield();
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds{50};
  while (!returned.load() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_FALSE(returned.load()) << "a value is not written yet";
  driver.hold_values(0);
  resets.join();
  EXPECT_EQ(error_of([&] { never.wait(); }).code, errc::device_lost);
}

TEST_F(gpu_words, end_though_somebody_takes_the_value_away_that_lets_them_go) {
  machine m = open();
  const stream held{m[0]};
  alignas(4096) std::array<std::uint32_t, 1024> own{};  // stays when the machine goes
  const weft::adopted_memory<std::uint32_t> word{m[0], own};
  std::atomic_ref<std::uint32_t> mine{own[0]};
  const event never = held.wait_value(word.span().data(), 1, word_comparison::equal);
  std::atomic<bool> closed{false};
  std::thread spoiler{[&] {
    for (int taken = 0; taken < 3 && !closed.load();) {
      std::uint32_t given = 1;
      if (mine.compare_exchange_strong(given, 0)) ++taken;
    }
  }};
  m.close();
  closed.store(true);
  spoiler.join();
  EXPECT_EQ(error_of([&] { never.wait(); }).code, errc::cancelled);
}

TEST_F(gpu_words, keep_their_memory_until_the_last_value_that_was_to_end_them_is_written) {
  const machine m = open();
  const weft::peer_access lease{m, gpu0, gpu1};
  const stream held{m[0]}, bad{m[0]}, fine{m[1]};
  std::optional<word_buffer> word{std::in_place, m[1], 1};
  const word_buffer elsewhere{m[2], 1};
  fill(fine, *word, 0U).wait();
  const event never = held.wait_value(word->data(), 1);
  EXPECT_FALSE(never.ready());
  driver.hold_values(2);  // the third is what ends it
  EXPECT_EQ(error_of([&] { bad.wait_value(elsewhere.data(), 0).wait(); }).code, errc::illegal_access);
  wait_outcome outcome = wait_outcome::ok;
  EXPECT_EQ(error_of([&] { outcome = never.wait_for(soon); }).code, errc::device_lost);
  EXPECT_NE(outcome, wait_outcome::timed_out);
  const auto freed = driver.calls("cuMemFree");
  word.reset();
  EXPECT_EQ(driver.calls("cuMemFree"), freed) << "two values are not written yet";
  driver.hold_values(0);
  while (driver.calls("cuMemFree") == freed) std::this_thread::yield();
}

TEST_F(gpu_words, a_wait_falsely_reported_as_failed_is_let_go_before_the_machine_goes) {
  machine m = open();
  const stream held{m[0]};
  alignas(4096) std::array<std::uint32_t, 1024> own{};
  const weft::adopted_memory<std::uint32_t> word{m[0], own};
  const event never = held.wait_value(word.span().data(), 1, word_comparison::equal);
  driver.fail("cuEventQuery@1=700");
  EXPECT_TRUE(never.ready());
  EXPECT_EQ(error_of([&] { never.wait(); }).code, errc::illegal_access);
  m.close();
  EXPECT_EQ(own[0], 1U);
}

TEST_F(gpu_words, without_access_take_their_device_and_let_its_other_waits_go) {
  const machine m = open();
  const stream bad{m[0]}, stuck{m[0]}, fine{m[1]};
  const word_buffer word{m[1], 2};
  fill(fine, word, 0U).wait();
  const weft::pinned_buffer<std::uint32_t> pinned{m[1], 1};
  std::atomic_ref{pinned.host()[0]}.store(0);
  const event waits = stuck.wait_value(pinned.data(), 1);
  EXPECT_FALSE(waits.ready());
  const auto cause = error_of([&] { bad.wait_value(word.data(), 0).wait(); });
  EXPECT_EQ(cause.code, errc::illegal_access);
  EXPECT_NE(cause.what.find("gpu0 has no access to the memory of gpu1"), std::string::npos) << cause.what;
  EXPECT_TRUE(m[0].is_lost());
  wait_outcome outcome = wait_outcome::ok;
  EXPECT_NE(error_of([&] { outcome = waits.wait_for(soon); }).code, errc::not_ready);
  EXPECT_NE(outcome, wait_outcome::timed_out);
  fine.write_value(word.data(), 1).wait();
}

TEST_F(gpu_words, a_wait_or_write_refused_by_the_driver_fails_by_its_name) {
  const machine m = open();
  const stream order{m[0]};
  const word_buffer word{m[0], 1};
  fill(order, word, 0U).wait();
  driver.fail("cuStreamWaitValue32@1=1");
  const auto cause = error_of([&] { order.wait_value(word.data(), 1).wait(); });
  EXPECT_NE(cause.what.find("a wait for a value on gpu0"), std::string::npos) << cause.what;
  driver.fail("cuStreamWriteValue32@1=1");
  EXPECT_NE(error_of([&] { order.write_value(word.data(), 1).wait(); }).what.find("a write of a value on gpu0"),
            std::string::npos);
  order.write_value(word.data(), 1).wait();
  EXPECT_EQ(order.wait_value(word.data(), 1).wait_for(soon), wait_outcome::ok);
}

TEST_F(gpu_words, end_where_the_driver_gives_no_event_for_the_wait) {
  const machine m = open();
  const stream order{m[0]};
  const word_buffer word{m[0], 1};
  fill(order, word, 0U).wait();
  driver.fail("cuEventRecord@1=1");
  const event refused = order.wait_value(word.data(), 1);
  wait_outcome outcome = wait_outcome::ok;
  EXPECT_NE(error_of([&] { outcome = refused.wait_for(soon); }).code, errc::not_ready);
  EXPECT_NE(outcome, wait_outcome::timed_out);
}

}  // namespace gpu_words_test
