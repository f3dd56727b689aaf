// SPDX-License-Identifier: Apache-2.0
#include "exec/arrays/instance_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace instance_list_test {

using weft::detail::array_instance;
using weft::detail::instance_list;
using weft::detail::interval;

std::unique_ptr<array_instance> instance(const interval& range) {
  auto made = std::make_unique<array_instance>();
  made->range = range;
  return made;
}

/// Those that a search finds; one that is found twice fails the test.
std::multiset<const array_instance*> found(const instance_list& list, const interval& range) {
  std::multiset<const array_instance*> made;
  list.overlapping(range, [&](const array_instance& one) { made.insert(&one); });
  return made;
}

std::multiset<const array_instance*> found_by_looking_at_all(const instance_list& list, const interval& range) {
  std::multiset<const array_instance*> made;
  for (const auto& one : list) {
    if (one->range.overlaps(range)) made.insert(one.get());
  }
  return made;
}

TEST(instance_list, finds_what_a_look_at_all_finds_whatever_came_went_or_was_shifted) {
  std::mt19937 random{11};
  const auto number = [&](int below) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(below)); };
  for (int round = 0; round < 200; ++round) {
    instance_list list;
    for (int step = 0; step < 30; ++step) {
      const std::int64_t begin = number(60) - 10;
      switch (number(4)) {
        case 0: {
          const std::int64_t by = number(9) - 4;
          std::vector<interval> expected;
          for (const auto& one : list) {
            const std::int64_t moved = one->is_home ? 0 : by;  // a home stays where it is
            expected.push_back({one->range.begin + moved, one->range.end + moved});
          }
          list.shift(by);
          ASSERT_TRUE(std::ranges::equal(list, expected, {}, [](const auto& one) { return one->range; })) << by;
          break;
        }
        case 1: {
          const std::int64_t gone = begin;
          list.erase_if([gone](const array_instance& one) { return one.range.begin == gone; });
          break;
        }
        default: {
          auto made = instance({begin, begin + number(number(3) == 0 ? 60 : 6)});
          made->is_home = number(8) == 0;
          list.add(std::move(made));
        }
      }
      for (int asked = 0; asked < 10; ++asked) {
        const std::int64_t from = number(80) - 20;
        const interval range{from, from + number(12)};
        ASSERT_EQ(found(list, range), found_by_looking_at_all(list, range)) << range.begin << " to " << range.end;
      }
    }
  }
}

TEST(instance_list, finds_one_that_is_as_long_as_a_number_can_be) {
  instance_list list;
  const auto& whole = list.add(instance({0, std::numeric_limits<std::int64_t>::max()}));
  list.add(instance({5, 6}));
  constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max() - 2;
  EXPECT_EQ(found(list, {far, far + 1}), std::multiset<const array_instance*>{&whole});
}

}  // namespace instance_list_test
