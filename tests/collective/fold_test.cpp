// SPDX-License-Identifier: Apache-2.0
// Every type, operation and number of inputs against a fold written down element by element.
#include "fold_tools.hpp"
#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace fold_test {

using namespace folds;
using samples::error_of;
using weft::data_type;
using weft::errc;
using weft::detail::fold_here;
using weft::detail::fold_width;

template <class T>
class fold : public testing::Test {};
TYPED_TEST_SUITE(fold, all_types);

TYPED_TEST(fold, a_fold_of_any_number_of_inputs_is_that_of_one_after_the_other) {
  using T = TypeParam;
  for (const kind op : all_kinds) {
    const bool with_holes = op == kind::min || op == kind::max;
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{511}, std::size_t{512},
                                    std::size_t{513}, std::size_t{1000}, std::size_t{1536}}) {
      std::vector<std::vector<T>> inputs;
      for (std::size_t number = 1; number <= 9; ++number) {
        inputs.push_back(elements<T>(count, number, with_holes));
        const auto in = addresses(inputs);
        // one element more on each side, which must stay
        std::vector<std::vector<T>> results(number % 3 + 1, elements<T>(count + 2, 40));
        std::vector<void*> out;
        for (auto& result : results) out.push_back(result.data() + 1);
        const auto request = request_of<T>(op, count, in, out);
        fold_here(request);
        const auto expected = expected_of(op, inputs, request.divide_by);
        for (const auto& result : results) {
          ASSERT_TRUE(same(result.data() + 1, expected))
              << number << " inputs of " << count << ", operation " << static_cast<int>(op);
          ASSERT_EQ(std::memcmp(&result[0], &elements<T>(1, 40)[0], sizeof(T)), 0);
          ASSERT_EQ(std::memcmp(&result[count + 1], &elements<T>(count + 2, 40)[count + 1], sizeof(T)), 0);
        }
      }
    }
  }
}

TYPED_TEST(fold, may_write_to_all_its_inputs) {
  using T = TypeParam;
  for (const kind op : all_kinds) {
    for (std::size_t number = 1; number <= fold_width; ++number) {
      std::vector<std::vector<T>> memory;
      for (std::size_t n = 0; n < number; ++n) memory.push_back(elements<T>(1300, n));
      const auto before = memory;
      const auto places = addresses(memory);
      const auto request = request_of<T>(op, 1300, places, places);
      fold_here(request);
      const auto expected = expected_of(op, before, request.divide_by);
      for (const auto& each : memory) ASSERT_TRUE(same(each.data(), expected)) << number << " inputs";
    }
  }
}

TYPED_TEST(fold, may_write_to_one_of_its_inputs_whichever_that_is) {
  using T = TypeParam;
  for (const std::size_t number : {std::size_t{2}, std::size_t{4}, std::size_t{8}}) {
    for (std::size_t chosen = 0; chosen < number; ++chosen) {
      std::vector<std::vector<T>> memory;
      for (std::size_t n = 0; n < number; ++n) memory.push_back(elements<T>(700, n));
      const auto before = memory;
      const auto places = addresses(memory);
      fold_here(request_of<T>(kind::sum, 700, places, std::span{places}.subspan(chosen, 1)));
      for (std::size_t n = 0; n < number; ++n)
        ASSERT_TRUE(same(memory[n].data(), n == chosen ? expected_of(kind::sum, before, 1) : before[n])) << n;
    }
  }
}

TYPED_TEST(fold, a_fold_of_more_inputs_and_outputs_than_a_kernel_takes_goes_in_passes) {
  using T = TypeParam;
  for (const std::size_t number : {std::size_t{9}, std::size_t{15}, std::size_t{16}, std::size_t{20}}) {
    std::vector<std::vector<T>> memory;
    for (std::size_t n = 0; n < number; ++n) memory.push_back(elements<T>(600, n));
    const auto before = memory;
    const auto places = addresses(memory);
    const auto request = request_of<T>(kind::average, 600, places, places);
    fold_here(request);
    const auto expected = expected_of(kind::average, before, request.divide_by);
    for (std::size_t n = 0; n < number; ++n) ASSERT_TRUE(same(memory[n].data(), expected)) << n << " of " << number;
  }
}

TYPED_TEST(fold, a_fold_of_one_input_copies_its_bits) {
  using T = TypeParam;
  std::vector<T> from(0x10000);
  for (std::size_t at = 0; at < from.size(); ++at) {
    const std::uint64_t bits = sizeof(T) == 2 ? at : mixed(at);
    std::memcpy(static_cast<void*>(&from[at]), &bits, sizeof(T));
  }
  std::vector<T> to(from.size());
  std::vector<T> more(from.size());
  void* const in[] = {from.data()};
  void* const out[] = {to.data(), from.data(), more.data()};
  fold_here(request_of<T>(kind::max, from.size(), in, out));
  EXPECT_EQ(std::memcmp(to.data(), from.data(), from.size() * sizeof(T)), 0);
  EXPECT_EQ(std::memcmp(more.data(), from.data(), from.size() * sizeof(T)), 0);
}

TYPED_TEST(fold, a_fold_of_nothing_touches_nothing) {
  using T = TypeParam;
  auto memory = elements<T>(4, 1);
  void* const place[] = {memory.data()};
  void* const other[] = {nullptr};
  fold_here(request_of<T>(kind::sum, 0, place, other));
  fold_here(request_of<T>(kind::sum, 4, place, {}));
  fold_here(request_of<T>(kind::sum, 4, {}, place));
  EXPECT_TRUE(same(memory.data(), elements<T>(4, 1)));
}

// ---- what each type promises ----------------------------------------------------------------------------------------

template <class T>
std::vector<T> folded(kind op, std::vector<std::vector<T>> inputs, std::int64_t divide_by = 1) {
  std::vector<T> made(inputs[0].size());
  const auto in = addresses(inputs);
  void* const out[] = {made.data()};
  auto request = request_of<T>(op, made.size(), in, out);
  request.divide_by = divide_by;
  fold_here(request);
  return made;
}

TEST(fold_of_integers, wraps_and_divides_the_wrapped_sum_towards_zero_with_its_sign) {
  using bytes = std::vector<std::int8_t>;
  EXPECT_EQ(folded<std::int8_t>(kind::average, {{-7, 7, 100, -128}, {0, 0, 100, -1}}, 2), (bytes{-3, 3, -28, 63}));
  EXPECT_EQ(folded<std::uint8_t>(kind::average, {{200, 3}, {100, 4}}, 2), (std::vector<std::uint8_t>{22, 3}));
  // the divisor need not be a number of the type
  EXPECT_EQ(folded<std::int8_t>(kind::sum, {{-128, 127}, {0, 0}}, 200), (bytes{0, 0}));
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(folded<std::int64_t>(kind::average, {{least, -5}, {0, 0}}, 2), (std::vector<std::int64_t>{least / 2, -2}));
  EXPECT_EQ(folded<std::uint64_t>(kind::average, {{~std::uint64_t{0}}, {0}}, 2),
            (std::vector<std::uint64_t>{~std::uint64_t{0} / 2}));
  EXPECT_EQ(folded<std::uint16_t>(kind::product, {{65'535}, {65'535}}), (std::vector<std::uint16_t>{1}));
}

TEST(fold_of_reals, divides_rather_than_multiplies_by_what_is_nearly_a_third) {
  EXPECT_EQ(folded<float>(kind::average, {{5.0F}, {0.0F}, {0.0F}}, 3), (std::vector<float>{5.0F / 3.0F}));
  EXPECT_NE(5.0F / 3.0F, 5.0F * (1.0F / 3.0F)) << "else this shows nothing";
  EXPECT_EQ(folded<double>(kind::average, {{5.0}, {0.0}, {0.0}}, 3), (std::vector<double>{5.0 / 3.0}));
}

TEST(fold_of_reals, passes_over_what_is_not_a_number_unless_nothing_else_is_there) {
  constexpr float none = std::numeric_limits<float>::quiet_NaN();
  constexpr float endless = std::numeric_limits<float>::infinity();
  for (const std::size_t number : {std::size_t{2}, std::size_t{3}, std::size_t{5}, std::size_t{8}}) {
    for (std::size_t place = 0; place < number; ++place) {
      std::vector<std::vector<float>> inputs(number, {none, none, none});
      inputs[place] = {-3.0F, none, endless};
      for (const kind op : {kind::min, kind::max}) {
        const auto got = folded<float>(op, inputs);
        EXPECT_EQ(got[0], -3.0F) << place << " of " << number;
        EXPECT_TRUE(std::isnan(got[1]));
        EXPECT_EQ(got[2], endless);
      }
    }
  }
  EXPECT_TRUE(std::isnan(folded<float>(kind::sum, {{1.0F}, {none}})[0]));
}

TEST(fold_of_half, is_rounded_once) {
  // added up in half, each 1 would be lost
  const half big{2048.0F};
  const half one{1.0F};
  EXPECT_EQ(folded<half>(kind::sum, {{big}, {one}, {one}})[0], half{2050.0F});
  EXPECT_EQ(folded<half>(kind::sum, {{one}, {one}, {big}})[0], half{2050.0F});
  const bfloat16 wide{256.0F};
  EXPECT_EQ(folded<bfloat16>(kind::sum, {{wide}, {bfloat16{1.0F}}, {bfloat16{1.0F}}})[0], bfloat16{258.0F});
  // what is too large on the way comes back
  const half most{65'504.0F};
  EXPECT_EQ(folded<half>(kind::average, {{most}, {most}}, 2)[0], most);
  EXPECT_EQ(folded<half>(kind::sum, {{most}, {most}})[0].bits(), 0x7c00);
}

template <class Number>
void expect_conversions_of_the_class() {
  std::vector<Number> values(0x10000);
  for (std::size_t at = 0; at < values.size(); ++at) values[at] = Number::from_bits(static_cast<std::uint16_t>(at));
  const std::vector<Number> third(values.size(), Number{0.333F});
  const auto got = folded<Number>(kind::product, {values, third});
  for (std::size_t at = 0; at < values.size(); ++at) {
    const Number expected{static_cast<float>(values[at]) * static_cast<float>(third[at])};
    if (std::isnan(static_cast<float>(expected))) {
      ASSERT_TRUE(std::isnan(static_cast<float>(got[at]))) << "of the bits " << at;
    } else {
      ASSERT_EQ(got[at].bits(), expected.bits()) << "of the bits " << at;
    }
  }
}

TEST(fold_of_half, converts_every_bit_pattern_as_the_class_does) {
  expect_conversions_of_the_class<half>();
  expect_conversions_of_the_class<bfloat16>();
}

/// Runs a fold by the text that devices compile: a checked run goes through it element by element.
template <class T>
void fold_by_text(const fold_request& request) {
  std::array<weft::kernel_argument, 2 * fold_width + 5> list;
  for (std::size_t n = 0; n < 2 * fold_width; ++n) {
    const auto addresses = n < fold_width ? request.inputs : request.outputs;
    list[n].type = weft::element_type::uint16;
    list[n].direction = n < fold_width ? weft::parameter_direction::in : weft::parameter_direction::out;
    if (n % fold_width >= addresses.size()) continue;
    list[n].address = addresses[n % fold_width];
    list[n].count = request.count;
    list[n].slab = weft::detail::fold_block;
  }
  const auto scalar = [&](std::size_t behind, auto value) {
    std::memcpy(list[2 * fold_width + behind].scalar.data(), &value, sizeof value);
  };
  scalar(0, request.count);
  scalar(1, static_cast<std::int32_t>(request.inputs.size()));
  scalar(2, static_cast<std::int32_t>(request.outputs.size()));
  scalar(3, static_cast<std::int32_t>(request.op));
  scalar(4, request.divide_by);
  const auto blocks = (request.count + weft::detail::fold_block - 1) / weft::detail::fold_block;
  const auto fault = weft::detail::fold_kernel(request.type)->host_checked(weft::range(blocks), list);
  ASSERT_FALSE(fault) << fault->parameter << " at " << fault->index;
}

/// Of all sizes, with what is infinite or no number among them.
template <class T>
std::vector<T> any_bits(std::size_t count, std::uint64_t input) {
  std::vector<T> made(count);
  for (std::size_t at = 0; at < count; ++at)
    made[at] = T::from_bits(static_cast<std::uint16_t>(mixed(at * 64 + input)));
  return made;
}

template <class T>
void expect_the_bits_of_the_text() {
  for (const kind op : all_kinds)
    for (std::size_t number = 1; number <= fold_width; ++number) {
      std::vector<std::vector<T>> inputs;
      for (std::size_t n = 0; n < number; ++n) inputs.push_back(any_bits<T>(5003, n));
      std::vector<std::vector<T>> got(number, std::vector<T>(5003)), wanted = got;
      const auto in = addresses(inputs);
      fold_here(request_of<T>(op, 5003, in, addresses(got)));
      fold_by_text<T>(request_of<T>(op, 5003, in, addresses(wanted)));
      for (std::size_t n = 0; n < number; ++n)
        ASSERT_TRUE(same(got[n].data(), wanted[n])) << number << " inputs, operation " << static_cast<int>(op);
    }
}

TEST(fold_of_half, has_the_bits_that_every_device_computes) {
  expect_the_bits_of_the_text<half>();
  expect_the_bits_of_the_text<bfloat16>();
}

TEST(fold_of_reals, keeps_the_error_bound_of_adding_one_after_the_other) {
  for (std::size_t number = 2; number <= 9; ++number) {
    std::vector<std::vector<float>> inputs;
    for (std::size_t n = 0; n < number; ++n) inputs.push_back(elements<float>(3000, n));
    const auto got = folded<float>(kind::sum, inputs);
    for (std::size_t at = 0; at < got.size(); ++at) {
      double exact = 0;
      double sizes = 0;
      for (const auto& input : inputs) {
        exact += static_cast<double>(input[at]);
        sizes += std::fabs(static_cast<double>(input[at]));
      }
      ASSERT_LE(std::fabs(static_cast<double>(got[at]) - exact), static_cast<double>(number) * 0x1p-24 * sizes)
          << "offset " << at << " of " << number << " inputs";
    }
  }
}

// ---- by a kernel of the user ----------------------------------------------------------------------------------------

TEST(fold_by_user, applies_the_kernel_in_the_order_of_the_inputs) {
  for (std::size_t number = 1; number <= 10; ++number) {
    std::vector<std::vector<std::int32_t>> inputs;
    for (std::size_t n = 0; n < number; ++n) inputs.push_back(elements<std::int32_t>(900, n));
    const auto expected = affine_of(inputs);
    const auto before = inputs;
    std::vector<std::vector<std::int32_t>> results(2, std::vector<std::int32_t>(900));
    const auto in = addresses(inputs);
    fold_here(affine_request(in, addresses(results)));
    for (const auto& each : results) ASSERT_TRUE(same(each.data(), expected)) << number;
    ASSERT_EQ(inputs, before);
    // the same in place, with the first input anywhere among the outputs
    std::vector<void*> turned = in;
    std::rotate(turned.begin(), turned.begin() + static_cast<std::ptrdiff_t>(number / 2), turned.end());
    fold_here(affine_request(in, turned));
    for (const auto& each : inputs) ASSERT_TRUE(same(each.data(), expected)) << number;
  }
}

TEST(fold_by_user, without_a_place_to_work_in_or_of_another_type_is_refused) {
  std::vector<std::vector<std::int32_t>> memory{elements<std::int32_t>(900, 1), elements<std::int32_t>(900, 2)};
  const auto before = memory;
  const auto places = addresses(memory);
  EXPECT_EQ(error_of([&] { fold_here(affine_request(places, std::span{places}.subspan(1))); }).code, errc::unsupported);
  auto request = affine_request(places, places);
  request.type = data_type::uint32;
  EXPECT_EQ(error_of([&] { fold_here(request); }).code, errc::incompatible);
  request.type = data_type::bfloat16;
  EXPECT_EQ(error_of([&] { fold_here(request); }).code, errc::unsupported);
  EXPECT_EQ(memory, before);
}

TEST(fold_here, a_fold_of_more_than_eight_inputs_without_scratch_is_refused) {
  std::vector<std::vector<float>> memory;
  for (std::size_t n = 0; n < 9; ++n) memory.push_back(elements<float>(100, n));
  const auto before = memory;
  const auto places = addresses(memory);
  const auto request = request_of<float>(kind::sum, 100, places, std::span{places}.subspan(8));
  EXPECT_EQ(error_of([&] { fold_here(request); }).code, errc::unsupported);
  EXPECT_EQ(memory, before);
}

}  // namespace fold_test
