// SPDX-License-Identifier: Apache-2.0
#include "guide/guide_tables.hpp"
#include "weft/core/error.hpp"
#include "weft/core/raise.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace weft::test {
namespace guide_test {

TEST(guide_tables, each_row_stands_once_and_has_a_simulated_value) {
  std::set<std::pair<std::string_view, std::string_view>> names;
  std::string_view table;
  bench::guide_values simulated;
  for (const bench::guide_figure& f : bench::guide_figures()) {
    EXPECT_TRUE(names.emplace(f.table, f.row).second) << f.table << ", " << f.row;
    EXPECT_FALSE(f.unit.empty()) << f.row;
    EXPECT_GE(f.high, f.low) << f.row;
    if (f.table != table) simulated = bench::simulate_table(table = f.table);
    EXPECT_GT(simulated[f.row], 0) << f.table << ", " << f.row;
  }
  EXPECT_THROW(static_cast<void>(bench::figure_of("images", "no such row")), error_exception);
}

TEST(guide_tables, the_serial_part_follows_from_a_speed_up) {
  EXPECT_NEAR(bench::serial_part(3.57, 4), 0.0401, 0.0001);
  EXPECT_NEAR(bench::serial_part(1.91, 2), 0.0471, 0.0001);
  EXPECT_EQ(bench::serial_part(4, 4), 0);
}

TEST(guide_tables, a_second_device_helps_once_the_first_takes_longer_than_its_start) {
  // a0 + b n > a1, and n = (a1 - a0) / b
  EXPECT_NEAR(static_cast<double>(bench::crossover_items({20e-6, 5e-9, 120e-6, 5e-9}, 4)), 20'000, 2);
  EXPECT_EQ(bench::crossover_items({5e-6, 1e-9, 5e-6, 1e-9}, 2), 2) << "equal starts: an item each";
}

TEST(guide_tables, simulated_times_are_those_of_arithmetic) {
  const double serial = 0.0401;
  bench::guide_values of = bench::simulate_table("data parallel");
  EXPECT_NEAR(of["one device"], 2.3, 0.001);
  EXPECT_NEAR(of["speed-up, two devices"], 1 / (serial + (1 - serial) / 2), 0.02);
  EXPECT_GE(of["speed-up, four devices"], 3.55);
  EXPECT_LE(of["speed-up, four devices"], 3.58);
  EXPECT_LT(of["speed-up, four devices behind one link"], 2.2);
  of = bench::simulate_table("pipeline");
  EXPECT_NEAR(of["one device, per batch"], 150, 1e-6);
  EXPECT_NEAR(of["three devices, per batch"], 55, 1e-6);
  EXPECT_NEAR(of["throughput, 20 batches in all"], 20 * 150.0 / ((20 + 3 - 1) * 55), 1e-6);
  of = bench::simulate_table("load imbalance");
  EXPECT_NEAR(of["equal split, total"], 150, 0.001);
  EXPECT_NEAR(of["proportional split, total"], 120, 0.5);
  EXPECT_NEAR(bench::simulate_table("mixed devices")["share of the first"], 45, 0.3);
  of = bench::simulate_table("small copies");
  EXPECT_NEAR(of["1,000 copies of 4 KiB"], 4.096e-6 / (1e-6 + 4096 / 12e9), 0.01) << "1 us and 4 KiB at 12 GB/s each";
  EXPECT_NEAR(of["one copy of 4,000 KiB"], 12, 0.05);
  EXPECT_NEAR(bench::simulate_table("images")["speed-up, four devices"], 4, 0.01);
}

}  // namespace guide_test
}  // namespace weft::test
