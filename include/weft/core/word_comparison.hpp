// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

/// What a stream waits for in a word w of memory, given a value v of the same size. Both are unsigned.
enum class word_comparison : std::uint8_t {
  greater_equal,  // w - v, as a signed number, is not negative: cyclic, so that a counter may wrap around
  equal,          // w == v
  bits_any,       // (w & v) != 0
  nor,            // ~(w | v) != 0
};
[[nodiscard]] std::string_view to_string(word_comparison comparison);

}  // namespace weft
