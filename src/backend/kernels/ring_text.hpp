#pragma once
// SPDX-License-Identifier: Apache-2.0
// The text of include/weft/kernel/ring.h, embedded when the library is built: what stands before a kernel with rings.

#include <string_view>

namespace weft::detail {

/// Thread: any. Cost: none; the text lives as long as the library.
[[nodiscard]] std::string_view ring_text() noexcept;

}  // namespace weft::detail
