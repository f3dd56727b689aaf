// SPDX-License-Identifier: Apache-2.0
// The functions of a driver in a table, found when it is opened: weft is linked against no vendor's library.
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"
#include "backends/gpu/driver/vendor.hpp"
#include "weft/core/result.hpp"

#include <memory>
#include <string>

namespace weft::gpu {

/// The table, and where it is from. Calls go through it: cu->cuMemAlloc(…).
struct driver : driver_functions {
  std::string library;
  int version = 0;  // 1000 times major + 10 times minor
  const vendor* by = nullptr;
};

/// "13.0"
[[nodiscard]] std::string version_text(int version);

/// Why a library is no driver that can be used. Errors: unsupported.
[[nodiscard]] error no_driver(const std::string& library, const std::string& why, int native = 0);
[[nodiscard]] std::string too_old(const vendor& by, int version);

/// The variables that hide GPUs and are set, as `NAME is "value"`; empty for none.
[[nodiscard]] std::string hidden_by(const vendor& by);

/// Initialises what the table leads to. Errors: unsupported, with the reason and what to do, where it is a stub, is too
/// old, lacks a function, or has no device.
[[nodiscard]] result<std::shared_ptr<const driver>> start_driver(driver_functions table, std::string name,
                                                                 const vendor& by);

}  // namespace weft::gpu
