// SPDX-License-Identifier: Apache-2.0
// One launch over devices of two backends; arrays, reductions, pipelines and a communicator on them.
#include "support/mixed_machines.hpp"
#include "support/samples.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/pipeline.hpp"
#include "weft/exec/reduce.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"

#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

namespace opencl_mixed_launch_test {

using samples::error_of;
using weft::balance;
using weft::errc;
using weft::machine;

WEFT_KERNEL(mixed_counts,
            (WEFT_INOUT(uint32_t) times, WEFT_IN(int32_t, halo(1)) input, WEFT_OUT(int64_t) index, int64_t last), {
              times[i] = times[i] + 1U;
              int32_t right = i < last ? input[i + 1] : 0;
              index[i] = i + right;
            });
WEFT_KERNEL(mixed_twice, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t) to), { to[i] = from[i] * 2; });
WEFT_KERNEL(mixed_plus, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t) to, int32_t by), { to[i] = from[i] + by; });

constexpr balance strategies[] = {balance::automatic,    balance::static_equal,  balance::dynamic,
                                  balance::memory_aware, balance::work_stealing, balance::weighted,
                                  balance::guided};

class mixed_launch : public samples::mixed_test {};
INSTANTIATE_TEST_SUITE_P(mixtures, mixed_launch, samples::mixtures, samples::name_of_mixture);

weft::spread_options with(balance strategy, const std::vector<weft::device_id>& devices) {
  weft::spread_options options;
  options.strategy = strategy;
  options.devices.ids = devices;
  if (strategy == balance::weighted) {
    options.weights.resize(devices.size());
    std::iota(options.weights.begin(), options.weights.end(), 1.0);
  }
  return options;
}

TEST_P(mixed_launch, covers_every_item_once_on_two_devices_of_each_backend_with_each_strategy) {
  const machine m = open();
  const auto devices = samples::two_of_each(m);
  ASSERT_GE(devices.size(), 3U);
  for (const balance strategy : strategies) {
    for (const std::int64_t count : {1, 3, 1023, 100'003}) {
      const auto size = static_cast<std::size_t>(count);
      std::vector<std::int32_t> in(size);
      std::iota(in.begin(), in.end(), 5);
      weft::array<std::uint32_t> times{m, size, 0U};
      const weft::array<std::int32_t> input{m, in};
      weft::array<std::int64_t> index{m, size, std::int64_t{-1}};
      weft::launch<mixed_counts>(m, with(strategy, devices), weft::range(count), times, input, index, count - 1).wait();
      const auto seen = times.host();
      const auto where = index.host();
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(seen[i], 1U) << to_string(strategy) << ", item " << i << " of " << count;
        const std::int64_t right = i + 1 < size ? in[i + 1] : 0;
        ASSERT_EQ(where[i], static_cast<std::int64_t>(i) + right) << to_string(strategy) << ", item " << i;
      }
      EXPECT_EQ(input.host(), in);
    }
  }
}

TEST_P(mixed_launch, gives_work_to_devices_of_both) {
  const machine m = open();
  const auto devices = samples::two_of_each(m);
  std::vector<std::int32_t> in(100'000, 3), out(in.size());
  const auto run = weft::launch<mixed_twice>(m, with(balance::static_equal, devices), weft::range(100'000), in, out);
  run.wait();
  EXPECT_EQ(out, std::vector<std::int32_t>(in.size(), 6));
  const auto report = run.report();
  std::size_t with_work = 0;
  for (const auto& one : report.devices) with_work += one.items > 0 ? 1 : 0;
  EXPECT_EQ(with_work, devices.size());
}

TEST_P(mixed_launch, follows_arrays_from_one_backend_to_the_other) {
  const machine m = open();
  const auto [host, other] = samples::one_of_each(m);
  weft::array<std::int32_t> a{m, 50'000, 1}, b{m, 50'000, 0};
  for (int round = 0; round < 5; ++round) {
    weft::launch<mixed_twice>(m, {.devices = {.ids = {host.id()}}}, weft::range(50'000), a, b);
    weft::launch<mixed_twice>(m, {.devices = {.ids = {other.id()}}}, weft::range(50'000), b, a);
  }
  EXPECT_EQ(a.host(), std::vector<std::int32_t>(50'000, 1 << 10));
}

TEST_P(mixed_launch, reduces_to_the_bits_of_one_backend) {
  const machine m = open();
  std::vector<double> data(300'007);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i * 2'654'435'761U % 2'001) / 7 - 140;
  const weft::array<double> values{m, data};
  weft::machine_options host;
  host.backend = "host";
  host.devices = 3;
  const machine alone{host};
  const weft::array<double> same{alone, data};
  EXPECT_EQ(weft::sum(m, values), weft::sum(alone, same));
}

TEST_P(mixed_launch, runs_a_pipeline_with_stages_on_both) {
  const machine m = open();
  auto line = weft::make_pipeline<std::int32_t>(m, 1'000)
                  .kernel<mixed_plus>("one", {}, 1)
                  .kernel<mixed_plus>("ten", {}, 10)
                  .kernel<mixed_plus>("hundred", {}, 100)
                  .build();
  constexpr std::size_t batches = 30;
  std::vector<std::vector<std::int32_t>> in(batches), out(batches, std::vector<std::int32_t>(1'000));
  for (std::size_t b = 0; b < batches; ++b) {
    in[b].assign(1'000, static_cast<std::int32_t>(b));
    line.push(in[b], out[b]);
  }
  line.drain();
  for (std::size_t b = 0; b < batches; ++b)
    EXPECT_EQ(out[b], std::vector<std::int32_t>(1'000, static_cast<std::int32_t>(b) + 111)) << "batch " << b;
  std::set<weft::backend_kind> kinds;
  for (const auto& stage : line.report().stages) kinds.insert(m[stage.device].kind());
  if (GetParam().host_first) {
    EXPECT_EQ(kinds.size(), 2U) << "three stages, and two devices of the first backend";
  }
}

TEST_P(mixed_launch, joins_all_devices_in_a_communicator) {
  const machine m = open();
  weft::communicator all{m};
  std::vector<weft::buffer<float>> parts;
  for (const weft::device& d : m.devices()) {
    parts.emplace_back(d, 10'007U);
    weft::fill(parts.back(), static_cast<float>(d.id().value() + 1));
  }
  const auto n = static_cast<float>(m.device_count());
  all.all_reduce(parts, weft::reduce_op::sum).wait();
  for (const auto& part : parts) {
    std::vector<float> got(part.size());
    weft::copy(got, part);
    EXPECT_EQ(got, std::vector<float>(part.size(), n * (n + 1) / 2));
  }
}

TEST_P(mixed_launch, goes_on_on_the_other_backend_when_a_device_is_lost) {
  for (const balance strategy : {balance::static_equal, balance::guided, balance::work_stealing}) {
    for (std::uint64_t nth = 1; nth <= 6; ++nth) {
      auto options = samples::mixed_options(GetParam());
      options.devices.reset();
      weft::topology layout = samples::wired(2);
      weft::topology_fault fault;
      fault.what = weft::topology_fault::kind::device_lost;
      fault.device = weft::device_id{1};
      fault.nth = nth;
      layout.faults.push_back(fault);
      options.machine = layout;
      const machine m{options};
      auto spread = with(strategy, samples::two_of_each(m));
      spread.on_failure = weft::failure_policy::retry_elsewhere;
      std::vector<std::int32_t> from(9'000), to(from.size());
      std::iota(from.begin(), from.end(), 1);
      weft::launch<mixed_twice>(m, spread, weft::range(9'000), from, to).wait();
      for (std::size_t i = 0; i < to.size(); ++i)
        ASSERT_EQ(to[i], from[i] * 2) << i << ' ' << to_string(strategy) << ' ' << nth;
    }
  }
}

TEST_P(mixed_launch, tells_which_device_was_lost) {
  auto options = samples::mixed_options(GetParam());
  options.devices.reset();
  weft::topology layout = samples::wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::device_lost;
  fault.device = weft::device_id{1};
  layout.faults.push_back(fault);
  options.machine = layout;
  const machine m{options};
  std::vector<std::int32_t> from(9'000, 1), to(from.size());
  const auto run =
      weft::launch<mixed_twice>(m, with(balance::static_equal, samples::two_of_each(m)), weft::range(9'000), from, to);
  EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::device_lost);
  EXPECT_NO_THROW(m.synchronize()) << "a cause that was told is not told again";
  int lost = 0;
  for (const weft::device& d : m.devices()) lost += d.is_lost() ? 1 : 0;
  EXPECT_EQ(lost, 1);
}

}  // namespace opencl_mixed_launch_test
