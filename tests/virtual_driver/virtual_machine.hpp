// SPDX-License-Identifier: Apache-2.0
// Machines of weft on the virtual driver, for the children of a test.
#pragma once

#include "backends/gpu/factory.hpp"
#include "support/hang.hpp"
#include "support/paths.hpp"
#include "weft/runtime/machine.hpp"

#include <memory>
#include <unistd.h>

namespace virtual_cuda {

inline weft::result<std::unique_ptr<weft::backend>> open_backend(const weft::backend_options& options) noexcept {
  weft::gpu::settings wanted;
  wanted.driver = wanted.compiler = wanted.management = samples::virtual_cuda_library();
  return weft::gpu::open_with(options, wanted);
}

inline weft::machine open_machine() {
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::cuda, "virtual_cuda", &open_backend}};
  options.backend = "virtual_cuda";
  return weft::machine{options};
}

inline weft::result<std::unique_ptr<weft::backend>> open_hip_backend(const weft::backend_options& options) noexcept {
  weft::gpu::settings wanted;
  wanted.driver = wanted.compiler = samples::virtual_hip_library();
  return weft::gpu::open_hip_with(options, wanted);
}

/// The same devices as a HIP runtime shows them.
inline weft::machine open_hip_machine() {
  weft::machine_options options;
  options.more_backends = {{weft::backend_kind::hip, "virtual_hip", &open_hip_backend}};
  options.backend = "virtual_hip";
  return weft::machine{options};
}

/// What one case may take: longer than a wait in it, which then says itself what it waited for.
inline constexpr unsigned run_seconds = samples::only_a_hang.count() * 3 / 2;
/// A run that hangs is ended by its alarm, and the test says which it was. Called again, it begins anew.
inline void be_bounded() { ::alarm(run_seconds); }

}  // namespace virtual_cuda
