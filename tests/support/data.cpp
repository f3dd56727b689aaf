// SPDX-License-Identifier: Apache-2.0
#include "support/samples.hpp"

namespace samples {

data pattern(std::size_t count, std::uint64_t seed) {
  data made(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ULL + seed * 0x2545f4914f6cdd1dULL;
    x ^= x >> 29;
    made[i] = static_cast<std::uint8_t>((x * 0xbf58476d1ce4e5b9ULL) >> 56);
  }
  return made;
}

testing::AssertionResult same(const data& got, const data& expected) { return each_is_of_one(got, expected, expected); }

testing::AssertionResult each_is_of_one(const data& got, const data& one, const data& other) {
  if (got.size() != one.size()) return testing::AssertionFailure() << got.size() << " bytes, expected " << one.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == one[i] || got[i] == other[i]) continue;
    return testing::AssertionFailure() << "first bad offset " << i << ": expected " << int{one[i]} << ", got "
                                       << int{got[i]};
  }
  return testing::AssertionSuccess();
}

}  // namespace samples
