// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/scatter.hpp"

#include "support/samples.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace scatter_test {

using samples::byte_buffer;
using samples::data;
using samples::error_of;
using weft::errc;
using weft::machine;

TEST(even_split, gives_every_element_to_one_part_and_differs_by_one_at_most) {
  for (std::size_t parts = 1; parts <= 9; ++parts) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, parts - 1, parts, parts + 1, std::size_t{1009}}) {
      const auto shares = weft::even_split(count, parts);
      ASSERT_EQ(shares.size(), parts);
      EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), std::size_t{0}), count);
      EXPECT_LE(shares.front() - shares.back(), 1U);
      EXPECT_TRUE(std::is_sorted(shares.rbegin(), shares.rend()));
    }
  }
  EXPECT_EQ(error_of([] { static_cast<void>(weft::even_split(5, 0)); }).code, errc::invalid_argument);
}

std::vector<byte_buffer> parts_on(const machine& m, const std::vector<std::size_t>& shares) {
  std::vector<byte_buffer> parts;
  for (std::size_t i = 0; i < shares.size(); ++i)
    parts.emplace_back(m[static_cast<int>(i) % m.device_count()], shares[i]);
  return parts;
}

TEST(scatter, and_gather_move_every_element_once_for_any_number_of_devices_and_length) {
  std::mt19937_64 random{3};
  for (int devices = 1; devices <= 9; ++devices) {
    const machine m = samples::play(samples::wired(devices));
    std::vector<weft::peer_access> leases;
    if (devices % 2 == 0) leases = weft::enable_all_peers(m);  // direct for some, staged for others
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, static_cast<std::size_t>(devices) + 1, std::size_t{70'001}}) {
      const data whole = samples::pattern(count, count + static_cast<std::size_t>(devices));
      // even, and by chance with empty parts
      std::vector<std::vector<std::size_t>> splits{weft::even_split(count, static_cast<std::size_t>(devices))};
      std::vector<std::size_t> uneven(static_cast<std::size_t>(devices), 0);
      for (std::size_t i = 0, rest = count; i < uneven.size(); ++i) {
        uneven[i] = i + 1 == uneven.size() ? rest : random() % (rest + 1);
        rest -= uneven[i];
      }
      splits.push_back(uneven);
      for (const auto& shares : splits) {
        const auto parts = parts_on(m, shares);
        weft::scatter(std::span{parts}, whole);
        std::size_t offset = 0;
        for (const byte_buffer& p : parts) {
          const data expected(whole.begin() + static_cast<std::ptrdiff_t>(offset),
                              whole.begin() + static_cast<std::ptrdiff_t>(offset + p.size()));
          ASSERT_TRUE(samples::same(samples::contents(p), expected)) << devices << " devices, part at " << offset;
          offset += p.size();
        }
        data back(count, 0xa5);
        weft::gather(back, std::span{parts});
        ASSERT_TRUE(samples::same(back, whole)) << devices << " devices to the host";
        const byte_buffer on_device{m[devices - 1], count};
        weft::gather(on_device, std::span{parts});
        ASSERT_TRUE(samples::same(samples::contents(on_device), whole)) << devices << " devices to one of them";
        const auto again = parts_on(m, shares);
        weft::scatter(std::span{again}, on_device);
        data twice(count, 0xa5);
        weft::gather(twice, std::span{again});
        ASSERT_TRUE(samples::same(twice, whole)) << "from one device to all";
      }
    }
  }
}

TEST(replicate, gives_every_device_all_of_it) {
  const machine m = samples::play(samples::wired(5));
  const data whole = samples::pattern(33'333, 5);
  const auto parts = parts_on(m, std::vector<std::size_t>(5, whole.size()));
  weft::replicate(std::span{parts}, whole);
  for (const byte_buffer& p : parts) EXPECT_TRUE(samples::same(samples::contents(p), whole));
}

TEST(scatter, refuses_shares_that_do_not_add_up_and_moves_nothing) {
  const machine m = samples::play(samples::wired(2));
  const data whole = samples::pattern(100, 1);
  const std::vector<byte_buffer> parts = parts_on(m, {50, 49});
  for (const auto& f :
       {std::function<void()>{[&] { weft::scatter(std::span{parts}, whole); }}, std::function<void()>{[&] {
          data into(101);
          weft::gather(into, std::span{parts});
        }}}) {
    const weft::error cause = error_of(f);
    EXPECT_EQ(cause.code, errc::incompatible);
    EXPECT_NE(cause.what.find("99 elements"), std::string::npos) << cause.what;
  }
  EXPECT_EQ(weft::counters(m).host_to_device.copies, 0U);
}

TEST(scatter, and_gather_and_replicate_say_that_they_are_not_verified) {
  const machine m = samples::play(samples::wired(2));
  const auto parts = parts_on(m, {50, 50});
  data whole(100), half(50);
  const weft::copy_options checked{.verify = weft::verification::full};
  for (const auto& f : {std::function<void()>{[&] { weft::scatter(std::span{parts}, whole, checked); }},
                        std::function<void()>{[&] { weft::gather(whole, std::span{parts}, checked); }},
                        std::function<void()>{[&] { weft::replicate(std::span{parts}, half, checked); }}}) {
    const weft::error refused = error_of(f);
    EXPECT_EQ(refused.code, errc::invalid_argument);
    EXPECT_NE(refused.what.find("scatter, gather and replicate"), std::string::npos) << refused.what;
  }
}

TEST(scatter, reports_a_part_that_fails_and_ends_the_others) {
  weft::topology layout = samples::wired(3);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::copy_fails;
  fault.to = samples::gpu1;
  layout.faults.push_back(fault);
  const machine m = samples::play(layout);
  const data whole = samples::pattern(3000, 2);
  const auto parts = parts_on(m, {1000, 1000, 1000});
  EXPECT_EQ(error_of([&] { weft::scatter(std::span{parts}, whole); }).code, errc::copy_failed);
  m.synchronize();
  weft::scatter(std::span{parts}, whole);
  data back(3000);
  weft::gather(back, std::span{parts});
  EXPECT_TRUE(samples::same(back, whole));
}

}  // namespace scatter_test
