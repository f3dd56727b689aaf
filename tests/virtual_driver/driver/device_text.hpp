// SPDX-License-Identifier: Apache-2.0
// What makes CUDA C++ out of C++: put before the text of a kernel, which the host's compiler then takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::virtual_cuda {

/// Declarations and the text, for the preprocessor: what CUDA adds to the language stays in what that makes of it.
[[nodiscard]] std::string text_to_preprocess(std::string_view text, std::string_view file);

/// The whole unit, from what the preprocessor made: with `extern __shared__` written out, and the table of its kernels.
/// `expressions` name further kernels, as instances of templates.
[[nodiscard]] std::string unit_of(const std::string& preprocessed, const std::vector<std::string>& expressions);

}  // namespace weft::virtual_cuda
