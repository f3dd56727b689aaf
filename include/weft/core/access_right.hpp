// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/ids.hpp"

#include <cstdint>
#include <string_view>

namespace weft {

/// What a device may do with a mapping.
enum class access_right : std::uint8_t { none, read, read_write };
[[nodiscard]] std::string_view to_string(access_right right);

struct device_right {
  device_id device;
  access_right right = access_right::none;
};

}  // namespace weft
