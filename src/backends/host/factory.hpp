// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <memory>

namespace weft::host {

/// Virtual devices on this host: real memory, real threads, any topology.
[[nodiscard]] result<std::unique_ptr<backend>> open(const backend_options& options) noexcept;

}  // namespace weft::host
