// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/pipeline.hpp"

#include "support/samples.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>
#include <thread>

namespace pipeline_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using samples::soon;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using weft::device_span;
using weft::errc;
using weft::event;
using weft::machine;
using weft::stream;
using weft::wait_outcome;

WEFT_KERNEL(line_double, (WEFT_IN(float) in, WEFT_OUT(float) out), { out[i] = 2.0f * in[i]; });
WEFT_KERNEL(line_add, (WEFT_IN(float) in, WEFT_OUT(float) out, float by), { out[i] = in[i] + by; });
WEFT_KERNEL(line_floor, (WEFT_IN(float) in, WEFT_OUT(int32_t) out), { out[i] = (int32_t)in[i]; });
WEFT_KERNEL(line_pairs, (WEFT_IN(int32_t, rows(2)) in, WEFT_OUT(int32_t) out), { out[i] = in[2 * i] + in[2 * i + 1]; });

using ints = std::vector<std::int32_t>;

std::vector<float> ramp(std::size_t n, float from) {
  std::vector<float> made(n);
  std::iota(made.begin(), made.end(), from);
  return made;
}

/// A stage that lets everything through, after a look at the first element.
template <class F>
auto looking(F look) {
  return [look](const stream& order, device_span<const std::int32_t> in, device_span<std::int32_t> out) {
    // the host backend's devices work on this host's memory: a kernel may look at it
    auto first = std::make_shared<std::int32_t>(-1);
    if (!in.empty()) weft::copy(order, std::span{first.get(), 1}, in.first(1));
    order.call([first, look] { look(*first); });
    weft::copy(order, out, in);
  };
}
void nothing(std::int32_t) {}

void refuse(bool is, const char* text) {
  if (is) weft::raise(errc::kernel_failed, text);
}

TEST(pipeline, three_stages) {
  const machine m = samples::play(samples::wired(3));
  auto line = weft::make_pipeline<float>(m, 1000)
                  .kernel<line_double>("double")
                  .kernel<line_add>("add", 1.0F)
                  .kernel<line_floor>("floor")
                  .build();
  std::vector<std::vector<float>> batches;
  std::vector<ints> results;
  for (int b = 0; b < 20; ++b) {
    batches.push_back(ramp(1000, static_cast<float>(b)));
    results.emplace_back(line.results_of(1000));
  }
  for (std::size_t b = 0; b < batches.size(); ++b) line.push(batches[b], results[b]);  // waits while the line is full
  line.drain();
  for (std::size_t b = 0; b < batches.size(); ++b) {
    for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(results[b][i], 2 * static_cast<int>(b + i) + 1);
  }
  EXPECT_EQ(line.report().finished, 20U);
  EXPECT_FALSE(line.report().simulated);
}

TEST(pipeline, is_right_for_any_number_of_devices_stages_batches_and_sizes) {
  for (const int devices : {1, 2, 3, 8}) {
    const machine m = samples::play(samples::wired(devices));
    for (int stages = 1; stages <= 5; ++stages) {
      for (const bool overlap : {true, false}) {
        weft::pipeline_options options;
        options.overlap_hops = overlap;
        options.depth = 1 + stages % 3;
        auto builder = weft::make_pipeline<float>(m, 333, options);
        for (int s = 0; s < stages; ++s)
          builder = std::move(builder).kernel<line_add>("add" + std::to_string(s), static_cast<float>(1 << s));
        auto line = std::move(builder).build();
        const std::vector<std::size_t> sizes{0, 1, 333, 7, 64, 0, 255};
        std::vector<std::vector<float>> batches, results;
        std::vector<event> events;
        for (std::size_t b = 0; b < sizes.size(); ++b) {
          batches.push_back(ramp(sizes[b], static_cast<float>(1000 * b)));
          results.emplace_back(sizes[b], -1.0F);
        }
        for (std::size_t b = 0; b < sizes.size(); ++b) events.push_back(line.push(batches[b], results[b]));
        for (std::size_t b = 0; b < sizes.size(); ++b) {
          events[b].wait();
          for (std::size_t i = 0; i < sizes[b]; ++i)
            ASSERT_EQ(results[b][i], static_cast<float>(1000 * b + i) + static_cast<float>((1 << stages) - 1))
                << devices << " devices, " << stages << " stages, batch " << b << ", element " << i;
        }
        const auto told = line.report();
        EXPECT_EQ(told.finished, sizes.size());
        EXPECT_EQ(told.failed, 0U);
        for (const auto& e : told.edges) EXPECT_LE(e.peak, options.depth) << e.name;
      }
    }
  }
}

TEST(pipeline, without_a_batch_has_nothing_to_wait_for_and_nothing_to_tell) {
  const machine m = samples::play(samples::wired(2));
  auto line = weft::make_pipeline<float>(m, 8).kernel<line_double>("double").kernel<line_double>("again").build();
  line.drain();
  const auto told = line.report();
  EXPECT_EQ(told.pushed, 0U);
  EXPECT_EQ(told.period.count(), 0);
  ASSERT_EQ(told.stages.size(), 2U);
  EXPECT_NE(told.stages[1].why.find("'again' on"), std::string::npos) << told.stages[1].why;
}

TEST(pipeline, counts_what_its_stages_give_and_changes_their_type) {
  const machine m = samples::play(samples::wired(2));
  const auto half = [](std::size_t n) { return n / 2; };
  auto line = weft::make_pipeline<float>(m, 100)
                  .kernel<line_floor>("floor")
                  .kernel<line_pairs>("pairs", {.count = half})
                  .kernel<line_pairs>("fours", {.count = half})
                  .build();
  for (const std::size_t n : {std::size_t{100}, std::size_t{0}, std::size_t{11}, std::size_t{3}}) {
    const auto batch = ramp(n, 0.5F);
    ASSERT_EQ(line.results_of(n), n / 2 / 2);
    ints got(line.results_of(n));
    line.push(batch, got).wait();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<int>(16 * i + 6)) << n;
  }
}

TEST(pipeline, takes_no_more_than_its_depth_on_each_edge) {
  const machine m = samples::play(samples::wired(3));
  for (const bool overlap : {true, false}) {
    for (const int depth : {1, 2, 3}) {
      std::vector<ints> batches, results(64, ints(4));
      for (int b = 0; b < 64; ++b) batches.emplace_back(4, b);
      samples::gate slow;
      std::atomic<int> begun{0}, looked{0};
      weft::pipeline_options options;
      options.depth = depth;
      options.overlap_hops = overlap;
      options.placement = {gpu0, gpu1, gpu2};
      auto line = weft::make_pipeline<std::int32_t>(m, 4, options)
                      .stage<std::int32_t>("first", looking([&](std::int32_t) { ++begun; }))
                      .stage<std::int32_t>(
                          "slow",
                          [&](const stream& order, device_span<const std::int32_t> in, device_span<std::int32_t> out) {
                            if (looked++ == 0) static_cast<void>(slow.hold(order));
                            weft::copy(order, out, in);
                          })
                      .stage<std::int32_t>("last", looking(nothing))
                      .build();
      std::vector<event> events;
      // It takes what its buffers hold before the stage that stands: input, first's result, slow's input. In one track
      // one buffer does.
      const int between = overlap ? depth : 1;
      for (std::size_t b = 0; b < static_cast<std::size_t>(depth + between + depth); ++b) {
        const auto taken = line.push_for(batches[b], results[b], soon);
        ASSERT_TRUE(taken) << overlap << depth << " batch " << b;
        events.push_back(*taken);
      }
      EXPECT_FALSE(line.push_for(batches[63], results[63], milliseconds{20})) << "nothing more fits";
      EXPECT_FALSE(line.try_push(batches[63], results[63]));
      EXPECT_FALSE(events.front().ready());
      const int held = begun.load();
      std::atomic<bool> is_through{false};
      std::thread pusher{[&] {
        line.push(batches[63], results[63]).wait();
        is_through = true;
      }};
      EXPECT_FALSE(is_through) << "push waits while the line is full";
      EXPECT_LE(held, depth + between);
      slow.open();
      pusher.join();
      line.drain();
      for (std::size_t b = 0; b < events.size(); ++b) EXPECT_EQ(results[b], batches[b]);
      EXPECT_EQ(results[63], batches[63]);
      int peak = 0;
      for (const auto& e : line.report().edges) {
        EXPECT_LE(e.peak, e.buffers) << e.name;
        EXPECT_LE(e.buffers, depth) << e.name;
        peak = std::max(peak, e.peak);
      }
      EXPECT_EQ(peak, depth) << "the edge before the slow stage was full";
    }
  }
}

TEST(pipeline, keeps_the_order_at_every_stage_and_at_the_end) {
  const machine m = samples::play(samples::wired(3));
  std::mutex mutex;
  std::vector<ints> seen(3);
  const auto note = [&](std::size_t stage) {
    return looking([&, stage](std::int32_t value) {
      if ((value + static_cast<int>(stage)) % 3 == 0) std::this_thread::yield();
      const std::lock_guard lock{mutex};
      seen[stage].push_back(value);
    });
  };
  auto line = weft::make_pipeline<std::int32_t>(m, 1)
                  .stage<std::int32_t>("a", note(0))
                  .stage<std::int32_t>("b", note(1))
                  .stage<std::int32_t>("c", note(2))
                  .build();
  ints expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  ints results(100);
  std::vector<event> events;
  for (std::size_t b = 0; b < 100; ++b)
    events.push_back(line.push(std::span{expected}.subspan(b, 1), std::span{results}.subspan(b, 1)));
  for (std::size_t b = 100; b-- > 0;) {
    events[b].wait();
    for (std::size_t before = 0; before <= b; ++before) ASSERT_TRUE(events[before].ready()) << before << " " << b;
  }
  EXPECT_EQ(results, expected);
  for (const ints& one : seen) EXPECT_EQ(one, expected);
}

// ---- failures -------------------------------------------------------------------------------------------------------

TEST(pipeline, lets_the_others_through_when_a_batch_fails_wherever_that_is) {
  const machine m = samples::play(samples::wired(3));
  for (const std::size_t failing : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    for (const int devices : {1, 2, 3}) {
      weft::pipeline_options options;
      options.devices.at_most = static_cast<std::size_t>(devices);
      std::array<std::atomic<int>, 3> runs{};
      const auto stage = [&](std::size_t s) {
        return looking([&, s](std::int32_t value) {
          ++runs[s];
          refuse(s == failing && value % 5 == 3, "the sensor was dirty");
        });
      };
      auto line = weft::make_pipeline<std::int32_t>(m, 3, options)
                      .stage<std::int32_t>("a", stage(0))
                      .stage<std::int32_t>("b", stage(1))
                      .stage<std::int32_t>("c", stage(2))
                      .build();
      std::vector<ints> batches, results(20, ints(3, -1));
      for (int b = 0; b < 20; ++b) batches.emplace_back(3, b);
      std::vector<event> events;
      for (std::size_t b = 0; b < 20; ++b) events.push_back(line.push(batches[b], results[b]));
      const std::string name(1, static_cast<char>('a' + failing));
      for (std::size_t b = 0; b < 20; ++b) {
        if (b % 5 != 3) {
          ASSERT_NO_THROW(events[b].wait()) << b;
          ASSERT_EQ(results[b], batches[b]) << b;
          continue;
        }
        const weft::error cause = error_of([&] { events[b].wait(); });
        EXPECT_EQ(cause.code, errc::kernel_failed) << b << cause.what;
        EXPECT_NE(cause.what.find("batch " + std::to_string(b) + " of a pipeline, stage '" + name + "' on gpu"),
                  std::string::npos)
            << cause.what;
        EXPECT_NE(cause.what.find("the sensor was dirty"), std::string::npos) << cause.what;
        EXPECT_EQ(results[b], ints(3, -1)) << "no garbage is given out";
      }
      EXPECT_NE(error_of([&] { line.drain(); }).what.find("batch 3 of"), std::string::npos);
      line.drain();  // told once
      EXPECT_EQ(line.report().failed, 4U);
      EXPECT_EQ(line.report().finished, 20U);
      for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(runs[s], s <= failing ? 20 : 16) << "each stage sees a batch once";
      m.synchronize();  // nothing is left to tell
    }
  }
}

TEST(pipeline, is_usable_after_failures_that_nobody_waited_for) {
  const machine m = samples::play(samples::wired(2));
  auto line = weft::make_pipeline<std::int32_t>(m, 1)
                  .stage<std::int32_t>("a", looking([](std::int32_t v) { refuse(v < 30, "early"); }))
                  .stage<std::int32_t>("b", looking(nothing))
                  .build();
  ints values(40), results(40, -1);
  std::iota(values.begin(), values.end(), 0);
  for (std::size_t b = 0; b < 40; ++b) line.push(std::span{values}.subspan(b, 1), std::span{results}.subspan(b, 1));
  EXPECT_EQ(error_of([&] { line.drain(); }).code, errc::kernel_failed);
  for (int b = 0; b < 40; ++b) EXPECT_EQ(results[static_cast<std::size_t>(b)], b < 30 ? -1 : b);
}

TEST(pipeline, does_not_take_a_batch_whose_stage_throws_while_it_submits) {
  const machine m = samples::play(samples::wired(2));
  int calls = 0;
  auto line = weft::make_pipeline<std::int32_t>(m, 1)
                  .stage<std::int32_t>("a", looking(nothing))
                  .stage<std::int32_t>(
                      "b",
                      [&](const stream& order, device_span<const std::int32_t> in, device_span<std::int32_t> out) {
                        if (++calls == 3) weft::raise(errc::invalid_argument, "not this one");
                        if (calls == 5) throw std::runtime_error("nor this");
                        weft::copy(order, out, in);
                      })
                  .build();
  ints values(10), results(10, -1);
  std::iota(values.begin(), values.end(), 0);
  for (std::size_t b = 0; b < 10; ++b) {
    const auto push = [&] { line.push(std::span{values}.subspan(b, 1), std::span{results}.subspan(b, 1)); };
    if (b == 2) {
      EXPECT_NE(error_of(push).what.find("not this one"), std::string::npos);
    } else if (b == 4) {
      EXPECT_THROW(push(), std::runtime_error);
    } else {
      push();
    }
  }
  line.drain();  // whoever pushed has been told
  for (int b = 0; b < 10; ++b) EXPECT_EQ(results[static_cast<std::size_t>(b)], b == 2 || b == 4 ? -1 : b);
  EXPECT_EQ(line.report().failed, 2U);
}

TEST(pipeline, waits_for_what_a_stage_had_submitted_before_it_threw) {
  const machine m = samples::play(samples::wired(1));
  samples::gate slow;
  auto line = weft::make_pipeline<float>(m, 1)
                  .stage<float>("a",
                                [&](const stream& order, device_span<const float>, device_span<float>) {
                                  static_cast<void>(slow.hold(order));
                                  weft::raise(errc::invalid_argument, "half done");
                                })
                  .build();
  std::vector<float> one(1);
  EXPECT_EQ(error_of([&] { line.push(one, one); }).what, "half done");
  EXPECT_EQ(line.drain_for(milliseconds{10}), wait_outcome::timed_out);
  slow.open();
  EXPECT_EQ(line.drain_for(soon), wait_outcome::ok);
}

TEST(pipeline, takes_up_batches_after_a_copy_has_failed) {
  weft::topology layout = samples::wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::copy_fails;
  fault.from = gpu0;
  fault.to = gpu1;
  fault.nth = 4;
  layout.faults.push_back(fault);
  const machine m = samples::play(layout);
  const auto leases = weft::enable_all_peers(m);
  weft::pipeline_options options;
  options.placement = {gpu0, gpu1};
  auto line = weft::make_pipeline<float>(m, 5, options).kernel<line_double>("a").kernel<line_double>("b").build();
  std::vector<std::vector<float>> batches, results(12, std::vector<float>(5));
  std::vector<event> events;
  for (std::size_t b = 0; b < 12; ++b) batches.push_back(ramp(5, static_cast<float>(b)));
  for (std::size_t b = 0; b < 12; ++b) events.push_back(line.push(batches[b], results[b]));
  int failed = 0;
  for (std::size_t b = 0; b < 12; ++b) {
    const weft::error cause = error_of([&] { events[b].wait(); });
    if (cause.code == errc::not_ready) {
      for (std::size_t i = 0; i < 5; ++i) ASSERT_EQ(results[b][i], 4 * batches[b][i]);
      continue;
    }
    ++failed;
    EXPECT_EQ(cause.code, errc::copy_failed);
    EXPECT_NE(cause.what.find("the copy from stage 'a' on gpu0 to gpu1"), std::string::npos) << cause.what;
  }
  EXPECT_EQ(failed, 1);
}

TEST(pipeline, ends_with_a_lost_device_and_so_do_all_its_events) {
  for (const int nth : {1, 9, 30, 57}) {
    weft::topology layout = samples::wired(3);
    weft::topology_fault fault;
    fault.what = weft::topology_fault::kind::device_lost;
    fault.device = gpu1;
    fault.nth = static_cast<std::uint64_t>(nth);
    layout.faults.push_back(fault);
    const machine m = samples::play(layout);
    weft::pipeline_options options;
    options.placement = {gpu0, gpu1, gpu2};
    auto line = weft::make_pipeline<float>(m, 5, options)
                    .kernel<line_double>("a")
                    .kernel<line_double>("b")
                    .kernel<line_double>("c")
                    .build();
    const auto batch = ramp(5, 0);
    std::vector<std::vector<float>> results(50, std::vector<float>(5));
    std::vector<event> events;
    weft::error told;
    for (std::size_t b = 0; b < 50 && told.what.empty(); ++b) {
      const weft::error cause = error_of([&] { events.push_back(line.push(batch, results[b])); });
      if (cause.code != errc::not_ready) told = cause;
    }
    EXPECT_EQ(told.code, errc::device_lost) << told.what;
    EXPECT_NE(told.what.find("gpu1"), std::string::npos) << told.what;
    for (const event& e : events) {
      EXPECT_NO_THROW(static_cast<void>(e.failure()));
      const weft::error cause = error_of([&] { EXPECT_EQ(e.wait_for(soon), wait_outcome::ok); });
      if (cause.code != errc::not_ready) {
        EXPECT_EQ(cause.code, errc::device_lost) << cause.what;
      }
    }
    const weft::error again = error_of([&] { line.push(batch, results[0]); });
    EXPECT_NE(again.what.find("the pipeline has ended: gpu1"), std::string::npos) << again.what;
  }
}

TEST(pipeline, a_stop_cancels_the_batches_under_way_and_leaves_no_waiter) {
  const machine m = samples::play(samples::wired(2));
  samples::gate slow;
  std::stop_source stop;
  weft::pipeline_options options;
  options.stop = stop.get_token();
  options.placement = {gpu0, gpu1};
  std::vector<event> events;
  ints values(64), results(64, -1);
  {
    auto line = weft::make_pipeline<std::int32_t>(m, 1, options)
                    .stage<std::int32_t>("slow",
                                         [&, held = false](const stream& order, device_span<const std::int32_t> in,
                                                           device_span<std::int32_t> out) mutable {
                                           if (!std::exchange(held, true)) static_cast<void>(slow.hold(order));
                                           weft::copy(order, out, in);
                                         })
                    .stage<std::int32_t>("b", looking(nothing))
                    .build();
    const auto push = [&](std::size_t b, nanoseconds limit) {
      return line.push_for(std::span{values}.subspan(b, 1), std::span{results}.subspan(b, 1), limit);
    };
    for (std::size_t b = 0; b < static_cast<std::size_t>(options.depth); ++b) {  // the input of the stage that stands
      const auto taken = push(b, soon);
      ASSERT_TRUE(taken) << b;
      events.push_back(*taken);
    }
    EXPECT_FALSE(push(62, milliseconds{10})) << "nothing more fits";
    weft::error told;
    std::atomic<bool> is_pushing{false};
    std::thread pusher{[&] {
      is_pushing = true;
      told = error_of([&] { line.push(std::span{values}.subspan(63, 1), std::span{results}.subspan(63, 1)); });
    }};
    while (!is_pushing) std::this_thread::yield();
    EXPECT_EQ(events.front().wait_for(milliseconds{20}), wait_outcome::timed_out);  // so that it has begun to wait
    stop.request_stop();
    pusher.join();
    EXPECT_FALSE(events.front().ready());
    EXPECT_EQ(told.code, errc::cancelled) << "a push that waits is let go while the stage still stands";
    EXPECT_EQ(error_of([&] { static_cast<void>(push(0, soon)); }).code, errc::cancelled);
    slow.open();
    for (const event& e : events) {
      const weft::error cause = error_of([&] { EXPECT_NE(e.wait_for(soon), wait_outcome::timed_out); });
      EXPECT_EQ(cause.code, errc::cancelled) << cause.what;
    }
    EXPECT_EQ(error_of([&] { line.drain(); }).code, errc::cancelled);
  }
  m.synchronize();
}

TEST(pipeline, going_out_of_scope_waits_for_what_is_under_way) {
  const machine m = samples::play(samples::wired(2));
  const auto batch = ramp(100, 0);
  std::vector<std::vector<float>> results(10, std::vector<float>(100));
  std::vector<event> events;
  {
    auto line = weft::make_pipeline<float>(m, 100).kernel<line_double>("a").kernel<line_double>("b").build();
    auto moved = std::move(line);
    for (auto& r : results) events.push_back(moved.push(batch, r));
  }
  for (const event& e : events) EXPECT_TRUE(e.ready());
  for (const auto& r : results) EXPECT_EQ(r[99], 396.0F);
}

TEST(pipeline, a_pipeline_of_a_closed_machine_ends_and_hangs_nowhere) {
  machine m = samples::play(samples::wired(2));
  samples::gate slow;
  auto line = weft::make_pipeline<std::int32_t>(m, 1)
                  .stage<std::int32_t>("slow",
                                       [&, held = false](const stream& order, device_span<const std::int32_t> in,
                                                         device_span<std::int32_t> out) mutable {
                                         if (!std::exchange(held, true)) static_cast<void>(slow.hold(order));
                                         weft::copy(order, out, in);
                                       })
                  .stage<std::int32_t>("b", looking(nothing))
                  .build();
  ints values(8), results(8);
  std::vector<event> events;
  for (std::size_t b = 0; b < 2; ++b)
    events.push_back(line.push(std::span{values}.subspan(b, 1), std::span{results}.subspan(b, 1)));
  std::thread closing{[&] { m.close(); }};
  for (const event& e : events) {
    EXPECT_EQ(error_of([&] { EXPECT_NE(e.wait_for(soon), wait_outcome::timed_out); }).code, errc::cancelled);
  }
  slow.open();
  closing.join();
  EXPECT_EQ(error_of([&] { line.push(values, results); }).code, errc::machine_closed);
}

TEST(pipeline, refuses_what_does_not_fit_and_says_what) {
  const machine m = samples::play(samples::wired(2));
  const auto text = [](auto&& f) {
    const weft::error cause = error_of(f);
    return std::string{to_string(cause.code)} + ": " + cause.what;
  };
  const auto expect = [](const std::string& got, const std::string& part) {
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  const auto build = [&](const weft::pipeline_options& options) {
    static_cast<void>(weft::make_pipeline<float>(m, 10, options).kernel<line_double>("a").build());
  };
  expect(text([&] { static_cast<void>(weft::make_pipeline<float>(m, 10).build()); }), "without a stage");
  expect(text([&] { build({.depth = 0}); }), "invalid_argument: a pipeline of depth 0");
  expect(text([&] { build({.placement = {gpu0, gpu1}}); }), "a placement names 2 devices for 1 stages");
  expect(text([&] { build({.placement = {weft::device_id{7}}}); }), "invalid_device");
  expect(text([&] { build({.devices = {.ids = {gpu0}}, .placement = {gpu0}}); }), "names the devices itself");
  expect(text([&] { build({.devices = {.ids = {weft::device_id{7}}}}); }), "invalid_device");
  expect(text([&] {
           static_cast<void>(weft::make_pipeline<float>(m, std::size_t{1} << 60).kernel<line_double>("a").build());
         }),
         "out_of_range");
  expect(text([&] {
           static_cast<void>(weft::make_pipeline<float>(m, std::size_t{1} << 30).kernel<line_double>("a").build());
         }),
         "out_of_memory: stage 'a' keeps");
  auto line = weft::make_pipeline<float>(m, 10).kernel<line_double>("a").build();
  std::vector<float> ten(10), eleven(11);
  expect(text([&] { line.push(eleven, eleven); }),
         "out_of_range: a batch of 11 elements: this pipeline was made for 10");
  expect(text([&] { line.push(ten, eleven); }), "incompatible: the result of a batch of 10 elements has 10");
  line.push(ten, ten).wait();
}

TEST(pipeline, says_that_it_was_moved_from) {
  const machine m = samples::play(samples::wired(1));
  auto line = weft::make_pipeline<float>(m, 1).kernel<line_double>("a").build();
  const auto moved = std::move(line);
  std::vector<float> one(1);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  EXPECT_EQ(error_of([&] { static_cast<void>(line.report()); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { line.push(one, one); }).what, "an empty pipeline: it was moved from");
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(moved.report().pushed, 0U);
}

TEST(pipeline, reports_its_pace_though_it_keeps_no_batch) {
  const machine m = samples::play(samples::wired(2));
  for (const std::size_t kept : {std::size_t{0}, std::size_t{2}}) {
    weft::pipeline_options options;
    options.keep_batches = kept;
    auto line = weft::make_pipeline<std::int32_t>(m, 1, options)
                    .stage<std::int32_t>("a", looking([](std::int32_t v) { refuse(v >= 5, "late"); }))
                    .build();
    ints values(7), results(7, -1);
    std::iota(values.begin(), values.end(), 0);
    for (std::size_t b = 0; b < 7; ++b) line.push(std::span{values}.subspan(b, 1), std::span{results}.subspan(b, 1));
    EXPECT_EQ(error_of([&] { line.drain(); }).code, errc::kernel_failed);
    const auto told = line.report();
    EXPECT_EQ(told.finished, 7U);
    EXPECT_EQ(told.failed, 2U);
    EXPECT_EQ(told.batches.size(), kept);
    EXPECT_GT(told.elapsed.count(), 0) << kept;
    EXPECT_GT(told.batches_per_second, 0.0) << kept;
  }
}

// ---- time, on the virtual clock: simulated, never measured ----------------------------------------------------------

constexpr std::size_t items = 1000;

/// Devices that copy `items` floats within themselves in 50 ms, hand them on and out in 5 ms, and take them in at once.
machine timed(int devices, bool costly_input = false) {
  weft::topology made = weft::host_topology(devices, weft::bytes{std::uint64_t{64} << 20});
  made.simulated = true;
  for (auto& d : made.devices) d.bytes_per_second = static_cast<double>(2 * items * sizeof(float)) / 50e-3;
  for (weft::topology_link& link : made.links) {
    link.kind = weft::link_kind::nvlink;
    link.bytes_per_second = 1e18;
    link.latency = link.from == devices && !costly_input ? nanoseconds{0} : nanoseconds{milliseconds{5}};
  }
  auto complete = weft::complete_topology(std::move(made));
  if (!complete) weft::raise(complete.error());
  return samples::play(*complete, weft::clock_kind::virtual_time);
}

/// 50 ms of work.
void work(const stream& order, device_span<const float> in, device_span<float> out) { weft::copy(order, out, in); }

weft::pipeline<float, float> timed_line(const machine& m, const weft::pipeline_options& options) {
  const weft::stage_options fifty{.cost = weft::kernel_cost{0, 50e-3 / items}};
  return weft::make_pipeline<float>(m, items, options)
      .stage<float>("a", work, fifty)
      .stage<float>("b", work, fifty)
      .stage<float>("c", work, fifty)
      .build();
}

void push_all(weft::pipeline<float, float>& line, std::size_t batches) {
  const auto batch = ramp(items, 0);
  std::vector<std::vector<float>> results(batches, std::vector<float>(items));
  for (auto& r : results) line.push(batch, r);
  line.drain();
  for (auto& r : results) ASSERT_EQ(r, batch);
}

TEST(virtual_pipeline, takes_55_ms_a_batch_when_hops_and_stages_take_turns) {
  const machine m = timed(3);
  const auto leases = weft::enable_all_peers(m);
  auto line = timed_line(m, {.overlap_hops = false});
  const auto begin = m.now();
  push_all(line, 20);
  // every stage works 50 ms and hands on in 5 ms: N + k − 1 rounds of 55 ms
  EXPECT_EQ(m.now() - begin, (20 + 3 - 1) * milliseconds{55});
  EXPECT_EQ(m.now() - begin, milliseconds{1210});
  const auto told = line.report();
  EXPECT_EQ(told.period, milliseconds{55});
  for (std::size_t b = 0; b < 20; ++b)
    EXPECT_EQ(told.batches[b].finished - begin, (static_cast<int>(b) + 3) * milliseconds{55}) << b;
  EXPECT_EQ(told.fill, milliseconds{110}) << "two rounds until the third device works";
  EXPECT_EQ(told.drain, milliseconds{110}) << "and two after the first one has done";
  EXPECT_EQ(told.elapsed, milliseconds{1210});
  EXPECT_NEAR(told.batches_per_second, 20 / 1.210, 1e-9);
  EXPECT_TRUE(told.simulated);
  ASSERT_EQ(told.stages.size(), 3U);
  for (const auto& s : told.stages) {
    EXPECT_EQ(s.busy, milliseconds{1000}) << s.name;
    EXPECT_NEAR(s.share, 1000.0 / 1210, 1e-9);
  }
  ASSERT_EQ(told.hops.size(), 4U);
  EXPECT_EQ(told.hops[1].busy, milliseconds{100});
  EXPECT_TRUE(told.has_costs);
  EXPECT_NEAR(told.placement.period_seconds, 55e-3, 1e-9);
  EXPECT_NEAR(told.placement.first_seconds, 165e-3, 1e-9);
  EXPECT_NEAR(told.placement.fill_seconds, 110e-3, 1e-9);
  EXPECT_NEAR(told.placement.drain_seconds, 110e-3, 1e-9);
}

TEST(virtual_pipeline, takes_50_ms_a_batch_when_hops_run_beside_the_stages) {
  for (const bool costly_input : {false, true}) {
    const machine m = timed(3, costly_input);
    const auto leases = weft::enable_all_peers(m);
    auto line = timed_line(m, {});
    push_all(line, 20);
    const auto told = line.report();
    const milliseconds first{3 * 50 + (costly_input ? 4 : 3) * 5};
    EXPECT_EQ(told.elapsed, first + 19 * milliseconds{50});
    EXPECT_EQ(told.period, milliseconds{50});
    EXPECT_EQ(told.fill, first - milliseconds{55});
    EXPECT_NEAR(told.placement.period_seconds, 50e-3, 1e-9);
    EXPECT_NEAR(told.placement.first_seconds, std::chrono::duration<double>(first).count(), 1e-9);
    EXPECT_NEAR(told.placement.fill_seconds, std::chrono::duration<double>(told.fill).count(), 1e-9);
    EXPECT_NEAR(told.placement.drain_seconds, std::chrono::duration<double>(told.drain).count(), 1e-9);
  }
}

TEST(virtual_pipeline, a_push_that_throws_leaves_no_copy_in_the_memory_of_the_caller) {
  const machine m = timed(1, true);
  auto line = weft::make_pipeline<float>(m, items)
                  .stage<float>("a", [](const stream&, device_span<const float>,
                                        device_span<float>) { weft::raise(errc::invalid_argument, "not this one"); })
                  .build();
  const auto begin = m.now();
  std::vector<float> batch(items), result(items);
  EXPECT_EQ(error_of([&] { line.push(batch, result); }).what, "not this one");
  EXPECT_EQ(m.now() - begin, milliseconds{5}) << "the copy of the batch has ended";
  EXPECT_EQ(line.report().pushed, 1U);
  line.drain();
}

TEST(virtual_pipeline, a_pipeline_on_fewer_devices_than_stages_takes_the_time_of_its_placement) {
  for (const int devices : {1, 2}) {
    for (const bool overlap : {true, false}) {
      const machine m = timed(devices);
      const auto leases = weft::enable_all_peers(m);
      auto line = timed_line(m, {.overlap_hops = overlap});
      push_all(line, 10);
      const auto told = line.report();
      const int stages = devices == 1 ? 3 : 2;  // on the busiest device
      EXPECT_EQ(told.period, stages * milliseconds{50} + (overlap ? milliseconds{0} : milliseconds{5}));
      EXPECT_NEAR(told.placement.period_seconds, std::chrono::duration<double>(told.period).count(), 1e-9);
      EXPECT_NEAR(std::chrono::duration<double>(told.elapsed).count(),
                  told.placement.first_seconds + 9 * told.placement.period_seconds, 1e-9);
    }
  }
}

TEST(virtual_pipeline, a_stage_of_depth_one_waits_until_its_last_result_is_handed_on) {
  const machine m = timed(3);
  const auto leases = weft::enable_all_peers(m);
  auto line = timed_line(m, {.depth = 1});
  push_all(line, 10);
  EXPECT_EQ(line.report().period, milliseconds{55}) << "a stage waits until its last result has been handed on";
  for (const auto& e : line.report().edges) EXPECT_LE(e.peak, 1) << e.name;
}

TEST(virtual_pipeline, goes_on_after_a_failure_and_repeats_exactly) {
  std::vector<std::vector<nanoseconds>> runs;
  for (int run = 0; run < 5; ++run) {
    const machine m = timed(3);
    const auto leases = weft::enable_all_peers(m);
    int calls = 0;
    weft::pipeline_options options;
    options.placement = {gpu0, gpu1, gpu2};
    auto line = weft::make_pipeline<float>(m, items, options)
                    .stage<float>("a", work)
                    .stage<float>("b",
                                  [&calls](const stream& order, device_span<const float> in, device_span<float> out) {
                                    if (++calls == 4) order.call([] { refuse(true, "a bad one"); });
                                    work(order, in, out);
                                  })
                    .stage<float>("c", work)
                    .build();
    const auto batch = ramp(items, 0);
    std::vector<std::vector<float>> results(12, std::vector<float>(items));
    std::vector<event> events;
    for (auto& r : results) events.push_back(line.push(batch, r));
    for (std::size_t b = 0; b < 12; ++b) {
      if (b == 3) {
        EXPECT_EQ(error_of([&] { events[b].wait(); }).code, errc::kernel_failed);
      } else {
        ASSERT_NO_THROW(events[b].wait()) << b;
        EXPECT_EQ(results[b], batch);
      }
    }
    std::vector<nanoseconds> finished;
    for (const auto& b : line.report().batches) finished.push_back(b.finished);
    runs.push_back(finished);
  }
  for (const auto& one : runs) EXPECT_EQ(one, runs.front());
}

TEST(virtual_pipeline, try_push_says_full_and_lets_the_clock_go_on) {
  const machine m = timed(3);
  const auto leases = weft::enable_all_peers(m);
  auto line = timed_line(m, {});
  const auto batch = ramp(items, 0);
  std::vector<std::vector<float>> results(6, std::vector<float>(items));
  std::size_t taken = 0, full = 0;
  while (taken < results.size()) line.try_push(batch, results[taken]) ? ++taken : ++full;
  EXPECT_GT(full, 0U);
  line.drain();
  EXPECT_EQ(line.report().finished, 6U);
}

/// Kernels take what their cost says, and nothing more.
machine modelled(const std::vector<double>& speeds, weft::simulation model = {.launch_latency = nanoseconds{0}}) {
  weft::machine_options options;
  options.machine = timed(static_cast<int>(speeds.size())).layout();
  for (std::size_t d = 0; d < speeds.size(); ++d) options.machine->devices[d].speed = speeds[d];
  options.clock = weft::clock_kind::virtual_time;
  options.model = model;
  options.check_order = true;
  return machine{options};
}

TEST(virtual_pipeline, kernels_take_the_time_of_their_costs_and_the_costly_one_gets_the_fast_device) {
  const auto cost = [](double seconds) { return weft::stage_options{.cost = weft::kernel_cost{0, seconds / items}}; };
  for (const std::size_t fast : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    std::vector<double> speeds(3, 1.0);
    speeds[fast] = 2;
    const machine m = modelled(speeds);
    const auto leases = weft::enable_all_peers(m);
    auto line = weft::make_pipeline<float>(m, items, {.overlap_hops = false})
                    .kernel<line_double>("double", cost(50e-3))
                    .kernel<line_add>("add", cost(100e-3), 1.0F)
                    .kernel<line_double>("again", cost(50e-3))
                    .build();
    const auto batch = ramp(items, 0);
    std::vector<std::vector<float>> results(20, std::vector<float>(items));
    for (auto& r : results) line.push(batch, r);
    line.drain();
    const auto told = line.report();
    EXPECT_EQ(told.stages[1].device.index(), fast);
    EXPECT_EQ(told.period, milliseconds{55});
    EXPECT_EQ(told.elapsed, milliseconds{1210});
    for (const auto& r : results) EXPECT_EQ(r[7], 2 * (2 * 7.0F + 1));
  }
}

TEST(virtual_pipeline, leaves_no_access_unordered_in_any_schedule) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    weft::simulation model;
    model.shuffle = seed;
    model.delay = milliseconds{40};
    const machine m = modelled({1, 1, 1}, model);
    const auto leases = weft::enable_all_peers(m);
    weft::pipeline_options options;
    options.overlap_hops = seed % 2 == 0;
    options.depth = 1 + static_cast<int>(seed % 3);
    // there and back again, and two in a row
    options.placement = {gpu0, gpu1, gpu0, gpu2, gpu2};
    auto line = weft::make_pipeline<float>(m, items, options)
                    .kernel<line_add>("a", 1.0F)
                    .kernel<line_add>("b", 2.0F)
                    .kernel<line_add>("c", 4.0F)
                    .kernel<line_add>("d", 8.0F)
                    .kernel<line_add>("e", 16.0F)
                    .build();
    std::vector<std::vector<float>> batches, results(12, std::vector<float>(items));
    for (std::size_t b = 0; b < 12; ++b) batches.push_back(ramp(items - b, static_cast<float>(b)));
    for (std::size_t b = 0; b < 12; ++b) {
      results[b].resize(items - b);
      line.push(batches[b], results[b]);
    }
    line.drain();
    for (std::size_t b = 0; b < 12; ++b) {
      for (std::size_t i = 0; i < results[b].size(); ++i)
        ASSERT_EQ(results[b][i], static_cast<float>(b + i) + 31) << seed;
    }
    for (const auto& v : m.order_violations()) ADD_FAILURE() << seed << ": " << v.what;
    for (const auto& e : line.report().edges) EXPECT_LE(e.peak, e.buffers) << seed << e.name;
  }
}

}  // namespace pipeline_test
