// SPDX-License-Identifier: Apache-2.0
// The compiler that comes with CUDA as a library, opened at run time. It needs no GPU and no driver.
#pragma once

#include "backends/gpu/cuda/nvrtc_functions.hpp"
#include "backends/gpu/kernels/run_time_compiler.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/core/result.hpp"

#include <memory>
#include <string>
#include <vector>

namespace weft::gpu {

/// "9.0" of 90.
[[nodiscard]] std::string capability_text(int architecture);

/// Thread: any.
class nvrtc final : public run_time_compiler {
 public:
  nvrtc(const nvrtc_functions& table, std::string library);

  /// Machine code for an architecture that the compiler knows; for one that it does not, PTX of the newest before it.
  /// Refused is an architecture older than all that it knows.
  [[nodiscard]] result<compiled_image> compile(const kernel_code& code, int architecture,
                                               bool verbose = false) const override;

  [[nodiscard]] bool knows(int architecture) const;
  /// Whether it compiles a text without a kernel: a library may be there without its other parts.
  [[nodiscard]] bool works() const;
  [[nodiscard]] const std::vector<int>& architectures() const noexcept { return architectures_; }
  [[nodiscard]] const std::string& library() const noexcept { return library_; }

 private:
  [[nodiscard]] result<std::string> target_of(const kernel_code& code, int architecture) const;

  nvrtc_functions call_;
  std::string library_;
  std::vector<int> architectures_;  // ascending
};

/// The compiler of `library`; of an empty name, that in WEFT_CUDA_NVRTC, else the newest that is found and not newer
/// than the driver, whose version is 1000 times major + 10 times minor; 0: any. It stays open as long as the process.
/// Errors: unsupported, with what was tried and what to do.
[[nodiscard]] result<std::shared_ptr<const nvrtc>> load_nvrtc(const std::string& library, int driver_version);

}  // namespace weft::gpu
