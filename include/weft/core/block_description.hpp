// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/ids.hpp"

#include <cstdint>

namespace weft {

/// Names memory of a device that has no address of its own. 0 is no block.
enum class block_id : std::uint64_t { none = 0 };

/// Sizes and addresses of blocks are multiples of `minimum`; those of `recommended` run best.
struct block_granularity {
  bytes minimum;
  bytes recommended;
};

struct block_description {
  device_id device;  // whose memory it is
  bytes size;
  bool shareable = false;
  bool imported = false;  // made by another process, and counted there
};

}  // namespace weft
