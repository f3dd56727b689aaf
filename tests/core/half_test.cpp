// SPDX-License-Identifier: Apache-2.0
// half and bfloat16 against numbers computed another way: from what the format says they are, and by the compiler's own
// sixteen-bit types where it has them.
#include "weft/core/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace half_test {

using weft::bfloat16;
using weft::half;

/// A sixteen-bit format: sign, exponent, and `fraction` bits.
struct format {
  int fraction;
  int bias;

  [[nodiscard]] std::uint32_t infinity() const { return (1U << 15) - (1U << fraction); }

  /// The number that a magnitude stands for; what would come after the largest, for infinity.
  [[nodiscard]] double value(std::uint32_t magnitude) const {
    const std::uint32_t exponent = magnitude >> fraction;
    const std::uint32_t rest = magnitude & ((1U << fraction) - 1U);
    if (exponent == 0) return std::ldexp(rest, 1 - bias - fraction);
    return std::ldexp(rest + (1U << fraction), static_cast<int>(exponent) - bias - fraction);
  }

  /// The magnitude nearest to a positive number, the even one of two equally near: found by halving, without looking at
  /// the number's bits.
  [[nodiscard]] std::uint32_t nearest(double number) const {
    std::uint32_t low = 0;
    std::uint32_t high = infinity();
    if (number >= value(high)) return high;
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (value(middle) <= number ? low : high) = middle;
    }
    const double below = number - value(low);
    const double above = value(high) - number;
    return below < above || (below == above && low % 2 == 0) ? low : high;
  }
};
constexpr format of_half{10, 15};
constexpr format of_bfloat16{7, 127};

template <class Number>
void expect_every_pattern_is_what_the_format_says(const format& f) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto number = static_cast<float>(Number::from_bits(static_cast<std::uint16_t>(bits)));
    const std::uint32_t magnitude = bits & 0x7fffU;
    ASSERT_EQ(std::signbit(number), bits >> 15 != 0) << "of the bits " << bits;
    if (magnitude > f.infinity()) {
      ASSERT_TRUE(std::isnan(number)) << "of the bits " << bits;
    } else if (magnitude == f.infinity()) {
      ASSERT_TRUE(std::isinf(number)) << "of the bits " << bits;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(number)), f.value(magnitude)) << "of the bits " << bits;
    }
  }
}

template <class Number>
void expect_every_pattern_comes_back(const format& f) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto number = Number::from_bits(static_cast<std::uint16_t>(bits));
    const Number back{static_cast<float>(number)};
    if ((bits & 0x7fffU) <= f.infinity()) {
      ASSERT_EQ(back.bits(), bits);
    } else {
      ASSERT_GT(back.bits() & 0x7fffU, f.infinity()) << "of the bits " << bits;
      ASSERT_EQ(back.bits() >> 15, bits >> 15);
    }
  }
}

/// Each number of the format, each middle between two of them, the floats next to both, and floats from everywhere.
std::vector<float> floats_around(const format& f) {
  std::vector<float> made{std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::min(), std::numeric_limits<float>::denorm_min()};
  made.reserve(0x80000);
  const auto add = [&](double number) {
    const auto exact = static_cast<float>(number);
    made.push_back(exact);
    made.push_back(std::nextafter(exact, 0.0F));
    made.push_back(std::nextafter(exact, std::numeric_limits<float>::infinity()));
  };
  for (std::uint32_t magnitude = 0; magnitude < f.infinity(); ++magnitude) {
    add(f.value(magnitude));
    add((f.value(magnitude) + f.value(magnitude + 1)) / 2);
  }
  std::uint32_t state = 1;
  for (int n = 0; n < 200'000; ++n) {
    state = state * 1664525U + 1013904223U;
    made.push_back(std::fabs(std::bit_cast<float>(state ^ state >> 15)));
  }
  return made;
}

template <class Number>
void expect_rounding_to_the_nearest(const format& f) {
  for (const float number : floats_around(f)) {
    if (std::isnan(number)) continue;
    const std::uint32_t expected = f.nearest(number);
    ASSERT_EQ(Number{number}.bits(), expected) << "of " << number << ", bits " << std::bit_cast<std::uint32_t>(number);
    ASSERT_EQ(Number{-number}.bits(), expected | 0x8000U) << "of " << -number;
  }
}

template <class Number>
void expect_nan_stays(const format& f) {
  // the payload may lie wholly in the bits that are cut off
  for (const std::uint32_t bits : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0x7f801000U, 0x7f808000U, 0x7f80ffffU}) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const Number made{std::bit_cast<float>(bits | sign)};
      EXPECT_GT(made.bits() & 0x7fffU, f.infinity()) << "of the bits " << bits;
      EXPECT_EQ(made.bits() >> 15, sign >> 31);
      EXPECT_FALSE(made == made);
    }
  }
}

TEST(half, each_bit_pattern_is_the_number_of_the_format) {
  expect_every_pattern_is_what_the_format_says<half>(of_half);
}
TEST(half, comes_back_from_float_with_its_bits) { expect_every_pattern_comes_back<half>(of_half); }
TEST(half, a_float_becomes_the_nearest_and_of_two_the_even) { expect_rounding_to_the_nearest<half>(of_half); }
TEST(half, a_float_that_is_not_a_number_becomes_none) { expect_nan_stays<half>(of_half); }

TEST(bfloat16, each_bit_pattern_is_the_number_of_the_format) {
  expect_every_pattern_is_what_the_format_says<bfloat16>(of_bfloat16);
}
TEST(bfloat16, comes_back_from_float_with_its_bits) { expect_every_pattern_comes_back<bfloat16>(of_bfloat16); }
TEST(bfloat16, a_float_becomes_the_nearest_and_of_two_the_even) {
  expect_rounding_to_the_nearest<bfloat16>(of_bfloat16);
}
TEST(bfloat16, a_float_that_is_not_a_number_becomes_none) { expect_nan_stays<bfloat16>(of_bfloat16); }

TEST(half, converts_at_compile_time_and_compares_as_a_number) {
  static_assert(half{1.0F}.bits() == 0x3c00 && static_cast<float>(half::from_bits(0xc000)) == -2.0F);
  static_assert(bfloat16{1.0F}.bits() == 0x3f80 && static_cast<float>(bfloat16::from_bits(0xc000)) == -2.0F);
  static_assert(half{65'519.0F}.bits() == 0x7bff && half{65'520.0F}.bits() == 0x7c00);
  static_assert(half{0.0F} == half{-0.0F} && bfloat16{0.0F} == bfloat16{-0.0F} && !(half{1.0F} == half{2.0F}));
  static_assert(half{}.bits() == 0 && bfloat16{}.bits() == 0);
}

#if defined(__FLT16_MANT_DIG__) && defined(__SSE2__)
__extension__ using compilers_half = _Float16;

TEST(half, agrees_with_the_half_of_the_compiler) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto small = static_cast<std::uint16_t>(bits);
    const auto theirs = static_cast<float>(std::bit_cast<compilers_half>(small));
    const auto ours = static_cast<float>(half::from_bits(small));
    if (std::isnan(theirs)) {
      ASSERT_TRUE(std::isnan(ours)) << "of the bits " << bits;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(ours), std::bit_cast<std::uint32_t>(theirs)) << "of the bits " << bits;
    }
  }
  for (const float number : floats_around(of_half)) {
    if (std::isnan(number)) continue;
    ASSERT_EQ(half{number}.bits(), std::bit_cast<std::uint16_t>(static_cast<compilers_half>(number)))
        << "of " << number;
  }
}
#endif

}  // namespace half_test
