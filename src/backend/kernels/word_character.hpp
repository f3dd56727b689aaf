// SPDX-License-Identifier: Apache-2.0
// What names are made of in the languages of kernels.
#pragma once

namespace weft {

[[nodiscard]] constexpr bool is_word_character(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace weft
