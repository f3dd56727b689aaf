// SPDX-License-Identifier: Apache-2.0
#include "health_words.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

namespace weft::tool {

namespace {

/// "-" where no sensor tells.
template <class T, class Words>
std::string said(const std::optional<T>& value, Words&& words) {
  return value ? words(*value) : std::string{"-"};
}

std::string pcie_text(const device_health& now) {
  const auto number = [](int n) { return std::to_string(n); };
  if (!now.pcie_generation && !now.pcie_lanes) return "-";
  return fmt::format("gen {} x{}", said(now.pcie_generation, number), said(now.pcie_lanes, number));
}

}  // namespace

known_health health_of(const device& d) {
  try {
    return {d.health(), {}};
  } catch (const error_exception& e) {
    return {std::nullopt, e.cause().what};
  }
}

json health_json(const known_health& health) {
  if (!health.now) return nullptr;
  const device_health& now = *health.now;
  return {{"celsius", or_null(now.celsius)},
          {"watts", or_null(now.watts)},
          {"busy", or_null(now.busy)},
          {"held_down_by", or_null(now.held_down_by)},
          {"memory_errors", or_null(now.memory_errors)},
          {"link_errors", or_null(now.link_errors)},
          {"pcie_generation", or_null(now.pcie_generation)},
          {"pcie_lanes", or_null(now.pcie_lanes)}};
}

std::string health_text(const session& run, const machine& m) {
  text_table table{
      {"device", "temperature", "power", "busy", "memory errors", "link errors", "PCIe now", "held down by"},
      {false, true, true, true, true, true, true, false}};
  const auto count = [](std::uint64_t n) { return std::to_string(n); };
  bool any = false;
  for (const device& d : m.devices()) {
    const known_health health = health_of(d);
    if (!health.now) continue;
    any = true;
    const device_health& now = *health.now;
    const auto wrong = [](const std::optional<std::uint64_t>& errors) {
      return errors.value_or(0) > 0 ? style::bad : style::plain;
    };
    table.row(
        {to_string(d.id()), said(now.celsius, [](double c) { return fmt::format("{:.0f} C", c); }),
         said(now.watts, [](double w) { return fmt::format("{:.0f} W", w); }),
         said(now.busy, [](double share) { return fmt::format("{:.0f}%", 100 * share); }),
         said(now.memory_errors, count), said(now.link_errors, count), pcie_text(now),
         said(now.held_down_by,
              [](const std::vector<std::string>& reasons) {
                return reasons.empty() ? std::string{"nothing"} : fmt::format("{}", fmt::join(reasons, "; "));
              })},
        {style::plain, style::plain, style::plain, style::plain, wrong(now.memory_errors), wrong(now.link_errors)});
  }
  return any ? "\n" + table.render(run) : std::string{};
}

}  // namespace weft::tool
