// SPDX-License-Identifier: Apache-2.0
// Launches over several OpenCL devices, logical arrays, reductions, pipelines of copies, and messages between devices.
#include "support/hang.hpp"
#include "support/opencl_machines.hpp"
#include "support/periodic_grids.hpp"
#include "support/samples.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/pipeline.hpp"
#include "weft/exec/reduce.hpp"
#include "weft/profile/profiler.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

namespace opencl_launch_test {

WEFT_KERNEL(counts_itself, (WEFT_INOUT(uint32_t) times, WEFT_OUT(int64_t) index), {
  times[i] = times[i] + 1U;
  index[i] = i;
});
WEFT_KERNEL(smooths, (WEFT_IN(int32_t, halo(2)) input, WEFT_OUT(int32_t) output, int64_t last), {
  int32_t left = i > 1 ? input[i - 2] : 7;
  int32_t right = i + 1 < last ? input[i + 2] : 9;
  output[i] = left + 3 * input[i] - right;
});

class opencl_launch : public samples::opencl_test {};
INSTANTIATE_TEST_SUITE_P(memories, opencl_launch, samples::both_memories, samples::name_of_memory);

weft::spread_options with(weft::balance strategy, int devices) {
  weft::spread_options options;
  options.strategy = strategy;
  if (strategy == weft::balance::weighted) {
    options.weights.resize(static_cast<std::size_t>(devices));
    std::iota(options.weights.begin(), options.weights.end(), 1.0);
  }
  return options;
}

TEST_P(opencl_launch, runs_every_index_once_with_every_strategy) {
  const weft::machine m = open();
  for (const weft::balance strategy :
       {weft::balance::automatic, weft::balance::static_equal, weft::balance::dynamic, weft::balance::memory_aware,
        weft::balance::work_stealing, weft::balance::weighted, weft::balance::guided}) {
    for (const std::int64_t count : {1, 3, 1023, 100'003}) {
      weft::array<std::uint32_t> times{m, static_cast<std::size_t>(count), 0U};
      weft::array<std::int64_t> index{m, static_cast<std::size_t>(count), std::int64_t{-1}};
      weft::launch<counts_itself>(m, with(strategy, m.device_count()), weft::range(count), times, index).wait();
      const auto seen = times.host();
      const auto where = index.host();
      for (std::size_t i = 0; i < seen.size(); ++i) {
        ASSERT_EQ(seen[i], 1U) << to_string(strategy) << ", item " << i << " of " << count;
        ASSERT_EQ(where[i], static_cast<std::int64_t>(i)) << to_string(strategy) << ", item " << i << " of " << count;
      }
    }
  }
}

TEST_P(opencl_launch, brings_each_piece_what_it_reads_of_its_neighbours) {
  const weft::machine m = open();
  constexpr std::int64_t count = 100'003;
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::int32_t>(i * i % 10'007);
  weft::array<std::int32_t> input{m, data};
  weft::array<std::int32_t> output{m, data.size(), 0};
  weft::launch<smooths>(m, weft::range(count), input, output, count - 1).wait();
  const auto got = output.host();
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::int32_t left = i > 1 ? data[i - 2] : 7;
    const std::int32_t right = i + 1 < data.size() - 1 ? data[i + 2] : 9;
    ASSERT_EQ(got[i], left + 3 * data[i] - right) << "item " << i;
  }
}

TEST_P(opencl_launch, brings_periodic_halos) { samples::expect_periodic_loops(open()); }

TEST_P(opencl_launch, reduces_over_all_devices_to_the_bits_of_one) {
  const weft::machine m = open();
  std::vector<double> data(1'000'003);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i * 2'654'435'761U % 2'001) / 7 - 140;
  const weft::array<double> values{m, data};
  weft::machine_options host;
  host.backend = "host";
  host.devices = 3;
  const weft::machine other{host};
  const weft::array<double> same{other, data};
  EXPECT_EQ(weft::sum(m, values), weft::sum(other, same));
}

WEFT_KERNEL(tallies,
            (WEFT_IN(int32_t) values, WEFT_INOUT(int64_t, reduce(sum)) total, WEFT_INOUT(int32_t, reduce(max)) most), {
              total[values[i] & 3] += values[i];
              most[0] = weft_max(most[0], values[i]);
            });

TEST_P(opencl_launch, adds_up_what_each_device_got_with_every_strategy) {
  const weft::machine m = open();
  std::vector<std::int32_t> data(100'003);
  std::vector<std::int64_t> expected(4, 1000);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::int32_t>(i * 2'654'435'761U % 1'000'003U);
    expected[static_cast<std::size_t>(data[i] & 3)] += data[i];
  }
  for (const weft::balance strategy :
       {weft::balance::static_equal, weft::balance::dynamic, weft::balance::work_stealing, weft::balance::guided}) {
    weft::array<std::int32_t> values{m, data};
    weft::array<std::int64_t> total{m, 4, std::int64_t{1000}};
    weft::array<std::int32_t> most{m, 1, -1};
    weft::launch<tallies>(m, with(strategy, m.device_count()), weft::range(static_cast<std::int64_t>(data.size())),
                          values, total, most)
        .wait();
    const auto got = total.host();
    EXPECT_EQ(std::vector<std::int64_t>(got.begin(), got.end()), expected) << to_string(strategy);
    EXPECT_EQ(most.host()[0], *std::max_element(data.begin(), data.end())) << to_string(strategy);
  }
}

WEFT_KERNEL(doubles, (WEFT_IN(float) in, WEFT_OUT(float) out), { out[i] = in[i] + in[i]; });
WEFT_KERNEL(touches, (WEFT_INOUT(uint32_t) values), { values[i] = values[i] + 1U; });

TEST_P(opencl_launch, has_the_profile_count_how_long_a_stream_stood_still_for_another) {
  const weft::machine m = open();
  const weft::stream first{m[0]}, second{m[1]};
  const weft::profiler watch{m};
  samples::gate gate;
  second.wait(gate.hold(first));
  gate.open();
  m.synchronize();
  const weft::machine_profile p = watch.profile();
  EXPECT_EQ(p.devices[1].waits, 1U);
  EXPECT_GT(p.devices[1].synchronisation.count(), 0);
}

TEST_P(opencl_launch, ends_a_pipeline_whose_device_is_lost_and_every_event_of_it) {
  const weft::machine m = open();
  if (m.device_count() < 3) GTEST_SKIP() << "fewer than three devices";
  constexpr std::size_t count = 4099;
  for (const std::size_t nth : {0U, 1U, 7U, 20U}) {
    weft::pipeline_options options;
    options.placement = {samples::gpu0, samples::gpu1, samples::gpu2};
    std::vector<float> batch(count);
    std::iota(batch.begin(), batch.end(), 1.0F);
    std::vector<std::vector<float>> results(30, std::vector<float>(count));
    std::vector<weft::event> events;
    {
      auto line = weft::make_pipeline<float>(m, count, options)
                      .kernel<doubles>("a")
                      .kernel<doubles>("b")
                      .kernel<doubles>("c")
                      .build();
      for (std::size_t b = 0; b < results.size(); ++b) {
        if (b == nth) {
          const weft::buffer<std::uint32_t> theirs{m[2], 10};  // gpu1 has no access to it
          static_cast<void>(
              samples::error_of([&] { weft::launch<touches>(weft::stream{m[1]}, weft::range(10), theirs).wait(); }));
          EXPECT_TRUE(m[1].is_lost());
        }
        const weft::error cause = samples::error_of([&] { events.push_back(line.push(batch, results[b])); });
        if (cause.code == weft::errc::not_ready) continue;
        EXPECT_EQ(cause.code, weft::errc::device_lost) << cause.what;
        EXPECT_NE(cause.what.find("gpu1"), std::string::npos) << cause.what;
        break;
      }
      for (std::size_t b = 0; b < events.size(); ++b) {
        const weft::error cause =
            samples::error_of([&] { EXPECT_EQ(events[b].wait_for(samples::soon), weft::wait_outcome::ok); });
        if (cause.code == weft::errc::not_ready) {
          EXPECT_EQ(results[b].back(), 8.0F * static_cast<float>(count)) << "batch " << b;
        } else {
          EXPECT_EQ(cause.code, weft::errc::device_lost) << cause.what;
        }
      }
    }
    m[1].reset();
    for (const weft::device& d : m.devices()) {
      const auto data = samples::pattern(4097, nth);
      EXPECT_TRUE(samples::same(samples::contents(samples::filled(d, data)), data)) << to_string(d.id());
    }
  }
}

WEFT_KERNEL(sends_some, (WEFT_RING out, uint64_t count, uint64_t polls, uint64_t closes, WEFT_OUT(int32_t) outcome), {
  outcome[i] = 0;
  for (uint64_t n = 0; n < count && outcome[i] == 0; ++n) {
    const uint64_t message = n * 3;
    outcome[i] = weft_ring_send(out, &message, polls);
  }
  if (closes != 0) {
    weft_ring_close_writer(out);
  }
});

TEST_P(opencl_launch, tells_who_reads_a_queue_whose_kernel_has_ended) {
  const weft::machine m = open();
  if (m.device_count() < 2) GTEST_SKIP() << "one device";
  if (!m[0].has(weft::capability::native_atomics)) GTEST_SKIP() << "no shared memory with atomics";
  constexpr std::uint64_t polls = 2'000'000'000;
  for (const bool closes : {false, true}) {
    weft::queue_options options;
    options.capacity = 16;
    options.timeout = samples::only_a_hang;
    const weft::message_queue<std::uint64_t> queue{m, samples::gpu0, samples::gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    const weft::buffer<std::int32_t> outcome{m[0], 1};
    {
      const weft::kernel_end out{tx};
      weft::launch<sends_some>(weft::stream{m[0]}, weft::range(1), out, std::uint64_t{5}, polls,
                               std::uint64_t{closes ? 1U : 0U}, outcome)
          .wait();
    }
    std::uint64_t got = 0;
    for (std::uint64_t n = 0; n < 5; ++n) {
      ASSERT_EQ(rx.receive(got), weft::queue_status::ok) << n;
      EXPECT_EQ(got, 3 * n);
    }
    if (closes) {
      EXPECT_EQ(rx.receive(got), weft::queue_status::closed);
    } else {
      EXPECT_EQ(rx.receive_for(got, std::chrono::milliseconds{50}), weft::queue_status::timed_out);
      ASSERT_EQ(tx.send(77), weft::queue_status::ok) << "the host goes on where the kernel was";
      ASSERT_EQ(rx.receive(got), weft::queue_status::ok);
      EXPECT_EQ(got, 77U);
    }
    EXPECT_FALSE(m[0].is_lost());
  }
}

struct note {
  std::uint64_t number = 0;
  std::uint64_t mixed = 0;
};

TEST_P(opencl_launch, carries_messages_directly_where_memory_is_shared_and_says_why_elsewhere) {
  const weft::machine m = open();
  if (m.device_count() < 2) GTEST_SKIP() << "one device";
  weft::queue_options options;
  options.timeout = samples::only_a_hang;
  weft::message_queue<note> queue{m, samples::gpu0, samples::gpu1, options};
  EXPECT_EQ(queue.is_direct(), m[0].has(weft::capability::peer_to_peer)) << queue.why();
  EXPECT_NE(queue.is_direct(), !queue.why().empty());
  constexpr std::uint64_t count = 20'000;
  auto in = queue.open_receiver();
  std::jthread sender{[out = queue.open_sender()]() mutable {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (out.send({i, i * 0x9e3779b97f4a7c15ULL}) != weft::queue_status::ok) return;
    }
  }};
  for (std::uint64_t i = 0; i < count; ++i) {
    note got;
    ASSERT_EQ(in.receive(got), weft::queue_status::ok) << "message " << i;
    ASSERT_EQ(got.number, i);
    ASSERT_EQ(got.mixed, i * 0x9e3779b97f4a7c15ULL) << "message " << i;
  }
}

}  // namespace opencl_launch_test
