// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/launch_run.hpp"

#include "support/hang.hpp"
#include "support/samples.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <numeric>
#include <pthread.h>
#include <thread>

namespace launch_run_test {

using samples::error_of;
using weft::array;
using weft::balance;
using weft::buffer;
using weft::device_id;
using weft::errc;
using weft::failure_policy;
using weft::launch;
using weft::launch_run;
using weft::machine;
using weft::range;
using weft::spread_options;

WEFT_KERNEL(spread_affine, (WEFT_IN(float) input, WEFT_OUT(float) output), { output[i] = input[i] * 2.0f + 1.0f; });
WEFT_KERNEL(spread_add, (WEFT_INOUT(int32_t) values, int32_t by), { values[i] = values[i] + by; });
WEFT_KERNEL(spread_count, (WEFT_INOUT(uint8_t) visits), { visits[i] = (uint8_t)(visits[i] + 1); });
WEFT_KERNEL(spread_smooth, (WEFT_IN(int32_t, halo(3)) input, WEFT_OUT(int32_t) output, int64_t count), {
  int32_t sum = 0;
  for (int64_t k = -3; k <= 3; ++k) {
    sum += input[weft_clamp(i + k, 0, count - 1)];
  }
  output[i] = sum;
});
WEFT_KERNEL(spread_block_sums, (WEFT_IN(int32_t, rows(100)) input, WEFT_OUT(int64_t) sums), {
  int64_t sum = 0;
  for (int64_t k = 0; k < 100; ++k) {
    sum += input[i * 100 + k];
  }
  sums[i] = sum;
});
WEFT_KERNEL(spread_look_up, (WEFT_IN(int32_t, whole) table, WEFT_IN(int32_t) index, WEFT_OUT(int32_t) found),
            { found[i] = table[index[i]]; });
WEFT_KERNEL(spread_total, (WEFT_IN(int32_t) values, WEFT_INOUT(int64_t, reduce(sum)) total),
            { total[0] += values[i]; });
WEFT_KERNEL(spread_extremes,
            (WEFT_IN(float) values, WEFT_INOUT(float, reduce(min)) least, WEFT_INOUT(float, reduce(max)) most), {
              least[0] = values[i] < least[0] ? values[i] : least[0];
              most[0] = values[i] > most[0] ? values[i] : most[0];
            });
WEFT_KERNEL_2D(spread_rotate,
               (WEFT_IN(int32_t, halo(1)) input, WEFT_OUT(int32_t) output, int64_t width, int64_t height), {
                 const int64_t above = weft_clamp(y - 1, 0, height - 1);
                 const int64_t below = weft_clamp(y + 1, 0, height - 1);
                 output[y * width + x] = input[above * width + x] + input[below * width + x];
               });
WEFT_KERNEL_3D(spread_cube, (WEFT_OUT(int32_t) output, int64_t nx, int64_t ny),
               { output[(z * ny + y) * nx + x] = (int32_t)(z * 10000 + y * 100 + x); });

std::vector<int32_t> numbers(std::size_t n) {
  std::vector<int32_t> made(n);
  for (std::size_t i = 0; i < n; ++i) made[i] = static_cast<int32_t>((i * 2654435761u) % 1009);
  return made;
}

constexpr balance strategies[] = {balance::automatic,    balance::static_equal,  balance::dynamic, balance::guided,
                                  balance::memory_aware, balance::work_stealing, balance::weighted};

spread_options with(balance strategy, std::size_t devices) {
  spread_options options;
  options.strategy = strategy;
  if (strategy == balance::weighted) {
    for (std::size_t d = 0; d < devices; ++d) options.weights.push_back(static_cast<double>(d + 1));
  }
  return options;
}

TEST(spread, runs_every_index_once_with_every_strategy_on_any_number_of_devices) {
  for (const int devices : {1, 2, 3, 5}) {
    const machine m = samples::play(samples::wired(devices));
    for (const balance strategy : strategies) {
      for (const std::int64_t n : {0, 1, 2, 63, 4096, 10007}) {
        array<std::uint8_t> visits{m, static_cast<std::size_t>(n), std::uint8_t{0}};
        launch<spread_count>(m, with(strategy, static_cast<std::size_t>(devices)), range(n), visits).wait();
        const auto seen = visits.host();
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), n) << to_string(strategy) << ", " << devices << " devices";
      }
    }
  }
}

TEST(spread, takes_host_memory_and_its_results_are_there_after_the_wait) {
  const machine m = samples::play(samples::wired(3));
  for (const balance strategy : strategies) {
    std::vector<float> x(10'000);
    std::iota(x.begin(), x.end(), 0.0f);
    std::vector<float> y(x.size());
    launch<spread_affine>(m, with(strategy, 3), range(10'000), x, y).wait();
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], x[i] * 2.0f + 1.0f) << i << ' ' << to_string(strategy);
  }
}

WEFT_KERNEL(spread_shift, (WEFT_IN(float) input, WEFT_OUT(float, halo(1)) output, int64_t count), {
  if (i + 1 < count) {
    output[i + 1] = input[i];
  }
});

TEST(spread, in_passes_keeps_what_one_pass_writes_among_the_elements_of_the_next) {
  const machine m = samples::play(samples::wired(2, {}, std::uint64_t{1} << 20));
  std::vector<float> x(500'000);
  std::iota(x.begin(), x.end(), 1.0f);
  const auto is_shifted = [&](const std::vector<float>& y) {
    for (std::size_t i = 1; i < y.size(); ++i) {
      if (y[i] != x[i - 1]) return testing::AssertionFailure() << "element " << i << " is " << y[i];
    }
    return testing::AssertionSuccess();
  };
  std::vector<float> y(x.size());
  const auto count = static_cast<std::int64_t>(x.size());
  for (int i = 0; i < 3; ++i) {
    std::fill(y.begin(), y.end(), 0.0f);
    const launch_run run = launch<spread_shift>(m, range(count), x, y, count);
    run.wait();
    EXPECT_GT(run.report().devices.front().pieces, 1);
    EXPECT_TRUE(is_shifted(y)) << i;
  }
  array<float> unwritten{m, x.size()};
  launch<spread_shift>(m, range(count), x, unwritten, count).wait();
  EXPECT_TRUE(is_shifted(unwritten.host()));
}

/// Takes memory of a device from others while they work, down to a rest.
class memory_taker {
 public:
  void begin(const machine& from, std::uint64_t rest) {
    from_ = &from;
    rest_ = rest;
  }
  void take() {
    const std::lock_guard lock{mutex_};
    const std::uint64_t left = (*from_)[0].free_memory().value();
    if (left <= rest_) return;
    try {
      taken_.emplace_back((*from_)[0], static_cast<std::size_t>(left - rest_));
    } catch (const weft::error_exception&) {  // a piece was faster
    }
  }
  void end() { taken_.clear(); }

 private:
  std::mutex mutex_;
  const machine* from_ = nullptr;
  std::uint64_t rest_ = 0;
  std::vector<buffer<std::uint8_t>> taken_;
};
memory_taker taker;

WEFT_KERNEL(spread_while_memory_goes, (WEFT_IN(float) input, WEFT_OUT(float) output), {
  if (i % 1024 == 0) taker.take();
  output[i] = input[i] + 1.0f;
});

TEST(spread, goes_on_in_smaller_pieces_where_somebody_takes_the_memory_meanwhile) {
  const machine m = samples::play(samples::wired(2, {}, std::uint64_t{1} << 20));
  std::vector<float> x(300'000);
  std::iota(x.begin(), x.end(), 0.0f);
  for (const bool stays : {false, true}) {
    taker.begin(m, std::uint64_t{64} << 10);
    std::vector<float> y(x.size());
    array<float> there{m, x.size()};
    spread_options on_one = with(balance::guided, 2);
    on_one.devices.ids = {device_id{0}};
    if (stays) {
      launch<spread_while_memory_goes>(m, on_one, range(300'000), x, there).wait();
      y = there.host();
    } else {
      launch<spread_while_memory_goes>(m, on_one, range(300'000), x, y).wait();
    }
    taker.end();
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], x[i] + 1.0f) << i;
  }
}

TEST(spread, takes_memory_of_one_device_and_leaves_the_results_there) {
  const machine m = samples::play(samples::wired(3));
  const auto values = numbers(5'000);
  buffer<std::int32_t> on_one{m[1], values.size()};
  weft::copy(on_one, values);
  launch<spread_add>(m, range(5'000), on_one, std::int32_t{7}).wait();
  std::vector<std::int32_t> got(values.size());
  weft::copy(got, on_one);
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], values[i] + 7) << i;
}

TEST(spread, takes_a_peer_mapping_as_memory_of_the_device_that_it_is_for) {
  const machine m = samples::play(samples::wired(2));
  const buffer<std::int32_t> there{m[0], 1000};
  weft::copy(there, numbers(1000));
  const auto leases = weft::enable_all_peers(m);
  const weft::peer_mapping<std::int32_t> seen{m, there.span(), m[1].id()};
  for (int n = 0; n < 2; ++n) launch<spread_add>(m, range(1000), seen.span(), 1).wait();
  std::vector<std::int32_t> got(1000);
  weft::copy(got, there);
  auto expected = numbers(1000);
  for (auto& v : expected) v += 2;
  EXPECT_EQ(got, expected);
}

TEST(spread, by_name_is_the_same_as_by_type) {
  const machine m = samples::play(samples::wired(2));
  weft::kernels(m).add<spread_add>();
  array<std::int32_t> a{m, numbers(1'000)};
  launch(m, "spread_add", range(1'000), a, std::int32_t{1}).wait();
  launch(m, {.strategy = balance::static_equal}, "spread_add", range(1'000), a, std::int32_t{1}).wait();
  const auto before = numbers(1'000);
  const auto after = a.host();
  for (std::size_t i = 0; i < after.size(); ++i) ASSERT_EQ(after[i], before[i] + 2);
}

TEST(spread, a_kernel_that_looks_beyond_its_piece_gets_its_neighbours) {
  for (const int devices : {2, 4, 7}) {
    const machine m = samples::play(samples::wired(devices));
    for (const std::int64_t n : {5, 8, 1'000}) {
      const auto input = numbers(static_cast<std::size_t>(n));
      array<std::int32_t> x{m, input};
      array<std::int32_t> y{m, input.size()};
      launch<spread_smooth>(m, {.strategy = balance::static_equal}, range(n), x, y, n).wait();
      const auto got = y.host();
      for (std::int64_t i = 0; i < n; ++i) {
        std::int32_t sum = 0;
        for (std::int64_t k = -3; k <= 3; ++k)
          sum += input[static_cast<std::size_t>(std::clamp<std::int64_t>(i + k, 0, n - 1))];
        ASSERT_EQ(got[static_cast<std::size_t>(i)], sum) << i << " of " << n << " on " << devices;
      }
    }
  }
}

TEST(spread, rows_whole_arguments_and_two_or_three_dimensions_are_right) {
  const machine m = samples::play(samples::wired(3));
  const auto input = numbers(100 * 37);
  array<std::int32_t> x{m, input};
  array<std::int64_t> sums{m, 37};
  launch<spread_block_sums>(m, {.strategy = balance::static_equal}, range(37), x, sums).wait();
  const auto got = sums.host();
  for (std::size_t i = 0; i < 37; ++i) {
    EXPECT_EQ(got[i], std::accumulate(input.begin() + static_cast<std::ptrdiff_t>(i * 100),
                                      input.begin() + static_cast<std::ptrdiff_t>(i * 100 + 100), std::int64_t{0}));
  }

  std::vector<std::int32_t> table(101);
  std::iota(table.begin(), table.end(), 1000);
  std::vector<std::int32_t> index(999);
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i % 101);
  std::vector<std::int32_t> found(999);
  launch<spread_look_up>(m, range(999), table, index, found).wait();
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], 1000 + index[i]);

  const std::int64_t width = 33;
  const std::int64_t height = 50;
  const auto image = numbers(static_cast<std::size_t>(width * height));
  array<std::int32_t> from{m, image};
  array<std::int32_t> to{m, image.size()};
  launch<spread_rotate>(m, {.strategy = balance::static_equal}, range(width, height), from, to, width, height).wait();
  const auto rotated = to.host();
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t c = 0; c < width; ++c) {
      const auto at = [&](std::int64_t r) {
        return image[static_cast<std::size_t>(std::clamp<std::int64_t>(r, 0, height - 1) * width + c)];
      };
      ASSERT_EQ(rotated[static_cast<std::size_t>(y * width + c)], at(y - 1) + at(y + 1)) << c << ", " << y;
    }
  }
  array<std::int32_t> cube{m, 3 * 4 * 10};
  launch<spread_cube>(m, {.strategy = balance::guided}, range(3, 4, 10), cube, std::int64_t{3}, std::int64_t{4}).wait();
  const auto cells = cube.host();
  for (int z = 0; z < 10; ++z) {
    for (int y = 0; y < 4; ++y) {
      for (int c = 0; c < 3; ++c)
        ASSERT_EQ(cells[static_cast<std::size_t>((z * 4 + y) * 3 + c)], z * 10000 + y * 100 + c);
    }
  }
}

TEST(spread, reduces_over_devices_from_the_value_that_was_there) {
  for (const int devices : {1, 2, 5}) {
    const machine m = samples::play(samples::wired(devices));
    const auto values = numbers(10'001);
    const std::int64_t expected = std::accumulate(values.begin(), values.end(), std::int64_t{5});
    for (const balance strategy : strategies) {
      array<std::int32_t> x{m, values};
      array<std::int64_t> total{m, 1, 5};
      launch<spread_total>(m, with(strategy, static_cast<std::size_t>(devices)), range(10'001), x, total).wait();
      EXPECT_EQ(total.host()[0], expected) << to_string(strategy) << " on " << devices;
      std::int64_t on_host = 5;
      launch<spread_total>(m, with(strategy, static_cast<std::size_t>(devices)), range(10'001), values,
                           std::span{&on_host, 1})
          .wait();
      EXPECT_EQ(on_host, expected) << to_string(strategy) << " on " << devices;
    }
    std::vector<float> spread_out{3.0f, -8.5f, 12.0f, 0.25f, 7.0f};
    array<float> least{m, 1, 100.0f};
    array<float> most{m, 1, -100.0f};
    launch<spread_extremes>(m, {.strategy = balance::static_equal}, range(5), spread_out, least, most).wait();
    EXPECT_EQ(least.host()[0], -8.5f);
    EXPECT_EQ(most.host()[0], 12.0f);
  }
}

TEST(spread, chained_kernels_move_nothing_in_between) {
  const machine m = samples::play(samples::wired(4));
  array<float> x{m, 4'000, 1.0f};
  array<float> y{m, 4'000};
  std::vector<launch_run> runs;
  for (int step = 0; step < 10; ++step) {
    runs.push_back(launch<spread_affine>(m, {.strategy = balance::static_equal}, range(4'000), x, y));
    runs.push_back(launch<spread_affine>(m, {.strategy = balance::static_equal}, range(4'000), y, x));
  }
  for (const launch_run& run : runs) run.wait();
  EXPECT_EQ(x.traffic().copies, 0u) << "a constant is written where it is needed, and pieces stay";
  EXPECT_EQ(y.traffic().copies, 0u);
  float expected = 1.0f;
  for (int step = 0; step < 20; ++step) expected = expected * 2.0f + 1.0f;
  EXPECT_EQ(x.host(), std::vector<float>(4'000, expected));
  EXPECT_EQ(x.traffic().redundant, 0u);
}

TEST(spread, waits_at_its_end_for_kernels_that_write_memory_of_the_host) {
  const machine m = samples::play(samples::wired(2));
  for (const bool unified : {false, true}) {
    samples::gate held;
    held.hold(m[0].default_stream());
    std::vector<std::int32_t> values = numbers(1000);
    std::promise<void> is_over;
    std::thread user{[&] {
      spread_options options;
      options.unified_memory = unified;
      launch<spread_add>(m, options, range(1000), values, 1);
      is_over.set_value();
    }};
    EXPECT_EQ(is_over.get_future().wait_for(std::chrono::milliseconds{20}), std::future_status::timeout) << unified;
    held.open();
    user.join();
    auto expected = numbers(1000);
    for (auto& v : expected) ++v;
    EXPECT_EQ(values, expected) << unified;
  }
}

/// Runs `f` with a stack on which no thousand calls fit.
void on_a_small_stack(const std::function<void()>& f) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, std::size_t{128} << 10);
  pthread_t thread{};
  const auto run = [](void* what) -> void* { return (*static_cast<const std::function<void()>*>(what))(), nullptr; };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&f)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(spread, a_long_line_of_launches_that_each_wait_for_the_one_before_ends) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> values{m, std::vector<std::int32_t>(64, 1)};
  array<std::int64_t> total{m, std::vector<std::int64_t>(1, 0)};
  samples::gate held;
  held.hold(m[0].default_stream());
  constexpr int count = 3'000;
  for (int n = 0; n < count; ++n) launch<spread_total>(m, range(64), values, total);
  held.open();
  on_a_small_stack([&] { EXPECT_EQ(total.host().front(), std::int64_t{64} * count); });
}

TEST(spread, comes_after_what_the_default_streams_of_all_its_devices_hold) {
  // A second of the virtual clock goes by before gpu0 writes what the pieces of both devices read.
  const machine m = samples::play(samples::wired(2), weft::clock_kind::virtual_time);
  const weft::stream order = m[0].default_stream();
  const buffer<std::int32_t> busy{m[0], 1};
  for (const bool on_device : {false, true}) {
    const buffer<float> there{m[0], 1'000};
    std::vector<float> here(1'000, 0.0f), found(1'000);
    weft::fill(order, there, 0.0f).wait();
    launch<spread_add>(order, {.model = weft::kernel_cost{1, 0}}, range(1), busy, std::int32_t{1});
    weft::fill(order, there, 3.0f);
    weft::copy(order, std::span<float>{here}, there);
    const spread_options equal = with(balance::static_equal, 2);
    if (on_device) {
      launch<spread_affine>(m, equal, range(1'000), there, found).wait();
    } else {
      launch<spread_affine>(m, equal, range(1'000), here, found).wait();
    }
    EXPECT_EQ(found, std::vector<float>(1'000, 7.0f)) << on_device;
  }
}

TEST(spread, comes_before_what_a_default_stream_is_given_after_it) {
  for (const failure_policy policy : {failure_policy::fail_fast, failure_policy::retry_elsewhere}) {
    const machine m = samples::play(samples::wired(2));
    array<std::int32_t> values{m, std::vector<std::int32_t>(64, 1)};
    array<std::int64_t> total{m, std::vector<std::int64_t>(1, 0)};
    samples::gate held;
    held.hold(m[0].default_stream());
    const spread_options equal{.strategy = balance::static_equal, .on_failure = policy};
    launch<spread_total>(m, equal, range(64), values, total);
    const launch_run second = launch<spread_total>(m, equal, range(64), values, total);
    // the first one has not joined its partial results yet: the second one is not decided
    for (const weft::device& d : m.devices()) d.default_stream().wait(second.done());
    held.open();
    ASSERT_EQ(second.wait_for(samples::only_a_hang), weft::wait_outcome::ok);
    EXPECT_EQ(total.host().front(), 128);
  }
}

TEST(spread, asking_whether_a_launch_is_ready_moves_those_before_it_on_a_virtual_clock) {
  const machine m = samples::play(samples::wired(2), weft::clock_kind::virtual_time);
  array<std::int32_t> values{m, std::vector<std::int32_t>(64, 1)};
  array<std::int64_t> total{m, std::vector<std::int64_t>(1, 0)};
  const launch_run first = launch<spread_total>(m, range(64), values, total);
  const launch_run second = launch<spread_total>(m, range(64), values, total);
  const auto until = std::chrono::steady_clock::now() + samples::only_a_hang;
  while (!second.ready()) ASSERT_LT(std::chrono::steady_clock::now(), until);
  EXPECT_EQ(total.host().front(), 128);
}

TEST(spread, a_launch_that_is_refused_waits_for_no_other) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> values{m, numbers(1000)};
  samples::gate held;
  held.hold(m[0].default_stream());
  const launch_run waits = launch<spread_add>(m, range(1000), values, 1);
  spread_options none = with(balance::weighted, 2);
  none.weights = {0, 0};
  EXPECT_EQ(error_of([&] { launch<spread_add>(m, none, range(1000), values, 1).wait(); }).code, errc::invalid_argument);
  held.open();
  waits.wait();
}

TEST(spread, orders_launches_that_share_an_array_whatever_the_strategies) {
  const machine m = samples::play(samples::wired(3));
  array<std::int32_t> a{m, 6'000, 0};
  std::vector<launch_run> runs;
  for (int step = 0; step < 60; ++step) {
    const balance strategy = strategies[static_cast<std::size_t>(step) % 6];
    runs.push_back(launch<spread_add>(m, with(strategy, 3), range(6'000), a, std::int32_t{step}));
  }
  for (const launch_run& run : runs) run.wait();
  EXPECT_EQ(a.host(), std::vector<std::int32_t>(6'000, 59 * 60 / 2));
}

TEST(spread, from_eight_threads_at_once_keeps_them_apart) {
  const machine m = samples::play(samples::wired(3));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&m, &right, t] {
      array<std::int32_t> mine{m, 3'000, t};
      for (int step = 0; step < 20; ++step) {
        launch<spread_add>(m, with(strategies[static_cast<std::size_t>(step + t) % 6], 3), range(3'000), mine,
                           std::int32_t{1});
      }
      right += mine.host() == std::vector<std::int32_t>(3'000, t + 20) ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 8);
}

}  // namespace launch_run_test
