// SPDX-License-Identifier: Apache-2.0
#include "channel/rings/crc32c.hpp"

#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <string_view>

namespace crc32c_test {

using weft::detail::crc32c;
using weft::detail::crc32c_by_table;

std::uint32_t of(std::string_view text) { return crc32c(reinterpret_cast<const std::byte*>(text.data()), text.size()); }

TEST(crc32c, gives_the_values_of_its_standard) {
  EXPECT_EQ(of(""), 0U);
  EXPECT_EQ(of("123456789"), 0xe3069283U);
  EXPECT_EQ(of(std::string(32, '\0')), 0x8a9136aaU);
}

TEST(crc32c, is_the_same_by_instruction_and_by_table) {
  const auto data = samples::pattern(5000, 3);
  const auto* raw = reinterpret_cast<const std::byte*>(data.data());
  for (std::size_t size = 0; size < 300; ++size) {
    EXPECT_EQ(crc32c(raw + size % 9, size), crc32c_by_table(raw + size % 9, size)) << size;
  }
  EXPECT_EQ(crc32c(raw, data.size()), crc32c_by_table(raw, data.size()));
}

}  // namespace crc32c_test
