// SPDX-License-Identifier: Apache-2.0
#include "weft/core/device_description.hpp"

namespace weft {

std::string_view to_string(backend_kind kind) {
  switch (kind) {
    case backend_kind::host:
      return "host";
    case backend_kind::cuda:
      return "cuda";
    case backend_kind::hip:
      return "hip";
    case backend_kind::opencl:
      return "opencl";
    case backend_kind::null:
      return "null";
    case backend_kind::mixed:
      return "mixed";
  }
  return "null";
}

}  // namespace weft
