// SPDX-License-Identifier: Apache-2.0
// Compute units of their own for the parts of a GPU: masks of compute units on streams, behind the functions that CUDA
// has for green contexts.
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"

namespace weft::gpu::amd {

void fill_partitions(driver_functions& cu);

}  // namespace weft::gpu::amd
