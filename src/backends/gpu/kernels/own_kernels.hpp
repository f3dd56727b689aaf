// SPDX-License-Identifier: Apache-2.0
// The kernels that the backend launches for itself, as texts for the run-time compiler like those of users.
#pragma once

#include "weft/backend/backend.hpp"

#include <memory>
#include <string>

namespace weft::gpu::own_kernels {

/// Fills memory with 16 bytes again and again: (address, its size in bytes, and the two halves of what a line of 16
/// bytes at a multiple of 16 gets).
[[nodiscard]] const std::shared_ptr<const kernel_code>& fill();

// Through the address of a multicast object, where nothing but these instructions is allowed: compute capability 9.0.

/// (Address behind the object's, source, bytes), any of them unaligned.
[[nodiscard]] const std::shared_ptr<const kernel_code>& multicast_store();
/// (Destination, address behind the object's, elements), both aligned to an element.
/// Null where the hardware has no such instruction: elements of 8 and 16 bits; the least and the largest of floats.
[[nodiscard]] const std::shared_ptr<const kernel_code>& multicast_load(element_type type, multicast_reduction how);

}  // namespace weft::gpu::own_kernels
