// SPDX-License-Identifier: Apache-2.0
// Loops over arrays that are read with a halo, in virtual time: what moves, what stays, and how long they take.
#include "support/samples.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

namespace halo_array_test {

using weft::array;
using weft::balance;
using weft::device_id;
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
WEFT_KERNEL(halo_add_one, (WEFT_INOUT(float) values), { values[i] += 1.0f; });

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

TEST(halo_array, that_is_only_read_keeps_its_division) {
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

TEST(launch_history, of_queued_launches_is_that_of_launches_waited_for) {
  constexpr std::int64_t n = std::int64_t{1} << 18;
  const machine m = alike();
  array<float> values{m, static_cast<std::size_t>(n), 1.0F};
  const auto step = [&] { return launch<halo_add_one>(m, {.strategy = balance::static_equal}, range(n), values); };
  const auto speed = [&] {
    return weft::history_of(m).items_per_second({"halo_add_one", m[0].uuid(), true, true}, n / 4).value_or(0);
  };
  for (int k = 0; k < 5; ++k) step().wait();
  const double waited = speed();
  std::vector<launch_run> runs;
  for (int k = 0; k < 100; ++k) runs.push_back(step());
  for (const launch_run& run : runs) run.wait();
  EXPECT_GT(waited, 0);
  EXPECT_NEAR(speed(), waited, 0.01 * waited);
}

}  // namespace halo_array_test
