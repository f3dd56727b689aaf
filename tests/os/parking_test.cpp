// SPDX-License-Identifier: Apache-2.0
#include "os/parking.hpp"

#include "support/hang.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <sched.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace parking_test {

using std::chrono::steady_clock;
using weft::waiting;
namespace parking = weft::parking;

TEST(parking, does_not_sleep_when_the_word_has_changed) {
  std::atomic<std::uint32_t> word{7};
  parking::park(word, 6, steady_clock::time_point::max());
  SUCCEED();
}

TEST(parking, ends_at_its_deadline_and_at_once_when_that_has_passed) {
  std::atomic<std::uint32_t> word{1};
  const auto until = steady_clock::now() + std::chrono::milliseconds{3};
  while (steady_clock::now() < until) parking::park(word, 1, until);
  parking::park(word, 1, steady_clock::now() - std::chrono::hours{1});
  SUCCEED();
}

TEST(parking, wakes_all_who_sleep_on_a_word) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<std::uint32_t> word{0};
    std::atomic<int> slept_on{0};
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 4; ++i) {
      sleepers.emplace_back([&] {
        const auto until = steady_clock::now() + samples::only_a_hang;
        while (word.load() == 0) parking::park(word, 0, until);
        if (steady_clock::now() >= until) ++slept_on;
      });
    }
    word = 1;
    parking::wake_all(word);
    for (std::thread& t : sleepers) t.join();
    ASSERT_EQ(slept_on, 0) << "somebody slept until the deadline";
  }
}

TEST(parking, counts_the_cores_that_this_process_may_use_and_not_those_of_the_machine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not counted yet
  const auto on_one = [] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) ::_exit(2);
    ::_exit(parking::cores() == 1 ? 0 : 1);
  };
  EXPECT_EXIT(on_one(), testing::ExitedWithCode(0), "");
}

TEST(spinner, gives_up_unless_told_to_spin_for_ever) {
  int turns = 0;
  {
    parking::spinner bounded{waiting::adaptive};
    while (turns < 1'000'000 && bounded.spin()) ++turns;
    EXPECT_GT(turns, 0);
    EXPECT_LT(turns, 1'000'000);
  }
  parking::spinner unbounded{waiting::spin};
  for (int i = 0; i < 2 * turns; ++i) ASSERT_TRUE(unbounded.spin());
}

TEST(spinner, beyond_the_number_of_cores_parks_at_once) {
  ASSERT_GE(parking::cores(), 1);
  std::vector<std::unique_ptr<parking::spinner>> others;
  for (int i = 0; i < parking::cores(); ++i) others.push_back(std::make_unique<parking::spinner>(waiting::adaptive));
  EXPECT_FALSE(parking::spinner{waiting::adaptive}.spin()) << "it would take a core from somebody who works";
  others.pop_back();
  EXPECT_TRUE(parking::spinner{waiting::adaptive}.spin());
}

}  // namespace parking_test
