// SPDX-License-Identifier: Apache-2.0
#include "backends/queued/chain.hpp"

#include <gtest/gtest.h>

#include <array>

namespace chain_test {

struct thing {
  int number = 0;
  thing* next = nullptr;
  thing* next_elsewhere = nullptr;
};
using line = weft::queued::chain<thing, &thing::next>;
using other_line = weft::queued::chain<thing, &thing::next_elsewhere>;

TEST(chain, gives_things_back_in_the_order_in_which_they_came) {
  std::array<thing, 3> things{thing{1}, thing{2}, thing{3}};
  line all;
  EXPECT_TRUE(all.empty());
  EXPECT_EQ(all.pop_front(), nullptr);
  for (thing& one : things) all.push_back(&one);
  EXPECT_EQ(all.size(), 3U);
  EXPECT_EQ(all.back()->number, 3);
  EXPECT_EQ(all.at(1)->number, 2);
  for (int expected = 1; expected <= 3; ++expected) EXPECT_EQ(all.pop_front()->number, expected);
  EXPECT_TRUE(all.empty());
  all.push_back(&things[0]);
  EXPECT_EQ(all.front(), all.back());
}

/// As a command that is handed over while it is still the first of those that wait.
TEST(chain, keeps_what_stands_behind_a_thing_that_enters_another_one) {
  std::array<thing, 3> things{thing{1}, thing{2}, thing{3}};
  line waiting;
  other_line flying;
  for (thing& one : things) waiting.push_back(&one);
  flying.push_back(waiting.front());
  EXPECT_EQ(waiting.pop_front()->number, 1);
  EXPECT_EQ(waiting.size(), 2U);
  EXPECT_EQ(waiting.pop_front()->number, 2);
  EXPECT_EQ(waiting.pop_front()->number, 3);
  EXPECT_EQ(flying.front()->number, 1);
}

}  // namespace chain_test
