// SPDX-License-Identifier: Apache-2.0
// Loops over arrays that are read with a halo, in virtual time: what moves, what stays, and how long they take.
#include "exec/balance/launch_history.hpp"
#include "support/raw_launch.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace halo_array_test {

using std::chrono::nanoseconds;
using weft::array;
using weft::balance;
using weft::device_id;
using weft::kernel_cost;
using weft::launch;
using weft::launch_report;
using weft::launch_run;
using weft::machine;
using weft::range;
using weft::spread_options;

constexpr std::int64_t width = 256;
constexpr std::int64_t height = 256;
constexpr std::size_t cells = width * height;

WEFT_KERNEL_2D(halo_relax, (WEFT_IN(float, halo(1)) from, WEFT_OUT(float) to, int64_t w, int64_t h), {
  int64_t at = y * w + x;
  int fixed = x == 0 || y == 0 || x == w - 1 || y == h - 1;
  to[at] = fixed ? from[at] : 0.25f * ((from[at - w] + from[at + w]) + (from[at - 1] + from[at + 1]));
});
WEFT_KERNEL_2D(halo_scale, (WEFT_INOUT(float) values, int64_t w), { values[y * w + x] *= 2.0f; });
WEFT_KERNEL(halo_average, (WEFT_IN(float, whole) from, WEFT_OUT(float) to, int64_t n),
            { to[i] = (from[i] + from[n - 1 - i]) * 0.5f; });
WEFT_KERNEL(halo_add_one, (WEFT_INOUT(float) values), { values[i] += 1.0f; });
WEFT_KERNEL(halo_add, (WEFT_IN(float) more, WEFT_INOUT(float) values), { values[i] += more[i]; });

std::vector<float> first_grid() {
  std::vector<float> made(cells);
  for (std::size_t i = 0; i < cells; ++i) made[i] = static_cast<float>(i % 97);
  return made;
}

std::vector<float> relaxed(int steps) {
  std::vector<float> from = first_grid(), to = from;
  for (int step = 0; step < steps; ++step) {
    for (std::size_t y = 1; y + 1 < height; ++y) {
      for (std::size_t x = 1; x + 1 < width; ++x) {
        const std::size_t at = y * width + x;
        to[at] = 0.25F * ((from[at - width] + from[at + width]) + (from[at - 1] + from[at + 1]));
      }
    }
    std::swap(from, to);
  }
  return from;
}

/// Four equal devices.
machine alike() {
  weft::machine_options options;
  options.sim = "pcie_4";
  options.clock = weft::clock_kind::virtual_time;
  return machine{options};
}

/// Three devices of speed 45 : 30 : 25.
machine unlike() {
  weft::topology layout = samples::wired(3);
  constexpr double speeds[] = {1.35, 0.9, 0.75};
  for (std::size_t d = 0; d < 3; ++d) layout.devices[d].speed = speeds[d];
  return samples::simulated(weft::value_or_raise(weft::complete_topology(std::move(layout))));
}

/// A grid, twice: one is read, the other written.
struct loop {
  explicit loop(machine on, spread_options options = {})
      : m(std::move(on)), how(std::move(options)), peers(weft::enable_all_peers(m)), a(m, first_grid()), b(m, cells) {}

  launch_run step(bool swaps) {
    launch_run run = launch<halo_relax>(m, how, range(width, height), *from, *to, width, height);
    if (swaps) std::swap(from, to);
    return run;
  }
  /// Launches one after the other, and gives the report of the last.
  launch_report waited(int steps, bool swaps) {
    launch_report last;
    for (int k = 0; k < steps; ++k) {
      const launch_run run = step(swaps);
      run.wait();
      last = run.report();
    }
    return last;
  }
  void queued(int steps, bool swaps) {
    std::vector<launch_run> runs;
    for (int k = 0; k < steps; ++k) runs.push_back(step(swaps));
    for (const launch_run& run : runs) run.wait();
  }

  machine m;
  spread_options how;
  std::vector<weft::peer_access> peers;
  array<float> a, b;
  array<float>* from = &a;
  array<float>* to = &b;
};

double time_of(machine m, balance strategy, int steps, bool waits, bool swaps, double item_seconds) {
  spread_options how;
  how.strategy = strategy;
  how.model = kernel_cost{0, item_seconds};
  loop grid{std::move(m), how};
  const nanoseconds begin = grid.m.now();
  if (waits) {
    grid.waited(steps, swaps);
  } else {
    grid.queued(steps, swaps);
  }
  return static_cast<double>((grid.m.now() - begin).count());
}

std::vector<std::int64_t> items_of(const launch_report& report) {
  std::vector<std::int64_t> made;
  for (const auto& d : report.devices) made.push_back(d.items);
  return made;
}

TEST(halo_array, swapped_in_a_loop_moves_its_halos_and_nothing_on_a_device) {
  for (const bool waits : {true, false}) {
    loop grid{alike(), {.strategy = balance::static_equal}};
    if (waits) {
      grid.waited(20, true);
    } else {
      grid.queued(20, true);
    }
    EXPECT_EQ(weft::counters(grid.m).same_device.bytes, 0U) << waits;
    EXPECT_EQ(grid.a.traffic().within_devices + grid.b.traffic().within_devices, 0U) << waits;
    const std::uint64_t halos = std::uint64_t{3} * 2 * width * sizeof(float);
    EXPECT_EQ(grid.a.traffic().between_devices + grid.b.traffic().between_devices, 20 * halos) << waits;
    EXPECT_EQ(grid.from->host(), relaxed(20)) << waits;
  }
}

TEST(halo_array, whose_halo_comes_up_late_moves_once_on_its_device_and_keeps_one_memory) {
  loop grid{alike(), {.strategy = balance::static_equal}};
  launch<halo_scale>(grid.m, grid.how, range(width, height), grid.a, width).wait();
  grid.waited(1, false);
  EXPECT_EQ(grid.a.traffic().within_devices, cells * sizeof(float)) << "its parts had no room for a halo";
  const auto free = grid.m[0].free_memory();
  grid.waited(1, false);
  EXPECT_EQ(grid.m[0].free_memory() - free, weft::bytes{cells / 4 * sizeof(float)}) << "what had no room is gone";
  grid.waited(5, true);
  EXPECT_EQ(grid.a.traffic().within_devices, cells * sizeof(float)) << "and nothing moved again";
}

TEST(halo_array, whose_halo_comes_up_late_moves_once_in_queued_launches_too) {
  loop grid{alike(), {.strategy = balance::static_equal}};
  const launch_run scaled = launch<halo_scale>(grid.m, grid.how, range(width, height), grid.a, width);
  grid.queued(6, true);
  EXPECT_EQ(grid.a.traffic().within_devices + grid.b.traffic().within_devices, cells * sizeof(float));
}

TEST(halo_array, an_array_that_is_only_read_keeps_its_division) {
  loop grid{alike(), {.strategy = balance::static_equal}};
  const auto equal = items_of(grid.waited(1, false));
  grid.how.strategy = balance::automatic;
  const auto after_one = grid.a.traffic();
  EXPECT_EQ(items_of(grid.waited(40, false)), equal);
  EXPECT_EQ(grid.a.traffic().copies, after_one.copies) << "its halos were there, and are no shares";
}

TEST(halo_array, keeps_its_division_when_one_device_reads_it_all) {
  loop grid{alike(), {.strategy = balance::static_equal}};
  const auto equal = items_of(grid.waited(1, false));
  array<float> other{grid.m, cells};
  const spread_options one{.devices = {.ids = {device_id{1}}}};
  launch<halo_relax>(grid.m, one, range(width, height), grid.a, other, width, height).wait();
  grid.how.strategy = balance::automatic;
  EXPECT_EQ(items_of(grid.waited(1, false)), equal);
}

TEST(halo_array, follows_a_new_division_in_one_share_each) {
  loop grid{unlike()};
  grid.how.model = kernel_cost{0, 5e-9};
  const auto settled = grid.waited(40, false);
  for (const auto& d : settled.devices) EXPECT_EQ(d.pieces, 1);
  const auto traffic = grid.a.traffic();
  EXPECT_EQ(items_of(grid.waited(40, false)), items_of(settled));
  EXPECT_EQ(grid.a.traffic().copies, traffic.copies);
}

TEST(halo_array, an_array_read_whole_by_all_devices_is_still_divided_where_it_was_written) {
  const machine m = alike();
  std::vector<float> values(1024, 3.0F);
  array<float> a{m, values}, b{m, values.size()};
  array<float>*from = &a, *to = &b;
  for (int k = 0; k < 6; ++k) {
    const launch_run run = launch<halo_average>(m, range(1024), *from, *to, std::int64_t{1024});
    run.wait();
    EXPECT_EQ(items_of(run.report()), std::vector<std::int64_t>(4, 256)) << "step " << k;
    std::swap(from, to);
  }
  EXPECT_EQ(from->host(), values);
}

TEST(halo_array, automatic_on_equal_devices_takes_as_long_as_equal_shares) {
  for (const int steps : {1, 20, 300}) {
    for (const bool waits : {true, false}) {
      for (const bool swaps : {true, false}) {
        const double equal = time_of(alike(), balance::static_equal, steps, waits, swaps, 1e-9);
        EXPECT_LT(time_of(alike(), balance::automatic, steps, waits, swaps, 1e-9), 1.05 * equal)
            << steps << " steps" << (waits ? ", each waited for" : "") << (swaps ? ", swapped" : "");
      }
    }
  }
}

TEST(halo_array, automatic_on_unlike_devices_comes_near_the_ideal) {
  for (const bool waits : {true, false}) {
    for (const bool swaps : {true, false}) {
      // equal shares take 4/3 of the ideal
      const double equal = time_of(unlike(), balance::static_equal, 300, waits, swaps, 20e-9);
      EXPECT_LT(time_of(unlike(), balance::automatic, 300, waits, swaps, 20e-9), 0.8 * equal)
          << (waits ? "each waited for" : "queued") << (swaps ? ", swapped" : "");
    }
  }
}

TEST(halo_array, is_divided_anew_for_a_small_gain_when_its_loop_goes_on_for_long) {
  spread_options how;
  how.strategy = balance::static_equal;
  how.model = kernel_cost{0, 1e-9};
  loop grid{unlike(), how};
  const auto equal = items_of(grid.waited(1, true));
  grid.how.strategy = balance::automatic;
  EXPECT_EQ(items_of(grid.waited(15, true)), equal) << "the move takes longer than ten launches would gain";
  EXPECT_NE(items_of(grid.waited(60, true)), equal) << "but not longer than sixty";
}

/// Learnt from a hundred launches that were waited for one by one, and then from a hundred that were queued.
template <class F>
std::array<double, 2> speeds_of(const machine& m, std::string_view kernel, std::int64_t share, F&& step) {
  const auto learnt = [&] {
    return weft::history_of(m).items_per_second({kernel, m[0].uuid(), true, true}, share).value_or(0.0);
  };
  for (std::size_t k = 0; k < 200; ++k) step(k % 100).wait();  // memory that is filled for the first time takes longer
  const double waited = learnt();
  std::vector<launch_run> runs;
  for (std::size_t k = 0; k < 100; ++k) runs.push_back(step(k));
  for (const launch_run& run : runs) run.wait();
  return {waited, learnt()};
}

TEST(launch_history, queued_launches_teach_the_same_speed_as_awaited_ones) {
  constexpr std::int64_t n = std::int64_t{1} << 18;
  const machine m = alike();
  const spread_options equal{.strategy = balance::static_equal};
  array<float> values{m, static_cast<std::size_t>(n), 1.0F};
  const auto chained = speeds_of(m, "halo_add_one", n / 4,
                                 [&](std::size_t) { return launch<halo_add_one>(m, equal, range(n), values); });
  EXPECT_GT(chained[0], 0);
  EXPECT_NEAR(chained[1], chained[0], 0.01 * chained[0]) << "each works on what the one before it wrote";
  std::vector<array<float>> copies;
  for (int k = 0; k < 100; ++k) copies.emplace_back(m, static_cast<std::size_t>(n), 1.0F);
  const auto independent = speeds_of(
      m, "halo_add", n / 4, [&](std::size_t k) { return launch<halo_add>(m, equal, range(n), values, copies[k]); });
  EXPECT_GT(independent[0], 0);
  EXPECT_NEAR(independent[1], independent[0], 0.01 * independent[0]) << "each stands behind the one before it";
}

TEST(launch_history, a_wait_for_another_device_is_left_out_of_the_speed) {
  constexpr std::int64_t n = std::int64_t{1} << 18;
  const machine m = alike();
  array<float> values{m, static_cast<std::size_t>(n), 1.0F}, sums{m, static_cast<std::size_t>(n), 1.0F};
  const auto speed_after = [&](bool waits) {
    for (int k = 0; k < 6; ++k) {
      const launch_run first = launch<halo_add_one>(m, {.devices = {.ids = {device_id{0}}}}, range(n), values);
      if (waits) first.wait();
      launch<halo_add>(m, {.devices = {.ids = {device_id{1}}}}, range(n), values, sums).wait();
    }
    return weft::history_of(m).items_per_second({"halo_add", m[1].uuid(), true, true}, n).value_or(0.0);
  };
  const double waited = speed_after(true);
  EXPECT_GT(waited, 0);
  EXPECT_NEAR(speed_after(false), waited, 0.01 * waited);
}

}  // namespace halo_array_test
