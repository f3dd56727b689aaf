// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them, for messages and reports.
#pragma once

#include <cstdint>
#include <string>

namespace weft::detail {

/// "120 us", "1.33 s", "0 s": three significant digits and the unit that fits. Never negative.
[[nodiscard]] std::string readable_time(double seconds);

/// "1,000,000".
[[nodiscard]] std::string readable_count(std::int64_t count);

}  // namespace weft::detail
