// SPDX-License-Identifier: Apache-2.0
// The compiler that comes with HIP as a library, opened at run time.
#pragma once

#include "backends/gpu/hip/hiprtc_functions.hpp"
#include "backends/gpu/kernels/run_time_compiler.hpp"
#include "weft/core/result.hpp"

#include <memory>
#include <string>

namespace weft::gpu::amd {

/// Thread: any.
class hiprtc final : public run_time_compiler {
 public:
  /// Versions are 1000 times major + 10 times minor: that of the library, 0 where nothing tells it, and that of the HIP
  /// runtime, 0 without one.
  hiprtc(const hiprtc_functions& table, std::string library, int version, int driver_version)
      : call_(table), library_(std::move(library)), version_(version), driver_version_(driver_version) {}

  /// A code object. An architecture that the library may not know is refused: it would end the process.
  [[nodiscard]] result<compiled_image> compile(const kernel_code& code, int architecture,
                                               bool verbose = false) const override;
  [[nodiscard]] bool knows(int architecture) const;
  [[nodiscard]] const std::string& library() const noexcept { return library_; }

 private:
  hiprtc_functions call_;
  std::string library_;
  int version_;
  int driver_version_;
};

/// The compiler of `library`; of an empty name, that in WEFT_HIP_HIPRTC, else the newest that is found and not newer
/// than the runtime, whose version is 1000 times major + 10 times minor; 0: any. It stays open as long as the process.
/// Errors: unsupported, with what was tried and what to do.
[[nodiscard]] result<std::shared_ptr<const hiprtc>> load_hiprtc(const std::string& library, int driver_version);

}  // namespace weft::gpu::amd
