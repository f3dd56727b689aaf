// SPDX-License-Identifier: Apache-2.0
// Order, failure and the end of streams on the wall clock. What the virtual clock does is in host_virtual_clock_test.
#include "os/parking.hpp"
#include "runtime/machine_state.hpp"
#include "support/hang.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <pthread.h>
#include <thread>

namespace host_scheduler_test {

using samples::byte_buffer;
using samples::error_of;
using samples::gate;
using samples::gpu0;
using samples::gpu1;
using samples::play;
using samples::soon;
using samples::wired;
using weft::clock_kind;
using weft::errc;
using weft::event;
using weft::machine;
using weft::stream;
using weft::wait_outcome;

weft::machine_options host(int devices) {
  weft::machine_options options;
  options.backend = "host";
  options.devices = devices;
  return options;
}

[[noreturn]] void fail(const char* what) { throw std::runtime_error{what}; }

/// A gate of the backend itself: what waits for it in a stream waits until open() or the end of the machine.
struct host_gate {
  explicit host_gate(const machine& m)
      : owner(weft::detail::state_of(m)->backend_of(gpu0)),
        record(*owner.create_gate()),
        as_event(weft::detail::make<event>(weft::detail::state_of(m), record)) {}
  void open(std::shared_ptr<const weft::error> cause = nullptr) const { owner.open_gate(record, std::move(cause)); }
  weft::backend& owner;
  weft::event_ref record;
  event as_event;
};

WEFT_KERNEL(counts_up, (WEFT_INOUT(int32_t) values), { values[i] += 1; });
WEFT_KERNEL(waits_for_a_flag, (WEFT_INOUT(int32_t) values), {
  while (__atomic_load_n(&values[i], __ATOMIC_ACQUIRE) == 0) {
  }
});

TEST(host_streams, crowd_the_cores_while_more_of_them_than_cores_have_work_and_wait_for_no_value) {
  const machine m{host(1)}, other{host(1)};  // one count for both
  const weft::pinned_buffer<std::uint32_t> word{m[0], 1}, other_word{other[0], 1};
  word.host()[0] = other_word.host()[0] = 0;
  ASSERT_FALSE(weft::parking::is_crowded());
  const host_gate closed{m}, closed_too{other};
  std::vector<stream> held;
  const auto hold = [&](const machine& on, const host_gate& by, const weft::pinned_buffer<std::uint32_t>& at) {
    held.emplace_back(on[0]);
    held.back().wait(by.as_event);
    held.back().wait_value(at.data(), 1);
  };
  for (int i = 0; i < weft::parking::cores(); ++i) hold(m, closed, word);
  hold(other, closed_too, other_word);
  EXPECT_TRUE(processes::comes_true([] { return weft::parking::is_crowded(); }));
  closed.open();
  closed_too.open();
  EXPECT_TRUE(processes::comes_true([] { return !weft::parking::is_crowded(); })) << "all stand at a value";
  for (const auto* at : {&word, &other_word}) std::atomic_ref{at->host()[0]}.store(1);
  for (const stream& one : held) one.synchronize();
  EXPECT_TRUE(processes::comes_true([] { return !weft::parking::is_crowded(); })) << "all have ended";
}

TEST(host_streams, keep_their_thread_awake_between_operations_of_a_machine_that_spins) {
  weft::machine_options options = host(1);
  options.wait_policy = weft::waiting::spin;
  const machine m{options};
  const stream order{m[0]};
  clockid_t clock{};  // the processor time of the stream's thread
  order.call([&] { EXPECT_EQ(::pthread_getcpuclockid(::pthread_self(), &clock), 0); }).wait();
  const auto used = [&clock] {
    timespec seen{};
    EXPECT_EQ(::clock_gettime(clock, &seen), 0);
    return std::chrono::seconds{seen.tv_sec} + std::chrono::nanoseconds{seen.tv_nsec};
  };
  const auto before = used();
  EXPECT_TRUE(processes::comes_true([&] { return used() - before > std::chrono::milliseconds{5}; }));
}

TEST(brief_work, has_ended_when_its_call_returns_where_the_stream_is_idle) {
  const machine m{host(2)};
  const stream order{m[1]};
  const weft::buffer<std::int32_t> values{m[1], 256};
  std::vector<std::int32_t> seen(256);
  EXPECT_TRUE(order.record().ready());
  EXPECT_TRUE(weft::fill(order, values, 5).ready());
  EXPECT_TRUE(weft::launch<counts_up>(order, weft::range(256), values).ready());
  EXPECT_TRUE(weft::copy(order, seen, values).ready());
  EXPECT_EQ(seen, std::vector<std::int32_t>(256, 6));
}

TEST(brief_work, waits_for_what_came_before_it_in_its_stream) {
  const machine m{host(2)};
  const stream order{m[1]};
  const weft::buffer<std::int32_t> values{m[1], 4};
  gate before;
  before.hold(order);
  const event filled = weft::fill(order, values, 5);
  const event counted = weft::launch<counts_up>(order, weft::range(4), values);
  EXPECT_FALSE(filled.ready());
  EXPECT_FALSE(counted.ready());
  before.open();
  counted.wait();
  EXPECT_TRUE(filled.ready());
}

TEST(brief_work, is_no_kernel_that_may_wait_for_what_comes_later) {
  const machine m{host(1)};
  const stream order{m[0]};
  const weft::pinned_buffer<std::int32_t> flag{m[0], 1};
  flag.data()[0] = 0;
  const event waiting = weft::launch<waits_for_a_flag>(order, weft::range(1), flag);
  std::atomic_ref{flag.data()[0]}.store(1);
  waiting.wait();
}

TEST(brief_work, a_failure_of_brief_work_is_reported_by_its_event) {
  const machine m{host(2)};
  const stream order{m[1]};
  const weft::buffer<std::int32_t> elsewhere{m[0], 4};
  const event refused = weft::launch<counts_up>(order, weft::range(4), elsewhere);
  EXPECT_EQ(error_of([&] { refused.wait(); }).code, errc::illegal_access);
}

TEST(stream_order, holds_for_a_thousand_operations) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = play(wired(2), clock);
    const stream order{m[0]};
    std::vector<int> seen;
    for (int i = 0; i < 1000; ++i) order.call([&seen, i] { seen.push_back(i); });
    order.synchronize();
    ASSERT_EQ(seen.size(), 1000U);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(seen[static_cast<std::size_t>(i)], i);
  }
}

TEST(stream_order, holds_under_many_streams_threads_and_dependencies) {
  const machine m{host(3)};
  constexpr int threads = 3, streams_each = 4, rounds = 150;
  struct lane {
    stream order;
    std::uint64_t last = 0;  // written in stream order only: a race here is a lost order
    std::uint64_t count = 0;
  };
  std::vector<std::unique_ptr<lane>> lanes;
  for (int i = 0; i < threads * streams_each; ++i) lanes.push_back(std::make_unique<lane>(lane{stream{m[i % 3]}}));
  std::atomic<int> disordered{0};
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      event before;
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        for (int i = 0; i < streams_each; ++i) {
          lane& mine = *lanes[static_cast<std::size_t>(t * streams_each + i)];
          mine.order.wait(before);
          before = mine.order.call([&mine, &disordered, round] {
            if (mine.last + 1 != round) ++disordered;
            mine.last = round;
            ++mine.count;
          });
        }
        if (round % 20 == 0) before.wait();
      }
    });
  }
  for (std::thread& w : workers) w.join();
  m.synchronize();
  EXPECT_EQ(disordered, 0);
  for (const auto& l : lanes) EXPECT_EQ(l->count, static_cast<std::uint64_t>(rounds));
}

TEST(stream_order, holds_between_synchronous_copies_and_what_is_queued) {
  const machine m{host(1)};
  const byte_buffer memory{m[0], 64};
  const stream order = m[0].default_stream();
  std::vector<std::uint8_t> read(64);
  for (int round = 0; round < 2000; ++round) {
    const auto value = static_cast<std::uint8_t>(round);
    weft::fill(order, memory, value);  // queued, and the copy below may be run by this thread itself
    weft::copy(read, memory);
    ASSERT_EQ(read[63], value) << round;
  }
}

TEST(failed_operation, skips_what_was_queued_and_gives_all_the_first_cause) {
  const machine m{host(2)};
  const stream order{m[0]}, other{m[1]};
  gate hold;
  hold.hold(order);
  const event broken = order.call([] { fail("the root"); });
  std::atomic<int> ran{0};
  const event after = order.call([&] { ++ran; });
  other.wait(after);
  const event elsewhere = other.call([&] { ++ran; });
  hold.open();
  for (const event& e : {elsewhere, after, broken}) {
    const weft::error cause = error_of([&] { e.wait(); });
    EXPECT_EQ(cause.code, errc::kernel_failed);
    EXPECT_NE(cause.what.find("the root"), std::string::npos) << cause.what;
    EXPECT_NE(cause.what.find("gpu0"), std::string::npos) << cause.what;
  }
  EXPECT_EQ(ran, 0);
}

TEST(failed_operation, lets_the_stream_go_on_once_reported) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = play(wired(1), clock);
    const stream order{m[0]};
    EXPECT_EQ(error_of([&] { order.call([] { fail("one"); }).wait(); }).code, errc::kernel_failed);
    bool ran = false;
    order.call([&] { ran = true; }).wait();
    EXPECT_TRUE(ran);
    order.synchronize();
    EXPECT_NE(error_of([&] { order.call([] { fail("two"); }).wait(); }).what.find("two"), std::string::npos);
  }
}

TEST(failed_operation, skips_new_work_until_a_wait_has_reported_it) {
  const machine m{host(1)};
  const stream order{m[0]};
  const event broken = order.call([] { fail("unseen"); });
  while (!broken.ready()) std::this_thread::yield();
  std::atomic<int> ran{0};
  const event skipped = order.call([&] { ++ran; });
  while (!skipped.ready()) std::this_thread::yield();
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE(skipped.failure()) << "asking is not waiting: it reports nothing";
  EXPECT_NE(error_of([&] { order.synchronize(); }).what.find("unseen"), std::string::npos);
  order.call([&] { ++ran; }).wait();
  EXPECT_EQ(ran, 1);
}

TEST(stream_order, is_idle_and_synchronised_only_when_its_events_say_so_too) {
  const machine m = play(wired(1));
  const stream order{m[0]};
  samples::gate shut;
  static_cast<void>(shut.hold(order));
  const event last = order.call([] {});
  std::atomic<bool> is_ending{false}, may_end{false}, has_returned{false};
  last.record()->on_ending([&](const weft::error*) {
    is_ending = true;
    while (!may_end) std::this_thread::yield();
  });
  shut.open();
  while (!is_ending) std::this_thread::yield();
  bool was_ready = false;
  std::thread waits{[&] {
    order.synchronize();
    was_ready = last.ready();
    has_returned = true;
  }};
  for (int i = 0; i < 1000 && !has_returned; ++i) std::this_thread::yield();  // gives one that does not wait its time
  may_end = true;
  waits.join();
  EXPECT_TRUE(was_ready);
}

TEST(failed_operation, is_reported_by_synchronize_when_its_event_was_let_go_and_only_once) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = play(wired(2), clock);
    const stream order{m[1]};
    static_cast<void>(order.call([] { fail("let go"); }));
    EXPECT_NE(error_of([&] { m.synchronize(); }).what.find("let go"), std::string::npos);
    m.synchronize();
    m[1].synchronize();
    order.synchronize();
  }
}

TEST(failed_operation, a_failure_told_by_a_wait_is_not_told_again) {
  const machine m{host(2)};
  const stream order{m[0]};
  EXPECT_EQ(error_of([&] { order.call([] { fail("told"); }).wait(); }).code, errc::kernel_failed);
  order.synchronize();
  m.synchronize();
}

TEST(failed_operation, a_failure_of_a_staged_copy_is_told_once) {
  weft::topology layout = wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::copy_fails;
  fault.from = gpu0;
  fault.nth = 2;
  layout.faults.push_back(fault);
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = play(layout, clock);
    const byte_buffer source{m[0], 1 << 20}, target{m[1], 1 << 20};
    const stream order{m[0]};
    weft::copy_options staged;
    staged.route.path = weft::copy_path::staged;
    const event done = weft::copy(order, target, source, staged);
    EXPECT_EQ(error_of([&] { done.wait(); }).code, errc::copy_failed);
    EXPECT_EQ(error_of([&] { m.synchronize(); }).what, "nothing failed") << "the streams of the stages tell it again";
    weft::copy(order, target, source, staged).wait();
    EXPECT_EQ(error_of([&] { weft::copy(target, source, staged); }).what, "nothing failed");
  }
}

TEST(failed_dependency, is_reported_to_each_stream_that_waited_for_it) {
  const machine m{host(2)};
  const stream order{m[0]}, other{m[1]};
  const event broken = order.call([] { fail("far away"); });
  other.wait(broken);
  EXPECT_NE(error_of([&] { other.synchronize(); }).what.find("far away"), std::string::npos);
  EXPECT_NE(error_of([&] { order.synchronize(); }).what.find("far away"), std::string::npos);
  bool ran = false;
  other.call([&] { ran = true; }).wait();
  EXPECT_TRUE(ran);
}

TEST(closing, cancels_what_waits_for_a_gate_that_never_opens) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    for (const int limit : {0, 1}) {
      weft::machine_options options;
      options.machine = wired(2);
      options.clock = clock;
      options.max_in_flight = limit;
      machine m{options};
      const stream a{m[0]}, b{m[1]}, c{m[0]};
      std::vector<event> events;
      {
        const host_gate never{m};
        a.wait(never.as_event);
        b.wait(never.as_event);
      }
      std::atomic<int> ran{0};
      for (int i = 0; i < 50; ++i) {
        events.push_back(a.call([&] { ++ran; }));
        b.wait(events.back());
        events.push_back(b.call([&] { ++ran; }));
        c.wait(events.back());
      }
      events.push_back(c.record());
      m.close();
      EXPECT_EQ(ran, 0);
      for (const event& e : events) {
        ASSERT_TRUE(e.ready());
        ASSERT_TRUE(e.failure());
        EXPECT_EQ(e.failure()->code, errc::cancelled);
      }
      EXPECT_EQ(error_of([&] { static_cast<void>(a.record()); }).code, errc::machine_closed);
    }
  }
}

TEST(closing, lets_what_runs_end_and_wakes_who_waits) {
  for (int round = 0; round < 20; ++round) {
    machine m{host(2)};
    const stream order{m[0]};
    std::promise<void> running;
    gate hold;
    std::atomic<bool> ended{false};
    order.call([&] { running.set_value(); });
    hold.hold(order);
    order.call([&] { ended = true; });
    const event last = order.record();
    wait_outcome outcome{};
    errc code{};
    running.get_future().wait();
    std::thread waiter{[&] { code = error_of([&] { outcome = last.wait_for(soon); }).code; }};
    std::thread closer{[&] { m.close(); }};
    hold.open();
    closer.join();
    waiter.join();
    EXPECT_TRUE(code == errc::cancelled || (code == errc::not_ready && outcome == wait_outcome::ok && ended));
  }
}

TEST(closing, races_with_submission_without_losing_an_event) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    for (int round = 0; round < 40; ++round) {
      machine m = play(wired(2), clock);
      std::vector<std::thread> submitters;
      for (int t = 0; t < 2; ++t) {
        submitters.emplace_back([&, t] {
          std::vector<event> events;
          static_cast<void>(error_of([&] {
            const stream order{m[t]};
            for (int i = 0; i < 300; ++i) events.push_back(order.call([] {}));
          }));
          for (const event& e : events) {
            const weft::error cause = error_of([&] { EXPECT_EQ(e.wait_for(soon), wait_outcome::ok); });
            EXPECT_TRUE(cause.code == errc::not_ready || cause.code == errc::cancelled) << to_string(cause);
          }
        });
      }
      m.close();
      for (std::thread& s : submitters) s.join();
    }
  }
}

TEST(closing, twice_and_from_many_threads_is_closing_once) {
  for (int round = 0; round < 30; ++round) {
    machine m{host(2)};
    const stream order{m[0]};
    order.call([] {});
    std::vector<std::thread> closers;
    for (int t = 0; t < 4; ++t) {
      closers.emplace_back([&] {
        m.close();
        EXPECT_TRUE(m.closed());
      });
    }
    for (std::thread& c : closers) c.join();
    m.close();
  }
}

TEST(lost_device, fails_what_waits_for_a_gate_that_never_opens) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    weft::topology layout = wired(2);
    weft::topology_fault fault;
    fault.what = weft::topology_fault::kind::device_lost;
    fault.device = gpu0;
    fault.nth = 1;
    layout.faults.push_back(fault);
    const machine m = play(layout, clock);
    const stream stuck{m[0]}, order{m[0]};
    const host_gate never{m};
    stuck.wait(never.as_event);
    const event waiting = stuck.record();
    EXPECT_EQ(error_of([&] { order.call([] {}).wait(); }).code, errc::device_lost);
    wait_outcome outcome = wait_outcome::ok;
    EXPECT_EQ(error_of([&] { outcome = waiting.wait_for(samples::only_a_hang); }).code, errc::device_lost)
        << "a lost device answers nothing any more, and waits for nothing either";
    never.open();
  }
}

TEST(gate_of_a_backend, opens_once_with_the_first_cause) {
  const machine m{host(1)};
  const host_gate once{m};
  EXPECT_FALSE(once.as_event.ready());
  weft::error cause;
  cause.code = errc::corrupt;
  cause.what = "first";
  once.open(std::make_shared<const weft::error>(cause));
  once.open();
  EXPECT_NE(error_of([&] { once.as_event.wait(); }).what.find("first"), std::string::npos);
}

TEST(machine_limit, a_limit_of_one_operation_lets_a_higher_priority_go_first) {
  weft::machine_options options;
  options.machine = wired(1);
  options.max_in_flight = 1;
  const machine m{options};
  const stream busy{m[0]}, low{m[0], {.priority = -1}}, high{m[0], {.priority = 5}};
  std::promise<void> held, open;
  // one operation: between two the place would be free
  busy.call([&, opened = open.get_future().share()] {
    held.set_value();
    opened.wait_for(soon);
  });
  held.get_future().wait();
  std::vector<int> order;
  std::mutex mutex;
  const auto note = [&](int what) {
    const std::lock_guard lock{mutex};
    order.push_back(what);
  };
  // the head of each stream waits for the device; what is queued behind it waits for its head
  low.call([&] { note(1); });
  high.call([&] { note(2); });
  low.call([&] { note(3); });
  open.set_value();
  m.synchronize();
  EXPECT_EQ(order, (std::vector<int>{2, 1, 3}));
}

TEST(wait_limit, the_longest_duration_is_no_limit) {
  for (const clock_kind clock : {clock_kind::wall, clock_kind::virtual_time}) {
    const machine m = play(wired(2), clock);
    const stream order{m[0]};
    const event done = order.call([] {});
    constexpr auto longest = std::chrono::nanoseconds::max();
    EXPECT_EQ(done.wait_for(longest), wait_outcome::ok);
    order.call([] {});
    EXPECT_EQ(order.synchronize_for(longest), wait_outcome::ok);
    order.call([] {});
    EXPECT_EQ(m.synchronize_for(longest), wait_outcome::ok);
    order.call([] {});
    EXPECT_EQ(m[0].synchronize_for(longest), wait_outcome::ok);
  }
}

TEST(wait_limit, a_limit_of_zero_or_less_times_out) {
  const machine m{host(1)};
  const stream order{m[0]};
  gate hold;
  const event late = hold.hold(order);
  EXPECT_EQ(late.wait_for(std::chrono::nanoseconds{-1}), wait_outcome::timed_out);
  EXPECT_EQ(late.wait_for(std::chrono::nanoseconds::min()), wait_outcome::timed_out);
  EXPECT_EQ(late.wait_for(std::chrono::nanoseconds{0}), wait_outcome::timed_out);
  hold.open();
  late.wait();
}

TEST(event_of_a_machine, may_be_the_last_that_knows_it) {
  event last;
  for (int i = 0; i < 3; ++i) {
    const machine m{host(1)};
    const stream order{m[0]};
    last = order.call([] {});  // replaces an event of a machine that has gone
    last.wait();
  }
  EXPECT_TRUE(last.ready());
  last = event{};
  EXPECT_FALSE(last.is_recorded());
}

}  // namespace host_scheduler_test
