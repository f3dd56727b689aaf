// SPDX-License-Identifier: Apache-2.0
// A set of at most 64 ranks is a word: this is the set of one. Ranks from 64 on, which only the cost of a schedule
// knows, are in no set.
#pragma once

#include <cstdint>

namespace weft::detail {

[[nodiscard]] constexpr std::uint64_t bit(int rank) noexcept { return rank < 64 ? std::uint64_t{1} << rank : 0; }

/// The ranks of a communicator of so many.
[[nodiscard]] constexpr std::uint64_t all_of(int ranks) noexcept {
  return ranks == 64 ? ~std::uint64_t{0} : bit(ranks) - 1;
}

}  // namespace weft::detail
