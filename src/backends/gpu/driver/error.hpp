// SPDX-License-Identifier: Apache-2.0
// What a call of the driver that failed is to weft.
#pragma once

#include "backends/gpu/driver/driver.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"

#include <string>

namespace weft::gpu {

/// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", in the driver's own words.
[[nodiscard]] std::string name_of(const driver& cu, CUresult status);

/// Whether the context answers nothing but this from now on: its device is lost.
[[nodiscard]] bool is_sticky(const driver& cu, CUresult status);

/// Out of memory, a lost device, …; `otherwise` for what says nothing better.
[[nodiscard]] errc errc_of(CUresult status, errc otherwise);

/// `doing` failed with `status`. Its scope is the device's when that is lost by it.
[[nodiscard]] error cu_error(const driver& cu, CUresult status, std::string doing,
                             errc otherwise = errc::resource_exhausted);

}  // namespace weft::gpu
