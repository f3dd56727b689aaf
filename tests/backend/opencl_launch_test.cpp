// SPDX-License-Identifier: Apache-2.0
// Launches over several OpenCL devices, logical arrays, reductions, pipelines of copies, and messages between devices.
#include "support/opencl_machines.hpp"
#include "support/samples.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/reduce.hpp"

#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

namespace {

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

struct note {
  std::uint64_t number = 0;
  std::uint64_t mixed = 0;
};

TEST_P(opencl_launch, carries_messages_where_memory_is_shared_and_says_so_elsewhere) {
  const weft::machine m = open();
  if (m.device_count() < 2) GTEST_SKIP() << "one device";
  if (!m[0].has(weft::capability::native_atomics)) {
    const weft::error cause =
        samples::error_of([&] { const weft::message_queue<note> queue(m, samples::gpu0, samples::gpu1); });
    EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
    EXPECT_NE(cause.what.find("no fine-grained shared memory"), std::string::npos) << cause.what;
    return;
  }
  weft::message_queue<note> queue{m, samples::gpu0, samples::gpu1};
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

}  // namespace
