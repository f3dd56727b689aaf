// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/rank_group.hpp"

namespace weft::bench {

/// The library itself: one process for each rank, a rank_communicator in each, arrays in symmetric buffers.
[[nodiscard]] group_plan weft_ranks(int ranks, bool pinned);

}  // namespace weft::bench
