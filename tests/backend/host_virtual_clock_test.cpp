// SPDX-License-Identifier: Apache-2.0
// Time on the virtual clock against what the topology says it must be, worked out here independently.
#include "support/samples.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/barrier.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

namespace host_virtual_clock_test {

using samples::byte_buffer;
using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::wired;
using std::chrono::nanoseconds;
using weft::copy_path;
using weft::errc;
using weft::event;
using weft::machine;
using weft::stream;
using weft::wait_outcome;

machine simulated(weft::topology layout) { return samples::play(std::move(layout), weft::clock_kind::virtual_time); }

/// latency + bytes / rate, to the nanosecond.
nanoseconds takes(double rate, std::int64_t latency_ns, std::uint64_t size) {
  return nanoseconds{latency_ns + static_cast<std::int64_t>(std::llround(static_cast<double>(size) / rate * 1e9))};
}

/// Ends `event`, and says when that was.
nanoseconds end_of(const machine& m, const event& e) {
  e.wait();
  return m.now();
}

TEST(virtual_copy, takes_latency_and_bytes_over_rate_on_each_kind_of_link) {
  const samples::wiring w{.host_rate = 7e9, .host_latency = 1300, .peer_rate = 33e9, .peer_latency = 700};
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{1'000'003}}) {
    const machine m = simulated(wired(2, w));
    const auto leases = weft::enable_all_peers(m);
    const byte_buffer a{m[0], size}, b{m[1], size}, same{m[0], size};
    const weft::pinned_buffer<std::uint8_t> pinned{m[0], size};
    const auto duration = [&](const std::function<void()>& f) {
      const auto begin = m.now();
      f();
      return m.now() - begin;
    };
    EXPECT_EQ(duration([&] { weft::copy(a, pinned); }), takes(7e9, 1300, size)) << "up, " << size;
    EXPECT_EQ(duration([&] { weft::copy(pinned, a); }), takes(7e9, 1300, size)) << "down, " << size;
    EXPECT_EQ(duration([&] { weft::copy(b, a); }), takes(33e9, 700, size)) << "across, " << size;
    EXPECT_EQ(duration([&] { weft::copy(same, a); }), nanoseconds{0}) << "within a device nothing crosses a link";
  }
}

TEST(virtual_copy, a_copy_on_the_shipped_machines_takes_the_time_of_its_path) {
  for (const char* name : {"pair_nvlink", "pcie_4", "dgx_h100", "two_socket_8", "pcie_2x2_switches"}) {
    const weft::topology layout = samples::shipped(name);
    const machine m = simulated(layout);
    const auto leases = weft::enable_all_peers(m);
    constexpr std::uint64_t size = 3'000'001;
    const byte_buffer source{m[0], size};
    for (int to = 1; to < std::min(layout.device_count(), 6); ++to) {
      if (!layout.can_access(gpu0, weft::device_id{to})) continue;
      double slowest = 1e300;
      std::int64_t latency = 0;
      for (const int l : layout.peer_paths[static_cast<std::size_t>(to)].links) {
        const weft::topology_link& link = layout.links[static_cast<std::size_t>(l)];
        slowest = std::min(slowest, link.bytes_per_second);
        latency += link.latency.count();
      }
      const byte_buffer target{m[to], size};
      weft::copy_options direct;
      direct.route.path = copy_path::direct;
      const auto begin = m.now();
      weft::copy(target, source, direct);
      EXPECT_EQ(m.now() - begin, takes(slowest, latency, size)) << name << " gpu0 to gpu" << to;
    }
  }
}

TEST(virtual_copies, over_one_wire_take_turns_and_over_two_do_not) {
  constexpr std::uint64_t size = 1'000'000;
  const nanoseconds one = takes(40e9, 500, size);
  for (const bool half : {false, true}) {
    samples::wiring w;
    w.half_duplex = half;
    const machine m = simulated(wired(3, w));
    const auto leases = weft::enable_all_peers(m);
    const byte_buffer a{m[0], size}, a2{m[0], size}, b{m[1], size}, b2{m[1], size}, b3{m[1], size}, c{m[2], size};
    const stream sa{m[0]}, sb{m[1]}, sc{m[2]};
    // there and back: one wire when half duplex
    const event there = weft::copy(sa, b, a);
    const event back = weft::copy(sb, a2, b2);
    m.synchronize();
    EXPECT_EQ(m.now(), half ? 2 * one : one);
    // the same direction twice: always one wire
    auto begin = m.now();
    const event first = weft::copy(sa, b, a);
    const event second = weft::copy(sc, b3, a2);
    m.synchronize();
    EXPECT_EQ(m.now() - begin, 2 * one);
    // different connections: never
    begin = m.now();
    const event left = weft::copy(sa, b, a);
    const event right = weft::copy(sc, c, b2);
    m.synchronize();
    EXPECT_EQ(m.now() - begin, one);
  }
}

TEST(virtual_copies, get_a_wire_when_they_are_ready_not_when_they_were_submitted) {
  constexpr std::uint64_t size = 1'000'000;
  const nanoseconds one = takes(40e9, 500, size);
  const machine m = simulated(wired(3));
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer a{m[0], size}, b{m[1], size}, b2{m[1], size}, c{m[2], size}, d{m[2], 10 * size};
  const byte_buffer far{m[1], 10 * size};
  const stream s0{m[0]}, s1{m[1]}, s2{m[2]};
  const event slow = weft::copy(s2, far, d);  // gpu2 to gpu1, ten times as long
  s0.wait(slow);
  const event submitted_first = weft::copy(s0, b, a);  // gpu0 to gpu1, ready after `slow`
  const event ready_first = weft::copy(s1, b2, a);     // the same wire, ready at once
  EXPECT_EQ(end_of(m, ready_first), one);
  EXPECT_EQ(end_of(m, submitted_first), takes(40e9, 500, 10 * size) + one);
  weft::copy(c, a);
}

TEST(virtual_staged_copy, takes_what_the_route_predicts) {
  for (const samples::wiring w : {samples::wiring{.host_rate = 10e9, .host_latency = 1000},
                                  samples::wiring{.host_rate = 25e9, .host_latency = 20'000},
                                  samples::wiring{.host_rate = 3e9, .host_latency = 0}}) {
    for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{65'536}, std::uint64_t{65'537},
                                     std::uint64_t{1'000'000}, std::uint64_t{5'000'001}, std::uint64_t{40'000'000}}) {
      const weft::topology layout = wired(2, w);
      const machine m = simulated(layout);
      const byte_buffer source{m[0], size}, target{m[1], size};
      weft::copy_options staged;
      staged.route.path = copy_path::staged;
      const auto choice = weft::route(weft::route_facts_of(layout), gpu0, gpu1, weft::bytes{size}, staged.route);
      ASSERT_TRUE(choice);
      const auto begin = m.now();
      weft::copy(target, source, staged);
      const double took = std::chrono::duration<double>(m.now() - begin).count();
      const double chunks = std::ceil(static_cast<double>(size) / static_cast<double>(choice->chunk));
      EXPECT_NEAR(took, choice->predicted_seconds, (2 * chunks + 1) * 1e-9)
          << size << " bytes in " << chunks << " chunks";
    }
  }
}

TEST(virtual_relayed_copy, takes_what_the_route_predicts) {
  const weft::topology layout =
      wired(3, {.host_rate = 1e9, .host_latency = 9000, .peer_rate = 20e9, .peer_latency = 2000});
  const machine m = simulated(layout);
  const auto leases = weft::enable_all_peers(m);
  constexpr std::uint64_t size = 9'000'001;
  const byte_buffer source{m[0], size}, target{m[1], size};
  weft::copy_options relayed;
  relayed.route.path = copy_path::relayed;
  relayed.route.via = weft::device_id{2};
  const auto choice = weft::route(weft::route_facts_of(layout), gpu0, gpu1, weft::bytes{size}, relayed.route);
  ASSERT_TRUE(choice);
  const auto begin = m.now();
  weft::copy(target, source, relayed);
  EXPECT_NEAR(std::chrono::duration<double>(m.now() - begin).count(), choice->predicted_seconds,
              1e-9 * 2 * (9'000'001.0 / static_cast<double>(choice->chunk) + 2));
}

/// Burns an amount of real time that differs from call to call.
void be_late(std::uint64_t& seed) {
  seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
  volatile std::uint64_t sink = 0;
  for (std::uint64_t i = 0; i < (seed >> 33) % 60'000; ++i) sink = sink + i;
}

std::vector<std::int64_t> trace(std::uint64_t seed, bool with_barrier) {
  const machine m = simulated(wired(4));
  const auto leases = weft::enable_all_peers(m);
  constexpr std::size_t size = 300'000;
  std::vector<stream> orders;
  std::vector<byte_buffer> memory;
  for (const weft::device& d : m.devices()) {
    orders.emplace_back(d);
    memory.emplace_back(d, 2 * size);
  }
  std::vector<weft::device_id> all{weft::device_id{0}, weft::device_id{1}, weft::device_id{2}, weft::device_id{3}};
  weft::device_barrier barrier{m, all};
  std::vector<std::int64_t> times(40, -1);
  std::size_t noted = 0;
  for (std::size_t round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 4; ++i) {
      be_late(seed);
      weft::copy(orders[i], memory[(i + 1) % 4].subspan(0, size / (i + 1)), memory[i].subspan(size, size / (i + 1)));
      const std::size_t place = noted++;
      orders[i].call([&m, &times, &seed, place] {
        be_late(seed);
        times[place] = m.now().count();
      });
      orders[(i + round) % 4].wait(orders[i].record());
    }
    for (std::size_t i = 0; with_barrier && i < 4; ++i) {
      be_late(seed);
      barrier.arrive_and_order(orders[i]);
    }
    for (std::size_t i = 0; i < 4; ++i)
      weft::copy(orders[i], memory[(i + 2) % 4].subspan(size, 1000 * (i + 1)), memory[i].subspan(0, 1000 * (i + 1)));
  }
  m.synchronize();
  times.push_back(m.now().count());
  return times;
}

TEST(virtual_time, the_time_of_a_program_is_the_same_under_any_real_delays) {
  const auto once = trace(1, false);
  for (std::uint64_t seed = 2; seed <= 20; ++seed) ASSERT_EQ(trace(seed, false), once) << "run " << seed;
}

TEST(virtual_time, the_time_of_a_program_with_barriers_is_the_same_under_any_real_delays) {
  const auto once = trace(1, true);
  for (std::uint64_t seed = 2; seed <= 20; ++seed) ASSERT_EQ(trace(seed, true), once) << "run " << seed;
}

TEST(virtual_deadline, a_deadline_before_the_end_leaves_the_clock_at_the_deadline) {
  const machine m = simulated(wired(2));
  const auto leases = weft::enable_all_peers(m);
  constexpr std::uint64_t size = 40'000'000;  // 1 ms and the latency
  const byte_buffer a{m[0], size}, b{m[1], size};
  const stream order{m[0]};
  const event done = weft::copy(order, b, a);
  EXPECT_EQ(done.wait_for(std::chrono::microseconds{400}), wait_outcome::timed_out);
  EXPECT_EQ(m.now(), std::chrono::microseconds{400});
  EXPECT_FALSE(done.failure());
  EXPECT_EQ(done.wait_for(std::chrono::microseconds{600}), wait_outcome::timed_out) << "1000 of 1000.5 us";
  EXPECT_EQ(order.synchronize_for(nanoseconds{499}), wait_outcome::timed_out);
  EXPECT_EQ(done.wait_for(nanoseconds{1}), wait_outcome::ok);
  EXPECT_EQ(m.now(), takes(40e9, 500, size));
}

TEST(virtual_barrier, opens_within_a_bounded_wait_of_the_last_who_arrives) {
  const machine m = simulated(wired(3));
  weft::device_barrier barrier{m, {weft::device_id{0}, weft::device_id{1}, weft::device_id{2}}};
  const stream a{m[0]}, b{m[1]}, c{m[2]};
  for (int round = 0; round < 300; ++round) {
    const event first = barrier.arrive(a);
    const event second = barrier.arrive(b);
    ASSERT_EQ(barrier.arrive_and_wait(c, std::chrono::seconds{1}), wait_outcome::ok) << "round " << round;
    ASSERT_TRUE(first.ready() && second.ready());
  }
  EXPECT_EQ(m.now(), nanoseconds{0}) << "nothing here takes time";
}

TEST(virtual_stall, adds_its_duration_to_the_operation_that_it_strikes) {
  weft::topology layout = wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::device_stalls;
  fault.device = gpu1;
  fault.nth = 3;
  fault.duration = std::chrono::milliseconds{50};
  layout.faults.push_back(fault);
  const machine m = simulated(layout);
  const stream order{m[1]};
  std::vector<nanoseconds> ends;
  for (int i = 0; i < 4; ++i) ends.push_back(end_of(m, order.call([] {})));
  EXPECT_EQ(ends, (std::vector<nanoseconds>{nanoseconds{0}, nanoseconds{0}, fault.duration, fault.duration}));
}

TEST(virtual_dependency, across_devices_starts_one_after_the_other) {
  constexpr std::uint64_t size = 1'000'000;
  const machine m = simulated(wired(4));
  const auto leases = weft::enable_all_peers(m);
  std::vector<byte_buffer> memory;
  std::vector<stream> orders;
  for (const weft::device& d : m.devices()) {
    memory.emplace_back(d, size);
    orders.emplace_back(d);
  }
  event before;
  for (std::size_t i = 0; i + 1 < 4; ++i) {
    orders[i].wait(before);
    before = weft::copy(orders[i], memory[i + 1], memory[i]);
  }
  EXPECT_EQ(end_of(m, before), 3 * takes(40e9, 500, size));
  EXPECT_EQ(weft::elapsed(before, before), nanoseconds{0});
}

TEST(virtual_polling, makes_progress) {
  const machine m = simulated(wired(2));
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer a{m[0], 4000}, b{m[1], 4000};
  const stream order{m[0]};
  for (int i = 0; i < 10; ++i) weft::copy(order, b, a);
  const event done = order.record();
  int polls = 0;
  while (!done.ready() && polls < 1000) ++polls;
  EXPECT_LT(polls, 100);
  EXPECT_EQ(m.now(), 10 * takes(40e9, 500, 4000));
}

TEST(virtual_priority, decides_who_gets_a_wire_first) {
  constexpr std::uint64_t size = 1'000'000;
  const machine m = simulated(wired(2));
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer a{m[0], size}, b{m[1], size}, b2{m[1], size};
  const stream low{m[0], {.priority = 0}}, high{m[0], {.priority = 3}};
  const event slow = weft::copy(low, b, a);
  const event fast = weft::copy(high, b2, a);
  EXPECT_EQ(end_of(m, fast), takes(40e9, 500, size));
  EXPECT_EQ(end_of(m, slow), 2 * takes(40e9, 500, size));
}

TEST(virtual_time, passes_for_whichever_of_several_threads_waits) {
  const machine m = simulated(wired(4));
  const auto leases = weft::enable_all_peers(m);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const byte_buffer a{m[t], 4000}, b{m[(t + 1) % 4], 4000};
      const stream order{m[t]};
      for (int i = 0; i < 100; ++i) weft::copy(order, b, a).wait();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_GE(m.now(), 100 * takes(40e9, 500, 4000));
}

}  // namespace host_virtual_clock_test
