// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/launch_report.hpp"

#include "exec/balance/balance_simulation.hpp"
#include "exec/balance/balancer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

namespace launch_report_test {

using std::chrono::duration;
using std::chrono::nanoseconds;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""ns;
using std::chrono_literals::operator""us;
using weft::balance;
using weft::balance_request;
using weft::balance_scenario;
using weft::device_account;
using weft::device_id;
using weft::explain;
using weft::launch_loss;
using weft::launch_record;
using weft::launch_report;
using weft::piece;
using weft::piece_record;

double seconds(nanoseconds time) { return duration<double>(time).count(); }
nanoseconds rounded(double s) { return nanoseconds{std::llround(s * 1e9)}; }
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
double sum_of_losses(const launch_report& r) {
  return r.imbalance_seconds + r.transfer_seconds + r.sync_seconds + r.idle_seconds + r.failure_seconds;
}

/// A plan of equal shares, made by `ran`.
launch_record record_of(balance ran, int devices, std::int64_t items, double items_per_second = 0) {
  balance_request request;
  request.items = items;
  request.strategy = balance::static_equal;
  for (int i = 0; i < devices; ++i) request.devices.push_back({device_id{i}, items_per_second});
  launch_record made;
  made.kernel = "saxpy";
  made.items = items;
  made.plan = *weft::explain_balance(request);
  made.plan.asked = made.plan.plan.strategy = ran;
  return made;
}

piece_record run_of(int device, std::int64_t count, nanoseconds begin, nanoseconds end) {
  piece_record made;
  made.what = {device_id{device}, 0, count};
  made.submitted = made.run_begin = begin;
  made.run_end = end;
  return made;
}

/// A launch of a scenario, played by its plan and a balancer.
launch_record played(const balance_scenario& scenario, balance strategy, std::int64_t first_cap = weft::no_cap) {
  balance_request request;
  request.items = scenario.items;
  request.strategy = strategy;
  request.keeps_data = first_cap != weft::no_cap;
  for (std::size_t i = 0; i < scenario.devices.size(); ++i) {
    const weft::simulated_device& d = scenario.devices[i];
    request.devices.push_back({device_id{static_cast<int>(i)}, d.items_per_second, d.chunk_seconds});
  }
  request.devices[0].cap = first_cap;
  launch_record made;
  made.kernel = "saxpy";
  made.items = scenario.items;
  made.simulated = true;
  made.plan = *weft::explain_balance(request);
  weft::balancer work{request, made.plan.plan};
  std::vector<double> now(scenario.devices.size());
  const auto run = simulate(
      scenario, {[&](device_id device) { return work.next(device); },
                 [&](const piece& done, double took) {
                   double& at = now[done.device.index()];
                   made.pieces.push_back(run_of(done.device.value(), done.count, rounded(at), rounded(at + took)));
                   at += took;
                   work.finished(done, took);
                 }});
  made.ended = rounded(run.seconds);
  return made;
}

balance_scenario speeds_45_30_25() {
  balance_scenario made;
  made.items = 900'000;
  for (const double speed : {450e3, 300e3, 250e3}) made.devices.push_back({speed, 0});
  return made;
}

// ---- built cases: each is named rightly

TEST(launch_report, equal_shares_on_speeds_45_30_25_are_an_imbalance_of_a_quarter) {
  const launch_report r = explain(played(speeds_45_30_25(), balance::static_equal));
  EXPECT_NEAR(r.efficiency(), 0.75, 1e-8);
  EXPECT_NEAR(r.ideal_seconds, 0.9, 1e-8);
  EXPECT_NEAR(r.imbalance_seconds, 0.3, 1e-8);
  EXPECT_NEAR(r.idle_seconds + r.sync_seconds + r.transfer_seconds, 0, 1e-8);
  EXPECT_EQ(r.dominant, launch_loss::imbalance);
  EXPECT_TRUE(holds(r.advice, "balance::guided")) << r.advice;
  EXPECT_TRUE(holds(r.advice, "balance::dynamic")) << r.advice;
  EXPECT_TRUE(holds(r.advice, "gpu0 was done 533 ms before gpu2")) << r.advice;
  // What was expected, what happened and why.
  EXPECT_EQ(r.strategy, balance::static_equal);
  EXPECT_EQ(r.why, "static_equal was asked for");
  EXPECT_NEAR(r.predicted_seconds, 1.2, 1e-9);
  EXPECT_EQ(r.devices[1].planned_items, 300'000);
  EXPECT_EQ(r.devices[1].items, 300'000);
  EXPECT_NEAR(r.devices[1].predicted_seconds, 1, 1e-9);
  EXPECT_NEAR(seconds(r.devices[1].took()), 1, 1e-8);
  EXPECT_EQ(r.devices[1].why, "the same as every other");
}

TEST(launch_report, a_good_launch_has_nothing_to_advise) {
  const launch_report r = explain(played(speeds_45_30_25(), balance::dynamic));
  EXPECT_GT(r.efficiency(), 0.99);
  EXPECT_EQ(r.dominant, launch_loss::none);
  EXPECT_EQ(r.advice, "");
}

TEST(launch_report, advice_against_imbalance_is_never_the_strategy_that_ran) {
  const auto advice = [](balance ran) {
    launch_record record = record_of(ran, 2, 200);
    record.pieces = {run_of(0, 100, 0ms, 25ms), run_of(1, 100, 0ms, 75ms)};
    record.ended = 75ms;
    const launch_report r = explain(record);
    EXPECT_EQ(r.dominant, launch_loss::imbalance);
    EXPECT_FALSE(holds(r.advice, "balance::" + std::string{to_string(ran)})) << r.advice;
    return r.advice;
  };
  EXPECT_TRUE(holds(advice(balance::dynamic), "balance::guided"));
  EXPECT_TRUE(holds(advice(balance::memory_aware), "balance::guided"));
  for (const balance ran : {balance::guided, balance::work_stealing}) {
    EXPECT_TRUE(holds(advice(ran), ".granularity")) << to_string(ran);
    EXPECT_TRUE(holds(advice(ran), "balance::weighted")) << to_string(ran);
  }
  EXPECT_TRUE(holds(advice(balance::weighted), ".weights = {75, 25}"));
}

TEST(launch_report, an_imbalance_that_a_cap_made_is_told_by_the_cap) {
  balance_scenario s = speeds_45_30_25();
  s.items = 1'000'000;
  const launch_report r = explain(played(s, balance::dynamic, 300'000));
  EXPECT_NEAR(r.seconds, 1.273, 0.001);
  EXPECT_EQ(r.dominant, launch_loss::imbalance);
  EXPECT_TRUE(holds(r.advice, ".memory_limits")) << r.advice;
  EXPECT_FALSE(holds(r.advice, "guided")) << r.advice;
}

/// Host memory over one slow link that all devices share: in one after the other, out one after the other.
launch_record over_a_slow_link(int devices) {
  launch_record record = record_of(balance::static_equal, devices, 1'000 * devices);
  record.holds_borrowed = true;
  for (int i = 0; i < devices; ++i) {
    piece_record p = run_of(i, 1'000, 10ms * (i + 1), 10ms * (i + 1) + 2ms);
    p.submitted = 0ms;
    p.in_begin = 10ms * i;
    p.in_end = p.run_begin;
    p.out_begin = 10ms * (devices + i);
    if (p.out_begin < p.run_end) p.out_begin = p.run_end;
    p.out_end = p.out_begin + 10ms;
    p.bytes_in = p.bytes_out = std::uint64_t{64} << 20;
    record.pieces.push_back(p);
    record.ended = std::max(record.ended, p.out_end);
  }
  return record;
}

TEST(launch_report, host_memory_over_a_slow_link_is_transfer_even_for_those_who_queue_for_it) {
  const launch_report r = explain(over_a_slow_link(4));
  EXPECT_EQ(r.dominant, launch_loss::transfer);
  EXPECT_TRUE(holds(r.advice, "array<T>")) << r.advice;
  EXPECT_TRUE(holds(r.advice, "512 MiB moved")) << r.advice;
  EXPECT_TRUE(holds(r.advice, ".devices.at_most")) << r.advice;
  EXPECT_TRUE(holds(r.advice, "balance::guided")) << r.advice;
  // gpu3 queued for 30 ms, then moved for 10: no time was idle for it.
  EXPECT_EQ(r.devices[3].transfer, 80ms - 2ms);
  EXPECT_EQ(r.devices[3].idle_before, 0ms);
  EXPECT_EQ(r.devices[0].idle_after, 30ms);
  EXPECT_EQ(r.devices[0].bytes_in, std::uint64_t{64} << 20);
}

TEST(launch_report, advice_against_transfer_fits_the_launch) {
  launch_record record = over_a_slow_link(1);
  EXPECT_FALSE(holds(explain(record).advice, "at_most"));  // fewer than one device there is not
  record.plan.plan.strategy = balance::guided;
  EXPECT_FALSE(holds(explain(record).advice, "guided"));
  record = over_a_slow_link(2);
  record.holds_borrowed = false;
  EXPECT_EQ(explain(record).dominant, launch_loss::transfer);
  EXPECT_TRUE(holds(explain(record).advice, ".keep_on_device")) << explain(record).advice;
  EXPECT_TRUE(holds(explain(record).advice, ".peer_to_peer")) << explain(record).advice;
  EXPECT_FALSE(holds(explain(record).advice, "array<T>")) << explain(record).advice;
  record.plan.plan.in_passes = true;
  EXPECT_TRUE(holds(explain(record).advice, ".memory_limits")) << explain(record).advice;
}

TEST(launch_report, a_transfer_behind_computation_costs_nothing) {
  launch_record record = record_of(balance::guided, 1, 300);
  for (int i = 0; i < 3; ++i) {
    piece_record p = run_of(0, 100, 10ms * (i + 1), 10ms * (i + 2));
    p.submitted = 0ms;
    p.in_begin = 10ms * i;
    p.in_end = p.in_begin + 10ms;
    record.pieces.push_back(p);
  }
  record.ended = 40ms;
  const launch_report r = explain(record);
  EXPECT_EQ(r.devices[0].transfer, 10ms);  // of the first piece
  EXPECT_EQ(r.devices[0].compute, 30ms);
  EXPECT_NEAR(r.transfer_seconds, 0.01, 1e-12);
}

TEST(launch_report, ten_thousand_tiny_pieces_are_synchronisation) {
  for (const balance ran : {balance::guided, balance::static_equal}) {
    launch_record record = record_of(ran, 4, 1'000'000);
    for (int i = 0; i < 10'000; ++i) {
      const nanoseconds begin = 20us * (i / 4);
      record.pieces.push_back(run_of(i % 4, 100, begin, begin + 10us));
    }
    record.ended = 50ms;
    const launch_report r = explain(record);
    EXPECT_EQ(r.dominant, launch_loss::synchronisation);
    EXPECT_NEAR(r.efficiency(), 0.5, 1e-9);
    EXPECT_NEAR(r.sync_seconds, 0.025, 0.00002);
    EXPECT_TRUE(holds(r.advice, "10,000 pieces of 100 items")) << r.advice;
    EXPECT_TRUE(holds(r.advice, "larger `.granularity`")) << r.advice;
    EXPECT_EQ(holds(r.advice, "balance::dynamic"), ran == balance::guided) << r.advice;
  }
}

TEST(launch_report, few_pieces_that_waited_are_not_told_to_be_fewer) {
  launch_record record = record_of(balance::static_equal, 2, 400);
  for (int i = 0; i < 4; ++i) record.pieces.push_back(run_of(i % 2, 100, 20ms * (i / 2), 20ms * (i / 2) + 10ms));
  record.ended = 30ms;
  const launch_report r = explain(record);
  EXPECT_EQ(r.dominant, launch_loss::synchronisation);
  EXPECT_FALSE(holds(r.advice, "granularity")) << r.advice;
}

TEST(launch_report, devices_that_begin_late_are_idle_and_fewer_of_them_advised) {
  launch_record record = record_of(balance::guided, 4, 160);
  record.pieces.push_back(run_of(0, 100, 0us, 100us));
  for (int i = 1; i < 4; ++i) record.pieces.push_back(run_of(i, 10, 90us, 100us));
  record.ended = 100us;
  launch_report r = explain(record);
  EXPECT_EQ(r.dominant, launch_loss::idle);
  EXPECT_EQ(r.devices[1].idle_before, 90us);
  EXPECT_TRUE(holds(r.advice, "`.devices.at_most = 1`")) << r.advice;
  EXPECT_TRUE(holds(r.advice, "balance::automatic")) << r.advice;
  EXPECT_TRUE(holds(r.advice, "gpu1 began 90.0 us after the launch")) << r.advice;
  record.plan.asked = balance::automatic;
  EXPECT_FALSE(holds(explain(record).advice, "automatic")) << explain(record).advice;
}

TEST(launch_report, a_device_that_did_nothing_is_advised_away) {
  launch_record record = record_of(balance::static_equal, 3, 300, 1.5e6);
  record.pieces = {run_of(0, 150, 0us, 100us), run_of(1, 150, 0us, 100us)};
  record.ended = 100us;
  const launch_report r = explain(record);
  EXPECT_EQ(r.dominant, launch_loss::idle);
  EXPECT_TRUE(holds(r.advice, "gpu2 did nothing of the launch")) << r.advice;
  EXPECT_TRUE(holds(r.advice, "`.devices.at_most = 2`")) << r.advice;
}

TEST(launch_report, time_in_which_nobody_worked_is_idle_and_no_imbalance) {
  launch_record record = record_of(balance::static_equal, 2, 200);
  record.submitted = 1ms;
  record.pieces = {run_of(0, 100, 31ms, 41ms), run_of(1, 100, 31ms, 41ms)};
  record.ended = 51ms;
  const launch_report r = explain(record);
  EXPECT_NEAR(r.idle_seconds, 0.04, 1e-12);
  EXPECT_EQ(r.imbalance_seconds, 0);
  EXPECT_EQ(r.dominant, launch_loss::idle);
  EXPECT_TRUE(holds(r.advice, "nothing ran for 40.0 ms")) << r.advice;
  record = record_of(balance::dynamic, 1, 100);
  record.pieces = {run_of(0, 100, 31ms, 41ms)};
  record.ended = 41ms;
  EXPECT_TRUE(holds(explain(record).advice, "more items in one launch")) << explain(record).advice;
  EXPECT_FALSE(holds(explain(record).advice, "at_most")) << explain(record).advice;
}

TEST(launch_report, what_failed_is_no_work_and_a_lost_device_no_imbalance) {
  launch_record record = record_of(balance::guided, 2, 300);
  record.pieces = {run_of(0, 100, 0ms, 10ms), run_of(1, 100, 0ms, 10ms), run_of(1, 100, 10ms, 15ms),
                   run_of(0, 100, 15ms, 25ms)};
  record.pieces[2].failed = true;
  record.ended = 25ms;
  record.notes = {"gpu1 was lost; its 100 items ran on gpu0"};
  const launch_report r = explain(record);
  EXPECT_TRUE(r.devices[1].is_lost);
  EXPECT_EQ(r.devices[1].items, 100);
  EXPECT_EQ(r.devices[1].failed_pieces, 1);
  EXPECT_EQ(r.devices[1].failed, 5ms);
  EXPECT_EQ(r.imbalance_seconds, 0);
  EXPECT_NEAR(r.failure_seconds, 0.0075, 1e-12);  // half of 5 ms in vain and 10 ms after
  EXPECT_EQ(r.dominant, launch_loss::failure);
  EXPECT_TRUE(holds(r.advice, "gpu1")) << r.advice;
  EXPECT_TRUE(holds(to_string(r), "note: gpu1 was lost")) << to_string(r);
  // One that came back after a failure, with smaller pieces, is not lost.
  record.pieces.push_back(run_of(1, 50, 20ms, 25ms));
  EXPECT_FALSE(explain(record).devices[1].is_lost);
}

TEST(launch_report, who_was_planned_in_counts_with_the_speed_expected_of_it_and_who_was_left_out_does_not) {
  launch_record record = played(speeds_45_30_25(), balance::dynamic);
  const double all = explain(record).ideal_seconds;
  std::erase_if(record.pieces, [](const piece_record& p) { return p.what.device == device_id{2}; });
  launch_report r = explain(record);
  EXPECT_NEAR(r.ideal_seconds, all * 0.75, 1e-6);  // three quarters of the items by all of the speeds
  EXPECT_NEAR(r.idle_seconds, r.seconds * 0.25, 1e-6);
  record.plan.devices[2].items = 0;
  r = explain(record);
  EXPECT_NEAR(r.efficiency(), 1, 1e-6);
  EXPECT_EQ(r.devices[2].idle_before, record.ended);
}

TEST(launch_report, a_device_that_took_over_without_a_plan_is_in_the_report) {
  launch_record record = record_of(balance::work_stealing, 1, 200);
  record.pieces = {run_of(0, 100, 0ms, 10ms), run_of(7, 100, 0ms, 10ms)};
  record.ended = 10ms;
  const launch_report r = explain(record);
  ASSERT_EQ(r.devices.size(), 2U);
  EXPECT_EQ(r.devices[1].device, device_id{7});
  EXPECT_EQ(r.devices[1].items, 100);
  EXPECT_NE(r.devices[1].why, "");
}

TEST(launch_report, an_empty_record_loses_nothing_but_idle_time) {
  const launch_report r = explain({});
  EXPECT_EQ(r.efficiency(), 1);
  EXPECT_EQ(r.dominant, launch_loss::none);
  EXPECT_FALSE(to_string(r).empty());
  launch_record record;
  record.ended = 5ms;
  EXPECT_EQ(explain(record).dominant, launch_loss::idle);
  EXPECT_NEAR(explain(record).idle_seconds, 0.005, 1e-12);
}

// ---- any record

/// A record of small whole numbers: times before, within and after the launch, in any order.
launch_record any_record(std::mt19937_64& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  const auto time = [&] { return nanoseconds{below(60) - 10}; };
  launch_record made = record_of(static_cast<balance>(below(7)), 1 + below(4), 1'000);
  for (auto& d : made.plan.devices) {
    if (below(3) == 0) d.items = 0;
    if (below(2) == 0) d.predicted_seconds = 1e-9 * below(50);
    d.is_capped = below(4) == 0;
  }
  made.simulated = true;
  made.holds_borrowed = below(2) == 0;
  made.plan.plan.in_passes = below(4) == 0;
  made.submitted = nanoseconds{below(10)};
  made.ended = below(20) == 0 ? made.submitted - nanoseconds{below(5)} : nanoseconds{10 + below(40)};
  const bool is_orderly = below(2) == 0;
  for (int i = below(12); i > 0; --i) {
    piece_record p;
    p.what = {device_id{below(6)}, 0, below(100)};
    std::vector<nanoseconds> times;
    for (int t = 0; t < 7; ++t) times.push_back(time());
    if (is_orderly) std::sort(times.begin(), times.end());
    p.submitted = times[0];
    p.in_begin = times[1];
    p.in_end = below(3) == 0 ? times[1] : times[2];
    p.run_begin = times[3];
    p.run_end = times[4];
    p.out_begin = times[5];
    p.out_end = below(3) == 0 ? times[5] : times[6];
    p.bytes_in = static_cast<std::uint64_t>(below(1'000));
    p.failed = below(6) == 0;
    made.pieces.push_back(p);
  }
  return made;
}

/// The same accounts, instant by instant.
device_account recounted(const launch_record& record, device_id device) {
  const auto within = [](nanoseconds t, nanoseconds begin, nanoseconds end) { return begin <= t && t < end; };
  const auto moves = [&](const piece_record& p, nanoseconds t) {
    return within(t, p.in_begin, p.in_end) || within(t, p.out_begin, p.out_end);
  };
  device_account made;
  nanoseconds waited{0};
  bool has_begun = false;
  for (nanoseconds t = record.submitted; t < record.ended; ++t) {
    bool runs = false;
    bool runs_well = false;
    bool is_moving = false;
    bool is_queued = false;
    bool any_moves = false;
    for (const piece_record& p : record.pieces) {
      any_moves = any_moves || moves(p, t);
      if (p.what.device != device) continue;
      runs = runs || within(t, p.run_begin, p.run_end);
      runs_well = runs_well || (within(t, p.run_begin, p.run_end) && !p.failed);
      is_moving = is_moving || moves(p, t);
      is_queued = is_queued || (p.in_begin < p.in_end && within(t, p.submitted, p.in_begin)) ||
                  (p.out_begin < p.out_end && within(t, p.run_end, p.out_begin));
    }
    if (runs || is_moving || (is_queued && any_moves)) {
      (runs ? made.compute : made.transfer) += 1ns;
      if (runs && !runs_well) made.failed += 1ns;
      made.synchronisation += waited;
      waited = 0ns;
      has_begun = true;
    } else {
      (has_begun ? waited : made.idle_before) += 1ns;
    }
  }
  made.idle_after = waited;
  return made;
}

TEST(launch_report, accounts_for_every_nanosecond_of_any_record) {
  std::mt19937_64 random{20'260'301};
  std::map<launch_loss, int> named;
  for (int trial = 0; trial < 5'000; ++trial) {
    const launch_record record = any_record(random);
    const launch_report r = explain(record);
    const nanoseconds all = std::max(0ns, record.ended - record.submitted);
    std::set<device_id> devices;
    for (const device_account& a : r.devices) {
      ASSERT_TRUE(devices.insert(a.device).second);
      const device_account right = recounted(record, a.device);
      ASSERT_EQ(a.compute, right.compute) << trial << " " << to_string(a.device);
      ASSERT_EQ(a.transfer, right.transfer) << trial << " " << to_string(a.device);
      ASSERT_EQ(a.synchronisation, right.synchronisation) << trial << " " << to_string(a.device);
      ASSERT_EQ(a.idle_before, right.idle_before) << trial << " " << to_string(a.device);
      ASSERT_EQ(a.idle_after, right.idle_after) << trial << " " << to_string(a.device);
      ASSERT_EQ(a.failed, right.failed) << trial << " " << to_string(a.device);
      ASSERT_EQ(a.took() + a.idle_before + a.idle_after, all) << trial;
    }
    for (const piece_record& p : record.pieces) ASSERT_TRUE(devices.contains(p.what.device));
    const std::map<launch_loss, double> losses{{launch_loss::imbalance, r.imbalance_seconds},
                                               {launch_loss::transfer, r.transfer_seconds},
                                               {launch_loss::synchronisation, r.sync_seconds},
                                               {launch_loss::idle, r.idle_seconds},
                                               {launch_loss::failure, r.failure_seconds}};
    ASSERT_GE(r.ideal_seconds, 0) << trial;
    double largest = 0;
    for (const auto& [loss, lost] : losses) {
      ASSERT_GE(lost, 0) << trial << " " << to_string(loss);
      largest = std::max(largest, lost);
    }
    ASSERT_NEAR(r.ideal_seconds + sum_of_losses(r), seconds(all), 1e-9 * seconds(all)) << trial;
    ASSERT_LE(r.efficiency(), 1 + 1e-9) << trial;
    ++named[r.dominant];
    if (r.dominant == launch_loss::none) {
      ASSERT_LE(largest, 0.05 * r.seconds) << trial;
      ASSERT_EQ(r.advice, "");
    } else {
      ASSERT_EQ(losses.at(r.dominant), largest) << trial;
      ASSERT_GT(largest, 0.05 * r.seconds) << trial;
      ASSERT_NE(r.advice, "") << trial;
    }
    ASSERT_FALSE(to_string(r).empty());
  }
  EXPECT_EQ(named.size(), 6U);  // each was the largest at some time
}

// ---- for people

TEST(launch_report, is_a_few_lines_with_a_bar_for_each_device) {
  launch_record record = played(speeds_45_30_25(), balance::static_equal);
  record.simulated = false;
  const std::string text = to_string(explain(record));
  EXPECT_TRUE(holds(text, "saxpy: 900,000 items in 1.20 s; ideal 900 ms, efficiency 75.0 %; predicted 1.20 s\n"))
      << text;
  EXPECT_TRUE(holds(text, "gpu0    #############...........  300,000  300,000")) << text;
  EXPECT_TRUE(holds(text, "gpu1    ####################....  300,000  300,000")) << text;
  EXPECT_TRUE(holds(text, "gpu2    ########################  300,000  300,000")) << text;
  EXPECT_TRUE(holds(text, "lost: imbalance 300 ms (25.0 %), transfer 0 s (0.0 %), synchronisation")) << text;
  EXPECT_TRUE(holds(text, "\nmostly imbalance: gpu0 was done")) << text;
  EXPECT_FALSE(holds(text, "simulated")) << text;
  EXPECT_FALSE(holds(text, " \n")) << "a blank at the end of a line: " << text;
}

TEST(launch_report, shows_what_came_first_in_the_bar_and_the_least_part_with_a_mark) {
  launch_record record = record_of(balance::static_equal, 1, 100);
  piece_record p = run_of(0, 100, 500us, 10ms);
  p.in_begin = 480us;
  p.in_end = 490us;
  record.pieces = {p};
  record.ended = 10ms;
  EXPECT_TRUE(holds(to_string(explain(record)), "gpu0    .>#####################~  ")) << to_string(explain(record));
}

TEST(launch_report, marks_every_line_of_a_simulated_launch_and_stays_on_its_lines) {
  launch_record record = played(speeds_45_30_25(), balance::static_equal);
  record.kernel = "two\nlines";
  record.notes = {"a note\nof two"};
  const std::string text = to_string(explain(record));
  std::size_t lines = 0;
  for (std::size_t begin = 0; begin < text.size(); ++lines) {
    const std::size_t end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    EXPECT_TRUE(holds(text.substr(begin, end - begin), "simulated")) << text;
    begin = end + 1;
  }
  EXPECT_EQ(lines, 9U) << text;
}

}  // namespace launch_report_test
