// SPDX-License-Identifier: Apache-2.0
// How many single faults a test plays, for the table of scripts/attack: kills, writes of garbage, damaged files.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace samples {

/// Adds to what the running test has played; a test that says nothing plays one.
inline void played_faults(std::uint64_t count) {
  static const testing::TestInfo* of = nullptr;
  static std::uint64_t so_far = 0;
  const testing::TestInfo* now = testing::UnitTest::GetInstance()->current_test_info();
  so_far = (now == of ? so_far : 0) + count;
  of = now;
  testing::Test::RecordProperty("faults", std::to_string(so_far));
}

}  // namespace samples
