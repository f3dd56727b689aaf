// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/kernel_end.hpp"

#include "support/samples.hpp"
#include "weft/exec/kernels.hpp"
#include "weft/exec/launch.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace kernel_end_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::play;
using samples::wired;
using weft::machine;
using weft::message_queue;
using weft::queue_options;
using weft::queue_status;
using weft::transfer_mode;

constexpr std::uint64_t patience = 200'000'000'000;  // polls, which take minutes: only a hang comes to it

WEFT_KERNEL(send_numbers, (WEFT_RING out, uint64_t first, uint64_t count, uint64_t polls, WEFT_OUT(int32_t) outcome), {
  outcome[i] = 0;
  for (uint64_t n = 0; n < count && outcome[i] == 0; ++n) {
    const uint64_t message = (first + n) * 3;
    outcome[i] = weft_ring_send(out, &message, polls);
  }
});

WEFT_KERNEL(add_numbers,
            (WEFT_RING in, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t) sum, WEFT_OUT(int32_t) outcome), {
              uint64_t message = 0;
              outcome[i] = 0;
              sum[i] = 0;
              for (uint64_t n = 0; n < count && outcome[i] == 0; ++n) {
                outcome[i] = weft_ring_receive(in, &message, polls);
                if (outcome[i] == 0) {
                  sum[i] += message;
                }
              }
            });

template <class T>
T first_of(const weft::buffer<T>& memory) {
  std::vector<T> got(1);
  weft::copy(got, memory);
  return got[0];
}

TEST(kernel_end, kernels_of_two_devices_talk_through_a_queue) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    queue_options options;
    options.capacity = 64;
    options.mode = mode;
    const message_queue<std::uint64_t> queue{m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    constexpr std::uint64_t count = 20'000;
    const weft::buffer<std::int32_t> sent{m[0], 1}, received{m[1], 1};
    const weft::buffer<std::uint64_t> sum{m[1], 1};
    {
      const weft::kernel_end out{tx}, in{rx};
      const weft::stream a{m[0]}, b{m[1]};
      for (std::uint64_t part = 0; part < 2; ++part) {  // a later kernel goes on where an earlier one ended
        const auto adding = weft::launch<add_numbers>(b, weft::range(1), in, count, patience, sum, received);
        const auto sending = weft::launch<send_numbers>(a, weft::range(1), out, part * count, count, patience, sent);
        sending.wait();
        adding.wait();
        EXPECT_EQ(first_of(sent), WEFT_RING_OK);
        EXPECT_EQ(first_of(received), WEFT_RING_OK);
        const std::uint64_t first = part * count;
        EXPECT_EQ(first_of(sum), 3 * (count * first + count * (count - 1) / 2));
      }
    }
    EXPECT_EQ(queue.statistics().received, 2 * count);
    // and the host goes on where the kernels were
    ASSERT_EQ(tx.send(77), queue_status::ok);
    std::uint64_t got = 0;
    ASSERT_EQ(rx.receive(got), queue_status::ok);
    EXPECT_EQ(got, 77U);
  }
}

TEST(kernel_end, a_moved_end_takes_its_loan_along) {
  const machine m = play(wired(2));
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const weft::buffer<std::int32_t> sent{m[0], 1};
  std::vector<weft::kernel_end> ends;
  ends.emplace_back(tx);
  ends.emplace_back(rx);  // moves the first when it makes room
  weft::launch<send_numbers>(weft::stream{m[0]}, weft::range(1), ends[0], std::uint64_t{5}, std::uint64_t{1}, patience,
                             sent)
      .wait();
  EXPECT_EQ(first_of(sent), WEFT_RING_OK);
  EXPECT_EQ(tx.try_send(1), queue_status::failed) << "still lent";
  ends.clear();
  std::uint64_t got = 0;
  EXPECT_EQ(rx.try_receive(got), queue_status::ok);
  EXPECT_EQ(got, 15U);
  EXPECT_EQ(tx.try_send(1), queue_status::ok);
}

TEST(kernel_end, a_kernel_sends_to_a_host_thread_that_waits) {
  const machine m = play(wired(2));
  queue_options options;
  options.capacity = 16;
  options.wait_policy = weft::waiting::park;
  options.timeout = samples::only_a_hang;
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const weft::buffer<std::int32_t> outcome{m[0], 1};
  const weft::kernel_end out{tx};
  constexpr std::uint64_t count = 500;
  std::thread receiving{[&] {
    std::uint64_t got = 0;
    for (std::uint64_t n = 0; n < count; ++n) {
      ASSERT_EQ(rx.receive(got), queue_status::ok);
      ASSERT_EQ(got, n * 3);
    }
  }};
  weft::launch<send_numbers>(weft::stream{m[0]}, weft::range(1), out, std::uint64_t{0}, count, patience, outcome)
      .wait();
  receiving.join();
  EXPECT_EQ(first_of(outcome), WEFT_RING_OK);
}

TEST(kernel_end, waits_no_longer_than_its_polls) {
  const machine m = play(wired(2));
  queue_options options;
  options.capacity = 16;
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  const weft::buffer<std::int32_t> outcome{m[0], 1};
  const weft::kernel_end out{tx};
  weft::launch<send_numbers>(weft::stream{m[0]}, weft::range(1), out, std::uint64_t{0}, std::uint64_t{17},
                             std::uint64_t{100}, outcome)
      .wait();
  EXPECT_EQ(first_of(outcome), WEFT_RING_FULL);
  EXPECT_EQ(tx.try_send(1), queue_status::failed) << "an end that is lent";
  EXPECT_NE(tx.failure()->what.find("lent"), std::string::npos);
}

TEST(kernel_end, what_a_kernel_has_sent_is_cleared_while_its_end_is_lent) {
  const machine m = play(wired(2));
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const weft::buffer<std::int32_t> outcome{m[0], 1};
  const weft::kernel_end out{tx};
  const auto send_five = [&](std::uint64_t first) {
    weft::launch<send_numbers>(weft::stream{m[0]}, weft::range(1), out, first, std::uint64_t{5}, patience, outcome)
        .wait();
  };
  send_five(0);
  EXPECT_EQ(rx.clear(), 5U);
  send_five(100);
  std::uint64_t got = 0;
  ASSERT_EQ(rx.try_receive(got), queue_status::ok);
  EXPECT_EQ(got, 300U);
}

TEST(kernel_end, an_operation_that_failed_during_its_loan_leaves_the_queue_to_be_closed) {
  const machine m = play(wired(2));
  message_queue<std::uint64_t> queue{m, gpu0, gpu1};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  {
    const weft::kernel_end out{tx};
    EXPECT_EQ(tx.try_send(1), queue_status::failed);
  }
  EXPECT_EQ(tx.try_send(2), queue_status::ok);
  queue.close();
  std::uint64_t got = 0;
  EXPECT_EQ(tx.try_send(3), queue_status::closed);
  EXPECT_EQ(rx.try_receive(got), queue_status::closed);
}

TEST(kernel_end, a_pop_during_its_loan_takes_nothing_and_gives_no_space_away) {
  const machine m = play(wired(2));
  queue_options options;
  options.capacity = 16;
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(tx.try_send(n), queue_status::ok);
  ASSERT_NE(rx.front(), nullptr);
  {
    const weft::kernel_end in{rx};
    for (int n = 0; n < 8; ++n) rx.pop();
    EXPECT_EQ(tx.try_send(16), queue_status::full);
    ASSERT_TRUE(rx.failure());
    EXPECT_EQ(rx.failure()->code, weft::errc::not_ready);
  }
  std::uint64_t got = 0;
  for (std::uint64_t n = 0; n < 16; ++n) {
    ASSERT_EQ(rx.try_receive(got), queue_status::ok);
    EXPECT_EQ(got, n);
  }
}

TEST(kernel_end, refuses_an_end_of_no_queue) {
  const machine m = play(wired(2));
  weft::sender<std::uint64_t> tx;
  weft::receiver<std::uint64_t> rx;
  EXPECT_EQ(error_of([&] { const weft::kernel_end lent{tx}; }).code, weft::errc::invalid_argument);
  EXPECT_EQ(error_of([&] { const weft::kernel_end lent{rx}; }).code, weft::errc::invalid_argument);
  EXPECT_EQ(error_of([&] { const weft::kernel_end lent(tx, m[0]); }).code, weft::errc::invalid_argument);
  EXPECT_EQ(error_of([&] { const weft::kernel_end lent(rx, m[0]); }).code, weft::errc::invalid_argument);
}

TEST(kernel_end, refuses_what_kernels_do_not_know) {
  const machine m = play(wired(2));
  queue_options options;
  options.validate = true;
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  EXPECT_EQ(error_of([&] { const weft::kernel_end lent{tx}; }).code, weft::errc::unsupported);
  options = {};
  options.producers = 2;
  const message_queue<std::uint64_t> many{m, gpu0, gpu1, options};
  auto rx = many.open_receiver();
  EXPECT_EQ(error_of([&] { const weft::kernel_end lent{rx}; }).code, weft::errc::unsupported);
}

}  // namespace kernel_end_test
