// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver in a table, found when it is opened: weft is linked against no CUDA.
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"
#include "weft/core/result.hpp"

#include <memory>
#include <string>

namespace weft::gpu {

inline constexpr int oldest_driver = 12000;  // 12.0, as cuDriverGetVersion says it

/// The table, and where it is from. Calls go through it: cu->cuMemAlloc(…).
struct driver : driver_functions {
  std::string library;
  int version = 0;  // 1000 times major + 10 times minor
};

/// "13.0"
[[nodiscard]] std::string version_text(int version);

/// The driver of a library, initialised, which stays open as long as the process: drivers do not like to be unloaded.
/// Errors: unsupported, with the reason and what to do, when it is not there, is a stub, is too old, lacks a function,
/// or has no device.
[[nodiscard]] result<std::shared_ptr<const driver>> load_driver(const std::string& library);

/// The same of a table that is filled already.
[[nodiscard]] result<std::shared_ptr<const driver>> start_driver(driver_functions table, std::string name);

}  // namespace weft::gpu
