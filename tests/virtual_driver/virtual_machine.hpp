// SPDX-License-Identifier: Apache-2.0
// Machines of weft on the virtual driver, for the children of a test.
#pragma once

#include "backends/gpu/factory.hpp"
#include "weft/runtime/machine.hpp"

#include <memory>
#include <unistd.h>

namespace virtual_cuda {

inline weft::result<std::unique_ptr<weft::backend>> open_backend(const weft::backend_options& options) noexcept {
  weft::gpu::settings wanted;
  wanted.driver = wanted.compiler = wanted.management = WEFT_VIRTUAL_CUDA_PATH;
  return weft::gpu::open_with(options, wanted);
}

inline weft::machine open_machine() {
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::cuda, "virtual_cuda", &open_backend}};
  options.backend = "virtual_cuda";
  return weft::machine{options};
}

/// A run that hangs is ended by its alarm, and the test says which it was.
inline void be_bounded(unsigned seconds) { ::alarm(seconds); }

}  // namespace virtual_cuda
