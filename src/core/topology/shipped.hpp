// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/documents/document.hpp"

#include <span>
#include <string_view>

namespace weft::detail {

/// One file of topologies/, compiled in by cmake/embed_topologies.cmake.
struct shipped_topology {
  std::string_view name;
  std::span<const document_event> events;
};

/// Sorted by name.
[[nodiscard]] std::span<const shipped_topology> shipped_table() noexcept;

}  // namespace weft::detail
