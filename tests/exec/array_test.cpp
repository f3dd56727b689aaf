// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/array.hpp"

#include "support/samples.hpp"
#include "weft/exec/launch_run.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <malloc.h>
#include <numeric>
#include <random>
#include <string>
#include <utility>

namespace array_test {

using samples::error_of;
using weft::array;
using weft::array_part;
using weft::balance;
using weft::device_id;
using weft::errc;
using weft::launch;
using weft::machine;
using weft::range;

WEFT_KERNEL(array_step, (WEFT_INOUT(int32_t) values, int32_t by),
            { values[i] = (int32_t)((uint32_t)values[i] * 3u + (uint32_t)by); });
WEFT_KERNEL(array_blend, (WEFT_IN(int32_t, halo(5)) from, WEFT_OUT(int32_t) to, int64_t count), {
  to[i] = (int32_t)((uint32_t)from[weft_clamp(i - 5, 0, count - 1)] - (uint32_t)from[weft_clamp(i + 5, 0, count - 1)]);
});

std::vector<std::int32_t> ramp(std::size_t n) {
  std::vector<std::int32_t> made(n);
  std::iota(made.begin(), made.end(), 1);
  return made;
}

TEST(array, holds_what_was_written_whole_and_in_parts) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> a{m, ramp(100)};
  EXPECT_EQ(a.size(), 100u);
  EXPECT_EQ(a.size_bytes(), weft::bytes{400});
  a.write(std::vector<std::int32_t>{-1, -2, -3}, 50);
  auto expected = ramp(100);
  expected[50] = -1;
  expected[51] = -2;
  expected[52] = -3;
  EXPECT_EQ(a.host(), expected);
  std::vector<std::int32_t> some(4);
  a.read(some, 49);
  EXPECT_EQ(some, (std::vector<std::int32_t>{50, -1, -2, -3}));
}

TEST(array, an_array_of_no_elements_is_legal_everywhere) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> none{m, std::size_t{0}};
  array<std::int32_t> unborn;
  EXPECT_TRUE(none.empty() && unborn.empty());
  EXPECT_TRUE(none.host().empty() && unborn.host().empty());
  EXPECT_TRUE(none.parts().empty() && unborn.parts().empty());
  EXPECT_NO_THROW(launch<array_step>(m, range(0), none, 1).wait());
  array<std::int32_t> full{m, 8, 5}, other{m, 3, 1};
  other = std::move(full);
  const array<std::int32_t> last = std::move(other);
  EXPECT_EQ(last.host(), std::vector<std::int32_t>(8, 5));
  std::vector<std::int32_t> some(4);
  for (array<std::int32_t>* left : {&full, &other, &unborn}) {  // NOLINT(bugprone-use-after-move): the point
    EXPECT_TRUE(left->empty() && left->host().empty());
    EXPECT_EQ(error_of([&] { left->write(some); }).code, errc::out_of_range);
    EXPECT_EQ(error_of([&] { left->read(some); }).code, errc::out_of_range);
  }
}

TEST(array, refuses_reads_of_what_nothing_has_written_and_ranges_past_its_end) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> a{m, 10};
  auto e = error_of([&] { static_cast<void>(a.host()); });
  EXPECT_EQ(e.code, errc::invalid_argument);
  EXPECT_NE(e.what.find("elements 0 … 9 are read"), std::string::npos) << e.what;
  a.write(std::vector<std::int32_t>{1, 2, 3}, 4);
  e = error_of([&] { static_cast<void>(a.host()); });
  EXPECT_NE(e.what.find("elements 0 … 3 are read"), std::string::npos) << e.what;
  EXPECT_EQ(error_of([&] { a.write(std::vector<std::int32_t>{1, 2}, 9); }).code, errc::out_of_range);
  std::vector<std::int32_t> two(2);
  for (const std::size_t first : {std::size_t{9}, std::size_t{11}, std::numeric_limits<std::size_t>::max()}) {
    e = error_of([&] { a.read(two, first); });
    EXPECT_EQ(e.code, errc::out_of_range) << first;
    EXPECT_NE(e.what.find("2 elements from " + std::to_string(first) + " on"), std::string::npos) << e.what;
  }
  EXPECT_EQ(error_of([&] { array<std::int64_t>{m, std::size_t{1} << 62}; }).code, errc::invalid_argument);
}

TEST(array, stays_where_the_last_launch_left_it) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> a{m, ramp(100)};
  EXPECT_EQ(a.parts(), (std::vector<array_part>{{device_id{}, 0, 100}}));
  launch<array_step>(m, {.strategy = balance::static_equal}, range(100), a, 1).wait();
  EXPECT_EQ(a.parts(), (std::vector<array_part>{{device_id{0}, 0, 50}, {device_id{1}, 50, 50}}));
  EXPECT_EQ(a.traffic().host_to_device, 400u);
  EXPECT_EQ(a.traffic().copies, 2u);
  launch<array_step>(m, {.strategy = balance::static_equal}, range(100), a, 1).wait();
  EXPECT_EQ(a.traffic().copies, 2u) << "nothing moved again";
  launch<array_step>(m, {.devices = {.ids = {device_id{1}}}}, range(100), a, 1).wait();
  EXPECT_EQ(a.parts(), (std::vector<array_part>{{device_id{1}, 0, 100}}));
  EXPECT_EQ(a.traffic().between_devices, 200u) << "half of it came from the other device";
}

TEST(array, reports_transfers_of_what_had_been_there) {
  const machine m = samples::play(samples::wired(2));
  array<std::int32_t> a{m, ramp(100)};
  array<std::int32_t> out{m, 100};
  const std::int64_t n = 100;
  launch<array_blend>(m, {.strategy = balance::static_equal}, range(n), a, out, n).wait();
  EXPECT_EQ(a.traffic().redundant, 0u);
  a.free_replicas();  // the host still has it all
  EXPECT_EQ(a.parts(), (std::vector<array_part>{{device_id{}, 0, 100}}));
  launch<array_blend>(m, {.strategy = balance::static_equal}, range(n), a, out, n).wait();
  EXPECT_EQ(a.traffic().redundant, 440u) << "both devices got their half and five neighbours again";
}

TEST(array, follows_random_programs_of_launches_reads_and_writes) {
  std::mt19937 random{11};
  for (int round = 0; round < 30; ++round) {
    const int devices = 1 + round % 4;
    const machine m = samples::play(samples::wired(devices));
    const std::int64_t n = 1 + static_cast<std::int64_t>(random() % 300);
    auto x = ramp(static_cast<std::size_t>(n));
    std::vector<std::int32_t> y(x.size(), 7);
    array<std::int32_t> a{m, x};
    array<std::int32_t> b{m, y.size(), 7};
    std::vector<weft::launch_run> runs;
    for (int step = 0; step < 25; ++step) {
      weft::spread_options options;
      constexpr balance strategies[] = {balance::automatic, balance::static_equal, balance::guided, balance::dynamic,
                                        balance::work_stealing};
      options.strategy = strategies[random() % 5];
      options.keep_on_device = random() % 5 != 0;
      options.peer_to_peer = random() % 4 != 0;
      if (random() % 3 == 0)
        options.devices.ids = {device_id{static_cast<int>(random() % static_cast<unsigned>(devices))}};
      switch (random() % 6) {
        case 0:
        case 1:
        case 2:
          runs.push_back(launch<array_step>(m, options, range(n), a, step));
          for (auto& v : x)
            v = static_cast<std::int32_t>(static_cast<std::uint32_t>(v) * 3u + static_cast<std::uint32_t>(step));
          break;
        case 3:
          runs.push_back(launch<array_blend>(m, options, range(n), a, b, n));
          for (std::int64_t i = 0; i < n; ++i) {
            const auto at = [&](std::int64_t k) {
              return static_cast<std::uint32_t>(x[static_cast<std::size_t>(std::clamp<std::int64_t>(k, 0, n - 1))]);
            };
            y[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(at(i - 5) - at(i + 5));
          }
          break;
        case 4: {
          const std::size_t first = random() % x.size();
          std::vector<std::int32_t> some(1 + random() % (x.size() - first), step);
          b.write(some, first);
          std::copy(some.begin(), some.end(), y.begin() + static_cast<std::ptrdiff_t>(first));
          std::swap(a, b);
          std::swap(x, y);
          break;
        }
        default:
          ASSERT_EQ(a.host(), x) << "round " << round << ", step " << step;
          if (random() % 2 == 0) a.free_replicas();
      }
    }
    ASSERT_EQ(a.host(), x) << "round " << round;
    ASSERT_EQ(b.host(), y) << "round " << round;
  }
}

WEFT_KERNEL(array_first, (WEFT_IN(int32_t) values, WEFT_OUT(int32_t) to), { to[i] = values[i]; });

TEST(array, written_and_brought_element_by_element_keeps_no_account_of_it) {
  const machine m = samples::play(samples::wired(1));
  constexpr std::size_t elements = 4'000;
  array<std::int32_t> values{m, std::vector<std::int32_t>(elements, 0)};
  array<std::int32_t> seen{m, elements};
  const auto all = range(static_cast<std::int64_t>(elements));
  launch<array_first>(m, all, values, seen).wait();
  const auto in_use = [] { return static_cast<std::size_t>(::mallinfo2().uordblks); };
  const std::size_t before = in_use();
  for (std::size_t i = 0; i < elements; i += 2) {  // every other one: what has been brought does not join up
    values.write(std::vector<std::int32_t>{7}, i);
    launch<array_first>(m, all, values, seen).wait();
  }
  EXPECT_LT(in_use(), before + 50 * elements) << "a finished copy is forgotten";
}

}  // namespace array_test
