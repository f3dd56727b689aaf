// SPDX-License-Identifier: Apache-2.0
// Contracts of memory, copies and peer access that need a machine made for them; docs/porting/checklist.md says which
// is where.
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/core/log.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace checklist_test {

using samples::byte_buffer;
using samples::contents;
using samples::error_of;
using samples::filled;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using samples::pattern;
using samples::play;
using samples::same;
using samples::shipped;
using weft::buffer;
using weft::bytes;
using weft::copy_path;
using weft::device_id;
using weft::errc;
using weft::machine;
using fault_kind = weft::topology_fault::kind;

WEFT_KERNEL(checklist_next, (WEFT_IN(uint32_t) src, WEFT_OUT(uint32_t) dst), { dst[i] = src[i] * 7U + (uint32_t)i; });
WEFT_KERNEL(checklist_overrun, (WEFT_OUT(uint32_t) dst, uint32_t reach), { dst[i + reach] = (uint32_t)i; });

weft::copy_options by_way(copy_path path, device_id via = {}) {
  weft::copy_options options;
  options.route.path = path;
  options.route.via = via;
  return options;
}
weft::copy_options until(const std::stop_source& stop) {
  weft::copy_options options;
  options.stop = stop.get_token();
  return options;
}

weft::topology_fault between(fault_kind kind, int from, int to, std::uint64_t nth) {
  weft::topology_fault fault;
  fault.what = kind;
  fault.from = device_id{from};
  fault.to = device_id{to};
  fault.nth = nth;
  return fault;
}

// ---- access that differs by direction -------------------------------------------------------------------------------

TEST(peer_access, a_link_of_known_latency_and_unknown_rate_has_the_latency_in_its_record) {
  const machine m = play(samples::wired(2, {.host_rate = 0, .peer_rate = 0}));
  const auto known = weft::capability_between(m, gpu0, gpu1);
  EXPECT_EQ(known->latency, std::chrono::nanoseconds{500});
  EXPECT_FALSE(known->bytes_per_second);
  EXPECT_EQ(known->why, "bandwidth is not published for this link; measure_peers() finds it");
}

TEST(peer_access, a_one_way_pair_is_offered_enabled_and_recorded_in_that_direction_only) {
  weft::topology one_way = shipped("pair_nvlink");
  one_way.access[one_way.pair(gpu1, gpu0)] = false;
  const machine m = play(one_way);
  EXPECT_TRUE(weft::can_access_peer(m, gpu0, gpu1));
  EXPECT_FALSE(weft::can_access_peer(m, gpu1, gpu0));
  EXPECT_TRUE(m[0].has(weft::capability::peer_to_peer));
  EXPECT_FALSE(m[1].has(weft::capability::peer_to_peer));
  EXPECT_TRUE(weft::capability_between(m, gpu0, gpu1)->supported);
  const auto back = weft::capability_between(m, gpu1, gpu0);
  EXPECT_FALSE(back->supported);
  EXPECT_EQ(back->link, weft::peer_link::none);
  EXPECT_FALSE(back->why.empty());
  EXPECT_EQ(weft::enable_peer(m, gpu0, gpu1), weft::enable_outcome::enabled);
  EXPECT_EQ(error_of([&] { weft::enable_peer(m, gpu1, gpu0); }).code, errc::peer_unsupported);
  EXPECT_FALSE(weft::peer_enabled(m, gpu1, gpu0));
  const auto pairs = weft::peer_topology(m);
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_TRUE(pairs[0].supported);
  EXPECT_FALSE(pairs[1].supported);
  EXPECT_EQ(weft::enable_all_peers(m).size(), 1U);
}

// ---- a table of peers that is full ----------------------------------------------------------------------------------

TEST(peer_table, a_full_table_refuses_one_more_and_a_copy_still_arrives) {
  weft::topology small = shipped("pcie_4");
  for (auto& device : small.devices) device.max_peers = 2;
  const machine m = play(small);
  weft::enable_peer(m, gpu0, gpu1);
  weft::enable_peer(m, gpu0, gpu2);
  const weft::error full = error_of([&] { weft::enable_peer(m, gpu0, device_id{3}); });
  EXPECT_EQ(full.code, errc::too_many_peers) << full.what;
  EXPECT_NE(full.what.find("gpu0"), std::string::npos) << full.what;
  EXPECT_FALSE(weft::peer_enabled(m, gpu0, device_id{3}));
  EXPECT_EQ(weft::enable_peer(m, gpu1, gpu0), weft::enable_outcome::enabled) << "the limit is of each device";
  const auto data = pattern(300007, 1);
  const byte_buffer src = filled(m[0], data);
  const byte_buffer dst{m[3], data.size()};
  EXPECT_NE(weft::copy(dst, src).path, copy_path::direct);
  EXPECT_TRUE(same(contents(dst), data));
  weft::disable_peer(m, gpu0, gpu1);
  EXPECT_EQ(weft::enable_peer(m, gpu0, device_id{3}), weft::enable_outcome::enabled);
}

TEST(peer_table, a_pair_that_loses_data_is_refused_as_such_even_if_the_table_is_full) {
  weft::topology small = shipped("pcie_4");
  small.devices[0].max_peers = 1;
  small.faults.push_back(between(fault_kind::drops_data, 0, 1, 0));
  const machine m = play(small);
  static_cast<void>(weft::verify_peers(m));
  weft::enable_peer(m, gpu0, gpu2);
  EXPECT_EQ(error_of([&] { weft::enable_peer(m, gpu0, gpu1); }).code, errc::peer_unsupported);
}

TEST(peer_table, measuring_goes_on_past_a_pair_that_a_full_table_has_no_room_for) {
  weft::topology small = shipped("pcie_4");
  for (auto& device : small.devices) device.max_peers = 1;
  const machine m = play(small);
  const auto leases = weft::enable_all_peers(m);  // each device's for gpu0, and of gpu0 for gpu1
  weft::measure_peers(m, bytes{64 << 10});
  const auto is_measured = [&](device_id from, device_id to) {
    return weft::capability_between(m, from, to)->measured;
  };
  EXPECT_TRUE(is_measured(gpu0, gpu1));
  EXPECT_TRUE(is_measured(gpu0, gpu2)) << "gpu2 has access to gpu0, and makes the copies of both directions";
  EXPECT_FALSE(is_measured(gpu1, gpu2));
  EXPECT_TRUE(is_measured(device_id{3}, gpu0)) << "the last one";
}

TEST(peer_table, a_lease_on_a_full_table_is_an_error_and_holds_nothing) {
  weft::topology small = shipped("pcie_4");
  small.devices[0].max_peers = 1;
  const machine m = play(small);
  weft::peer_access first{m, gpu0, gpu1};
  EXPECT_EQ(error_of([&] { const weft::peer_access second(m, gpu0, gpu2); }).code, errc::too_many_peers);
  first.end();
  const weft::peer_access second{m, gpu0, gpu2};
  EXPECT_TRUE(weft::peer_enabled(m, gpu0, gpu2));
}

TEST(peer_table, a_lease_disables_what_an_earlier_one_ended_too_late_to_disable) {
  const machine m = play(samples::wired(2, {.host_rate = 1e3}), weft::clock_kind::virtual_time);
  const byte_buffer busy{m[0], 20'000};  // for 20 s
  const weft::stream order{m[0]};
  const auto source = pattern(busy.size(), 1);
  weft::peer_access late{m, gpu0, gpu1};
  weft::copy(order, busy, source);
  std::string said;
  auto before = weft::set_log_hook([&](weft::log_level, std::string_view text) { said = text; });
  late.end();
  weft::set_log_hook(std::move(before));
  EXPECT_NE(said.find("from gpu0 to gpu1 stays enabled"), std::string::npos) << said;
  order.synchronize();
  EXPECT_TRUE(weft::peer_enabled(m, gpu0, gpu1));
  weft::peer_access{m, gpu0, gpu1}.end();
  EXPECT_FALSE(weft::peer_enabled(m, gpu0, gpu1));
  weft::enable_peer(m, gpu0, gpu1);
  weft::peer_access{m, gpu0, gpu1}.end();
  EXPECT_TRUE(weft::peer_enabled(m, gpu0, gpu1)) << "not the lease's to disable";
}

TEST(peer_table, a_lease_leaves_what_the_program_enabled_after_one_that_ended_too_late) {
  for (const bool in_stream : {false, true}) {
    const machine m = play(samples::wired(2, {.host_rate = 1e3}), weft::clock_kind::virtual_time);
    const byte_buffer busy{m[0], 20'000};  // for 20 s
    const weft::stream order{m[0]};
    const auto source = pattern(busy.size(), 1);
    const auto enable = [&] {
      if (in_stream) {
        weft::enable_peer(order, gpu1).wait();
      } else {
        weft::enable_peer(m, gpu0, gpu1);
      }
    };
    const auto enable_again = [&] {
      weft::disable_peer(m, gpu0, gpu1);
      enable();
    };
    weft::peer_access late{m, gpu0, gpu1};
    weft::copy(order, busy, source);
    auto before = weft::set_log_hook([](weft::log_level, std::string_view) {});
    late.end();
    weft::set_log_hook(std::move(before));
    order.synchronize();
    enable_again();
    weft::peer_access{m, gpu0, gpu1}.end();
    EXPECT_TRUE(weft::peer_enabled(m, gpu0, gpu1)) << "in a stream: " << in_stream;
    weft::disable_peer(m, gpu0, gpu1);
    weft::peer_access lease{m, gpu0, gpu1};
    enable_again();
    lease.end();
    EXPECT_TRUE(weft::peer_enabled(m, gpu0, gpu1)) << "during a lease, in a stream: " << in_stream;
    weft::disable_peer(m, gpu0, gpu1);
    weft::peer_access beside{m, gpu0, gpu1};
    enable();
    beside.end();
    EXPECT_TRUE(weft::peer_enabled(m, gpu0, gpu1)) << "already enabled by a lease, in a stream: " << in_stream;
  }
}

// ---- faults ---------------------------------------------------------------------------------------------------------

TEST(copy_fault, fails_the_copy_that_it_names_and_no_other) {
  weft::topology faulty = shipped("pair_nvlink");
  faulty.faults.push_back(between(fault_kind::copy_fails, 0, 1, 3));
  const machine m = play(faulty);
  const auto data = pattern(4097, 2);
  const byte_buffer src = filled(m[0], data);
  const byte_buffer dst{m[1], data.size()};
  int failed = 0;
  for (int i = 1; i <= 5; ++i) {
    const weft::error e = error_of([&] { weft::copy(dst, src); });
    if (e.code == errc::not_ready) continue;
    ++failed;
    EXPECT_EQ(i, 3) << e.what;
    EXPECT_EQ(e.code, errc::copy_failed) << e.what;
    EXPECT_NE(e.what.find("gpu0"), std::string::npos) << e.what;
    EXPECT_NE(e.what.find("gpu1"), std::string::npos) << e.what;
  }
  EXPECT_EQ(failed, 1);
  EXPECT_TRUE(same(contents(dst), data));
  EXPECT_FALSE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost());
  const auto counted = weft::counters(m).staged;
  EXPECT_EQ(counted.failed, 1U);
  EXPECT_EQ(counted.copies, 4U) << "what failed was not taken";
}

TEST(copy_fault, a_fault_in_a_stream_fails_its_dependents_with_the_same_cause) {
  weft::topology faulty = shipped("pair_nvlink");
  faulty.faults.push_back(between(fault_kind::copy_fails, 0, 1, 1));
  const machine m = play(faulty);
  const auto old = pattern(4097, 3);
  const byte_buffer src = filled(m[0], pattern(4097, 4));
  const byte_buffer dst = filled(m[1], old);
  const weft::stream order{m[0]};
  const weft::stream elsewhere{m[1]};
  const weft::event failed = weft::copy(order, dst, src);
  elsewhere.wait(failed);
  const weft::event dependent = weft::fill(elsewhere, dst, std::uint8_t{1});
  const weft::error root = error_of([&] { failed.wait(); });
  EXPECT_EQ(root.code, errc::copy_failed) << root.what;
  EXPECT_EQ(error_of([&] { dependent.wait(); }).what, root.what);
  weft::copy(order, dst, src).wait();  // the second copy is well
  EXPECT_TRUE(same(contents(dst), contents(src)));
}

TEST(self_check, demotes_a_pair_that_drops_data_and_says_so) {
  weft::topology lying = shipped("pair_nvlink");
  lying.faults.push_back(between(fault_kind::drops_data, 0, 1, 0));
  const machine m = play(lying);
  EXPECT_TRUE(weft::can_access_peer(m, gpu0, gpu1)) << "it is advertised";
  const auto checks = weft::verify_peers(m);
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_TRUE(checks[0].offered);
  EXPECT_FALSE(checks[0].arrived);
  EXPECT_NE(checks[0].why.find("byte 0"), std::string::npos) << checks[0].why;
  EXPECT_TRUE(checks[1].arrived) << checks[1].why;
  const auto known = weft::capability_between(m, gpu0, gpu1);
  EXPECT_FALSE(known->trusted);
  EXPECT_FALSE(known->why.empty());
  EXPECT_TRUE(weft::capability_between(m, gpu1, gpu0)->trusted);
  const auto leases = weft::enable_all_peers(m);
  const auto data = pattern(300007, 5);
  const byte_buffer src = filled(m[0], data);
  const byte_buffer dst = filled(m[1], pattern(data.size(), 6));
  EXPECT_EQ(weft::copy(dst, src).path, copy_path::staged);
  EXPECT_TRUE(same(contents(dst), data));
  const weft::error refused = error_of([&] { weft::copy(dst, src, by_way(copy_path::direct)); });
  EXPECT_EQ(refused.code, errc::peer_unsupported) << refused.what;
}

TEST(self_check, locates_a_byte_that_a_link_changes) {
  weft::topology lying = shipped("pair_nvlink");
  lying.faults.push_back(between(fault_kind::corrupts, 0, 1, 0));
  const machine m = play(lying);
  const auto checks = weft::verify_peers(m);
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_FALSE(checks[0].arrived);
  for (const char* const word : {"at byte", "expected", "got"}) {
    EXPECT_NE(checks[0].why.find(word), std::string::npos) << checks[0].why;
  }
}

TEST(self_check, is_done_once_until_it_is_asked_for_again) {
  const machine m = play(shipped("pair_nvlink"));
  const auto moved = [&] {
    const auto traffic = m.traffic().bytes_on_link;
    return std::accumulate(traffic.begin(), traffic.end(), std::uint64_t{0});
  };
  static_cast<void>(weft::verify_peers(m));
  const auto once = moved();
  EXPECT_GT(once, 0U);
  static_cast<void>(weft::verify_peers(m));
  EXPECT_EQ(moved(), once) << "the answer was kept";
  static_cast<void>(weft::verify_peers(m, true));
  EXPECT_GT(moved(), once);
}

TEST(device_fault, takes_one_device_down_and_leaves_the_others) {
  weft::topology frail = shipped("pcie_4");
  weft::topology_fault fault;
  fault.what = fault_kind::device_lost;
  fault.device = gpu1;
  fault.nth = 3;
  frail.faults.push_back(fault);
  const machine m = play(frail);
  const auto data = pattern(4097, 7);
  const byte_buffer healthy = filled(m[0], data);
  const byte_buffer doomed{m[1], 4097};
  weft::error e;
  for (int i = 0; i < 5; ++i) {
    e = error_of([&] { weft::fill(doomed, std::uint8_t{1}); });
    if (e.code != errc::not_ready) break;
  }
  EXPECT_EQ(e.code, errc::device_lost) << e.what;
  EXPECT_NE(e.what.find("gpu1"), std::string::npos) << e.what;
  EXPECT_EQ(e.scope, weft::error_scope::device);
  EXPECT_TRUE(m[1].is_lost());
  EXPECT_EQ(error_of([&] {
              const byte_buffer more(m[1], 10);
              weft::fill(more, std::uint8_t{1});
            }).code,
            errc::device_lost);
  EXPECT_TRUE(same(contents(healthy), data));
  const byte_buffer other{m[2], 4097};
  weft::copy(other, healthy);
  EXPECT_TRUE(same(contents(other), data));
  m[1].reset();
  EXPECT_FALSE(m[1].is_lost());
  EXPECT_EQ(error_of([&] { weft::fill(doomed, std::uint8_t{1}); }).code, errc::not_found) << "its memory went with it";
  EXPECT_TRUE(same(contents(filled(m[1], data)), data));
}

TEST(call_fault, makes_one_allocation_fail_and_leaks_nothing) {
  weft::topology frail = shipped("pair_nvlink");
  weft::topology_fault fault;
  fault.what = fault_kind::call_fails;
  fault.call = "allocate";
  fault.nth = 2;
  frail.faults.push_back(fault);
  const machine m = play(frail);
  const bytes before = m[0].free_memory();
  int failed = 0;
  for (int i = 0; i < 4; ++i) {
    const weft::error e = error_of([&] { const byte_buffer memory(m[0], 4096); });
    if (e.code != errc::not_ready) ++failed;
  }
  EXPECT_EQ(failed, 1);
  m.synchronize();
  EXPECT_EQ(m[0].free_memory(), before);
}

// ---- cancellation ---------------------------------------------------------------------------------------------------

TEST(cancellation, a_cancelled_staged_copy_leaves_every_byte_old_or_new_and_the_next_copy_unhurt) {
  const machine m = play(shipped("ring_3_no_p2p"));
  const std::size_t size = (std::size_t{samples::is_sanitized ? 6 : 48} << 20) + 11;
  const auto data = pattern(size, 8);
  const auto old = pattern(size, 9);
  const byte_buffer src = filled(m[0], data);
  const byte_buffer dst{m[1], size};
  int cancelled = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    weft::copy(dst, old);
    std::stop_source stop;
    const weft::stream order{m[0]};
    samples::gate held;
    if (attempt == 0) held.hold(order);  // however late this thread comes to stop it, it has not ended
    const weft::event moving = weft::copy(order, dst, src, until(stop));
    for (int spin = 0; spin < attempt * 20000; ++spin) static_cast<void>(moving.ready());
    stop.request_stop();
    held.open();
    const weft::error e = error_of([&] { moving.wait(); });
    const auto got = contents(dst);
    if (e.code == errc::not_ready) {
      EXPECT_TRUE(same(got, data));
      continue;
    }
    ++cancelled;
    EXPECT_EQ(e.code, errc::cancelled) << e.what;
    EXPECT_TRUE(samples::each_is_of_one(got, data, old));
    EXPECT_FALSE(same(got, data)) << "a copy that was cancelled did not do everything";
    const byte_buffer small{m[1], 100};
    weft::copy(small, src.subspan(0, 100));
    EXPECT_TRUE(same(contents(small), std::vector<std::uint8_t>(data.begin(), data.begin() + 100)));
  }
  EXPECT_GT(cancelled, 0) << "a stop right after the start came too late";
}

// ---- time in the model ----------------------------------------------------------------------------------------------

TEST(staging, overlaps_its_two_halves) {
  const machine m = play(shipped("pcie_4"), weft::clock_kind::virtual_time);
  const std::size_t size = std::size_t{64} << 20;
  const byte_buffer src{m[0], size};
  const byte_buffer dst{m[1], size};
  const auto data = pattern(size, 10);
  weft::copy(src, data);
  const auto staged = weft::copy(dst, src, by_way(copy_path::staged));
  EXPECT_TRUE(same(contents(dst), data));
  EXPECT_TRUE(staged.simulated);
  const double rate = m.layout().to_host[0].bytes_per_second;
  const double one_way = static_cast<double>(size) / rate;
  const double taken = std::chrono::duration<double>(staged.duration).count();
  EXPECT_GE(taken, one_way) << "faster than the link";
  EXPECT_LT(taken, 1.5 * one_way) << "one half waits for the other";
}

TEST(batch, a_batch_of_neighbours_takes_less_time_than_its_parts) {
  const auto time = [](bool together) {
    const machine m = play(shipped("pair_nvlink"), weft::clock_kind::virtual_time);
    const auto leases = weft::enable_all_peers(m);
    constexpr std::size_t parts = 200;
    constexpr std::size_t piece = 256;
    const auto data = pattern(parts * piece, 11);
    const byte_buffer src = filled(m[0], data);
    const byte_buffer dst{m[1], data.size()};
    const weft::stream order{m[0]};
    const auto begin = m.now();
    if (together) {
      std::vector<weft::copy_part> batch;
      for (std::size_t i = 0; i < parts; ++i) {
        batch.push_back(weft::part(dst.subspan(i * piece, piece), src.subspan(i * piece, piece)));
      }
      weft::copy_batch(order, batch).wait();
    } else {
      for (std::size_t i = 0; i < parts; ++i) {
        weft::copy(order, dst.subspan(i * piece, piece), src.subspan(i * piece, piece));
      }
      order.synchronize();
    }
    const auto taken = m.now() - begin;
    EXPECT_TRUE(same(contents(dst), data));
    return taken.count();
  };
  EXPECT_LT(time(true) * 10, time(false));
}

TEST(direct_copy, takes_the_time_of_its_link_in_the_model) {
  const machine m = play(shipped("pair_nvlink"), weft::clock_kind::virtual_time);
  const auto leases = weft::enable_all_peers(m);
  const std::size_t size = std::size_t{16} << 20;
  const byte_buffer src{m[0], size};
  const byte_buffer dst{m[1], size};
  const auto report = weft::copy(dst, src);
  EXPECT_EQ(report.path, copy_path::direct);
  const auto& path = m.layout().peer_paths[m.layout().pair(gpu0, gpu1)];
  const double ideal = static_cast<double>(size) / path.bytes_per_second;
  const double taken = std::chrono::duration<double>(report.duration).count();
  EXPECT_GE(taken, ideal * 0.999);
  EXPECT_LT(taken, ideal * 1.2);
}

// ---- routes over machines that nobody has ---------------------------------------------------------------------------

weft::route_facts line_of_three(double link_rate, double host_rate) {
  weft::route_facts facts;
  facts.devices = 3;
  facts.pairs.resize(9);
  const auto connect = [&](std::size_t a, std::size_t b) {
    for (const std::size_t at : {a * 3 + b, b * 3 + a}) {
      facts.pairs[at].lane = {link_rate, 1e-6};
      facts.pairs[at].can_access = true;
      facts.pairs[at].usable = true;
    }
  };
  connect(0, 1);
  connect(1, 2);
  facts.to_host.assign(3, {host_rate, 1e-6});
  facts.from_host.assign(9, {host_rate, 1e-6});
  facts.local.assign(3, {1e12, 1e-6});
  return facts;
}

TEST(route, goes_through_the_middle_of_a_line_when_that_beats_the_host) {
  const auto fast = weft::route(line_of_three(100e9, 10e9), gpu0, gpu2, bytes{std::uint64_t{64} << 20});
  ASSERT_TRUE(fast.has_value());
  EXPECT_EQ(fast->path, copy_path::relayed);
  EXPECT_EQ(fast->via, gpu1);
  EXPECT_GT(fast->chunk, 0U);
  const auto slow = weft::route(line_of_three(1e9, 10e9), gpu0, gpu2, bytes{std::uint64_t{64} << 20});
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(slow->path, copy_path::staged);
  const auto near = weft::route(line_of_three(100e9, 10e9), gpu0, gpu1, bytes{std::uint64_t{64} << 20});
  ASSERT_TRUE(near.has_value());
  EXPECT_EQ(near->path, copy_path::direct);
}

TEST(route, never_uses_access_that_is_not_enabled) {
  auto facts = line_of_three(100e9, 10e9);
  for (auto& pair : facts.pairs) pair.usable = false;
  for (const auto& [from, to] : {std::pair{gpu0, gpu1}, std::pair{gpu0, gpu2}}) {
    const auto chosen = weft::route(facts, from, to, bytes{1 << 20});
    ASSERT_TRUE(chosen.has_value());
    EXPECT_EQ(chosen->path, copy_path::staged);
    EXPECT_FALSE(weft::route(facts, from, to, bytes{1 << 20}, by_way(copy_path::direct).route).has_value());
  }
}

TEST(route, leaves_a_link_that_is_known_to_be_worse_than_wished) {
  const auto facts = line_of_three(10e9, 5e9);
  const bytes size{std::uint64_t{64} << 20};
  weft::route_wish wish;
  wish.min_bytes_per_second = 5e9;
  EXPECT_EQ(weft::route(facts, gpu0, gpu1, size, wish)->path, copy_path::direct);
  wish.min_bytes_per_second = 20e9;
  EXPECT_EQ(weft::route(facts, gpu0, gpu1, size, wish)->path, copy_path::staged);
  weft::route_wish quick;
  quick.max_latency = std::chrono::nanoseconds{500};
  EXPECT_EQ(weft::route(facts, gpu0, gpu1, size, quick)->path, copy_path::staged);
  quick.max_latency = std::chrono::microseconds{2};
  EXPECT_EQ(weft::route(facts, gpu0, gpu1, size, quick)->path, copy_path::direct);
  const auto unrated = line_of_three(0, 5e9);
  EXPECT_EQ(weft::route(unrated, gpu0, gpu1, size, wish)->path, copy_path::direct) << "no rate is known to be worse";
  quick.max_latency = std::chrono::nanoseconds{500};
  EXPECT_EQ(weft::route(unrated, gpu0, gpu1, size, quick)->path, copy_path::staged) << "its latency is";
}

TEST(pipeline_plan, ends_for_every_size_and_is_bounded) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4095}, std::uint64_t{5} << 20,
                                   std::uint64_t{3} << 40, ~std::uint64_t{0}}) {
    for (const double rate : {0.0, 1.0, 25e9, 900e9}) {
      const auto plan = weft::plan_pipeline({rate, 1e-6}, {25e9, 5e-6}, bytes{size});
      if (size > 0) {
        EXPECT_GT(plan.chunk, 0U) << size << " at " << rate;
      }
      EXPECT_GT(plan.depth, 0);
      EXPECT_LT(plan.depth, 1000);
      EXPECT_GE(plan.seconds, 0.0);
    }
  }
}

// ---- 64-bit sizes ---------------------------------------------------------------------------------------------------

TEST(memory, memory_of_more_than_four_gibibytes_is_reached_to_its_end) {
  const machine m = play(shipped("pair_nvlink"));
  const auto leases = weft::enable_all_peers(m);
  const std::size_t size = (std::size_t{5} << 30) + 12345;  // sparse: only what is touched takes memory
  const byte_buffer a{m[0], size};
  const byte_buffer b{m[1], size};
  EXPECT_EQ(a.size_bytes().value(), size);
  EXPECT_EQ(weft::address_range(m[0], a.data() + size - 1).size.value(), size);
  const auto data = pattern((std::size_t{2} << 20) + 1, 12);
  for (const std::size_t offset :
       {(std::size_t{1} << 32) - (std::size_t{1} << 20), (std::size_t{1} << 31) - 5, size - data.size()}) {
    weft::copy(a.subspan(offset, data.size()), data);
    weft::copy(b.subspan(offset, data.size()), a.subspan(offset, data.size()));
    std::vector<std::uint8_t> got(data.size());
    weft::copy(got, b.subspan(offset, data.size()));
    EXPECT_TRUE(same(got, data)) << "at " << offset;
  }
  std::vector<std::uint8_t> low(16, 0xFF);
  weft::copy(low, b.subspan(data.size() - 16, 16));  // where a truncated offset would have landed
  EXPECT_TRUE(same(low, std::vector<std::uint8_t>(16, low[0]))) << "data went to the low addresses";
  const weft::error past = error_of([&] { weft::copy_peer(m, b.data() + 1, gpu1, a.data(), gpu0, bytes{size}); });
  EXPECT_EQ(past.code, errc::out_of_range);
}

// ---- accesses of kernels --------------------------------------------------------------------------------------------

TEST(checked_access, a_kernel_beyond_its_declaration_loses_its_device_alone) {
  weft::machine_options options;
  options.sim = "pair_nvlink";
  options.check_access = true;
  const machine m{options};
  const buffer<std::uint32_t> memory{m[0], 1000};
  weft::fill(memory, 5U);
  const weft::stream order{m[0]};
  const weft::event wrong = weft::launch<checklist_overrun>(order, weft::range(100), memory, 500U);
  const weft::error e = error_of([&] { wrong.wait(); });
  EXPECT_EQ(e.code, errc::illegal_access) << e.what;
  EXPECT_NE(e.what.find("checklist_overrun"), std::string::npos) << e.what;
  EXPECT_NE(e.what.find("dst"), std::string::npos) << e.what;
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost());
}

TEST(checked_access, is_a_matter_of_the_environment_too_and_the_default_of_a_debug_build) {
  const auto code = [](const char* value, std::optional<bool> asked) {
    if (value != nullptr) ::setenv("WEFT_CHECK", value, 1);  // NOLINT(concurrency-mt-unsafe): in the one thread
    weft::machine_options options;
    options.sim = "pair_nvlink";
    options.check_access = asked;
    const machine m{options};
    ::unsetenv("WEFT_CHECK");  // NOLINT(concurrency-mt-unsafe)
    const buffer<std::uint32_t> memory{m[0], 1000};
    const weft::event past = weft::launch<checklist_overrun>(weft::stream{m[0]}, weft::range(1), memory, 1U);
    return error_of([&] { past.wait(); }).code;
  };
  const errc none = error_of([] {}).code;
#ifdef NDEBUG
  EXPECT_EQ(code(nullptr, {}), none);
#else
  EXPECT_EQ(code(nullptr, {}), errc::illegal_access);
#endif
  EXPECT_EQ(code("0", {}), none);
  EXPECT_EQ(code("1", {}), errc::illegal_access);
  EXPECT_EQ(code("1", false), none) << "the program wins";
}

TEST(checked_access, lets_a_right_kernel_pass) {
  weft::machine_options options;
  options.sim = "pair_nvlink";
  options.check_access = true;
  const machine m{options};
  const buffer<std::uint32_t> src{m[0], 1000};
  const buffer<std::uint32_t> dst{m[0], 1000};
  weft::fill(src, 5U);
  weft::launch<checklist_next>(weft::stream{m[0]}, weft::range(1000), src, dst).wait();
  std::vector<std::uint32_t> got(1000);
  weft::copy(got, dst);
  for (std::uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(got[i], 35U + i) << i;
}

// ---- addresses that nobody may follow: each in a child process ------------------------------------------------------

#ifdef WEFT_TSAN
constexpr bool is_tsan = true;
#else
constexpr bool is_tsan = false;
#endif

constexpr int survived = 42;

/// A signal, or what a sanitizer makes of one.
bool died(int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS;
  return WIFEXITED(status) && WEXITSTATUS(status) != survived && WEXITSTATUS(status) != 0;
}

class stray_pointer : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static machine open(bool strict) {
    weft::machine_options options;
    options.sim = "pair_nvlink";
    options.strict = strict;
    return machine{options};
  }
  static void write_through(volatile std::uint8_t* address) { *address = 1; }
};

TEST_F(stray_pointer, a_pointer_of_a_device_faults_on_the_host_in_strict_mode) {
  const auto follow = [](bool strict) {
    const machine m = open(strict);
    const byte_buffer memory{m[0], 4096};
    weft::fill(memory, std::uint8_t{1});
    write_through(memory.data() + 17);
    _exit(survived);
  };
  if (is_tsan) {
    EXPECT_EXIT(follow(true), testing::ExitedWithCode(survived), "")
        << "one address per allocation under ThreadSanitizer";
  } else {
    EXPECT_EXIT(follow(true), died, "");
  }
  EXPECT_EXIT(follow(false), testing::ExitedWithCode(survived), "");
}

TEST_F(stray_pointer, a_pointer_to_pinned_or_unified_memory_is_good_on_the_host_in_strict_mode) {
  const auto follow = [] {
    const machine m = open(true);
    const weft::pinned_buffer<std::uint8_t> pinned{m[0], 4096};
    const weft::unified_buffer<std::uint8_t> unified{m[0], 4096};
    write_through(pinned.data() + 17);
    write_through(unified.data() + 17);
    _exit(survived);
  };
  EXPECT_EXIT(follow(), testing::ExitedWithCode(survived), "");
}

TEST_F(stray_pointer, into_a_mapping_faults_after_unmap) {
  const auto follow = [](bool after) {
    const machine m = open(false);
    weft::enable_peer(m, gpu0, gpu1);
    const byte_buffer theirs{m[1], 3 * 4096};
    auto* const view = static_cast<std::uint8_t*>(weft::map_peer_memory(m, theirs.data(), gpu1, gpu0, bytes{3 * 4096}));
    if (after) weft::unmap_peer_memory(m, view, gpu0);
    const weft::stream by{m[0]};
    by.call([view] { write_through(view + 5000); }).wait();
    _exit(contents(theirs)[5000] == 1 ? survived : 0);
  };
  EXPECT_EXIT(follow(false), testing::ExitedWithCode(survived), "");
  EXPECT_EXIT(follow(true), died, "");
}

TEST_F(stray_pointer, into_a_mapping_faults_after_disable) {
  const auto follow = [] {
    const machine m = open(false);
    weft::enable_peer(m, gpu0, gpu1);
    const byte_buffer theirs{m[1], 4096};
    auto* const view = static_cast<std::uint8_t*>(weft::map_peer_memory(m, theirs.data(), gpu1, gpu0, bytes{4096}));
    weft::disable_peer(m, gpu0, gpu1);
    weft::stream{m[0]}.call([view] { write_through(view); }).wait();
    _exit(survived);
  };
  EXPECT_EXIT(follow(), died, "");
}

}  // namespace checklist_test
