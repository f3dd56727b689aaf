// SPDX-License-Identifier: Apache-2.0
// A compiler of kernels' texts that is a library, opened at run time. It needs no GPU and no driver.
#pragma once

#include "weft/backend/kernel_code.hpp"
#include "weft/core/result.hpp"

#include <string>

namespace weft::gpu {

/// What a text became: machine code of one architecture, or what the driver compiles when it is loaded.
struct compiled_image {
  std::string bytes;  // PTX ends with a zero
  bool is_ptx = false;
  std::string log;  // what the compiler said; with `verbose` also registers and spills
};

/// Architectures are numbers: of CUDA 10 times major + minor of the compute capability, as 90; of HIP the hexadecimal
/// number of the name, as 0x90a of gfx90a.
/// Thread: any.
class run_time_compiler {
 public:
  run_time_compiler() = default;
  run_time_compiler(const run_time_compiler&) = delete;
  run_time_compiler& operator=(const run_time_compiler&) = delete;
  virtual ~run_time_compiler() = default;

  /// Errors: unsupported for a raw kernel without a source for it; incompatible for a text that does not compile,
  /// beginning with the file and line of its WEFT_KERNEL, and for an architecture that it does not serve.
  /// Cost: some ten milliseconds and more.
  [[nodiscard]] virtual result<compiled_image> compile(const kernel_code& code, int architecture,
                                                       bool verbose = false) const = 0;
};

}  // namespace weft::gpu
