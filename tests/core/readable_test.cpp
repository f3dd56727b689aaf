// SPDX-License-Identifier: Apache-2.0
#include "core/text/readable.hpp"

#include "core/documents/document_fields.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace readable_test {

using weft::detail::readable_count;
using weft::detail::readable_time;

TEST(readable, times_have_three_digits_and_the_unit_that_fits) {
  EXPECT_EQ(readable_time(0), "0 s");
  EXPECT_EQ(readable_time(1e-9), "1 ns");
  EXPECT_EQ(readable_time(1.5e-9), "1.50 ns");
  EXPECT_EQ(readable_time(999e-9), "999 ns");
  EXPECT_EQ(readable_time(999.6e-9), "1.00 us");
  EXPECT_EQ(readable_time(120e-6), "120 us");
  EXPECT_EQ(readable_time(99.96e-6), "100 us");
  EXPECT_EQ(readable_time(12.34e-3), "12.3 ms");
  EXPECT_EQ(readable_time(999.6e-3), "1.00 s");
  EXPECT_EQ(readable_time(1.333), "1.33 s");
  EXPECT_EQ(readable_time(4000), "4000 s");
}

TEST(readable, counts_are_in_groups_of_three) {
  EXPECT_EQ(readable_count(0), "0");
  EXPECT_EQ(readable_count(999), "999");
  EXPECT_EQ(readable_count(1'000), "1,000");
  EXPECT_EQ(readable_count(-123'456), "-123,456");
  EXPECT_EQ(readable_count(-100), "-100");
  EXPECT_EQ(readable_count(std::numeric_limits<std::int64_t>::max()), "9,223,372,036,854,775,807");
}

TEST(readable, names_show_no_character_that_terminals_obey) {
  EXPECT_EQ(weft::detail::one_line("a\tb\u009bc\u0080\x7f \u00e9\xc2"), "a b c   \u00e9\xc2");
  EXPECT_EQ(weft::detail::in_quotes("a\tb\u009bc\u0080\x7f \u00e9"), "\"a?b?c?? \u00e9\"");
}

TEST(readable, a_long_name_is_cut_between_characters) {
  const std::string letters(39, 'x');
  EXPECT_EQ(weft::detail::in_quotes(letters + "y"), "\"" + letters + "y\"");
  EXPECT_EQ(weft::detail::in_quotes(letters + "yz"), "\"" + letters + "y…\"");
  EXPECT_EQ(weft::detail::in_quotes(letters + "\u00e9"), "\"" + letters + "…\"");
}

TEST(readable, sizes_that_differ_do_not_look_alike) {
  EXPECT_EQ(weft::detail::exact_size(4096), "4 KiB");
  EXPECT_EQ(weft::detail::exact_size(4001), "4001 B");
  EXPECT_EQ(weft::detail::size_beside(4001, 4000), "4001 B");
  EXPECT_EQ(weft::detail::size_beside(4000, 4001), "4000 B");
  EXPECT_EQ(weft::detail::size_beside(4001, 8000), "3.9 KiB");
  EXPECT_EQ(weft::detail::size_beside(4000, 4000), "3.9 KiB");
}

}  // namespace readable_test
