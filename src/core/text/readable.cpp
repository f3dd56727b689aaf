// SPDX-License-Identifier: Apache-2.0
#include "core/text/readable.hpp"

#include "weft/core/bytes.hpp"

#include <array>
#include <cstdio>

namespace weft::detail {

std::string readable_time(double seconds) {
  if (!(seconds > 0)) return "0 s";
  // A value is shown in the largest unit in which it does not round to less than 1.
  double value = seconds * 1e9;
  const char* unit = "ns";
  for (const char* larger : {"us", "ms", "s"}) {
    if (value < 999.5) break;
    value /= 1e3;
    unit = larger;
  }
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  const bool is_whole_ns = unit[0] == 'n' && value == static_cast<double>(static_cast<int>(value));
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", is_whole_ns ? 0 : digits, value, unit);
  return text.data();
}

std::string readable_part(double part, double whole) {
  if (whole <= 0) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * part / whole);
  return text.data();
}

std::size_t control_at(std::string_view text, std::size_t at) noexcept {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first != 0xc2 || at + 1 == text.size()) return 0;
  const auto second = static_cast<unsigned char>(text[at + 1]);
  return second >= 0x80 && second < 0xa0 ? 2 : 0;
}

std::string one_line(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (const std::size_t length = control_at(text, i)) text.replace(i, length, 1, ' ');
  return text;
}

std::string readable_count(std::int64_t count) {
  std::string text = std::to_string(count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string exact_size(std::uint64_t bytes) {
  std::string text = to_string(weft::bytes{bytes});
  return text.find('.') == std::string::npos ? text : std::to_string(bytes) + " B";
}

std::string size_beside(std::uint64_t bytes, std::uint64_t other) {
  std::string text = to_string(weft::bytes{bytes});
  return bytes != other && text == to_string(weft::bytes{other}) ? exact_size(bytes) : text;
}

}  // namespace weft::detail
