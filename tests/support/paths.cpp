// SPDX-License-Identifier: Apache-2.0
#include "support/paths.hpp"

#include <cstdlib>

namespace samples {
namespace {

/// Tests and the programs that they start share the kernels that the virtual driver compiled.
std::string with_shared_kernels(const char* library) {
  static const int shared = ::setenv("WEFT_VIRTUAL_CUDA_CACHE", WEFT_BINARY_DIR "/virtual_cuda_cache", 0);
  static_cast<void>(shared);
  return library;
}

}  // namespace

std::string source_folder() { return WEFT_SOURCE_DIR; }
std::string build_folder() { return WEFT_BINARY_DIR; }
std::string program_folder() { return WEFT_BIN_DIR; }
std::string tool() { return WEFT_TOOL_PATH; }
std::string virtual_cuda_library() { return with_shared_kernels(WEFT_VIRTUAL_CUDA_PATH); }
std::string virtual_hip_library() { return with_shared_kernels(WEFT_VIRTUAL_HIP_PATH); }

}  // namespace samples
