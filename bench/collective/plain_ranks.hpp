// SPDX-License-Identifier: Apache-2.0
// What processes that share their arrays can do at best, without types, errors, deadlines or checks: where the
// library's own figures could go. Not a peer.
#pragma once

#include "collective/rank_group.hpp"

#include <cstdint>

namespace weft::bench {

/// For 2, 3 or 4 ranks and arrays of up to `largest` bytes each.
[[nodiscard]] group_plan plain_ranks(int ranks, bool pinned, std::uint64_t largest);

}  // namespace weft::bench
