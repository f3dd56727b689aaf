// SPDX-License-Identifier: Apache-2.0
#include "weft/profile/profiler.hpp"

#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <unistd.h>

namespace profiler_test {

using samples::byte_buffer;
using samples::error_of;
using std::chrono::nanoseconds;
using weft::device_profile;
using weft::errc;
using weft::machine;
using weft::machine_profile;
using weft::profiler;
using weft::stream;
using weft::trace_kind;
using weft::trace_record;

WEFT_KERNEL(profiler_add_one, (WEFT_INOUT(uint8_t) values), { values[i] = (uint8_t)(values[i] + 1); });

/// Two devices, whose links move a byte in a nanosecond and whose memory is touched a byte in a nanosecond.
machine two_simulated() {
  weft::topology layout =
      samples::wired(2, {.host_rate = 1e9, .host_latency = 1000, .peer_rate = 2e9, .peer_latency = 500});
  for (weft::topology_device& d : layout.devices) d.bytes_per_second = 1e9;
  weft::machine_options options;
  options.machine = std::move(layout);
  options.clock = weft::clock_kind::virtual_time;
  options.model.launch_latency = nanoseconds{5000};
  return machine{options};
}

machine two() {
  weft::machine_options options;
  options.devices = 2;
  return machine{options};
}

void expect_parts(const device_profile& d, std::int64_t compute, std::int64_t transfer, std::int64_t synchronisation,
                  std::int64_t idle) {
  EXPECT_EQ(d.compute.count(), compute) << d.name;
  EXPECT_EQ(d.transfer.count(), transfer) << d.name;
  EXPECT_EQ(d.synchronisation.count(), synchronisation) << d.name;
  EXPECT_EQ(d.idle.count(), idle) << d.name;
}

constexpr std::uint64_t size = 100'000;
constexpr std::int64_t up = 1000 + 100'000;          // host to device
constexpr std::int64_t across = 500 + 50'000;        // device to device
constexpr std::int64_t kernel = 5000 + 2 * 100'000;  // reads and writes each byte

TEST(profiler, splits_the_time_of_each_device_into_its_parts) {
  const machine m = two_simulated();
  const auto leases = weft::enable_all_peers(m);
  const weft::pinned_buffer<std::uint8_t> source{m[0], size};
  const byte_buffer a{m[0], size}, b{m[1], size};
  m.synchronize();
  const stream first{m[0]}, second{m[1]};

  const profiler watch{m};
  // gpu0: copy, kernel, copy to gpu1, idle; gpu1: waits for the copy, and then computes
  weft::copy(first, a, source);
  weft::launch<profiler_add_one>(first, weft::range(size), a);
  second.wait(weft::copy(first, b, a));
  weft::launch<profiler_add_one>(second, weft::range(size), b);
  m.synchronize();

  const machine_profile p = watch.profile();
  EXPECT_TRUE(p.simulated);
  EXPECT_EQ(p.wall.count(), up + kernel + across + kernel);
  ASSERT_EQ(p.devices.size(), 2U);
  expect_parts(p.devices[0], kernel, up + across, 0, kernel);
  // the last copy arrives at gpu1: transfer there, while its stream still waits
  expect_parts(p.devices[1], kernel, across, up + kernel, 0);
  EXPECT_EQ(p.devices[0].bytes_in, size);
  EXPECT_EQ(p.devices[0].bytes_out, size);
  EXPECT_EQ(p.devices[1].bytes_in, size);
  EXPECT_EQ(p.devices[1].waits, 1U);
  ASSERT_EQ(p.kernels.size(), 1U);
  EXPECT_EQ(p.kernels[0].name, "profiler_add_one");
  EXPECT_EQ(p.kernels[0].count, 2U);
  EXPECT_EQ(p.kernels[0].items, 2 * static_cast<std::int64_t>(size));
  EXPECT_EQ(p.kernels[0].median.count(), kernel);
  EXPECT_EQ(p.pairs.size(), 2U);
  EXPECT_EQ(watch.dropped(), 0U);
  EXPECT_NE(watch.chrome_trace().find("virtual, simulated: not a measurement"), std::string::npos);
}

TEST(profiler, takes_a_copy_behind_a_kernel_for_hidden) {
  const machine m = two_simulated();
  const weft::pinned_buffer<std::uint8_t> source{m[0], size};
  const byte_buffer a{m[0], size}, b{m[0], size};
  m.synchronize();
  const stream computing{m[0]}, moving{m[0]};
  const profiler watch{m};
  weft::launch<profiler_add_one>(computing, weft::range(size), a);
  weft::copy(moving, b, source);
  m.synchronize();
  const machine_profile p = watch.profile();
  EXPECT_EQ(p.wall.count(), kernel);
  expect_parts(p.devices[0], kernel, 0, 0, 0);
  EXPECT_EQ(p.devices[0].overlapped_transfer.count(), up);
}

TEST(profiler, on_the_wall_clock_finds_every_part_and_loses_no_time) {
  const machine m = two();
  const samples::data values = samples::pattern(1 << 20, 1);
  const byte_buffer a{m[0], values.size()}, b{m[1], values.size()};
  const stream first{m[0]}, second{m[1]};
  const profiler watch{m};
  weft::copy(first, a, values);
  weft::launch<profiler_add_one>(first, weft::range(static_cast<std::int64_t>(values.size())), a);
  second.wait(first.record());
  weft::launch<profiler_add_one>(second, weft::range(static_cast<std::int64_t>(values.size())), b);
  weft::fill(second, b, std::uint8_t{7});
  m.synchronize();
  const machine_profile p = watch.profile();
  EXPECT_FALSE(p.simulated);
  EXPECT_GT(p.compute().count(), 0);
  EXPECT_GT(p.transfer().count(), 0);
  EXPECT_LE(p.compute() + p.transfer() + p.synchronisation(), p.wall * 2);
  for (const device_profile& d : p.devices) {
    EXPECT_EQ(d.compute + d.transfer + d.synchronisation + d.idle, p.wall);
    EXPECT_EQ(d.kernels, 1U);
  }
  EXPECT_EQ(p.devices[0].bytes_in, values.size());
  EXPECT_EQ(p.devices[1].fills, 1U);
  for (const trace_record& r : watch.records()) {
    EXPECT_LE(r.started, r.ended) << r.name;
    EXPECT_FALSE(r.failed);
  }
}

TEST(profiler, on_the_wall_clock_sees_a_stream_that_stands_still_for_another) {
  const machine m = two();
  const stream first{m[0]}, second{m[1]};
  profiler watch{m};
  // nobody sees when the worker of `second` begins to wait: again, until it did before the gate was opened
  const auto deadline = std::chrono::steady_clock::now() + samples::soon;
  do {
    watch.reset();
    samples::gate gate;
    second.wait(gate.hold(first));
    const weft::event after = second.call([] {});
    EXPECT_EQ(after.wait_for(std::chrono::milliseconds{5}), weft::wait_outcome::timed_out);
    gate.open();
    m.synchronize();
  } while (watch.profile().devices[1].waits == 0 && std::chrono::steady_clock::now() < deadline);
  const machine_profile p = watch.profile();
  EXPECT_EQ(p.compute().count(), 0);
  EXPECT_GT(p.devices[0].synchronisation.count(), 0) << "the host function that held it";
  EXPECT_GT(p.devices[1].synchronisation.count(), 0);
}

TEST(profiler, records_nothing_while_paused_and_forgets_at_reset) {
  const machine m = two_simulated();
  const byte_buffer a{m[0], size};
  m.synchronize();
  const auto work = [&] {
    const stream order{m[0]};
    weft::launch<profiler_add_one>(order, weft::range(size), a).wait();
  };
  profiler watch{m, {.paused = true}};
  EXPECT_FALSE(watch.is_recording());
  work();
  EXPECT_TRUE(watch.records().empty());
  watch.resume();
  watch.resume();
  EXPECT_TRUE(watch.is_recording());
  work();
  watch.pause();
  watch.pause();
  work();
  work();
  watch.resume();
  work();
  EXPECT_EQ(watch.records().size(), 2U);
  EXPECT_EQ(watch.profile().wall.count(), 2 * kernel) << "the time of the pause is nobody's";
  EXPECT_EQ(watch.profile().idle().count(), 2 * kernel) << "that of the other device";
  watch.reset();
  EXPECT_TRUE(watch.is_recording());
  EXPECT_TRUE(watch.records().empty());
  EXPECT_EQ(watch.profile().wall.count(), 0);
  work();
  EXPECT_EQ(watch.records().size(), 1U);
}

TEST(profiler, is_the_only_one_of_its_machine) {
  const machine m = two();
  {
    const profiler watch{m, {.paused = true}};
    const weft::error refused = error_of([&] { const profiler again{m}; });
    EXPECT_EQ(refused.code, errc::already_enabled);
    EXPECT_NE(refused.what.find("has a profiler already"), std::string::npos) << refused.what;
    const machine other = two();
    const profiler of_other{other};
    EXPECT_TRUE(of_other.is_recording());
  }
  const profiler next{m};
  EXPECT_TRUE(next.is_recording());
}

TEST(profiler, exactly_one_of_many_threads_starts_a_profiler_at_once) {
  const machine m = two();
  std::atomic<int> made{0}, refused{0};
  std::vector<std::unique_ptr<profiler>> kept(4);
  {
    std::vector<std::jthread> threads;
    for (auto& place : kept) {
      threads.emplace_back([&] {
        if (error_of([&] { place = std::make_unique<profiler>(m); }).code == errc::already_enabled) {
          ++refused;
        } else {
          ++made;
        }
      });
    }
  }
  EXPECT_EQ(made, 1);
  EXPECT_EQ(refused, 3);
}

TEST(profiler, gives_the_machine_back_the_sink_that_it_had) {
  const machine m = two();
  const auto own = std::make_shared<weft::trace_sink>();
  m.trace_to(own);
  const byte_buffer a{m[0], 16};
  {
    const profiler watch{m};
    weft::fill(a, std::uint8_t{1});
    EXPECT_EQ(watch.records().size(), 1U);
  }
  EXPECT_TRUE(own->take().empty());
  weft::fill(a, std::uint8_t{2});
  EXPECT_EQ(own->take().size(), 1U);
  const auto later = std::make_shared<weft::trace_sink>();
  {
    const profiler watch{m};
    m.trace_to(later);
  }
  weft::fill(a, std::uint8_t{3});
  EXPECT_EQ(later->take().size(), 1U) << "set while a profiler recorded";
  EXPECT_TRUE(own->take().empty());
}

TEST(profiler, counts_what_does_not_fit) {
  const machine m = two();
  const byte_buffer a{m[0], 16};
  profiler watch{m, {.capacity = 3}};
  for (int i = 0; i < 2; ++i) weft::fill(a, std::uint8_t{1});
  EXPECT_EQ(watch.records().size(), 2U);
  for (int i = 0; i < 3; ++i) weft::fill(a, std::uint8_t{1});
  EXPECT_EQ(watch.records().size(), 3U) << "what was looked at before counts too";
  EXPECT_EQ(watch.dropped(), 2U);
  for (int i = 0; i < 4; ++i) weft::fill(a, std::uint8_t{1});
  EXPECT_EQ(watch.dropped(), 6U) << "a look by itself";
  EXPECT_EQ(watch.profile().dropped, 6U);
  watch.reset();
  EXPECT_EQ(watch.dropped(), 0U);
  weft::fill(a, std::uint8_t{1});
  EXPECT_EQ(watch.records().size(), 1U);
}

TEST(profiler, outlives_a_machine_that_is_closed) {
  std::optional<machine> m{two()};
  profiler watch{*m};
  {
    const byte_buffer a{(*m)[0], 16};
    weft::fill(a, std::uint8_t{1});
  }
  m->close();
  EXPECT_EQ(watch.records().size(), 1U);
  EXPECT_EQ(watch.profile().devices.size(), 2U);
  watch.pause();
  EXPECT_EQ(error_of([&] { watch.resume(); }).code, errc::machine_closed);
  EXPECT_EQ(error_of([&] { const profiler late{*m}; }).code, errc::machine_closed);
  m.reset();
  EXPECT_EQ(watch.records().size(), 1U);
}

TEST(profiler, can_be_read_and_switched_while_others_work) {
  const machine m = two();
  profiler watch{m};
  {
    std::vector<std::jthread> threads;
    for (int d = 0; d < 2; ++d) {
      threads.emplace_back([&m, d] {
        const byte_buffer a{m[d], 64};
        const stream order{m[d]};
        for (int i = 0; i < 300; ++i) weft::fill(order, a, std::uint8_t{1});
        order.synchronize();
      });
    }
    threads.emplace_back([&watch] {
      for (int i = 0; i < 50; ++i) {
        watch.pause();
        static_cast<void>(watch.profile());
        watch.resume();
        static_cast<void>(watch.records());
      }
    });
  }
  for (const device_profile& d : watch.profile().devices) {
    EXPECT_EQ(d.compute + d.transfer + d.synchronisation + d.idle, watch.profile().wall);
  }
}

TEST(profiler, writes_its_trace_into_a_file_or_says_why_not) {
  const machine m = two();
  const byte_buffer a{m[0], 16};
  const profiler watch{m};
  weft::fill(a, std::uint8_t{1});
  const auto path = std::filesystem::temp_directory_path() / ("weft-trace-" + std::to_string(::getpid()) + ".json");
  watch.write_chrome_trace(path.string());
  std::ifstream file{path, std::ios::binary};
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  EXPECT_EQ(text, watch.chrome_trace());
  EXPECT_NE(text.find("\"cat\":\"fill\""), std::string::npos);
  std::filesystem::remove(path);
  for (const std::string bad : {"/nonexistent/folder/t.json", "/dev/full"}) {
    const weft::error refused = error_of([&] { watch.write_chrome_trace(bad); });
    EXPECT_EQ(refused.code, errc::io_failed) << bad;
    EXPECT_NE(refused.what.find(bad + ": "), std::string::npos) << refused.what;
  }
}

}  // namespace profiler_test
