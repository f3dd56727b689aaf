// SPDX-License-Identifier: Apache-2.0
#include "weft/core/error.hpp"

#include "weft/core/raise.hpp"
#include "weft/core/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace error_test {

using weft::errc;
using weft::error;

constexpr auto last_code = errc::device_lost;

TEST(error_code, has_a_name_of_its_own) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(last_code); ++i) {
    const std::string_view name = to_string(static_cast<errc>(i));
    EXPECT_FALSE(name.empty()) << i;
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string_view::npos) << name;
  }
  EXPECT_EQ(to_string(errc::out_of_memory), "out_of_memory");
  EXPECT_EQ(to_string(last_code), "device_lost");
}

TEST(error_scope, has_a_name_of_its_own) {
  using weft::error_scope;
  EXPECT_EQ(to_string(error_scope::call), "call");
  EXPECT_EQ(to_string(error_scope::endpoint), "endpoint");
  EXPECT_EQ(to_string(error_scope::device), "device");
  EXPECT_EQ(to_string(error_scope::process), "process");
}

TEST(error_text, gives_code_sentence_and_place) {
  error e;
  e.code = errc::copy_failed;
  e.what = "gpu1 said no";
  e.where = std::source_location::current();
  const auto line = std::to_string(e.where.line());
  const std::string text = to_string(e);
  EXPECT_TRUE(text.starts_with("copy_failed: gpu1 said no")) << text;
  EXPECT_NE(text.find("error_test.cpp:" + line), std::string::npos) << text;
  EXPECT_EQ(text.find('/'), std::string::npos) << "a folder is noise: " << text;
}

TEST(error_text, leaves_out_a_place_that_is_not_known) {
  error e;
  e.code = errc::cancelled;
  e.what = "stopped";
  e.where = {};
  EXPECT_EQ(to_string(e), "cancelled: stopped");
}

TEST(error_exception, carries_the_whole_error) {
  error e;
  e.code = errc::device_lost;
  e.scope = weft::error_scope::device;
  e.native_code = 46;
  e.what = "gpu3 fell off the bus";
  try {
    weft::raise(e);
    FAIL() << "raise() returned";
  } catch (const weft::error_exception& caught) {
    EXPECT_EQ(caught.code(), errc::device_lost);
    EXPECT_EQ(caught.cause().scope, weft::error_scope::device);
    EXPECT_EQ(caught.cause().native_code, 46);
    EXPECT_EQ(caught.cause().what, "gpu3 fell off the bus");
    EXPECT_EQ(std::string{caught.what()}, to_string(e));
  }
}

TEST(result, holds_a_value_or_an_error) {
  weft::result<int> good{5};
  ASSERT_TRUE(good);
  EXPECT_TRUE(good.has_value());
  EXPECT_EQ(*good, 5);
  *good = 6;
  EXPECT_EQ(good.value(), 6);

  error e;
  e.what = "no";
  const weft::result<int> bad{e};
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().what, "no");
}

TEST(result, hands_over_what_can_only_be_moved) {
  weft::result<std::unique_ptr<int>> made{std::make_unique<int>(9)};
  EXPECT_EQ(**made, 9);
  const std::unique_ptr<int> taken = std::move(made).value();
  EXPECT_EQ(*taken, 9);
  weft::result<std::string> text{std::string{"abc"}};
  EXPECT_EQ(text->size(), 3U);
}

TEST(result, a_result_without_a_value_is_success_unless_it_has_an_error) {
  EXPECT_TRUE(weft::result<void>{});
  error e;
  e.code = errc::timed_out;
  weft::result<void> bad{e};
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, errc::timed_out);
  EXPECT_EQ(std::move(bad).error().code, errc::timed_out);
}

TEST(value_or_raise, names_the_caller_as_the_place) {
  EXPECT_EQ(weft::value_or_raise(weft::result<int>{3}), 3);
  weft::value_or_raise(weft::result<void>{});
  error e;
  e.where = {};
  const auto line = std::source_location::current().line() + 2;
  try {
    weft::value_or_raise(weft::result<int>{e});
    FAIL() << "an error passed as a value";
  } catch (const weft::error_exception& caught) {
    EXPECT_EQ(caught.cause().where.line(), line);
  }
}

}  // namespace error_test
