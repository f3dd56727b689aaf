// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft {

/// How a read of a multicast object combines the replicas.
enum class multicast_reduction : std::uint8_t { sum, min, max };

}  // namespace weft
