// SPDX-License-Identifier: Apache-2.0
#include "weft/core/memory_description.hpp"

namespace weft {

std::string_view to_string(memory_kind kind) {
  switch (kind) {
    case memory_kind::device:
      return "device";
    case memory_kind::pinned:
      return "pinned";
    case memory_kind::unified:
      return "unified";
    case memory_kind::adopted:
      return "adopted";
    case memory_kind::mapped:
      return "mapped";
    case memory_kind::block:
      return "block";
  }
  return "device";
}

}  // namespace weft
