// SPDX-License-Identifier: Apache-2.0
#include "core/errors/called_from.hpp"

#include "support/samples.hpp"
#include "weft/core/raise.hpp"

#include <gtest/gtest.h>

#include <source_location>
#include <thread>

namespace called_from_test {

using samples::error_of;
using weft::called_from;
using weft::errc;

TEST(called_from, keeps_the_place_of_the_outermost_call_for_as_long_as_it_lasts) {
  EXPECT_EQ(called_from::place().line(), 0U);
  const auto outer = std::source_location::current();
  {
    const called_from program{outer};
    {
      const called_from library{std::source_location::current()};
      EXPECT_EQ(called_from::place().line(), outer.line());
    }
    EXPECT_EQ(called_from::place().line(), outer.line());
    std::thread{[] { EXPECT_EQ(called_from::place().line(), 0U) << "of another thread"; }}.join();
  }
  EXPECT_EQ(called_from::place().line(), 0U);
}

TEST(called_from, fills_the_place_that_an_error_lacks_and_no_other) {
  const auto caller = std::source_location::current();
  const called_from here{caller};
  EXPECT_EQ(error_of([] { weft::raise(errc::not_found, "x"); }).where.line(), caller.line());
  const auto submitted = std::source_location::current();
  EXPECT_EQ(error_of([&] { weft::raise(errc::not_found, "x", submitted); }).where.line(), submitted.line());
}

TEST(error, an_error_without_a_place_names_none) {
  EXPECT_EQ(weft::error{}.where.line(), 0U);
  EXPECT_EQ(to_string(error_of([] { weft::raise(errc::not_found, "x"); })), "not_found: x");
}

}  // namespace called_from_test
