// SPDX-License-Identifier: Apache-2.0
// A set of at most 64 ranks is a word: this is the set of one.
#pragma once

#include <cstdint>

namespace weft::detail {

[[nodiscard]] constexpr std::uint64_t bit(int rank) noexcept { return std::uint64_t{1} << rank; }

}  // namespace weft::detail
