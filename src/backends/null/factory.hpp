// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <memory>

namespace weft::null_device {

/// The empty backend: one device that offers nothing. Copy this folder to start a port.
[[nodiscard]] result<std::unique_ptr<backend>> open(const backend_options& options) noexcept;

}  // namespace weft::null_device
