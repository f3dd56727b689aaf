// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"
#include "weft/runtime/task.hpp"

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>

namespace weft::conformance {
namespace {

using byte_buffer = buffer<std::uint8_t>;

[[noreturn]] void fail_on_purpose() { throw std::runtime_error("the thread snapped"); }

verdict an_event_that_was_never_recorded_is_complete(context& c) {
  const event never;
  require(!never.is_recorded(), "a default-made event claims to be recorded");
  require(never.ready(), "a default-made event is not ready");
  never.wait();
  require(never.wait_for(soon) == wait_outcome::ok, "a timed wait for it");
  require(!never.failure(), "it failed");
  const stream order{c.m()[0]};
  order.wait(never);
  const event after = order.record();
  require(after.is_recorded(), "a recorded event does not claim to be one");
  after.wait();
  return holds();
}

verdict work_of_a_stream_keeps_its_order(context& c) {
  const byte_buffer memory{c.m()[0], 100003};
  const stream order{c.m()[0]};
  std::vector<std::vector<std::uint8_t>> seen(50, std::vector<std::uint8_t>(memory.size()));
  std::vector<std::vector<std::uint8_t>> made;
  for (std::size_t i = 0; i < seen.size(); ++i) made.push_back(pattern(memory.size(), i));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    copy(order, memory, made[i]);
    copy(order, seen[i], memory);
  }
  order.synchronize();
  for (std::size_t i = 0; i < seen.size(); ++i) require_same(seen[i], made[i], "round " + std::to_string(i));
  require(order.idle(), "a stream is not idle after synchronize");
  return holds();
}

verdict an_event_of_one_device_holds_another(context& c) {
  const stream first{c.m()[0]};
  const stream second{c.m()[1]};
  const stream bystander{c.m()[1]};
  const auto data = pattern(70001, 1);
  const byte_buffer src{c.m()[0], data.size()};
  const byte_buffer dst{c.m()[1], data.size()};
  gate closed{c.m(), first};
  copy(first, src, data);
  second.wait(first.record());  // the host goes on
  const event moved = copy(second, dst, src);
  const byte_buffer aside{c.m()[1], 100};
  fill(bystander, aside, std::uint8_t{7}).wait();
  require(!moved.ready(), "work overtook the event it waits for");
  require(moved.wait_for(soon) == wait_outcome::timed_out, "a wait for held work did not time out");
  closed.open();
  require(moved.wait_for(long_enough) == wait_outcome::ok, "work did not go on after its event");
  require_same(contents(dst), data, "data across devices");
  return holds();
}

verdict submitting_never_waits(context& c) {
  const stream held{c.m()[0]};
  const byte_buffer memory{c.m()[0], 64};
  gate closed{c.m(), held};
  event last;
  for (int i = 0; i < 1000; ++i) last = fill(held, memory, static_cast<std::uint8_t>(i));
  require(!last.ready(), "work of a held stream is done");
  require(!held.idle(), "a held stream is idle");
  closed.open();
  last.wait();
  require_equal(contents(memory)[63], static_cast<std::uint8_t>(999), "the last of a thousand fills");
  return holds();
}

verdict a_bounded_wait_ends(context& c) {
  const stream held{c.m()[0]};
  gate closed{c.m(), held};
  const event late = held.record();
  require(late.wait_for(std::chrono::nanoseconds{0}) == wait_outcome::timed_out, "a wait of no time");
  require(late.wait_for(soon) == wait_outcome::timed_out, "a short wait");
  require(held.synchronize_for(soon) == wait_outcome::timed_out, "a short wait for the stream");
  require(c.m()[0].synchronize_for(soon) == wait_outcome::timed_out, "a short wait for the device");
  require(c.m().synchronize_for(soon) == wait_outcome::timed_out, "a short wait for the machine");
  std::stop_source stop;
  stop.request_stop();
  require(late.wait(stop.get_token()) == wait_outcome::cancelled, "a wait that was stopped before");
  require(!late.ready(), "waiting ended the work");
  closed.open();
  require(late.wait_for(long_enough) == wait_outcome::ok, "the wait after the gate");
  require(late.wait(stop.get_token()) == wait_outcome::ok, "a stopped wait for what is done");
  require(c.m().synchronize_for(long_enough) == wait_outcome::ok, "the machine after the gate");
  return holds();
}

verdict elapsed_is_the_time_between_ends(context& c) {
  const stream order{c.m()[0]};
  const byte_buffer memory{c.m()[0], 1U << 20};
  const auto data = pattern(memory.size(), 1);
  const event begin = order.record();
  const event middle = copy(order, memory, data);
  const event end = copy(order, memory, data);
  end.wait();
  require_time(c.m());
  require(elapsed(begin, end).count() > 0, "no time between the ends of two operations");
  require_equal(elapsed(begin, middle).count() + elapsed(middle, end).count(), elapsed(begin, end).count(),
                "the parts do not add up");
  require_equal(elapsed(end, end).count(), 0, "time from an event to itself");
  return holds();
}

verdict elapsed_is_refused_where_it_means_nothing(context& c) {
  const stream order{c.m()[0]};
  const event done = order.record();
  done.wait();
  const event never;
  expect_error({errc::invalid_argument}, "elapsed from what was never recorded",
               [&] { static_cast<void>(elapsed(never, done)); });
  expect_error({errc::invalid_argument}, "elapsed to what was never recorded",
               [&] { static_cast<void>(elapsed(done, never)); });
  if (c.m().device_count() > 1) {
    const stream other{c.m()[1]};
    const event there = other.record();
    there.wait();
    expect_error({errc::wrong_device}, "elapsed across devices", [&] { static_cast<void>(elapsed(done, there)); });
  }
  gate closed{c.m(), order};
  const event late = order.record();
  expect_error({errc::not_ready}, "elapsed to what has not ended", [&] { static_cast<void>(elapsed(done, late)); });
  closed.open();
  late.wait();
  return holds();
}

verdict a_failure_is_told_with_its_root(context& c) {
  const stream order{c.m()[0]};
  const event failed = order.call(fail_on_purpose);
  for (const char* const time : {"the first time", "again"}) {
    const std::string root = expect_error({errc::kernel_failed}, "a call that throws", [&] { failed.wait(); });
    require(root.find("the thread snapped") != std::string::npos,
            std::string{"the cause is not told "} + time + ": " + root);
    require(root.find(to_string(c.m()[0].id())) != std::string::npos,
            std::string{"the device is not named "} + time + ": " + root);
  }
  require(failed.ready(), "a failed event is not ready");
  require(failed.failure().has_value(), "failure() is empty");
  return holds();
}

verdict what_depends_on_a_failure_is_skipped(context& c) {
  const stream order{c.m()[0]};
  const stream elsewhere{c.m()[c.m().device_count() - 1]};
  const auto old = pattern(257, 3);
  const byte_buffer mine = filled(c.m()[0], old);
  const byte_buffer theirs = filled(elsewhere.on(), old);
  event in_stream;
  event dependent;
  event failed;
  {
    gate closed{c.m(), order};
    failed = order.call(fail_on_purpose);
    in_stream = fill(order, mine, std::uint8_t{1});
    elsewhere.wait(failed);
    dependent = fill(elsewhere, theirs, std::uint8_t{1});
    closed.open();
  }
  const std::string root = expect_error({errc::kernel_failed}, "the failed call", [&] { failed.wait(); });
  require(expect_error({errc::kernel_failed}, "later work of the stream", [&] { in_stream.wait(); }) == root,
          "later work of the stream gives another cause");
  require(expect_error({errc::kernel_failed}, "work that waits elsewhere", [&] { dependent.wait(); }) == root,
          "dependent work gives another cause");
  const auto kept = in_stream.failure();
  require(kept && kept->what == root, "failure() gives another cause");
  require_same(contents(mine), old, "memory of skipped work");
  require_same(contents(theirs), old, "memory of skipped dependent work");
  return holds();
}

verdict after_the_report_new_work_runs(context& c) {
  const stream order{c.m()[0]};
  const event failed = order.call(fail_on_purpose);
  expect_error({errc::kernel_failed}, "the failed call", [&] { failed.wait(); });
  const byte_buffer memory{c.m()[0], 257};
  fill(order, memory, std::uint8_t{5}).wait();
  require_equal(contents(memory)[256], std::uint8_t{5}, "work after the report");
  order.synchronize();
  return holds();
}

verdict a_discarded_event_loses_nothing(context& c) {
  const stream order{c.m()[0]};
  const byte_buffer memory{c.m()[0], 257};
  fill(order, memory, std::uint8_t{9});
  order.synchronize();
  require_equal(contents(memory)[0], std::uint8_t{9}, "discarded work");
  const auto told = [&](const std::string& by, const std::function<void()>& synchronize) {
    order.call(fail_on_purpose);
    const std::string what = expect_error({errc::kernel_failed}, by, synchronize);
    require(what.find("the thread snapped") != std::string::npos, by + " gives another cause: " + what);
    synchronize();  // told once
  };
  told("synchronizing the stream", [&] { order.synchronize(); });
  told("synchronizing the device", [&] { c.m()[0].synchronize(); });
  told("synchronizing the machine", [&] { c.m().synchronize(); });
  return holds();
}

verdict looking_does_not_report(context& c) {
  const stream order{c.m()[0]};
  const event failed = order.call(fail_on_purpose);
  while (!failed.ready()) {
    if (c.m().clock() == clock_kind::virtual_time) break;  // time passes only while somebody waits
    std::this_thread::yield();
  }
  static_cast<void>(failed.failure());
  expect_error({errc::kernel_failed}, "synchronizing after a look", [&] { order.synchronize(); });
  return holds();
}

verdict synchronizing_one_device_waits_for_that_one(context& c) {
  const stream held{c.m()[1]};
  gate closed{c.m(), held};
  const byte_buffer memory{c.m()[0], 257};
  const stream order{c.m()[0]};
  const event done = fill(order, memory, std::uint8_t{4});
  c.m()[0].synchronize();
  require(done.ready(), "work of a synchronized device is pending");
  require(c.m()[1].synchronize_for(soon) == wait_outcome::timed_out, "the held device is idle");
  closed.open();
  c.m().synchronize();
  require(held.idle(), "the machine is synchronized and a stream is not idle");
  return holds();
}

verdict wait_all_waits_for_all(context& c) {
  const stream good{c.m()[0]};
  const stream bad{c.m()[0]};
  const byte_buffer memory{c.m()[0], 1U << 20};
  const event failed = bad.call(fail_on_purpose);
  const event fine = fill(good, memory, std::uint8_t{3});
  const std::array events{event{}, failed, fine};
  const std::string what = expect_error({errc::kernel_failed}, "waiting for all", [&] { wait_all(events); });
  require(what.find("the thread snapped") != std::string::npos, "another cause: " + what);
  require(fine.ready(), "wait_all did not wait for all");
  const std::array two{fine, event{}};
  wait_all(two);
  return holds();
}

task<int> through_two_devices(const machine& m, const byte_buffer& a, const byte_buffer& b,
                              std::vector<std::uint8_t>& out, const std::vector<std::uint8_t>& in) {
  const stream first{m[0]};
  const stream second{m[m.device_count() - 1]};
  co_await copy(first, a, in);
  co_await copy(second, b, a);
  co_await copy(second, out, b);
  co_return static_cast<int>(out.size());
}

task<> failing(const machine& m) {
  const stream order{m[0]};
  co_await order.call(fail_on_purpose);
}

verdict events_can_be_awaited(context& c) {
  const auto data = pattern(70001, 5);
  const byte_buffer a{c.m()[0], data.size()};
  const byte_buffer b{c.m()[c.m().device_count() - 1], data.size()};
  std::vector<std::uint8_t> out(data.size());
  require_equal(sync_wait(through_two_devices(c.m(), a, b, out, data)), static_cast<int>(data.size()),
                "the task's value");
  require_same(out, data, "data through a task");
  const std::string what = expect_error({errc::kernel_failed}, "a task that fails", [&] { sync_wait(failing(c.m())); });
  require(what.find("the thread snapped") != std::string::npos, "another cause: " + what);
  return holds();
}

verdict a_callback_comes_once_and_after(context& c) {
  const stream order{c.m()[0]};
  auto calls = std::make_shared<std::atomic<int>>(0);
  auto worked = std::make_shared<std::atomic<bool>>(false);
  auto early = std::make_shared<std::atomic<bool>>(false);
  event done;
  {
    gate closed{c.m(), order};
    done = order.call([worked] { worked->store(true); });
    done.on_done([calls, worked, early] {
      if (!worked->load()) early->store(true);
      calls->fetch_add(1);
      calls->notify_all();
    });
    require_equal(calls->load(), 0, "callbacks before the end");
    closed.open();
  }
  done.wait();
  c.m().synchronize();
  const auto heard = [&](int wanted) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (calls->load() < wanted && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return calls->load();
  };
  require_equal(heard(1), 1, "callbacks after the end");
  require(!early->load(), "the callback came before the work");
  done.on_done([calls] { calls->fetch_add(1); });
  require_equal(heard(2), 2, "callbacks of an event that had ended");
  return holds();
}

verdict an_adopted_stream_is_the_same_stream(context& c) {
  const stream owner{c.m()[0]};
  const byte_buffer memory{c.m()[0], 257};
  {
    const stream other = stream::adopt(c.m()[0], owner.native());
    gate closed{c.m(), owner};
    fill(owner, memory, std::uint8_t{1});
    const event second = fill(other, memory, std::uint8_t{2});
    require(!second.ready(), "work of the adopted stream overtook that of its owner");
    closed.open();
    second.wait();
  }
  require_equal(contents(memory)[128], std::uint8_t{2}, "the later of two fills");
  fill(owner, memory, std::uint8_t{3}).wait();  // ending the adoption ended nothing
  return holds();
}

verdict a_stream_that_goes_waits_for_its_work(context& c) {
  const byte_buffer memory{c.m()[0], 1U << 20};
  event last;
  {
    const stream brief{c.m()[0]};
    for (int i = 0; i < 20; ++i) last = fill(brief, memory, static_cast<std::uint8_t>(i));
  }
  require(last.ready(), "a stream went before its work");
  require_equal(contents(memory)[1000], std::uint8_t{19}, "the last fill");
  return holds();
}

verdict an_event_of_another_machine_is_refused(context& c) {
  const machine other = c.open();
  const stream there{other[0]};
  const stream here{c.m()[0]};
  const event foreign = there.record();
  expect_error({errc::wrong_device}, "waiting for an event of another machine", [&] { here.wait(foreign); });
  return holds();
}

verdict streams_have_priorities(context& c) {
  const stream low{c.m()[0], {.priority = -1}};
  const stream high{c.m()[0], {.priority = 1}};
  const byte_buffer memory{c.m()[0], 257};
  fill(low, memory, std::uint8_t{1}).wait();
  fill(high, memory, std::uint8_t{2}).wait();
  require_equal(contents(memory)[0], std::uint8_t{2}, "work of a stream with a priority");
  return holds();
}

}  // namespace

void add_streams_events(case_list& list) {
  constexpr std::string_view group = "streams_events";
  constexpr auto pair = feature::two_devices;
  list.insert(
      list.end(),
      {{"an event that was never recorded counts as complete", group, an_event_that_was_never_recorded_is_complete},
       {"work of one stream runs in the order of submission", group, work_of_a_stream_keeps_its_order},
       {"an event of one device holds a stream of another, and nothing else", group,
        an_event_of_one_device_holds_another, pair},
       {"submitting never waits for earlier work", group, submitting_never_waits},
       {"every wait can be bounded or stopped, without ending the work", group, a_bounded_wait_ends},
       {"elapsed time is that between the ends of two operations", group, elapsed_is_the_time_between_ends,
        feature::timing},
       {"elapsed time is refused across devices, for what was never recorded and for what has not ended", group,
        elapsed_is_refused_where_it_means_nothing, feature::timing},
       {"a failed operation tells its cause", group, a_failure_is_told_with_its_root},
       {"what depends on a failure is skipped, on any device, with the same cause", group,
        what_depends_on_a_failure_is_skipped},
       {"once a failure was reported, new work runs", group, after_the_report_new_work_runs},
       {"a discarded event loses neither its work nor its error, which is told once", group,
        a_discarded_event_loses_nothing},
       {"looking at a failure does not report it", group, looking_does_not_report},
       {"synchronizing one device waits for that one, synchronizing the machine for all", group,
        synchronizing_one_device_waits_for_that_one, pair},
       {"waiting for several events waits for all, and tells the first failure", group, wait_all_waits_for_all},
       {"events can be awaited in a task, failures too", group, events_can_be_awaited},
       {"a callback comes once, after the work", group, a_callback_comes_once_and_after},
       {"an adopted stream is the same stream, and its owner keeps it", group, an_adopted_stream_is_the_same_stream},
       {"a stream that goes out of scope waits for its work", group, a_stream_that_goes_waits_for_its_work},
       {"an event of another machine is refused", group, an_event_of_another_machine_is_refused},
       {"streams have priorities", group, streams_have_priorities, feature::priorities}});
}

}  // namespace weft::conformance
