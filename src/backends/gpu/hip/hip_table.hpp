// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/gpu/hip/hip_functions.hpp"

namespace weft::gpu::amd {

/// The library that load_hip() has opened; not to be asked for before.
[[nodiscard]] const hip_functions& hip_table();

}  // namespace weft::gpu::amd
