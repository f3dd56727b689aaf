// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace weft::gpu::amd {

/// Where a library stands: among the process's others, or alone, in a namespace of its own (dlmopen(3)). A compiler
/// stands alone, because two copies of clang over one libLLVM end the process when the second one registers its
/// options: Debian 12's HIPRTC 5.2 does so where PoCL 3.1 is open, in either order.
enum class library_place : std::uint8_t { among_others, alone };

/// Whether the kernel shows GPUs of AMD to this process: by /dev/kfd, or to Linux inside Windows by /dev/dxg.
[[nodiscard]] bool can_have_gpus();

struct rocm_library {
  void* handle = nullptr;
  std::string name;
  int major = 0;  // of its version where that was looked for by name, else 0
};

/// Opens the library of a name; of an empty one, the first of its versions that is found: as the loader finds it, then
/// in ROCm's folder (ROCM_PATH, else /opt/rocm). Without a handle `why` says what the loader said.
/// Shape: `base` is "libamdhip64.so", versions are newest first.
[[nodiscard]] rocm_library open_rocm_library(const std::string& wanted, const std::string& base,
                                             std::initializer_list<int> versions, library_place place,
                                             std::string& why);

}  // namespace weft::gpu::amd
