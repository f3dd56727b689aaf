// SPDX-License-Identifier: Apache-2.0
#include "weft/core/access_right.hpp"

namespace weft {

std::string_view to_string(access_right right) {
  switch (right) {
    case access_right::none:
      return "none";
    case access_right::read:
      return "read";
    case access_right::read_write:
      return "read_write";
  }
  return "none";
}

}  // namespace weft
