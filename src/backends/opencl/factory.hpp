// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <memory>
#include <string>
#include <vector>

namespace weft::opencl {

/// What can be asked of this backend beyond backend_options; for tests, and for programs that register it themselves.
struct settings {
  std::string library = "libOpenCL.so.1";  // opened at run time
  bool shared_memory = true;  // false: device memory is plain buffers even where fine-grained SVM makes it the host's
  int at_most = 0;            // above 0: no more devices than these, the first ones
};

/// Every device of every platform. Errors: unsupported with the reason when there is no library, platform or device.
[[nodiscard]] result<std::unique_ptr<backend>> open(const backend_options& options) noexcept;
[[nodiscard]] result<std::unique_ptr<backend>> open_with(const backend_options& options,
                                                         const settings& wanted) noexcept;
/// Reads a kernel's text by clang's library, for computers without an OpenCL driver. Errors: unsupported where that is
/// missing; incompatible with clang's words.
[[nodiscard]] result<void> compile(const kernel_code& code) noexcept;

}  // namespace weft::opencl
