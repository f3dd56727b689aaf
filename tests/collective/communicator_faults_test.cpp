// SPDX-License-Identifier: Apache-2.0
// What goes wrong under a collective is told with the rank and its device, and the next one works.
#include "collective/collective_samples.hpp"
#include "support/raw_launch.hpp"
#include "support/samples.hpp"
#include "weft/collective/communicator.hpp"

#include <gtest/gtest.h>

#include <list>

namespace communicator_faults_test {

using namespace samples;
using weft::collective_algorithm;
using weft::communicator;
using weft::errc;
using weft::machine;
using weft::rank;
using weft::reduce_op;
using weft::topology_fault;
using weft::wait_outcome;

constexpr collective_algorithm algorithms[] = {collective_algorithm::naive, collective_algorithm::tree,
                                               collective_algorithm::ring, collective_algorithm::halving_doubling,
                                               collective_algorithm::direct};

topology_fault fault(topology_fault::kind what, int device, std::uint64_t nth = 1) {
  topology_fault made;
  made.what = what;
  made.device = weft::device_id{device};
  made.nth = nth;
  return made;
}

struct sums {
  machine m;
  communicator all;
  std::vector<weft::buffer<int>> memory;
  std::size_t count;

  explicit sums(weft::topology layout, weft::clock_kind clock = weft::clock_kind::wall, std::size_t elements = 5000,
                const weft::communicator_options& with = {})
      : m(play(std::move(layout), clock)), all(m.devices(), with), count(elements) {
    for (const weft::device& d : m.devices()) memory.emplace_back(d, count);
  }
  void fill() {
    for (std::size_t r = 0; r < memory.size(); ++r) {
      std::vector<int> values(count);
      for (std::size_t i = 0; i < count; ++i)
        values[i] = collectives::sample<int>(static_cast<int>(r), static_cast<std::int64_t>(i));
      weft::copy(memory[r], values);
    }
  }
  testing::AssertionResult is_right() {
    std::vector<int> expected(count), got(count);
    for (std::size_t r = 0; r < memory.size(); ++r) {
      for (std::size_t i = 0; i < count; ++i)
        expected[i] += collectives::sample<int>(static_cast<int>(r), static_cast<std::int64_t>(i));
    }
    for (const auto& one : memory) {
      weft::copy(got, one);
      if (auto fine = collectives::same(got, expected); !fine) return fine;
    }
    return testing::AssertionSuccess();
  }
  weft::collective_run start(collective_algorithm by) {
    weft::collective_options with;
    with.algorithm = by;
    return all.all_reduce(memory, reduce_op::sum, with);
  }
};

TEST(communicator_faults, a_copy_that_fails_is_told_with_rank_and_device_and_the_next_call_works) {
  for (const collective_algorithm algorithm : algorithms) {
    if (algorithm == collective_algorithm::direct) continue;  // copies nothing
    for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
      weft::topology layout = wired(4);
      for (const int to : {0, 2, 3}) {
        topology_fault broken;
        broken.what = topology_fault::kind::copy_fails;
        broken.from = gpu1;
        broken.to = weft::device_id{to};
        layout.faults.push_back(broken);
      }
      sums s{layout, clock};
      int failures = 0;
      for (bool ended = false; !ended && failures < 4;) {
        s.fill();
        const auto run = s.start(algorithm);
        const weft::error cause = error_of([&] { run.wait(); });
        ended = cause.code == errc::not_ready;
        if (ended) break;
        ++failures;
        EXPECT_EQ(cause.code, errc::copy_failed) << cause.what;
        // the rank that the data was to come to
        const std::string text = cause.what.substr(0, 13);
        EXPECT_EQ(text.substr(0, 5), "rank ") << cause.what;
        EXPECT_NE(cause.what.find("from gpu1 to gpu" + text.substr(5, 1) + " failed"), std::string::npos) << cause.what;
        EXPECT_EQ(text, "rank " + text.substr(5, 1) + " (gpu" + text.substr(5, 1) + ")") << cause.what;
      }
      EXPECT_GE(failures, 1) << to_string(algorithm);
      EXPECT_LE(failures, 3) << to_string(algorithm);
      EXPECT_TRUE(s.is_right()) << to_string(algorithm);
      EXPECT_NO_THROW(s.m.synchronize());
    }
  }
}

TEST(communicator_faults, what_fails_in_a_callers_stream_before_is_told_with_its_rank_and_skips_the_collective) {
  for (const int n : {3, 8}) {  // for eight, one stream gathers what the others wait for
    for (const collective_algorithm algorithm : algorithms) {
      sums s{wired(n)};
      s.fill();
      const std::string r = std::to_string(n - 2);
      const weft::stream order = s.m[n - 2].default_stream();
      gate held;
      held.hold(order);
      order.call([] { throw std::runtime_error{"spilt milk"}; });
      const auto run = s.start(algorithm);
      held.open();
      const weft::error cause = error_of([&] { run.wait(); });
      EXPECT_EQ(cause.code, errc::kernel_failed) << cause.what;
      EXPECT_EQ(cause.what.find("rank " + r + " (gpu" + r + "), before the all_reduce"), 0U) << cause.what;
      EXPECT_NE(cause.what.find("spilt milk"), std::string::npos) << cause.what;
      s.fill();
      EXPECT_NO_THROW(s.start(algorithm).wait());
      EXPECT_TRUE(s.is_right()) << to_string(algorithm);
    }
  }
}

/// Sums in streams of their own, of memory of their own.
struct sums_aside {
  std::vector<weft::stream> streams;
  std::vector<weft::buffer<int>> memory;

  explicit sums_aside(const machine& m) {
    for (const weft::device& d : m.devices()) {
      streams.emplace_back(d);
      memory.emplace_back(d, 300);
      weft::copy(memory.back(), std::vector<int>(300, 1));
    }
  }
  weft::collective_run start(communicator& all, collective_algorithm by) {
    weft::collective_options with;
    with.algorithm = by;
    with.streams = streams;
    return all.all_reduce(memory, reduce_op::sum, with);
  }
};

TEST(communicator_faults, a_call_in_other_streams_does_not_fail_with_one_that_is_pending) {
  for (const int n : {3, 8}) {
    for (const collective_algorithm algorithm : algorithms) {
      sums s{wired(n)};
      s.fill();
      sums_aside aside{s.m};
      gate held;
      for (const weft::device& d : s.m.devices()) held.hold(d.default_stream());
      held.hold(aside.streams[1]);
      aside.streams[1].call([] { throw std::runtime_error{"spilt milk"}; });
      const auto fails = aside.start(s.all, algorithm);
      const auto run = s.start(algorithm);
      held.open();
      EXPECT_NO_THROW(run.wait()) << to_string(algorithm) << n;
      EXPECT_TRUE(s.is_right()) << to_string(algorithm) << n;
      EXPECT_EQ(error_of([&] { fails.wait(); }).code, errc::kernel_failed) << to_string(algorithm) << n;
      EXPECT_NO_THROW(aside.start(s.all, algorithm).wait()) << to_string(algorithm) << n;
      EXPECT_NO_THROW(s.m.synchronize());
    }
  }
}

TEST(communicator_faults, a_call_in_other_streams_does_not_wait_for_one_that_is_pending) {
  for (const collective_algorithm algorithm : algorithms) {
    sums s{wired(3)};
    sums_aside aside{s.m};
    gate held, come;
    held.hold(aside.streams[1]);
    const auto waits = aside.start(s.all, algorithm);
    s.fill();
    for (const weft::device& d : s.m.devices()) come.hold(d.default_stream());
    const auto run = s.start(algorithm);
    come.open();
    EXPECT_EQ(run.wait_for(soon), wait_outcome::ok) << to_string(algorithm);
    EXPECT_TRUE(s.is_right()) << to_string(algorithm);
    EXPECT_FALSE(waits.ready()) << to_string(algorithm);
    held.open();
    EXPECT_NO_THROW(waits.wait()) << to_string(algorithm);
  }
}

TEST(communicator_faults, keeps_memory_for_as_many_sets_of_streams_as_work_at_a_time_but_for_eight_at_most) {
  sums s{wired(3)};
  s.fill();
  s.start(collective_algorithm::ring).wait();
  const auto of_one = s.all.footprint();
  for (int n = 0; n < 10; ++n) {
    sums_aside aside{s.m};
    aside.start(s.all, collective_algorithm::ring).wait();
    EXPECT_EQ(s.all.footprint(), of_one);
  }
  std::list<sums_aside> all;
  std::vector<weft::collective_run> runs;
  gate held;
  for (int n = 0; n < 10; ++n) {
    const auto before = s.all.footprint();
    held.hold(all.emplace_back(s.m).streams[1]);
    runs.push_back(all.back().start(s.all, collective_algorithm::ring));
    EXPECT_EQ(s.all.footprint() > before, n > 0 && n < 8) << n;
  }
  held.open();
  for (const auto& run : runs) EXPECT_NO_THROW(run.wait());
}

TEST(communicator_faults, a_device_that_was_reset_works_again_with_new_memory) {
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    sums s{wired(2), clock};
    s.fill();
    EXPECT_NO_THROW(s.start(collective_algorithm::ring).wait());
    s.m[1].reset();
    EXPECT_EQ(error_of([&] { s.start(collective_algorithm::ring).wait(); }).code, errc::not_found);
    s.memory[1] = weft::buffer<int>{s.m[1], s.count};
    s.fill();
    EXPECT_NO_THROW(s.start(collective_algorithm::ring).wait());
    EXPECT_TRUE(s.is_right());
  }
}

TEST(communicator_faults, a_lost_device_is_named_and_the_others_go_on_in_a_smaller_communicator) {
  for (const collective_algorithm algorithm : algorithms) {
    for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
      weft::topology layout = wired(4);
      // filling the memory takes one operation
      layout.faults.push_back(fault(topology_fault::kind::device_lost, 2, 2));
      sums s{layout, clock};
      s.fill();
      const weft::error cause = error_of([&] { s.start(algorithm).wait(); });
      EXPECT_EQ(cause.code, errc::device_lost) << cause.what;
      EXPECT_EQ(cause.what.find("rank 2 (gpu2)"), 0U) << to_string(algorithm) << ": " << cause.what;
      const weft::error again = error_of([&] { s.start(algorithm).wait(); });
      EXPECT_EQ(again.code, errc::device_lost) << again.what;
      EXPECT_NE(again.what.find("rank 2 (gpu2)"), std::string::npos) << again.what;
      communicator rest = s.all.shrink();
      ASSERT_EQ(rest.size(), 3);
      EXPECT_EQ(rest.on(rank{2}).id(), weft::device_id{3});
      const collectives::exchange_case one{weft::collective::all_reduce, algorithm, 3, 0, {777}, true};
      EXPECT_TRUE(one.run(rest)) << one.text();
    }
  }
}

TEST(communicator_faults, a_lost_device_is_named_by_a_barrier_and_by_calls_that_move_nothing) {
  for (const int n : {1, 3}) {
    weft::topology layout = wired(n);
    layout.faults.push_back(fault(topology_fault::kind::device_lost, n - 1));
    sums s{layout, weft::clock_kind::wall, n == 1 ? 5000U : 0U};
    const weft::stream aside{s.m[n - 1]};  // the callers' streams know nothing of it
    EXPECT_EQ(error_of([&] { aside.call([] {}).wait(); }).code, errc::device_lost);
    const std::string name =
        "rank " + std::to_string(n - 1) + " (gpu" + std::to_string(n - 1) + "): the device is lost";
    for (const weft::error& cause : {error_of([&] { s.start(collective_algorithm::automatic).wait(); }),
                                     error_of([&] { s.all.barrier().wait(); })}) {
      EXPECT_EQ(cause.code, errc::device_lost) << n << cause.what;
      EXPECT_EQ(cause.what.find(name), 0U) << n << cause.what;
    }
  }
}

TEST(communicator_faults, memory_that_is_gone_is_told_by_one_rank_as_by_many) {
  for (const int n : {1, 3}) {
    sums s{wired(n)};
    std::vector<weft::device_span<int>> spans;
    for (auto& one : s.memory) spans.push_back(one.span());
    s.memory.clear();
    const weft::error cause = error_of([&] { s.all.all_reduce(spans, reduce_op::sum).wait(); });
    EXPECT_EQ(cause.code, errc::not_found) << n << cause.what;
    EXPECT_EQ(cause.what.find("rank 0 (gpu0): its "), 0U) << n << cause.what;
  }
}

TEST(communicator_faults, shrinking_to_nothing_is_an_error) {
  weft::topology layout = wired(1);
  layout.faults.push_back(fault(topology_fault::kind::device_lost, 0));
  sums s{layout};
  EXPECT_EQ(error_of([&] { s.fill(); }).code, errc::device_lost);
  EXPECT_EQ(error_of([&] { static_cast<void>(s.all.shrink()); }).code, errc::device_lost);
}

TEST(communicator_faults, a_rank_that_stalls_ends_the_wait_at_the_limit_and_is_named) {
  for (const collective_algorithm algorithm : algorithms) {
    weft::topology layout = wired(4);
    topology_fault stalls = fault(topology_fault::kind::device_stalls, 2, 2);
    stalls.duration = std::chrono::hours{1};
    layout.faults.push_back(stalls);
    weft::communicator_options with;
    with.timeout = std::chrono::milliseconds{40};
    sums s{layout, weft::clock_kind::virtual_time, 5000, with};
    s.fill();
    const auto from = s.m.now();
    const auto run = s.start(algorithm);
    EXPECT_EQ(run.wait_for(std::chrono::milliseconds{1}), wait_outcome::timed_out);
    const weft::error cause = error_of([&] { run.wait(); });
    EXPECT_EQ(cause.code, errc::timed_out);
    EXPECT_NE(cause.what.find("rank 2 (gpu2) has not done its part"), std::string::npos)
        << to_string(algorithm) << ": " << cause.what;
    EXPECT_EQ(s.m.now() - from, with.timeout);
    EXPECT_FALSE(run.ready());
    // the stall ends: the result is there after all
    EXPECT_NO_THROW(s.m.synchronize());
    EXPECT_TRUE(run.ready());
    EXPECT_TRUE(s.is_right());
  }
}

TEST(communicator_faults, the_limit_of_a_call_goes_before_that_of_the_communicator) {
  for (const int n : {2, 8}) {  // for eight, one stream gathers what the others wait for
    sums s{wired(n), weft::clock_kind::virtual_time};
    s.fill();
    EXPECT_NO_THROW(s.start(collective_algorithm::direct).wait());  // the first one looks at the pairs of devices
    s.fill();
    const auto gate_event = weft::detail::state_of(s.m)->backend_of(gpu0).create_gate();
    s.m[n - 1].default_stream().wait(weft::detail::make<weft::event>(weft::detail::state_of(s.m), *gate_event));
    weft::collective_options with;
    with.algorithm = collective_algorithm::direct;
    with.timeout = std::chrono::microseconds{7};
    const auto from = s.m.now();
    const auto run = s.all.all_reduce(s.memory, reduce_op::sum, with);
    const weft::error cause = error_of([&] { run.wait(); });
    const std::string r = std::to_string(n - 1);
    EXPECT_EQ(cause.code, errc::timed_out);
    EXPECT_NE(cause.what.find(": rank " + r + " (gpu" + r + ") has not done its part"), std::string::npos)
        << cause.what;
    EXPECT_EQ(s.m.now() - from, *with.timeout);
    weft::detail::state_of(s.m)->backend_of(gpu0).open_gate(*gate_event, nullptr);
    for (int other = 0; other < n; ++other) EXPECT_EQ(run.done(rank{other}).wait_for(soon), wait_outcome::ok);
    EXPECT_TRUE(s.is_right());
  }
}

TEST(communicator_faults, abort_cancels_what_has_not_begun_and_every_later_call) {
  for (const collective_algorithm algorithm : algorithms) {
    sums s{wired(3)};
    s.fill();
    gate held;
    held.hold(s.m[0].default_stream());
    const auto run = s.start(algorithm);
    EXPECT_EQ(s.all.failure(), std::nullopt);
    s.all.abort("the loss is not a number");
    s.all.abort("too late to matter");
    held.open();
    EXPECT_EQ(error_of([&] { run.wait(); }).code, errc::cancelled) << to_string(algorithm);
    const weft::error later = error_of([&] { s.start(algorithm); });
    EXPECT_EQ(later.code, errc::cancelled);
    EXPECT_NE(later.what.find("the loss is not a number"), std::string::npos) << later.what;
    EXPECT_EQ(s.all.failure().value().what, later.what);
    EXPECT_EQ(error_of([&] { s.all.barrier(); }).code, errc::cancelled);
    // memory is as before, or partly combined; another communicator goes on
    const collectives::exchange_case one{weft::collective::all_reduce, algorithm, 3, 0, {77}, false};
    communicator fresh{s.m.devices()};
    EXPECT_TRUE(one.run(fresh));
  }
}

TEST(communicator_faults, a_call_of_the_driver_that_fails_in_the_middle_leaves_nothing_behind) {
  for (const char* call : {"copy", "launch", "record", "wait_event"}) {
    for (const collective_algorithm algorithm : algorithms) {
      for (std::uint64_t nth = 1; nth < 12; ++nth) {
        weft::topology layout = wired(3);
        topology_fault broken;
        broken.what = topology_fault::kind::call_fails;
        broken.call = call;
        broken.nth = nth + (std::string_view{call} == "copy" ? 3 : 0);  // three fill the memory
        layout.faults.push_back(broken);
        sums s{layout, weft::clock_kind::virtual_time, 300};
        s.fill();
        bool was_hit = false;
        for (int i = 0; i < 12 && !was_hit; ++i) {
          try {
            s.start(algorithm).wait();
          } catch (const weft::error_exception& failed) {
            was_hit = true;
            EXPECT_EQ(failed.code(), errc::resource_exhausted) << failed.what();
            EXPECT_NE(std::string{failed.what()}.find("rank "), std::string::npos) << failed.what();
          }
        }
        // direct copies nothing, and where nothing has to be waited for nobody waits
        if (!was_hit) continue;
        static_cast<void>(error_of([&] { s.m.synchronize(); }));
        s.fill();
        ASSERT_NO_THROW(s.start(algorithm).wait()) << call << " " << nth << " " << to_string(algorithm);
        ASSERT_TRUE(s.is_right()) << call << " " << nth << " " << to_string(algorithm);
      }
    }
  }
}

TEST(communicator_faults, a_call_of_the_driver_that_fails_is_told_with_the_rank_of_its_device) {
  for (const char* call : {"record", "wait_event", "launch"}) {
    for (const int device : {0, 3}) {
      std::uint64_t nth = 0;
      for (bool has_failed = true; has_failed && nth < 100;) {
        weft::topology layout = wired(6);  // so many that one stream gathers what the others wait for
        layout.faults.push_back(fault(topology_fault::kind::call_fails, device, ++nth));
        layout.faults.back().call = call;
        sums s{layout};
        s.fill();
        gate held;  // every stream holds something
        for (const weft::device& d : s.m.devices()) held.hold(d.default_stream());
        const weft::error cause = error_of([&] {
          const auto run = s.start(collective_algorithm::direct);
          held.open();
          run.wait();
        });
        has_failed = cause.code != errc::not_ready;
        const std::string r = std::to_string(device);
        EXPECT_TRUE(!has_failed || cause.what.starts_with("rank " + r + " (gpu" + r + "): "))
            << call << " " << nth << ": " << cause.what;
      }
      EXPECT_GT(nth, 1U) << call;
    }
  }
}

TEST(communicator_faults, a_call_of_which_a_part_was_submitted_has_ended_when_the_wait_for_it_ends) {
  int stopped_in_the_middle = 0;
  for (const collective_algorithm algorithm : algorithms) {
    if (algorithm == collective_algorithm::direct) continue;  // copies nothing
    for (std::uint64_t nth = 1; nth < 9; ++nth) {
      weft::topology layout = wired(3);
      topology_fault broken;
      broken.what = topology_fault::kind::call_fails;
      broken.call = "copy";
      broken.nth = nth + 3;  // three fill the memory
      layout.faults.push_back(broken);
      sums s{layout, weft::clock_kind::wall, 40'000};
      s.fill();
      gate held;
      for (const weft::device& d : s.m.devices()) held.hold(d.default_stream());
      std::optional<weft::collective_run> run;
      if (error_of([&] { run = s.start(algorithm); }).code != errc::not_ready) continue;  // nothing was submitted
      // the part that waits for the gate may still write
      EXPECT_EQ(run->wait_for(std::chrono::milliseconds{1}), wait_outcome::timed_out) << to_string(algorithm) << nth;
      held.open();
      const weft::error cause = error_of([&] { run->wait(); });
      if (cause.code == errc::not_ready) break;  // it has no so many copies
      ++stopped_in_the_middle;
      EXPECT_EQ(cause.code, errc::resource_exhausted) << cause.what;
      s.fill();
      ASSERT_NO_THROW(s.start(algorithm).wait()) << to_string(algorithm) << nth;
      ASSERT_TRUE(s.is_right()) << to_string(algorithm) << nth;
    }
  }
  EXPECT_GT(stopped_in_the_middle, 5);
}

TEST(communicator_faults, a_call_that_was_refused_is_not_followed_in_place_of_the_one_before_it) {
  weft::topology layout = wired(3);
  topology_fault broken;
  broken.what = topology_fault::kind::call_fails;
  broken.call = "copy";
  broken.nth = 9;  // six fill the memory, and two are of the first call
  layout.faults.push_back(broken);
  const machine m = play(layout, weft::clock_kind::wall);
  communicator all{m};
  std::vector<weft::buffer<int>> a, b;
  for (int r = 0; r < 3; ++r) {
    for (auto* list : {&a, &b}) list->emplace_back(m[r], 1000U);
    weft::copy(a.back(), std::vector<int>(1000, r + 1));
    weft::copy(b.back(), std::vector<int>(1000, 10 * (r + 1)));
  }
  const weft::buffer<int> of_a{m[0], 1000}, of_b{m[0], 1000};
  weft::collective_options with;
  with.algorithm = collective_algorithm::naive;
  gate held;
  held.hold(m[0].default_stream());
  const auto first = all.reduce(a, of_a, reduce_op::sum, with);
  EXPECT_EQ(error_of([&] { all.reduce(b, of_b, reduce_op::sum, with); }).code, errc::resource_exhausted);
  const auto third = all.reduce(b, of_b, reduce_op::sum, with);
  held.open();
  first.wait();
  third.wait();
  std::vector<int> got(1000);
  weft::copy(got, of_a);
  EXPECT_EQ(got, std::vector<int>(1000, 6));
  weft::copy(got, of_b);
  EXPECT_EQ(got, std::vector<int>(1000, 60));
}

TEST(communicator_faults, a_failure_nobody_waits_for_is_told_by_synchronize) {
  weft::topology layout = wired(2);
  topology_fault broken;
  broken.what = topology_fault::kind::copy_fails;
  broken.from = gpu1;
  broken.to = gpu0;
  layout.faults.push_back(broken);
  sums s{layout};
  s.fill();
  s.start(collective_algorithm::ring);
  EXPECT_EQ(error_of([&] { s.m.synchronize(); }).code, errc::copy_failed);
}

TEST(communicator_faults, a_closed_machine_is_told) {
  sums s{wired(2)};
  s.m.close();
  EXPECT_EQ(error_of([&] { s.start(collective_algorithm::automatic); }).code, errc::machine_closed);
}

TEST(communicator_faults, going_away_waits_for_what_was_submitted) {
  sums s{wired(3)};
  s.fill();
  gate held;
  held.hold(s.m[1].default_stream());
  weft::collective_run run;
  auto other = std::make_unique<communicator>(s.m.devices());
  run = other->all_reduce(s.memory, reduce_op::sum);
  std::jthread opens{[&] { held.open(); }};
  other.reset();
  EXPECT_TRUE(run.ready());
  EXPECT_NO_THROW(run.wait());
  EXPECT_TRUE(s.is_right());
}

}  // namespace communicator_faults_test
