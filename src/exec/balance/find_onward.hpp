// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace weft::detail {

/// The element for which `is` holds, looked for from `at` on and round; null where there is none. `at` becomes its
/// place, so that whoever asks for one after the other finds each at the first or second look.
template <class List, class Is>
[[nodiscard]] auto find_onward(List& in, std::size_t& at, Is is) -> decltype(&in[0]) {
  const std::size_t count = in.size();
  for (std::size_t looked = 0; looked < count; ++looked, ++at) {
    if (at >= count) at = 0;
    if (is(in[at])) return &in[at];
  }
  return nullptr;
}

}  // namespace weft::detail
