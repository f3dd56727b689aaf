// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/barrier.hpp"

#include "support/rounds.hpp"
#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace barrier_test {

using samples::error_of;
using samples::soon;
using weft::device_barrier;
using weft::device_id;
using weft::errc;
using weft::event;
using weft::machine;
using weft::stream;
using weft::wait_outcome;

std::vector<device_id> ids(int count) {
  std::vector<device_id> made;
  for (int i = 0; i < count; ++i) made.emplace_back(i);
  return made;
}

TEST(device_barrier, opens_generation_after_generation_for_threads_that_come_in_any_order) {
  constexpr int devices = 3;
  const auto generations = static_cast<std::uint64_t>(samples::rounds(samples::by_night() ? 2000 : 500));
  const machine m = samples::play(samples::wired(devices));
  device_barrier barrier{m, ids(devices)};
  std::vector<std::uint64_t> counts(devices, 0);  // written by the device, read by the others behind the barrier
  std::atomic<int> disordered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < devices; ++t) {
    threads.emplace_back([&, t] {
      const stream order{m[t]};
      std::mt19937 random{static_cast<unsigned>(t)};
      for (std::uint64_t g = 1; g <= generations; ++g) {
        order.call([&counts, t, g] { counts[static_cast<std::size_t>(t)] = g; });
        for (unsigned i = random() % 64; i > 0; --i) std::this_thread::yield();
        if (barrier.arrive_and_wait(order, soon) != wait_outcome::ok) ++disordered;
        if (counts[static_cast<std::size_t>((t + 1) % devices)] < g) ++disordered;
        if (barrier.arrive_and_wait(order, soon) != wait_outcome::ok)
          ++disordered;  // nobody writes before all have read
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(disordered, 0);
  EXPECT_EQ(barrier.status().generation, 2 * generations);
  EXPECT_EQ(barrier.status().arrived, 0U);
}

TEST(device_barrier, orders_the_devices_without_the_host) {
  const machine m = samples::play(samples::wired(2));
  device_barrier barrier{m, ids(2)};
  const stream a{m[0]}, b{m[1]};
  std::vector<int> log;  // plain: the barrier orders the writes
  for (int round = 0; round < 200; ++round) {
    a.call([&log, round] { log.push_back(2 * round); });
    barrier.arrive_and_order(a);
    barrier.arrive_and_order(b);
    b.call([&log, round] { log.push_back(2 * round + 1); });
    barrier.arrive_and_order(a);
    barrier.arrive_and_order(b);
  }
  m.synchronize();
  ASSERT_EQ(log.size(), 400U);
  EXPECT_TRUE(std::is_sorted(log.begin(), log.end()));
}

TEST(device_barrier, a_reset_cancels_the_waiters_and_starts_anew) {
  const machine m = samples::play(samples::wired(2));
  device_barrier barrier{m, ids(2)};
  const stream a{m[0]}, b{m[1]};
  errc code{};
  std::promise<void> arrived;
  std::thread waiter{[&] {
    const event opening = barrier.arrive(a);
    arrived.set_value();
    code = error_of([&] { EXPECT_EQ(opening.wait_for(soon), wait_outcome::ok); }).code;
  }};
  arrived.get_future().wait();
  EXPECT_EQ(barrier.status().arrived, 1U);
  barrier.reset();
  waiter.join();
  EXPECT_EQ(code, errc::cancelled);
  EXPECT_EQ(barrier.status().arrived, 0U);
  const event first = barrier.arrive(a);
  const event second = barrier.arrive(b);
  first.wait();
  second.wait();
  EXPECT_EQ(barrier.status().generation, 1U);
}

TEST(device_barrier, a_barrier_that_goes_while_waited_on_cancels_the_waiters) {
  const machine m = samples::play(samples::wired(2));
  const stream a{m[0]};
  auto barrier = std::make_unique<device_barrier>(m, ids(2));
  const event opening = barrier->arrive_and_order(a);
  const event after = a.record();
  barrier.reset();
  const weft::error cause = error_of([&] { EXPECT_EQ(opening.wait_for(soon), wait_outcome::ok); });
  EXPECT_EQ(cause.code, errc::cancelled);
  EXPECT_NE(cause.what.find("1 of 2"), std::string::npos) << cause.what;
  EXPECT_EQ(error_of([&] { EXPECT_EQ(after.wait_for(soon), wait_outcome::ok); }).code, errc::cancelled);
}

TEST(device_barrier, may_be_moved_while_it_fills) {
  const machine m = samples::play(samples::wired(2));
  const stream a{m[0]}, b{m[1]};
  device_barrier barrier{m, ids(2)};
  const event first = barrier.arrive(a);
  device_barrier moved = std::move(barrier);
  EXPECT_EQ(moved.status().arrived, 1U);
  EXPECT_EQ(moved.arrive_and_wait(b, soon), wait_outcome::ok);
  first.wait();
}

TEST(device_barrier, opens_with_the_failure_of_the_work_that_it_covers) {
  const machine m = samples::play(samples::wired(2));
  const stream a{m[0]}, b{m[1]};
  device_barrier barrier{m, ids(2)};
  a.call([] { throw std::runtime_error{"covered"}; });
  const event first = barrier.arrive(a);
  EXPECT_NE(error_of([&] { EXPECT_EQ(barrier.arrive_and_wait(b, soon), wait_outcome::ok); }).what.find("covered"),
            std::string::npos);
  static_cast<void>(error_of([&] { m.synchronize(); }));
  const event again = barrier.arrive(a);
  EXPECT_EQ(barrier.arrive_and_wait(b, soon), wait_outcome::ok) << "the next generation is clean";
}

TEST(device_barrier, a_barrier_without_its_next_generation_refuses_the_last_arrival_and_stays_usable) {
  weft::topology layout = samples::wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::call_fails;
  fault.call = "create_gate";
  fault.nth = 2;
  layout.faults.push_back(fault);
  const machine m = samples::play(layout);
  const stream a{m[0]}, b{m[1]};
  device_barrier barrier{m, ids(2)};
  const event first = barrier.arrive(a);
  EXPECT_EQ(error_of([&] { static_cast<void>(barrier.arrive(b)); }).code, errc::resource_exhausted);
  EXPECT_EQ(barrier.status().arrived, 1U) << "what failed has not happened";
  EXPECT_EQ(barrier.arrive_and_wait(b, soon), wait_outcome::ok);
  first.wait();
}

}  // namespace barrier_test
