// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/result.hpp"

#include <cstdint>
#include <string>

namespace weft::detail {

/// All of a regular file. What is none is refused, and not waited for: a FIFO without a writer would never end.
/// Errors, beginning with the file's name: not_found, io_failed; out_of_range where it is larger than `largest`.
[[nodiscard]] result<std::string> file_text(const std::string& file, std::uint64_t largest);

}  // namespace weft::detail
