// SPDX-License-Identifier: Apache-2.0
#include "weft/core/unique_handle.hpp"

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

namespace unique_handle_test {

std::vector<int> released;

struct number_traits {
  using type = int;
  static type none() { return -1; }
  static void release(type& n) noexcept { released.push_back(n); }
};
using handle = weft::unique_handle<number_traits>;

class unique_handle : public testing::Test {
 protected:
  void SetUp() override { released.clear(); }
};

static_assert(!std::is_copy_constructible_v<handle> && !std::is_copy_assignable_v<handle>);
static_assert(std::is_nothrow_move_constructible_v<handle> && std::is_nothrow_move_assignable_v<handle>);
static_assert(!std::is_convertible_v<int, handle>, "taking over a handle is said, not implied");

TEST_F(unique_handle, an_empty_handle_releases_nothing) {
  {
    handle empty;
    EXPECT_FALSE(empty);
    EXPECT_EQ(empty.get(), -1);
    empty.reset();
    EXPECT_EQ(empty.release(), -1);
  }
  EXPECT_TRUE(released.empty());
}

TEST_F(unique_handle, releases_once_when_it_ends) {
  {
    const handle one{7};
    EXPECT_TRUE(one);
    EXPECT_EQ(one.get(), 7);
  }
  EXPECT_EQ(released, std::vector<int>{7});
}

TEST_F(unique_handle, holds_zero_as_well_as_any_other_value_that_is_not_none) {
  {
    const handle zero{0};
  }
  EXPECT_EQ(released, std::vector<int>{0});
}

TEST_F(unique_handle, a_handle_that_was_moved_from_is_empty) {
  {
    handle from{1};
    const handle to{std::move(from)};
    EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): what a move leaves is the point
    EXPECT_EQ(to.get(), 1);
    EXPECT_TRUE(released.empty());
  }
  EXPECT_EQ(released, std::vector<int>{1});
}

TEST_F(unique_handle, releases_what_it_held_when_another_is_moved_in) {
  {
    handle to{1};
    handle from{2};
    to = std::move(from);
    EXPECT_EQ(released, std::vector<int>{1});
    EXPECT_EQ(to.get(), 2);
    EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): what a move leaves is the point
  }
  EXPECT_EQ(released, (std::vector<int>{1, 2}));
}

TEST_F(unique_handle, survives_being_moved_into_itself) {
  {
    handle one{3};
    handle& same = one;
    one = std::move(same);
    EXPECT_EQ(one.get(), 3);
    EXPECT_TRUE(released.empty());
  }
  EXPECT_EQ(released, std::vector<int>{3});
}

TEST_F(unique_handle, gives_its_handle_away_unreleased) {
  {
    handle one{4};
    EXPECT_EQ(one.release(), 4);
    EXPECT_FALSE(one);
  }
  EXPECT_TRUE(released.empty());
}

TEST_F(unique_handle, is_empty_after_a_reset_and_resets_once) {
  handle one{5};
  one.reset();
  one.reset();
  EXPECT_FALSE(one);
  EXPECT_EQ(released, std::vector<int>{5});
}

}  // namespace unique_handle_test
