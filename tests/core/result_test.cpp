// SPDX-License-Identifier: Apache-2.0
#include "weft/core/result.hpp"

#include "core/errors/make_error.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace result_test {

using weft::errc;
using weft::result;

/// Counts how many of it live, so that a value that is made or ended once too often shows.
struct counted {
  static inline int alive = 0;
  std::string text;

  explicit counted(std::string t) : text(std::move(t)) { ++alive; }
  counted(const counted& from) : text(from.text) { ++alive; }
  counted(counted&& from) noexcept : text(std::move(from.text)) { ++alive; }
  counted& operator=(const counted&) = delete;
  ~counted() { --alive; }
};

weft::error failure(const std::string& what = "a text that is too long to lie inside the string itself") {
  return weft::make_error(errc::copy_failed, what);
}

TEST(result, has_a_value_or_an_error) {
  const result<int> good = 7;
  ASSERT_TRUE(good);
  EXPECT_EQ(*good, 7);
  const result<int> bad = failure("lost");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, errc::copy_failed);
  EXPECT_EQ(bad.error().what, "lost");
}

TEST(result, ends_what_it_holds_once_however_it_was_copied_moved_and_assigned) {
  {
    result<counted> good{counted{"a value"}};
    result<counted> bad{failure()};
    const result<counted> copy_of_good{good};
    const result<counted> copy_of_bad{bad};
    EXPECT_EQ(copy_of_good->text, "a value");
    EXPECT_EQ(copy_of_bad.error().what, failure().what);
    EXPECT_EQ(counted::alive, 2);

    bad = good;  // a value where an error was
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->text, "a value");
    EXPECT_EQ(counted::alive, 3);
    good = copy_of_bad;  // an error where a value was
    ASSERT_FALSE(good);
    EXPECT_EQ(good.error().what, failure().what);
    EXPECT_EQ(counted::alive, 2);

    auto& same = bad;
    bad = same;
    EXPECT_EQ(bad->text, "a value");
    const result<counted> taken{std::move(bad)};
    EXPECT_EQ(taken->text, "a value");
    EXPECT_EQ(std::move(good).error().what, failure().what);
  }
  EXPECT_EQ(counted::alive, 0);
}

TEST(result, takes_what_can_be_moved_only) {
  result<std::unique_ptr<int>> owner = std::make_unique<int>(3);
  result<std::unique_ptr<int>> other = failure();
  other = std::move(owner);
  ASSERT_TRUE(other);
  EXPECT_EQ(**other, 3);
  const std::unique_ptr<int> out = std::move(other).value();
  EXPECT_EQ(*out, 3);
  static_assert(!std::is_copy_constructible_v<result<std::unique_ptr<int>>>);
  static_assert(std::is_nothrow_move_constructible_v<result<std::vector<int>>>);
}

TEST(result, without_a_value_says_success_or_the_error) {
  result<void> done;
  EXPECT_TRUE(done);
  const result<void> lost = failure("lost");
  ASSERT_FALSE(lost);
  done = lost;
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().what, "lost");
  done = result<void>{};
  EXPECT_TRUE(done.has_value());
}

}  // namespace result_test
