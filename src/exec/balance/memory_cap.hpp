// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/balance/split.hpp"

#include <cstdint>
#include <optional>

namespace weft {

/// The memory of one device, in bytes, as a launch finds it.
struct memory_room {
  std::uint64_t free = 0;
  std::optional<std::uint64_t> limit;  // what the caller allows the launch; empty: all but a tenth of what is free
};

/// What a launch needs: each item in all of its arguments, and what is there once whatever the share (whole arguments,
/// halos).
struct memory_need {
  std::uint64_t bytes_per_item = 0;
  std::uint64_t bytes_once = 0;
};

/// How many items fit: the cap of a split. A tenth of the free memory is left for others and for fragments.
/// Nothing free is a cap of 0: the others take the work.
/// Errors: out_of_memory – the caller's limit does not hold one granule, the device named with both sizes.
[[nodiscard]] result<std::int64_t> items_that_fit(device_id device, const memory_room& room, const memory_need& need,
                                                  std::int64_t granularity = 1);

}  // namespace weft
