// SPDX-License-Identifier: Apache-2.0
// The kernels and checks that several of the guide's tables use.
#pragma once

#include "weft/core/raise.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/scatter.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::bench {

WEFT_KERNEL(guide_line, (WEFT_IN(float) x, WEFT_OUT(float) y), { y[i] = x[i] * 2.0f + 1.0f; });
WEFT_KERNEL(guide_touch, (WEFT_INOUT(uint8_t) visits), { visits[i] = (uint8_t)(visits[i] + 1); });

/// Ends the program: a time of wrong data says nothing.
inline void guide_check(bool right, const std::string& operation) {
  if (!right) raise(errc::corrupt, operation + ": the data is wrong, and its time would say nothing");
}

/// 0, 1, 2, … as far as a float counts.
inline std::vector<float> guide_ramp(std::int64_t count) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<float>(i % 1'000'000);
  return made;
}

inline bool is_guide_line(std::span<const float> y) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (y[i] != static_cast<float>(i % 1'000'000) * 2.0F + 1.0F) return false;
  }
  return true;
}

inline std::vector<device_id> first_devices(int count) {
  std::vector<device_id> made;
  made.reserve(static_cast<std::size_t>(count));
  for (int d = 0; d < count; ++d) made.emplace_back(d);
  return made;
}

}  // namespace weft::bench
