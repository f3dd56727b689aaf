// SPDX-License-Identifier: Apache-2.0
// Every backend call is made to fail once, at each n: a program ends with an error or succeeds; it never crashes, hangs
// or loses memory.
#include "support/faults.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"
#include "weft/memory/scatter.hpp"
#include "weft/runtime/barrier.hpp"

#include <gtest/gtest.h>

#include <map>

namespace nth_failure_test {

using samples::byte_buffer;
using samples::data;
using samples::gpu0;
using samples::gpu1;
using weft::copy_path;
using weft::machine;
using weft::stream;

WEFT_KERNEL(nth_failure_next, (WEFT_IN(uint8_t) src, WEFT_OUT(uint8_t) dst), { dst[i] = (uint8_t)(src[i] + 1); });

/// A bit of everything. What it computes is checked whenever it gets through.
void program(const machine& m) {
  constexpr std::size_t size = 400'001;
  const data source = samples::pattern(size, 1);
  data expected = source;
  for (auto& b : expected) b = static_cast<std::uint8_t>(b + 1);

  std::vector<weft::peer_access> leases;
  leases.emplace_back(m, gpu0, gpu1);
  leases.emplace_back(m, gpu1, gpu0);
  const stream first{m[0]}, second{m[1], {.priority = 1}};
  const byte_buffer a{m[0], size}, b{m[1], size};
  const weft::memory_pool pool{m[0]};
  const byte_buffer pooled{pool, size};
  const weft::pinned_buffer<std::uint8_t> pinned{m[1], size};
  weft::copy(first, a, source).wait();
  weft::fill(second, b, std::uint8_t{0}).wait();
  weft::copy(pooled, a);

  weft::copy_options staged;
  staged.route.path = copy_path::staged;
  weft::copy(b, pooled, staged);
  weft::copy(first, b, a, staged).wait();
  weft::launch(second, "nth_failure_next", weft::range(static_cast<std::int64_t>(size)), a, b).wait();

  weft::device_barrier barrier{m, {gpu0, gpu1}};
  for (int round = 0; round < 2; ++round) {
    barrier.arrive_and_order(first);
    ASSERT_EQ(barrier.arrive_and_wait(second, samples::soon), weft::wait_outcome::ok);
  }
  {
    const weft::peer_mapping<std::uint8_t> view{m, a.subspan(1000, 5000), gpu1};
    weft::launch(second, "nth_failure_next", weft::range(5000), b.subspan(0, 5000), view.span()).wait();
  }
  const std::vector<weft::copy_part> parts{
      weft::part(pinned.subspan(0, size / 2), b.subspan(0, size / 2)),
      weft::part(pinned.subspan(size / 2, size - size / 2), b.subspan(size / 2, size - size / 2))};
  weft::copy_batch(second, parts).wait();
  EXPECT_TRUE(samples::same(data(pinned.host().begin(), pinned.host().end()), expected));

  std::vector<byte_buffer> shares;
  shares.emplace_back(m[0], size / 2);
  shares.emplace_back(m[1], size - size / 2);
  weft::scatter(std::span{shares}, source);
  data back(size);
  weft::gather(back, std::span{shares});
  EXPECT_TRUE(samples::same(back, source));
  m.synchronize();
}

/// Runs the program with one fault; returns whether it struck.
bool run(const weft::topology_fault& fault, const std::string& label, weft::clock_kind clock) {
  SCOPED_TRACE(label);
  weft::topology layout = samples::wired(2, {}, std::uint64_t{8} << 20);
  layout.faults.push_back(fault);
  bool struck = false;
  const machine m = samples::play(layout, clock);
  weft::kernels(m).add<nth_failure_next>();
  try {
    program(m);
  } catch (const weft::error_exception& e) {
    struck = true;
    EXPECT_NE(e.cause().what.find("injected fault"), std::string::npos) << e.what();
  }
  // whatever has failed, the machine is usable and empty
  static_cast<void>(samples::error_of([&] { m.synchronize(); }));
  for (const weft::device& d : m.devices()) {
    std::uint64_t free = 0;
    for (int i = 0; i < 3 && free == 0; ++i)
      static_cast<void>(samples::error_of([&] { free = d.free_memory().value(); }));
    EXPECT_EQ(free, d.total_memory().value()) << to_string(d.id()) << " has lost memory";
  }
  return struck;
}

class nth_failure : public testing::TestWithParam<weft::clock_kind> {};

TEST_P(nth_failure, a_failure_of_any_call_ends_the_program_with_an_error_and_loses_nothing) {
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::call_fails;
  std::uint64_t n = 1;
  std::uint64_t quiet = 0;
  // A call whose failure the library can do without (a look at free memory, the end of a mapping) ends in success;
  // thirty in a row mean that the program is over before the fault.
  for (; quiet < 30 && n < 2000; ++n) {
    fault.nth = n;
    quiet = run(fault, "call " + std::to_string(n), GetParam()) ? 0 : quiet + 1;
    if (testing::Test::HasFailure()) break;
  }
  samples::played_faults(n);
  EXPECT_GT(n, 80U) << "fewer calls than the program makes";
  EXPECT_LT(n, 2000U);
}

TEST_P(nth_failure, a_failure_of_each_function_ends_the_program_with_an_error_and_loses_nothing) {
  for (const char* call : {"allocate", "find", "enable_peer", "map_peer", "create_stream", "default_stream", "record",
                           "wait_event", "create_gate", "copy", "copy_batch", "fill", "launch", "memory"}) {
    weft::topology_fault fault;
    fault.what = weft::topology_fault::kind::call_fails;
    fault.call = call;
    int struck = 0;
    for (std::uint64_t n = 1; n < 200; ++n) {
      fault.nth = n;
      if (!run(fault, std::string{call} + " " + std::to_string(n), GetParam())) break;
      ++struck;
      if (testing::Test::HasFailure()) return;
    }
    samples::played_faults(static_cast<std::uint64_t>(struck));
    // these two are asked where a failure costs nothing but a detour
    const bool harmless = std::string_view{call} == "memory" || std::string_view{call} == "find";
    EXPECT_TRUE(struck > 0 || harmless) << call << " was never called";
  }
}

TEST_P(nth_failure, a_failure_of_any_copy_ends_the_program_with_an_error_and_loses_nothing) {
  for (const auto kind : {weft::topology_fault::kind::copy_fails, weft::topology_fault::kind::device_lost}) {
    for (std::uint64_t n = 1; n < 300; ++n) {
      weft::topology_fault fault;
      fault.what = kind;
      fault.nth = n;
      if (kind == weft::topology_fault::kind::copy_fails) {
        fault.to = gpu1;
      } else {
        fault.device = gpu1;
      }
      weft::topology layout = samples::wired(2, {}, std::uint64_t{8} << 20);
      layout.faults.push_back(fault);
      const machine m = samples::play(layout, GetParam());
      weft::kernels(m).add<nth_failure_next>();
      const weft::error cause = samples::error_of([&] { program(m); });
      if (cause.code == weft::errc::not_ready) break;
      EXPECT_TRUE(cause.code == weft::errc::copy_failed || cause.code == weft::errc::device_lost)
          << n << ": " << to_string(cause);
      samples::played_faults(1);
      static_cast<void>(samples::error_of([&] { m.synchronize(); }));
      for (const weft::device& d : m.devices())
        EXPECT_EQ(d.free_memory(), d.total_memory()) << n << ": " << to_string(d.id());
      if (testing::Test::HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(clocks, nth_failure, testing::Values(weft::clock_kind::wall, weft::clock_kind::virtual_time),
                         [](const auto& clock) { return clock.param == weft::clock_kind::wall ? "wall" : "virtual"; });

}  // namespace nth_failure_test
