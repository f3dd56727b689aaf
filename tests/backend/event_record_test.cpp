// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/event_record.hpp"

#include "support/hang.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

namespace event_record_test {

using std::chrono::steady_clock;
using weft::event_record;
using weft::event_ref;
using weft::wait_outcome;
using weft::waiting;

constexpr auto never = steady_clock::time_point::max();
constexpr std::array policies{waiting::adaptive, waiting::spin, waiting::park};

event_ref make() { return event_ref{new event_record}; }

std::shared_ptr<const weft::error> cause(const char* what) {
  weft::error made;
  made.code = weft::errc::copy_failed;
  made.what = what;
  return std::make_shared<const weft::error>(std::move(made));
}

steady_clock::time_point in(std::chrono::milliseconds limit) { return steady_clock::now() + limit; }

TEST(event_record, a_finished_event_is_not_waited_for) {
  for (const waiting policy : policies) {
    const event_ref record = make();
    EXPECT_FALSE(record->finished());
    record->complete(nullptr);
    EXPECT_TRUE(record->finished());
    EXPECT_EQ(record->wait(never, {}, policy), wait_outcome::ok);
    EXPECT_EQ(record->wait(steady_clock::now() - std::chrono::hours{1}, {}, policy), wait_outcome::ok)
        << "what has ended has ended, however late one asks";
  }
}

TEST(event_record, a_failed_event_says_so_and_keeps_the_cause) {
  const event_ref record = make();
  const auto why = cause("link 3");
  record->complete(why);
  EXPECT_EQ(record->wait(never, {}, waiting::adaptive), wait_outcome::failed);
  EXPECT_EQ(record->cause(), why);
}

TEST(event_record, a_bounded_wait_for_an_unfinished_event_times_out) {
  for (const waiting policy : policies) {
    const event_ref record = make();
    const auto until = in(std::chrono::milliseconds{3});
    EXPECT_EQ(record->wait(until, {}, policy), wait_outcome::timed_out);
    EXPECT_GE(steady_clock::now(), until);
    EXPECT_EQ(record->wait(steady_clock::now() - std::chrono::hours{1}, {}, policy), wait_outcome::timed_out);
    record->complete(nullptr);
  }
}

TEST(event_record, is_not_waited_for_once_a_stop_was_requested) {
  for (const waiting policy : policies) {
    const event_ref record = make();
    std::stop_source stop;
    stop.request_stop();
    EXPECT_EQ(record->wait(never, stop.get_token(), policy), wait_outcome::cancelled);
    record->complete(nullptr);
    EXPECT_EQ(record->wait(never, stop.get_token(), policy), wait_outcome::ok) << "ended work is told before a stop";
  }
}

TEST(event_record, lets_a_stop_wake_whoever_waits_at_any_moment) {
  for (const waiting policy : policies) {
    for (int round = 0; round < 300; ++round) {
      const event_ref record = make();
      std::stop_source stop;
      std::atomic<bool> begun{false};
      wait_outcome outcome{};
      std::thread waiter{[&] {
        begun = true;
        outcome = record->wait(in(samples::only_a_hang), stop.get_token(), policy);
      }};
      while (!begun) std::this_thread::yield();
      for (int i = 0; i < round * 4; ++i) static_cast<void>(begun.load());  // another moment each time
      stop.request_stop();
      waiter.join();
      ASSERT_EQ(outcome, wait_outcome::cancelled) << "round " << round;
    }
  }
}

TEST(event_record, wakes_every_waiter_at_any_moment) {
  constexpr int waiters = 6;
  for (const waiting policy : {waiting::adaptive, waiting::park}) {
    for (int round = 0; round < 100; ++round) {
      const event_ref record = make();
      std::barrier start{waiters + 1};
      std::atomic<int> right{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < waiters; ++i) {
        threads.emplace_back([&, mine = record] {
          start.arrive_and_wait();
          right += mine->wait(in(samples::only_a_hang), {}, policy) == wait_outcome::ok ? 1 : 0;
        });
      }
      start.arrive_and_wait();
      for (int i = 0; i < round * 10; ++i) static_cast<void>(right.load());
      record->complete(nullptr);
      for (std::thread& t : threads) t.join();
      ASSERT_EQ(right, waiters) << "round " << round;
    }
  }
}

TEST(event_record, keeps_other_waiters_asleep_when_one_of_them_is_stopped) {
  const event_ref record = make();
  std::stop_source stop;
  wait_outcome stopped{}, patient{};
  std::thread first{[&] { stopped = record->wait(never, stop.get_token(), waiting::park); }};
  std::thread second{[&] { patient = record->wait(never, {}, waiting::park); }};
  stop.request_stop();
  first.join();
  EXPECT_EQ(stopped, wait_outcome::cancelled);
  record->complete(cause("later"));
  second.join();
  EXPECT_EQ(patient, wait_outcome::failed);
}

TEST(event_record, calls_each_callback_once_even_when_it_ends_meanwhile) {
  for (int round = 0; round < 500; ++round) {
    const event_ref record = make();
    constexpr int each = 8;
    std::array<std::atomic<int>, 2 * each> calls{};
    std::barrier start{3};
    const auto add = [&](int from) {
      start.arrive_and_wait();
      for (int i = from; i < from + each; ++i) {
        record->on_complete([&calls, i] { ++calls[static_cast<std::size_t>(i)]; });
      }
    };
    std::thread one{[&] { add(0); }};
    std::thread two{[&] { add(each); }};
    start.arrive_and_wait();
    record->complete(nullptr);
    one.join();
    two.join();
    for (const auto& count : calls) ASSERT_EQ(count, 1) << "round " << round;
  }
}

TEST(event_record, calls_back_at_once_when_it_has_ended) {
  const event_ref record = make();
  record->complete(nullptr);
  bool called = false;
  record->on_complete([&] { called = true; });
  EXPECT_TRUE(called);
}

TEST(event_record, takes_a_callback_from_a_callback) {
  const event_ref record = make();
  int depth = 0;
  record->on_complete([&] {
    ++depth;
    record->on_complete([&] { ++depth; });
  });
  record->complete(nullptr);
  EXPECT_EQ(depth, 2);
}

/// Counts how often its end was to be told.
struct watchable : event_record {
  std::atomic<int> asked{0};

 private:
  void watched() noexcept override { ++asked; }
};

TEST(event_record, hears_once_that_somebody_wants_to_be_told) {
  auto* const record = new watchable;
  const event_ref keep{record};
  record->on_complete([] {});
  EXPECT_EQ(record->asked, 1);
  record->on_complete([] {});
  record->tell();
  EXPECT_EQ(record->asked, 1);
  record->complete(nullptr);
  record->on_complete([] {});
  record->tell();
  EXPECT_EQ(record->asked, 1);
}

TEST(event_record, is_told_without_a_callback_too) {
  auto* const record = new watchable;
  const event_ref keep{record};
  record->tell();
  EXPECT_EQ(record->asked, 1);
  int calls = 0;
  record->on_complete([&] { ++calls; });
  EXPECT_EQ(record->asked, 1);
  record->complete(nullptr);
  EXPECT_EQ(calls, 1);
}

TEST(event_record, a_finished_event_asks_for_no_watching) {
  auto* const record = new watchable;
  const event_ref keep{record};
  record->complete(nullptr);
  int calls = 0;
  record->on_complete([&] { ++calls; });
  EXPECT_EQ(record->asked, 0);
  EXPECT_EQ(calls, 1);
  auto* const other = new watchable;
  const event_ref keep_other{other};
  other->complete(nullptr);
  other->tell();
  EXPECT_EQ(other->asked, 0);
}

TEST(event_record, asks_for_nothing_where_one_waits_or_leaves_work_for_the_end) {
  auto* const record = new watchable;
  const event_ref keep{record};
  int endings = 0;
  record->on_ending([&](const weft::error*) { ++endings; });
  for (const waiting policy : policies)
    EXPECT_EQ(record->wait(in(std::chrono::milliseconds{1}), {}, policy), wait_outcome::timed_out);
  record->complete(nullptr);
  EXPECT_EQ(record->asked, 0);
  EXPECT_EQ(endings, 1);
}

/// Ends as soon as somebody wants to know when, as a driver may that calls at once.
struct hasty : event_record {
 private:
  void watched() noexcept override { complete(nullptr); }
};

TEST(event_record, may_end_while_it_hears_that_it_is_watched) {
  const event_ref record{new hasty};
  int calls = 0;
  record->on_complete([&] {
    record->on_complete([&] { ++calls; });
    ++calls;
  });
  EXPECT_EQ(calls, 2);
}

/// Somebody else ends it while it hears that it is watched, and with its callback goes the last reference.
struct outlived : event_record {
  explicit outlived(bool& was_gone) : was_gone_(was_gone) {}
  ~outlived() override { is_gone = true; }
  static inline std::atomic<bool> is_gone{false};

 private:
  void watched() noexcept override {
    complete(nullptr);
    was_gone_ = is_gone;
  }
  bool& was_gone_;
};

TEST(event_record, stays_until_it_has_heard_that_it_is_watched) {
  bool was_gone = true;
  auto* const record = new outlived{was_gone};
  auto last = std::make_shared<event_ref>(record);
  record->on_complete([last = std::move(last)]() mutable { last.reset(); });
  EXPECT_FALSE(was_gone);
  EXPECT_TRUE(outlived::is_gone);
}

TEST(event_record, never_loses_a_watcher_to_an_end_that_comes_meanwhile) {
  for (int round = 0; round < 3000; ++round) {
    auto* const record = new watchable;
    const event_ref keep{record};
    std::atomic<int> calls{0};
    std::barrier start{3};
    bool late = false;
    const auto add = [&] {
      start.arrive_and_wait();
      record->on_complete([&] { ++calls; });
    };
    std::thread one{add};
    std::thread two{[&] {
      start.arrive_and_wait();
      record->tell();
      late = record->finished();
    }};
    start.arrive_and_wait();
    record->complete(nullptr);
    one.join();
    two.join();
    ASSERT_EQ(calls, 1) << "round " << round;
    ASSERT_LE(record->asked, 1) << "round " << round;
    ASSERT_TRUE(late || record->asked == 1) << "who asks in time is heard; round " << round;
  }
}

struct mortal : weft::event_record {
  explicit mortal(bool& gone) : gone_(gone) {}
  ~mortal() override { gone_ = true; }
  bool& gone_;
};

TEST(event_ref, keeps_its_record_until_the_last_copy_goes) {
  bool gone = false;
  event_ref first{new mortal{gone}};
  {
    event_ref second = first;
    event_ref third = std::move(second);
    EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move): what a move leaves is the point
    first = {};
    EXPECT_FALSE(gone);
    third = *&third;
    EXPECT_FALSE(gone);
    EXPECT_TRUE(third);
  }
  EXPECT_TRUE(gone);
}

}  // namespace event_record_test
