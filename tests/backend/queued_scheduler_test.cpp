// SPDX-License-Identifier: Apache-2.0
// The scheduler that drivers with queues share, over a driver that ends what the test says, when it says so.
#include "backends/queued/scheduler.hpp"
#include "core/errors/make_error.hpp"
#include "support/hang.hpp"
#include "support/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace queued_scheduler_test {

using namespace std::chrono_literals;
using weft::device_id;
using weft::errc;
using weft::event_ref;
using weft::no_deadline;
using weft::wait_outcome;
using weft::waiting;
namespace queued = weft::queued;

constexpr device_id gpu0{0};
constexpr device_id gpu1{1};
constexpr auto long_enough = samples::only_a_hang;

struct fake_event {
  queued::event_state state = queued::event_state::running;
  const queued::end_call* call = nullptr;
  const fake_event* after = nullptr;
};

/// Ends nothing by itself but when a queue is finished.
class fake_driver final : public queued::queue_driver {
 public:
  bool may_look = true;  // where it calls
  bool can_call = true;  // at all
  bool joins = true;     // devices can wait for each other
  bool can_mark = true;
  std::atomic<bool> is_broken{false};  // everything that has not ended has failed, and the device is lost
  std::atomic<int> asked{0}, released{0}, looks{0}, looks_where_it_calls{0};
  std::vector<int> priorities;
  std::optional<queued::event_times> ran;  // all there is
  std::function<void()> when_asked_to_wait, when_creating, when_waiting_again;

  void wait_again(device_id) noexcept override {
    if (when_waiting_again) when_waiting_again();
  }

  weft::result<queued::native_queue> create_queue(device_id, int priority) noexcept override {
    if (when_creating) when_creating();
    priorities.push_back(priority);
    return static_cast<queued::native_queue>(&queues_.emplace_back());
  }
  void destroy_queue(device_id, queued::native_queue) noexcept override { ++destroyed; }
  weft::result<queued::native_event> mark(device_id, queued::native_queue queue,
                                          queued::native_event after) noexcept override {
    if (!can_mark) return make_error(errc::resource_exhausted, "no mark");
    return static_cast<queued::native_event>(add(queue, static_cast<fake_event*>(after)));
  }
  bool can_wait(device_id by, device_id of) const noexcept override {
    if (when_asked_to_wait) when_asked_to_wait();
    return joins || by == of;
  }
  void flush(device_id, queued::native_queue) noexcept override {}
  void finish(device_id, queued::native_queue queue) noexcept override {
    for (fake_event* e : events_of(queue)) end(e);
  }
  queued::event_state state(device_id, queued::native_event event) noexcept override {
    if (calls_now) ++looks_where_it_calls;
    const std::lock_guard lock{mutex_};
    ++looks;
    auto& e = *static_cast<fake_event*>(event);
    if (is_broken && e.state == queued::event_state::running) e.state = queued::event_state::failed;
    return e.state;
  }
  weft::error failure(device_id, queued::native_event, std::string doing, errc otherwise) noexcept override {
    ++failures;
    return make_error(is_broken ? errc::device_lost : otherwise, doing + ": number " + std::to_string(failures),
                      is_broken ? weft::error_scope::device : weft::error_scope::call);
  }
  void wait(device_id, queued::native_event event) noexcept override {
    ++waits;
    end(static_cast<fake_event*>(event));
  }
  std::optional<queued::event_times> times(device_id, queued::native_event) noexcept override { return ran; }
  void release(device_id, queued::native_event) noexcept override { ++released; }
  bool call_at_end(device_id, queued::native_event event, const queued::end_call& call) noexcept override {
    ++asked;
    if (!can_call) return false;
    auto* const e = static_cast<fake_event*>(event);
    {
      const std::lock_guard lock{mutex_};
      if (e->state == queued::event_state::running) {
        e->call = &call;
        return true;
      }
    }
    tell(call);
    return true;
  }
  bool may_look_when_called() const noexcept override { return may_look; }

  fake_event* add(queued::native_queue queue, const fake_event* after = nullptr) {
    const std::lock_guard lock{mutex_};
    fake_event& made = events_.emplace_back();
    made.after = after;
    static_cast<std::vector<fake_event*>*>(queue)->push_back(&made);
    return &made;
  }
  /// Ends it on this thread, which calls whoever wants to be told.
  void end(fake_event* e, queued::event_state how = queued::event_state::ended) {
    const queued::end_call* call = nullptr;
    {
      const std::lock_guard lock{mutex_};
      if (e->state == queued::event_state::running) e->state = how;
      std::swap(call, e->call);
    }
    if (call != nullptr) tell(*call);
  }
  /// Calls although it runs on, and not again when it ends.
  void call_early(fake_event* e) {
    const queued::end_call* call = nullptr;
    {
      const std::lock_guard lock{mutex_};
      std::swap(call, e->call);
    }
    if (call != nullptr) tell(*call);
  }
  [[nodiscard]] std::vector<fake_event*> events_of(queued::native_queue queue) {
    const std::lock_guard lock{mutex_};
    return *static_cast<std::vector<fake_event*>*>(queue);
  }

  std::atomic<int> failures{0};
  std::atomic<int> destroyed{0}, waits{0};

 private:
  static inline thread_local bool calls_now = false;
  static void tell(const queued::end_call& call) {
    calls_now = true;
    call.function(call.data);
    calls_now = false;
  }

  std::mutex mutex_;
  std::deque<std::vector<fake_event*>> queues_;
  std::deque<fake_event> events_;
};

class queued_scheduler : public testing::Test {
 protected:
  void open() {
    made_ = std::make_unique<queued::scheduler>(driver_, gpu0, 2, nullptr, waiting::adaptive,
                                                [](const weft::link_path&, std::uint64_t) {});
  }
  [[nodiscard]] queued::scheduler& work() {
    if (!made_) open();
    return *made_;
  }
  [[nodiscard]] queued::queued_stream& stream_on(device_id device, int priority = 0) {
    return **work().create(device, priority, true);
  }
  [[nodiscard]] std::unique_ptr<queued::driver_command<int>> some_work() {
    return std::make_unique<queued::driver_command<int>>(
        [this](queued::native_queue queue, queued::native_event* last) -> weft::result<void> {
          *last = driver_->add(queue);
          return {};
        });
  }
  [[nodiscard]] event_ref submit(queued::queued_stream& to) { return work().submit(to, some_work()); }
  [[nodiscard]] fake_event* native(const event_ref& e) {
    return static_cast<fake_event*>(static_cast<queued::command&>(*e).native());
  }
  [[nodiscard]] bool ends(const event_ref& e) {
    return e->wait(std::chrono::steady_clock::now() + long_enough, {}, waiting::adaptive) != wait_outcome::timed_out;
  }
  /// Looks at it until it has ended: a look finds nothing while a thread of the scheduler's looks, which is there
  /// where a device was lost and where the driver called.
  [[nodiscard]] bool is_seen_to_end(const event_ref& e) {
    const auto until = std::chrono::steady_clock::now() + long_enough;
    while (!work().ready(*e)) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::shared_ptr<fake_driver> driver_ = std::make_shared<fake_driver>();
  std::unique_ptr<queued::scheduler> made_;
};

// How the clock of a device compares with ours is known to some microseconds only.
TEST_F(queued_scheduler, traces_nothing_that_begins_before_it_was_submitted) {
  using std::chrono_literals::operator""ms;
  const auto sink = std::make_shared<weft::trace_sink>();
  auto& s = stream_on(gpu0);
  const auto before = std::chrono::steady_clock::now();
  driver_->ran = queued::event_times{before - 2ms, before - 1ms};
  work().trace_to(sink);
  auto made = some_work();
  made->note.kind = weft::trace_kind::copy;
  EXPECT_EQ(work().wait(*work().submit(s, std::move(made)), no_deadline, {}), wait_outcome::ok);
  const auto records = sink->take();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_LE(records[0].submitted, records[0].started);
  EXPECT_LE(records[0].started, records[0].ended);
}

TEST_F(queued_scheduler, traces_how_long_a_stream_stood_still_for_another) {
  const auto sink = std::make_shared<weft::trace_sink>();
  for (const bool joins : {true, false}) {
    driver_->joins = joins;
    auto& first = stream_on(gpu0);
    auto& second = stream_on(gpu1);
    work().trace_to(sink);
    const event_ref e = submit(first);
    ASSERT_TRUE(work().wait_for(second, e));
    for (const auto now = work().now(); work().now() == now;) std::this_thread::yield();
    EXPECT_EQ(work().wait(*e, no_deadline, {}), wait_outcome::ok);
    while (!work().idle(second)) driver_->finish(gpu1, second.queue());
    ASSERT_TRUE(work().wait_for(second, e)) << "for what has ended";
    while (!work().idle(second)) driver_->finish(gpu1, second.queue());
    const auto records = sink->take();
    ASSERT_EQ(records.size(), 1U) << joins;
    EXPECT_EQ(records[0].kind, weft::trace_kind::wait);
    EXPECT_EQ(records[0].device, gpu1);
    EXPECT_EQ(records[0].name, "waits for gpu0");
    EXPECT_LT(records[0].started, records[0].ended);
    EXPECT_LE(records[0].ended, e->ended);
  }
}

// ---- who is told ----------------------------------------------------------------------------------------------------

TEST_F(queued_scheduler, asks_the_driver_for_no_call_that_nobody_wants) {
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  e->on_ending([](const weft::error*) {});
  EXPECT_FALSE(work().ready(*e));
  EXPECT_EQ(work().wait(*e, no_deadline, {}), wait_outcome::ok);
  EXPECT_EQ(driver_->waits, 1);
  EXPECT_EQ(driver_->asked, 0);
}

TEST_F(queued_scheduler, has_a_stream_idle_only_when_its_events_say_so_too) {
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  std::atomic<bool> is_ending{false}, may_end{false}, has_returned{false};
  e->on_ending([&](const weft::error*) {
    is_ending = true;
    while (!may_end) std::this_thread::yield();
  });
  driver_->end(native(e));
  std::thread looks{[&] { static_cast<void>(work().ready(*e)); }};
  while (!is_ending) std::this_thread::yield();
  bool was_ready = false;
  std::thread asks{[&] {
    while (!work().idle(s)) std::this_thread::yield();
    was_ready = e->finished();
    has_returned = true;
  }};
  for (int i = 0; i < 1000 && !has_returned; ++i) std::this_thread::yield();  // gives one that does not wait its time
  may_end = true;
  looks.join();
  asks.join();
  EXPECT_TRUE(was_ready);
}

TEST_F(queued_scheduler, finds_other_streams_while_the_driver_makes_a_queue) {
  queued::queued_stream& first = stream_on(gpu0);
  queued::queued_stream* found = nullptr;
  driver_->when_creating = [&] {
    auto other = std::async(std::launch::async, [&] { return work().find(first.handle()); });
    if (other.wait_for(long_enough) == std::future_status::ready) found = other.get();
  };
  static_cast<void>(stream_on(gpu1));
  EXPECT_EQ(found, &first);
}

TEST_F(queued_scheduler, asks_the_driver_once_where_somebody_wants_to_be_told) {
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  int calls = 0;
  e->on_complete([&] { ++calls; });
  e->on_complete([&] { ++calls; });
  EXPECT_EQ(work().wait(*e, work().now() + 1ms, {}), wait_outcome::timed_out);
  EXPECT_EQ(driver_->asked, 1);
  driver_->end(native(e));
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(e->finished());
}

TEST_F(queued_scheduler, tells_of_what_had_ended_when_it_was_asked) {
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  driver_->end(native(e));
  EXPECT_FALSE(e->finished()) << "nobody looked";
  int calls = 0;
  e->on_complete([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST_F(queued_scheduler, asks_for_what_was_held_back_when_it_is_handed_over) {
  auto& s = stream_on(gpu0);
  const event_ref gate = work().create_gate();
  ASSERT_TRUE(work().wait_for(s, gate));
  const event_ref e = submit(s);
  int calls = 0;
  e->on_complete([&] { ++calls; });
  EXPECT_EQ(native(e), nullptr);
  EXPECT_EQ(driver_->asked, 0);
  work().open_gate(*gate, nullptr);
  ASSERT_NE(native(e), nullptr);
  EXPECT_EQ(driver_->asked, 1);
  for (fake_event* one : driver_->events_of(s.queue())) driver_->end(one);
  EXPECT_EQ(calls, 1);
}

TEST_F(queued_scheduler, asks_for_a_wait_with_a_limit) {
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  EXPECT_EQ(work().wait(*e, work().now() + 1ms, {}), wait_outcome::timed_out);
  EXPECT_EQ(driver_->asked, 1);
  EXPECT_EQ(driver_->waits, 0);
}

TEST_F(queued_scheduler, makes_no_call_to_the_driver_where_it_must_not) {
  driver_->may_look = false;
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  e->tell();
  EXPECT_EQ(driver_->asked, 1);
  driver_->end(native(e));
  EXPECT_TRUE(ends(e));
  EXPECT_EQ(driver_->looks_where_it_calls, 0);
}

TEST_F(queued_scheduler, looks_where_the_driver_allows_it) {
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  e->tell();
  driver_->end(native(e));
  EXPECT_TRUE(e->finished());
  EXPECT_GT(driver_->looks_where_it_calls, 0);
}

TEST_F(queued_scheduler, sees_the_end_itself_where_the_driver_cannot_call) {
  driver_->can_call = false;
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  std::promise<void> told;
  const int before = driver_->looks;
  e->on_complete([&] { told.set_value(); });
  const auto until = std::chrono::steady_clock::now() + long_enough;
  while (driver_->looks == before && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_FALSE(e->finished()) << "it was looked at, and ran on";
  driver_->end(native(e));
  EXPECT_EQ(told.get_future().wait_for(long_enough), std::future_status::ready);
  const event_ref pending = submit(s);
  pending->tell();
  work().close();  // which ends what is looked at
  EXPECT_TRUE(pending->finished());
}

TEST_F(queued_scheduler, goes_on_where_the_driver_cannot_call) {
  driver_->can_call = false;
  auto& s = stream_on(gpu0);
  const event_ref e = submit(s);
  e->tell();
  EXPECT_EQ(driver_->asked, 1);
  EXPECT_FALSE(e->finished());
  EXPECT_EQ(work().wait(*e, no_deadline, {}), wait_outcome::ok);
  work().close();  // owes nothing
}

TEST_F(queued_scheduler, goes_on_after_a_call_for_what_had_not_ended) {
  for (const bool may_look : {true, false}) {
    driver_->may_look = may_look;
    auto& s = stream_on(gpu0);
    const event_ref e = submit(s);
    e->tell();
    driver_->call_early(native(e));
    EXPECT_FALSE(e->finished());
    driver_->end(native(e));
    EXPECT_TRUE(ends(e)) << may_look;
  }
  work().close();
}

// ---- order ----------------------------------------------------------------------------------------------------------

TEST_F(queued_scheduler, leaves_a_wait_to_a_driver_that_can) {
  auto& first = stream_on(gpu0);
  auto& second = stream_on(gpu1);
  const event_ref e = submit(first);
  ASSERT_TRUE(work().wait_for(second, e));
  const auto waiting_there = driver_->events_of(second.queue());
  ASSERT_EQ(waiting_there.size(), 1U);
  EXPECT_EQ(waiting_there.front()->after, native(e));
}

TEST_F(queued_scheduler, holds_back_what_the_driver_cannot_wait_for) {
  driver_->joins = false;
  auto& first = stream_on(gpu0);
  auto& second = stream_on(gpu1);
  const event_ref e = submit(first);
  ASSERT_TRUE(work().wait_for(second, e));
  const event_ref later = submit(second);
  EXPECT_TRUE(driver_->events_of(second.queue()).empty());
  driver_->end(native(e));  // where nothing may be submitted: another thread takes the stream forward
  later->tell();
  for (const auto until = std::chrono::steady_clock::now() + long_enough;
       native(later) == nullptr && std::chrono::steady_clock::now() < until;)
    std::this_thread::yield();
  ASSERT_NE(native(later), nullptr);
  for (fake_event* one : driver_->events_of(second.queue())) {
    EXPECT_EQ(one->after, nullptr);
    driver_->end(one);
  }
  EXPECT_TRUE(ends(later));
}

TEST_F(queued_scheduler, goes_on_where_what_it_waits_for_ends_while_it_is_asked_about) {
  driver_->joins = false;
  auto& s = stream_on(gpu0);
  auto& other = stream_on(gpu1);
  const event_ref first = submit(other);
  // once when the wait is submitted, and once when the stream is taken forward: then it ends, and nobody is told yet
  int asked = 0;
  driver_->when_asked_to_wait = [&] {
    if (++asked != 2) return;
    driver_->end(native(first));
    EXPECT_TRUE(work().ready(*first));
  };
  ASSERT_TRUE(work().wait_for(s, first));
  const event_ref last = submit(s);
  EXPECT_EQ(asked, 2);
  EXPECT_NE(native(last), nullptr) << "handed over, though nobody looked at the stream";
}

TEST_F(queued_scheduler, runs_a_host_function_after_what_the_driver_has) {
  auto& s = stream_on(gpu0);
  const event_ref before = submit(s);
  std::atomic<bool> ran{false};
  const event_ref call =
      work().submit(s, std::make_unique<queued::host_command<int>>([&ran]() -> std::shared_ptr<const weft::error> {
                      ran = true;
                      return nullptr;
                    }));
  EXPECT_EQ(driver_->asked, 1) << "the stream is held back by what it has in the queue";
  EXPECT_FALSE(ran);
  driver_->end(native(before));
  EXPECT_TRUE(ends(call));
  EXPECT_TRUE(ran);
}

TEST_F(queued_scheduler, serves_a_new_stream_with_a_queue_of_its_priority) {
  auto& first = stream_on(gpu0, 2);
  const auto high = first.handle();
  const auto queue = first.queue();
  const auto low = stream_on(gpu0, -1).handle();
  work().destroy(high);
  work().destroy(low);
  auto& again = stream_on(gpu0, 2);
  EXPECT_EQ(driver_->priorities, (std::vector<int>{2, -1}));
  EXPECT_EQ(work().find(high), nullptr) << "an old handle is not that of the new stream";
  EXPECT_NE(again.handle(), high);
  EXPECT_EQ(again.queue(), queue);
  static_cast<void>(stream_on(gpu0, 0));
  EXPECT_EQ(driver_->priorities, (std::vector<int>{2, -1, 0}));
}

// ---- failures -------------------------------------------------------------------------------------------------------

TEST_F(queued_scheduler, skips_what_follows_a_failure_with_its_cause) {
  auto& s = stream_on(gpu0);
  const event_ref failed = submit(s);
  const event_ref handed_over = submit(s);
  driver_->end(native(failed), queued::event_state::failed);
  driver_->end(native(handed_over));
  EXPECT_TRUE(is_seen_to_end(failed));
  const event_ref later = submit(s);
  ASSERT_TRUE(failed->cause());
  EXPECT_EQ(handed_over->cause(), failed->cause());
  EXPECT_TRUE(is_seen_to_end(later));
  EXPECT_EQ(later->cause(), failed->cause());
  EXPECT_EQ(driver_->events_of(s.queue()).size(), 2U) << "never handed over";
  auto told = work().synchronize(s, no_deadline, {});
  ASSERT_FALSE(told);
  const event_ref afresh = submit(s);
  EXPECT_NE(native(afresh), nullptr);
  EXPECT_EQ(work().wait(*afresh, no_deadline, {}), wait_outcome::ok);
}

TEST_F(queued_scheduler, hands_nothing_over_behind_a_gate_that_opens_with_a_failure_meanwhile) {
  const auto failure = std::make_shared<const weft::error>();
  auto& s = stream_on(gpu0);
  constexpr int rounds = 20'000;
  event_ref gate;
  std::atomic<int> round{0}, opened{0};
  const std::jthread opens{[&, this] {
    for (int n = 1; n <= rounds; ++n) {
      while (round < n) std::this_thread::yield();
      work().open_gate(*gate, failure);
      opened = n;
    }
  }};
  for (int n = 1; n <= rounds; ++n) {
    gate = work().create_gate();
    round = n;
    EXPECT_TRUE(work().wait_for(s, gate));
    const event_ref behind = submit(s);
    while (opened < n) std::this_thread::yield();
    if (driver_->events_of(s.queue()).empty()) {
      EXPECT_TRUE(is_seen_to_end(behind));
      EXPECT_FALSE(work().synchronize(s, no_deadline, {}));
    } else {
      ADD_FAILURE() << "handed over in round " << n;
      round = rounds;
      break;
    }
  }
}

TEST_F(queued_scheduler, hands_nothing_over_while_a_command_that_failed_lets_go_of_its_memory) {
  const auto check = [&](const event_ref& dependency, const auto& fail) {
    auto& s = stream_on(gpu0);
    auto made = std::make_unique<queued::driver_command<std::shared_ptr<void>>>(
        [this](queued::native_queue queue, queued::native_event* last) -> weft::result<void> {
          *last = driver_->add(queue);
          return {};
        });
    event_ref behind;
    made->dependency = dependency;
    made->memory.emplace_back(nullptr, [&](void*) { behind = submit(s); });
    const event_ref failed = work().submit(s, std::move(made));
    fail(failed);
    EXPECT_TRUE(is_seen_to_end(failed));
    ASSERT_TRUE(behind);
    EXPECT_EQ(native(behind), nullptr);
    EXPECT_TRUE(is_seen_to_end(behind));
    EXPECT_EQ(behind->cause(), failed->cause());
  };
  check({}, [&](const event_ref& e) { driver_->end(native(e), queued::event_state::failed); });
  const event_ref gate = work().create_gate();
  check(gate, [&](const event_ref&) { work().open_gate(*gate, std::make_shared<const weft::error>()); });
}

TEST_F(queued_scheduler, hands_nothing_over_before_the_host_has_done_its_part_of_what_ended) {
  auto& s = stream_on(gpu0);
  auto made = some_work();
  event_ref behind;
  made->is_delivering = true;
  made->at_end = [&] {
    behind = submit(s);
    EXPECT_EQ(native(behind), nullptr);
  };
  const event_ref e = work().submit(s, std::move(made));
  driver_->end(native(e));
  EXPECT_TRUE(is_seen_to_end(e));
  ASSERT_TRUE(behind);
  EXPECT_NE(native(behind), nullptr);
}

TEST_F(queued_scheduler, names_the_first_failure_where_a_driver_fails_everything_after_it) {
  auto& s = stream_on(gpu0);
  auto& other = stream_on(gpu0);
  const event_ref first = submit(s);
  const event_ref second = submit(s);
  const event_ref beside = submit(other);
  driver_->is_broken = true;
  EXPECT_TRUE(is_seen_to_end(first));
  EXPECT_TRUE(is_seen_to_end(second));
  EXPECT_TRUE(is_seen_to_end(beside));
  ASSERT_TRUE(first->cause());
  EXPECT_EQ(second->cause(), first->cause());
  ASSERT_TRUE(beside->cause());
  EXPECT_EQ(beside->cause()->code, errc::device_lost);
  EXPECT_NE(beside->cause()->what.find(first->cause()->what), std::string::npos) << beside->cause()->what;
  EXPECT_EQ(driver_->failures, 1) << "the driver is asked for the first alone";
  EXPECT_EQ(work().cause_of_loss(gpu0), first->cause());
  EXPECT_EQ(work().cause_of_loss(gpu1), nullptr);
}

TEST_F(queued_scheduler, loses_no_device_that_waited_for_one_that_was_lost) {
  auto& s = stream_on(gpu0);
  auto& other = stream_on(gpu1);
  const event_ref e = submit(s);
  ASSERT_TRUE(work().wait_for(other, e));
  const event_ref behind = submit(other);
  for (fake_event* one : driver_->events_of(other.queue())) driver_->end(one);
  driver_->is_broken = true;
  EXPECT_TRUE(is_seen_to_end(e));
  driver_->is_broken = false;
  EXPECT_TRUE(is_seen_to_end(behind));
  EXPECT_EQ(behind->cause(), e->cause());
  EXPECT_TRUE(work().cause_of_loss(gpu0));
  EXPECT_FALSE(work().cause_of_loss(gpu1));
  static_cast<void>(work().synchronize(other, no_deadline, {}));
  EXPECT_EQ(work().wait(*submit(other), no_deadline, {}), wait_outcome::ok);
}

TEST_F(queued_scheduler, loses_a_device_whatever_the_code_of_a_failure_that_costs_it) {
  auto& s = stream_on(gpu0);
  const auto failed = [](queued::native_queue, queued::native_event*) -> weft::result<void> {
    return make_error(errc::kernel_failed, "a trap", weft::error_scope::device);
  };
  EXPECT_TRUE(is_seen_to_end(work().submit(s, std::make_unique<queued::driver_command<int>>(failed))));
  EXPECT_TRUE(work().cause_of_loss(gpu0));
  auto& other = stream_on(gpu1);
  const event_ref call =
      work().submit(other, std::make_unique<queued::host_command<int>>([]() -> std::shared_ptr<const weft::error> {
                      return shared_error(make_error(errc::copy_failed, "a bus", weft::error_scope::device));
                    }));
  EXPECT_TRUE(ends(call));
  EXPECT_TRUE(work().cause_of_loss(gpu1));
}

TEST_F(queued_scheduler, refuses_on_a_lost_device_and_serves_the_others) {
  auto& s = stream_on(gpu0);
  auto& other = stream_on(gpu1);
  const event_ref e = submit(s);
  driver_->is_broken = true;
  EXPECT_TRUE(is_seen_to_end(e));
  driver_->is_broken = false;
  const event_ref refused = submit(s);
  EXPECT_TRUE(is_seen_to_end(refused));
  EXPECT_TRUE(refused->cause());
  EXPECT_EQ(native(refused), nullptr);
  EXPECT_EQ(work().wait(*submit(other), no_deadline, {}), wait_outcome::ok);
  static_cast<void>(work().synchronize(s, no_deadline, {}));
  work().restore(gpu0);
  EXPECT_EQ(work().wait(*submit(s), no_deadline, {}), wait_outcome::ok);
}

TEST_F(queued_scheduler, ends_a_command_that_was_refused_with_what_it_left_in_the_queue_and_waits_for_nothing) {
  auto& s = stream_on(gpu0);
  auto& waits = stream_on(gpu1);
  const event_ref before = submit(s);
  auto made = std::make_unique<queued::driver_command<int>>(
      [this](queued::native_queue queue, queued::native_event*) -> weft::result<void> {
        static_cast<void>(driver_->add(queue));  // the first of two parts
        return make_error(errc::kernel_failed, "the second part");
      });
  const event_ref e = work().submit(s, std::move(made));
  ASSERT_TRUE(work().wait_for(waits, e));
  const event_ref behind = submit(waits);
  EXPECT_FALSE(before->finished()) << "what submits waits for nothing: it may have to let that go on";
  EXPECT_FALSE(work().ready(*e));
  const event_ref skipped = submit(s);
  EXPECT_EQ(driver_->events_of(s.queue()).size(), 3U) << "what follows is skipped at once";
  for (fake_event* one : driver_->events_of(s.queue())) driver_->end(one);
  EXPECT_TRUE(driver_->events_of(waits.queue()).empty()) << "what waits for it does not run either";
  EXPECT_TRUE(is_seen_to_end(e));
  EXPECT_TRUE(is_seen_to_end(skipped));
  EXPECT_TRUE(is_seen_to_end(behind));
  EXPECT_FALSE(before->cause());
  ASSERT_TRUE(e->cause());
  EXPECT_EQ(e->cause()->what, "the second part");
  EXPECT_EQ(skipped->cause(), e->cause());
  EXPECT_EQ(behind->cause(), e->cause());
}

TEST_F(queued_scheduler, finishes_the_queue_where_a_driver_that_refused_a_command_refuses_a_mark_too) {
  auto& s = stream_on(gpu0);
  driver_->can_mark = false;
  auto made = std::make_unique<queued::driver_command<int>>(
      [this](queued::native_queue queue, queued::native_event*) -> weft::result<void> {
        static_cast<void>(driver_->add(queue));
        return make_error(errc::kernel_failed, "the second part");
      });
  const event_ref e = work().submit(s, std::move(made));
  EXPECT_TRUE(is_seen_to_end(e));
  EXPECT_EQ(driver_->events_of(s.queue()).front()->state, queued::event_state::ended);
  ASSERT_TRUE(e->cause());
}

TEST_F(queued_scheduler, does_not_wait_for_another_device_where_its_own_failed) {
  auto& first = stream_on(gpu0);
  auto& second = stream_on(gpu1);
  const event_ref runs_on = submit(first);
  ASSERT_TRUE(work().wait_for(second, runs_on));
  const event_ref behind = submit(second);
  for (fake_event* one : driver_->events_of(second.queue())) driver_->end(one, queued::event_state::failed);
  EXPECT_TRUE(is_seen_to_end(behind));
  EXPECT_FALSE(runs_on->finished());
  ASSERT_TRUE(behind->cause());
}

// ---- without threads ------------------------------------------------------------------------------------------------

TEST_F(queued_scheduler, has_whoever_looks_go_on_where_no_thread_can_be_started) {
  driver_->may_look = false;
  auto& s = stream_on(gpu0);
  for (const bool can_call : {true, false}) {
    driver_->can_call = can_call;
    const event_ref e = submit(s);
    const samples::no_new_threads none;
    e->tell();
    driver_->end(native(e));  // its call finds nobody to hand over to
    EXPECT_FALSE(e->finished());
    EXPECT_TRUE(work().ready(*e)) << can_call;
    EXPECT_TRUE(work().idle(s));
  }
}

TEST_F(queued_scheduler, has_whoever_waits_go_on_where_no_thread_can_be_started) {
  driver_->may_look = false;
  driver_->joins = false;
  auto& first = stream_on(gpu0);
  auto& second = stream_on(gpu1);
  event_ref before;
  event_ref behind;
  std::promise<void> waits;
  std::thread ends{[&] {
    waits.get_future().wait();
    driver_->end(native(before));
    while (native(behind) == nullptr) std::this_thread::yield();  // who waits has it handed over
    for (fake_event* one : driver_->events_of(second.queue())) driver_->end(one);
  }};
  {
    const samples::no_new_threads none;
    before = submit(first);
    EXPECT_TRUE(work().wait_for(second, before));
    behind = submit(second);
    EXPECT_EQ(work().wait(*behind, work().now() + 1ms, {}), wait_outcome::timed_out);
    waits.set_value();
    EXPECT_EQ(work().wait(*behind, work().now() + long_enough, {}), wait_outcome::ok);
  }
  ends.join();
}

TEST_F(queued_scheduler, starts_its_thread_when_one_can_be_had_again) {
  driver_->may_look = false;
  auto& s = stream_on(gpu0);
  const event_ref first = submit(s);
  {
    const samples::no_new_threads none;
    first->tell();
    driver_->end(native(first));
  }
  const event_ref second = submit(s);
  std::promise<void> told;
  second->on_complete([&] { told.set_value(); });
  driver_->end(native(second));
  EXPECT_EQ(told.get_future().wait_for(long_enough), std::future_status::ready);
  EXPECT_TRUE(first->finished());
}

TEST_F(queued_scheduler, closes_where_no_thread_can_be_started) {
  for (const bool can_call : {true, false}) {
    driver_->may_look = false;
    driver_->can_call = can_call;
    open();
    const event_ref e = submit(stream_on(gpu0));
    const samples::no_new_threads none;
    e->tell();
    made_->close();
    EXPECT_TRUE(e->finished());
    made_ = nullptr;
  }
}

TEST_F(queued_scheduler, waits_for_words_again_before_it_takes_work_for_a_device_that_is_reset) {
  work().lose(gpu0, weft::shared_error(weft::make_error(errc::cancelled, "a reset")));
  bool was_lost = false;
  driver_->when_waiting_again = [&] { was_lost = work().lost(gpu0) != nullptr; };
  work().restore(gpu0);
  EXPECT_TRUE(was_lost) << "what comes in between is given up, and nobody could say why";
  EXPECT_FALSE(work().lost(gpu0));
}

// ---- the end --------------------------------------------------------------------------------------------------------

TEST_F(queued_scheduler, closes_with_work_pending_gates_shut_and_calls_owed) {
  auto& s = stream_on(gpu0);
  auto& held = stream_on(gpu1);
  const event_ref e = submit(s);
  std::atomic<int> calls{0};
  e->on_complete([&] { ++calls; });
  const event_ref gate = work().create_gate();
  ASSERT_TRUE(work().wait_for(held, gate));
  const event_ref behind = submit(held);
  work().close();
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(e->cause()) << "the driver ended it";
  ASSERT_TRUE(behind->finished());
  EXPECT_EQ(behind->cause()->code, errc::cancelled);
  EXPECT_FALSE(work().submit(s, some_work()));
  EXPECT_FALSE(work().record(s));
  EXPECT_FALSE(work().wait_for(s, e));
  EXPECT_FALSE(work().create_gate());
}

TEST_F(queued_scheduler, gives_back_every_event_and_queue_though_records_outlive_it) {
  auto& s = stream_on(gpu0);
  event_ref kept = submit(s);
  event_ref unseen = submit(s);
  unseen = {};
  EXPECT_EQ(driver_->released, 0);
  made_ = nullptr;
  EXPECT_EQ(driver_->destroyed, 1);
  EXPECT_EQ(driver_->released, 1);
  EXPECT_TRUE(kept->finished());
  kept = {};
  EXPECT_EQ(driver_->released, 2);
}

TEST_F(queued_scheduler, closes_while_others_ask_to_be_told) {
  for (int round = 0; round < 300; ++round) {
    open();
    auto& s = stream_on(gpu0);
    std::vector<event_ref> events;
    for (int i = 0; i < 8; ++i) events.push_back(submit(s));
    std::atomic<int> calls{0};
    std::thread asks{[&] {
      for (const event_ref& e : events) e->on_complete([&] { ++calls; });
    }};
    made_->close();
    asks.join();
    ASSERT_EQ(calls, 8) << "round " << round;
    made_ = nullptr;
  }
}

}  // namespace queued_scheduler_test
