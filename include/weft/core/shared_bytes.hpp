// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

namespace weft {

inline constexpr std::size_t shared_bytes_size = 64;
/// A driver's handle of something shared between processes: opaque, and copied by any byte channel.
using shared_bytes = std::array<std::byte, shared_bytes_size>;

}  // namespace weft
