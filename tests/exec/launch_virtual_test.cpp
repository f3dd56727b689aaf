// SPDX-License-Identifier: Apache-2.0
// Launches over devices in virtual time: balance, scaling and order against what arithmetic says, worked out here and
// not by the simulator.
#include "support/raw_launch.hpp"
#include "weft/exec/launch_run.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <thread>

namespace launch_virtual_test {

using samples::gpu0;
using samples::simulated;
using std::chrono::nanoseconds;
using weft::array;
using weft::balance;
using weft::device_id;
using weft::kernel_cost;
using weft::launch;
using weft::launch_report;
using weft::launch_run;
using weft::machine;
using weft::range;
using weft::simulation;
using weft::spread_options;
using weft::topology;
using weft::trace_kind;
using weft::trace_record;

/// Burns an amount of real time that differs from call to call and from run to run, and lets others go first.
void be_late() {
  static std::atomic<std::uint64_t> state{0x853c49e6748fea9b};
  std::uint64_t drawn = state.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
  drawn = (drawn ^ (drawn >> 31)) * 0xbf58476d1ce4e5b9;
  volatile std::uint64_t sink = 0;
  for (std::uint64_t i = 0; i < (drawn >> 33) % 30'000; ++i) sink = sink + i;
  if ((drawn >> 20) % 3 == 0) std::this_thread::yield();
}

WEFT_KERNEL(timed_visit, (WEFT_INOUT(uint8_t) visits), { visits[i] = (uint8_t)(visits[i] + 1); });
WEFT_KERNEL(timed_late, (WEFT_INOUT(uint8_t) visits), {
  if (i % 4096 == 0) be_late();
  visits[i] = (uint8_t)(visits[i] + 1);
});
WEFT_KERNEL(timed_stream, (WEFT_IN(float) input, WEFT_OUT(float) output), { output[i] = input[i] * 2.0f + 1.0f; });
WEFT_KERNEL(timed_step, (WEFT_IN(float) input, WEFT_OUT(float) output), { output[i] = input[i] + 1.0f; });
WEFT_KERNEL(timed_merge, (WEFT_INOUT(float) last), { last[i] = last[i] + 0.0f; });

double seconds_of(nanoseconds t) { return std::chrono::duration<double>(t).count(); }

template <class F>
double time_of(const machine& m, F&& f) {
  const nanoseconds begin = m.now();
  f();
  return seconds_of(m.now() - begin);
}

std::vector<trace_record> only(trace_kind kind, std::vector<trace_record> records) {
  std::erase_if(records, [&](const trace_record& r) { return r.kind != kind; });
  return records;
}

// ---- balance on devices of speed 45 : 30 : 25 -----------------------------------------------------------------------

constexpr std::int64_t items = 900'000;
constexpr double speeds[] = {45, 30, 25};

/// All three together do all items in a second.
spread_options balanced(balance strategy) {
  spread_options options;
  options.strategy = strategy;
  options.model = kernel_cost{0, 100.0 / static_cast<double>(items)};
  return options;
}

machine unlike_devices(const simulation& model) {
  topology layout = samples::wired(3);
  for (std::size_t d = 0; d < 3; ++d) layout.devices[d].speed = speeds[d];
  return simulated(weft::value_or_raise(weft::complete_topology(std::move(layout))), model);
}

constexpr simulation no_start{.launch_latency = nanoseconds{0}};

/// Whether every item was done once, and what the launch tells.
launch_report launch_once(const machine& m, const spread_options& how) {
  array<std::uint8_t> visits{m, static_cast<std::size_t>(items), std::uint8_t{0}};
  const nanoseconds begin = m.now();
  const launch_run run = launch<timed_visit>(m, how, range(items), visits);
  run.wait();
  const double took = seconds_of(m.now() - begin);
  EXPECT_EQ(visits.host(), std::vector<std::uint8_t>(static_cast<std::size_t>(items), 1));
  launch_report report = run.report();
  EXPECT_TRUE(report.simulated);
  EXPECT_NEAR(report.seconds, took, 1e-8) << "the report and the clock of the machine tell the same";
  return report;
}

/// Launches of several sizes, as a program makes them before the one that counts.
void learn(const machine& m, const spread_options& how) {
  for (const std::int64_t n : {items, items, items, items / 9, items / 9}) {
    array<std::uint8_t> visits{m, static_cast<std::size_t>(n), std::uint8_t{0}};
    launch<timed_visit>(m, how, range(n), visits).wait();
  }
}

TEST(virtual_launch, equal_shares_on_unlike_devices_reach_exactly_three_quarters) {
  const launch_report told = launch_once(unlike_devices(no_start), balanced(balance::static_equal));
  // the slowest does a third of the items with a quarter of the speed
  EXPECT_NEAR(told.seconds, (1.0 / 3) / (25.0 / 100), 5e-9);
  EXPECT_NEAR(1.0 / told.seconds, 0.75, 5e-9);
  EXPECT_NEAR(told.efficiency(), 0.75, 5e-9);
}

TEST(virtual_launch, shares_in_proportion_to_learnt_speeds_reach_the_ideal) {
  const machine m = unlike_devices(no_start);
  learn(m, balanced(balance::guided));
  const launch_report told = launch_once(m, balanced(balance::dynamic));
  EXPECT_EQ(told.strategy, balance::dynamic);
  EXPECT_GE(1.0 / told.seconds, 0.99);
  for (std::size_t d = 0; d < 3; ++d) {
    EXPECT_NEAR(static_cast<double>(told.devices[d].items), static_cast<double>(items) * speeds[d] / 100,
                0.005 * static_cast<double>(items));
    EXPECT_EQ(told.devices[d].pieces, 1);
  }
}

TEST(virtual_launch, guided_needs_no_history) {
  const launch_report told = launch_once(unlike_devices(no_start), balanced(balance::guided));
  EXPECT_GE(1.0 / told.seconds, 0.97);
  EXPECT_EQ(told.predicted_seconds, 0) << "no speed was known";
}

TEST(virtual_launch, guided_keeps_its_balance_under_noise_of_any_seed) {
  double worst = 2;
  std::set<double> different;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    simulation model = no_start;
    model.noise = 0.05;
    model.seed = seed;
    const machine m = unlike_devices(model);
    array<std::uint8_t> visits{m, static_cast<std::size_t>(items), std::uint8_t{0}};
    const launch_run run = launch<timed_visit>(m, balanced(balance::guided), range(items), visits);
    run.wait();
    different.insert(run.report().seconds);
    worst = std::min(worst, 1.0 / run.report().seconds);
  }
  EXPECT_GE(worst, 0.93);
  EXPECT_GT(different.size(), 90U) << "there is noise, and each seed has its own";
}

TEST(virtual_launch, steals_only_where_the_work_is_worth_the_move_of_its_data) {
  const auto shares = [](double seconds_per_item) {
    const machine m = unlike_devices(no_start);
    array<float> x{m, static_cast<std::size_t>(items), 1.0F};
    spread_options how;
    how.strategy = balance::static_equal;
    launch<timed_merge>(m, how, range(items), x).wait();
    how.strategy = balance::work_stealing;
    how.model = kernel_cost{0, seconds_per_item};
    const launch_run run = launch<timed_merge>(m, how, range(items), x);
    run.wait();
    std::vector<std::int64_t> counts;
    for (const auto& d : run.report().devices) counts.push_back(d.items);
    return counts;
  };
  EXPECT_GT(shares(100.0 / static_cast<double>(items))[0], items / 3) << "the fast one takes from the others";
  // 0.4 ns to move what takes less than a hundredth of that to do: next to nothing, where 8,400 would go if moves were
  // free
  EXPECT_LT(shares(1e-11)[0], items / 3 + 1000);
}

TEST(virtual_launch, with_a_limit_on_one_device_gives_its_excess_to_the_others_in_proportion) {
  const machine m = unlike_devices(no_start);
  learn(m, balanced(balance::guided));
  spread_options how = balanced(balance::memory_aware);
  how.memory_limits = {{gpu0, weft::bytes{static_cast<std::uint64_t>(items) * 3 / 10}}};  // a byte for each item
  const launch_report told = launch_once(m, how);
  const auto share = [&](std::size_t d) {
    return static_cast<double>(told.devices[d].items) / static_cast<double>(items);
  };
  EXPECT_LE(share(0), 0.3);
  EXPECT_NEAR(share(0), 0.3, 0.0005);
  EXPECT_NEAR(share(1), 0.7 * 30 / 55, 0.002);  // .382
  EXPECT_NEAR(share(2), 0.7 * 25 / 55, 0.002);  // .318
  EXPECT_NEAR(told.seconds, 0.7 * 100 / 55, 0.01) << "of the ideal time";
}

// ---- four devices, with links of their own and with one for all -----------------------------------------------------

constexpr double link_rate = 12e9;          // bytes per second, in each direction
constexpr nanoseconds link_latency{1'000};  // of the way between the host and a device
constexpr nanoseconds kernel_start{2'000};
constexpr std::int64_t streamed = 8 << 20;  // floats
constexpr double serial_part = 0.0401;      // of what one device takes

/// N equal devices behind one switch, whose link to the host they share; no peers.
topology behind_one_link(int devices) {
  topology made;
  made.name = "behind_one_link";
  made.devices.resize(static_cast<std::size_t>(devices));
  const auto join = [&](int a, int b, nanoseconds latency) {
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
      made.links.push_back({.from = from,
                            .to = to,
                            .wire = static_cast<int>(made.links.size()),
                            .kind = weft::link_kind::pcie,
                            .generation = 3,
                            .lanes = 16,
                            .bytes_per_second = link_rate,
                            .latency = latency});
    }
  };
  for (int d = 0; d < devices; ++d) {
    weft::topology_device& one = made.devices[static_cast<std::size_t>(d)];
    one.name = "device";
    one.memory = weft::bytes{std::uint64_t{256} << 20};
    made.nodes.push_back({.kind = weft::node_kind::device, .name = weft::to_string(device_id{d}), .parent = devices});
    join(d, devices, link_latency / 2);
  }
  made.nodes.push_back({.kind = weft::node_kind::pcie_switch, .name = "switch0", .parent = devices + 1});
  made.nodes.push_back({.kind = weft::node_kind::socket, .name = "socket0"});
  join(devices, devices + 1, link_latency / 2);
  made.access.assign(static_cast<std::size_t>(devices) * static_cast<std::size_t>(devices), false);
  return weft::value_or_raise(weft::complete_topology(std::move(made)));
}

topology with_links_of_their_own(int devices) {
  return samples::wired(devices, {.host_rate = link_rate, .host_latency = link_latency.count()});
}

/// What copying a share of the floats one way takes.
double copying(double share) {
  return seconds_of(link_latency) + static_cast<double>(streamed) * 4 * share / link_rate;
}
constexpr double computing_all = 600e-6;  // on one device
double computing(double share) { return seconds_of(kernel_start) + computing_all * share; }

struct streamed_times {
  double parallel = 0;
  double whole = 0;  // and the serial part after it
};

/// y = 2 x + 1 from and to host memory, and a merge that one device does alone.
streamed_times stream_through(const machine& m, int devices, double serial_seconds, balance strategy) {
  std::vector<float> x(static_cast<std::size_t>(streamed));
  std::iota(x.begin(), x.end(), 0.0f);
  std::vector<float> y(x.size());
  spread_options how;
  how.strategy = strategy;
  how.model = kernel_cost{0, computing_all / static_cast<double>(streamed)};
  for (int d = 0; d < devices; ++d) how.devices.ids.push_back(device_id{d});
  spread_options alone;
  alone.devices.ids = {gpu0};
  alone.model = kernel_cost{serial_seconds, 0};
  array<float> merged{m, 1, 0.0f};

  streamed_times took;
  took.whole = time_of(m, [&] {
    took.parallel = time_of(m, [&] { launch<timed_stream>(m, how, range(streamed), x, y).wait(); });
    launch<timed_merge>(m, alone, range(1), merged).wait();
  });
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (y[i] != static_cast<float>(i) * 2.0f + 1.0f) {
      ADD_FAILURE() << "element " << i << " is " << y[i];
      break;
    }
  }
  return took;
}

TEST(virtual_launch, on_four_devices_with_their_own_links_scales_as_its_serial_part_allows) {
  const double alone = copying(1) + computing(1) + copying(1);
  // the serial part is that of the whole: s = p (alone + s)
  const double serial = serial_part / (1 - serial_part) * alone;
  const double merge = serial - seconds_of(kernel_start);
  const auto on = [&](int devices) {
    return stream_through(simulated(with_links_of_their_own(4), {.launch_latency = kernel_start}), devices, merge,
                          balance::static_equal);
  };
  const streamed_times one = on(1);
  EXPECT_NEAR(one.parallel, alone, 5e-9);
  EXPECT_NEAR(one.whole, alone + serial, 1e-8);
  const streamed_times four = on(4);
  EXPECT_NEAR(four.parallel, copying(0.25) + computing(0.25) + copying(0.25), 5e-9);
  const double speed_up = one.whole / four.whole;
  EXPECT_GE(speed_up, 3.56);
  EXPECT_LE(speed_up, 3.58);
  EXPECT_NEAR(speed_up, 1 / (serial_part + (1 - serial_part) / 4), 0.02) << "the law of Amdahl";
}

TEST(virtual_launch, on_four_devices_behind_one_link_is_held_up_by_it) {
  const double alone = copying(1) + computing(1) + copying(1);
  const double serial = serial_part / (1 - serial_part) * alone;
  const double merge = serial - seconds_of(kernel_start);
  // One after the other comes in; each goes out when it is done and the one before it is out. In and out are two wires.
  double in = 0, out = 0;
  for (int d = 0; d < 4; ++d) {
    in += copying(0.25);
    out = std::max(out, in + computing(0.25)) + copying(0.25);
  }
  const auto on = [&](int devices, balance strategy) {
    return stream_through(simulated(behind_one_link(4), {.launch_latency = kernel_start}), devices, merge, strategy);
  };
  const streamed_times one = on(1, balance::static_equal);
  EXPECT_NEAR(one.parallel, alone, 5e-9) << "one device has the link for itself";
  const streamed_times four = on(4, balance::static_equal);
  EXPECT_NEAR(four.parallel, out, 1e-8);
  EXPECT_LT(one.whole / four.whole, 2.2);
  EXPECT_GT(one.whole / four.whole, 1.2) << "in and out go on at once";
  // No strategy makes more of the link than it has: all comes in once, and the last result goes out after that.
  for (const balance strategy : {balance::guided, balance::automatic, balance::work_stealing}) {
    const double took = on(4, strategy).whole;
    EXPECT_GT(took, static_cast<double>(streamed) * 4 / link_rate + serial) << to_string(strategy);
    EXPECT_LT(one.whole / took, 2.2) << to_string(strategy);
  }
}

// ---- how many devices -----------------------------------------------------------------------------------------------

TEST(virtual_launch, automatic_takes_one_device_for_little_and_all_for_much) {
  // gpu0 is near, the others are far: a start there costs more.
  constexpr nanoseconds near{1'000}, far{60'000};
  constexpr double rate = 12e9;
  constexpr double each = 4e-9;  // computing an item
  topology layout = samples::wired(4, {.host_rate = rate, .host_latency = far.count()});
  for (weft::topology_link& link : layout.links) {
    if ((link.from == 0 && link.to == 4) || (link.from == 4 && link.to == 0)) link.latency = near;
  }
  const machine m =
      simulated(weft::value_or_raise(weft::complete_topology(std::move(layout))), {.launch_latency = kernel_start});
  const auto run_of = [&](std::int64_t n, const weft::device_query& on, balance strategy) {
    std::vector<float> x(static_cast<std::size_t>(n), 1.0f), y(x.size());
    spread_options how;
    how.strategy = strategy;
    how.devices = on;
    how.model = kernel_cost{0, each};
    const launch_run run = launch<timed_stream>(m, how, range(n), x, y);
    run.wait();
    EXPECT_EQ(y, std::vector<float>(x.size(), 3.0f));
    return run.report();
  };
  // In one piece each, so that a start is seen whole: chunks that overlap hide a part of it.
  for (int d = 0; d < 4; ++d) {
    for (const std::int64_t n : {1'000, 1'000, 1'000, 30'000, 30'000, 300'000, 300'000})
      static_cast<void>(run_of(n, {.ids = {device_id{d}}}, balance::static_equal));
  }
  const auto devices_of = [&](std::int64_t n) {
    const launch_report told = run_of(n, {}, balance::automatic);
    return std::count_if(told.devices.begin(), told.devices.end(), [](const auto& d) { return d.items > 0; });
  };
  // A second device is of use once the first takes longer than the other's start: a0 + b n > a1.
  const auto start = [](nanoseconds latency) { return seconds_of(2 * latency + kernel_start); };
  const double crossover = (start(far) - start(near)) / (each + 2 * 4 / rate);
  EXPECT_NEAR(crossover, 25'286, 1);
  EXPECT_EQ(devices_of(static_cast<std::int64_t>(0.1 * crossover)), 1);
  EXPECT_EQ(devices_of(static_cast<std::int64_t>(0.9 * crossover)), 1);
  EXPECT_GT(devices_of(static_cast<std::int64_t>(1.2 * crossover)), 1);
  EXPECT_EQ(devices_of(1'000'000), 4);
}

// ---- pieces ---------------------------------------------------------------------------------------------------------

TEST(virtual_launch, brings_host_memory_in_pieces_of_at_most_16_MiB_unless_much_of_it_stays) {
  constexpr std::uint64_t most = std::uint64_t{16} << 20;
  constexpr std::int64_t n = 12'000'000;
  const machine m = simulated(samples::wired(2, {.host_rate = link_rate}, std::uint64_t{1} << 30));
  const std::vector<float> x(static_cast<std::size_t>(n), 1.0f);
  spread_options how;
  how.model = kernel_cost{0, 1e-9};
  array<float> kept{m, x.size()};
  const launch_run filling = launch<timed_step>(m, how, range(n), x, kept);
  filling.wait();
  for (const weft::device_account& d : filling.report().devices) EXPECT_EQ(d.pieces, 1) << "each has one memory of it";
  how.strategy = balance::dynamic;
  std::vector<float> y(x.size());
  for (int i = 0; i < 3; ++i) {  // at first the speeds are not known, and the work is divided in chunks
    const launch_run passing = launch<timed_stream>(m, how, range(n), x, y);
    passing.wait();
    for (const weft::device_account& d : passing.report().devices)
      EXPECT_LE(d.bytes_in + d.bytes_out, static_cast<std::uint64_t>(d.pieces) * most) << i;
  }
  EXPECT_EQ(y, std::vector<float>(x.size(), 3.0f));
}

WEFT_KERNEL(timed_next, (WEFT_IN(float) input, WEFT_OUT(float, halo(1)) output, int64_t count), {
  if (i + 1 < count) {
    output[i + 1] = input[i];
  }
});
WEFT_KERNEL(timed_around, (WEFT_IN(float, halo(100000)) input, WEFT_OUT(float) output), { output[i] = input[i]; });
WEFT_KERNEL(timed_total, (WEFT_IN(float) input, WEFT_INOUT(double, reduce(sum)) total), { total[0] += input[i]; });

TEST(virtual_launch, cuts_nothing_into_pieces_that_may_not_be_divided_or_would_cost_more_in_pieces) {
  constexpr std::int64_t n = 12'000'000;
  const machine m = simulated(samples::wired(2, {.host_rate = link_rate}, std::uint64_t{1} << 30));
  std::vector<float> x(static_cast<std::size_t>(n));
  std::iota(x.begin(), x.end(), 0.0f);
  std::vector<float> y(x.size());
  spread_options on_one;
  on_one.devices.ids = {gpu0};
  on_one.model = kernel_cost{0, 1e-9};
  const auto pieces_of = [](const launch_run& run) {
    run.wait();
    return run.report().devices.front().pieces;
  };
  EXPECT_EQ(pieces_of(launch<timed_next>(m, on_one, range(n), x, y, n)), 1) << "it writes beyond its own elements";
  for (std::size_t i = 1; i < y.size(); i += 4095) ASSERT_EQ(y[i], x[i - 1]) << i;
  EXPECT_LE(pieces_of(launch<timed_around>(m, on_one, range(n), x, y)), 2) << "each piece would bring its halo again";
  std::vector<double> total(1, 0.0);
  EXPECT_EQ(pieces_of(launch<timed_total>(m, on_one, range(n), x, total)), 1) << "the result goes home with each";
  const weft::buffer<float> there{m[0], x.size()};
  EXPECT_EQ(pieces_of(launch<timed_step>(m, on_one, range(n), there, there)), 1) << "nothing has to be brought";
}

// ---- determinism ----------------------------------------------------------------------------------------------------

TEST(virtual_launch, has_the_same_trace_in_every_run_however_late_its_kernels_really_are) {
  std::set<std::uint64_t> hashes;
  std::size_t pieces = 0;
  for (int run = 0; run < 20; ++run) {
    simulation model;
    model.noise = 0.05;
    const machine m = unlike_devices(model);
    const auto records = samples::traced(m, [&] {
      array<std::uint8_t> visits{m, std::size_t{200'000}, std::uint8_t{0}};
      launch<timed_late>(m, balanced(balance::guided), range(200'000), visits).wait();
      launch<timed_late>(m, balanced(balance::guided), range(200'000), visits).wait();
      const auto seen = visits.host();
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 2), 200'000);
    });
    pieces = only(trace_kind::kernel, records).size();
    hashes.insert(weft::trace_hash(records));
  }
  EXPECT_EQ(hashes.size(), 1U);
  EXPECT_GT(pieces, 20U) << "there was something to decide";
}

// ---- what does not move ---------------------------------------------------------------------------------------------

TEST(virtual_launch, chained_on_arrays_leaves_no_copy_in_the_trace) {
  for (const balance strategy : {balance::static_equal, balance::dynamic, balance::automatic}) {
    const machine m = unlike_devices({});
    array<float> x{m, std::size_t{90'000}, 1.0f};
    array<float> y{m, std::size_t{90'000}};
    const spread_options how = balanced(strategy);
    const auto records = samples::traced(m, [&] {
      for (int step = 0; step < 5; ++step) {
        launch<timed_step>(m, how, range(90'000), x, y);
        launch<timed_step>(m, how, range(90'000), y, x);
      }
      m.synchronize();
    });
    EXPECT_EQ(only(trace_kind::copy, records).size(), 0U) << to_string(strategy);
    EXPECT_GE(only(trace_kind::kernel, records).size(), 30U) << to_string(strategy);
    const auto read = samples::traced(m, [&] { EXPECT_EQ(x.host(), std::vector<float>(90'000, 11.0f)); });
    EXPECT_GE(only(trace_kind::copy, read).size(), 3U) << "and reading them is seen";
  }
}

}  // namespace launch_virtual_test
