// SPDX-License-Identifier: Apache-2.0
// The host's compiler, run on the text of kernels; what it makes is kept by what it was made from.
#pragma once

#include <string>
#include <vector>

namespace weft::virtual_cuda {

struct compiled_text {
  bool done = false;
  std::string object;  // bytes of a shared object
  std::string log;
};

/// Thread: any; several processes may share the folder.
[[nodiscard]] compiled_text compile_text(const std::string& unit, const std::vector<std::string>& options);

}  // namespace weft::virtual_cuda
