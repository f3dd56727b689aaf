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

std::optional<int> performance_rank_of(backend_kind vendor, int native_rank) {
  if (native_rank < 0) return std::nullopt;
  if (vendor != backend_kind::hip) return native_rank;
  // HSA's link types, of which the number is no rank: HyperTransport, QPI, PCIe, InfiniBand, XGMI
  switch (native_rank) {
    case 4:
      return 0;
    case 0:
    case 1:
      return 1;
    case 2:
      return 2;
    case 3:
      return 3;
    default:
      return std::nullopt;
  }
}

}  // namespace weft
