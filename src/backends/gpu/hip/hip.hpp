// SPDX-License-Identifier: Apache-2.0
// AMD's half of this backend: HIP behind the table of driver functions, and what differs from other vendors.
#pragma once

#include "backends/gpu/driver/driver.hpp"
#include "backends/gpu/driver/vendor.hpp"
#include "backends/gpu/hip/hip_functions.hpp"

#include <memory>
#include <string>

namespace weft::gpu::amd {

inline constexpr int oldest_hip = 6020;  // 6.2

[[nodiscard]] const vendor& hip();

/// The library of a name; of an empty one, the newest of libamdhip64.so.7, .6 and .5 that is found. It stays open as
/// long as the process, which can have one HIP library: what fills the table are functions without a state.
/// Errors: unsupported, with the reason and what to do.
[[nodiscard]] result<std::shared_ptr<const driver>> load_hip(const std::string& library);

/// 70125424, as HIP says it, is 7010: 7.1, and the rest a patch's number.
[[nodiscard]] constexpr int hip_version(int theirs) { return theirs / 10000000 * 1000 + theirs / 100000 % 100 * 10; }

/// "gfx90a" as 0x90a, whatever features follow it; 0 for what is no such name.
[[nodiscard]] int gfx_number(const std::string& name);
[[nodiscard]] std::string gfx_name(int number);

}  // namespace weft::gpu::amd
