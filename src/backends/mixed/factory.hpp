// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/backend.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

namespace weft::mixed {

/// As many as the top bits of a handle can tell apart.
inline constexpr std::size_t most_backends = 15;

/// Several backends as one. They were opened one after the other with the first device ids that follow, all of them
/// with this epoch. Throws std::system_error where its thread cannot be started.
[[nodiscard]] std::unique_ptr<backend> join(std::vector<std::unique_ptr<backend>> parts, topology layout,
                                            std::chrono::steady_clock::time_point epoch);

}  // namespace weft::mixed
