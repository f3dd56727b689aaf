// SPDX-License-Identifier: Apache-2.0
// NVIDIA's half of this backend: the driver of CUDA as a table, and what differs from other vendors.
#pragma once

#include "backends/gpu/driver/driver.hpp"
#include "backends/gpu/driver/vendor.hpp"

#include <memory>
#include <string>

namespace weft::gpu {

inline constexpr int oldest_cuda = 12000;  // 12.0, as cuDriverGetVersion says it

[[nodiscard]] const vendor& cuda();

/// The driver of a library, initialised, which stays open as long as the process: drivers do not like to be unloaded.
/// Errors: unsupported, with the reason and what to do, when it is not there, is a stub, is too old, lacks a function,
/// or has no device.
[[nodiscard]] result<std::shared_ptr<const driver>> load_cuda(const std::string& library);

}  // namespace weft::gpu
