// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/rank_group.hpp"

#include <string>
#include <vector>

namespace weft::bench {

/// The configurations of Open MPI and Gloo that were found fastest at some size, for so many ranks. `programs` is the
/// folder with peer_mpi and peer_gloo; one that is missing is named in its plan.
[[nodiscard]] std::vector<group_plan> peer_plans(int ranks, const std::string& programs);

}  // namespace weft::bench
