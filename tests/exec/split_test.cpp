// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/split.hpp"

#include "exec/balance/memory_cap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace split_test {

using weft::device_id;
using weft::errc;
using weft::item_split;
using weft::no_cap;
using weft::share;
using weft::split_device;
using weft::split_options;

constexpr std::int64_t huge = std::int64_t{1} << 62;

std::vector<split_device> devices(const std::vector<double>& weights) {
  std::vector<split_device> made;
  for (std::size_t i = 0; i < weights.size(); ++i) made.push_back({device_id{static_cast<int>(i)}, weights[i], no_cap});
  return made;
}
std::vector<std::int64_t> counts(const item_split& s) {
  std::vector<std::int64_t> made;
  for (const share& one : s.shares) made.push_back(one.count);
  return made;
}
using list = std::vector<std::int64_t>;

/// Shares and their pieces lie end to end from 0 to `items`, every inner border on a multiple of `granularity`.
testing::AssertionResult covers(const item_split& s, std::int64_t items, std::int64_t granularity) {
  std::int64_t at = 0;
  for (const share& one : s.shares) {
    if (one.first != at)
      return testing::AssertionFailure() << one.device.value() << " begins at " << one.first << ", not " << at;
    if (one.count < 0) return testing::AssertionFailure() << "a share of " << one.count;
    const std::int64_t passes = one.passes();
    for (const std::int64_t pass : {std::int64_t{0}, passes / 2, passes - 1}) {  // a share may have 2^62 pieces
      if (pass < 0 || pass >= passes) continue;
      const weft::piece p = one.piece_of(pass);
      if (p.count < 1 || p.count > one.at_once || p.first != one.first + pass * one.at_once ||
          p.first % granularity != 0 || (pass == passes - 1 && p.first + p.count != one.first + one.count)) {
        return testing::AssertionFailure() << "piece " << pass << " of " << passes << ": " << p.first << "+" << p.count;
      }
    }
    at += one.count;
    if (at != items && at % granularity != 0) return testing::AssertionFailure() << "a border at " << at;
  }
  return at == items ? testing::AssertionSuccess() : testing::AssertionFailure() << "ends at " << at << " of " << items;
}

TEST(split, equal_weights_differ_by_one_item_the_larger_first) {
  const auto s = weft::split(11, devices({1, 1, 1, 1}));
  ASSERT_TRUE(s);
  EXPECT_EQ(counts(*s), (list{3, 3, 3, 2}));
  EXPECT_EQ(counts(*weft::split(2, devices({1, 1, 1}))), (list{1, 1, 0}));
  for (std::int64_t p = 1; p <= 13; ++p) {  // where a double is coarser than an item
    const list n = counts(*weft::split(huge - p, devices(std::vector<double>(static_cast<std::size_t>(p), 1))));
    for (std::int64_t i = 0; i < p; ++i) {
      ASSERT_EQ(n[static_cast<std::size_t>(i)], (huge - p) / p + (i < (huge - p) % p ? 1 : 0)) << i << " of " << p;
    }
  }
}

TEST(split, is_in_proportion_by_largest_remainder) {
  EXPECT_EQ(counts(*weft::split(1'000, devices({45, 30, 25}))), (list{450, 300, 250}));
  EXPECT_EQ(counts(*weft::split(7, devices({45, 30, 25}))), (list{3, 2, 2}));  // 3.15 2.1 1.75
  EXPECT_EQ(counts(*weft::split(5, devices({0.9, 0.05, 0.05}))), (list{5, 0, 0}));
}

TEST(split, one_item_goes_to_one_device_and_no_items_to_none) {
  const auto none = weft::split(0, devices({1, 2}));
  ASSERT_TRUE(none);
  EXPECT_EQ(counts(*none), (list{0, 0}));
  EXPECT_FALSE(none->in_passes);
  EXPECT_EQ(counts(*weft::split(1, devices({1, 2}))), (list{0, 1}));
}

TEST(split, a_device_of_weight_zero_gets_nothing) {
  EXPECT_EQ(counts(*weft::split(10, devices({0, 1, 0, 1}))), (list{0, 5, 0, 5}));
  const auto none = weft::split(10, devices({0, 0}));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, errc::invalid_argument);
}

TEST(split, every_border_is_a_multiple_of_the_granularity) {
  const auto s = weft::split(1'000, devices({45, 30, 25}), {64});
  ASSERT_TRUE(s);
  EXPECT_TRUE(covers(*s, 1'000, 64));
  EXPECT_EQ(counts(*s), (list{448, 320, 232}));  // 16 granules: 7.2 4.8 4
  EXPECT_EQ(counts(*weft::split(5, devices({1, 1}), {64})), (list{5, 0}));
}

TEST(split, what_a_device_cannot_hold_goes_to_the_others_in_proportion) {
  auto over = devices({45, 30, 25});
  over[0].cap = 300'000;
  const auto s = weft::split(1'000'000, over);
  ASSERT_TRUE(s);
  EXPECT_EQ(counts(*s), (list{300'000, 381'818, 318'182}));  // .300 .382 .318
  EXPECT_FALSE(s->in_passes);
}

TEST(split, a_second_device_that_overflows_by_the_first_is_held_to_its_cap_too) {
  auto over = devices({45, 30, 25});
  over[0].cap = 300'000;
  over[1].cap = 350'000;
  EXPECT_EQ(counts(*weft::split(1'000'000, over)), (list{300'000, 350'000, 350'000}));
}

TEST(split, where_data_leaves_after_each_piece_a_cap_limits_the_piece_and_not_the_share) {
  auto over = devices({45, 30, 25});
  over[0].cap = 300'000;
  const auto s = weft::split(1'000'000, over, {1, false});
  ASSERT_TRUE(s);
  EXPECT_EQ(counts(*s), (list{450'000, 300'000, 250'000}));
  EXPECT_EQ(s->shares[0].passes(), 2);
  EXPECT_EQ(s->shares[0].at_once, 225'000);  // even pieces
  EXPECT_EQ(s->shares[1].passes(), 1);
}

TEST(split, more_than_all_devices_hold_is_done_in_passes) {
  auto over = devices({45, 30, 25});
  for (auto& d : over) d.cap = 100'000;
  const auto s = weft::split(1'000'000, over);
  ASSERT_TRUE(s);
  EXPECT_TRUE(s->in_passes);
  EXPECT_EQ(counts(*s), (list{450'000, 300'000, 250'000}));
  EXPECT_EQ(s->shares[0].passes(), 5);
  EXPECT_EQ(s->shares[2].passes(), 3);
  EXPECT_TRUE(covers(*s, 1'000'000, 1));
  for (auto& d : over) d.cap = 1;
  EXPECT_EQ(weft::split(huge, over)->shares[2].passes(), weft::split(huge, over)->shares[2].count);
}

TEST(split, caps_that_hold_no_granule_are_an_error_that_names_the_devices) {
  auto over = devices({1, 1});
  over[0].cap = 63;
  over[1].cap = 0;
  const auto s = weft::split(1'000, over, {64});
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().code, errc::out_of_memory);
  EXPECT_NE(s.error().what.find("gpu0 holds 63"), std::string::npos) << s.error().what;
  EXPECT_NE(s.error().what.find("gpu1 holds 0"), std::string::npos) << s.error().what;
  over[1].cap = 64;  // one device without room is no error: the other takes it all
  EXPECT_EQ(counts(*weft::split(64, over, {64})), (list{0, 64}));
}

TEST(split, what_cannot_be_is_an_error_that_names_the_device) {
  for (const double weight : {-1.0, std::nan(""), double{INFINITY}}) {
    const auto s = weft::split(10, devices({1, weight}));
    ASSERT_FALSE(s) << weight;
    EXPECT_EQ(s.error().code, errc::invalid_argument);
    EXPECT_NE(s.error().what.find("gpu1"), std::string::npos) << s.error().what;
  }
  auto over = devices({1, 1});
  over[1].cap = -1;
  EXPECT_NE(weft::split(10, over).error().what.find("gpu1"), std::string::npos);
  EXPECT_FALSE(weft::split(-1, devices({1})));
  EXPECT_FALSE(weft::split(1, devices({1}), {0}));
  EXPECT_FALSE(weft::split(1, {}));
}

/// Exact proportions by bisection: Σ min(cap, λ weight) = granules.
std::vector<double> proportions(double granules, const std::vector<double>& weights, const std::vector<double>& caps) {
  double low = 0;
  double high = granules / *std::min_element(weights.begin(), weights.end());
  const auto filled = [&](double level) {
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) sum += std::min(caps[i], level * weights[i]);
    return sum;
  };
  for (int i = 0; i < 200; ++i) (filled((low + high) / 2) < granules ? low : high) = (low + high) / 2;
  std::vector<double> made;
  for (std::size_t i = 0; i < weights.size(); ++i) made.push_back(std::min(caps[i], high * weights[i]));
  return made;
}

TEST(split, gives_every_index_once_for_ten_thousand_counts_devices_weights_and_caps) {
  std::mt19937_64 random{20'240'611};
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  int passes = 0;
  for (int trial = 0; trial < 10'000; ++trial) {
    const auto p = static_cast<std::size_t>(1 + below(12));
    const std::int64_t items = trial % 10 == 0 ? huge - below(1'000) : below(std::int64_t{1} << below(40));
    const std::int64_t granularity = trial % 3 == 0 ? 1 : 1 + below(300);
    const bool equal = below(4) == 0;
    std::vector<split_device> over(p);
    for (std::size_t i = 0; i < p; ++i) {
      over[i].id = device_id{static_cast<int>(i)};
      over[i].weight = equal           ? 3
                       : below(5) == 0 ? 0
                                       : std::ldexp(static_cast<double>(1 + below(1'000)), static_cast<int>(below(8)));
      if (below(2) == 0) over[i].cap = below(items / static_cast<std::int64_t>(p + 1) * 2 + 2);
    }
    const split_options options{granularity, below(2) == 0};
    const auto s = weft::split(items, over, options);
    const std::int64_t size = std::max<std::int64_t>(1, std::min(items, granularity));
    std::vector<double> weights;
    std::vector<double> caps;
    std::vector<std::size_t> who;
    double room = 0;
    for (std::size_t i = 0; i < p; ++i) {
      if (over[i].weight <= 0 || over[i].cap < size) continue;
      who.push_back(i);
      weights.push_back(over[i].weight);
      const std::int64_t cap = over[i].cap == no_cap ? no_cap : over[i].cap / size;
      caps.push_back(static_cast<double>(cap));
      room += static_cast<double>(cap);
    }
    const bool weighted = std::any_of(over.begin(), over.end(), [](const split_device& d) { return d.weight > 0; });
    if (!weighted || (items > 0 && who.empty())) {
      ASSERT_FALSE(s) << trial;
      continue;
    }
    ASSERT_TRUE(s) << trial << to_string(s.error());
    ASSERT_TRUE(covers(*s, items, size)) << trial;
    passes += s->in_passes ? 1 : 0;
    const double granules = std::ceil(static_cast<double>(items) / static_cast<double>(size));
    if (items < huge / 2) {
      ASSERT_EQ(s->in_passes, room < granules) << trial;
    }
    const bool total = options.keeps_data && !s->in_passes;
    for (std::size_t i = 0; i < p; ++i) {
      const share& one = s->shares[i];
      ASSERT_LE(one.at_once, over[i].cap) << trial;
      if (total) {
        ASSERT_LE(one.count, over[i].cap) << trial;
      }
      if (over[i].weight <= 0) {
        ASSERT_EQ(one.count, 0) << trial;
      }
    }
    if (who.empty()) continue;
    if (!total) std::fill(caps.begin(), caps.end(), 1e300);
    const std::vector<double> exact = proportions(granules, weights, caps);
    for (std::size_t k = 0; k < who.size(); ++k) {
      const double got = std::ceil(static_cast<double>(s->shares[who[k]].count) / static_cast<double>(size));
      ASSERT_LE(std::abs(got - exact[k]), 1 + 1e-9 + granules * 1e-14) << trial << " device " << who[k];
    }
  }
  EXPECT_GT(passes, 100);
}

TEST(memory_cap, counts_the_items_that_fit_in_nine_tenths_of_what_is_free) {
  EXPECT_EQ(*weft::items_that_fit(device_id{0}, {1'000, {}}, {9, 0}), 100);
  EXPECT_EQ(*weft::items_that_fit(device_id{0}, {1'000, {}}, {9, 90}), 90);
  EXPECT_EQ(*weft::items_that_fit(device_id{0}, {1'000, 450}, {9, 0}), 50);
  EXPECT_EQ(*weft::items_that_fit(device_id{0}, {100, 450}, {9, 0}), 10);
  EXPECT_EQ(*weft::items_that_fit(device_id{0}, {1'000, {}}, {0, 900}), no_cap);
  EXPECT_EQ(*weft::items_that_fit(device_id{0}, {1'000, {}}, {0, 901}), 0);
  EXPECT_EQ(*weft::items_that_fit(device_id{0}, {~std::uint64_t{0}, {}}, {1, 0}), no_cap);
}

TEST(memory_cap, a_full_device_has_a_cap_of_0_and_a_limit_that_holds_nothing_is_an_error) {
  EXPECT_EQ(*weft::items_that_fit(device_id{1}, {5, {}}, {9, 0}), 0);
  const auto none = weft::items_that_fit(device_id{1}, {1 << 20, 500}, {8, 0}, 64);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, errc::out_of_memory);
  EXPECT_NE(none.error().what.find("gpu1 may use 500 bytes"), std::string::npos) << none.error().what;
  EXPECT_NE(none.error().what.find("64 items"), std::string::npos) << none.error().what;
  EXPECT_EQ(*weft::items_that_fit(device_id{1}, {1 << 20, 512}, {8, 0}, 64), 64);
}

}  // namespace split_test
