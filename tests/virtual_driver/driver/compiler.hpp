// SPDX-License-Identifier: Apache-2.0
// The host's compiler, run on the text of kernels; what it makes is kept by what it was made from.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace weft::virtual_cuda {

struct compiled_text {
  bool done = false;
  std::string object;  // bytes of a shared object
  std::string log;
};

/// Preprocesses `text`, and compiles what `unit_of` makes of that; `key` says what else that depends on. What
/// depends on files is not kept. Thread: any; several processes may share the folder.
[[nodiscard]] compiled_text compile_text(const std::string& text, const std::vector<std::string>& options,
                                         const std::string& key,
                                         const std::function<std::string(const std::string&)>& unit_of,
                                         bool may_be_kept);

}  // namespace weft::virtual_cuda
