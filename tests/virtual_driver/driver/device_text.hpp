// SPDX-License-Identifier: Apache-2.0
// What makes CUDA C++ out of C++: put before the text of a kernel, which the host's compiler then takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::virtual_cuda {

/// A kernel that stands in a text.
struct found_kernel {
  std::string name;
  bool is_c = false;  // extern "C": known by this name; any other by its mangled one
};

/// Every `__global__` function in a text that can be named as it is: not templates.
[[nodiscard]] std::vector<found_kernel> kernels_in(std::string_view text);

/// The whole unit: declarations, the text with `extern __shared__` written out, the table of its kernels.
/// `expressions` name further kernels, as instances of templates.
[[nodiscard]] std::string unit_of(std::string_view text, std::string_view file,
                                  const std::vector<std::string>& expressions);

}  // namespace weft::virtual_cuda
