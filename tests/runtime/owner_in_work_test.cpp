// SPDX-License-Identifier: Apache-2.0
// A handle that work has captured may be the last one, and go on the very thread that does the work.
#include "support/hang.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

namespace owner_in_work_test {

WEFT_KERNEL(set_to_index, (WEFT_OUT(int32_t) out), { out[i] = (int32_t)i; });

class owner_in_work : public ::testing::TestWithParam<weft::clock_kind> {
 protected:
  static weft::machine open() {
    weft::machine_options options;
    options.devices = 2;
    options.clock = GetParam();
    return weft::machine{options};
  }
  template <class Done>
  static bool soon(Done done) {
    const auto until = std::chrono::steady_clock::now() + samples::only_a_hang;
    while (!done()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }
};

TEST_P(owner_in_work, the_last_handle_of_a_machine_closes_it) {
  auto m = std::make_unique<weft::machine>(open());
  const weft::buffer<int> outlives{(*m)[0], 16};
  auto order = std::make_unique<weft::stream>((*m)[0]);
  const weft::event done = order->call([held = std::shared_ptr<weft::machine>(std::move(m))] {});
  EXPECT_NO_THROW(done.wait());
  EXPECT_TRUE(soon([&] {
    try {
      static_cast<void>(outlives.on().free_memory());
      return false;
    } catch (const weft::error_exception& closed) {
      return closed.code() == weft::errc::machine_closed;
    }
  }));
}

TEST_P(owner_in_work, a_stream_held_by_its_own_work_ends_with_it) {
  const weft::machine m = open();
  auto order = std::make_shared<weft::stream>(m[1]);
  const weft::event done = order->call([order] {});
  order.reset();
  EXPECT_NO_THROW(done.wait());
  EXPECT_NO_THROW(m.synchronize());
}

TEST_P(owner_in_work, peer_access_held_by_work_ends_after_it) {
  const weft::machine m = open();
  auto access = std::make_shared<weft::peer_access>(m, weft::device_id{0}, weft::device_id{1});
  const weft::stream order{m[0]};
  order.call([access] {});
  access.reset();
  EXPECT_EQ(m.synchronize_for(samples::only_a_hang), weft::wait_outcome::ok);
  EXPECT_TRUE(soon([&] { return !weft::peer_enabled(m, weft::device_id{0}, weft::device_id{1}); }));
}

// What a refused call was given goes before the call comes back, and closing waits for calls.
TEST_P(owner_in_work, the_last_handle_in_a_refused_call_closes_the_machine_of_that_call) {
  weft::topology layout = weft::host_topology(1, weft::bytes{1 << 20});
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::call_fails;
  fault.call = "call";
  layout.faults.push_back(fault);
  weft::machine_options options;
  options.machine = layout;
  options.clock = GetParam();
  auto m = std::make_unique<weft::machine>(options);
  const weft::buffer<int> outlives{(*m)[0], 16};
  const weft::stream order{(*m)[0]};
  try {
    static_cast<void>(order.call([held = std::shared_ptr<weft::machine>(std::move(m))] {}));
    FAIL() << "the call was taken";
  } catch (const weft::error_exception& refused) {
    EXPECT_NE(refused.code(), weft::errc::machine_closed) << refused.what();
  }
  EXPECT_TRUE(soon([&] {
    try {
      static_cast<void>(outlives.on().free_memory());
      return false;
    } catch (const weft::error_exception& closed) {
      return closed.code() == weft::errc::machine_closed;
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(clocks, owner_in_work,
                         ::testing::Values(weft::clock_kind::wall, weft::clock_kind::virtual_time));

TEST(launch, a_launch_stopped_before_its_start_changes_nothing) {
  weft::machine_options options;
  options.devices = 1;
  const weft::machine m{options};
  const weft::unified_buffer<std::int32_t> out{m[0], 8};
  for (auto& v : out.host()) v = -1;
  const weft::stream order{m[0]};
  std::stop_source stop;
  stop.request_stop();
  try {
    weft::launch<set_to_index>(order, {.stop = stop.get_token()}, weft::range(8), out).wait();
    FAIL() << "the launch ran";
  } catch (const weft::error_exception& cancelled) {
    EXPECT_EQ(cancelled.code(), weft::errc::cancelled);
  }
  for (const auto v : out.host()) EXPECT_EQ(v, -1);
  weft::kernels(m).add<set_to_index>();
  weft::launch(order, weft::launch_options{}, "set_to_index", weft::range(8), out).wait();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(out.host()[static_cast<std::size_t>(i)], i);
}

}  // namespace owner_in_work_test
