// SPDX-License-Identifier: Apache-2.0
// A number of a topology, which is signed since -1 is nobody, as an index.
#pragma once

#include <cstddef>

namespace weft::detail {

[[nodiscard]] constexpr std::size_t at(int number) noexcept { return static_cast<std::size_t>(number); }

}  // namespace weft::detail
