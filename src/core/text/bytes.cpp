// SPDX-License-Identifier: Apache-2.0
#include "weft/core/bytes.hpp"

#include <array>
#include <cmath>

namespace weft {

std::string to_string(bytes amount) {
  static constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  std::uint64_t scale = 1;
  while (unit + 1 < units.size() && amount.value() / scale >= 1024) {
    scale <<= 10;
    ++unit;
  }
  std::string text;
  if (amount.value() % scale == 0) {
    text = std::to_string(amount.value() / scale);
  } else {
    const auto tenths = static_cast<std::uint64_t>(
        std::llround(static_cast<double>(amount.value()) * 10.0 / static_cast<double>(scale)));
    text = std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
  }
  return text + " " + units[unit];
}

}  // namespace weft
