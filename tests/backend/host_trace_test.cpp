// SPDX-License-Identifier: Apache-2.0
// What a trace says of each kind of operation, on both clocks.
#include "support/hang.hpp"
#include "support/raw_launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

namespace host_trace_test {

using samples::byte_buffer;
using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::raw_launch;
using samples::simulated;
using samples::traced;
using samples::wired;
using std::chrono::nanoseconds;
using weft::clock_kind;
using weft::device_id;
using weft::event;
using weft::machine;
using weft::parameter_direction;
using weft::stream;
using weft::trace_kind;
using weft::trace_record;

/// What tells two records apart, as one line.
std::string line_of(const trace_record& r) {
  return std::string{to_string(r.kind)} + " '" + r.name + "' gpu" + std::to_string(r.device.value()) + "/" +
         std::to_string(r.stream) + " " + std::to_string(r.started.count()) + ".." + std::to_string(r.ended.count()) +
         " bytes " + std::to_string(r.bytes) + " items " + std::to_string(r.items) + (r.failed ? " failed" : "");
}

std::vector<std::string> lines_of(const std::vector<trace_record>& records) {
  std::vector<std::string> lines;
  for (const trace_record& r : records) lines.push_back(line_of(r));
  return lines;
}

TEST(trace, says_what_each_kind_of_operation_did_and_when) {
  const machine m = simulated(wired(2));
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer a{m[0], 40'000}, b{m[1], 40'000};  // 1 us and 500 ns across, 4 us and 1 us from the host
  const stream order{m[0]}, other{m[1]};
  const samples::data values(40'000, 1);
  const auto records = traced(m, [&] {
    weft::copy(order, a, std::span<const std::uint8_t>{values}).wait();
    weft::copy(order, b, a);
    weft::fill(order, a, std::uint8_t{3});
    order.call([] {});
    other.wait(order.record());
    static_cast<void>(raw_launch{.items = 77, .model = weft::kernel_cost{1e-6, 0}, .launch = 9}.in(m, other));
    m.synchronize();
  });
  EXPECT_EQ(lines_of(records), (std::vector<std::string>{
                                   "copy 'host → gpu0' gpu0/1 0..5000 bytes 40000 items 0",
                                   "copy 'gpu0 → gpu1' gpu0/1 5000..6500 bytes 40000 items 0",
                                   "fill 'fill' gpu0/1 6500..6500 bytes 40000 items 0",
                                   "host_call 'host call' gpu0/1 6500..6500 bytes 0 items 0",
                                   "wait 'waits for gpu0' gpu1/1 5000..6500 bytes 0 items 0",
                                   "kernel 'idle' gpu1/1 6500..12500 bytes 0 items 77",
                               }));
  ASSERT_EQ(records.size(), 6U);
  EXPECT_EQ(records[0].from, device_id{});
  EXPECT_EQ(records[0].to, gpu0);
  EXPECT_EQ(records[0].submitted, nanoseconds{0});
  EXPECT_EQ(records[1].from, gpu0);
  EXPECT_EQ(records[1].to, gpu1);
  EXPECT_EQ(records[1].submitted, nanoseconds{5000});
  EXPECT_EQ(records[5].launch, 9U);
  EXPECT_EQ(records[5].submitted, nanoseconds{5000});
}

TEST(trace, a_trace_of_markers_and_waits_without_duration_is_empty) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = samples::play(wired(2), clock);
    const stream order{m[0]}, other{m[1]};
    const auto records = traced(m, [&] {
      const event done = order.record();
      done.wait();
      other.wait(done);
      other.record().wait();
      m.synchronize();
    });
    EXPECT_EQ(lines_of(records), std::vector<std::string>{});
  }
}

TEST(trace, a_trace_has_a_wait_for_the_host_and_failed_or_skipped_calls) {
  const machine m = simulated(wired(2));
  const stream order{m[0]}, other{m[1]};
  weft::backend& host = weft::detail::state_of(m)->backend_of(gpu0);
  const weft::event_ref opened = *host.create_gate();
  const auto records = traced(m, [&] {
    ASSERT_TRUE(host.wait_event(order.native(), opened));
    other.call([] { throw std::runtime_error{"on purpose"}; });
    other.call([] {});
    static_cast<void>(raw_launch{.model = weft::kernel_cost{1e-3, 0}}.in(m, stream{m[1]}).wait_for(nanoseconds{700}));
    host.open_gate(opened, nullptr);
    order.synchronize();
    EXPECT_NE(error_of([&] { other.synchronize(); }).what.find("on purpose"), std::string::npos);
  });
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(line_of(records[0]), "host_call 'host call' gpu1/1 0..0 bytes 0 items 0 failed");
  EXPECT_EQ(line_of(records[1]), "host_call 'host call' gpu1/1 0..0 bytes 0 items 0 failed") << "skipped";
  EXPECT_EQ(records[2].kind, trace_kind::kernel);
  EXPECT_EQ(line_of(records[3]), "wait 'waits for host' gpu0/1 0..1005000 bytes 0 items 0");
}

TEST(trace, ends_with_its_sink_and_goes_on_in_the_next) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = samples::play(wired(1), clock);
    const stream order{m[0]};
    const auto first = std::make_shared<weft::trace_sink>(), second = std::make_shared<weft::trace_sink>();
    order.call([] {}).wait();
    m.trace_to(first);
    order.call([] {}).wait();
    m.trace_to(second);
    order.call([] {}).wait();
    order.call([] {}).wait();
    m.trace_to(nullptr);
    order.call([] {}).wait();
    EXPECT_EQ(first->take().size(), 1U);
    EXPECT_EQ(second->take().size(), 2U);
    EXPECT_EQ(first.use_count(), 1) << "a sink that serves no more is let go";
  }
}

TEST(trace, numbers_the_streams_of_each_device_from_its_default_stream_on) {
  const machine m = simulated(wired(2));
  const stream a{m[1]}, b{m[1]}, first_of_gpu0{m[0]};
  {
    const stream gone{m[1]};
  }
  const stream again{m[1]}, next{m[1]};
  const auto default_stream = stream::adopt(m[1], *weft::detail::state_of(m)->backend_of(gpu1).default_stream(gpu1));
  const auto records = traced(m, [&] {
    for (const stream* s : {&default_stream, &a, &b, &again, &next, &first_of_gpu0}) s->call([] {}).wait();
  });
  std::vector<std::uint64_t> numbers;
  for (const trace_record& r : records) numbers.push_back(r.stream);
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 1})) << "the number of what went is taken again";
}

// ---- wall clock -----------------------------------------------------------------------------------------------------

TEST(wall_trace, holds_copies_that_the_caller_makes_itself) {
  const machine m = samples::play(wired(2));
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer a{m[0], 5000}, b{m[1], 5000};
  nanoseconds before{0}, after{0};
  const auto records = traced(m, [&] {
    before = m.now();
    weft::copy(b, a);  // nothing is before it: it needs no worker
    after = m.now();
  });
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].name, "gpu0 → gpu1");
  EXPECT_EQ(records[0].kind, trace_kind::copy);
  EXPECT_EQ(records[0].device, gpu1);
  EXPECT_EQ(records[0].bytes, 5000U);
  EXPECT_LE(before, records[0].started);
  EXPECT_LE(records[0].started, records[0].ended);
  EXPECT_LE(records[0].ended, after);
}

TEST(wall_trace, begins_an_operation_when_its_body_begins) {
  const machine m = samples::play(wired(1));
  const stream order{m[0]};
  nanoseconds called_back{0}, inside{0};
  const auto records = traced(m, [&] {
    samples::gate closed;
    closed.hold(order);
    const event first = order.call([] {});
    const event second = order.call([&] { inside = m.now(); });
    // on the worker, between the two
    first.record()->on_complete([&] {
      const nanoseconds begin = m.now();
      while (m.now() < begin + std::chrono::microseconds{200}) {
      }
      called_back = m.now();
    });
    closed.open();
    second.wait();
  });
  ASSERT_EQ(records.size(), 3U);
  EXPECT_LE(called_back, records[2].started);
  EXPECT_LE(records[2].started, inside);
  EXPECT_LE(inside, records[2].ended);
  EXPECT_LE(records[2].submitted, records[0].ended);
}

TEST(wall_trace, tells_how_long_a_stream_stood_still_for_another) {
  const machine m = samples::play(wired(2));
  const stream order{m[0]}, other{m[1]};
  // Whether the other stream gets to its wait before the gate opens is not for this thread to say: it tries again, and
  // waits twice as long each time.
  for (nanoseconds lead = std::chrono::microseconds{200}; lead < samples::only_a_hang / 4; lead *= 2) {
    const auto records = traced(m, [&] {
      samples::gate closed;
      const event held = closed.hold(order);
      other.wait(held);
      const event behind = other.call([] {});
      const nanoseconds asked = m.now();
      while (m.now() < asked + lead) std::this_thread::yield();
      closed.open();
      behind.wait();
    });
    if (records.size() < 3 || records[1].started >= records[0].ended) continue;
    ASSERT_EQ(records[1].kind, trace_kind::wait);
    EXPECT_EQ(records[1].name, "waits for gpu0");
    EXPECT_EQ(records[1].device, gpu1);
    EXPECT_LE(records[0].ended, records[1].ended);
    EXPECT_LE(records[1].ended, records[2].started);
    return;
  }
  FAIL() << "no wait was ever seen";
}

TEST(wall_trace, has_no_two_intervals_of_one_stream_that_overlap) {
  const machine m = samples::play(wired(3));
  const auto leases = weft::enable_all_peers(m);
  std::vector<stream> orders, others;  // all there at once: each has a track of its own
  for (int t = 0; t < 3; ++t) {
    orders.emplace_back(m[t]);
    others.emplace_back(m[(t + 2) % 3]);
  }
  const auto records = traced(m, [&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const byte_buffer a{m[t], 3000}, b{m[(t + 1) % 3], 3000}, c{m[(t + 1) % 3], 3000};
        const stream& order = orders[static_cast<std::size_t>(t)];
        const stream& other = others[static_cast<std::size_t>(t)];
        for (int i = 0; i < 60; ++i) {
          weft::copy(c, a);  // in the default stream, by this thread if it can
          other.wait(weft::copy(order, b, a));
          order.wait(other.call([] {}));
          weft::copy(c, a);
          static_cast<void>(raw_launch{}.in(m, order));
        }
        order.synchronize();
        other.synchronize();
      });
    }
    for (std::thread& t : threads) t.join();
    m.synchronize();
  });
  EXPECT_GE(records.size(), 3U * 60 * 5);
  std::map<std::pair<int, std::uint64_t>, std::vector<trace_record>> tracks;
  for (const trace_record& r : records) tracks[{r.device.value(), r.stream}].push_back(r);
  EXPECT_EQ(tracks.size(), 3U + 6U);
  for (auto& [track, of] : tracks) {
    std::sort(of.begin(), of.end(), [](const auto& x, const auto& y) { return x.started < y.started; });
    for (std::size_t i = 0; i + 1 < of.size(); ++i)
      ASSERT_LE(of[i].ended, of[i + 1].started) << line_of(of[i]) << "\n" << line_of(of[i + 1]);
  }
}

}  // namespace host_trace_test
