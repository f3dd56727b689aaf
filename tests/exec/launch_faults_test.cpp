// SPDX-License-Identifier: Apache-2.0
// Launches over devices when something is wrong: arguments, options, memory, devices that go.
#include "runtime/machine_state.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/reduce.hpp"
#include "weft/memory/copy.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <numeric>
#include <stop_token>
#include <thread>
#include <utility>

namespace launch_faults_test {

using samples::error_of;
using weft::array;
using weft::balance;
using weft::buffer;
using weft::bytes;
using weft::device_id;
using weft::errc;
using weft::failure_policy;
using weft::launch;
using weft::launch_run;
using weft::machine;
using weft::range;
using weft::spread_options;
using weft::topology_fault;

WEFT_KERNEL(fault_add, (WEFT_INOUT(int32_t) values, int32_t by), { values[i] = values[i] + by; });
WEFT_KERNEL(fault_twice, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t) to), { to[i] = from[i] * 2; });
WEFT_KERNEL(fault_sneak, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t) to, int64_t last),
            { to[i] = from[i < last ? i + 1 : i]; });
WEFT_KERNEL(fault_scatter, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t, whole) to), { to[i] = from[i]; });

WEFT_KERNEL(fault_total, (WEFT_IN(int32_t) values, WEFT_INOUT(int64_t, reduce(sum)) total), { total[0] += values[i]; });

std::vector<std::int32_t> ramp(std::size_t n) {
  std::vector<std::int32_t> made(n);
  std::iota(made.begin(), made.end(), 1);
  return made;
}

/// Without gpu1 from its nth operation on.
machine losing_gpu1(int devices, std::uint64_t nth) {
  auto topology = samples::wired(devices);
  topology_fault fault;
  fault.what = topology_fault::kind::device_lost;
  fault.device = device_id{1};
  fault.nth = nth;
  topology.faults.push_back(fault);
  return samples::play(topology);
}

bool says(const weft::error& e, std::string_view text) { return e.what.find(text) != std::string::npos; }

TEST(spread_with_wrong_arguments, says_which_and_what_is_wrong) {
  const machine m = samples::play(samples::wired(2));
  weft::kernels(m).add<fault_add, fault_twice>();
  array<std::int32_t> a{m, ramp(100)};
  array<float> f{m, 100, 1.0f};
  array<std::int32_t> shorter{m, 99};
  const array<std::int32_t> fixed{m, ramp(100)};

  auto e = error_of([&] { launch(m, "fault_ad", range(100), a, 1); });
  EXPECT_EQ(e.code, errc::not_found);
  EXPECT_TRUE(says(e, "did you mean 'fault_add'")) << e.what;
  e = error_of([&] { launch(m, "fault_add", range(100), a); });
  EXPECT_EQ(e.code, errc::incompatible);
  EXPECT_TRUE(says(e, "takes 2 arguments, got 1")) << e.what;
  e = error_of([&] { launch(m, "fault_add", range(100), f, 1); });
  EXPECT_TRUE(says(e, "argument 1 (values) is float")) << e.what;
  e = error_of([&] { launch(m, "fault_add", range(100), a, 1.0f); });
  EXPECT_TRUE(says(e, "argument 2 (by)")) << e.what;
  e = error_of([&] { launch(m, "fault_add", range(100), fixed, 1); });
  EXPECT_TRUE(says(e, "is const")) << e.what;
  e = error_of([&] { launch(m, "fault_twice", range(100), a, shorter); });
  EXPECT_EQ(e.code, errc::out_of_range);
  EXPECT_TRUE(says(e, "has 99 elements, the range ends at 100")) << e.what;
  for (const auto& [begin, end] : {std::pair{90, 110}, std::pair{-1, 5}}) {
    weft::kernel_range beside{1, {begin, 0, 0}, {end, 1, 1}};
    e = error_of([&] { launch(m, "fault_add", beside, a, 1); });
    EXPECT_EQ(e.code, errc::out_of_range) << begin;
    EXPECT_TRUE(says(e, begin < 0 ? "begins at -1" : "ends at 110")) << e.what;
  }
  e = error_of([&] { launch(m, "fault_twice", range(100), a, a); });
  EXPECT_EQ(e.code, errc::incompatible);
  EXPECT_TRUE(says(e, "are one array")) << e.what;
  e = error_of([&] { launch(m, "fault_twice", range(4, 5), a, shorter); });
  EXPECT_TRUE(says(e, "1 dimensions, the range has 2")) << e.what;

  const machine other = samples::play(samples::wired(2));
  array<std::int32_t> elsewhere{other, ramp(100)};
  e = error_of([&] { launch(m, "fault_add", range(100), elsewhere, 1); });
  EXPECT_EQ(e.code, errc::wrong_device);
  array<std::int32_t> never{m, 100};
  e = error_of([&] { launch(m, "fault_add", range(100), never, 1); });
  EXPECT_EQ(e.code, errc::invalid_argument);
  EXPECT_TRUE(says(e, "nothing has written them")) << e.what;
  EXPECT_NO_THROW(launch(m, "fault_add", range(100), a, 1).wait()) << "none of it does harm";
}

weft::raw_kernel refusing() {
  weft::raw_kernel made;
  made.name = "fault_refuse";
  weft::kernel_parameter data;
  data.name = "data";
  data.type = weft::element_type::int32;
  data.direction = weft::parameter_direction::inout;
  made.parameters.push_back(data);
  made.host = [](const weft::kernel_range&, std::span<const weft::kernel_argument>) { throw 42; };
  made.entry = "entry";
  return made;
}

TEST(spread_that_fails, waits_for_no_work_of_other_launches_in_its_streams) {
  // One device has eight lanes, and a ninth launch shares one. The launch that fails is first in its lane, and the one
  // behind it comes after a launch that only the thread of the decisions lets end.
  constexpr int lanes = 8;
  const machine m = samples::play(samples::wired(2));
  weft::kernels(m).add(weft::make_kernel_code(refusing()));
  std::vector<array<std::int32_t>> data;
  for (int n = 0; n < 2 * lanes + 1; ++n) data.emplace_back(m, ramp(100));
  const spread_options here{.devices = {.ids = {samples::gpu0}}};
  samples::gate before, between;
  before.hold(m[0].default_stream());
  std::vector<launch_run> runs;
  for (int n = 0; n < lanes; ++n)
    runs.push_back(launch<fault_add>(m, here, range(100), data[static_cast<std::size_t>(n)], 1));
  auto fails = launch(m, here, "fault_refuse", range(100), data[lanes]);
  between.hold(m[1].default_stream());
  array<std::int32_t> other{m, ramp(100)};
  auto decided = launch<fault_add>(
      m, {.devices = {.ids = {samples::gpu1}}, .on_failure = failure_policy::retry_elsewhere}, range(100), other, 1);
  m[0].default_stream().wait(decided.done());
  for (int n = lanes + 1; n < 2 * lanes + 1; ++n)
    runs.push_back(launch<fault_add>(m, here, range(100), data[static_cast<std::size_t>(n)], 1));
  before.open();
  EXPECT_EQ(error_of([&] { fails.done().wait(); }).code, errc::kernel_failed);
  between.open();
  for (const launch_run& run : runs) {
    // in the lane of the one that failed it may have been skipped
    try {
      EXPECT_EQ(run.done().wait_for(samples::only_a_hang), weft::wait_outcome::ok);
    } catch (const weft::error_exception& skipped) {
      EXPECT_EQ(skipped.cause().code, errc::kernel_failed);
    }
  }
}

TEST(spread_with_wrong_options, is_refused_before_anything_runs) {
  const machine m = samples::play(samples::wired(3));
  array<std::int32_t> a{m, ramp(100)};
  const auto code = [&](spread_options options) {
    return error_of([&] { launch<fault_add>(m, options, range(100), a, 1); }).code;
  };
  EXPECT_EQ(code({.devices = {.ids = {device_id{7}}}}), errc::invalid_device);
  EXPECT_EQ(code({.devices = {.min_compute_units = 100000}}), errc::not_found);
  EXPECT_EQ(code({.strategy = balance::weighted, .weights = {1, 2}}), errc::invalid_argument);
  EXPECT_EQ(code({.strategy = balance::weighted, .weights = {0, 0, 0}}), errc::invalid_argument);
  EXPECT_EQ(code({.strategy = balance::weighted, .weights = {1, -1, 1}}), errc::invalid_argument);
  EXPECT_EQ(code({.devices = {.at_most = 1}, .strategy = balance::weighted, .weights = {-1}}), errc::invalid_argument);
  EXPECT_EQ(code({.weights = {1, 1, 1}}), errc::invalid_argument) << "another strategy would not look at them";
  EXPECT_EQ(code({.block = {4096, 1, 1}}), errc::invalid_argument);
  EXPECT_EQ(code({.block = {64, 64, 1}}), errc::invalid_argument);
  EXPECT_EQ(code({.granularity = 0}), errc::invalid_argument);
  EXPECT_EQ(code({.memory_limits = {{device_id{9}, bytes{1 << 20}}}}), errc::invalid_device);
  EXPECT_EQ(code({.memory_limits = {{device_id{1}, bytes{2}}}}), errc::out_of_memory);
  const weft::memory_limit fine{device_id{1}, bytes{1 << 20}};
  EXPECT_EQ(code({.memory_limits = {fine, fine}}), errc::invalid_argument);
  EXPECT_EQ(code({.devices = {.ids = {device_id{0}}}, .memory_limits = {fine}}), errc::invalid_argument);
  EXPECT_EQ(a.host(), ramp(100));
  const spread_options in_one_piece{.block = {2, 1, 1}, .granularity = std::numeric_limits<std::int64_t>::max()};
  EXPECT_NO_THROW(launch<fault_add>(m, in_one_piece, range(100), a, 1).wait());
}

TEST(spread_with_wrong_options, is_refused_on_a_single_device_too) {
  const machine m = samples::play(samples::wired(1));
  const weft::buffer<std::int32_t> one{m[0], 100};
  const auto code = [&](const spread_options& options) {
    return error_of([&] { launch<fault_add>(m, options, range(100), one, 1).wait(); }).code;
  };
  EXPECT_EQ(code({.devices = {.min_compute_units = 100000}}), errc::not_found);
  EXPECT_EQ(code({.devices = {.min_memory = bytes{std::uint64_t{1} << 60}}}), errc::not_found);
  EXPECT_EQ(code({.devices = {.exclude = {device_id{0}}}}), errc::not_found);
  EXPECT_EQ(code({.weights = {1}}), errc::invalid_argument);
  EXPECT_EQ(code({.block = {4096, 1, 1}}), errc::invalid_argument);
}

TEST(spread_options_test, each_have_their_effect) {
  const machine m = samples::play(samples::wired(3));
  const auto pieces_of = [&](const launch_run& run) {
    run.wait();
    std::vector<std::int64_t> items;
    for (const auto& d : run.report().devices) items.push_back(d.items);
    return items;
  };
  array<std::int32_t> a{m, ramp(1'000)};
  EXPECT_EQ(pieces_of(launch<fault_add>(m, {.devices = {.ids = {device_id{2}}}}, range(1'000), a, 1)),
            (std::vector<std::int64_t>{1'000}));
  EXPECT_EQ(pieces_of(launch<fault_add>(m, {.strategy = balance::weighted, .weights = {1, 0, 3}}, range(1'000), a, 1)),
            (std::vector<std::int64_t>{250, 0, 750}));
  EXPECT_EQ(
      pieces_of(launch<fault_add>(m, {.strategy = balance::static_equal, .block = {64, 1, 1}}, range(1'000), a, 1)),
      (std::vector<std::int64_t>{384, 320, 296}));
  // held to 100 items of 4 bytes, in and out of one array: the other two take what is left
  array<std::int32_t> b{m, ramp(1'000)};
  EXPECT_EQ(
      pieces_of(launch<fault_add>(m, {.strategy = balance::static_equal, .memory_limits = {{device_id{0}, bytes{400}}}},
                                  range(1'000), b, 1)),
      (std::vector<std::int64_t>{100, 450, 450}));
  EXPECT_TRUE(launch<fault_add>(m, {.asynchronous = false}, range(1'000), b, 1).ready());
  const auto before = b.traffic();
  launch<fault_add>(m, {.strategy = balance::static_equal, .keep_on_device = false}, range(1'000), b, 1).wait();
  EXPECT_GE(b.traffic().device_to_host, before.device_to_host + 4'000);
  for (const auto& part : b.parts()) EXPECT_EQ(part.device, device_id{}) << "nothing stays on a device";
}

TEST(spread_options_test, peer_to_peer_off_sends_data_through_the_host) {
  const machine m = samples::play(samples::wired(2));
  const auto moved = [&](bool peers) {
    array<std::int32_t> a{m, ramp(10'000)};
    launch<fault_add>(m, {.devices = {.ids = {device_id{0}}}}, range(10'000), a, 1).wait();
    const auto before = weft::counters(m);
    launch<fault_add>(m, {.devices = {.ids = {device_id{1}}}, .peer_to_peer = peers}, range(10'000), a, 1).wait();
    const auto after = weft::counters(m);
    return std::pair{after.direct.bytes - before.direct.bytes, after.staged.bytes - before.staged.bytes};
  };
  EXPECT_EQ(moved(false), (std::pair<std::uint64_t, std::uint64_t>{0, 40'000}));
  EXPECT_EQ(moved(true).first + moved(true).second, 40'000u);
}

TEST(spread_options_test, unified_memory_copies_nothing) {
  const machine m{weft::machine_options{.backend = "host", .devices = 3}};
  ASSERT_TRUE(m[0].has(weft::capability::unified_memory));
  std::vector<std::int32_t> from = ramp(50'000);
  std::vector<std::int32_t> to(from.size());
  const auto before = weft::counters(m);
  launch<fault_twice>(m, {.strategy = balance::static_equal, .unified_memory = true}, range(50'000), from, to).wait();
  const auto after = weft::counters(m);
  EXPECT_EQ(after.host_to_device.copies, before.host_to_device.copies);
  EXPECT_EQ(after.device_to_host.copies, before.device_to_host.copies);
  for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], from[i] * 2);
}

TEST(spread_of_more_data_than_the_devices_hold, runs_in_passes) {
  const machine m{weft::machine_options{.backend = "host", .devices = 3, .memory_per_device = bytes{1 << 20}}};
  std::vector<std::int32_t> from = ramp(4 << 20);
  std::vector<std::int32_t> to(from.size());
  for (const balance strategy : {balance::automatic, balance::static_equal, balance::guided, balance::memory_aware}) {
    std::fill(to.begin(), to.end(), 0);
    launch<fault_twice>(m, {.strategy = strategy}, range(4 << 20), from, to).wait();
    for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], from[i] * 2) << i << ' ' << to_string(strategy);
  }
  // arrays do not fit either: their results go home, piece by piece
  array<std::int32_t> x{m, from};
  array<std::int32_t> y{m, from.size()};
  launch<fault_twice>(m, {.strategy = balance::static_equal}, range(4 << 20), x, y).wait();
  std::vector<std::int32_t> got = y.host();
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], from[i] * 2) << i;
}

TEST(spread_of_a_kernel_that_cannot_be_divided, runs_on_one_device_and_says_so) {
  const machine m = samples::play(samples::wired(3));
  array<std::int32_t> from{m, ramp(500)};
  array<std::int32_t> to{m, 500};
  const launch_run run = launch<fault_scatter>(m, range(500), from, to);
  run.wait();
  EXPECT_EQ(to.host(), ramp(500));
  const auto report = run.report();
  ASSERT_FALSE(report.notes.empty());
  EXPECT_NE(report.notes.front().find("'to' is written as a whole"), std::string::npos) << report.notes.front();
}

TEST(spread_in_check_mode, reports_a_kernel_that_touches_more_than_it_declares) {
  const machine m{weft::machine_options{.backend = "host", .devices = 2, .check_access = true}};
  array<std::int32_t> from{m, ramp(100)};
  array<std::int32_t> to{m, 100};
  const auto e = error_of([&] {
    launch<fault_sneak>(m, {.strategy = balance::static_equal}, range(100), from, to, std::int64_t{99}).wait();
  });
  EXPECT_EQ(e.code, errc::illegal_access);
  EXPECT_TRUE(says(e, "fault_sneak") && says(e, "'from'")) << e.what;
}

TEST(spread_whose_device_goes, fails_with_the_one_cause_and_leaves_no_work) {
  auto topology = samples::wired(3);
  topology_fault fault;
  fault.what = topology_fault::kind::device_lost;
  fault.device = device_id{1};
  fault.nth = 2;
  topology.faults.push_back(fault);
  const machine m{weft::machine_options{.machine = topology}};
  array<std::int32_t> a{m, 30'000, 0};
  const launch_run run = launch<fault_add>(m, {.strategy = balance::static_equal}, range(30'000), a, 1);
  const auto e = error_of([&] { run.wait(); });
  EXPECT_EQ(e.code, errc::device_lost) << e.what;
  EXPECT_TRUE(says(e, "gpu1")) << e.what;
  EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::device_lost) << "asked again, it says the same";
  EXPECT_NO_THROW(m.synchronize()) << "a cause that was told is not told again";
  EXPECT_EQ(error_of([&] { static_cast<void>(a.host()); }).code, errc::device_lost);
}

TEST(spread_whose_device_goes, runs_elsewhere_when_asked_to) {
  for (const balance strategy : {balance::static_equal, balance::guided, balance::work_stealing}) {
    for (std::uint64_t nth = 1; nth <= 12; ++nth) {
      auto topology = samples::wired(3);
      topology_fault fault;
      fault.what = topology_fault::kind::device_lost;
      fault.device = device_id{1};
      fault.nth = nth;
      topology.faults.push_back(fault);
      const machine m{weft::machine_options{.machine = topology}};
      const auto from = ramp(9'000);
      std::vector<std::int32_t> to(from.size());
      const launch_run run = launch<fault_twice>(
          m, {.strategy = strategy, .on_failure = failure_policy::retry_elsewhere}, range(9'000), from, to);
      run.wait();
      for (std::size_t i = 0; i < to.size(); ++i)
        ASSERT_EQ(to[i], from[i] * 2) << i << ' ' << to_string(strategy) << ' ' << nth;
      auto values = ramp(9'000);
      launch<fault_add>(m, {.devices = {.exclude = {device_id{1}}}, .strategy = strategy}, range(9'000), values, 5)
          .wait();
    }
  }
}

TEST(spread_whose_device_goes, with_the_only_copy_of_its_input_says_so) {
  const machine m = losing_gpu1(2, 4);  // the first launch has ended
  array<std::int32_t> a{m, 1'000, 1};
  weft::error e;
  e.code = errc::not_ready;
  for (int step = 0; step < 4 && e.code == errc::not_ready; ++step) {
    e = error_of([&] {
      launch<fault_add>(m, {.strategy = balance::static_equal, .on_failure = failure_policy::retry_elsewhere},
                        range(1'000), a, 1)
          .wait();
    });
  }
  EXPECT_EQ(e.code, errc::device_lost);
  EXPECT_TRUE(says(e, "only copy of 'values'") || says(e, "gpu1")) << e.what;
}

TEST(spread_whose_device_goes, leaves_arrays_on_the_host_that_others_bring_and_read) {
  auto topology = samples::wired(2);
  topology_fault fault;
  fault.what = topology_fault::kind::device_lost;
  fault.device = device_id{0};
  fault.nth = 2;
  topology.faults.push_back(fault);
  const machine m{weft::machine_options{.machine = topology}};
  const auto values = ramp(1'000);
  const array<std::int32_t> from{m, values};
  for (int k = 0; k < 3; ++k) {
    array<std::int32_t> to{m, 1'000};
    launch<fault_twice>(m, {.keep_on_device = false, .on_failure = failure_policy::retry_elsewhere}, range(1'000), from,
                        to)
        .wait();
    EXPECT_EQ(to.host()[999], 2'000) << k;
  }
  EXPECT_TRUE(m[0].is_lost());
}

TEST(weights_of_a_launch, stay_with_their_devices_where_one_is_lost_before_it_begins) {
  auto topology = samples::wired(3);
  topology_fault fault;
  fault.what = topology_fault::kind::device_lost;
  fault.device = device_id{1};
  fault.nth = 2;  // behind the gate
  topology.faults.push_back(fault);
  const machine m{weft::machine_options{.machine = topology}};
  array<std::int32_t> read{m, ramp(1'000)}, written{m, 1'000, 0};
  samples::gate gate;
  gate.hold(m[1].default_stream());
  // in passes: until it has made up its mind about the last one, nobody who comes later begins
  const launch_run lost =
      launch<fault_twice>(m, {.devices = {.ids = {device_id{1}}}, .memory_limits = {{device_id{1}, bytes{1'000}}}},
                          range(1'000), read, written);
  const launch_run run = launch<fault_add>(
      m, {.strategy = balance::weighted, .weights = {1, 5, 3}, .on_failure = failure_policy::retry_elsewhere},
      range(1'000), read, 1);
  gate.open();
  EXPECT_EQ(error_of([&] { lost.wait(); }).code, errc::device_lost);
  run.wait();
  for (const auto& d : run.report().devices)
    EXPECT_EQ(d.items, d.device == device_id{0} ? 250 : d.device == device_id{2} ? 750 : 0) << to_string(d.device);
}

TEST(spread_that_nobody_waits_for, is_told_by_synchronize_once) {
  auto topology = samples::wired(2);
  topology_fault fault;
  fault.what = topology_fault::kind::copy_fails;
  fault.from = device_id{0};
  fault.to = device_id{1};
  topology.faults.push_back(fault);
  const machine m{weft::machine_options{.machine = topology}};
  array<std::int32_t> a{m, ramp(1'000)};
  launch<fault_add>(m, {.devices = {.ids = {device_id{0}}}}, range(1'000), a, 1);
  launch<fault_add>(m, {.devices = {.ids = {device_id{1}}}}, range(1'000), a, 1);
  EXPECT_EQ(error_of([&] { m.synchronize(); }).code, errc::copy_failed);
  EXPECT_NO_THROW(m.synchronize());
  // what is overwritten as a whole is sound again
  array<std::int32_t> b{m, ramp(1'000)};
  a.write(ramp(1'000));
  launch<fault_add>(m, {.devices = {.ids = {device_id{1}}}}, range(1'000), a, 1).wait();
  EXPECT_EQ(a.host()[999], 1001);
}

/// Two devices, and the nth call of that kind is refused.
weft::topology refusing(const char* call, std::uint64_t nth) {
  auto made = samples::wired(2);
  topology_fault refuses;
  refuses.what = topology_fault::kind::call_fails;
  refuses.call = call;
  refuses.nth = nth;
  made.faults = {refuses};
  return made;
}

TEST(spread_that_cannot_be_submitted_whole, ends_after_everything_that_it_had_submitted) {
  int failed = 0;
  for (const balance strategy : {balance::static_equal, balance::guided}) {
    for (std::uint64_t nth = 1; nth <= 10; ++nth) {
      auto topology = refusing("copy", nth);
      topology_fault stalls;  // the first copy is still under way when a later one is refused
      stalls.what = topology_fault::kind::device_stalls;
      stalls.device = device_id{0};
      stalls.duration = std::chrono::milliseconds{20};
      topology.faults.push_back(stalls);
      const machine m{weft::machine_options{.machine = topology}};
      auto values = ramp(20'000);
      const auto e = error_of([&] { launch<fault_add>(m, {.strategy = strategy}, range(20'000), values, 1).wait(); });
      for (int d = 0; d < 2; ++d) {
        weft::backend& driver = weft::detail::state_of(m)->backend_of(device_id{d});
        for (const auto stream : driver.streams_of(device_id{d})) {
          EXPECT_TRUE(driver.idle(stream)) << "copy " << nth << " was refused, and gpu" << d << " works on";
        }
      }
      if (e.code == errc::not_ready) {
        EXPECT_EQ(values[0], 2);
      } else {
        ++failed;
      }
    }
  }
  EXPECT_GE(failed, 8);
}

TEST(spread_that_cannot_be_submitted_whole, ends_with_the_cause_where_its_pieces_may_begin_again_too) {
  int failed = 0;
  for (std::uint64_t nth = 1; nth <= 6; ++nth) {
    const machine m = samples::play(refusing("allocate", nth));
    auto values = ramp(20'000);
    std::vector<std::int32_t> doubled(20'000);
    const auto e = error_of([&] {
      launch<fault_twice>(m, {.on_failure = failure_policy::retry_elsewhere}, range(20'000), values, doubled).wait();
    });
    if (e.code == errc::not_ready) {
      EXPECT_EQ(doubled[19'999], 2 * values[19'999]) << "allocation " << nth << " was refused";
    } else {
      ++failed;
      EXPECT_EQ(e.code, errc::resource_exhausted) << e.what;
    }
  }
  EXPECT_GE(failed, 1);
}

TEST(spread_that_may_begin_again, has_its_results_at_home_when_it_says_that_it_is_ready) {
  const machine m = samples::play(samples::wired(2));
  const spread_options how{
      .strategy = balance::static_equal, .keep_on_device = false, .on_failure = failure_policy::retry_elsewhere};
  std::vector<std::int32_t> values(20'000), wanted(20'000);
  for (int round = 1; round <= samples::rounds(1'000); ++round) {
    const launch_run run = launch<fault_add>(m, how, range(20'000), values, 1);
    while (!run.ready()) {  // looks at the moment at which the kernel ends and its copy home has not
    }
    std::fill(wanted.begin(), wanted.end(), round);
    ASSERT_EQ(values, wanted) << "round " << round;
  }
}

TEST(spread_that_nobody_waits_for, is_told_by_synchronize_each_with_a_failure_of_its_own) {
  const machine m = samples::play(samples::wired(1));
  array<std::int32_t> a{m, ramp(1'000)}, b{m, ramp(1'000)}, c{m, 1'000};
  samples::gate held;
  static_cast<void>(held.hold(m[0].default_stream()));
  launch<fault_add>(m, range(1'000), a, 1).cancel();
  launch<fault_twice>(m, range(1'000), b, c).cancel();
  held.open();
  const weft::error first = error_of([&] { m.synchronize(); }), second = error_of([&] { m.synchronize(); });
  EXPECT_EQ(first.code, errc::cancelled) << first.what;
  EXPECT_EQ(second.code, errc::cancelled) << second.what;
  EXPECT_NE(to_string(first), to_string(second));
  EXPECT_NO_THROW(m.synchronize());
}

TEST(spread_that_cannot_be_submitted_whole, ends_for_its_event_too_where_partial_results_cannot_be_joined) {
  int failed = 0;
  for (std::uint64_t nth = 1; nth <= 6; ++nth) {
    const machine m = samples::play(refusing("copy", nth), weft::clock_kind::virtual_time);
    array<std::int32_t> values{m, ramp(1'000)};
    array<std::int64_t> total{m, 1, 0};
    auto outcome = weft::wait_outcome::timed_out;
    const auto e = error_of([&] {
      const launch_run run = launch<fault_total>(m, {.strategy = balance::static_equal}, range(1'000), values, total);
      outcome = run.done().wait_for(samples::only_a_hang);
    });
    if (e.code == errc::not_ready) {
      EXPECT_EQ(outcome, weft::wait_outcome::ok) << "copy " << nth << " was refused";
    } else {
      ++failed;
      EXPECT_EQ(e.code, errc::resource_exhausted) << e.what;
    }
  }
  EXPECT_GE(failed, 4);
}

TEST(spread_that_is_stopped, spoils_neither_what_it_only_read_nor_what_is_written_anew) {
  for (const int devices : {1, 2}) {
    const machine m = samples::play(samples::wired(devices));
    const spread_options equal{.strategy = balance::static_equal};
    array<std::int32_t> read{m, ramp(1'000)}, written{m, 1'000};
    launch<fault_add>(m, equal, range(1'000), read, 1).wait();
    samples::gate gate;
    gate.hold(m[0].default_stream());
    const launch_run run = launch<fault_twice>(m, equal, range(1'000), read, written);
    run.cancel();
    gate.open();
    EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::cancelled);
    for (int k = 0; k < 2; ++k) EXPECT_NO_THROW(launch<fault_add>(m, equal, range(1'000), read, 1).wait());
    EXPECT_EQ(read.host()[999], 1'003);
    EXPECT_NO_THROW(launch<fault_twice>(m, equal, range(500), read, written).wait());
    EXPECT_EQ(error_of([&] { static_cast<void>(written.host()); }).code, errc::cancelled) << "the rest is missing";
    EXPECT_NO_THROW(launch<fault_twice>(m, {.strategy = balance::guided}, range(1'000), read, written).wait());
    EXPECT_EQ(written.host()[999], 2'006);
    EXPECT_NO_THROW(launch<fault_twice>(m, equal, range(1'000), written, read).wait());
    EXPECT_EQ(read.host()[999], 4'012);
  }
}

/// The elements that can be read although a launch should have written them and did not.
std::vector<std::size_t> readable(const array<std::int32_t>& of, errc cause) {
  std::vector<std::size_t> found;
  std::vector<std::int32_t> one(1);
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (error_of([&] { of.read(one, i); }).code != cause) found.push_back(i);
  }
  return found;
}

constexpr weft::kernel_range last_ten{1, {90, 0, 0}, {100, 1, 1}};

TEST(spread_that_is_stopped, lets_nobody_read_old_values_of_what_it_had_not_begun) {
  const machine m = samples::play(samples::wired(2));
  const array<std::int32_t> from{m, ramp(100)};
  array<std::int32_t> nothing{m, 100}, constant{m, 100, 1}, on_host{m, ramp(100)}, on_devices{m, ramp(100)};
  launch<fault_add>(m, {.strategy = balance::static_equal}, range(100), on_devices, 1).wait();
  for (array<std::int32_t>* to : {&nothing, &constant, &on_host, &on_devices}) {
    samples::gate gate;
    gate.hold(m[0].default_stream());
    const launch_run run = launch<fault_twice>(m, {.strategy = balance::guided}, range(100), from, *to);
    run.cancel();
    gate.open();
    EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::cancelled);
    EXPECT_EQ(readable(*to, errc::cancelled), std::vector<std::size_t>{});
    array<std::int32_t> copy{m, 100, 1};
    for (int k = 0; k < 2; ++k)
      EXPECT_EQ(error_of([&] { launch<fault_twice>(m, range(100), *to, copy).wait(); }).code, errc::cancelled);
    EXPECT_EQ(error_of([&] { static_cast<void>(copy.host()); }).code, errc::cancelled);
    EXPECT_EQ(error_of([&] { static_cast<void>(weft::sum(m, *to)); }).code, errc::cancelled);
    to->write(std::vector<std::int32_t>(5, 7), 95);
    EXPECT_EQ(readable(*to, errc::cancelled).size(), 5u) << "the rest is missing";
    EXPECT_NO_THROW(launch<fault_twice>(m, last_ten, from, *to).wait());
    EXPECT_EQ(readable(*to, errc::cancelled).size(), 10u) << "the rest is missing";
    EXPECT_NO_THROW(launch<fault_twice>(m, range(100), from, *to).wait());
    EXPECT_EQ(to->host()[99], 200);
  }
}

TEST(spread_that_is_stopped, spoils_nothing_that_is_written_before_its_end_is_seen) {
  const machine m = samples::play(samples::wired(2));
  const array<std::int32_t> from{m, ramp(100)};
  array<std::int32_t> to{m, 100, 1}, copy{m, 100, 1};
  samples::gate gate;
  gate.hold(m[0].default_stream());
  const launch_run run = launch<fault_twice>(m, {.strategy = balance::guided}, range(100), from, to);
  run.cancel();
  EXPECT_FALSE(run.ready()) << "its first pieces are held; there will be no others";
  to.write(std::vector<std::int32_t>(5, 7), 95);
  const launch_run reads = launch<fault_twice>(m, last_ten, to, copy);
  gate.open();
  EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::cancelled);
  EXPECT_EQ(error_of([&] { reads.wait(); }).code, errc::cancelled);
  EXPECT_EQ(readable(to, errc::cancelled).size(), 5u);
}

TEST(spread_that_is_stopped, lets_nobody_read_the_old_value_of_its_reduction) {
  for (const balance strategy : {balance::static_equal, balance::guided}) {
    const machine m = samples::play(samples::wired(2));
    const array<std::int32_t> values{m, ramp(100)};
    array<std::int64_t> total{m, 1, 5};
    samples::gate gate;
    gate.hold(m[0].default_stream());
    const launch_run run = launch<fault_total>(m, {.strategy = strategy}, range(100), values, total);
    run.cancel();
    gate.open();
    EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::cancelled);
    EXPECT_EQ(error_of([&] { static_cast<void>(total.host()); }).code, errc::cancelled);
    total.write(std::vector<std::int64_t>{1});
    launch<fault_total>(m, {.strategy = strategy}, range(100), values, total).wait();
    EXPECT_EQ(total.host()[0], 5'051);
  }
}

TEST(spread_whose_device_goes, is_the_cause_for_launches_elsewhere_that_read_what_it_had_not_begun) {
  const machine m = losing_gpu1(2, 2);
  array<std::int32_t> from{m, ramp(100)}, to{m, 100, 1}, copy{m, 100, 1};
  samples::gate gate;
  gate.hold(m[1].default_stream());
  const launch_run lost = launch<fault_twice>(
      m, {.devices = {.ids = {device_id{1}}}, .memory_limits = {{device_id{1}, bytes{100}}}}, range(100), from, to);
  gate.open();
  EXPECT_EQ(error_of([&] { lost.wait(); }).code, errc::device_lost);
  const spread_options elsewhere{.on_failure = failure_policy::retry_elsewhere};
  for (const auto& e : {error_of([&] { launch<fault_twice>(m, elsewhere, last_ten, to, copy).wait(); }),
                        error_of([&] { launch<fault_add>(m, elsewhere, last_ten, to, 1).wait(); }),
                        error_of([&] { static_cast<void>(to.host()); })}) {
    EXPECT_EQ(e.code, errc::device_lost) << e.what;
    EXPECT_TRUE(says(e, "gpu1")) << e.what;
  }
  EXPECT_EQ(readable(to, errc::device_lost), std::vector<std::size_t>{});
  EXPECT_NO_THROW(launch<fault_twice>(m, elsewhere, range(100), from, to).wait());
  EXPECT_EQ(to.host()[99], 200);
}

TEST(spread_whose_device_goes, finds_no_values_elsewhere_from_before_a_launch_that_failed) {
  const machine m = losing_gpu1(3, 2);
  array<std::int32_t> from{m, ramp(100)}, to{m, ramp(100)}, copy{m, 100, 1};
  samples::gate gate;
  gate.hold(m[1].default_stream());
  const launch_run lost = launch<fault_twice>(
      m, {.devices = {.ids = {samples::gpu1}}, .memory_limits = {{samples::gpu1, bytes{100}}}}, range(100), from, to);
  gate.open();
  EXPECT_EQ(error_of([&] { lost.wait(); }).code, errc::device_lost);
  const auto fails =
      error_of([&] { launch<fault_add>(m, {.devices = {.ids = {samples::gpu0}}}, last_ten, to, 1).wait(); });
  EXPECT_EQ(fails.code, errc::device_lost) << fails.what;
  for (const device_id by : {samples::gpu2, samples::gpu0}) {
    const spread_options elsewhere{.devices = {.ids = {by}}, .on_failure = failure_policy::retry_elsewhere};
    const auto e = error_of([&] { launch<fault_twice>(m, elsewhere, last_ten, to, copy).wait(); });
    EXPECT_EQ(e.code, errc::device_lost) << e.what;
    EXPECT_TRUE(says(e, "gpu1")) << e.what;
    EXPECT_EQ(readable(to, errc::device_lost), std::vector<std::size_t>{});
  }
}

TEST(spread_whose_device_goes, finds_no_values_elsewhere_from_before_what_only_that_device_held) {
  const spread_options there{.devices = {.ids = {samples::gpu1}}};
  const spread_options elsewhere{.strategy = balance::static_equal, .on_failure = failure_policy::retry_elsewhere};
  for (const bool together : {false, true}) {
    for (std::uint64_t nth = 2; nth <= 4; ++nth) {
      const machine m = losing_gpu1(2, nth);
      array<std::int32_t> values{m, ramp(100)}, copy{m, 100, 1};
      samples::gate gate;
      gate.hold(m[1].default_stream());
      const launch_run first = launch<fault_add>(m, there, range(100), values, 1);
      if (!together) {
        gate.open();
        if (error_of([&] { first.wait(); }).code == errc::device_lost) continue;
      }
      const launch_run second = launch<fault_twice>(m, elsewhere, range(100), values, copy);
      if (together) gate.open();
      const auto e = error_of([&] { second.wait(); });
      EXPECT_EQ(e.code, errc::device_lost) << nth << e.what;
      EXPECT_TRUE(says(e, "gpu1")) << e.what;
      EXPECT_EQ(readable(values, errc::device_lost), std::vector<std::size_t>{}) << nth;
    }
  }
}

TEST(spread_whose_device_goes, finds_no_values_elsewhere_from_before_what_did_not_come_home) {
  for (std::uint64_t nth = 2; nth <= 3; ++nth) {  // its kernel, its copy home
    const machine m = losing_gpu1(2, nth);
    array<std::int32_t> values{m, ramp(100)};
    samples::gate gate;
    gate.hold(m[1].default_stream());
    const launch_run first =
        launch<fault_add>(m, {.devices = {.ids = {samples::gpu1}}, .keep_on_device = false}, range(100), values, 1);
    gate.open();
    EXPECT_EQ(error_of([&] { first.wait(); }).code, errc::device_lost) << nth;
    const spread_options elsewhere{.devices = {.ids = {samples::gpu0}}, .on_failure = failure_policy::retry_elsewhere};
    const auto e = error_of([&] { launch<fault_add>(m, elsewhere, range(100), values, 1).wait(); });
    EXPECT_EQ(e.code, errc::device_lost) << nth << e.what;
    EXPECT_EQ(readable(values, errc::device_lost), std::vector<std::size_t>{}) << nth;
  }
}

TEST(spread_whose_device_goes, begins_again_elsewhere_with_a_constant) {
  for (std::uint64_t nth = 1; nth <= 2; ++nth) {
    const machine m = losing_gpu1(2, nth);
    array<std::int32_t> values{m, 100, 1};
    const spread_options elsewhere{.strategy = balance::static_equal, .on_failure = failure_policy::retry_elsewhere};
    launch<fault_add>(m, elsewhere, range(100), values, 1).wait();
    EXPECT_TRUE(m[1].is_lost());
    EXPECT_EQ(values.host(), std::vector<std::int32_t>(100, 2)) << nth;
  }
}

TEST(spread_whose_device_goes, leaves_what_another_device_holds_too) {
  auto expected = ramp(101);
  expected.erase(expected.begin());
  for (const auto& [first, second] : {std::pair{samples::gpu0, samples::gpu1}, {samples::gpu1, samples::gpu0}}) {
    const machine m = losing_gpu1(2, 100);
    array<std::int32_t> values{m, ramp(100)}, copy{m, 100, 1};
    launch<fault_add>(m, {.devices = {.ids = {first}}}, range(100), values, 1).wait();
    launch<fault_twice>(m, {.devices = {.ids = {second}}}, range(100), values, copy).wait();
    const buffer<std::int32_t> there{m[1], 10};
    while (error_of([&] { weft::copy(there, ramp(10)); }).code != errc::device_lost) {
    }
    EXPECT_EQ(values.host(), expected);
    values.free_replicas();
    EXPECT_EQ(values.host(), expected);
  }
}

TEST(spread_whose_device_goes, begins_again_elsewhere_with_what_the_host_still_holds) {
  const spread_options elsewhere{.strategy = balance::static_equal, .on_failure = failure_policy::retry_elsewhere};
  std::vector<std::int32_t> expected = ramp(101);
  expected.erase(expected.begin());
  for (std::uint64_t nth = 1; nth <= 2; ++nth) {
    const machine m = losing_gpu1(3, nth), other = losing_gpu1(3, nth);
    array<std::int32_t> stay{m, ramp(100)};
    launch<fault_add>(m, elsewhere, range(100), stay, 1).wait();
    EXPECT_TRUE(m[1].is_lost());
    EXPECT_EQ(stay.host(), expected) << nth;
    auto leave = ramp(100);
    launch<fault_add>(other, elsewhere, range(100), leave, 1).wait();
    EXPECT_TRUE(other[1].is_lost());
    EXPECT_EQ(leave, expected) << nth;
  }
}

TEST(spread_that_cannot_be_submitted_whole, lets_those_behind_it_go_on_where_it_cannot_say_what_is_missing) {
  auto topology = refusing("copy", 2);  // the first is for gpu0
  topology.faults.push_back(refusing("create_gate", 1).faults.front());
  const machine m = samples::play(topology);
  const array<std::int32_t> from{m, ramp(100)};
  array<std::int32_t> to{m, 100, 1};
  samples::gate gate;
  gate.hold(m[0].default_stream());
  const launch_run run = launch<fault_twice>(m, {.strategy = balance::static_equal}, range(100), from, to);
  const launch_run behind = launch<fault_twice>(m, {.devices = {.ids = {samples::gpu1}}}, range(100), from, to);
  const weft::event done = behind.done();
  gate.open();
  const weft::stream after{m[1]};
  after.wait(done);
  EXPECT_EQ(after.record().wait_for(samples::only_a_hang), weft::wait_outcome::ok);
  EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::resource_exhausted);
  EXPECT_EQ(to.host()[99], 200);
}

TEST(spread_that_fails, lets_nobody_read_old_values_where_it_waited_for_another_launch) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> from{m, ramp(100)}, to{m, 100, 1};
  samples::gate gate;
  gate.hold(m[0].default_stream());
  const launch_run before = launch<fault_add>(m, {.strategy = balance::guided}, range(100), from, 1);
  const launch_run run = launch<fault_twice>(m, {.memory_limits = {{device_id{1}, bytes{2}}}}, range(100), from, to);
  gate.open();
  EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::out_of_memory);
  EXPECT_EQ(readable(to, errc::out_of_memory), std::vector<std::size_t>{});
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::sum(m, to)); }).code, errc::out_of_memory);
  EXPECT_NO_THROW(before.wait());
  EXPECT_EQ(from.host()[99], 101) << "it only read these";
  to.write(ramp(100));
  EXPECT_EQ(to.host(), ramp(100));
}

TEST(spread_that_is_stopped, gives_its_streams_to_no_later_launch_on_its_arrays) {
  const machine m = samples::play(samples::wired(1));
  array<std::int32_t> read{m, ramp(1'000)}, written{m, 1'000};
  samples::gate gate, late;
  gate.hold(m[0].default_stream());
  const launch_run run = launch<fault_twice>(m, range(1'000), read, written);
  run.cancel();
  gate.open();
  // its end is told by an event of its own: nobody waits in the streams, which would take their failure away
  EXPECT_EQ(error_of([&] { run.done().wait(); }).code, errc::cancelled);
  weft::backend& driver = weft::detail::state_of(m)->backend_of(samples::gpu0);
  for (const auto stream : driver.streams_of(samples::gpu0)) {  // those of the launch are not idle yet
    if (stream != m[0].default_stream().native()) late.hold(weft::stream::adopt(m[0], stream));
  }
  EXPECT_NO_THROW(launch<fault_add>(m, range(1'000), read, 1).wait());
  late.open();
  EXPECT_EQ(read.host()[999], 1'001);
}

TEST(spread_that_is_stopped, ends_as_cancelled_and_hangs_nothing) {
  const machine m = samples::play(samples::wired(2));
  std::stop_source stop;
  stop.request_stop();
  array<std::int32_t> a{m, ramp(1'000)};
  EXPECT_EQ(error_of([&] { launch<fault_add>(m, {.stop = stop.get_token()}, range(1'000), a, 1).wait(); }).code,
            errc::cancelled);
  for (int round = 0; round < 20; ++round) {
    std::stop_source later;
    array<std::int32_t> b{m, 200'000, 1};
    const launch_run run =
        launch<fault_add>(m, {.strategy = balance::guided, .stop = later.get_token()}, range(200'000), b, 1);
    std::jthread other{[&] { later.request_stop(); }};
    const auto outcome = error_of([&] { run.wait(); });
    EXPECT_TRUE(outcome.code == errc::cancelled || outcome.code == errc::not_ready) << outcome.what;
  }
  EXPECT_NO_THROW(launch<fault_add>(m, range(1'000), a, 1).wait());
}

TEST(spread, of_a_machine_or_a_run_that_was_moved_from_is_refused) {
  machine m = samples::play(samples::wired(2));
  std::vector<std::int32_t> values = ramp(8);
  launch_run run = launch<fault_add>(m, range(8), values, 1);
  const launch_run kept = std::move(run);
  const auto e = error_of([&] { static_cast<void>(run.report()); });  // NOLINT(bugprone-use-after-move): the point
  EXPECT_EQ(e.code, errc::invalid_argument);
  EXPECT_TRUE(says(e, "moved from")) << e.what;
  kept.wait();
  const machine taken = std::move(m);
  // NOLINTBEGIN(bugprone-use-after-move): the point
  EXPECT_EQ(error_of([&] { launch<fault_add>(m, range(8), values, 1); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { launch(m, "fault_add", range(8), values, 1); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { array<std::int32_t>{m, 8, 1}; }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { weft::kernels(m).add<fault_add>(); }).code, errc::invalid_argument);
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(error_of([&] { weft::kernels(taken).add(nullptr); }).code, errc::invalid_argument);
}

TEST(spread, ends_with_its_machine) {
  launch_run run;
  array<std::int32_t> a;
  {
    const machine m = samples::play(samples::wired(2));
    a = array<std::int32_t>{m, ramp(100'000)};
    for (int step = 0; step < 30; ++step)
      run = launch<fault_add>(m, {.strategy = balance::guided}, range(100'000), a, 1);
  }
  const auto e = error_of([&] { run.wait(); });
  EXPECT_TRUE(e.code == errc::not_ready || e.code == errc::cancelled || e.code == errc::machine_closed) << e.what;
  EXPECT_EQ(error_of([&] { static_cast<void>(a.host()); }).code, errc::machine_closed);
}

TEST(spread, orders_streams_and_coroutines_by_its_done_event) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> a{m, ramp(50'000)};
  const launch_run run = launch<fault_add>(m, {.strategy = balance::guided}, range(50'000), a, 1);
  const weft::stream after{m[0]};
  after.wait(run.done());
  const weft::event marker = after.record();
  marker.wait();
  EXPECT_TRUE(run.ready());
}

}  // namespace launch_faults_test
