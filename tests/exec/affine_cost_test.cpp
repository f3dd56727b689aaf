// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/affine_cost.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace affine_cost_test {

using weft::costed_device;
using weft::device_id;
using weft::errc;
using weft::finish_together;
using weft::no_cap;

std::vector<std::int64_t> counts(const weft::equal_finish& f) {
  std::vector<std::int64_t> made;
  for (const auto& s : f.split.shares) made.push_back(s.count);
  return made;
}
using list = std::vector<std::int64_t>;

/// One device at hand, three that take 100 us more to reach; 5 ns for an item on each.
std::vector<costed_device> one_near_three_far() {
  std::vector<costed_device> made;
  for (int i = 0; i < 4; ++i) made.push_back({device_id{i}, {i == 0 ? 20e-6 : 120e-6, 5e-9}, no_cap});
  return made;
}
double speed_up(std::int64_t items) {
  const auto over = one_near_three_far();
  return over[0].cost.of(items) / finish_together(items, over)->seconds;
}

TEST(finish_together, chooses_the_number_of_devices_by_cost) {
  const auto over = one_near_three_far();
  for (const std::int64_t small : {std::int64_t{1}, std::int64_t{1'000}, std::int64_t{20'000}}) {
    EXPECT_EQ(finish_together(small, over)->devices, 1) << small;
  }
  EXPECT_EQ(finish_together(30'000, over)->devices, 4);
  EXPECT_NEAR(speed_up(30'000), 1.28, 0.005);
  EXPECT_NEAR(speed_up(100'000), 2.36, 0.005);
  EXPECT_NEAR(speed_up(1'000'000), 3.73, 0.005);
  EXPECT_NEAR(speed_up(100'000'000), 4.00, 0.005);
}

TEST(finish_together, without_starts_is_in_proportion_to_speed) {
  const std::vector<costed_device> over{
      {device_id{0}, {0, 1 / 45.0}}, {device_id{1}, {0, 1 / 30.0}}, {device_id{2}, {0, 1 / 25.0}}};
  const auto f = finish_together(1'000, over);
  ASSERT_TRUE(f);
  EXPECT_EQ(counts(*f), (list{450, 300, 250}));
  EXPECT_NEAR(f->seconds, 10, 1e-9);
}

TEST(finish_together, holds_a_device_to_its_memory) {
  std::vector<costed_device> over{
      {device_id{0}, {0, 1 / 45e4}, 300'000}, {device_id{1}, {0, 1 / 30e4}}, {device_id{2}, {0, 1 / 25e4}}};
  const auto f = finish_together(1'000'000, over);
  ASSERT_TRUE(f);
  EXPECT_EQ(counts(*f), (list{300'000, 381'818, 318'182}));
  EXPECT_NEAR(f->seconds, 1.273, 0.0005);
  // in two passes the slow ones wait for nobody
  const auto twice = finish_together(1'000'000, over, {1, false});
  EXPECT_EQ(counts(*twice), (list{450'000, 300'000, 250'000}));
  EXPECT_NEAR(twice->seconds, 1, 1e-9);
}

TEST(finish_together, more_than_all_hold_is_done_in_passes_that_each_pay_a_start) {
  const std::vector<costed_device> over{{device_id{0}, {1, 1}, 10}, {device_id{1}, {0, 1}, 10}};
  const auto f = finish_together(210, over);
  ASSERT_TRUE(f);
  EXPECT_TRUE(f->split.in_passes);
  EXPECT_EQ(counts(*f), (list{100, 110}));  // 1.1 s and 1 s an item
  EXPECT_NEAR(f->seconds, 110, 1e-9);
}

TEST(finish_together, errors_name_the_device) {
  std::vector<costed_device> over = one_near_three_far();
  over[2].cost.seconds_per_item = 0;
  EXPECT_EQ(finish_together(10, over).error().code, errc::invalid_argument);
  EXPECT_NE(finish_together(10, over).error().what.find("gpu2"), std::string::npos);
  over = one_near_three_far();
  for (auto& d : over) d.cap = 0;
  EXPECT_EQ(finish_together(10, over).error().code, errc::out_of_memory);
  EXPECT_NE(finish_together(10, over).error().what.find("gpu3"), std::string::npos);
  EXPECT_EQ(finish_together(0, over)->seconds, 0);
  EXPECT_FALSE(finish_together(10, {}));
}

/// The least end over all ways to give `granules` to the devices from `at` on.
double best_end(const std::vector<costed_device>& over, std::size_t at, std::int64_t granules, std::int64_t size) {
  if (at == over.size()) return granules == 0 ? 0 : 1e300;
  double best = 1e300;
  for (std::int64_t n = 0; n <= std::min(granules, over[at].cap / size); ++n) {
    best = std::min(best, std::max(over[at].cost.of(n * size), best_end(over, at + 1, granules - n, size)));
  }
  return best;
}

TEST(finish_together, equals_trying_all_ways) {
  std::mt19937_64 random{7};
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int trial = 0; trial < 2'000; ++trial) {
    const auto p = static_cast<std::size_t>(1 + below(4));
    const std::int64_t size = 1 + below(3);
    const std::int64_t granules = 1 + below(14);
    std::vector<costed_device> over;
    std::int64_t room = 0;
    for (std::size_t i = 0; i < p; ++i) {
      const std::int64_t cap = below(3) == 0 ? size * below(8) : no_cap;
      over.push_back({device_id{static_cast<int>(i)},
                      {static_cast<double>(below(20)), static_cast<double>(1 + below(40)) / 4},
                      cap});
      room += std::min(cap / size, granules);
    }
    if (room < granules) continue;
    const auto f = finish_together(granules * size, over, {size});
    ASSERT_TRUE(f) << trial;
    std::int64_t sum = 0;
    for (const std::int64_t n : counts(*f)) sum += n;
    ASSERT_EQ(sum, granules * size) << trial;
    for (std::size_t i = 0; i < p; ++i) ASSERT_LE(f->split.shares[i].count, over[i].cap) << trial;
    ASSERT_NEAR(f->seconds, best_end(over, 0, granules, size), 1e-9) << trial;
  }
}

TEST(finish_together, is_exact_for_speeds_and_counts_far_apart) {
  const std::int64_t huge = std::int64_t{1} << 62;
  const std::vector<costed_device> over{
      {device_id{0}, {0, 1e-12}, huge / 2}, {device_id{1}, {3, 1}}, {device_id{2}, {0, 2}}};
  const auto f = finish_together(huge, over);
  ASSERT_TRUE(f);
  const list n = counts(*f);
  EXPECT_EQ(n[0], huge / 2);  // its cap
  EXPECT_EQ(n[0] + n[1] + n[2], huge);
  EXPECT_NEAR(static_cast<double>(n[1]) / static_cast<double>(n[2]), 2, 1e-12);
}

TEST(worth_moving, asks_for_two_percent_and_for_the_price_of_the_move) {
  EXPECT_FALSE(weft::worth_moving(1.0, 0.985, 1e9, 0));
  EXPECT_TRUE(weft::worth_moving(1.0, 0.9, 10, 0.5));
  EXPECT_FALSE(weft::worth_moving(1.0, 0.9, 10, 1.5));
  EXPECT_FALSE(weft::worth_moving(1.0, 1.2, 10, 0));
}

}  // namespace affine_cost_test
