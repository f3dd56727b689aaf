// SPDX-License-Identifier: Apache-2.0
// Pictures as text: pure functions, so that the same machine always gives the same bytes.
#pragma once

#include "weft/core/topology.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

/// A machine for people: devices in boxes inside their switches and sockets, links coloured by kind and as wide as
/// they are fast, a legend. A simulated machine carries the word across the picture.
[[nodiscard]] std::string topology_svg(const topology& machine);

/// The same graph for Graphviz.
[[nodiscard]] std::string topology_dot(const topology& machine);

/// One value per ordered pair, by from and then to; empty where there is none.
struct heat_map {
  std::string title;
  std::string subtitle;
  std::string unit;
  std::size_t devices = 0;
  std::vector<std::optional<double>> values;
  std::vector<bool> failed;  // data did not arrive; outlined
  bool simulated = false;
};
[[nodiscard]] std::string heat_map_svg(const heat_map& map);

/// Two pictures of this file in one, the second below the first.
[[nodiscard]] std::string stacked_svg(const std::string& above, const std::string& below);

}  // namespace weft::tool
