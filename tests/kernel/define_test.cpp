// SPDX-License-Identifier: Apache-2.0
#include "weft/kernel/define.hpp"

#include "function_error.hpp"
#include "portable_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace define_test {

using portable::in;
using portable::out;
using portable::run;
using portable::scalar;

WEFT_KERNEL(affine, (WEFT_IN(float) input, WEFT_OUT(float) output), { output[i] = input[i] * 2.0f + 1.0f; });
WEFT_KERNEL(neighbour, (WEFT_IN(int32_t, halo(1)) input, WEFT_OUT(int32_t) output, int64_t distance),
            { output[i] = input[i + distance]; });
WEFT_KERNEL(scatter, (WEFT_IN(int32_t) input, WEFT_OUT(int32_t, whole) output, int64_t distance),
            { output[i + distance] = input[i]; });
WEFT_KERNEL(row_sum, (WEFT_IN(int32_t, rows(3)) input, WEFT_OUT(int32_t) output, int64_t reach), {
  int32_t sum = 0;
  for (int64_t k = 0; k < reach; ++k) {
    sum += input[3 * i + k];
  }
  output[i] = sum;
});
WEFT_KERNEL_2D(row_above, (WEFT_IN(int32_t) input, WEFT_OUT(int32_t) output, int64_t width),
               { output[y * width + x] = input[weft_max(y - 1, 0) * width + x]; });
WEFT_KERNEL(total, (WEFT_IN(int64_t) input, WEFT_INOUT(int64_t, reduce(sum)) result), { result[0] += input[i]; });
WEFT_KERNEL(by_its_own_index, (WEFT_IN(int32_t, whole) from, WEFT_INOUT(int32_t) at, WEFT_OUT(int32_t) to), {
  at[i] = at[i] + 1;
  to[i] = from[at[i]];
});
WEFT_KERNEL_2D(two_by_two, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t) to, int64_t w), {
  to[2 * (y * w + x)] = from[2 * (y * w + x)];
  to[2 * (y * w + x) + 1] = from[2 * (y * w + x) + 1] + (x == 4 && y == 2 ? from[5] : 0);
});
WEFT_KERNEL(scatter_by, (WEFT_IN(int32_t) from, WEFT_IN(int32_t) at, WEFT_OUT(int32_t, whole) to),
            { to[at[i]] = from[i]; });
WEFT_KERNEL_2D(by_a_shared_count,
               (WEFT_IN(int32_t, whole) from, WEFT_INOUT(int32_t) count, WEFT_OUT(int32_t) to, int64_t w), {
                 count[y * w] = count[y * w] + 1;
                 to[y * w + x] = from[count[y * w]];
               });
WEFT_KERNEL(by_a_sum, (WEFT_IN(int32_t, whole) from, WEFT_INOUT(int32_t, rows(2)) at, WEFT_OUT(int32_t) to),
            { to[i] = from[at[2 * i] + at[2 * i + 1]]; });
WEFT_KERNEL(apart_from_its_neighbour, (WEFT_INOUT(int32_t, rows(2)) of), {
  while (of[2 * i] == of[2 * i + 1]) of[2 * i] -= 1;
});
WEFT_KERNEL(divides_by_its_neighbour, (WEFT_IN(int32_t, halo(1)) by, WEFT_OUT(int32_t) to),
            { to[i] = 100 / by[i + 1]; });
WEFT_KERNEL(divides_by_what_it_read, (WEFT_INOUT(int32_t, whole) by, WEFT_OUT(int32_t) to), {
  by[i + 1] = by[i + 1] * 1;
  to[i] = 100 / by[i + 1];
});
WEFT_KERNEL(length_of_text, (WEFT_IN(int32_t, whole) text, WEFT_OUT(int32_t) length), {
  int32_t k = 0;
  while (text[k] != 0) ++k;
  length[i] = k;
});
WEFT_KERNEL(by_a_quotient_of_its_own,
            (WEFT_IN(int32_t, whole) from, WEFT_INOUT(int32_t, rows(2)) of, WEFT_OUT(int32_t) to), {
              of[2 * i + 1] = 4;
              of[2 * i] = 0;
              to[i] = from[4 / of[2 * i + 1]];
            });
WEFT_KERNEL(by_an_array_of_its_own,
            (WEFT_IN(int32_t, whole) from, WEFT_INOUT(int32_t, rows(2)) of, WEFT_OUT(int32_t) to), {
              int32_t own[4] = {0, 1, 2, 3};
              of[2 * i + 1] = 3;
              of[2 * i] = 1 << 28;
              to[i] = from[own[of[2 * i + 1]]];
            });
WEFT_KERNEL(at_a_quotient, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t, whole) to), { to[100 / (from[i + 1] - 1)] = 1; });
WEFT_KERNEL(squares, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t) to), {
  uint32_t of = (uint32_t)from[i + 1];
  while (of < 100) of *= of;
  to[i] = (int32_t)of;
});
WEFT_KERNEL(search_for_seven, (WEFT_IN(int32_t, whole) from, WEFT_OUT(int32_t) to), {
  int32_t k = 0;
  while (from[k] != 7) ++k;
  to[i] = k;
});
WEFT_KERNEL(sum_of_quotients, (WEFT_IN(int32_t, whole) by, WEFT_OUT(int32_t, whole) to), {
  int32_t sum = 0;
  for (int32_t k = 0; k < 3000; ++k) sum += 100 / by[k];
  to[sum & 7] = sum;
});
int calls = 0;
int counted(int number) { return ++calls, number; }
WEFT_KERNEL(calls_the_program, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t) to), { to[i] = counted(from[i]); });
WEFT_KERNEL(one_number, (WEFT_OUT(float) output, float number), { output[i] = number; });
WEFT_KERNEL(no_parameters, (), {
  if (i > 3) return;
});

// A loop that stops early or leaves its range is seen at these counts: none, one, around the width of vectors.
constexpr std::array<std::int64_t, 9> counts = {0, 1, 3, 4, 15, 16, 17, 1000, 4097};

run neighbour_run(std::int64_t n, std::int64_t distance) {
  const auto count = static_cast<std::size_t>(n);
  return {weft::make_kernel_code<neighbour>(),
          portable::range_of(n),
          {in(portable::filled<std::int32_t>(count, [](std::size_t k) { return k * 3; })), out<std::int32_t>(count),
           scalar(distance)}};
}

std::optional<weft::access_violation> check(run& one) {
  return one.code->host_checked(one.range, portable::arguments_of(one));
}

TEST(host_kernel, every_item_of_the_range_runs_once_and_nothing_outside_it) {
  for (const std::int64_t n : counts) {
    std::vector<float> input(static_cast<std::size_t>(n) + 2);
    for (std::size_t k = 0; k < input.size(); ++k) {
      input[k] = static_cast<float>(k) * 0.25F;
    }
    std::vector<float> output(input.size(), -1.0F);
    std::array<weft::kernel_argument, 2> arguments;
    arguments[0].address = input.data();
    arguments[1].address = output.data();
    weft::host_entry_of<affine>({1, {1, 0, 0}, {n + 1, 1, 1}}, arguments);
    EXPECT_EQ(output.front(), -1.0F);
    EXPECT_EQ(output.back(), -1.0F);
    for (std::size_t k = 1; k + 1 < output.size(); ++k) {
      ASSERT_EQ(output[k], input[k] * 2.0F + 1.0F) << "item " << k << " of " << n;
    }
  }
}

TEST(host_kernel, a_multiply_add_is_not_fused) {
  // 1 + 2^-12 squared needs 25 bits: rounding the product first loses the last one, fusing would keep it.
  const float close_to_one = 1.0F + 0x1p-12F;
  run one{weft::make_kernel_code<portable::saxpy>(),
          portable::range_of(1),
          {in(std::vector<float>{close_to_one}), portable::inout(std::vector<float>{-1.0F}), scalar(close_to_one),
           scalar<std::int32_t>(0)}};
  EXPECT_EQ(portable::on_host(one)[1].as<float>()[0], 0x1p-11F);
}

TEST(host_kernel, raw_and_checked_runs_give_equal_bits) {
  std::vector<run> runs = portable::exact_runs();
  runs.push_back(portable::float_division_run());
  runs.push_back(portable::float_function_run());
  runs.push_back(portable::double_function_run());
  for (run& one : runs) {
    const std::vector<portable::value> raw = portable::on_host(one);
    const auto violation = check(one);
    ASSERT_FALSE(violation) << weft::describe(*one.code, *violation);
    for (std::size_t n = 0; n < raw.size(); ++n) {
      EXPECT_EQ(raw[n].bytes, one.values[n].bytes) << one.code->name << ", parameter " << n;
    }
  }
}

template <class Kernel>
void expect_equal_bits_in_every_width(const run& one) {
  using runner = weft::detail::host_runner<Kernel, weft::detail::parameters_of<Kernel>>;
  run narrow = one;
  runner::run_in(weft::detail::vector_width::narrow, narrow.range, portable::arguments_of(narrow));
  for (const auto vectors : {weft::detail::vector_width::wide, weft::detail::vector_width::widest}) {
    if (vectors > weft::detail::widest_here()) continue;  // AVX-512 where the processor has AVX2 alone
    run wide = one;
    runner::run_in(vectors, wide.range, portable::arguments_of(wide));
    for (std::size_t n = 0; n < narrow.values.size(); ++n) {
      EXPECT_EQ(wide.values[n].bytes, narrow.values[n].bytes)
          << one.code->name << ", parameter " << n << ", width " << static_cast<int>(vectors);
    }
  }
}

TEST(host_kernel, the_vectors_of_every_processor_give_equal_bits) {
  if (weft::detail::widest_here() == weft::detail::vector_width::narrow)
    GTEST_SKIP() << "this build or this processor has vectors of one width";
  expect_equal_bits_in_every_width<portable::float_division>(portable::float_division_run());
  expect_equal_bits_in_every_width<portable::float_functions>(portable::float_function_run());
  expect_equal_bits_in_every_width<portable::double_functions>(portable::double_function_run());
  expect_equal_bits_in_every_width<portable::blur_5x5>(portable::blur_run(67, 41));
  expect_equal_bits_in_every_width<portable::write_index>(portable::index_run(35, 4, 5));
  const auto close_to_one = [](std::size_t k) { return 1.0F + static_cast<float>(k) * 0x1p-12F; };
  expect_equal_bits_in_every_width<portable::saxpy>(
      {weft::make_kernel_code<portable::saxpy>(),
       portable::range_of(1003),
       {in(portable::filled<float>(1003, close_to_one)), portable::inout(std::vector<float>(1003, -1.0F)),
        scalar(1.0F + 0x1p-12F), scalar<std::int32_t>(0)}});
}

TEST(host_kernel, a_piece_of_an_array_is_addressed_by_its_global_indices) {
  const std::vector<std::int32_t> whole = neighbour_run(100, 1).values[0].as<std::int32_t>();
  std::vector<std::int32_t> input(whole.begin() + 39, whole.begin() + 61);
  std::vector<std::int32_t> output(20);
  std::array<weft::kernel_argument, 3> arguments;
  arguments[0].address = input.data();
  arguments[0].first = 39;
  arguments[0].count = 22;
  arguments[1].address = output.data();
  arguments[1].first = 40;
  arguments[1].count = 20;
  const std::int64_t distance = 1;
  std::memcpy(arguments[2].scalar.data(), &distance, sizeof distance);
  const weft::kernel_range piece{1, {40, 0, 0}, {60, 1, 1}};
  weft::host_entry_of<neighbour>(piece, arguments);
  EXPECT_TRUE(std::equal(output.begin(), output.end(), whole.begin() + 41));
  std::fill(output.begin(), output.end(), 0);
  EXPECT_FALSE(weft::host_checked_entry_of<neighbour>(piece, arguments));
  EXPECT_TRUE(std::equal(output.begin(), output.end(), whole.begin() + 41));
}

TEST(host_kernel, ids_of_three_dimensions_come_in_the_order_x_y_z) {
  const std::vector<std::int64_t> written = portable::on_host(portable::index_run(3, 4, 5))[0].as<std::int64_t>();
  for (std::int64_t z = 0; z < 5; ++z) {
    for (std::int64_t y = 0; y < 4; ++y) {
      for (std::int64_t x = 0; x < 3; ++x) {
        ASSERT_EQ(written[static_cast<std::size_t>((z * 4 + y) * 3 + x)], x + 1000 * y + 1000000 * z);
      }
    }
  }
}

TEST(host_kernel, a_blur_of_a_constant_image_is_that_image) {
  run one = portable::blur_run(9, 6);
  std::fill(one.values[0].bytes.begin(), one.values[0].bytes.end(), std::byte{201});
  EXPECT_EQ(portable::on_host(one)[1].bytes, one.values[0].bytes);
}

TEST(host_kernel, ids_beyond_32_bits_arrive_whole) {
  const std::int64_t start = (std::int64_t{1} << 40) + 5;
  std::array<std::int64_t, 2> written{};
  std::array<weft::kernel_argument, 3> arguments;
  arguments[0].address = written.data();
  arguments[0].first = start;
  arguments[0].count = 2;
  weft::host_entry_of<portable::write_index>({3, {start, 0, 0}, {start + 2, 1, 1}}, arguments);
  EXPECT_EQ(written, (std::array{start, start + 1}));
}

TEST(host_kernel, items_that_share_a_reduction_run_one_after_the_other) {
  std::vector<std::int64_t> input(1000);
  for (std::size_t k = 0; k < input.size(); ++k) {
    input[k] = static_cast<std::int64_t>(k * k);
  }
  run one{weft::make_kernel_code<total>(),
          portable::range_of(1000),
          {in(input), portable::inout(std::vector<std::int64_t>{7})}};
  EXPECT_EQ(portable::on_host(one)[1].as<std::int64_t>()[0], 332833507);
}

TEST(host_kernel, a_kernel_without_parameters_runs) {
  weft::host_entry_of<no_parameters>(portable::range_of(10), {});
  EXPECT_FALSE(weft::host_checked_entry_of<no_parameters>(portable::range_of(10), {}));
}

TEST(checked_kernel, a_read_past_the_end_names_parameter_item_and_element) {
  run one = neighbour_run(10, 1);
  const auto violation = check(one);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->parameter, 0U);
  EXPECT_EQ(violation->index, 10);
  EXPECT_EQ(violation->limit, 10);
  EXPECT_FALSE(violation->write);
  EXPECT_FALSE(violation->undeclared);
  EXPECT_EQ(violation->item[0], 9);
  EXPECT_EQ(weft::describe(*one.code, *violation),
            "neighbour: item 9 reads element 10 of parameter 1, 'input', which reaches only elements below 10");
}

TEST(checked_kernel, a_read_before_the_start_gives_the_lower_limit) {
  run one = neighbour_run(10, -1);
  const auto violation = check(one);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->index, -1);
  EXPECT_EQ(violation->limit, 0);
  EXPECT_EQ(weft::describe(*one.code, *violation),
            "neighbour: item 0 reads element -1 of parameter 1, 'input', which reaches only elements from 0");
}

TEST(checked_kernel, a_read_beyond_the_declared_halo_is_found_inside_the_buffer_too) {
  run one = neighbour_run(10, 2);
  const auto violation = check(one);
  ASSERT_TRUE(violation);
  EXPECT_TRUE(violation->undeclared);
  EXPECT_EQ(violation->item[0], 0);
  EXPECT_EQ(violation->index, 2);
  EXPECT_EQ(violation->limit, 2);
  EXPECT_EQ(weft::describe(*one.code, *violation),
            "neighbour: item 0 reads element 2 of parameter 1, 'input', which declares for this item only elements "
            "below 2; declare what it needs with halo(r), wrap(r), rows(k) or whole");
}

TEST(checked_kernel, a_refused_read_gives_a_number_that_can_be_divided_by) {
  const std::vector<std::int32_t> fives(10, 5);
  run reads{
      weft::make_kernel_code<divides_by_its_neighbour>(), portable::range_of(10), {in(fives), out<std::int32_t>(10)}};
  run writes{weft::make_kernel_code<divides_by_what_it_read>(),
             portable::range_of(10),
             {portable::inout(fives), out<std::int32_t>(10)}};
  for (run* one : {&reads, &writes}) {
    const auto violation = check(*one);
    ASSERT_TRUE(violation);
    EXPECT_EQ(violation->index, 10);
    EXPECT_NE(weft::describe(*one->code, *violation).find(one == &reads ? "item 9 reads " : "item 9 accesses "),
              std::string::npos);
  }
}

TEST(checked_kernel, a_search_past_the_end_ends) {
  run search{weft::make_kernel_code<length_of_text>(),
             portable::range_of(1),
             {in(std::vector<std::int32_t>(10, 5)), out<std::int32_t>(1)}};
  const auto violation = check(search);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->index, 10);
}

TEST(checked_kernel, a_right_kernel_divides_and_indexes_by_the_values_of_its_run_alone) {
  for (const auto& code :
       {weft::make_kernel_code<by_a_quotient_of_its_own>(), weft::make_kernel_code<by_an_array_of_its_own>()}) {
    run right{code,
              portable::range_of(4),
              {in(std::vector<std::int32_t>{5, 6, 7, 8}), portable::inout(std::vector<std::int32_t>(8)),
               out<std::int32_t>(4)}};
    EXPECT_FALSE(check(right));
    EXPECT_EQ(right.values[2].as<std::int32_t>(),
              std::vector<std::int32_t>(4, code->name == "by_a_quotient_of_its_own" ? 6 : 8));
  }
}

TEST(checked_kernel, an_item_ends_where_it_is_refused_whatever_it_would_make_of_the_value) {
  for (const auto& code : {weft::make_kernel_code<at_a_quotient>(), weft::make_kernel_code<squares>(),
                           weft::make_kernel_code<search_for_seven>(), weft::make_kernel_code<sum_of_quotients>()}) {
    run wrong{code, portable::range_of(4), {in(std::vector<std::int32_t>(4, 40)), out<std::int32_t>(60)}};
    const auto violation = check(wrong);
    ASSERT_TRUE(violation) << code->name;
    EXPECT_EQ(violation->parameter, 0U);
    EXPECT_GT(violation->index, 0);
  }
}

TEST(checked_kernel, a_write_past_the_end_changes_nothing) {
  std::vector<std::int32_t> output(12, -1);
  std::vector<std::int32_t> input(10, 5);
  std::array<weft::kernel_argument, 3> arguments;
  arguments[0].address = input.data();
  arguments[0].count = 10;
  arguments[1].address = output.data();
  arguments[1].count = 10;
  const std::int64_t distance = 2;
  std::memcpy(arguments[2].scalar.data(), &distance, sizeof distance);
  const auto violation = weft::host_checked_entry_of<scatter>(portable::range_of(10), arguments);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->parameter, 1U);
  EXPECT_EQ(violation->index, 10);
  EXPECT_TRUE(violation->write);
  EXPECT_EQ(output[9], 5);
  EXPECT_EQ(output[10], -1);
  EXPECT_EQ(output[11], -1);
}

TEST(checked_kernel, rows_of_k_elements_belong_to_one_item) {
  run one{weft::make_kernel_code<row_sum>(),
          portable::range_of(4),
          {in(portable::filled<std::int32_t>(12, [](std::size_t k) { return k; })), out<std::int32_t>(4),
           scalar<std::int64_t>(3)}};
  EXPECT_FALSE(check(one));
  EXPECT_EQ(one.values[1].as<std::int32_t>(), (std::vector<std::int32_t>{3, 12, 21, 30}));
  one.values[2] = scalar<std::int64_t>(4);
  const auto violation = check(one);
  ASSERT_TRUE(violation);
  EXPECT_TRUE(violation->undeclared);
  EXPECT_EQ(violation->index, 3);
  EXPECT_EQ(violation->limit, 3);
}

TEST(checked_kernel, one_to_one_in_two_dimensions_means_the_item_s_own_row) {
  run one{weft::make_kernel_code<row_above>(),
          portable::range_of(5, 3),
          {in(std::vector<std::int32_t>(15)), out<std::int32_t>(15), scalar<std::int64_t>(5)}};
  const auto violation = check(one);
  ASSERT_TRUE(violation);
  EXPECT_TRUE(violation->undeclared);
  EXPECT_EQ(violation->item, (std::array<std::int64_t, 3>{0, 1, 0}));
  EXPECT_EQ(violation->index, 0);
  EXPECT_EQ(violation->limit, 5);
  EXPECT_EQ(weft::describe(*one.code, *violation).substr(0, 43), "row_above: item (0, 1) reads element 0 of p");
}

TEST(checked_kernel, a_row_in_two_dimensions_ends_where_the_next_begins_or_the_argument_ends) {
  std::vector<std::int32_t> input(10), output(10);
  std::array<weft::kernel_argument, 3> arguments;
  arguments[0].address = input.data();
  arguments[1].address = output.data();
  arguments[1].count = arguments[0].slab = arguments[1].slab = 5;
  const std::int64_t width = 5;
  std::memcpy(arguments[2].scalar.data(), &width, sizeof width);
  for (const std::int64_t count : {3, 10}) {
    arguments[0].count = count;
    const auto violation = weft::host_checked_entry_of<row_above>({2, {0, 0, 0}, {7, 1, 1}}, arguments);
    ASSERT_TRUE(violation) << count;
    EXPECT_EQ(violation->parameter, 0U);
    EXPECT_EQ(violation->undeclared, count == 10);
    EXPECT_EQ(violation->item[0], std::min<std::int64_t>(count, 5));
    EXPECT_EQ(violation->limit, std::min<std::int64_t>(count, 5));
  }
}

TEST(checked_kernel, a_check_of_many_items_names_the_first_wrong_one_and_runs_those_before_it) {
  constexpr std::size_t n = 5'000;
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{1'023}, std::size_t{1'024}, std::size_t{3'000}, n - 1}) {
    run one{
        weft::make_kernel_code<by_its_own_index>(),
        portable::range_of(n),
        {in(portable::filled<std::int32_t>(n, [](std::size_t k) { return k * 3; })),
         portable::inout(portable::filled<std::int32_t>(n, [](std::size_t k) { return n - 2 - std::min(k, n - 2); })),
         out<std::int32_t>(n)}};
    auto at = one.values[1].as<std::int32_t>();
    at[wrong] = n - 1;  // the last one, and it is moved on by one
    at[n - 1] = wrong == n - 1 ? n - 1 : 0;
    one.values[1] = portable::inout(at);
    const auto violation = check(one);
    ASSERT_TRUE(violation) << wrong;
    EXPECT_EQ(violation->item[0], static_cast<std::int64_t>(wrong));
    EXPECT_EQ(violation->parameter, 0U);
    EXPECT_EQ(violation->index, static_cast<std::int64_t>(n));
    const auto to = one.values[2].as<std::int32_t>(), after = one.values[1].as<std::int32_t>();
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(after[i], at[i] + (i <= wrong ? 1 : 0)) << i;
      if (i >= wrong) continue;
      ASSERT_EQ(to[i], 3 * after[i]) << i;
    }
  }
}

TEST(checked_kernel, a_scatter_ends_at_the_first_item_that_is_wrong) {
  constexpr std::size_t n = 5'000;
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{1'024}, std::size_t{3'000}, n - 1, n}) {
    auto at = portable::filled<std::int32_t>(n, [](std::size_t k) { return n - 1 - k; });
    if (wrong < n) at[wrong] = -1;
    run one{weft::make_kernel_code<scatter_by>(),
            portable::range_of(n),
            {in(portable::filled<std::int32_t>(n, [](std::size_t k) { return k + 1; })), in(at), out<std::int32_t>(n)}};
    const auto violation = check(one);
    ASSERT_EQ(violation.has_value(), wrong < n);
    EXPECT_EQ(violation ? violation->item[0] : std::int64_t{n}, static_cast<std::int64_t>(wrong));
    EXPECT_EQ(violation ? violation->index : -1, -1);
    const auto to = one.values[2].as<std::int32_t>();
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(to[n - 1 - i], static_cast<std::int32_t>(i < wrong ? i + 1 : 0)) << i;
  }
}

TEST(checked_kernel, finds_an_index_that_is_wrong_because_of_what_another_item_wrote) {
  run one{weft::make_kernel_code<by_a_shared_count>(),
          portable::range_of(50, 2),
          {in(std::vector<std::int32_t>(40)), portable::inout(std::vector<std::int32_t>(100)), out<std::int32_t>(100),
           scalar<std::int64_t>(50)}};
  const auto violation = check(one);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->item, (std::array<std::int64_t, 3>{39, 0, 0}));
  EXPECT_EQ(violation->index, 40);
}

TEST(checked_kernel, finds_an_index_that_another_item_wrote_through_another_parameter) {
  std::vector<std::int32_t> from(8, 100), at{1, 2, 3, 4, 5, 6, 7, 0};
  std::array<weft::kernel_argument, 3> arguments;
  arguments[0].address = from.data();
  arguments[1].address = arguments[2].address = at.data();
  for (auto& argument : arguments) argument.count = 8;
  const auto violation = weft::host_checked_entry_of<scatter_by>(portable::range_of(8), arguments);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->item[0], 1);
  EXPECT_EQ(violation->index, 100);
}

TEST(checked_kernel, finds_an_index_that_is_wrong_by_the_second_of_two_elements_read_back) {
  run one{weft::make_kernel_code<by_a_sum>(),
          portable::range_of(50),
          {in(std::vector<std::int32_t>(40)),
           portable::inout(portable::filled<std::int32_t>(100, [](std::size_t k) { return k % 2 * (k / 2); })),
           out<std::int32_t>(50)}};
  const auto violation = check(one);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->item[0], 40);
}

TEST(checked_kernel, with_a_loop_over_what_it_reads_back_ends) {
  run one{weft::make_kernel_code<apart_from_its_neighbour>(),
          portable::range_of(3),
          {portable::inout(std::vector<std::int32_t>{1, 2, 4, 4, 7, 6})}};
  EXPECT_FALSE(check(one));
  EXPECT_EQ(one.values[0].as<std::int32_t>(), (std::vector<std::int32_t>{1, 2, 3, 4, 7, 6}));
}

TEST(checked_kernel, a_kernel_that_writes_several_elements_for_an_item_is_checked_item_by_item) {
  constexpr std::size_t n = 2 * 8 * 4;
  run one{weft::make_kernel_code<two_by_two>(),
          portable::range_of(8, 4),
          {in(portable::filled<std::int32_t>(n, [](std::size_t k) { return k; })), out<std::int32_t>(n),
           scalar<std::int64_t>(8)}};
  const auto violation = check(one);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->item, (std::array<std::int64_t, 3>{4, 2, 0}));
  EXPECT_EQ(violation->index, 5);
  EXPECT_EQ(violation->limit, 32);
  const auto to = one.values[1].as<std::int32_t>();
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(to[i], static_cast<std::int32_t>(i));
}

TEST(checked_kernel, calls_what_is_not_of_the_library_once_for_each_item) {
  run one{weft::make_kernel_code<calls_the_program>(),
          portable::range_of(3'000),
          {in(std::vector<std::int32_t>(3'000, 4)), out<std::int32_t>(3'000)}};
  calls = 0;
  EXPECT_FALSE(check(one));
  EXPECT_EQ(calls, 3'000);
}

/// What is read of a body whose parameters are (WEFT_IN(float, halo(1)) from, WEFT_OUT(float) to, int64_t n).
constexpr weft::detail::body_reading reading(std::string_view body) {
  return weft::detail::read_body("(WEFT_IN(float, halo(1)) from, WEFT_OUT(float) to, int64_t n)", body,
                                 std::array<bool, 3>{false, true, false});
}

TEST(checked_kernel, is_pure_where_its_body_calls_the_library_alone) {
  static_assert(!reading("{ to[i] = counted (from[i]); }").is_pure);
  static_assert(!reading("{ static int n; to[i] = ++n; }").is_pure);
  static_assert(reading("{ for (int k = 0; k < 3; ++k) if (k) to[i] = (float)(k) + weft_exp(from[i]); }").is_pure);
}

TEST(checked_kernel, is_blind_where_no_value_of_what_it_writes_reaches_an_index_or_a_condition) {
  for (const std::string_view blind : {
           "{ to[from[i]] = from[i]; }",
           "{ if (i < n) to[i] = from[i]; else to [ n ] = 2 ; }",
           "{ to[2 * i] = from[i]; to[2 * i + 1] = -from[i]; }",
           "{ for (int k = 0; k < 3; ++k) { to[i] += from[k]; to[i] <<= 1; } }",
           "{ to[i] = weft_max(to[i], from[i]); }",
           "{ to[i] = from[i] * to[i] + to[i + 1]; to[i] = from[i] == 0 ? 1 : 2; int two = 2; }",
       }) {
    EXPECT_TRUE(reading(blind).is_blind) << blind;
  }
  for (const std::string_view sees : {
           "{ float v = to[i]; to[i] = v; }",
           "{ float v; v = (float)to[i]; }",
           "{ to[i] = from[to[i]]; }",
           "{ to[to[i]] = 1; }",
           "{ if (to[i] > 3) to[i] = 3; }",
           "{ to[i] = to[i] > 3 ? from[i] : from[i + 1]; }",
           "{ to[i] = to[i] && from[i]; }",
           "{ to[i] = to[i] and from[i]; }",
           "{ to[i] = (n = to[i]); }",
           "{ to[i] = 3, n = to[i]; }",
           "{ to[i] == 3 ? from[0] : from[1]; }",
           "{ for (n = 0; n < 3; to[i] = n) n = to[i]; }",
           "{ int n = (int)to[i]++; }",
           "{ n = to[i] = 3; }",
           "{ something(to); }",
           "{ to[i] = something(to); }",
           "{ for (n = 0; n < 3; to[i] = n) while (to[i]) ; }",
           "{ to[i] = to[i] + [&] { return from[to[i]]; }(); }",
           "{ to[i] = to['[']; }",
       }) {
    EXPECT_FALSE(reading(sees).is_blind) << sees;
  }
  EXPECT_FALSE((weft::detail::read_body("(TWO(from, to))", "{ b[i] = a[b[i]]; }", std::array{false, true}).is_blind));
  EXPECT_FALSE((weft::detail::read_body("(MACRO, to)", "{ to[v[i]] = 1; }", std::array{true, true}).is_blind));
  for (const std::string_view harmful : {"{ to[i] /= from[i]; }", "{ int k = i % n; }",
                                         "{ int own[2]; to[i] = own[0]; }", "{ if (to[i] > n) throw n; }"})
    EXPECT_TRUE(reading(harmful).may_fault) << harmful;
  EXPECT_FALSE(reading("{ to[i] = from[i] * n; }").may_fault);
  EXPECT_TRUE(reading("{ while (n) to[i] = --n; }").has_loop);
  EXPECT_FALSE(reading("{ to[i] = n; }").has_loop);
  // longer than compilers read while they compile: nothing is claimed
  const auto of_length = [](std::size_t length) { return "{ to[i] = n; " + std::string(length, ' ') + "}"; };
  EXPECT_TRUE(reading(of_length(3000)).is_blind);
  const auto longest = reading(of_length(4000));
  EXPECT_FALSE(longest.is_blind || longest.is_pure);
  EXPECT_TRUE(longest.has_loop);
}

TEST(checked_kernel, an_unsigned_index_too_large_to_be_one_is_caught) {
  weft::detail::check_state state;
  const std::int64_t item = 0;
  std::array<float, 4> elements{1, 2, 3, 4};
  weft::kernel_argument argument;
  argument.address = elements.data();
  argument.count = 4;
  const weft::detail::checked_buffer<float, weft::parameter_direction::in, weft::access::whole(), 1> view(
      argument, elements.data(), 0, item, state);
  EXPECT_EQ(view[std::uint8_t{3}], 4.0F);
  EXPECT_FALSE(state.is_refused);
  EXPECT_THROW(static_cast<void>(view[std::numeric_limits<std::uint64_t>::max()]), weft::detail::item_end);
  ASSERT_TRUE(state.is_refused);
  EXPECT_EQ(state.violation.index, -1);
}

TEST(kernel_math, host_functions_keep_the_errors_that_the_documentation_states) {
  const auto single = portable::errors_of<float, double>(portable::on_host(portable::float_function_run()));
  const auto twofold = portable::errors_of<double, long double>(portable::on_host(portable::double_function_run()));
  for (std::size_t f = 0; f < portable::function_count; ++f) {
    EXPECT_LE(single[f], portable::functions[f].host) << portable::functions[f].name << " of float";
    EXPECT_LE(twofold[f], portable::functions[f].host + 0.01) << portable::functions[f].name << " of double";
  }
}

TEST(kernel_math, the_smaller_and_larger_of_a_number_and_nan_is_the_number) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(weft_fmin(nan, 2.0F), 2.0F);
  EXPECT_EQ(weft_fmin(2.0F, nan), 2.0F);
  EXPECT_EQ(weft_fmax(nan, 2.0F), 2.0F);
  EXPECT_EQ(weft_fmax(2.0F, nan), 2.0F);
  EXPECT_TRUE(std::isnan(weft_fmax(nan, nan)));
}

TEST(kernel_math, integers_of_different_width_are_compared_in_the_wider_type) {
  EXPECT_EQ(weft_min(std::int64_t{1} << 40, std::int32_t{7}), 7);
  EXPECT_EQ(weft_max(std::int64_t{1} << 40, std::int32_t{7}), std::int64_t{1} << 40);
  EXPECT_EQ(weft_clamp(std::int64_t{-3}, 0, 9), 0);
  EXPECT_EQ(weft_clamp(std::uint8_t{200}, std::uint8_t{1}, std::uint8_t{100}), 100);
  EXPECT_EQ(weft_clamp(std::uint8_t{200}, std::uint16_t{1}, std::uint16_t{100}), 100);
  EXPECT_EQ(weft_clamp(std::uint8_t{200}, std::uint16_t{1}, std::uint32_t{100}), 100U);
  static_assert(std::is_same_v<decltype(weft_min(std::uint8_t{1}, std::uint8_t{2})), std::uint8_t>);
  static_assert(std::is_same_v<decltype(weft_min(std::uint8_t{1}, std::uint16_t{2})), int>);
}

}  // namespace define_test
