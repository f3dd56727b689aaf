// SPDX-License-Identifier: Apache-2.0
// The pattern that is written over a pair of devices to see whether it arrives.
#pragma once

#include "weft/core/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weft::detail {

/// Different at every place and for every pair, so that stale or shifted data is seen.
[[nodiscard]] std::uint64_t pattern_word(std::size_t place, device_id from, device_id to) noexcept;

/// The first bad byte, what it should be and what it is; empty where there is none.
[[nodiscard]] std::string first_difference(std::span<const std::uint64_t> expected, std::span<const std::uint64_t> got);

}  // namespace weft::detail
