// SPDX-License-Identifier: Apache-2.0
#include "support/paths.hpp"

namespace samples {

std::string source_folder() { return WEFT_SOURCE_DIR; }
std::string build_folder() { return WEFT_BINARY_DIR; }
std::string program_folder() { return WEFT_BIN_DIR; }
std::string tool() { return WEFT_TOOL_PATH; }
std::string virtual_cuda_library() { return WEFT_VIRTUAL_CUDA_PATH; }
std::string virtual_hip_library() { return WEFT_VIRTUAL_HIP_PATH; }

}  // namespace samples
