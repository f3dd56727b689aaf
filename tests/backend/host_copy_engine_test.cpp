// SPDX-License-Identifier: Apache-2.0
#include "backends/host/engine/copy_engine.hpp"
#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace host_copy_engine_test {

using samples::data;

constexpr std::size_t guard = 128;
constexpr std::size_t mib = std::size_t{1} << 20;

/// One copy into memory of `whole` bytes, between places that are `to` and `from` bytes past an alignment of 4096, with
/// guards around.
testing::AssertionResult moves(weft::host::copy_engine& engine, std::size_t size, std::size_t to, std::size_t from,
                               std::uint64_t seed, std::size_t whole) {
  const data source = samples::pattern(from + size + 1, seed);
  std::vector<std::uint8_t> space(to + size + 2 * guard + 4096, 0x5c);
  const auto base = (reinterpret_cast<std::uintptr_t>(space.data()) + guard + 4095) / 4096 * 4096 -
                    reinterpret_cast<std::uintptr_t>(space.data());
  space.resize(base + to + size + guard, 0x5c);
  std::uint8_t* const target = space.data() + base + to;
  engine.copy(target, source.data() + from, size, whole);
  if (std::memcmp(target, source.data() + from, size) != 0) {
    std::size_t bad = 0;
    while (target[bad] == source[from + bad]) ++bad;
    return testing::AssertionFailure() << size << " bytes to +" << to << " from +" << from << ": first bad offset "
                                       << bad << ", expected " << int{source[from + bad]} << ", got "
                                       << int{target[bad]};
  }
  for (std::size_t i = 0; i < guard; ++i) {
    if (target[size + i] != 0x5c || *(target - 1 - i) != 0x5c) {
      return testing::AssertionFailure() << size << " bytes to +" << to << ": touched what lies beside";
    }
  }
  return testing::AssertionSuccess();
}

TEST(copy_engine, moves_every_size_around_its_thresholds_from_and_to_any_alignment) {
  constexpr std::size_t sizes[] = {
      0,           1,         63,           64,          65,          255,         256,
      4095,        4097,      mib / 8 - 1,  mib / 8,     mib / 8 + 1, mib - 1,     mib,
      mib + 1,     mib + 255, 2 * mib + 77, 4 * mib - 1, 4 * mib,     4 * mib + 1, 4 * mib + 8191,
      9 * mib + 13};
  weft::host::copy_engine engine;
  std::uint64_t seed = 0;
  for (const std::size_t size : sizes) {
    const bool small = size < 2 * mib;
    for (const std::size_t to : {std::size_t{0}, std::size_t{1}, std::size_t{63}}) {
      for (const std::size_t from : {std::size_t{0}, std::size_t{7}, std::size_t{64}}) {
        if (!small && to != from && from != 7) continue;  // large ones cost time
        ASSERT_TRUE(moves(engine, size, to, from, ++seed, size));
        ASSERT_TRUE(moves(engine, size, to, from, ++seed, 16 * mib)) << "as a piece of a buffer that fits no cache";
      }
    }
  }
}

TEST(copy_engine, serves_several_callers_at_once) {
  weft::host::copy_engine engine;
  std::vector<std::thread> callers;
  std::vector<testing::AssertionResult> results(4, testing::AssertionSuccess());
  for (std::size_t t = 0; t < results.size(); ++t) {
    callers.emplace_back([&, t] {
      for (std::size_t i = 0; i < 12; ++i) {
        const std::size_t size = (i % 3 == 0 ? 4 * mib : mib / 2) + t * 333 + i;
        auto done = moves(engine, size, i % 5, t, t * 100 + i, i % 2 == 0 ? size : 16 * mib);
        if (!done) results[t] = done;
      }
    });
  }
  for (std::thread& t : callers) t.join();
  for (const auto& r : results) EXPECT_TRUE(r);
}

TEST(copy_engine, starts_and_ends_with_and_without_its_helper) {
  const data source = samples::pattern(5 * mib, 3);
  data target(source.size());
  for (int round = 0; round < 20; ++round) {
    weft::host::copy_engine engine;
    if (round % 2 == 0) engine.copy(target.data(), source.data(), source.size());
  }
  EXPECT_TRUE(samples::same(target, source));
}

}  // namespace host_copy_engine_test
