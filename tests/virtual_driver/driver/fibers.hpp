// SPDX-License-Identifier: Apache-2.0
// Threads of a block that wait for each other: a stack each, switched at barriers, on the thread of the stream.
#pragma once

#include "virtual_driver/driver/device_side.h"

#include <cstddef>
#include <span>

namespace weft::virtual_cuda {

/// Runs `body` once for every thread of the launch: block after block, or all blocks at once where they may wait for
/// each other. `now` is where the kernel's code looks up who it is; `shared` is where its shared variables lie, of
/// which each of several blocks has its own.
void run_fibers(const weft_virtual_launch& shape, bool all_blocks, weft_virtual_thread* now,
                std::span<std::byte> shared, void (*body)(void**), void** arguments);

/// What a kernel calls; works inside run_fibers(), and outside as far as one thread at a time can do it.
[[nodiscard]] const weft_virtual_services& services();

/// Dynamic shared memory of a kernel without fibers.
void lend_shared(void* memory);

}  // namespace weft::virtual_cuda
