// SPDX-License-Identifier: Apache-2.0
// Addresses of the driver, which are numbers, as pointers.
#pragma once

#include "backends/gpu/driver/driver_types.hpp"

#include <cstddef>
#include <cstdint>

namespace weft::gpu {

[[nodiscard]] inline std::byte* pointer(CUdeviceptr address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace weft::gpu
