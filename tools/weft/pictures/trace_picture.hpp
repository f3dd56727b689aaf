// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace_file.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace weft::tool {

/// Most tracks that a picture shows: the first ones, and it says so.
constexpr std::size_t most_drawn_tracks = 256;

/// A trace for people: a row for each track, grouped by device, over one axis of time; what is narrower than half a
/// pixel is drawn with its neighbours. A simulated trace carries the word across the picture.
/// The same trace always gives the same bytes.
[[nodiscard]] std::string trace_svg(const trace_file& trace, std::string_view title);

}  // namespace weft::tool
