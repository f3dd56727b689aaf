// SPDX-License-Identifier: Apache-2.0
// Kernels in virtual time: against closed forms worked out here, under noise, while somebody decides what comes next,
// and under shuffled schedules.
#include "support/raw_launch.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

namespace host_virtual_kernel_test {

using samples::byte_buffer;
using samples::error_of;
using samples::gpu0;
using samples::raw_launch;
using samples::simulated;
using samples::wired;
using std::chrono::nanoseconds;
using weft::errc;
using weft::event;
using weft::kernel_cost;
using weft::machine;
using weft::parameter_direction;
using weft::simulation;
using weft::stream;
using weft::trace_record;
using weft::wait_outcome;

constexpr nanoseconds latency{5000};

nanoseconds seconds(double s) { return nanoseconds{std::llround(s * 1e9)}; }

weft::topology with_speeds(std::initializer_list<double> speeds, double memory_rate = 0) {
  weft::topology layout = wired(static_cast<int>(speeds.size()));
  auto device = layout.devices.begin();
  for (const double speed : speeds) {
    device->speed = speed;
    device->bytes_per_second = memory_rate;
    ++device;
  }
  return weft::value_or_raise(weft::complete_topology(std::move(layout)));
}

nanoseconds time_of(const machine& m, const std::function<void()>& f) {
  const auto begin = m.now();
  f();
  return m.now() - begin;
}

/// Burns an amount of real time that differs from call to call and from run to run, and lets others go first.
void be_late() {
  static std::atomic<std::uint64_t> state{0x853c49e6748fea9b};
  std::uint64_t drawn = state.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
  drawn = (drawn ^ (drawn >> 31)) * 0xbf58476d1ce4e5b9;
  volatile std::uint64_t sink = 0;
  for (std::uint64_t i = 0; i < (drawn >> 33) % 30'000; ++i) sink = sink + i;
  if ((drawn >> 20) % 3 == 0) std::this_thread::yield();
}

// ---- what a kernel takes --------------------------------------------------------------------------------------------

TEST(virtual_kernel, takes_the_latency_and_its_items_over_the_speed_of_its_device) {
  const std::vector<double> speeds{45, 30, 25};
  const machine m = simulated(with_speeds({45, 30, 25}));
  for (int d = 0; d < 3; ++d) {
    const stream order{m[d]};
    const double speed = speeds[static_cast<std::size_t>(d)];
    EXPECT_EQ(time_of(m, [&] { raw_launch{.items = 1'000'000, .model = kernel_cost{0, 1e-6}}.in(m, order).wait(); }),
              latency + seconds(1.0 / speed));
    EXPECT_EQ(time_of(m, [&] { raw_launch{.items = 1'000'000, .model = kernel_cost{3, 1e-6}}.in(m, order).wait(); }),
              latency + seconds(4.0 / speed));
    EXPECT_EQ(time_of(m, [&] { raw_launch{.items = 0, .model = kernel_cost{0, 1e-6}}.in(m, order).wait(); }), latency);
  }
}

TEST(virtual_kernel, has_the_latency_that_the_simulation_says) {
  simulation model;
  model.launch_latency = nanoseconds{123'456};
  const machine m = simulated(with_speeds({2}), model);
  EXPECT_EQ(time_of(m, [&] { raw_launch{.model = kernel_cost{1e-3, 0}}.in(m, stream{m[0]}).wait(); }),
            nanoseconds{123'456 + 500'000});
}

TEST(virtual_kernel, without_a_model_takes_what_its_arguments_take_in_the_memory_of_its_device) {
  for (const double rate : {0.0, 3e9}) {
    const machine m = simulated(with_speeds({7}, rate));
    const byte_buffer a{m[0], 300'000}, b{m[0], 500'000};
    const stream order{m[0]};
    const auto with = [&](std::vector<weft::kernel_argument> arguments) {
      return time_of(m, [&] { raw_launch{.arguments = std::move(arguments)}.in(m, order).wait(); });
    };
    const auto touching = [&](double size) { return latency + (rate == 0 ? nanoseconds{0} : seconds(size / rate)); };
    EXPECT_EQ(with({samples::argument(parameter_direction::in, a)}), touching(300'000));
    EXPECT_EQ(with({samples::argument(parameter_direction::in, a), samples::argument(parameter_direction::out, b)}),
              touching(800'000));
    EXPECT_EQ(with({samples::argument(parameter_direction::inout, b)}), touching(1'000'000)) << "read and written";
    weft::kernel_argument scalar;
    scalar.count = 1'000'000;
    EXPECT_EQ(with({scalar}), latency);
  }
}

TEST(virtual_kernel, refuses_a_model_that_is_no_time) {
  const machine m = simulated(with_speeds({1}));
  const stream order{m[0]};
  for (const kernel_cost wrong : {kernel_cost{-1, 0}, kernel_cost{0, -1e-9}, kernel_cost{std::nan(""), 0},
                                  kernel_cost{0, std::numeric_limits<double>::infinity()}}) {
    const auto cause = error_of([&] { static_cast<void>(raw_launch{.model = wrong}.in(m, order)); });
    EXPECT_EQ(cause.code, errc::invalid_argument);
    EXPECT_NE(cause.what.find("'idle'"), std::string::npos) << cause.what;
  }
  raw_launch{.items = std::int64_t{1} << 62, .model = kernel_cost{1e300, 1e300}}.in(m, order).wait();
  EXPECT_GT(m.now(), nanoseconds{0}) << "an absurd model stays a time";
}

TEST(simulation_options, negative_times_and_impossible_noise_are_refused) {
  const auto refused = [](const simulation& model) {
    return error_of([&] { simulated(wired(1), model); }).code == errc::invalid_argument;
  };
  EXPECT_TRUE(refused({.launch_latency = nanoseconds{-1}}));
  EXPECT_TRUE(refused({.noise = -0.1}));
  EXPECT_TRUE(refused({.noise = std::nan("")}));
  EXPECT_TRUE(refused({.delay = nanoseconds{-1}}));
  EXPECT_FALSE(refused({.launch_latency = nanoseconds{0}, .noise = 3}));
}

// ---- the engine of a device -----------------------------------------------------------------------------------------

TEST(virtual_kernels, kernels_of_one_device_take_turns_and_of_two_do_not) {
  const machine m = simulated(with_speeds({1, 1}));
  const stream a{m[0]}, b{m[0]}, other{m[1]};
  const raw_launch one{.model = kernel_cost{1e-3, 0}};
  const nanoseconds each = latency + std::chrono::milliseconds{1};
  EXPECT_EQ(time_of(m,
                    [&] {
                      static_cast<void>(one.in(m, a));
                      static_cast<void>(one.in(m, b));
                      m.synchronize();
                    }),
            2 * each);
  EXPECT_EQ(time_of(m,
                    [&] {
                      static_cast<void>(one.in(m, a));
                      static_cast<void>(one.in(m, other));
                      m.synchronize();
                    }),
            each);
}

TEST(virtual_kernels, get_their_device_by_priority_then_in_the_order_in_which_they_were_ready) {
  const machine m = simulated(with_speeds({1, 1}));
  const stream low{m[0]}, high{m[0], {.priority = 2}}, late{m[0]}, elsewhere{m[1]};
  const raw_launch one{.model = kernel_cost{1e-3, 0}};
  const nanoseconds each = latency + std::chrono::milliseconds{1};
  late.wait(raw_launch{.model = kernel_cost{0.1e-3, 0}}.in(m, elsewhere));
  const event third = one.in(m, late);  // first submitted, last ready
  const event second = one.in(m, low);
  const event second_too = one.in(m, low);
  const event first = one.in(m, high);
  m.synchronize();
  EXPECT_EQ(first.record()->ended, each);
  EXPECT_EQ(second.record()->ended, 2 * each);
  EXPECT_EQ(third.record()->ended, 3 * each) << "ready after 0.1 ms, before the second of `low`";
  EXPECT_EQ(second_too.record()->ended, 4 * each);
}

TEST(virtual_kernel, and_a_copy_of_the_same_device_overlap) {
  const machine m = simulated(with_speeds({1, 1}));
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer a{m[0], 40'000'000}, b{m[1], 40'000'000};  // 1 ms and 500 ns
  const stream compute{m[0]}, move{m[0]};
  EXPECT_EQ(time_of(m,
                    [&] {
                      static_cast<void>(raw_launch{.model = kernel_cost{1e-3, 0}}.in(m, compute));
                      weft::copy(move, b, a);
                      m.synchronize();
                    }),
            latency + std::chrono::milliseconds{1});
}

// ---- noise ----------------------------------------------------------------------------------------------------------

std::vector<double> durations(double noise, std::uint64_t seed, int device, int count) {
  simulation model;
  model.launch_latency = nanoseconds{0};
  model.noise = noise;
  model.seed = seed;
  const machine m = simulated(with_speeds({1, 1}), model);
  const stream order{m[device]};
  std::vector<double> taken;
  for (int i = 0; i < count; ++i) {
    const auto took = time_of(m, [&] { raw_launch{.model = kernel_cost{1, 0}}.in(m, order).wait(); });
    taken.push_back(std::chrono::duration<double>(took).count());
  }
  return taken;
}

TEST(virtual_noise, is_the_same_for_a_seed_and_another_for_each_device_and_kernel) {
  const auto first = durations(0.05, 1, 0, 20);
  EXPECT_EQ(durations(0.05, 1, 0, 20), first);
  EXPECT_NE(durations(0.05, 2, 0, 20), first);
  EXPECT_NE(durations(0.05, 1, 1, 20), first);
  EXPECT_EQ(std::set<double>(first.begin(), first.end()).size(), 20U);
  EXPECT_EQ(durations(0, 1, 0, 3), (std::vector<double>{1, 1, 1}));
}

TEST(virtual_noise, has_the_deviation_it_was_given) {
  constexpr int count = 2000;
  const auto taken = durations(0.05, 7, 0, count);
  const double mean = std::accumulate(taken.begin(), taken.end(), 0.0) / count;
  double squares = 0;
  for (const double t : taken) squares += (t - mean) * (t - mean);
  EXPECT_NEAR(mean, 1, 0.005);
  EXPECT_NEAR(std::sqrt(squares / count), 0.05, 0.005);
}

TEST(virtual_noise, leaves_at_least_a_tenth) {
  const auto taken = durations(10, 3, 0, 50);
  EXPECT_DOUBLE_EQ(*std::min_element(taken.begin(), taken.end()), 0.1);
}

// ---- determinism ----------------------------------------------------------------------------------------------------

void add_one(const weft::kernel_range&, std::span<const weft::kernel_argument> arguments) {
  be_late();
  const auto* in = static_cast<const std::uint8_t*>(arguments[0].address);
  auto* out = static_cast<std::uint8_t*>(arguments[1].address);
  for (std::int64_t i = 0; i < arguments[1].count; ++i) out[i] = static_cast<std::uint8_t>(in[i] + 1);
}

std::uint64_t hash_of_a_program(const simulation& model) {
  const machine m = simulated(with_speeds({4, 3, 2, 1}, 1e9), model);
  const auto leases = weft::enable_all_peers(m);
  constexpr std::size_t size = 20'000;
  const auto kernel = samples::byte_kernel("add_one", &add_one);
  std::vector<stream> moves, computes;
  std::vector<byte_buffer> from, to;
  for (const weft::device& d : m.devices()) {
    moves.emplace_back(d);
    computes.emplace_back(d);
    from.emplace_back(d, size);
    to.emplace_back(d, size);
  }
  const auto records = samples::traced(m, [&] {
    for (std::size_t round = 0; round < 4; ++round) {
      for (std::size_t i = 0; i < 4; ++i) {
        be_late();
        const std::size_t part = size / (1 + (i + round) % 4);
        computes[i].wait(weft::copy(moves[i], from[i].subspan(0, part), to[(i + 1) % 4].subspan(0, part)));
        computes[i].wait(moves[i].call([] { be_late(); }));
        const raw_launch one{
            kernel,
            1,
            {samples::argument(parameter_direction::in, from[i]), samples::argument(parameter_direction::out, to[i])}};
        moves[(i + round) % 4].wait(one.in(m, computes[i]));
        be_late();
      }
    }
    m.synchronize();
  });
  EXPECT_GT(records.size(), 48U);
  return weft::trace_hash(records);
}

TEST(virtual_trace, the_trace_of_a_program_is_the_same_under_any_real_delays) {
  simulation model;
  model.noise = 0.1;
  const std::uint64_t once = hash_of_a_program(model);
  for (int run = 1; run < 20; ++run) ASSERT_EQ(hash_of_a_program(model), once) << "run " << run;
  model.seed = 2;
  EXPECT_NE(hash_of_a_program(model), once);
}

// ---- who decides ----------------------------------------------------------------------------------------------------

/// Each device draws its next piece from one heap when it has done one, as launches over devices do. What it gets
/// depends on who comes first; a stream of low priority beside it takes what the decider leaves idle.
std::vector<trace_record> drawn_pieces() {
  const machine m = simulated(with_speeds({4, 3, 2}));
  weft::detail::callback_thread& deciders = weft::detail::state_of(m)->deciders();
  std::vector<stream> chosen, beside;
  for (const weft::device& d : m.devices()) {
    chosen.emplace_back(d, weft::stream_options{.priority = 1});
    beside.emplace_back(d);
  }
  weft::backend& host = weft::detail::state_of(m)->backend_of(gpu0);
  const weft::event_ref all_done = *host.create_gate();
  struct heap {
    std::mutex mutex;
    int next = 0;
    int open = 0;
  } left;
  constexpr int pieces = 18;
  std::function<void(std::size_t)> draw = [&](std::size_t device) {
    const std::lock_guard lock{left.mutex};
    if (left.next == pieces) {
      if (left.open == 0) host.open_gate(all_done, nullptr);
      return;
    }
    ++left.open;
    const raw_launch piece{.items = 1 + left.next++, .model = kernel_cost{0, 1e-5}};
    deciders.after(piece.in(m, chosen[device]).record(), [&, device] {
      be_late();
      be_late();
      {
        const std::lock_guard mine{left.mutex};
        --left.open;
      }
      draw(device);
    });
  };
  return samples::traced(m, [&] {
    for (std::size_t d = 0; d < 3; ++d) {
      for (int i = 0; i < 5; ++i) static_cast<void>(raw_launch{.model = kernel_cost{2e-5, 0}}.in(m, beside[d]));
    }
    for (std::size_t d = 0; d < 3; ++d) draw(d);
    EXPECT_EQ(host.wait(*all_done, weft::no_deadline, {}), wait_outcome::ok);
    static_cast<void>(raw_launch{.items = 1000}.in(m, beside[0]));  // after the decision that opened the gate
    m.synchronize();
  });
}

TEST(virtual_clock, waits_for_whoever_decides_what_comes_next) {
  const std::vector<trace_record> first = drawn_pieces();
  const std::uint64_t once = weft::trace_hash(first);
  for (int run = 1; run < 20; ++run) ASSERT_EQ(weft::trace_hash(drawn_pieces()), once) << "run " << run;
  // no gap between the pieces of a device: what was decided at an instant starts at it
  std::vector<nanoseconds> last(3, nanoseconds{0});
  int seen = 0;
  for (const trace_record& r : first) {
    if (r.stream != 1 || r.kind != weft::trace_kind::kernel) continue;
    EXPECT_EQ(r.started, last[r.device.index()]) << r.device.value() << ", " << r.items << " items";
    last[r.device.index()] = r.ended;
    ++seen;
  }
  EXPECT_EQ(seen, 18);
}

TEST(virtual_wait, returns_after_what_follows_the_same_event_is_decided) {
  for (int run = 0; run < 20; ++run) {
    const machine m = simulated(with_speeds({1}));
    const stream order{m[0]}, beside{m[0]};
    const raw_launch one{.model = kernel_cost{1e-3, 0}};
    const nanoseconds each = latency + std::chrono::milliseconds{1};
    const event first = one.in(m, order);
    event second;
    weft::detail::state_of(m)->deciders().after(first.record(), [&] {
      be_late();
      second = one.in(m, order);
    });
    first.wait();
    const event third = one.in(m, beside);
    m.synchronize();
    ASSERT_TRUE(second.is_recorded());
    ASSERT_EQ(second.record()->started, each);
    ASSERT_EQ(third.record()->started, 2 * each);
  }
}

TEST(virtual_deadline, does_not_pass_while_somebody_decides) {
  for (int run = 0; run < 20; ++run) {
    const machine m = simulated(with_speeds({1}));
    const stream order{m[0]};
    weft::backend& host = weft::detail::state_of(m)->backend_of(gpu0);
    const auto done = weft::detail::make<event>(weft::detail::state_of(m), *host.create_gate());
    const raw_launch one{.model = kernel_cost{1e-3, 0}};
    event second;
    weft::detail::state_of(m)->deciders().after(one.in(m, order).record(), [&] {
      be_late();
      second = one.in(m, order);
      weft::detail::state_of(m)->deciders().after(second.record(), [&] {
        be_late();
        host.open_gate(done.record(), nullptr);
      });
    });
    ASSERT_EQ(done.wait_for(std::chrono::seconds{1}), wait_outcome::ok);
    ASSERT_EQ(m.now(), 2 * (latency + std::chrono::milliseconds{1}));
  }
}

TEST(virtual_poll, lets_nothing_happen_while_somebody_decides) {
  for (int run = 0; run < 20; ++run) {
    const machine m = simulated(with_speeds({1}));
    const stream order{m[0]}, beside{m[0]};
    const raw_launch one{.model = kernel_cost{1e-3, 0}};
    const event first = one.in(m, order);
    event second;
    weft::detail::state_of(m)->deciders().after(first.record(), [&] {
      be_late();
      second = one.in(m, order);
    });
    beside.wait(first);
    const event last = beside.record();
    while (!last.ready()) {
    }
    m.synchronize();
    ASSERT_TRUE(second.is_recorded());
    ASSERT_EQ(second.record()->started, latency + std::chrono::milliseconds{1});
  }
}

// ---- schedules drawn from a seed ------------------------------------------------------------------------------------

struct fuzzed {
  bool right = false;
  std::uint64_t hash = 0;
};

/// A copy to gpu1 and a kernel there that reads it, with or without an order between them.
fuzzed copy_then_kernel(const simulation& model, bool ordered) {
  const machine m = simulated(with_speeds({1, 1}), model);
  const auto leases = weft::enable_all_peers(m);
  const samples::data values = samples::pattern(4000, 5);
  const byte_buffer source = samples::filled(m[0], values);
  const byte_buffer landed = samples::filled(m[1], samples::data(4000, 0));
  const byte_buffer out = samples::filled(m[1], samples::data(4000, 0));
  const stream moves{m[0]}, computes{m[1]};
  fuzzed seen;
  seen.hash = weft::trace_hash(samples::traced(m, [&] {
    const event there = weft::copy(moves, landed, source);
    if (ordered) computes.wait(there);
    static_cast<void>(raw_launch{
        samples::byte_kernel("add_one", &add_one),
        1,
        {samples::argument(parameter_direction::in, landed), samples::argument(parameter_direction::out, out)}}
                          .in(m, computes));
    m.synchronize();
  }));
  samples::data expected = values;
  for (std::uint8_t& v : expected) ++v;
  seen.right = samples::contents(out) == expected;
  return seen;
}

TEST(shuffled_schedule, shows_that_an_order_is_missing_and_none_where_it_is_there) {
  EXPECT_TRUE(copy_then_kernel({}, false).right) << "the plain schedule hides what is missing";
  simulation model;
  model.delay = std::chrono::microseconds{20};
  int wrong = 0;
  std::set<std::uint64_t> hashes;
  for (model.shuffle = 1; model.shuffle <= 50; ++model.shuffle) {
    const fuzzed seen = copy_then_kernel(model, false);
    if (!seen.right) ++wrong;
    hashes.insert(seen.hash);
    EXPECT_EQ(copy_then_kernel(model, false).hash, seen.hash) << "seed " << model.shuffle;
    EXPECT_TRUE(copy_then_kernel(model, true).right) << "seed " << model.shuffle;
  }
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 50);
  EXPECT_EQ(hashes.size(), 50U);
}

std::vector<int> order_of_calls(std::uint64_t shuffle) {
  simulation model;
  model.shuffle = shuffle;
  const machine m = simulated(wired(3), model);
  std::vector<stream> orders;
  std::vector<int> seen;
  for (int i = 0; i < 6; ++i) orders.emplace_back(m[i % 3]);
  for (int i = 0; i < 6; ++i) orders[static_cast<std::size_t>(i)].call([&seen, i] { seen.push_back(i); });
  m.synchronize();
  EXPECT_EQ(m.now(), nanoseconds{0}) << "without a delay a shuffle takes no time";
  return seen;
}

TEST(shuffled_schedule, permutes_what_is_ready_at_the_same_instant) {
  const std::vector<int> plain{0, 1, 2, 3, 4, 5};
  EXPECT_EQ(order_of_calls(0), plain);
  std::set<std::vector<int>> seen;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<int> order = order_of_calls(seed);
    EXPECT_EQ(order_of_calls(seed), order);
    EXPECT_TRUE(std::is_permutation(order.begin(), order.end(), plain.begin(), plain.end()));
    seen.insert(order);
  }
  EXPECT_GT(seen.size(), 15U);
}

TEST(shuffled_schedule, keeps_priorities_and_the_order_of_a_stream) {
  simulation model;
  model.delay = nanoseconds{0};
  for (model.shuffle = 1; model.shuffle <= 20; ++model.shuffle) {
    const machine m = simulated(with_speeds({1}), model);
    const stream low{m[0]}, high{m[0], {.priority = 1}};
    const raw_launch one{.model = kernel_cost{1e-3, 0}};
    const event third = one.in(m, low), fourth = one.in(m, low), first = one.in(m, high), second = one.in(m, high);
    m.synchronize();
    EXPECT_LT(first.record()->ended, second.record()->ended);
    EXPECT_LT(second.record()->ended, third.record()->ended);
    EXPECT_LT(third.record()->ended, fourth.record()->ended);
  }
}

TEST(delayed_operations, are_refused_at_once_when_the_machine_is_closed) {
  simulation model;
  model.shuffle = 4;
  model.delay = std::chrono::hours{1};
  machine m = simulated(wired(1), model);
  const stream order{m[0]};
  const event never = order.call([] { FAIL() << "it ran"; });
  EXPECT_EQ(never.wait_for(nanoseconds{1}), wait_outcome::timed_out) << "its delay is drawn by now";
  m.close();
  ASSERT_TRUE(never.failure());
  EXPECT_EQ(never.failure()->code, errc::cancelled);
}

TEST(delayed_operations, are_reached_by_a_deadline_and_by_polls) {
  simulation model;
  model.shuffle = 4;
  model.delay = std::chrono::milliseconds{1};
  const machine m = simulated(wired(1), model);
  const stream order{m[0]};
  for (int i = 0; i < 5; ++i) order.call([] {});
  const event done = order.record();
  EXPECT_EQ(done.wait_for(nanoseconds{1}), wait_outcome::timed_out);
  EXPECT_EQ(m.now(), nanoseconds{1});
  int polls = 0;
  while (!done.ready() && polls < 1000) ++polls;
  EXPECT_LT(polls, 100);
  EXPECT_GT(m.now(), std::chrono::microseconds{100});
}

}  // namespace host_virtual_kernel_test
