// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace weft {

/// The known name that a misspelt one most probably meant: fewest single-letter edits, at most a third of its length
/// (one edit is always near enough); the first of equals. Empty when nothing is near.
[[nodiscard]] std::optional<std::string_view> nearest_name(std::string_view name,
                                                           std::span<const std::string_view> known);

}  // namespace weft
