// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/copy.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace hostile_box_test {

constexpr auto huge = std::numeric_limits<std::size_t>::max();

class hostile_box : public ::testing::TestWithParam<std::pair<weft::box_extent, std::array<std::size_t, 4>>> {};

TEST_P(hostile_box, whose_size_wraps_around_is_refused_and_moves_nothing) {
  weft::machine_options options;
  options.devices = 2;
  const weft::machine m{options};
  const weft::buffer<std::uint32_t> a{m[0], 64}, b{m[1], 64};
  std::vector<std::uint32_t> before(64, 7), after(64);
  weft::copy(b, before);
  const auto& [extent, pitches] = GetParam();
  weft::box<std::uint32_t> to{b.span(), {}, 0, pitches[0], pitches[1]};
  weft::box<std::uint32_t> from{a.span(), {}, 0, pitches[2], pitches[3]};
  EXPECT_THROW(weft::copy_box(to, from, extent), weft::error_exception);
  weft::copy(after, b);
  EXPECT_EQ(after, before);
}

INSTANTIATE_TEST_SUITE_P(
    sizes, hostile_box,
    ::testing::Values(std::pair{weft::box_extent{huge / 4 + 2, 1, 1}, std::array<std::size_t, 4>{0, 0, 0, 0}},
                      std::pair{weft::box_extent{4, huge / 8, 1}, std::array<std::size_t, 4>{8, 0, 8, 0}},
                      std::pair{weft::box_extent{4, 2, 1}, std::array<std::size_t, 4>{huge / 4 + 1, 0, 8, 0}},
                      std::pair{weft::box_extent{4, 3, 1}, std::array<std::size_t, 4>{huge / 8 + 1, 0, 8, 0}},
                      std::pair{weft::box_extent{4, 2, 3}, std::array<std::size_t, 4>{8, huge / 8 + 9, 8, 16}},
                      std::pair{
                          weft::box_extent{1U << 20, 1U << 22, 1U << 22},
                          std::array<std::size_t, 4>{1U << 20, std::size_t{1} << 42, 1U << 20, std::size_t{1} << 42}}));

}  // namespace hostile_box_test
