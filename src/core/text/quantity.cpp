// SPDX-License-Identifier: Apache-2.0
#include "core/text/quantity.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <system_error>

namespace weft::detail {
namespace {

struct unit {
  std::string_view name;
  double factor;
};

constexpr double kibi = 1024.0;
constexpr std::array size_units{unit{"B", 1},
                                unit{"K", kibi},
                                unit{"KiB", kibi},
                                unit{"M", kibi* kibi},
                                unit{"MiB", kibi* kibi},
                                unit{"G", kibi* kibi* kibi},
                                unit{"GiB", kibi* kibi* kibi},
                                unit{"T", kibi* kibi* kibi* kibi},
                                unit{"TiB", kibi* kibi* kibi* kibi}};
constexpr std::array rate_units{unit{"B/s", 1},
                                unit{"KB/s", 1e3},
                                unit{"MB/s", 1e6},
                                unit{"GB/s", 1e9},
                                unit{"TB/s", 1e12},
                                unit{"KiB/s", kibi},
                                unit{"MiB/s", kibi* kibi},
                                unit{"GiB/s", kibi* kibi* kibi},
                                unit{"TiB/s", kibi* kibi* kibi* kibi}};
constexpr std::array time_units{unit{"ns", 1}, unit{"us", 1e3}, unit{"ms", 1e6}, unit{"s", 1e9}};

// A number, at most one space, one of the units.
std::optional<double> parse(std::string_view text, std::span<const unit> units) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;  // no sign, no "inf"
  double value = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  for (const unit& u : units) {
    if (text == u.name) return value * u.factor;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) {
  constexpr double largest = kibi * kibi * kibi * kibi * kibi;
  const std::optional<double> value = parse(text, size_units);
  if (!value || !(*value <= largest) || std::floor(*value) != *value) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

std::optional<double> parse_rate(std::string_view text) {
  const std::optional<double> value = parse(text, rate_units);
  if (!value || !(*value > 0) || !(*value <= 1e15)) return std::nullopt;
  return value;
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  const std::optional<double> value = parse(text, time_units);
  if (!value || !(*value <= 3600e9)) return std::nullopt;
  return std::chrono::nanoseconds(std::llround(*value));
}

}  // namespace weft::detail
