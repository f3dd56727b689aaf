// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"
#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <memory>
#include <optional>
#include <string>

namespace weft::gpu {

/// What can be asked of this backend beyond backend_options; for tests, and for programs that register it themselves.
/// A name that is empty is taken from the environment, and without that from the system's usual place. Of the two
/// names each has, the first is CUDA's.
struct settings {
  std::string driver;      // WEFT_CUDA_DRIVER, else libcuda.so.1; WEFT_HIP_DRIVER, else the newest libamdhip64
  std::string compiler;    // WEFT_CUDA_NVRTC, else the newest libnvrtc; WEFT_HIP_HIPRTC, else the newest libhiprtc
  std::string management;  // WEFT_CUDA_NVML, else libnvidia-ml.so.1; "none": without. HIP has none
  std::string gdrcopy;     // WEFT_CUDA_GDRCOPY, else libgdrapi.so.2; "none": without. HIP has none
  std::optional<driver_functions> table;  // in place of a library: a driver made of functions
  std::string partitions;  // WEFT_CUDA_PARTITIONS, WEFT_HIP_PARTITIONS: "0": parts of a GPU share its compute units
  std::string system_root = "/sys";  // where PCI devices are looked up
};

struct vendor;

/// Every GPU that a vendor's driver shows. Opening looks at them and touches none: no context is made before memory is
/// asked for.
/// Errors: unsupported, with the reason and what to do, when there is no driver, it is too old, or shows no GPU.
[[nodiscard]] result<std::unique_ptr<backend>> open_of(const vendor& by, const backend_options& options,
                                                       const settings& wanted) noexcept;

/// Those of CUDA.
[[nodiscard]] result<std::unique_ptr<backend>> open(const backend_options& options) noexcept;
[[nodiscard]] result<std::unique_ptr<backend>> open_with(const backend_options& options,
                                                         const settings& wanted) noexcept;

/// Compiles a kernel's text with NVRTC, for the oldest architecture on which all that weft's kernels may say compiles.
/// Needs no GPU and no driver. Errors: unsupported where NVRTC is not found, or the kernel has no text for CUDA;
/// incompatible with the compiler's words.
[[nodiscard]] result<void> compile(const kernel_code& code) noexcept;

/// Those of HIP, and its compiler HIPRTC.
[[nodiscard]] result<std::unique_ptr<backend>> open_hip(const backend_options& options) noexcept;
[[nodiscard]] result<std::unique_ptr<backend>> open_hip_with(const backend_options& options,
                                                             const settings& wanted) noexcept;
[[nodiscard]] result<void> compile_for_hip(const kernel_code& code) noexcept;

}  // namespace weft::gpu
