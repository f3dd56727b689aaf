// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/documents/document.hpp"
#include "weft/core/result.hpp"

#include <string_view>

namespace weft::detail {

/// The values of a JSON text with their lines; only in builds with WEFT_HAS_JSON.
/// Errors: invalid_topology – not JSON, a key twice, nested too deep, too many values; with `origin` and the line.
[[nodiscard]] result<document> read_json(std::string_view text, std::string_view origin);

}  // namespace weft::detail
