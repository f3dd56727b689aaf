// SPDX-License-Identifier: Apache-2.0
// Queues and copies between the ranks of a world, pair by pair.
#pragma once

#include "bench_row.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace weft::tool {

enum class rank_work : std::uint8_t { queues, copies };

struct rank_pair_plan {
  rank_work what = rank_work::queues;
  std::vector<std::uint64_t> sizes;
  int samples = 15;
  row_budget budget;
  std::string output;
};

/// As a rank, like all others: rank 0 prints. Errors: failure.
[[nodiscard]] exit_code run_rank_pairs(session& run, const rank_pair_plan& plan);

}  // namespace weft::tool
