// SPDX-License-Identifier: Apache-2.0
// A handle of one of several backends: the number of the backend in the top bits, its own handle below. Those of the
// first backend are what they were.
#pragma once

#include "weft/core/result.hpp"

#include <cstddef>
#include <cstdint>

namespace weft::detail {

inline constexpr unsigned part_shift = 60;
inline constexpr std::uint64_t own_mask = (std::uint64_t{1} << part_shift) - 1;

template <class Handle>
[[nodiscard]] constexpr std::size_t part_in(Handle handle) {
  return static_cast<std::size_t>(static_cast<std::uint64_t>(handle) >> part_shift);
}

template <class Handle>
[[nodiscard]] constexpr Handle untagged(Handle handle) {
  return Handle{static_cast<std::uint64_t>(handle) & own_mask};
}

template <class Handle>
[[nodiscard]] constexpr Handle tagged(Handle own, std::size_t part) {
  return Handle{static_cast<std::uint64_t>(own) | static_cast<std::uint64_t>(part) << part_shift};
}

template <class Handle>
[[nodiscard]] result<Handle> tagged(result<Handle> own, std::size_t part) {
  if (!own) return own;
  return tagged(*own, part);
}

}  // namespace weft::detail
