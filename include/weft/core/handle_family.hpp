// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft {

/// Whose rules memory follows that is shared by a handle: that of allocations, or that of a pool.
enum class handle_family : std::uint8_t { allocation, pool };

}  // namespace weft
