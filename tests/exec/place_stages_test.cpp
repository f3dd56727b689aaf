// SPDX-License-Identifier: Apache-2.0
#include "exec/pipeline/place_stages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace stage_placement_test {

using weft::device_id;
using weft::errc;
using weft::placement_problem;
using weft::stage_placement;

constexpr device_id gpu(int i) { return device_id{i}; }

/// Stages of these milliseconds, and devices of these speeds; every hop takes 5 ms.
placement_problem line(std::vector<double> ms, std::vector<double> speeds, bool overlap) {
  placement_problem made;
  for (std::size_t i = 0; i < ms.size(); ++i)
    made.stages.push_back({std::string(1, static_cast<char>('a' + i)), ms[i] * 1e-3, 1000, 0});
  for (std::size_t i = 0; i < speeds.size(); ++i) made.devices.push_back({gpu(static_cast<int>(i)), speeds[i], {}});
  made.hop_seconds = [](device_id, device_id, std::uint64_t) { return 5e-3; };
  made.overlap_hops = overlap;
  return made;
}

/// Period and time of one batch, worked out from the definition alone.
struct pace {
  double period = 0, first = 0;
};
pace pace_of(const placement_problem& p, const std::vector<std::size_t>& on) {
  pace made;
  const auto hop = [&](device_id a, device_id b, std::uint64_t n) {
    return p.hop_seconds ? p.hop_seconds(a, b, n) : 0;
  };
  for (std::size_t d = 0; d < p.devices.size(); ++d) {
    double compute = 0, hops = 0, longest = 0;
    const auto add = [&](double seconds) {
      hops += seconds;
      longest = std::max(longest, seconds);
    };
    if (on.front() == d) add(hop(device_id{}, p.devices[d].id, p.bytes_in));
    for (std::size_t s = 0; s < on.size(); ++s) {
      if (on[s] != d) continue;
      compute += p.stages[s].seconds / p.devices[d].speed;
      if (s + 1 == on.size()) {
        add(hop(p.devices[d].id, device_id{}, p.stages[s].bytes_out));
      } else if (on[s + 1] != d) {
        add(hop(p.devices[d].id, p.devices[on[s + 1]].id, p.stages[s].bytes_out));
      }
    }
    made.period = std::max(made.period, p.overlap_hops ? std::max(compute, longest) : compute + hops);
    made.first += compute + hops;
  }
  return made;
}

/// All ways to give consecutive stages to different devices.
void for_each_placement(const placement_problem& p, std::vector<std::size_t>& on,
                        const std::function<void(const std::vector<std::size_t>&)>& f) {
  if (on.size() == p.stages.size()) {
    f(on);
    return;
  }
  for (std::size_t d = 0; d < p.devices.size(); ++d) {
    const bool used = std::find(on.begin(), on.end(), d) != on.end();
    if (used && on.back() != d) continue;
    on.push_back(d);
    for_each_placement(p, on, f);
    on.pop_back();
  }
}

bool fits(const placement_problem& p, const std::vector<std::size_t>& on) {
  for (std::size_t d = 0; d < p.devices.size(); ++d) {
    std::uint64_t held = 0;
    for (std::size_t s = 0; s < on.size(); ++s) held += on[s] == d ? p.stages[s].memory : 0;
    if (p.devices[d].memory && held > *p.devices[d].memory) return false;
  }
  return true;
}

TEST(stage_placement, is_as_good_as_the_best_of_all_on_random_lines) {
  std::mt19937 random{20'240'611};
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  int without_room = 0, with_limits = 0;
  for (int round = 0; round < 1500; ++round) {
    placement_problem p;
    const int stages = 1 + draw(5), devices = 1 + draw(4);
    for (int s = 0; s < stages; ++s) {
      p.stages.push_back({"s" + std::to_string(s), 1e-3 * draw(60), static_cast<std::uint64_t>(draw(1000)),
                          static_cast<std::uint64_t>(draw(10))});
    }
    const bool limits = draw(3) == 0;
    for (int d = 0; d < devices; ++d) {
      p.devices.push_back({gpu(d), 0.5 + 0.25 * draw(8), {}});
      if (limits) p.devices.back().memory = static_cast<std::uint64_t>(draw(25));
    }
    p.bytes_in = static_cast<std::uint64_t>(draw(1000));
    p.overlap_hops = draw(2) == 0;
    if (draw(4) != 0) {
      std::vector<double> rate(static_cast<std::size_t>((devices + 1) * (devices + 1)));
      for (double& r : rate) r = 2e4 + 1e3 * draw(200);
      p.hop_seconds = [rate, devices](device_id from, device_id to, std::uint64_t size) {
        return 1e-3 + static_cast<double>(size) /
                          rate[static_cast<std::size_t>((from.value() + 1) * (devices + 1) + to.value() + 1)];
      };
    }
    pace best{1e300, 1e300};
    std::vector<std::size_t> on;
    for_each_placement(p, on, [&](const std::vector<std::size_t>& candidate) {
      if (!fits(p, candidate)) return;
      const pace one = pace_of(p, candidate);
      if (one.period < best.period * (1 - 1e-9) || (one.period < best.period * (1 + 1e-9) && one.first < best.first)) {
        best = one;
      }
    });
    const auto placed = weft::place_stages(p);
    if (best.period == 1e300) {
      ASSERT_FALSE(placed) << round;
      EXPECT_EQ(placed.error().code, errc::out_of_memory);
      ++without_room;
      continue;
    }
    with_limits += limits ? 1 : 0;
    ASSERT_TRUE(placed) << round << ": " << placed.error().what;
    ASSERT_TRUE(placed->exact);
    std::vector<std::size_t> chosen;
    for (const device_id id : placed->device_of) chosen.push_back(id.index());
    ASSERT_TRUE(fits(p, chosen)) << round;
    const pace told{placed->period_seconds, placed->first_seconds}, is = pace_of(p, chosen);
    ASSERT_NEAR(told.period, is.period, 1e-12) << round << ": what is told is what the placement takes";
    ASSERT_NEAR(told.first, is.first, 1e-12) << round;
    ASSERT_NEAR(is.period, best.period, 1e-9) << round;
    ASSERT_NEAR(is.first, best.first, 1e-9) << round << ": the soonest first batch among equals";
  }
  EXPECT_GT(without_room, 20);
  EXPECT_GT(with_limits, 100);
}

TEST(stage_placement, three_equal_stages_on_three_devices_hand_on_once_a_stage) {
  const auto alone = weft::place_stages(line({50, 50, 50}, {1, 1, 1}, false));
  ASSERT_TRUE(alone);
  // the first device takes in as well: 5 + 50 + 5
  EXPECT_NEAR(alone->period_seconds, 0.060, 1e-12);
  EXPECT_NEAR(alone->first_seconds, 0.170, 1e-12);
  EXPECT_NEAR(alone->fill_seconds, 0.115, 1e-12);
  EXPECT_NEAR(alone->drain_seconds, 0.110, 1e-12);
  const auto beside = weft::place_stages(line({50, 50, 50}, {1, 1, 1}, true));
  ASSERT_TRUE(beside);
  EXPECT_NEAR(beside->period_seconds, 0.050, 1e-12);
  EXPECT_NEAR(beside->fill_seconds, 0.115, 1e-12);
  EXPECT_NEAR(beside->drain_seconds, 0.115, 1e-12);
}

TEST(stage_placement, shares_devices_when_there_are_fewer_and_leaves_some_out_when_there_are_more) {
  const auto two = weft::place_stages(line({10, 20, 30, 40}, {1, 1}, true));
  ASSERT_TRUE(two);
  EXPECT_NEAR(two->period_seconds, 0.060, 1e-12) << "10 + 20 + 30 beside 40";
  EXPECT_EQ(two->device_of[2], two->device_of[0]);
  EXPECT_NE(two->device_of[3], two->device_of[0]);
  const auto many = weft::place_stages(line({1, 2}, {1, 3, 2, 1}, true));
  ASSERT_TRUE(many);
  EXPECT_EQ(many->device_of, (std::vector<device_id>{gpu(1), gpu(1)})) << "handing on gains nothing here";
}

TEST(stage_placement, gives_the_costly_stage_to_the_fast_device_wherever_it_stands) {
  for (int fast = 0; fast < 3; ++fast) {
    std::vector<double> speeds(3, 1.0), ms(3, 20.0);
    speeds[static_cast<std::size_t>(fast)] = 4;
    for (std::size_t costly = 0; costly < 3; ++costly) {
      ms.assign(3, 20.0);
      ms[costly] = 80;
      const auto placed = weft::place_stages(line(ms, speeds, true));
      ASSERT_TRUE(placed);
      EXPECT_EQ(placed->device_of[costly], gpu(fast));
      EXPECT_NEAR(placed->period_seconds, 0.020, 1e-12);
    }
  }
}

TEST(stage_placement, a_placement_on_more_than_ten_devices_is_inexact_and_still_uses_the_fast_ones) {
  std::vector<double> speeds(24, 1.0), ms(12, 40.0);
  std::fill(speeds.begin() + 7, speeds.begin() + 15, 2.0);
  const auto placed = weft::place_stages(line(ms, speeds, true));
  ASSERT_TRUE(placed);
  EXPECT_FALSE(placed->exact);
  EXPECT_NEAR(placed->period_seconds, 0.040, 1e-12) << "8 fast ones do two stages in 40 ms, slow ones do one";
}

TEST(stage_placement, many_stages_on_ten_devices_are_placed_exactly_and_near_the_ideal) {
  std::vector<double> ms;
  for (int i = 0; i < 60; ++i) ms.push_back(1 + (i * 7) % 13);
  const auto placed = weft::place_stages(line(ms, {1, 2, 1.5, 1, 3, 1, 2, 1, 1.25, 1}, false));
  ASSERT_TRUE(placed);
  EXPECT_TRUE(placed->exact);
  const double ideal = std::accumulate(ms.begin(), ms.end(), 0.0) * 1e-3 / 14.75;
  EXPECT_GT(placed->period_seconds, ideal);
  EXPECT_LT(placed->period_seconds, ideal * 1.6);
}

TEST(stage_placement, says_why_for_each_stage_and_who_sets_the_pace) {
  const auto placed = weft::place_stages(line({10, 20, 90}, {1, 2}, false));
  ASSERT_TRUE(placed);
  ASSERT_EQ(placed->why.size(), 3U);
  EXPECT_EQ(placed->why[0],
            "'a' on gpu0 with 'b' (30 ms of work, 5 ms to take in, 5 ms to hand on; the pace is 50 ms)");
  EXPECT_EQ(placed->why[2], "'c' on gpu1: 45 ms of work at speed 2, 5 ms to hand on; it sets the pace");
}

TEST(stage_placement, chosen_elsewhere_is_judged_with_devices_that_are_used_twice) {
  const placement_problem p = line({50, 50, 50}, {1, 1}, true);
  const auto apart = weft::judge_placement(p, {gpu(0), gpu(1), gpu(0)});
  ASSERT_TRUE(apart);
  EXPECT_NEAR(apart->period_seconds, 0.100, 1e-12) << "gpu0 does two stages of every batch";
  EXPECT_NEAR(apart->first_seconds, 0.170, 1e-12);
  EXPECT_EQ(weft::judge_placement(p, {gpu(0), gpu(1)}).error().code, errc::invalid_argument);
  const auto absent = weft::judge_placement(p, {gpu(0), gpu(1), gpu(5)});
  ASSERT_FALSE(absent);
  EXPECT_NE(absent.error().what.find("'c' was placed on gpu5"), std::string::npos) << absent.error().what;
}

TEST(stage_placement, refuses_what_is_no_problem_and_names_it) {
  const auto text = [](const placement_problem& p) {
    const auto placed = weft::place_stages(p);
    return placed ? std::string{"placed"} : std::string{to_string(placed.error().code)} + ": " + placed.error().what;
  };
  EXPECT_NE(text(line({}, {1}, true)).find("without a stage"), std::string::npos);
  EXPECT_NE(text(line({1}, {}, true)).find("no device"), std::string::npos);
  EXPECT_NE(text(line({1, -2}, {1}, true)).find("stage 'b' has a cost that is no time"), std::string::npos);
  EXPECT_NE(text(line({std::nan("")}, {1}, true)).find("stage 'a'"), std::string::npos);
  EXPECT_NE(text(line({1}, {1, 0}, true)).find("gpu1 has a speed that is none"), std::string::npos);
  auto twice = line({1}, {1, 1}, true);
  twice.devices[1].id = gpu(0);
  EXPECT_NE(text(twice).find("gpu0 was given twice"), std::string::npos);
  auto narrow = line({1, 1, 1}, {1, 1}, true);
  for (auto& s : narrow.stages) s.memory = 60;
  for (auto& d : narrow.devices) d.memory = 100;
  EXPECT_NE(text(narrow).find("out_of_memory: the stages do not fit on the 2 devices"), std::string::npos);
  narrow.stages[1].memory = 101;
  EXPECT_NE(text(narrow).find("stage 'b' keeps 101 bytes"), std::string::npos);
}

}  // namespace stage_placement_test
