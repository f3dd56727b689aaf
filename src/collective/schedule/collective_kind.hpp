// SPDX-License-Identifier: Apache-2.0
// Properties of the collectives, by kind.
#pragma once

#include "weft/collective/schedule.hpp"

namespace weft::detail {

[[nodiscard]] constexpr bool reduces(collective what) noexcept {
  return what == collective::all_reduce || what == collective::reduce || what == collective::reduce_scatter;
}

[[nodiscard]] constexpr bool has_root(collective what) noexcept {
  return what == collective::reduce || what == collective::broadcast || what == collective::scatter ||
         what == collective::gather;
}

}  // namespace weft::detail
