// SPDX-License-Identifier: Apache-2.0
#include "runtime/machine_state.hpp"
#include "support/samples.hpp"
#include "weft/backend/order_violation.hpp"
#include "weft/core/log.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"
#include "weft/runtime/barrier.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <thread>

WEFT_KERNEL(order_produce, (WEFT_OUT(uint8_t) y), { y[i] = (uint8_t)i; });
WEFT_KERNEL(order_consume, (WEFT_IN(uint8_t) x, WEFT_OUT(uint8_t) y), { y[i] = x[i]; });
WEFT_KERNEL(order_update, (WEFT_INOUT(uint8_t) y), { y[i] = (uint8_t)(y[i] + 1); });
WEFT_KERNEL(order_whole, (WEFT_IN(uint8_t, whole) x, WEFT_OUT(uint8_t) y), { y[i] = x[0]; });

namespace order_check_test {

using samples::byte_buffer;
using samples::data;
using weft::bytes;
using weft::event;
using weft::machine;
using weft::order_violation;
using weft::stream;

constexpr std::size_t size = 4096;

machine checked(weft::topology layout, weft::clock_kind clock = weft::clock_kind::wall) {
  weft::machine_options options;
  options.machine = std::move(layout);
  options.clock = clock;
  options.check_order = true;
  return machine{options};
}

machine two() { return checked(samples::wired(2)); }

/// Takes the log for itself: a report is no surprise here.
class order_checks : public testing::Test {
 protected:
  order_checks()
      : before_(weft::set_log_hook([this](weft::log_level, std::string_view text) { log.emplace_back(text); })) {}
  ~order_checks() override { weft::set_log_hook(std::move(before_)); }
  void SetUp() override {
#ifdef WEFT_TSAN
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    if (!name.starts_with("say_nothing") && !name.starts_with("bear_eight") && !name.starts_with("let_memory"))
      GTEST_SKIP() << "what is to be found are races, and ThreadSanitizer finds them too";
#endif
  }
  std::vector<std::string> log;

 private:
  weft::log_hook before_;
};

// ---- producer and consumer ------------------------------------------------------------------------------------------

TEST_F(order_checks, name_both_lines_of_a_kernel_that_does_not_wait_for_the_copy_of_what_it_reads) {
  const machine m = two();
  const data values = samples::pattern(size, 1);
  const byte_buffer x{m[1], size}, y{m[1], size};
  const stream copies{m[1]}, kernels{m[1]};
  const unsigned copy_line = __LINE__ + 1;
  const event copied = weft::copy(copies, x, values);
  const unsigned launch_line = __LINE__ + 1;
  weft::launch<order_consume>(kernels, weft::range(size), x, y).wait();
  copied.wait();
  const auto found = m.order_violations();
  ASSERT_EQ(found.size(), 1U);
  const order_violation& v = found[0];
  EXPECT_EQ(v.first.where.line(), copy_line);
  EXPECT_EQ(v.second.where.line(), launch_line);
  EXPECT_EQ(std::string{v.first.where.file_name()}, std::string{__FILE__});
  EXPECT_EQ(v.first.what, "copy of 4 KiB from the host to gpu1");
  EXPECT_EQ(v.second.what, "kernel 'order_consume' on gpu1, argument 1 (x)");
  EXPECT_TRUE(v.first.writes);
  EXPECT_FALSE(v.second.writes);
  EXPECT_EQ(v.first.device, samples::gpu1);
  EXPECT_EQ(v.first.stream, static_cast<std::uint64_t>(copies.native()));
  EXPECT_EQ(v.second.stream, static_cast<std::uint64_t>(kernels.native()));
  EXPECT_EQ(v.base, x.data());
  EXPECT_EQ(v.offset, bytes{0});
  EXPECT_EQ(v.size, bytes{size});
  EXPECT_EQ(v.what, "the kernel 'order_consume' on gpu1 (order_check_test.cpp:" + std::to_string(launch_line) +
                        ") reads what the copy of 4 KiB from the host to gpu1 (order_check_test.cpp:" +
                        std::to_string(copy_line) +
                        ") writes, and nothing orders them; make its stream wait for the event of the copy, or wait "
                        "for that on the host before it is submitted");
  EXPECT_EQ(log, std::vector<std::string>{v.what});
}

TEST_F(order_checks, say_nothing_of_a_kernel_that_waits_by_stream_event_or_host) {
  const data values = samples::pattern(size, 1);
  const std::vector<std::function<void(const stream&, const stream&, const event&)>> ways{
      [](const stream&, const stream& kernels, const event& copied) { kernels.wait(copied); },
      [](const stream& copies, const stream& kernels, const event&) { kernels.wait(copies.record()); },
      [](const stream&, const stream&, const event& copied) { copied.wait(); },
      [](const stream&, const stream&, const event& copied) {
        EXPECT_EQ(copied.wait_for(samples::soon), weft::wait_outcome::ok);
      },
      [](const stream&, const stream&, const event& copied) {
        while (!copied.ready()) {
        }
      },
      [](const stream& copies, const stream&, const event&) { copies.synchronize(); },
      [](const stream& copies, const stream&, const event&) {
        while (!copies.idle()) {
        }
      },
      [](const stream& copies, const stream&, const event&) { copies.on().synchronize(); },
      [](const stream&, const stream& kernels, const event& copied) {
        std::promise<void> done;
        copied.on_done([&] { done.set_value(); });
        done.get_future().wait();
        static_cast<void>(kernels);
      },
      [](const stream& copies, const stream&, const event&) {
        std::promise<void> reached;
        const event told = copies.call([&] { reached.set_value(); });
        reached.get_future().wait();  // not a wait of weft's: the function says it
      },
  };
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const bool waits_itself = i == 6 || i + 1 == ways.size();
      if (waits_itself && clock == weft::clock_kind::virtual_time) continue;  // nobody would let time pass
      const machine m = checked(samples::wired(2), clock);
      const byte_buffer x{m[1], size}, y{m[1], size};
      const stream copies{m[1]}, kernels{m[1]};
      const event copied = weft::copy(copies, x, values);
      ways[i](copies, kernels, copied);
      const event ran = weft::launch<order_consume>(kernels, weft::range(size), x, y);
      EXPECT_TRUE(m.order_violations().empty()) << "way " << i << ": " << m.order_violations()[0].what;
      ran.wait();
    }
  }
}

TEST_F(order_checks, see_kernels_of_two_devices_that_share_memory) {
  const machine m = two();
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer x{m[0], size}, y{m[1], size};
  const stream first{m[0]}, second{m[1]};
  static_cast<void>(weft::launch<order_produce>(first, weft::range(size), x));
  static_cast<void>(weft::launch<order_consume>(second, weft::range(size), x, y));
  ASSERT_EQ(m.order_violations().size(), 1U);
  EXPECT_EQ(m.order_violations()[0].first.what, "kernel 'order_produce' on gpu0, argument 1 (y)");
  EXPECT_EQ(m.order_violations()[0].first.device, samples::gpu0);
  EXPECT_EQ(m.order_violations()[0].second.device, samples::gpu1);
  m.synchronize();
}

TEST_F(order_checks, see_two_writes_and_let_two_reads_be) {
  const machine m = two();
  const byte_buffer x{m[0], size}, y{m[0], size}, z{m[0], size};
  const stream a{m[0]}, b{m[0]};
  static_cast<void>(weft::launch<order_consume>(a, weft::range(size), x, y));
  static_cast<void>(weft::launch<order_consume>(b, weft::range(size), x, z));
  EXPECT_TRUE(m.order_violations().empty());
  static_cast<void>(weft::launch<order_update>(b, weft::range(size), y));
  ASSERT_EQ(m.order_violations().size(), 1U);
  EXPECT_TRUE(m.order_violations()[0].first.writes);
  EXPECT_TRUE(m.order_violations()[0].second.writes);
  m.synchronize();
}

TEST_F(order_checks, see_fills_and_batches_and_what_a_mapping_names) {
  const machine m = two();
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer x{m[0], size}, y{m[0], size};
  const stream a{m[0]}, b{m[1]};
  const unsigned fill_line = __LINE__ + 1;
  static_cast<void>(weft::fill(a, x.span(), std::uint8_t{1}));
  const unsigned batch_line = __LINE__ + 1;
  static_cast<void>(weft::copy_batch(stream{m[0]}, std::vector<weft::copy_part>{weft::part(y.span(), x.span())}));
  ASSERT_EQ(m.order_violations().size(), 1U);
  EXPECT_EQ(m.order_violations()[0].first.where.line(), fill_line);
  EXPECT_EQ(m.order_violations()[0].first.what, "fill of 4 KiB on gpu0");
  EXPECT_EQ(m.order_violations()[0].second.where.line(), batch_line);
  EXPECT_EQ(m.order_violations()[0].second.what, "copy of 4 KiB from gpu0 to gpu0");
  const weft::peer_mapping<std::uint8_t> view{m, x.span(), samples::gpu1};
  static_cast<void>(weft::fill(b, view.span(), std::uint8_t{2}));
  const auto found = m.order_violations();
  ASSERT_EQ(found.size(), 2U) << "against the fill; the stream of the batch is gone, and its work had ended";
  EXPECT_EQ(found[1].base, x.data()) << "the memory behind the mapping";
  m.synchronize();
}

// ---- what only looks unordered --------------------------------------------------------------------------------------

TEST_F(order_checks, take_parts_of_one_buffer_for_what_they_are) {
  const machine m = two();
  const byte_buffer x{m[0], size}, y{m[0], size};
  const stream a{m[0]}, b{m[0]};
  constexpr auto middle = static_cast<std::int64_t>(size / 2);
  const weft::kernel_range lower{1, {0, 0, 0}, {middle, 1, 1}};
  const weft::kernel_range upper{1, {middle, 0, 0}, {2 * middle, 1, 1}};
  static_cast<void>(weft::launch<order_update>(a, lower, x));
  static_cast<void>(weft::launch<order_update>(b, upper, x));
  // the left and the right half of a plane: rows that lie in between each other
  const data values = samples::pattern(size / 2, 1);
  weft::copy_shape plane;
  plane.width = plane.src_pitch = 32;
  plane.height = size / 64;
  plane.dst_pitch = 64;
  const auto rows = [&](const stream& order, std::size_t column) {
    weft::detail::memory_ref to = weft::detail::untyped(y.span());
    to.address = static_cast<std::byte*>(to.address) + column;
    to.size -= column;
    static_cast<void>(weft::detail::copy_in(order, to, weft::detail::untyped(std::span{values}), plane, {},
                                            std::source_location::current()));
  };
  rows(a, 0);
  rows(b, 32);
  EXPECT_TRUE(m.order_violations().empty());
  static_cast<void>(weft::launch<order_whole>(b, upper, x, y));
  const auto found = m.order_violations();
  ASSERT_EQ(found.size(), 2U) << "the whole of x is read, and y was written in two streams";
  EXPECT_EQ(found[0].size, bytes{size / 2}) << "the half of x that the other stream wrote";
  m.synchronize();
}

TEST_F(order_checks, let_memory_that_was_freed_or_pooled_begin_anew) {
  const machine m = two();
  const weft::memory_pool pool{m[0]};
  const data values = samples::pattern(size, 1);
  const stream a{m[0]}, b{m[0]};
  std::set<const void*> places;
  int again = 0;
  for (int i = 0; i < 200; ++i) {
    const stream& order = i % 2 == 0 ? a : b;
    const byte_buffer pooled{pool, size}, plain{m[0], size};
    again += places.insert(pooled.data()).second ? 0 : 1;
    again += places.insert(plain.data()).second ? 0 : 1;
    for (const event& done : {weft::copy(order, pooled, values), weft::copy(order, plain, values)}) {
      while (!done.record()->finished()) {  // looks without telling weft, so that the memory can serve again
      }
    }
  }
  EXPECT_TRUE(m.order_violations().empty()) << m.order_violations()[0].what;
  m.synchronize();
  EXPECT_GT(again, 0) << "no memory was used twice: this test has shown nothing";
}

TEST_F(order_checks, attribute_a_staged_copy_to_its_caller_and_take_no_order_from_what_it_is_staged_through) {
  const machine m = two();
  weft::copy_options staged;
  staged.route.path = weft::copy_path::staged;
  const std::size_t large = std::size_t{1} << 20;
  for (const int times : {1, 2}) {
    const byte_buffer x{m[0], large}, y{m[1], large};
    const stream a{m[1]}, b{m[1]};
    const event first = weft::copy(a, y, x, staged);
    if (times == 2) {  // ordered: the event of a staged copy is the event of all its steps
      b.wait(first);
      static_cast<void>(weft::copy(b, y, x, staged));
      EXPECT_EQ(m.order_violations().size(), 1U);
    } else {
      while (!first.record()->finished()) {  // looks without telling weft: the next one gets the same slots
      }
      const unsigned line = __LINE__ + 1;
      static_cast<void>(weft::copy(b, y, x, staged));
      const auto found = m.order_violations();
      ASSERT_EQ(found.size(), 1U);
      EXPECT_EQ(found[0].second.where.line(), line);
      EXPECT_EQ(found[0].second.what, "copy of 1 MiB from gpu0 to gpu1");
      EXPECT_EQ(found[0].second.stream, static_cast<std::uint64_t>(b.native()));
      EXPECT_EQ(found[0].base, y.data());
      EXPECT_EQ(found[0].size, bytes{large});
    }
    m.synchronize();
  }
}

TEST_F(order_checks, know_that_copies_without_a_stream_follow_both_default_streams) {
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    const machine m = checked(samples::wired(2), clock);
    for (const bool direct : {false, true}) {
      std::vector<weft::peer_access> leases;
      if (direct) leases = weft::enable_all_peers(m);
      const byte_buffer x{m[0], size}, y{m[1], size};
      for (int i = 0; i < 20; ++i) {
        static_cast<void>(weft::launch<order_update>(m[0].default_stream(), weft::range(size), x));
        static_cast<void>(weft::launch<order_update>(m[1].default_stream(), weft::range(size), y));
        weft::copy(y, x);
        static_cast<void>(weft::launch<order_update>(stream{m[0]}, weft::range(size), x).wait());
      }
      EXPECT_TRUE(m.order_violations().empty()) << m.order_violations()[0].what;
    }
  }
}

TEST_F(order_checks, know_that_barriers_and_gates_of_the_host_order) {
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    const machine m = checked(samples::wired(2), clock);
    const auto leases = weft::enable_all_peers(m);
    const byte_buffer x{m[0], size}, y{m[1], size};
    const stream a{m[0]}, b{m[1]};
    weft::device_barrier barrier{m, {samples::gpu0, samples::gpu1}};
    for (int i = 0; i < 10; ++i) {
      static_cast<void>(weft::launch<order_produce>(a, weft::range(size), x));
      static_cast<void>(barrier.arrive_and_order(a));
      static_cast<void>(barrier.arrive_and_order(b));
      static_cast<void>(weft::launch<order_consume>(b, weft::range(size), x, y));
      static_cast<void>(barrier.arrive_and_order(a));
      static_cast<void>(barrier.arrive_and_order(b));
    }
    m.synchronize();
    EXPECT_TRUE(m.order_violations().empty()) << m.order_violations()[0].what;
  }
}

TEST_F(order_checks, wait_for_a_host_function_that_may_wait_for_the_host) {
  const machine m = two();
  const byte_buffer x{m[0], size};
  const stream a{m[0]}, b{m[0]};
  samples::gate held;
  static_cast<void>(held.hold(a));
  static_cast<void>(weft::launch<order_update>(a, weft::range(size), x));
  weft::launch<order_update>(b, weft::range(size), x).wait();
  held.open();
  a.synchronize();
  EXPECT_TRUE(m.order_violations().empty()) << m.order_violations()[0].what;
}

TEST_F(order_checks, are_off_unless_asked_for_by_option_or_environment) {
  const auto races = [](const machine& m) {
    const byte_buffer x{m[0], size};
    const stream a{m[0]}, b{m[0]};
    static_cast<void>(weft::launch<order_update>(a, weft::range(size), x));
    static_cast<void>(weft::launch<order_update>(b, weft::range(size), x));
    m.synchronize();
    return m.order_violations().size();
  };
  const char* given = std::getenv("WEFT_CHECK_ORDER");
  const std::string before = given != nullptr ? given : "";
  ::unsetenv("WEFT_CHECK_ORDER");
  EXPECT_EQ(races(samples::play(samples::wired(2))), 0U);
  EXPECT_TRUE(log.empty());
  ::setenv("WEFT_CHECK_ORDER", "1", 1);
  EXPECT_EQ(races(samples::play(samples::wired(2))), 1U);
  weft::machine_options on_host;
  on_host.backend = "host";
  EXPECT_TRUE(machine{on_host}.notes().empty()) << machine{on_host}.notes()[0];
  ::setenv("WEFT_CHECK_ORDER", "0", 1);
  EXPECT_EQ(races(samples::play(samples::wired(2))), 0U);
  if (given != nullptr) {
    ::setenv("WEFT_CHECK_ORDER", before.c_str(), 1);
  } else {
    ::unsetenv("WEFT_CHECK_ORDER");
  }
}

TEST_F(order_checks, bear_eight_threads_that_hand_over_by_a_lock) {
  const machine m = two();
  const byte_buffer x{m[0], size};
  std::mutex turn;
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      const stream mine{m[0]};
      for (int i = 0; i < 50; ++i) {
        const std::lock_guard lock{turn};
        weft::launch<order_update>(mine, weft::range(size), x).wait();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(m.order_violations().empty()) << m.order_violations()[0].what;
}

}  // namespace order_check_test
