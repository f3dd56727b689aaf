// SPDX-License-Identifier: Apache-2.0
#include "backend/calls/call_gate.hpp"

#include "support/rounds.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace call_gate_test {

using weft::detail::call_gate;

TEST(call_gate, lets_calls_in_until_it_is_shut_and_says_why_not) {
  call_gate gate;
  {
    const call_gate::pass first{gate};
    EXPECT_TRUE(first);
    EXPECT_TRUE(gate.is_inside());
    const call_gate::pass inner{gate};
    EXPECT_TRUE(inner);
    gate.shut();
    const call_gate::pass late{gate};
    EXPECT_FALSE(late) << "a call inside another one begins no more either";
  }
  EXPECT_FALSE(gate.is_inside());
  const call_gate::pass after{gate};
  EXPECT_FALSE(after);
  EXPECT_EQ(gate.refusal().code, weft::errc::machine_closed);
}

TEST(call_gate, waits_for_no_call_of_its_own_thread) {
  call_gate gate;
  const call_gate::pass inside{gate};
  gate.shut();
  gate.wait_until_empty();
  EXPECT_TRUE(gate.is_inside());
}

/// More threads than the gate has places for: some are in its list.
TEST(call_gate, an_empty_gate_has_let_out_every_call_of_many_threads) {
  for (int round = 0; round < 50; ++round) {
    call_gate gate;
    constexpr int count = 100;
    std::latch inside{count + 1};
    std::atomic<int> under_way{0};
    std::atomic<bool> go{false};
    std::vector<std::jthread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        const call_gate::pass here{gate};
        EXPECT_TRUE(here);
        EXPECT_TRUE(gate.is_inside());
        ++under_way;
        inside.arrive_and_wait();
        while (!go) std::this_thread::yield();
        --under_way;
      });
    }
    inside.arrive_and_wait();
    gate.shut();
    go = true;
    gate.wait_until_empty();
    EXPECT_EQ(under_way, 0);
  }
}

/// Whoever was let in is seen by who waits, whatever the two do at the same time.
TEST(call_gate, has_nobody_inside_once_a_wait_has_come_back) {
  for (int round = 0; round < samples::rounds(2000); ++round) {
    call_gate gate;
    std::atomic<bool> is_over{false};
    std::atomic<int> wrong{0};
    std::latch ready{3};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        ready.arrive_and_wait();
        for (;;) {
          const call_gate::pass here{gate};
          if (!here) return;
          if (is_over) ++wrong;
        }
      });
    }
    ready.arrive_and_wait();
    gate.shut();
    gate.wait_until_empty();
    is_over = true;
    threads.clear();
    ASSERT_EQ(wrong, 0) << "in round " << round;
  }
}

}  // namespace call_gate_test
