// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/launch_history.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace launch_history_test {

using weft::history_limits;
using weft::launch_history;
using weft::work_key;

constexpr work_key blur{"blur", "host-0"};

/// A history of samples that take 1 us an item, after the first that is dropped.
void feed(launch_history& history, int samples, std::int64_t items = 1'000, double per_item = 1e-6) {
  for (int i = 0; i < samples; ++i) history.record(blur, items, per_item * static_cast<double>(items));
}

TEST(launch_history, knows_nothing_before_the_second_sample) {
  launch_history history;
  EXPECT_FALSE(history.items_per_second(blur, 1'000));
  EXPECT_FALSE(history.cost(blur));
  history.record(blur, 1'000, 5);  // compiled
  EXPECT_FALSE(history.items_per_second(blur, 1'000));
  history.record(blur, 1'000, 1e-3);
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 1'000), 1e6);
}

TEST(launch_history, one_bad_sample_changes_nothing) {
  for (int good = 1; good <= 8; ++good) {
    for (int after = 0; after <= 4; ++after) {
      launch_history history;
      feed(history, 1 + good);
      history.record(blur, 1'000, 0.5);  // 500 times as long
      feed(history, after);
      EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 1'000), 1e6) << good << " before, " << after << " after";
      EXPECT_DOUBLE_EQ(history.cost(blur)->of(1'000), 1e-3) << good << " before, " << after << " after";
    }
  }
}

TEST(launch_history, one_sample_that_is_too_good_changes_nothing_among_three) {
  launch_history history;
  feed(history, 3);
  history.record(blur, 1'000, 1e-9);
  feed(history, 1);
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 1'000), 1e6);
}

TEST(launch_history, a_lasting_change_is_taken_over_with_the_third_sample) {
  launch_history history;
  feed(history, 10);
  for (int i = 0; i < 2; ++i) history.record(blur, 1'000, 4e-3);
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 1'000), 1e6);
  history.record(blur, 1'000, 4e-3);
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 1'000), 250e3);
}

TEST(launch_history, a_wavering_device_keeps_its_mean_speed) {
  launch_history history;
  std::mt19937 random{3};
  std::normal_distribution<double> noise{1, 0.05};
  for (int i = 0; i < 200; ++i) {
    history.record(blur, 1'000, 1e-3 * noise(random));
    if (i > 4) {
      EXPECT_NEAR(*history.items_per_second(blur, 1'000), 1e6, 0.12e6) << i;
    }
  }
}

TEST(launch_history, answers_from_the_nearest_size_class) {
  launch_history history;
  feed(history, 2, 1'000, 2e-6);
  feed(history, 1, 1'000'000, 1e-6);
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 2'000), 500e3);
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 4'000'000), 1e6);
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 0), 500e3);
}

TEST(launch_history, finds_start_and_slope) {
  launch_history history;
  feed(history, 1);
  for (const std::int64_t n : {1'000, 10'000, 100'000, 1'000'000}) {
    history.record(blur, n, 20e-6 + 5e-9 * static_cast<double>(n));
  }
  EXPECT_NEAR(history.cost(blur)->seconds, 20e-6, 1e-9);
  EXPECT_NEAR(history.cost(blur)->seconds_per_item, 5e-9, 1e-13);
}

TEST(launch_history, one_bad_class_among_four_leaves_start_and_slope) {
  for (const double factor : {0.01, 30.0, 1000.0}) {
    for (std::size_t bad = 0; bad < 5; ++bad) {
      launch_history history;
      feed(history, 1);
      const std::vector<std::int64_t> sizes{1'000, 10'000, 100'000, 1'000'000, 10'000'000};
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const double right = 20e-6 + 5e-9 * static_cast<double>(sizes[i]);
        history.record(blur, sizes[i], right * (i == bad ? factor : 1));
      }
      EXPECT_NEAR(history.cost(blur)->seconds, 20e-6, 1e-8) << factor << " in class " << bad;
      EXPECT_NEAR(history.cost(blur)->seconds_per_item, 5e-9, 1e-12) << factor << " in class " << bad;
    }
  }
}

TEST(launch_history, a_cost_is_never_negative) {
  launch_history history;
  feed(history, 1);
  history.record(blur, 1'000, 1e-6);
  history.record(blur, 100'000, 1);  // a line through both begins below 0
  const auto cost = history.cost(blur);
  EXPECT_GE(cost->seconds, 0);
  EXPECT_GT(cost->seconds_per_item, 0);
  launch_history falling;
  feed(falling, 1);
  falling.record(blur, 1'000, 1);
  falling.record(blur, 100'000, 1e-3);
  EXPECT_GE(falling.cost(blur)->seconds, 0);
  EXPECT_GT(falling.cost(blur)->seconds_per_item, 0);
}

TEST(launch_history, keeps_kernels_devices_residence_and_simulated_time_apart) {
  launch_history history;
  feed(history, 3);
  for (const work_key& other : {work_key{"sharpen", "host-0"}, work_key{"blur", "host-1"},
                                work_key{"blur", "host-0", true}, work_key{"blur", "host-0", false, true}}) {
    EXPECT_FALSE(history.items_per_second(other, 1'000));
  }
}

TEST(launch_history, a_device_asked_about_and_never_sampled_is_unknown_again) {
  launch_history history{{16, 4}};
  feed(history, 3);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(history.items_per_second(blur, 1'000)) << i;
  EXPECT_FALSE(history.items_per_second(blur, 1'000));
  feed(history, 1, 1'000, 2e-6);  // it is warm: this one counts
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 1'000), 500e3);
}

TEST(launch_history, is_bounded_and_the_longest_unused_goes_first) {
  launch_history history{{3, 256}};
  const auto fed = [&](const char* kernel) {
    for (int i = 0; i < 2; ++i) history.record({kernel, "d"}, 10, 1);
  };
  fed("a");
  fed("b");
  fed("c");
  EXPECT_TRUE(history.cost({"a", "d"}));  // used again
  fed("d");
  EXPECT_EQ(history.size(), 3U);
  EXPECT_TRUE(history.cost({"a", "d"}));
  EXPECT_FALSE(history.cost({"b", "d"}));
  for (int i = 0; i < 1'000; ++i) history.record({std::to_string(i), "d"}, 10, 1);
  EXPECT_EQ(history.size(), 3U);
  history.clear();
  EXPECT_EQ(history.size(), 0U);
}

TEST(launch_history, what_is_no_sample_is_left_out) {
  launch_history history;
  feed(history, 2);
  for (const double seconds :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    history.record(blur, 1'000, seconds);
  }
  history.record(blur, 0, 1);
  history.record(blur, -5, 1);
  EXPECT_DOUBLE_EQ(*history.items_per_second(blur, 1'000), 1e6);
}

TEST(launch_history, takes_samples_from_many_threads) {
  launch_history history{{8, 1'000'000}};
  std::atomic<int> known{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string kernel = "kernel" + std::to_string(t % 3);
      for (int i = 1; i <= 500; ++i) {
        history.record({kernel, "d"}, 100 * i, 1e-6 * 100 * i);
        const auto cost = history.cost({kernel, "d"});
        if (cost && cost->of(1'000) > 0.99e-3 && cost->of(1'000) < 1.01e-3) ++known;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_GE(known.load(), 4 * 499);
  EXPECT_EQ(history.size(), 3U);
}

}  // namespace launch_history_test
