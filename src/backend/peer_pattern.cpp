// SPDX-License-Identifier: Apache-2.0
#include "backend/peer_pattern.hpp"

#include <algorithm>
#include <cstdio>

namespace weft::detail {

std::uint64_t pattern_word(std::size_t place, device_id from, device_id to) noexcept {
  std::uint64_t x = (place + 1) * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(from.value()) * 0x10001 +
                    static_cast<std::uint64_t>(to.value());
  x ^= x >> 31;
  return x * 0xbf58476d1ce4e5b9;
}

std::string first_difference(std::span<const std::uint64_t> expected, std::span<const std::uint64_t> got) {
  const auto wanted = std::as_bytes(expected);
  const auto seen = std::as_bytes(got);
  const auto bad = std::mismatch(seen.begin(), seen.end(), wanted.begin());
  if (bad.first == seen.end()) return {};
  char text[64];
  std::snprintf(text, sizeof text, "at byte %td expected 0x%02x, got 0x%02x", bad.first - seen.begin(),
                std::to_integer<unsigned>(*bad.second), std::to_integer<unsigned>(*bad.first));
  return text;
}

}  // namespace weft::detail
