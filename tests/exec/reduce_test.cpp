// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/reduce.hpp"

#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/exec/map_reduce.hpp"
#include "weft/profile/profiler.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace reduce_test {

using samples::error_of;
using weft::array;
using weft::balance;
using weft::buffer;
using weft::errc;
using weft::launch_reduce;
using weft::machine;
using weft::map_reduce;
using weft::maximum;
using weft::minimum;
using weft::range;
using weft::reduce;
using weft::reduce_op;
using weft::spread_options;
using weft::sum;

constexpr balance strategies[] = {balance::automatic,    balance::static_equal,  balance::dynamic, balance::guided,
                                  balance::memory_aware, balance::work_stealing, balance::weighted};
constexpr std::int64_t lengths[] = {0, 1, 2, 15, 16, 17, 1023, 1024, 1025, 2049, 7919, 104'729};

spread_options with(balance strategy, std::size_t devices) {
  spread_options options;
  options.strategy = strategy;
  if (strategy == balance::weighted) {
    for (std::size_t d = 0; d < devices; ++d) options.weights.push_back(static_cast<double>(d + 1));
  }
  return options;
}

/// Both signs, magnitudes from 10^-6 to 10^6.
template <class T>
std::vector<T> mixed(std::size_t n, std::uint32_t seed) {
  std::mt19937 random{seed};
  std::uniform_real_distribution<double> exponent{-6, 6};
  std::vector<T> made(n);
  for (T& x : made) {
    const double magnitude = std::pow(10.0, exponent(random));
    x = static_cast<T>(random() % 2 == 0 ? magnitude : -magnitude);
  }
  return made;
}

std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

template <class T>
long double exact_sum(const std::vector<T>& values) {
  // 64 bits of mantissa, and what each addition loses beside it
  long double total = 0;
  long double lost = 0;
  for (const T x : values) {
    const long double next = total + x;
    lost += std::fabs(total) >= std::fabs(static_cast<long double>(x)) ? (total - next) + x : (x - next) + total;
    total = next;
  }
  return total + lost;
}

template <class T>
void expect_accurate(const machine& m, const std::vector<T>& values, const char* what) {
  long double magnitude = 0;
  for (const T x : values) magnitude += std::fabs(static_cast<long double>(x));
  const long double exact = exact_sum(values);
  const long double bound = std::ldexp(magnitude, -46) + std::ldexp(std::fabs(exact), -53);
  EXPECT_LE(std::fabs(static_cast<long double>(sum(m, values)) - exact), bound) << what;
}

TEST(reduction_kernel, is_brief_for_few_blocks_although_it_has_a_loop) {
  for (const auto type : {weft::element_type::float32, weft::element_type::float64, weft::element_type::int8}) {
    EXPECT_GE(weft::detail::reduction_kernel(type)->brief_items, 4);    // a sum of 4,096 wakes no thread
    EXPECT_LE(weft::detail::reduction_kernel(type)->brief_items, 128);  // nor takes longer than to wake one
  }
}

TEST(reduction, has_the_same_bits_with_every_strategy_on_any_number_of_devices) {
  const machine one = samples::play(samples::wired(1));
  std::vector<std::vector<float>> inputs;
  std::vector<std::uint64_t> expected;
  for (const std::int64_t n : lengths) {
    inputs.push_back(mixed<float>(static_cast<std::size_t>(n), 7));
    expected.push_back(bits(sum(one, inputs.back())));
  }
  for (const int devices : {1, 2, 3, 4, 5}) {
    const machine m = samples::play(samples::wired(devices));
    for (const balance strategy : strategies) {
      const auto options = with(strategy, static_cast<std::size_t>(devices));
      for (std::size_t n = 0; n < inputs.size(); ++n) {
        const array<float> there{m, inputs[n]};
        EXPECT_EQ(bits(reduce(m, options, inputs[n], reduce_op::sum)), expected[n])
            << inputs[n].size() << " on the host, " << to_string(strategy) << ", " << devices << " devices";
        EXPECT_EQ(bits(reduce(m, options, there, reduce_op::sum)), expected[n])
            << inputs[n].size() << " in an array, " << to_string(strategy) << ", " << devices << " devices";
      }
    }
  }
}

template <class T>
class reduction_of : public testing::Test {};
using all_elements = testing::Types<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                                    std::uint32_t, std::uint64_t, float, double>;
TYPED_TEST_SUITE(reduction_of, all_elements);

TYPED_TEST(reduction_of, every_length_reaches_every_element_once_tail_included) {
  using wide = weft::reduced<TypeParam>;
  const machine m = samples::play(samples::wired(3));
  for (const std::int64_t n : lengths) {
    std::vector<TypeParam> values(static_cast<std::size_t>(n));
    std::mt19937_64 random{static_cast<std::uint64_t>(n)};
    for (TypeParam& x : values) {
      if constexpr (std::is_floating_point_v<TypeParam>) {
        x = static_cast<TypeParam>(static_cast<int>(random() % 2001) - 1000);  // exact sums
      } else {
        x = static_cast<TypeParam>(random());
      }
    }
    // modulo 2^64 for integers; the factors of reals are 1, -1, 2 and 1/2, so that their product is exact
    using modulo = std::conditional_t<std::is_integral_v<TypeParam>, std::uint64_t, double>;
    modulo total = 0;
    for (const TypeParam x : values) total += static_cast<modulo>(x);
    EXPECT_EQ(reduce(m, values, reduce_op::sum), static_cast<wide>(total)) << n;
    if (n > 0) {
      EXPECT_EQ(minimum(m, values), *std::min_element(values.begin(), values.end())) << n;
      EXPECT_EQ(maximum(m, values), *std::max_element(values.begin(), values.end())) << n;
    }
    for (std::size_t k = 0; k < values.size(); ++k) {
      if constexpr (std::is_integral_v<TypeParam>) {
        values[k] = static_cast<TypeParam>(values[k] | 1);
      } else {
        values[k] = static_cast<TypeParam>(k % 4 == 0 ? 2 : k % 4 == 1 ? 0.5 : random() % 2 == 0 ? 1 : -1);
      }
    }
    modulo product = 1;
    for (const TypeParam x : values) product *= static_cast<modulo>(x);
    EXPECT_EQ(reduce(m, values, reduce_op::product), static_cast<wide>(product)) << n;
  }
}

TEST(reduction, a_reduction_of_nothing_gives_the_neutral_element_and_refuses_the_least) {
  const machine m = samples::play(samples::wired(2));
  const array<double> nothing{m, 0};
  const std::vector<std::int16_t> none;
  EXPECT_EQ(sum(m, nothing), 0.0);
  EXPECT_EQ(reduce(m, nothing, reduce_op::product), 1.0);
  EXPECT_EQ(sum(m, none), 0);
  EXPECT_EQ(reduce(m, none, reduce_op::product), 1);
  for (const reduce_op op : {reduce_op::min, reduce_op::max}) {
    const weft::error e = error_of([&] { static_cast<void>(reduce(m, none, op)); });
    EXPECT_EQ(e.code, errc::invalid_argument);
    EXPECT_NE(e.what.find("of no elements"), std::string::npos) << e.what;
  }
}

TEST(reduction, a_sum_of_reals_is_as_accurate_as_it_says) {
  const machine m = samples::play(samples::wired(3));
  for (const std::uint32_t seed : {1u, 2u, 3u, 4u}) {
    const auto floats = mixed<float>(300'007, seed);
    const auto doubles = mixed<double>(300'007, seed);
    expect_accurate(m, floats, "floats");
    expect_accurate(m, doubles, "doubles");
    // What cancels to the last bit, far apart: nothing but the small numbers is left.
    std::vector<double> cancelling = doubles;
    for (const double x : doubles) cancelling.push_back(-x * 1e3);
    for (const double x : doubles) cancelling.push_back(x * 1e3);
    expect_accurate(m, cancelling, "cancelling");
  }
  // A plain sum in double of these would be off by far more than the bound: the large one swallows all that follow.
  std::vector<double> swallowed(1 << 20, 1.0 / 3);
  swallowed.front() = 9007199254740992.0;
  expect_accurate(m, swallowed, "swallowed by the first");
}

TEST(reduction, product_of_reals_is_as_accurate_as_it_says_and_the_same_on_any_number_of_devices) {
  std::vector<double> values(20'011);
  std::mt19937 random{5};
  std::uniform_real_distribution<double> exponent{-0.5, 0.5};
  for (double& x : values) x = (random() % 2 == 0 ? 1 : -1) * std::exp2(exponent(random));
  long double exact = 1;
  for (const double x : values) exact *= x;
  double first = 0;
  for (const int devices : {1, 2, 5}) {
    const machine m = samples::play(samples::wired(devices));
    for (const balance strategy : strategies) {
      const double got = reduce(m, with(strategy, static_cast<std::size_t>(devices)), values, reduce_op::product);
      if (first == 0) first = got;
      EXPECT_EQ(bits(got), bits(first)) << devices << ' ' << to_string(strategy);
    }
  }
  EXPECT_LE(std::fabs((static_cast<long double>(first) - exact) / exact),
            std::ldexp(static_cast<long double>(values.size()), -53));
}

TEST(reduction, a_sum_of_many_blocks_loses_nothing_between_them) {
  const machine m = samples::play(samples::wired(2));
  // Block by block: a large number, then blocks that are each below half of its last place, then its opposite.
  std::vector<double> values(1024 * 1002, 0.0);
  values.front() = 0x1p60;
  for (std::size_t block = 1; block <= 1000; ++block) values[block * 1024] = 3.0;
  values[1024 * 1001] = -0x1p60;
  EXPECT_EQ(sum(m, values), 3000.0);
}

TEST(reduction, a_sum_of_floats_does_not_overflow_as_floats_would) {
  const machine m = samples::play(samples::wired(2));
  const std::vector<float> large(5'000, 3e38f);
  EXPECT_EQ(sum(m, large), 5'000.0 * static_cast<double>(3e38f));
}

TEST(reduction, min_and_max_pass_over_what_is_not_a_number) {
  const machine m = samples::play(samples::wired(3));
  const float none = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t n : {1u, 2u, 17u, 1024u, 5'000u}) {
    std::vector<float> values(n, none);
    EXPECT_EQ(bits(reduce(m, values, reduce_op::min)), bits(std::numeric_limits<double>::quiet_NaN())) << n;
    EXPECT_EQ(bits(reduce(m, values, reduce_op::max)), bits(std::numeric_limits<double>::quiet_NaN())) << n;
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      values.assign(n, none);
      values[at] = -3.0f;
      EXPECT_EQ(minimum(m, values), -3.0f) << at << " of " << n;
      EXPECT_EQ(maximum(m, values), -3.0f) << at << " of " << n;
    }
    values.assign(n, 5.0f);
    values[n / 2] = none;
    if (n > 1) {
      EXPECT_EQ(maximum(m, values), 5.0f);
    }
    values[0] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(minimum(m, values), -std::numeric_limits<float>::infinity());
  }
}

TEST(reduction, sums_pass_infinities_on_and_what_is_not_a_number_is_always_the_same) {
  const machine m = samples::play(samples::wired(2));
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> values(3'000, 1.0);
  values[2'500] = infinity;
  EXPECT_EQ(sum(m, values), infinity);
  values[100] = -infinity;
  EXPECT_EQ(bits(sum(m, values)), bits(std::numeric_limits<double>::quiet_NaN()));
  values[100] = -std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(bits(sum(m, values)), bits(std::numeric_limits<double>::quiet_NaN()));
}

TEST(reduction, takes_memory_of_one_device_and_const_memory_of_the_host) {
  const machine m = samples::play(samples::wired(3));
  std::vector<std::int32_t> values(10'007);
  std::iota(values.begin(), values.end(), -17);
  const std::int64_t expected = std::accumulate(values.begin(), values.end(), std::int64_t{0});
  buffer<std::int32_t> on_one{m[1], values.size()};
  weft::copy(on_one, values);
  EXPECT_EQ(sum(m, on_one), expected);
  EXPECT_EQ(sum(m, std::span<const std::int32_t>{values}), expected);
  const machine alone = samples::play(samples::wired(1));
  buffer<std::int32_t> there{alone[0], values.size()};
  weft::copy(there, values);
  EXPECT_EQ(sum(alone, there), expected);
}

TEST(reduction, comes_after_the_launch_that_writes_the_array_and_moves_none_of_it) {
  const machine m = samples::play(samples::wired(4));
  const std::vector<std::uint16_t> ones(100'000, 1);
  const array<std::uint16_t> x{m, ones};
  EXPECT_EQ(reduce(m, {.strategy = balance::static_equal}, x, reduce_op::sum), 100'000u);
  const auto before = x.traffic();
  EXPECT_EQ(reduce(m, {.strategy = balance::dynamic}, x, reduce_op::sum), 100'000u);
  EXPECT_EQ(x.traffic().copies, before.copies);
}

TEST(reduction, can_be_started_and_waited_for_later) {
  const machine m = samples::play(samples::wired(2));
  const std::vector<std::int32_t> a(50'000, 3);
  const std::vector<std::int32_t> b(50'000, -2);
  auto first = launch_reduce(m, a, reduce_op::sum);
  auto second = launch_reduce(m, {.strategy = balance::static_equal}, b, reduce_op::min);
  EXPECT_EQ(second.wait(), -2);
  EXPECT_EQ(second.wait(), -2);
  EXPECT_TRUE(second.ready());
  EXPECT_EQ(second.report().items, 49);
  EXPECT_EQ(first.wait_for(samples::soon), weft::wait_outcome::ok);
  EXPECT_EQ(first.wait(), 150'000);
  first = std::move(second);
  EXPECT_EQ(first.wait(), -2);
  // NOLINTNEXTLINE(bugprone-use-after-move): what a move leaves is the point
  EXPECT_EQ(error_of([&] { static_cast<void>(second.wait()); }).code, errc::invalid_argument);
}

TEST(reduction, a_stopped_reduction_ends_as_cancelled) {
  const machine m = samples::play(samples::wired(2));
  const std::vector<float> values(50'000, 1.0f);
  std::stop_source stop;
  stop.request_stop();
  spread_options options;
  options.stop = stop.get_token();
  EXPECT_EQ(error_of([&] { static_cast<void>(reduce(m, options, values, reduce_op::sum)); }).code, errc::cancelled);
}

TEST(reduction, a_reduction_of_an_unwritten_array_is_an_error) {
  const machine m = samples::play(samples::wired(2));
  const array<float> blank{m, 5'000};
  EXPECT_EQ(error_of([&] { static_cast<void>(sum(m, blank)); }).code, errc::invalid_argument);
}

TEST(reduction, says_so_where_the_host_cannot_hold_the_results_of_the_blocks) {
  const machine m = samples::play(samples::wired(2));
  if (samples::is_sanitized) GTEST_SKIP() << "a sanitizer ends the process that asks for so much";
  const array<double> reals{m, std::int64_t{1} << 59};
  const array<std::int8_t> integers{m, std::int64_t{1} << 62};
  EXPECT_EQ(error_of([&] { static_cast<void>(sum(m, reals)); }).code, errc::resource_exhausted);
  EXPECT_EQ(error_of([&] { static_cast<void>(sum(m, integers)); }).code, errc::resource_exhausted);
}

TEST(reduction, by_several_threads_at_once_gives_each_its_own) {
  const machine m = samples::play(samples::wired(3));
  const array<std::int64_t> shared{m, 20'000, 5};
  std::vector<std::thread> threads;
  std::vector<std::int64_t> got(4);
  for (std::size_t t = 0; t < got.size(); ++t) {
    threads.emplace_back([&, t] { got[t] = sum(m, shared) + sum(m, std::vector<std::int64_t>(t + 1, 1)); });
  }
  for (std::thread& t : threads) t.join();
  for (std::size_t t = 0; t < got.size(); ++t) EXPECT_EQ(got[t], 100'001 + static_cast<std::int64_t>(t));
}

// ---- memory short

machine narrow(int devices, std::uint64_t memory) { return samples::play(samples::wired(devices, {}, memory)); }

TEST(reduction, more_data_than_all_devices_hold_goes_through_them_in_passes) {
  constexpr std::uint64_t room = std::uint64_t{1} << 20;
  const machine m = narrow(4, room);
  ASSERT_EQ(m[0].total_memory().value(), room);
  std::vector<float> values(std::size_t{16} << 20);  // 64 MiB
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1021) - 510.0f;
  const long double exact = exact_sum(values);
  for (const balance strategy : {balance::automatic, balance::static_equal}) {
    auto run = launch_reduce(m, {.strategy = strategy}, values, reduce_op::sum);
    EXPECT_EQ(run.wait(), static_cast<double>(exact)) << to_string(strategy);
    std::int64_t pieces = 0;
    for (const auto& d : run.report().devices) pieces += d.pieces;
    EXPECT_GE(pieces, 64) << "64 MiB by 1 MiB: more cannot have been there at once";
  }
  for (int d = 0; d < 4; ++d)
    EXPECT_GE(m[d].free_memory().value() * 4, room * 3) << "at most a quarter is kept for the next launch";
}

TEST(reduction, a_constant_array_larger_than_the_devices_is_summed) {
  const machine m = narrow(4, std::uint64_t{1} << 20);
  const std::size_t n = (std::size_t{16} << 20) + 7;
  const array<float> constant{m, n, 0.5f};
  EXPECT_EQ(sum(m, constant), static_cast<double>(n) * 0.5);
}

TEST(reduction, a_sum_of_a_thousand_million_elements_is_right_in_passes) {
  if (!samples::by_night()) GTEST_SKIP() << "4 GB pass through the devices: WEFT_NIGHTLY=1 runs it";
  const machine m = narrow(4, std::uint64_t{64} << 20);
  const std::size_t n = 1'000'000'007;
  const float value = 0.1f;
  const array<float> constant{m, n, value};
  const auto begun = std::chrono::steady_clock::now();
  const double got = sum(m, constant);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  const long double exact = static_cast<long double>(n) * static_cast<long double>(value);
  const auto error = static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / exact);
  std::cout << n << " elements: " << took.count() << " s, relative error " << error << '\n';
  EXPECT_LE(error, 0x1p-46 + 0x1p-53);
}

// ---- map and reduce

WEFT_KERNEL(reduce_square, (WEFT_IN(float) x, WEFT_OUT(double) squared), { squared[i] = (double)x[i] * x[i]; });
WEFT_KERNEL(reduce_dot, (WEFT_IN(int32_t) x, WEFT_IN(int32_t) y, int32_t scale, WEFT_OUT(int64_t) product),
            { product[i] = (int64_t)x[i] * y[i] * scale; });
WEFT_KERNEL(reduce_index, (WEFT_OUT(uint32_t) index), { index[i] = (uint32_t)i; });
WEFT_KERNEL(reduce_slope, (WEFT_IN(int32_t, halo(1)) x, int64_t count, WEFT_OUT(int32_t) slope),
            { slope[i] = x[weft_min(i + 1, count - 1)] - x[i]; });

TEST(map_then_reduce, has_the_bits_of_reducing_the_whole_mapped_array) {
  for (const int devices : {1, 2, 5}) {
    const machine m = samples::play(samples::wired(devices));
    for (const balance strategy : strategies) {
      const auto options = with(strategy, static_cast<std::size_t>(devices));
      for (const std::int64_t n : lengths) {
        const auto values = mixed<float>(static_cast<std::size_t>(n), 3);
        std::vector<double> squared(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) squared[i] = static_cast<double>(values[i]) * values[i];
        const double expected = sum(m, squared);
        EXPECT_EQ(bits(map_reduce<reduce_square>(m, options, range(n), reduce_op::sum, values)), bits(expected))
            << n << ' ' << to_string(strategy);
        const array<float> there{m, values};
        EXPECT_EQ(bits(map_reduce<reduce_square>(m, options, range(n), reduce_op::sum, there)), bits(expected))
            << n << ' ' << to_string(strategy);
      }
    }
  }
}

TEST(map_then_reduce, takes_several_inputs_and_scalars) {
  const machine m = samples::play(samples::wired(3));
  std::vector<std::int32_t> x(50'021);
  std::vector<std::int32_t> y(x.size());
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<std::int32_t>(i % 1009) - 500;
    y[i] = static_cast<std::int32_t>(i % 577);
    expected += std::int64_t{3} * x[i] * y[i];
  }
  const auto n = static_cast<std::int64_t>(x.size());
  EXPECT_EQ(map_reduce<reduce_dot>(m, range(n), reduce_op::sum, x, y, std::int32_t{3}), expected);
  array<std::int32_t> a{m, x};
  EXPECT_EQ(map_reduce<reduce_dot>(m, range(n), reduce_op::sum, a, y, std::int32_t{3}), expected);
  EXPECT_EQ(map_reduce<reduce_slope>(m, range(n), reduce_op::sum, x, n), x.back() - x.front());
}

TEST(map_then_reduce, refuses_a_range_that_ends_behind_an_input) {
  const machine m = samples::play(samples::wired(4));
  const std::vector<float> x(std::size_t{3} << 19, 1.0f);
  EXPECT_EQ(error_of([&] {
              static_cast<void>(map_reduce<reduce_square>(m, range(std::int64_t{1} << 21), reduce_op::sum, x));
            }).code,
            errc::out_of_range);
}

TEST(map_then_reduce, an_empty_range_gives_the_neutral_element) {
  const machine m = samples::play(samples::wired(2));
  EXPECT_EQ(map_reduce<reduce_index>(m, range(0), reduce_op::sum), 0u);
  EXPECT_EQ(error_of([&] { static_cast<void>(map_reduce<reduce_index>(m, range(0), reduce_op::max)); }).code,
            errc::invalid_argument);
}

TEST(map_then_reduce, is_checked_as_a_launch_is_even_where_there_is_nothing_to_map) {
  machine m = samples::play(samples::wired(2));
  const auto code = [&](const spread_options& options, const weft::kernel_range& over) {
    return error_of([&] { static_cast<void>(map_reduce<reduce_index>(m, options, over, reduce_op::sum)); }).code;
  };
  EXPECT_EQ(code({}, range(-4)), errc::invalid_argument);
  EXPECT_EQ(code({}, range(0, 4)), errc::incompatible);
  for (const std::int64_t wrong : {-5, 0}) EXPECT_EQ(code({.granularity = wrong}, range(10)), errc::invalid_argument);
  EXPECT_EQ(code({.devices = {.ids = {weft::device_id{7}}}}, range(0)), errc::invalid_device);
  const spread_options in_one_piece{.granularity = std::numeric_limits<std::int64_t>::max()};
  EXPECT_EQ(map_reduce<reduce_index>(m, in_one_piece, range(10'000), reduce_op::sum), 49'995'000u);
  m.close();
  EXPECT_EQ(code({}, range(0)), errc::machine_closed);
}

TEST(map_then_reduce, over_a_range_that_begins_elsewhere_is_refused) {
  const machine m = samples::play(samples::wired(2));
  weft::kernel_range late = range(4'096);
  late.begin[0] = 1'024;
  EXPECT_EQ(error_of([&] { static_cast<void>(map_reduce<reduce_index>(m, late, reduce_op::sum)); }).code,
            errc::invalid_argument);
}

/// Bytes copied from anywhere to anywhere while `work` runs.
template <class F>
std::uint64_t bytes_moved(const machine& m, F&& work) {
  const weft::profiler watch{m};
  work();
  m.synchronize();
  std::uint64_t sum = 0;
  for (const auto& pair : watch.profile().pairs) sum += pair.bytes;
  EXPECT_EQ(watch.dropped(), 0u);
  return sum;
}

std::uint64_t result_bytes(std::int64_t n) { return static_cast<std::uint64_t>(n + 1023) / 1024 * sizeof(double); }

TEST(map_then_reduce, leaves_what_is_mapped_where_it_was_made_even_when_memory_is_short) {
  // 8 MiB of results, four times what the devices hold: had they gone to the host, all of them would be seen to move.
  // Some may go to another device, when the measured speeds say so.
  const machine m = narrow(4, std::uint64_t{512} << 10);
  const std::int64_t n = (std::int64_t{2} << 20) + 5;
  const auto expected = static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(n - 1) / 2;
  EXPECT_LE(bytes_moved(m, [&] { EXPECT_EQ(map_reduce<reduce_index>(m, range(n), reduce_op::sum), expected); }),
            result_bytes(n) + static_cast<std::uint64_t>(n) * sizeof(std::uint32_t) / 2);
  EXPECT_EQ(map_reduce<reduce_index>(m, range(n), reduce_op::max), static_cast<std::uint64_t>(n - 1));

  const std::vector<float> ones(std::size_t{1} << 20, 1.0f);
  const auto count = static_cast<std::int64_t>(ones.size());
  const array<float> kept{m, ones};
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_LE(bytes_moved(m,
                          [&] {
                            EXPECT_EQ(map_reduce<reduce_square>(m, range(count), reduce_op::sum, kept),
                                      static_cast<double>(count));
                          }),
              result_bytes(count) + kept.size_bytes().value() + static_cast<std::uint64_t>(count) * sizeof(double) / 2);
  }
  EXPECT_EQ(map_reduce<reduce_square>(m, range(count), reduce_op::sum, ones), static_cast<double>(count));
}

TEST(map_then_reduce, follows_where_the_input_lies) {
  const machine m = samples::play(samples::wired(3));
  const std::vector<float> ones(std::size_t{3} << 18, 1.0f);
  const auto count = static_cast<std::int64_t>(ones.size());
  const array<float> x{m, ones};
  EXPECT_EQ(reduce(m, {.strategy = balance::static_equal}, x, reduce_op::sum), static_cast<double>(count));
  EXPECT_EQ(bytes_moved(m,
                        [&] {
                          EXPECT_EQ(map_reduce<reduce_square>(m, {.strategy = balance::dynamic}, range(count),
                                                              reduce_op::sum, x),
                                    static_cast<double>(count));
                        }),
            result_bytes(count));
}

TEST(map_then_reduce, reports_the_first_cause_and_stops) {
  const machine m = samples::play(samples::wired(2));
  const array<float> blank{m, 5'000};
  EXPECT_EQ(
      error_of([&] { static_cast<void>(map_reduce<reduce_square>(m, range(5'000), reduce_op::sum, blank)); }).code,
      errc::invalid_argument);
  EXPECT_NO_THROW(m.synchronize());
}

}  // namespace reduce_test
