// SPDX-License-Identifier: Apache-2.0
// Events between real processes. Children that open a machine are forked before this process has one.
#include "weft/memory/ipc_event.hpp"

#include "memory/sharing/ipc_event_body.hpp"
#include "os/memory_file.hpp"
#include "support/faults.hpp"
#include "support/hang.hpp"
#include "support/processes.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "support/vandal.hpp"
#include "weft/memory/shared_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <sys/ptrace.h>

namespace ipc_event_test {

using processes::child;
using processes::shared;
using samples::error_of;
using samples::pattern;
using weft::errc;
using weft::event_handle;
using weft::ipc_event;
using weft::machine;
using weft::opened_memory;
using weft::shareable_buffer;
using weft::wait_outcome;
using byte = std::uint8_t;
using wire = std::array<std::byte, event_handle::wire_size>;
using clock_type = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int most = 4;

struct board : processes::steps {
  std::array<wire, most> events{}, memories{};
  std::array<std::atomic<bool>, most> is_there{};
  std::atomic<std::int64_t> time{0};
  std::atomic<int> left{0};
};

machine one_device() {
  weft::machine_options options;
  options.devices = 1;
  options.memory_per_device = weft::bytes{std::uint64_t{64} << 20};
  return machine{options};
}

template <class A, class B>
concept has_elapsed = requires(const A& a, const B& b) { weft::elapsed(a, b); };
static_assert(!has_elapsed<ipc_event, ipc_event> && !has_elapsed<weft::event, ipc_event>, "it carries no time");

/// A process that owns an event: records once at step 2, and lives until step 9.
child owner(shared<board>& with) {
  return child{[&with] {
    const machine m = one_device();
    {
      const weft::stream order{m[0]};
      const ipc_event made{m};
      with->events[0] = made.handle().bytes();
      with->say(1);
      if (!with->hear(2)) return 1;
      if (with->now() == 2 && made.record(order) != 1) return 2;
      if (!with->hear(5)) return 3;
    }
    with->say(6);
    return with->hear(9) ? 0 : 4;
  }};
}

TEST(ipc_event, passes_a_ring_of_processes_and_orders_their_copies) {
  // each writes into the memory of the next when the one before has written into its own
  constexpr int rounds = 20;
  constexpr std::size_t count = 10'000;
  shared<board> with;
  const auto member = [&](int self) {
    return child{[&with, self] {
      const machine m = one_device();
      const shareable_buffer<byte> mine{m[0], count};
      const ipc_event wrote{m};
      with->events[static_cast<std::size_t>(self)] = wrote.handle().bytes();
      with->memories[static_cast<std::size_t>(self)] = mine.handle().bytes();
      with->is_there[static_cast<std::size_t>(self)].store(true);
      for (const auto& there : with->is_there) {
        if (!processes::comes_true([&] { return there.load(); })) return 1;
      }
      const auto next = static_cast<std::size_t>((self + 1) % most),
                 before = static_cast<std::size_t>((self + most - 1) % most);
      const opened_memory<byte> theirs{m[0], weft::memory_handle::from_bytes(with->memories[next]),
                                       samples::only_a_hang};
      const ipc_event arrived{m, event_handle::from_bytes(with->events[before]), samples::only_a_hang};
      const weft::stream order{m[0]};
      samples::data data = pattern(count, 99);
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        // the first begins, the others pass on what reached them
        if (self == 0) {
          if (round > 1) arrived.wait(order, round - 1, samples::soon);
          weft::copy(order, theirs, data);
        } else {
          arrived.wait(order, round, samples::soon);
          weft::copy(order, theirs, mine);
        }
        if (wrote.record(order) != round) return 2;
        order.synchronize();
      }
      if (arrived.wait(rounds, samples::soon) != wait_outcome::ok) return 3;
      if (!samples::same(samples::contents(mine), data)) return 4;
      // nobody's memory goes while somebody may still write to it
      with->left.fetch_add(1);
      return processes::comes_true([&] { return with->left.load() == most; }) ? 0 : 5;
    }};
  };
  std::vector<child> ring;
  for (int i = 0; i < most; ++i) ring.push_back(member(i));
  for (child& one : ring) EXPECT_EQ(one.wait(), 0);
}

TEST(ipc_event, an_event_that_was_never_recorded_lets_nobody_pass) {
  shared<board> with;
  const child other = owner(with);
  ASSERT_TRUE(with->hear(1));
  const machine m = one_device();
  const ipc_event opened{m, event_handle::from_bytes(with->events[0]), samples::only_a_hang};
  const weft::stream order{m[0]};
  const samples::byte_buffer target{m[0], 100};
  weft::copy(target, pattern(100, 1));
  EXPECT_EQ(opened.recorded(), 0U);
  EXPECT_FALSE(opened.ready(1));
  EXPECT_EQ(opened.wait(1, 20ms), wait_outcome::timed_out);
  const weft::event passed = opened.wait(order, 1, samples::soon);
  const samples::data late = pattern(100, 2);
  const weft::event copied = weft::copy(order, target, late);
  EXPECT_EQ(copied.wait_for(20ms), wait_outcome::timed_out);
  EXPECT_FALSE(passed.ready());
  with->say(2);  // it records now
  EXPECT_EQ(opened.wait(1, samples::soon), wait_outcome::ok);
  EXPECT_TRUE(opened.ready(1));
  EXPECT_FALSE(opened.ready(2));
  copied.wait();
  EXPECT_TRUE(samples::same(samples::contents(target), late));
}

TEST(ipc_event, is_recorded_by_either_side_and_each_record_has_a_number_of_its_own) {
  shared<board> with;
  const child other = owner(with);
  ASSERT_TRUE(with->hear(1));
  const machine m = one_device();
  const ipc_event opened{m, event_handle::from_bytes(with->events[0]), samples::only_a_hang};
  with->say(2);
  ASSERT_EQ(opened.wait(1, samples::soon), wait_outcome::ok);
  const weft::stream order{m[0]};
  samples::gate gate;
  gate.hold(order);
  EXPECT_EQ(opened.record(order), 2U);
  EXPECT_FALSE(opened.ready(2));
  EXPECT_TRUE(opened.ready(1));
  gate.open();
  EXPECT_EQ(opened.wait(2, samples::soon), wait_outcome::ok);
  for (std::uint64_t i = 3; i < 300; ++i) {
    ASSERT_EQ(opened.record(order), i);
    if (i % 32 == 0) {
      ASSERT_EQ(opened.wait(i, samples::soon), wait_outcome::ok);
    }
  }
  EXPECT_TRUE(opened.ready(1)) << "its place was used again long ago";
}

TEST(ipc_event, with_too_many_records_under_way_says_so_and_recovers) {
  const machine m = one_device();
  const ipc_event made{m};
  const weft::stream order{m[0]};
  samples::gate gate;
  gate.hold(order);
  for (std::uint64_t i = 1; i <= ipc_event::max_outstanding; ++i) ASSERT_EQ(made.record(order), i);
  const weft::error e = error_of([&] { made.record(order); });
  EXPECT_EQ(e.code, errc::resource_exhausted);
  EXPECT_NE(e.what.find("record 1 of an event, 64 before this one"), std::string::npos) << e.what;
  gate.open();
  EXPECT_EQ(made.wait(ipc_event::max_outstanding, samples::soon), wait_outcome::ok);
  EXPECT_EQ(made.record(order), ipc_event::max_outstanding + 1);
}

TEST(ipc_event, a_record_of_a_forked_child_is_one_of_a_process_that_lives) {
  {
    const machine m = one_device();  // what this process has found out of itself is nothing to its child
    ipc_event{m}.record(weft::stream{m[0]});
  }
  shared<board> with;
  child other{[&] {
    if (!with->hear(1)) return 1;
    const machine m = one_device();
    const ipc_event opened{m, event_handle::from_bytes(with->events[0]), samples::only_a_hang};
    const weft::stream order{m[0]};
    samples::gate gate;
    gate.hold(order);
    if (opened.record(order) != 1) return 2;
    with->say(2);
    const bool looked = with->hear(3);
    gate.open();
    order.synchronize();
    return looked ? 0 : 3;
  }};
  const machine m = one_device();
  const ipc_event made{m};
  with->events[0] = made.handle().bytes();
  with->say(1);
  ASSERT_TRUE(with->hear(2));
  EXPECT_FALSE(made.ready(1)) << "neither ended nor dead";
  with->say(3);
  EXPECT_EQ(made.wait(1, samples::soon), wait_outcome::ok);
  EXPECT_EQ(other.wait(), 0);
}

TEST(ipc_event, tells_the_failure_of_the_work_of_another_process) {
  shared<board> with;
  child other{[&] {
    const machine m = one_device();
    const weft::stream order{m[0]};
    const ipc_event made{m};
    with->events[0] = made.handle().bytes();
    order.call([] { weft::raise(errc::copy_failed, "on purpose"); });
    made.record(order);
    with->say(1);
    return with->hear(9) ? 0 : 1;
  }};
  ASSERT_TRUE(with->hear(1));
  const machine m = one_device();
  const ipc_event opened{m, event_handle::from_bytes(with->events[0]), samples::only_a_hang};
  const weft::error e = error_of([&] { opened.wait(1, samples::soon); });
  EXPECT_NE(e.what.find(std::to_string(other.pid())), std::string::npos) << e.what;
  const weft::stream order{m[0]};
  EXPECT_EQ(error_of([&] { opened.wait(order, 1, samples::soon).wait(); }).code, e.code);
}

TEST(ipc_event, tells_of_a_failure_whose_place_others_have_taken_since) {
  const machine m = one_device();
  const weft::stream order{m[0]};
  const ipc_event made{m};
  order.call([] { weft::raise(errc::copy_failed, "on purpose"); });
  EXPECT_EQ(made.record(order), 1U);
  EXPECT_EQ(error_of([&] { made.wait(1, samples::only_a_hang); }).code, errc::kernel_failed);
  static_cast<void>(error_of([&] { m.synchronize(); }));
  for (std::uint64_t n = 2; n <= ipc_event::max_outstanding + 3; ++n) {
    EXPECT_EQ(made.record(order), n);
    made.wait(n, samples::only_a_hang);
  }
  const weft::error e = error_of([&] { made.wait(1, samples::only_a_hang); });
  EXPECT_EQ(e.code, errc::kernel_failed) << "it did not end well, whatever came since";
  EXPECT_NE(e.what.find("record 1 "), std::string::npos) << e.what;
  EXPECT_NO_THROW(made.wait(2, samples::only_a_hang));
  EXPECT_NO_THROW(made.wait(3, samples::only_a_hang));
}

TEST(ipc_event, whose_owner_lets_it_go_ends_waits_for_what_it_never_recorded) {
  shared<board> with;
  const child other = owner(with);
  ASSERT_TRUE(with->hear(1));
  const machine m = one_device();
  const ipc_event opened{m, event_handle::from_bytes(with->events[0]), samples::only_a_hang};
  const weft::stream order{m[0]};
  const weft::event waits = opened.wait(order, 1, samples::soon);
  with->say(5);
  EXPECT_EQ(error_of([&] { opened.wait(1, samples::soon); }).code, errc::closed);
  EXPECT_EQ(error_of([&] { waits.wait(); }).code, errc::closed);
  ASSERT_TRUE(with->hear(6));
  EXPECT_EQ(
      error_of([&] { const ipc_event late{m, event_handle::from_bytes(with->events[0]), samples::only_a_hang}; }).code,
      errc::closed);
}

TEST(ipc_event, whose_process_is_killed_ends_all_waits_soon) {
  const int rounds = samples::by_night() ? 400 : 20;
  std::int64_t worst = 0;
  std::mt19937 random{3};
  for (int i = 0; i < rounds; ++i) {
    shared<board> with;
    auto other = std::make_unique<child>(owner(with));
    const bool in_stream = i % 2 != 0;
    child waits{[&] {
      if (!with->hear(1)) return 1;
      const machine m = one_device();
      const ipc_event opened{m, event_handle::from_bytes(with->events[0]), samples::only_a_hang};
      const weft::stream order{m[0]};
      with->left.store(1);
      const errc seen = error_of([&] {
                          if (in_stream)
                            opened.wait(order, 1, samples::soon).wait();
                          else
                            static_cast<void>(opened.wait(1, samples::soon));
                        }).code;
      with->time.store(clock_type::now().time_since_epoch().count());
      return seen == errc::peer_dead ? 0 : 2;
    }};
    ASSERT_TRUE(processes::comes_true([&] { return with->left.load() == 1; }));
    // at some instant of its wait
    const auto instant = clock_type::now() + std::chrono::microseconds{random() % 2000};
    while (clock_type::now() < instant) std::this_thread::yield();
    const std::int64_t killed = clock_type::now().time_since_epoch().count();
    other->kill(SIGKILL);
    ASSERT_EQ(waits.wait(), 0) << i << ", seed 3";
    worst = std::max(worst, with->time.load() - killed);
  }
  RecordProperty("death_seen_us", static_cast<int>(worst / 1000));
}

/// An event of which forks may make records too.
weft::detail::ipc_event_body event_of(const machine& m) {
  return {weft::detail::state_of(m),
          weft::value_or_raise(weft::detail::make_memory_file("weft-event", sizeof(weft::detail::ipc_event_page),
                                                              weft::detail::memory_file_pages::all_there, "an event")),
          nullptr};
}

TEST(ipc_event, gives_no_two_of_the_processes_that_record_at_the_same_time_one_number) {
  constexpr std::size_t count = 3, each = 20'000;
  const machine m = one_device();
  auto body = event_of(m);
  shared<std::array<std::atomic<int>, 1 + count * each>> times;
  std::vector<child> all;
  for (std::size_t c = 0; c < count; ++c) {
    all.emplace_back([&] {
      for (std::size_t made = 0; made < each;) {
        const weft::error e = error_of([&] {
          const std::uint64_t number = body.begin();
          ++(*times)[number];
          body.end(number, nullptr);
          ++made;
        });
        if (e.code == errc::resource_exhausted) std::this_thread::yield();  // another one has not ended its own
      }
      return 0;
    });
  }
  for (child& one : all) EXPECT_EQ(one.wait(), 0);
  EXPECT_TRUE(std::all_of(times->begin() + 1, times->end(), [](const auto& t) { return t == 1; }));
}

/// Has a fork begin a record, and kills it once it has changed the page so many times. False where it ended before.
bool is_killed_after(int changes, weft::detail::ipc_event_body& body) {
  const auto page = [&] {
    std::array<std::byte, sizeof(weft::detail::ipc_event_page)> now;
    std::memcpy(now.data(), &body.page(), now.size());
    return now;
  };
  const pid_t recorder = ::fork();
  if (recorder == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
    ::raise(SIGSTOP);
    static_cast<void>(body.begin());
    ::_exit(0);
  }
  auto seen = page();
  int status = 0, steps = 0;
  while (::waitpid(recorder, &status, 0) == recorder && WIFSTOPPED(status)) {
    if (const auto now = page(); now != seen) {
      seen = now;
      if (--changes == 0) ::kill(recorder, SIGKILL);
    }
    // where reservations are lost at each step, an atomic operation never ends
    if (::ptrace(PTRACE_SINGLESTEP, recorder, nullptr, nullptr) != 0 || ++steps == 3'000'000) ::kill(recorder, SIGKILL);
  }
  return changes == 0;
}

TEST(ipc_event, each_record_in_the_middle_of_which_a_process_dies_has_ended_and_hinders_no_other) {
  const machine m = one_device();
  auto body = event_of(m);
  int changes = 1;
  for (; is_killed_after(changes, body); ++changes) {
    const std::uint64_t next = body.begin();
    for (std::uint64_t n = 1; n < next; ++n) EXPECT_TRUE(body.look(n).ended) << n << " after " << changes << " changes";
    body.end(next, nullptr);
  }
  if (changes == 1) GTEST_SKIP() << "processes cannot be traced here";
  EXPECT_GT(changes, 4);
  const std::uint64_t recorded = body.page().recorded;
  for (std::uint64_t n = recorded + 1; n <= recorded + 2 * ipc_event::max_outstanding; ++n) {
    ASSERT_EQ(body.begin(), n) << "in the place of a dead one too";
    body.end(n, nullptr);
  }
  EXPECT_EQ(body.look(1).cause->code, errc::kernel_failed) << "it has not ended well";
}

TEST(ipc_event, a_record_whose_maker_died_has_ended_although_a_later_maker_died_in_its_place) {
  const machine m = one_device();
  auto body = event_of(m);
  if (!is_killed_after(1, body)) GTEST_SKIP() << "processes cannot be traced here";
  for (std::size_t n = 1; n < ipc_event::max_outstanding; ++n) body.end(body.begin(), nullptr);
  ASSERT_TRUE(is_killed_after(1, body));
  EXPECT_EQ(body.begin(), ipc_event::max_outstanding + 2);
  EXPECT_EQ(body.look(1).cause->code, errc::peer_dead);
  EXPECT_EQ(body.look(ipc_event::max_outstanding + 1).cause->code, errc::peer_dead);
  EXPECT_FALSE(body.look((std::uint64_t{1} << 32) + 1).ended) << "it is not made yet";
}

TEST(ipc_event, whose_page_another_process_fills_with_garbage_gives_errors_and_costs_no_descriptors) {
  shared<board> with;
  child other{[&] {
    if (!with->hear(1)) return 1;
    const machine m = one_device();
    const ipc_event opened{m, event_handle::from_bytes(with->events[0]), samples::only_a_hang};
    const auto memory = vandal::mapping_of("weft-event");
    if (memory.empty()) return 2;
    auto& page = *reinterpret_cast<weft::detail::ipc_event_page*>(memory.data());
    vandal::fields fields;
    fields.add(page.magic);
    fields.add(page.bell);
    fields.add(page.recorded);
    for (auto& record : page.records) {
      fields.add(record.claim);
      fields.add(record.word);
      fields.add(record.started);
      fields.add(record.pid);
      fields.add(record.code);
    }
    std::mt19937_64 random{7};
    with->say(2);
    while (with->now() < 3) fields.damage(random);
    return 0;
  }};
  const machine m = one_device();
  const ipc_event made{m};
  const weft::stream order{m[0]};
  with->events[0] = made.handle().bytes();
  with->say(1);
  ASSERT_TRUE(with->hear(2));
  std::mt19937_64 random{8};
  const std::size_t before = processes::open_descriptors("pidfd");
  const int uses = samples::by_night() ? 100'000 : 2'000;  // while the other process writes as fast as it can
  samples::played_faults(static_cast<std::uint64_t>(uses));
  for (int i = 0; i < uses; ++i) {
    static_cast<void>(error_of([&] {
      static_cast<void>(made.record(order));
      static_cast<void>(made.wait(1 + random() % 80, 100us));
      static_cast<void>(made.ready(1 + random() % 80));
      if (i % 64 == 0) made.wait(order, 1 + random() % 80, 1ms).wait();
    }));
  }
  EXPECT_LE(processes::open_descriptors("pidfd"), before + ipc_event::max_outstanding);
  with->say(3);
  EXPECT_EQ(other.wait(), 0);
}

TEST(ipc_event, an_event_that_names_many_processes_keeps_no_more_descriptors_than_records) {
  shared<board> with;
  std::vector<child> others;
  for (std::uint64_t i = 0; i < ipc_event::max_outstanding + 20; ++i)
    others.emplace_back([&with] { return with->hear(1) ? 0 : 1; });
  const machine m = one_device();
  const ipc_event made{m};
  auto& page = *reinterpret_cast<weft::detail::ipc_event_page*>(vandal::mapping_of("weft-event").data());
  const std::size_t before = processes::open_descriptors("pidfd");
  page.recorded = 1;
  page.records[1].word = 1 << 8 | weft::detail::ipc_event_page::begun;
  for (const child& one : others) {
    page.records[1].pid = static_cast<std::uint32_t>(one.pid());
    EXPECT_FALSE(made.ready(1));
  }
  EXPECT_LE(processes::open_descriptors("pidfd"), before + ipc_event::max_outstanding);
  with->say(1);
  for (child& one : others) EXPECT_EQ(one.wait(), 0);
}

TEST(ipc_event, has_limits_and_stop_tokens_and_refuses_what_is_no_record) {
  const machine m = one_device();
  const ipc_event made{m};
  const weft::stream order{m[0]};
  EXPECT_EQ(error_of([&] { made.wait(order, 1, 5ms).wait(); }).code, errc::timed_out);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(made.wait(1, samples::soon, stop.get_token()), wait_outcome::cancelled);
  EXPECT_EQ(error_of([&] { made.wait(0, samples::soon); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { const ipc_event own{m, made.handle(), samples::only_a_hang}; }).native_code, 201);
  EXPECT_EQ(error_of([&] { const ipc_event none{m, event_handle{}, samples::only_a_hang}; }).code, errc::corrupt);
  const shareable_buffer<byte> memory{m[0], 10};
  EXPECT_EQ(error_of([&] { static_cast<void>(event_handle::from_bytes(memory.handle().bytes())); }).code,
            errc::invalid_argument);
  EXPECT_EQ(made.handle(), made.handle());
  ipc_event left{m};
  const ipc_event kept = std::move(left);
  const auto refused = [&](auto&& use) { EXPECT_EQ(error_of(use).code, errc::invalid_argument); };
  // NOLINTBEGIN(bugprone-use-after-move): an empty one is what is left
  refused([&] { static_cast<void>(left.handle()); });
  refused([&] { left.record(order); });
  refused([&] { static_cast<void>(left.recorded()); });
  refused([&] { static_cast<void>(left.ready(1)); });
  refused([&] { left.wait(1, samples::soon); });
  refused([&] { left.wait(order, 1, samples::soon); });
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(kept.recorded(), 0U);
}

TEST(ipc_event, a_closed_machine_ends_the_waits_for_its_event) {
  auto m = std::make_unique<machine>(one_device());
  auto made = std::make_unique<ipc_event>(*m);
  weft::event waits;
  {
    const weft::stream order = (*m)[0].default_stream();
    waits = made->wait(order, 1, samples::soon);
  }
  m->close();
  EXPECT_TRUE(waits.ready());
  EXPECT_NE(error_of([&] { waits.wait(); }).code, errc::not_ready);
  EXPECT_EQ(error_of([&] { made->wait(1, samples::soon); }).code, errc::machine_closed);
}

}  // namespace ipc_event_test
