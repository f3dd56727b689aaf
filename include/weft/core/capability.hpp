// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace weft {

/// What a device can do; a set of these is a bit mask.
enum class capability : std::uint32_t {
  none = 0,
  peer_to_peer = 1U << 0,    // may map the memory of at least one other device
  unified_memory = 1U << 1,  // one memory that the host and every device see
  native_atomics = 1U << 2,  // atomics over at least one peer link are native
  pinned_memory = 1U << 3,   // page-locked host memory that copies read directly
  timing = 1U << 4,          // events carry device times
  priorities = 1U << 5,      // streams have priorities
  kernels = 1U << 6,         // runs kernels
};

[[nodiscard]] constexpr capability operator|(capability a, capability b) {
  return static_cast<capability>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
[[nodiscard]] constexpr capability operator&(capability a, capability b) {
  return static_cast<capability>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}
/// True if every bit of `wanted` is in `have`.
[[nodiscard]] constexpr bool has_all(capability have, capability wanted) { return (have & wanted) == wanted; }

/// Names of the set bits in a fixed order: "peer_to_peer", "unified_memory", …
[[nodiscard]] std::vector<std::string_view> names_of(capability set);

}  // namespace weft
