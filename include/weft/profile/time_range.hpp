// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace weft {

/// A stretch of time, without its end.
struct time_range {
  std::chrono::nanoseconds begin{0};
  std::chrono::nanoseconds end{0};

  friend bool operator==(const time_range&, const time_range&) = default;
};

}  // namespace weft
