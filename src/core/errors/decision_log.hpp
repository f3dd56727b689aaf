// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/log.hpp"

#include <string>

namespace weft::detail {

/// A decision, in words that are the same when it is the same: at level info the first time in this process, at debug
/// later. Ask is_logged(log_level::info) before the words are put together.
void log_decision(const std::string& text) noexcept;

}  // namespace weft::detail
