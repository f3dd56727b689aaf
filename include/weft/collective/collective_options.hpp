// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/collective/collective_cost.hpp"
#include "weft/processes/process_group.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

namespace weft {

/// What one call of a collective may say. `order` is of those that combine, `root` of those that have one; the others
/// do not look at them, nor send(), exchanges and barrier() at `algorithm` and `counts`.
struct collective_options {
  collective_algorithm algorithm = collective_algorithm::automatic;
  reduction_order order = reduction_order::any;
  rank root{0};
  /// The caller's, one for each rank that it drives: the collective begins after what they hold and ends before what
  /// comes next in them. Without them: the default streams.
  std::span<const stream> streams{};
  /// Elements of each block where blocks differ. all_to_all: [from * size + to]. Of the others a rank_communicator
  /// takes one for each rank; a communicator sees every rank's memory, and takes none.
  std::span<const std::int64_t> counts{};
  std::optional<std::chrono::nanoseconds> timeout{};  // instead of the communicator's
};

/// How long a collective may take before the ranks that are missing are named, unless its call says otherwise.
inline constexpr std::chrono::seconds collective_timeout{30};

}  // namespace weft
