// SPDX-License-Identifier: Apache-2.0
#include "exec/arrays/interval_set.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace interval_set_test {

using weft::detail::interval;
using weft::detail::interval_set;

constexpr int width = 40;

std::vector<bool> bits_of(const std::vector<interval>& runs) {
  std::vector<bool> bits(width);
  for (const interval& run : runs) {
    for (auto i = run.begin; i < run.end; ++i) bits[static_cast<std::size_t>(i)] = true;
  }
  return bits;
}

TEST(interval_set, is_a_set_of_single_elements_only_shorter) {
  std::mt19937 random{7};
  std::uniform_int_distribution<int> place{0, width};
  for (int round = 0; round < 500; ++round) {
    interval_set set;
    std::vector<bool> bits(width);
    for (int step = 0; step < 12; ++step) {
      int a = place(random);
      int b = place(random);
      if (a > b && step % 5 != 0) std::swap(a, b);  // some are empty, or the wrong way round
      const interval range{a, b};
      const bool adds = place(random) % 3 != 0;
      if (adds) {
        set.add(range);
      } else {
        set.remove(range);
      }
      for (int i = a; i < b; ++i) bits[static_cast<std::size_t>(i)] = adds;
      ASSERT_EQ(bits_of(set.runs()), bits);
      ASSERT_EQ(set.count(), std::count(bits.begin(), bits.end(), true));
      for (std::size_t r = 1; r < set.runs().size(); ++r) {
        ASSERT_LT(set.runs()[r - 1].end, set.runs()[r].begin) << "runs are in order and do not touch";
      }
      int from = place(random);
      int to = place(random);
      if (from > to) std::swap(from, to);
      const interval within{from, to};
      auto in = bits_of(set.inside(within));
      auto out = bits_of(set.outside(within));
      bool all = true;
      for (int i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const bool asked = i >= from && i < to;
        ASSERT_EQ(in[at], asked && bits[at]);
        ASSERT_EQ(out[at], asked && !bits[at]);
        all = all && (!asked || bits[at]);
      }
      ASSERT_EQ(set.covers(within), all);
    }
  }
}

}  // namespace interval_set_test
