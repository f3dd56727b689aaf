// SPDX-License-Identifier: Apache-2.0
#include "weft/core/word_comparison.hpp"

namespace weft {

std::string_view to_string(word_comparison comparison) {
  switch (comparison) {
    case word_comparison::greater_equal:
      return "greater_equal";
    case word_comparison::equal:
      return "equal";
    case word_comparison::bits_any:
      return "bits_any";
    case word_comparison::nor:
      return "nor";
  }
  return "greater_equal";
}

}  // namespace weft
