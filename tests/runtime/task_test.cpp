// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/task.hpp"

#include "support/samples.hpp"
#include "weft/core/log.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

namespace task_test {

using samples::byte_buffer;
using samples::error_of;
using weft::errc;
using weft::machine;
using weft::stream;
using weft::task;

task<int> number(int n) { co_return n; }
task<std::string> text_of(int n) { co_return std::to_string(co_await number(n)); }
task<std::unique_ptr<int>> movable() { co_return std::make_unique<int>(4); }
task<> failing() {
  throw std::runtime_error{"inside"};
  co_return;
}
task<int> deep(int n) {
  if (n == 0) co_return 0;
  co_return 1 + co_await deep(n - 1);
}

TEST(task, gives_its_value_through_any_depth) {
  EXPECT_EQ(weft::sync_wait(number(5)), 5);
  EXPECT_EQ(weft::sync_wait(text_of(42)), "42");
  EXPECT_EQ(*weft::sync_wait(movable()), 4);
  EXPECT_EQ(weft::sync_wait(deep(500)), 500);
}

TEST(task, is_lazy_and_may_be_dropped_unstarted) {
  bool ran = false;
  {
    auto make = [](bool& flag) -> task<> {
      flag = true;
      co_return;
    };
    const task<> never = make(ran);
  }
  EXPECT_FALSE(ran);
}

TEST(task, hands_its_exception_to_whoever_awaits_it) {
  EXPECT_THROW(weft::sync_wait(failing()), std::runtime_error);
  auto catching = []() -> task<std::string> {
    try {
      co_await failing();
    } catch (const std::runtime_error& e) {
      co_return e.what();
    }
    co_return "nothing";
  };
  EXPECT_EQ(weft::sync_wait(catching()), "inside");
}

TEST(task, awaits_events_of_several_devices_on_both_clocks) {
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    const machine m = samples::play(samples::wired(2), clock);
    auto work = [](const machine& on) -> task<std::size_t> {
      const samples::data source = samples::pattern(50'000, 1);
      const byte_buffer a{on[0], source.size()}, b{on[1], source.size()};
      const stream first{on[0]}, second{on[1]};
      co_await weft::copy(first, a, source);
      co_await weft::copy(second, b, a);
      samples::data back(source.size());
      co_await weft::copy(second, back, b);
      EXPECT_TRUE(samples::same(back, source));
      co_return back.size();
    };
    for (int i = 0; i < 20; ++i) EXPECT_EQ(weft::sync_wait(work(m)), 50'000U);
  }
}

TEST(task, a_task_that_awaits_a_failed_event_gets_its_root_cause) {
  const machine m = samples::play(samples::wired(1));
  const stream order{m[0]};
  auto work = [](const stream& in) -> task<> { co_await in.call([] { throw std::runtime_error{"the root"}; }); };
  const weft::error cause = error_of([&] { weft::sync_wait(work(order)); });
  EXPECT_EQ(cause.code, errc::kernel_failed);
  EXPECT_NE(cause.what.find("the root"), std::string::npos);
  order.synchronize();  // a co_await reports like a wait
}

TEST(task, does_not_suspend_for_an_event_that_has_ended) {
  const machine m = samples::play(samples::wired(1));
  const stream order{m[0]};
  const weft::event done = order.call([] {});
  done.wait();
  auto work = [](weft::event e) -> task<std::thread::id> {
    co_await e;
    co_await weft::event{};
    co_return std::this_thread::get_id();
  };
  EXPECT_EQ(weft::sync_wait(work(done)), std::this_thread::get_id());
}

TEST(callback, runs_on_the_one_thread_of_the_machine_and_not_on_that_of_a_device) {
  const machine m = samples::play(samples::wired(2));
  const stream a{m[0]}, b{m[1]};
  std::promise<std::thread::id> first, second, device;
  const weft::event one = a.call([&] { device.set_value(std::this_thread::get_id()); });
  one.on_done([&] { first.set_value(std::this_thread::get_id()); });
  b.call([] {}).on_done([&] { second.set_value(std::this_thread::get_id()); });
  const auto x = first.get_future().get();
  EXPECT_EQ(x, second.get_future().get());
  EXPECT_NE(x, std::this_thread::get_id());
  EXPECT_NE(x, device.get_future().get());
}

TEST(callback, a_callback_that_throws_is_logged_and_stops_nothing) {
  const machine m = samples::play(samples::wired(1));
  const stream order{m[0]};
  std::atomic<int> logged{0};
  auto before = weft::set_log_hook([&](weft::log_level, std::string_view) { ++logged; });
  order.call([] {}).on_done([] { throw 1; });
  std::promise<void> next;
  order.call([] {}).on_done([&] { next.set_value(); });
  next.get_future().wait();
  EXPECT_EQ(logged, 1);
  weft::set_log_hook(std::move(before));
}

TEST(callback, may_close_the_machine) {
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    for (int round = 0; round < 20; ++round) {
      machine m = samples::play(samples::wired(2), clock);
      std::promise<void> closed;
      std::promise<bool> other;
      {
        const stream order{m[0]}, later{m[1]};
        const weft::event e = later.record();
        e.on_done([&, e] { other.set_value(e.ready()); });
        order.call([] {}).on_done([&] {
          m.close();
          closed.set_value();
        });
      }
      ASSERT_EQ(closed.get_future().wait_for(samples::soon), std::future_status::ready);
      auto seen = other.get_future();
      ASSERT_EQ(seen.wait_for(samples::soon), std::future_status::ready) << "every callback runs once";
      EXPECT_TRUE(seen.get());
    }
  }
}

TEST(callback, may_close_the_machine_while_others_do) {
  for (int round = 0; round < 60; ++round) {
    auto m = std::make_unique<machine>(samples::play(samples::wired(2)));
    std::promise<void> begun, closed;
    {
      const stream order{(*m)[0]};
      order.call([] {}).on_done([&] {
        begun.set_value();
        const auto late = std::chrono::steady_clock::now() + samples::soon;
        while (!m->closed() && std::chrono::steady_clock::now() < late) std::this_thread::yield();
        m->close();  // somebody else is at it, and waits for this callback
        closed.set_value();
      });
    }
    begun.get_future().wait();
    std::thread other{[&] { m->close(); }};
    m->close();
    ASSERT_EQ(closed.get_future().wait_for(samples::soon), std::future_status::ready);
    other.join();
  }
}

TEST(callback, a_callback_on_a_closed_machine_runs_at_once) {
  for (const bool used_before : {false, true}) {
    machine m = samples::play(samples::wired(1));
    const stream order{m[0]};
    const weft::event done = order.call([] {});
    std::promise<void> first;
    if (used_before) {
      done.on_done([&] { first.set_value(); });
      first.get_future().wait();
    }
    m.close();
    std::promise<void> called;
    done.on_done([&] { called.set_value(); });
    EXPECT_EQ(called.get_future().wait_for(samples::soon), std::future_status::ready);
  }
}

TEST(callback, may_drop_the_last_handle_of_the_machine) {
  for (int round = 0; round < 20; ++round) {
    std::promise<void> dropped;
    {
      auto m = std::make_shared<machine>(samples::play(samples::wired(1)));
      auto order = std::make_shared<stream>((*m)[0]);
      const weft::event e = order->call([] {});
      e.on_done([m, order, &dropped]() mutable {
        order.reset();
        m.reset();
        dropped.set_value();
      });
    }
    ASSERT_EQ(dropped.get_future().wait_for(samples::soon), std::future_status::ready);
  }
}

}  // namespace task_test
