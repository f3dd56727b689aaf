// SPDX-License-Identifier: Apache-2.0
#include "support/samples.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace verified_copy_test {

weft::machine pair_that_corrupts(bool corrupts) {
  weft::machine_options options;
  options.machine = weft::value_or_raise(weft::load_topology("pair_nvlink"));
  if (corrupts) {
    weft::topology_fault fault;
    fault.what = weft::topology_fault::kind::corrupts;
    fault.from = weft::device_id{0};
    fault.to = weft::device_id{1};
    fault.nth = 0;
    options.machine->faults.push_back(fault);
  }
  options.verify_peers = weft::peer_verification::never;  // a link that changes data would not be used
  return weft::machine{options};
}

std::vector<std::uint32_t> pattern(std::size_t n) {
  std::vector<std::uint32_t> made(n);
  for (std::size_t i = 0; i < n; ++i) made[i] = static_cast<std::uint32_t>(i * 2654435761U);
  return made;
}

weft::copy_options checked(weft::verification how) {
  weft::copy_options options;
  options.verify = how;
  return options;
}

TEST(verified_copy, a_verified_copy_of_good_data_succeeds_on_every_path_and_in_boxes) {
  const weft::machine m = pair_that_corrupts(false);
  const auto data = pattern((std::size_t{3} << 20) / 4 + 5);
  const weft::buffer<std::uint32_t> a{m[0], data.size()}, b{m[1], data.size()};
  weft::copy(a, data, checked(weft::verification::full));
  weft::copy(b, a, checked(weft::verification::full));
  const auto leases = weft::enable_all_peers(m);
  weft::copy(b, a, checked(weft::verification::sampled));
  weft::box<std::uint32_t> to{b.span(), {}, 3, 50, 0}, from{a.span(), {}, 1, 40, 0};
  weft::copy_box(to, from, {30, 20}, checked(weft::verification::full));
}

TEST(verified_copy, reads_each_side_as_a_device_that_may) {
  const weft::machine m = pair_that_corrupts(false);
  constexpr weft::device_id gpu0{0}, gpu1{1};
  const auto data = pattern(100'000);
  const weft::bytes size{data.size() * 4};
  weft::mapping a{weft::physical_block{m[0], size}}, b{weft::physical_block{m[1], size}};
  a.grant(gpu0, weft::access_right::read_write);
  b.grant(gpu1, weft::access_right::read_write);
  const auto src = a.span<std::uint32_t>().first(data.size()), dst = b.span<std::uint32_t>().first(data.size());
  weft::copy(src, data);
  EXPECT_EQ(weft::copy(dst, src, checked(weft::verification::full)).path, weft::copy_path::staged);
  a.grant({{gpu0, weft::access_right::none}, {gpu1, weft::access_right::read}});
  EXPECT_EQ(weft::copy(dst, src, checked(weft::verification::full)).path, weft::copy_path::direct)
      << "gpu1 has both rights";
}

TEST(verified_copy, names_the_first_byte_that_a_link_changed) {
  const weft::machine m = pair_that_corrupts(true);
  const auto leases = weft::enable_all_peers(m);
  const auto data = pattern(25000);
  const weft::buffer<std::uint32_t> a{m[0], data.size()}, b{m[1], data.size()};
  weft::copy(a, data);
  try {
    weft::copy(b, a, checked(weft::verification::full));
    FAIL() << "the corruption was not seen";
  } catch (const weft::error_exception& seen) {
    EXPECT_EQ(seen.code(), weft::errc::corrupt);
    std::vector<std::uint32_t> got(data.size());
    weft::copy(got, b);
    const auto bad = static_cast<std::size_t>(std::mismatch(got.begin(), got.end(), data.begin()).first - got.begin());
    ASSERT_LT(bad, got.size());
    const std::string text = seen.what();
    const auto at = text.find("at byte ");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_EQ(std::stoul(text.substr(at + 8)) / 4, bad) << text;
  }
  EXPECT_NO_THROW(weft::copy(b, a)) << "without verification nobody looks";
}

TEST(verified_copy, a_sample_is_the_whole_first_middle_and_last_mebibyte) {
  const weft::machine m = samples::play(samples::wired(1));
  const auto read_back_of = [&](std::size_t size) {
    const samples::data source(size);
    const samples::byte_buffer memory{m[0], size};
    const auto moved = [&] {
      const auto links = m.traffic().bytes_on_link;
      return std::accumulate(links.begin(), links.end(), std::uint64_t{0});
    };
    const auto before = moved();
    weft::copy(memory, source, checked(weft::verification::sampled));
    return moved() - before - size;
  };
  constexpr std::size_t mib = std::size_t{1} << 20;
  EXPECT_EQ(read_back_of(1000), 1000U);
  EXPECT_EQ(read_back_of(3 * mib), 3 * mib);
  for (const std::size_t size : {8 * mib, 8 * mib + 8, 9 * mib - 1}) {
    EXPECT_GE(read_back_of(size), 3 * mib) << size;
    EXPECT_LT(read_back_of(size), 6 * mib) << size << ": no more than two pieces for each";
  }
}

TEST(verified_copy, a_verified_copy_in_a_stream_is_refused) {
  const weft::machine m = pair_that_corrupts(false);
  const weft::buffer<int> a{m[0], 4}, b{m[1], 4};
  const weft::stream order{m[0]};
  EXPECT_THROW(weft::copy(order, b, a, checked(weft::verification::full)), weft::error_exception);
}

TEST(link_threshold, keeps_a_copy_off_a_link_that_is_too_slow_and_says_so) {
  const weft::machine m = pair_that_corrupts(false);
  const auto leases = weft::enable_all_peers(m);
  const weft::buffer<int> a{m[0], 4096}, b{m[1], 4096};
  weft::copy_options options;
  EXPECT_EQ(weft::copy(b, a, options).path, weft::copy_path::direct);
  options.route.min_bytes_per_second = 1e15;
  EXPECT_EQ(weft::copy(b, a, options).path, weft::copy_path::staged);
  options.route = {};
  options.route.max_latency = std::chrono::nanoseconds{1};
  EXPECT_EQ(weft::copy(b, a, options).path, weft::copy_path::staged);
  options.route.path = weft::copy_path::direct;
  try {
    weft::copy(b, a, options);
    FAIL() << "a direct copy over a link below the threshold";
  } catch (const weft::error_exception& refused) {
    EXPECT_EQ(refused.code(), weft::errc::peer_unsupported);
    EXPECT_NE(std::string{refused.what()}.find("slower than was asked for"), std::string::npos);
  }
}

}  // namespace verified_copy_test
