// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>

namespace weft::gpu::amd {

struct rocm_library {
  void* handle = nullptr;
  std::string name;
  int major = 0;  // of its version where that was looked for by name, else 0
};

/// Opens the library of a name; of an empty one, the first of its versions that is found: as the loader finds it, then
/// in ROCm's folder (ROCM_PATH, else /opt/rocm). Without a handle `why` says what the loader said.
/// Shape: `base` is "libamdhip64.so", versions are newest first.
[[nodiscard]] rocm_library open_rocm_library(const std::string& wanted, const std::string& base,
                                             std::initializer_list<int> versions, std::string& why);

}  // namespace weft::gpu::amd
