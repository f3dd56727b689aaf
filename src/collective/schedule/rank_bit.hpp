// SPDX-License-Identifier: Apache-2.0
// A set of at most 64 ranks is a word: this is the set of one.
#pragma once

#include <cstdint>

namespace weft::detail {

[[nodiscard]] constexpr std::uint64_t bit(int rank) noexcept { return std::uint64_t{1} << rank; }

/// The ranks of a communicator of so many.
[[nodiscard]] constexpr std::uint64_t all_of(int ranks) noexcept {
  return ranks == 64 ? ~std::uint64_t{0} : bit(ranks) - 1;
}

}  // namespace weft::detail
