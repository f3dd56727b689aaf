// SPDX-License-Identifier: Apache-2.0
#include "profile/timeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

namespace timeline_test {

using std::chrono::nanoseconds;
using weft::clock_fit;
using weft::clock_sample;
using weft::device_id;
using weft::fit_clock;
using weft::timeline;
using weft::trace_record;

/// A clock that shows `at_zero` when the host's shows 0, and `rate` nanoseconds for each of the host's.
struct skewed_clock {
  std::int64_t at_zero = 0;
  double rate = 1;
  [[nodiscard]] nanoseconds shows(nanoseconds host) const {
    return nanoseconds{at_zero + host.count() + std::llround(static_cast<double>(host.count()) * (rate - 1))};
  }
};

constexpr nanoseconds second{1'000'000'000};

std::vector<clock_sample> exact_samples(const skewed_clock& clock, int count, nanoseconds every, nanoseconds first) {
  std::vector<clock_sample> samples;
  for (int i = 0; i < count; ++i)
    samples.push_back({clock.shows(first + every * i), first + every * i, nanoseconds{0}});
  return samples;
}

TEST(clock_fit, finds_offset_and_drift_of_an_exact_clock_to_the_nanosecond) {
  // an hour after the host started, of a clock that started at another time and runs 80 parts per million too fast
  const skewed_clock clock{-987'654'321'000, 1 + 80e-6};
  const nanoseconds start = 3600 * second;
  const clock_fit fit = fit_clock(exact_samples(clock, 50, second / 10, start));
  EXPECT_NEAR(fit.drift, -80e-6 / (1 + 80e-6), 1e-10);
  EXPECT_LE(fit.error.count(), 2);
  for (const nanoseconds host : {start, start + second, start + second * 49 / 10 + nanoseconds{-1}}) {
    EXPECT_LE(std::abs((fit.host_time(clock.shows(host)) - host).count()), 1) << host.count();
  }
}

TEST(clock_fit, of_nothing_is_the_identity_and_of_one_sample_an_offset) {
  EXPECT_EQ(fit_clock({}).host_time(nanoseconds{123}), nanoseconds{123});
  const clock_fit one = fit_clock(std::vector{clock_sample{nanoseconds{500}, nanoseconds{2000}, nanoseconds{7}}});
  EXPECT_EQ(one.host_time(nanoseconds{600}), nanoseconds{2100});
  EXPECT_EQ(one.error, nanoseconds{7});
}

TEST(clock_fit, of_one_device_time_has_no_drift_and_of_time_that_runs_backwards_none) {
  const std::vector<clock_sample> same(5, {nanoseconds{10}, nanoseconds{40}, nanoseconds{0}});
  EXPECT_EQ(fit_clock(same).drift, 0.0);
  EXPECT_EQ(fit_clock(same).host_time(nanoseconds{11}), nanoseconds{41});
  std::vector<clock_sample> backwards;
  for (int i = 0; i < 10; ++i) backwards.push_back({nanoseconds{i * 1000}, nanoseconds{i * -1000}, nanoseconds{0}});
  const clock_fit fit = fit_clock(backwards);
  EXPECT_GT(fit.host_time(nanoseconds{2}), fit.host_time(nanoseconds{1}));
}

TEST(clock_fit, keeps_its_error_bound_though_each_sample_is_read_late) {
  std::mt19937 random{7};
  for (int round = 0; round < 50; ++round) {
    const skewed_clock clock{static_cast<std::int64_t>(random()) * 1000,
                             1 + (static_cast<int>(random() % 401) - 200) * 1e-6};
    std::vector<clock_sample> samples;
    for (int i = 0; i < 80; ++i) {
      const nanoseconds truth = second * i / 20;
      const auto uncertainty = static_cast<std::int64_t>(random() % 3000);
      const auto off = static_cast<std::int64_t>(random() % 2001) * uncertainty / 1000 - uncertainty;
      samples.push_back({clock.shows(truth), truth + nanoseconds{off}, nanoseconds{uncertainty}});
    }
    const clock_fit fit = fit_clock(samples);
    EXPECT_LE(fit.error.count(), 2 * 3000 + 2 * 3000) << "a bound that holds but says nothing";
    for (int i = 0; i <= 400; ++i) {
      const nanoseconds truth = second * 79 / 20 * i / 400;
      ASSERT_LE(std::abs((fit.host_time(clock.shows(truth)) - truth).count()), fit.error.count() + 1)
          << "round " << round;
    }
  }
}

TEST(clock_fit, is_not_moved_by_a_quarter_of_samples_that_are_wrong) {
  std::mt19937 random{11};
  for (const bool one_sided : {false, true}) {
    const skewed_clock clock{1'000'000, 1 - 30e-6};
    std::vector<clock_sample> samples = exact_samples(clock, 100, second / 10, nanoseconds{0});
    for (std::size_t i = 1; i < samples.size(); i += 4) {
      const auto wrong = nanoseconds{static_cast<std::int64_t>(random() % 50'000'000) + 100'000};
      samples[i].host += one_sided || random() % 2 == 0 ? wrong : -wrong;
    }
    const clock_fit fit = fit_clock(samples);
    EXPECT_EQ(fit.outliers, 25U);
    EXPECT_LE(fit.error.count(), 2);
    for (const nanoseconds truth : {nanoseconds{0}, second, 9 * second}) {
      EXPECT_LE(std::abs((fit.host_time(clock.shows(truth)) - truth).count()), 2);
    }
  }
}

TEST(clock_fit, of_very_many_samples_looks_at_some_from_the_first_to_the_last) {
  const skewed_clock clock{42, 1 + 10e-6};
  const clock_fit fit = fit_clock(exact_samples(clock, 100'000, nanoseconds{100'000}, nanoseconds{0}));
  EXPECT_NEAR(fit.drift, -10e-6, 1e-9);
  EXPECT_EQ(fit.outliers, 0U);
}

trace_record at(device_id device, nanoseconds started, nanoseconds ended) {
  trace_record made;
  made.device = device;
  made.submitted = started;
  made.started = started;
  made.ended = ended;
  return made;
}

TEST(timeline, without_clocks_only_orders) {
  const timeline one;
  EXPECT_EQ(one.error_between(device_id{0}, device_id{1}), nanoseconds{0});
  const auto merged =
      one.merge({at(device_id{0}, nanoseconds{5}, nanoseconds{9}), at(device_id{1}, nanoseconds{2}, nanoseconds{3}),
                 at(device_id{2}, nanoseconds{5}, nanoseconds{6})});
  EXPECT_EQ(merged[0].device, device_id{1});
  EXPECT_EQ(merged[1].device, device_id{2}) << "what starts together goes by its end";
  EXPECT_EQ(merged[2].started, nanoseconds{5});
  EXPECT_EQ(merged[2].ended, nanoseconds{9});
}

TEST(timeline, keeps_equal_records_in_order) {
  std::vector<trace_record> records(200, at(device_id{0}, nanoseconds{5}, nanoseconds{9}));
  for (std::size_t i = 0; i < records.size(); ++i) records[i].items = static_cast<std::int64_t>(i);
  const auto merged = timeline{}.merge(records);
  for (std::size_t i = 0; i < merged.size(); ++i) ASSERT_EQ(merged[i].items, static_cast<std::int64_t>(i));
}

TEST(timeline, puts_a_cause_before_its_effect_on_another_device) {
  // A baton goes from device to device; each hand-over takes as long as the bound says two clocks may disagree.
  std::mt19937 random{3};
  const skewed_clock clocks[] = {{5'000'000'000, 1 + 150e-6}, {-77'000, 1 - 90e-6}, {0, 1}, {1'234'567, 1 + 5e-6}};
  timeline line;
  for (int d = 0; d < 4; ++d) {
    std::vector<clock_sample> samples;
    for (int i = 0; i <= 60; ++i) {
      const nanoseconds truth = second * i / 20;
      const auto off = static_cast<std::int64_t>(random() % 1001) - 500;
      samples.push_back({clocks[d].shows(truth), truth + nanoseconds{off}, nanoseconds{500}});
    }
    line.set_clock(device_id{d}, fit_clock(samples));
  }
  std::vector<trace_record> records;
  std::vector<device_id> holders;
  nanoseconds now{1'000};
  device_id holder{0};
  while (now < 3 * second) {
    const auto& clock = clocks[holder.value()];
    const nanoseconds end = now + nanoseconds{20'000 + static_cast<std::int64_t>(random() % 20'000'000)};
    if (end >= 3 * second) break;
    records.push_back(at(holder, clock.shows(now), clock.shows(end)));
    records.back().items = static_cast<std::int64_t>(records.size());
    const device_id next{static_cast<int>(random() % 4)};
    now = end + line.error_between(holder, next);
    holder = next;
  }
  ASSERT_GT(records.size(), 100U);
  std::vector<trace_record> shuffled = records;
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  const auto merged = line.merge(shuffled);
  for (std::size_t i = 0; i < merged.size(); ++i) {
    ASSERT_EQ(merged[i].items, static_cast<std::int64_t>(i) + 1) << "the order of the hand-overs";
    // on one device to the rounding of a nanosecond, across devices exactly
    if (i > 0) {
      ASSERT_GE(merged[i].started + nanoseconds{1}, merged[i - 1].ended);
    }
  }
  EXPECT_GT(line.error_between(device_id{0}, device_id{1}), nanoseconds{0});
  EXPECT_LT(line.error_between(device_id{0}, device_id{1}), nanoseconds{5000});
  EXPECT_EQ(line.error_between(device_id{1}, device_id{1}), nanoseconds{0});
}

}  // namespace timeline_test
