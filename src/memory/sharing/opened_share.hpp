// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/memory/mapping.hpp"
#include "weft/memory/opened_pool.hpp"
#include "weft/memory/shared_memory.hpp"

#include <cstddef>
#include <optional>

namespace weft::detail {

/// What open() made, in one of three ways.
class opened_share {
 public:
  mapping blocks;
  std::optional<opened_pool> pool;
  opened_memory<std::byte> memory;  // of the pool, or an allocation
};

}  // namespace weft::detail
