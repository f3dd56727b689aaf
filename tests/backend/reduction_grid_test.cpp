// SPDX-License-Identifier: Apache-2.0
#include "backend/kernels/reduction_grid.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace reduction_grid_test {

WEFT_KERNEL(counts,
            (WEFT_IN(uint8_t) values, WEFT_INOUT(uint64_t, reduce(sum)) seen, WEFT_INOUT(uint8_t, reduce(max)) most), {
              seen[values[i]] += 1;
              most[0] = weft_max(most[0], values[i]);
            });

weft::reduction_grid grid_of(std::int64_t items, std::int64_t elements, const weft::reduction_device& device) {
  std::vector<weft::kernel_argument> arguments(3);
  arguments[0].type = weft::element_type::uint8;
  arguments[1].type = weft::element_type::uint64;
  arguments[1].count = elements;
  arguments[2].type = weft::element_type::uint8;
  arguments[2].count = 1;
  return weft::reduction_grid_for(*weft::make_kernel_code<counts>(), {1, {0, 0, 0}, {items, 1, 1}}, arguments, device);
}

constexpr weft::reduction_device gpu{132, false, 1024};
constexpr weft::reduction_device processor{8, true, 4096};

TEST(reduction_grid, a_grid_of_many_items_gives_every_unit_its_share) {
  const weft::reduction_grid wide = grid_of(100'000'000, 1, gpu);
  EXPECT_EQ(wide.group, 256);
  EXPECT_EQ(wide.groups, 4 * 132);
  EXPECT_EQ(wide.step, wide.lanes()) << "neighbouring lanes read neighbouring items";
  const weft::reduction_grid narrow = grid_of(100'000'000, 1, processor);
  EXPECT_EQ(narrow.lanes(), 8 * 4);
  EXPECT_EQ(narrow.group, 1) << "opencl_lone_lanes_option";
  EXPECT_EQ(narrow.step, 1) << "a lane reads neighbouring items";
}

TEST(reduction_grid, a_grid_of_few_items_has_few_lanes_and_at_least_one) {
  for (const weft::reduction_device& device : {gpu, processor}) {
    for (const std::int64_t items : {0, 1, 15, 17, 300}) {
      const weft::reduction_grid grid = grid_of(items, 1, device);
      EXPECT_GE(grid.lanes(), 1);
      EXPECT_LE((grid.lanes() - 1) * 16, items) << items;
    }
  }
}

TEST(reduction_grid, has_no_lane_with_more_results_than_items) {
  for (const std::int64_t elements : {1, 100, 5000, 200'000}) {
    const weft::reduction_grid grid = grid_of(100'000, elements, gpu);
    EXPECT_LE((grid.lanes() - 1) * elements, 100'000) << elements;
    EXPECT_EQ(grid.elements, elements);
  }
}

TEST(reduction_grid, keeps_scratch_within_its_limit_and_holds_each_parameters_results) {
  const weft::reduction_grid grid = grid_of(std::int64_t{1} << 40, 100'000, gpu);
  EXPECT_LE(grid.scratch, std::uint64_t{64} << 20);
  const auto lanes = static_cast<std::uint64_t>(grid.lanes());
  EXPECT_EQ(grid.scratch, lanes * 800'000 + (lanes + 15) / 16 * 16);
  EXPECT_EQ(grid_of(std::int64_t{1} << 40, 100'000'000, gpu).lanes(), 1)
      << "one lane's results are more than the limit";
}

TEST(reduction_grid, has_no_group_larger_than_the_device_takes) {
  EXPECT_EQ(grid_of(1'000'000, 1, {4, false, 60}).group, 60);
  EXPECT_EQ(grid_of(1'000'000, 1, {4, true, 1}).group, 1);
}

}  // namespace reduction_grid_test
