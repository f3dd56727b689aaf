// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/documents/document.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"

#include <string_view>

namespace weft::detail {

/// The machine that a document of schema "weft.topology/1" describes, checked and complete
/// (docs/reference/topologies.md). Errors: invalid_topology – "origin:line: key: what was expected, what was found".
[[nodiscard]] result<topology> read_topology(const document& root, std::string_view origin);

}  // namespace weft::detail
