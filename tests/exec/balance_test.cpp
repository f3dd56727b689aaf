// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/balance.hpp"

#include "exec/balance/balance_simulation.hpp"
#include "exec/balance/balancer.hpp"
#include "exec/balance/launch_history.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace balance_test {

using weft::balance;
using weft::balance_device;
using weft::balance_plan;
using weft::balance_request;
using weft::balance_scenario;
using weft::balancer;
using weft::device_id;
using weft::errc;
using weft::item_cost;
using weft::no_cap;
using weft::piece;
using weft::plan_balance;
using weft::simulated_run;

constexpr balance all_strategies[] = {balance::automatic,    balance::static_equal,  balance::dynamic, balance::guided,
                                      balance::memory_aware, balance::work_stealing, balance::weighted};
constexpr std::int64_t million = 1'000'000;
const std::vector<double> speeds{450e3, 300e3, 250e3};

// ---- the scenarios of the study: three devices, a million items, 20 us a piece

balance_scenario scenario_a() {
  balance_scenario made;
  made.items = million;
  for (const double speed : speeds) made.devices.push_back({speed, 20e-6});
  return made;
}
balance_scenario scenario_b(std::uint64_t seed) {
  balance_scenario made = scenario_a();
  made.noise = 0.05;
  made.seed = seed;
  return made;
}
balance_scenario scenario_c() {
  balance_scenario made = scenario_a();
  made.devices[0].changes_at = 0.5;
  made.devices[0].changes_by = 0.5;
  return made;
}
balance_scenario scenario_d(item_cost cost) {
  balance_scenario made = scenario_a();
  made.cost = cost;
  return made;
}
balance_scenario scenario_e() {
  balance_scenario made = scenario_a();
  for (auto& d : made.devices) d.chunk_seconds = 2e-3;
  return made;
}
std::vector<balance_scenario> quiet_scenarios() {
  return {scenario_a(), scenario_c(), scenario_d(item_cost::growing), scenario_d(item_cost::falling), scenario_e()};
}

balance_request request_for(const balance_scenario& s, balance strategy, bool has_history) {
  balance_request made;
  made.items = s.items;
  made.strategy = strategy;
  for (std::size_t i = 0; i < s.devices.size(); ++i) {
    balance_device d;
    d.id = device_id{static_cast<int>(i)};
    d.items_per_second = has_history ? s.devices[i].items_per_second : 0;
    d.chunk_seconds = s.devices[i].chunk_seconds;
    d.weight = s.devices[i].items_per_second;
    made.devices.push_back(d);
  }
  return made;
}

/// Each index of 0 … items−1 in exactly one piece.
testing::AssertionResult covers(std::vector<piece> pieces, std::int64_t items) {
  std::sort(pieces.begin(), pieces.end(), [](const piece& a, const piece& b) { return a.first < b.first; });
  std::int64_t at = 0;
  for (const piece& p : pieces) {
    if (p.first != at || p.count < 1) {
      return testing::AssertionFailure() << "a piece " << p.first << "+" << p.count << " where " << at << " is next";
    }
    at += p.count;
  }
  return at == items ? testing::AssertionSuccess() : testing::AssertionFailure() << "ends at " << at << " of " << items;
}

simulated_run run(const balance_scenario& s, const balance_request& request) {
  const auto plan = plan_balance(request);
  EXPECT_TRUE(plan) << to_string(plan.error());
  balancer work{request, *plan};
  simulated_run made = simulate(s, work);
  EXPECT_TRUE(work.is_done());
  EXPECT_TRUE(covers(made.pieces, s.items));
  return made;
}
double efficiency(const balance_scenario& s, balance strategy, bool has_history = true) {
  return run(s, request_for(s, strategy, has_history)).efficiency();
}

// ---- figures

TEST(balance, equal_shares_on_speeds_45_30_25_reach_exactly_75_percent) {
  balance_scenario s = scenario_a();
  s.items = 900'000;
  for (auto& d : s.devices) d.chunk_seconds = 0;
  EXPECT_DOUBLE_EQ(efficiency(s, balance::static_equal), 0.75);
}

TEST(balance, dynamic_with_the_right_history_reaches_99_percent) {
  EXPECT_GE(efficiency(scenario_a(), balance::dynamic), 0.99);
  EXPECT_GE(efficiency(scenario_a(), balance::weighted), 0.99);
}

TEST(balance, guided_with_history_reaches_97_percent_and_95_with_noise) {
  for (const balance_scenario& s : quiet_scenarios()) EXPECT_GE(efficiency(s, balance::guided), 0.97);
  double worst = 1;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    worst = std::min(worst, efficiency(scenario_b(seed), balance::guided));
  }
  EXPECT_GE(worst, 0.95);
}

TEST(balance, guided_without_history_reaches_97_percent_and_93_with_noise) {
  for (const balance_scenario& s : quiet_scenarios()) EXPECT_GE(efficiency(s, balance::guided, false), 0.97);
  double worst = 1;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    worst = std::min(worst, efficiency(scenario_b(seed), balance::guided, false));
  }
  EXPECT_GE(worst, 0.93);
}

TEST(balance, stealing_and_automatic_follow_what_fixed_shares_do_not) {
  for (const bool has_history : {true, false}) {
    for (const balance_scenario& s : quiet_scenarios()) {
      EXPECT_GE(efficiency(s, balance::work_stealing, has_history), 0.95) << has_history;
      EXPECT_GE(efficiency(s, balance::automatic, has_history), 0.97) << has_history;
    }
  }
  EXPECT_LT(efficiency(scenario_c(), balance::dynamic), 0.80);
}

TEST(balance, a_memory_cap_of_30_percent_gives_300_382_318) {
  for (const balance strategy : {balance::memory_aware, balance::dynamic, balance::work_stealing, balance::automatic}) {
    balance_request request = request_for(scenario_a(), strategy, true);
    request.keeps_data = true;
    request.devices[0].cap = 300'000;
    const auto plan = plan_balance(request);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->shares[0].count, 300'000) << to_string(strategy);
    EXPECT_NEAR(static_cast<double>(plan->shares[1].count), 382e3, 500) << to_string(strategy);
    EXPECT_NEAR(static_cast<double>(plan->shares[2].count), 318e3, 500) << to_string(strategy);
    EXPECT_NEAR(plan->predicted_seconds, 1.273, 0.001) << to_string(strategy);
    EXPECT_NEAR(run(scenario_a(), request).seconds, plan->predicted_seconds, 0.001) << to_string(strategy);
  }
}

TEST(balance, a_guided_device_that_keeps_its_data_stops_at_its_cap) {
  balance_request request = request_for(scenario_a(), balance::guided, true);
  request.keeps_data = true;
  request.devices[0].cap = 300'000;
  const simulated_run r = run(scenario_a(), request);
  EXPECT_EQ(r.devices[0].items, 300'000);
  EXPECT_GE(1.273 / r.seconds, 0.99);
}

TEST(balance, a_set_larger_than_all_devices_runs_in_passes_within_the_caps) {
  for (const balance strategy : all_strategies) {
    balance_request request = request_for(scenario_a(), strategy, true);
    request.keeps_data = true;
    for (balance_device& d : request.devices) d.cap = 50'000;
    const simulated_run r = run(scenario_a(), request);
    for (const piece& p : r.pieces) ASSERT_LE(p.count, 50'000) << to_string(strategy);
    if (strategy != balance::static_equal) {
      EXPECT_GE(r.efficiency(), 0.97) << to_string(strategy);
    }
  }
}

TEST(balance, guided_ends_within_the_last_chunk_of_the_ideal) {
  std::mt19937_64 random{11};
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    balance_scenario s;
    s.items = 1'000 + below(5'000'000);
    for (int i = 0; i <= below(8); ++i) s.devices.push_back({1e3 * (1 + below(1'000)), 1e-6 * below(500)});
    const simulated_run r = run(s, request_for(s, balance::guided, true));
    double total = 0;
    for (const auto& d : s.devices) total += d.items_per_second;
    double starts = 0;  // what the devices lose to starts, as a time of all of them
    std::size_t last = 0;
    for (std::size_t i = 0; i < s.devices.size(); ++i) {
      starts +=
          s.devices[i].items_per_second * s.devices[i].chunk_seconds * static_cast<double>(r.devices[i].pieces) / total;
      if (r.devices[i].end_seconds > r.devices[last].end_seconds) last = i;
    }
    const auto chunk =
        std::find_if(r.pieces.rbegin(), r.pieces.rend(), [&](const piece& p) { return p.device.index() == last; });
    const double rate = s.devices[last].items_per_second;
    const double bound = static_cast<double>(s.items) / total +
                         (1 - rate / total) * static_cast<double>(chunk->count) / rate + starts +
                         s.devices[last].chunk_seconds;
    ASSERT_LE(r.seconds, bound * (1 + 1e-9)) << trial;
  }
}

TEST(balance, a_very_slow_device_of_unknown_speed_does_not_hold_up_the_rest) {
  balance_scenario s = scenario_a();
  s.devices[2].items_per_second = 2e3;  // a processor beside two accelerators
  balance_request request = request_for(s, balance::guided, false);
  request.devices[2].nominal_speed = 0.05;  // ten times too much
  EXPECT_GE(run(s, request).efficiency(), 0.95);
}

// ---- what was measured

constexpr const char* names[] = {"gpu-a", "gpu-b", "gpu-c"};

/// Plays a launch and remembers each piece.
simulated_run remembered(const balance_scenario& s, const balance_request& request, weft::launch_history& history) {
  balancer work{request, *plan_balance(request)};
  return simulate(s, {[&](device_id device) { return work.next(device); },
                      [&](const piece& done, double seconds) {
                        work.finished(done, seconds);
                        history.record({"kernel", names[done.device.index()]}, done.count, seconds);
                      }});
}
balance_request informed(const balance_scenario& s, balance strategy, const weft::launch_history& history) {
  balance_request made = request_for(s, strategy, false);
  for (std::size_t i = 0; i < made.devices.size(); ++i) {
    const auto cost = history.cost({"kernel", names[i]});
    if (!cost) continue;
    made.devices[i].items_per_second = 1 / cost->seconds_per_item;
    made.devices[i].chunk_seconds = cost->seconds;
  }
  return made;
}

TEST(balance, the_first_launch_teaches_the_second) {
  for (const balance_scenario& s : {scenario_a(), scenario_e()}) {
    weft::launch_history history;
    const balance_request first = informed(s, balance::dynamic, history);
    EXPECT_EQ(plan_balance(first)->strategy, balance::guided);
    (void)remembered(s, first, history);
    const balance_request second = informed(s, balance::dynamic, history);
    EXPECT_EQ(plan_balance(second)->strategy, balance::dynamic);
    EXPECT_NEAR(second.devices[0].chunk_seconds, s.devices[0].chunk_seconds, 1e-6);
    EXPECT_GE(run(s, second).efficiency(), 0.99);
  }
}

TEST(balance, one_bad_sample_does_not_tilt_the_shares) {
  weft::launch_history history;
  for (int i = 0; i < 2; ++i) {
    (void)remembered(scenario_a(), informed(scenario_a(), balance::static_equal, history), history);
  }
  (void)remembered(scenario_a(), informed(scenario_a(), balance::static_equal, history), history);
  const auto before = plan_balance(informed(scenario_a(), balance::dynamic, history));
  history.record({"kernel", "gpu-b"}, 333'333, 400);  // another program had the device
  const auto after = plan_balance(informed(scenario_a(), balance::dynamic, history));
  EXPECT_NEAR(static_cast<double>(before->shares[1].count), 300e3, 10);
  EXPECT_EQ(after->shares[1].count, before->shares[1].count);
}

// ---- the choice

TEST(balance, automatic_divides_equally_at_first_where_devices_are_alike_and_data_stays) {
  balance_request request;
  request.items = million;
  for (int d = 0; d < 4; ++d) request.devices.push_back({device_id{d}});
  request.alike = true;
  EXPECT_EQ(plan_balance(request).value().strategy, balance::guided) << "data that leaves may come in chunks";
  request.keeps_data = true;
  const balance_plan plan = plan_balance(request).value();
  EXPECT_EQ(plan.strategy, balance::dynamic);
  for (const weft::share& s : plan.shares) EXPECT_EQ(s.count, million / 4);
  EXPECT_NE(weft::explain_balance(request).value().why.find("of one model"), std::string::npos);
  request.alike = false;
  EXPECT_EQ(plan_balance(request).value().strategy, balance::guided) << "chunks find out who is faster";
}

TEST(balance, automatic_uses_one_device_where_starting_others_costs_more) {
  balance_request request;
  for (int i = 0; i < 4; ++i) request.devices.push_back({device_id{i}, 200e6, i == 0 ? 20e-6 : 120e-6});
  const auto devices = [&](std::int64_t items) {
    request.items = items;
    const auto plan = plan_balance(request);
    EXPECT_TRUE(plan);
    return std::count_if(plan->shares.begin(), plan->shares.end(), [](const weft::share& s) { return s.count > 0; });
  };
  EXPECT_EQ(devices(20'000), 1);
  EXPECT_EQ(devices(30'000), 4);
  request.items = 20'000;
  const auto report = weft::explain_balance(request);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->why, "dynamic: one device alone is done first");
  EXPECT_EQ(report->devices[3].why, "left out: starting it takes 120 us, the others are done after 120 us");
  request.items = 100 * million;
  EXPECT_EQ(plan_balance(request)->strategy, balance::guided);
  request.keeps_data = true;
  EXPECT_EQ(plan_balance(request)->strategy, balance::dynamic);
}

TEST(balance, dynamic_without_history_is_guided) {
  EXPECT_EQ(plan_balance(request_for(scenario_a(), balance::dynamic, true))->strategy, balance::dynamic);
  balance_request request = request_for(scenario_a(), balance::dynamic, true);
  request.devices[1].items_per_second = 0;
  EXPECT_EQ(plan_balance(request)->strategy, balance::guided);
  EXPECT_EQ(plan_balance(request)->predicted_seconds, 0);
  request.strategy = balance::automatic;
  EXPECT_EQ(plan_balance(request)->strategy, balance::guided);
}

TEST(balance, explains_each_device) {
  balance_request request = request_for(scenario_a(), balance::weighted, true);
  request.devices[1].weight = 0;
  request.devices[0].cap = 100'000;
  const auto report = weft::explain_balance(request);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->why, "weighted was asked for");
  EXPECT_NE(report->devices[0].why.find("passes"), std::string::npos) << report->devices[0].why;
  EXPECT_EQ(report->devices[1].why, "left out: weight 0");
  EXPECT_EQ(report->devices[2].why, "by its weight");
  EXPECT_DOUBLE_EQ(report->ideal_seconds, 1);
  request.keeps_data = true;
  EXPECT_EQ(weft::explain_balance(request)->devices[0].why, "held to 100,000 items by its memory");
  EXPECT_TRUE(weft::explain_balance(request)->devices[0].is_capped);
  EXPECT_FALSE(weft::explain_balance(request)->devices[2].is_capped);
  EXPECT_EQ(weft::explain_balance(request)->asked, balance::weighted);

  request = request_for(scenario_a(), balance::dynamic, true);
  request.granularity = 64;
  request.devices[0].cap = 0;
  request.devices[1].cap = 63;
  const auto full = weft::explain_balance(request);
  EXPECT_EQ(full->devices[0].why, "left out: its memory is full");
  EXPECT_EQ(full->devices[1].why, "left out: its memory holds 63 items, less than the least piece of 64");
  EXPECT_EQ(full->devices[2].why, "by its measured speed of 250,000 items/s");
  request.strategy = balance::automatic;
  EXPECT_EQ(weft::explain_balance(request)->why, "dynamic: one device is done first, of those with room");
  request.devices[2].items_per_second = 0;
  EXPECT_EQ(weft::explain_balance(request)->why, "guided: the speed of gpu2 is not known yet, and chunks find it out");
  for (auto& d : request.devices) d.items_per_second = 0;
  EXPECT_EQ(weft::explain_balance(request)->why, "guided: no device's speed is known yet, and chunks find it out");
  request.strategy = balance::dynamic;
  EXPECT_EQ(weft::explain_balance(request)->why,
            "guided for dynamic: no device's speed is known yet, and chunks find it out");
}

TEST(balance, what_cannot_be_is_an_error_that_names_the_device) {
  const auto refused = [](auto change) {
    balance_request request = request_for(scenario_a(), balance::guided, true);
    change(request);
    const auto plan = plan_balance(request);
    EXPECT_FALSE(plan);
    return plan ? std::string{} : to_string(plan.error());
  };
  EXPECT_NE(refused([](auto& r) { r.devices[1].items_per_second = -1; }).find("gpu1"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.devices[2].chunk_seconds = std::nan(""); }).find("gpu2"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.devices[0].nominal_speed = 0; }).find("gpu0"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.guided_divisor = 0.5; }).find("divisor"), std::string::npos);
  EXPECT_NE(refused([](auto& r) { r.devices.clear(); }).find("no device"), std::string::npos);
  EXPECT_NE(refused([](auto& r) {
              r.granularity = 8;
              for (auto& d : r.devices) d.cap = 7;
            }).find("gpu0 holds 7"),
            std::string::npos);
  for (const balance strategy : all_strategies) {
    balance_request request = request_for(scenario_a(), strategy, true);
    for (auto& d : request.devices) d.cap = 0;
    EXPECT_EQ(plan_balance(request).error().code, errc::out_of_memory) << to_string(strategy);
  }
}

// ---- the balancer

TEST(balancer, gives_every_index_once_for_ten_thousand_launches_with_failures) {
  std::mt19937_64 random{20'240'612};
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  int ran = 0;
  int kept = 0;
  for (int trial = 0; trial < 10'000; ++trial) {
    const auto p = static_cast<std::size_t>(1 + below(8));
    balance_request request;
    request.strategy = all_strategies[static_cast<std::size_t>(trial) % std::size(all_strategies)];
    request.items = trial % 11 == 0 ? (std::int64_t{1} << 62) - below(5) : below(std::int64_t{1} << below(24));
    request.granularity = below(3) == 0 ? 1 + below(100) : 1;
    request.keeps_data = below(2) == 0;
    const std::int64_t least_cap = request.items / 64 + request.granularity;  // keeps the number of pieces in bounds
    for (std::size_t i = 0; i < p; ++i) {
      balance_device d;
      d.id = device_id{static_cast<int>(i)};
      d.items_per_second = below(3) == 0 ? 0 : static_cast<double>(1 + below(1'000));
      d.chunk_seconds = below(2) == 0 ? 0 : 0.01 * static_cast<double>(below(10));
      d.nominal_speed = static_cast<double>(1 + below(10));
      d.weight = static_cast<double>(below(4));
      if (below(2) == 0) d.cap = below(8) == 0 ? below(request.granularity) : least_cap + below(request.items / 2 + 1);
      request.devices.push_back(d);
    }
    const auto plan = plan_balance(request);
    if (!plan) continue;
    ++ran;
    balancer work{request, *plan};
    const bool may_fail = below(2) == 0;
    const bool cap_is_total = request.keeps_data && !plan->in_passes && !may_fail;
    kept += cap_is_total ? 1 : 0;
    const std::int64_t size = std::max<std::int64_t>(1, std::min(request.items, request.granularity));
    std::vector<std::optional<piece>> busy(p);
    std::vector<std::int64_t> held(p, 0);
    std::vector<bool> lost(p, false);
    std::vector<piece> done;
    int failures = 0;
    for (std::int64_t turns = 0; !work.is_done(); ++turns) {
      ASSERT_LT(turns, 300'000) << trial << " " << to_string(plan->strategy);
      if (!work.has_taker() && work.unassigned() > 0) break;
      const auto i = static_cast<std::size_t>(below(static_cast<std::int64_t>(p)));
      const device_id id{static_cast<int>(i)};
      if (!busy[i]) {
        busy[i] = work.next(id);
        if (!busy[i]) continue;
        ASSERT_FALSE(lost[i]);
        ASSERT_EQ(busy[i]->device, id);
        ASSERT_GE(busy[i]->count, 1) << trial;
        ASSERT_LE(busy[i]->count, request.devices[i].cap) << trial;
        ASSERT_EQ(busy[i]->first % size, 0) << trial;
        const std::int64_t end = busy[i]->first + busy[i]->count;
        ASSERT_TRUE(end == request.items || end % size == 0) << trial;
        if (cap_is_total) {
          held[i] += busy[i]->count;
          ASSERT_LE(held[i], request.devices[i].cap) << trial;
        }
        continue;
      }
      const std::int64_t fate = may_fail && failures < 6 ? below(12) : 11;
      if (fate == 0) {
        ++failures;
        lost[i] = true;
        work.drop(id);
        work.give_back(*busy[i]);
      } else if (fate <= 2) {
        ++failures;
        work.give_back(*busy[i]);
        const std::int64_t cap = std::max({busy[i]->count / 2, size, request.items / 2'048});  // few pieces
        request.devices[i].cap = std::min(request.devices[i].cap, cap);
        work.limit(id, cap);
      } else {
        done.push_back(*busy[i]);
        work.finished(*busy[i], below(10) == 0 ? 0 : static_cast<double>(1 + below(1'000)) / 100);
      }
      busy[i].reset();
    }
    if (!work.is_done()) {  // all who could are lost: what is left is known to the last item
      for (std::size_t i = 0; i < p; ++i) {
        const balance_device& d = request.devices[i];
        ASSERT_TRUE(lost[i] || d.cap < size || (request.strategy == balance::weighted && d.weight <= 0)) << trial;
      }
      std::int64_t items = work.unassigned();
      for (const piece& d : done) items += d.count;
      for (const auto& b : busy) items += b ? b->count : 0;
      ASSERT_EQ(items, request.items) << trial;
      continue;
    }
    ASSERT_TRUE(covers(done, request.items)) << trial << " " << to_string(plan->strategy);
    ASSERT_EQ(work.unassigned(), 0) << trial;
  }
  EXPECT_GT(ran, 9'000);
  EXPECT_GT(kept, 500);
}

TEST(balancer, a_lost_device_leaves_its_share_to_the_others) {
  for (const balance strategy : all_strategies) {
    const balance_request request = request_for(scenario_a(), strategy, true);
    balancer work{request, *plan_balance(request)};
    std::vector<piece> done;
    const auto first = work.next(device_id{0});
    ASSERT_TRUE(first);
    work.drop(device_id{0});
    work.give_back(*first);
    EXPECT_FALSE(work.next(device_id{0}));
    while (!work.is_done()) {
      for (const int i : {1, 2}) {
        const auto p = work.next(device_id{i});
        if (!p) continue;
        done.push_back(*p);
        work.finished(*p, static_cast<double>(p->count) / speeds[static_cast<std::size_t>(i)]);
      }
    }
    EXPECT_TRUE(covers(done, million)) << to_string(strategy);
  }
}

TEST(balancer, devices_left_out_by_cost_step_in_when_all_others_are_lost) {
  balance_request request;
  request.items = 1'000;
  for (int i = 0; i < 3; ++i) request.devices.push_back({device_id{i}, 1e6, i == 0 ? 0 : 1.0});
  balancer work{request, *plan_balance(request)};
  EXPECT_FALSE(work.next(device_id{1}));
  const auto p = work.next(device_id{0});
  ASSERT_TRUE(p);
  work.drop(device_id{0});
  work.give_back(*p);
  EXPECT_TRUE(work.next(device_id{1}));
}

TEST(balancer, a_device_found_to_hold_less_leaves_the_rest_to_the_others) {
  balance_request request = request_for(scenario_a(), balance::dynamic, true);
  request.keeps_data = true;
  balancer work{request, *plan_balance(request)};
  const auto p = work.next(device_id{0});
  ASSERT_EQ(p->count, 450'000);
  work.give_back(*p);
  work.limit(device_id{0}, 225'000);
  std::int64_t first = 0;
  std::vector<piece> done;
  while (!work.is_done()) {
    for (int i = 0; i < 3; ++i) {
      const auto next = work.next(device_id{i});
      if (!next) continue;
      if (i == 0) first += next->count;
      done.push_back(*next);
      work.finished(*next, static_cast<double>(next->count) / speeds[static_cast<std::size_t>(i)]);
    }
  }
  EXPECT_TRUE(covers(done, million));
  EXPECT_LE(first, 225'000);
  EXPECT_GT(first, 100'000);
}

TEST(balancer, a_device_that_holds_nothing_any_more_or_is_lost_while_idle_leaves_all_to_the_other) {
  for (const bool keeps_data : {true, false}) {
    for (const bool is_lost : {true, false}) {
      balance_request request;
      request.items = 1'000;
      request.strategy = balance::static_equal;
      request.keeps_data = keeps_data;
      for (int i = 0; i < 2; ++i) request.devices.push_back({device_id{i}, 1, 0, 1, 1, 500});
      balancer work{request, *plan_balance(request)};
      is_lost ? work.drop(device_id{1}) : work.limit(device_id{1}, 0);
      std::vector<piece> done;
      while (const auto next = work.next(device_id{0})) {
        EXPECT_LE(next->count, 500);
        done.push_back(*next);
        work.finished(*next, 1);
      }
      EXPECT_TRUE(covers(done, 1'000)) << keeps_data << is_lost;
    }
  }
}

TEST(balancer, believes_a_speed_far_off_only_the_second_time) {
  const balance_request request = request_for(scenario_a(), balance::guided, true);
  balancer work{request, *plan_balance(request)};
  const auto run_at = [&](double speed) {
    const auto p = work.next(device_id{0});
    work.finished(*p, 20e-6 + static_cast<double>(p->count) / speed);
  };
  run_at(4'500);  // a hundredth
  EXPECT_NEAR(work.speed(device_id{0}), 450e3, 1);
  run_at(4'500);
  EXPECT_NEAR(work.speed(device_id{0}), 4'500, 1);
  run_at(9'000);
  EXPECT_NEAR(work.speed(device_id{0}), 6'750, 1);  // half of the difference
}

TEST(balancer, keeps_the_speed_of_a_device_whose_time_was_not_measured) {
  const balance_request request = request_for(scenario_a(), balance::guided, true);
  balancer work{request, *plan_balance(request)};
  for (const double seconds : {0.0, 0.0, -1.0, -1.0, std::nan(""), double{INFINITY}, double{INFINITY}}) {
    work.finished(*work.next(device_id{0}), seconds);
    EXPECT_EQ(work.speed(device_id{0}), 450e3) << seconds;
  }
}

TEST(balancer, chunks_last_at_least_twenty_starts_and_decrease) {
  balance_request request = request_for(scenario_e(), balance::guided, true);
  balancer work{request, *plan_balance(request)};
  std::vector<std::int64_t> sizes;
  while (const auto p = work.next(device_id{0})) sizes.push_back(p->count);
  EXPECT_EQ(sizes.front(), 225'000);  // half of 45 %
  EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) EXPECT_GE(sizes[i], 18'000);  // 20 × 2 ms × 450,000 / s
}

TEST(balancer, hands_out_no_piece_above_a_limit_and_all_items) {
  for (const balance strategy : {balance::dynamic, balance::guided, balance::work_stealing}) {
    balance_request request = request_for(scenario_a(), strategy, true);
    request.granularity = 64;
    balancer work{request, *plan_balance(request)};
    work.limit_pieces(10'000);
    std::vector<piece> done;
    for (int i = 0; !work.is_done(); i = (i + 1) % 3) {
      const auto next = work.next(device_id{i});
      if (!next) continue;
      EXPECT_LE(next->count, 10'000);
      done.push_back(*next);
      work.finished(*next, static_cast<double>(next->count) / speeds[static_cast<std::size_t>(i)]);
    }
    EXPECT_TRUE(covers(done, million)) << to_string(strategy);
  }
}

TEST(balancer, steals_what_makes_both_end_together_and_nothing_that_does_not_pay) {
  EXPECT_EQ(weft::items_to_steal(100, 1, 1, 0, 0), 50);
  EXPECT_EQ(weft::items_to_steal(100, 1, 3, 0, 0), 75);
  EXPECT_EQ(weft::items_to_steal(100, 1, 1, 20, 0), 40);  // 60 s each
  EXPECT_EQ(weft::items_to_steal(100, 1, 1, 0, 2), 25);   // 75 s each
  EXPECT_EQ(weft::items_to_steal(100, 1, 1, 100, 0), 0);  // the start alone takes as long
  EXPECT_EQ(weft::items_to_steal(1, 1, 1, 0, 0), 0);
  EXPECT_EQ(weft::items_to_steal(0, 1, 1, 0, 0), 0);
  EXPECT_EQ(weft::items_to_steal(1, 0, 1, 0, 0), 1);  // from one that stands still, to the last
}

// ---- the simulation

TEST(balance_simulation, is_the_same_run_to_the_last_bit) {
  for (const balance strategy : all_strategies) {
    const balance_scenario s = scenario_b(42);
    const simulated_run one = run(s, request_for(s, strategy, false));
    const simulated_run two = run(s, request_for(s, strategy, false));
    EXPECT_EQ(one.trace_hash, two.trace_hash);
    EXPECT_EQ(one.seconds, two.seconds);
    EXPECT_NE(one.trace_hash, run(scenario_b(43), request_for(s, strategy, false)).trace_hash);
  }
}

TEST(balance_simulation, has_the_times_of_the_closed_form) {
  // One device alone: starts, then a change of speed in the middle of a piece.
  balance_scenario s;
  s.items = 1'000;
  s.devices = {{100, 0.5, 5.5, 0.5}};
  const simulated_run r = run(s, request_for(s, balance::static_equal, true));
  EXPECT_DOUBLE_EQ(r.seconds, 5.5 + 500 / 50.0);
  EXPECT_DOUBLE_EQ(r.ideal_seconds, 5.5 + 450 / 50.0);
  EXPECT_EQ(r.devices[0].pieces, 1);
  EXPECT_DOUBLE_EQ(r.devices[0].busy_seconds, r.seconds);
  // Costs that grow or fall add up to the same.
  for (const item_cost cost : {item_cost::growing, item_cost::falling}) {
    balance_scenario sloped;
    sloped.items = 1'000;
    sloped.devices = {{100, 0}, {100, 0}};
    sloped.cost = cost;
    const simulated_run halves = run(sloped, request_for(sloped, balance::static_equal, true));
    EXPECT_DOUBLE_EQ(halves.seconds, 7.5);  // a quarter and three quarters of the work
    EXPECT_DOUBLE_EQ(halves.ideal_seconds, 5);
  }
}

TEST(balance_simulation, asks_its_devices_only_and_counts_when_each_is_busy) {
  balance_scenario s;
  s.items = 300;
  s.devices = {{100, 0.5}, {100, 0}};
  const std::vector<piece> pieces{{device_id{0}, 0, 100}, {device_id{0}, 100, 100}, {device_id{1}, 200, 100}};
  auto at = pieces.begin();
  const auto next_in_turn = [&](device_id device) -> std::optional<piece> {
    EXPECT_LT(device.index(), s.devices.size());
    if (at == pieces.end() || at->device != device) return std::nullopt;
    return *at++;
  };
  const simulated_run r = simulate(s, {next_in_turn, [](const piece&, double) {}});
  EXPECT_DOUBLE_EQ(r.devices[0].busy_seconds, 3);  // two pieces, one after the other
  EXPECT_DOUBLE_EQ(r.devices[1].busy_seconds, 1);  // from 1.5 s on
  EXPECT_DOUBLE_EQ(r.devices[1].end_seconds, 2.5);
}

TEST(balance_simulation, noise_has_the_deviation_that_was_asked_for) {
  double sum = 0;
  double squares = 0;
  for (std::uint64_t seed = 0; seed < 1'000; ++seed) {
    balance_scenario s;
    s.items = 100;
    s.devices = {{100, 0}};
    s.noise = 0.05;
    s.seed = seed;
    const double seconds = run(s, request_for(s, balance::static_equal, true)).seconds;
    sum += seconds;
    squares += seconds * seconds;
  }
  const double mean = sum / 1'000;
  EXPECT_NEAR(mean, 1, 0.006);
  EXPECT_NEAR(std::sqrt(squares / 1'000 - mean * mean), 0.05, 0.005);
}

}  // namespace balance_test
