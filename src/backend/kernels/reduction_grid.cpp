// SPDX-License-Identifier: Apache-2.0
#include "backend/kernels/reduction_grid.hpp"

#include <algorithm>
#include <cstddef>

namespace weft {
namespace {

// A GPU of today wants a thousand items at a time on each unit, and a second kernel that need not add up thousands of
// groups; a processor a few turns for each core, so that a late one is not waited for long.
constexpr std::int64_t groups_per_unit = 4;
constexpr std::int64_t group_of_a_gpu = 256;
constexpr std::int64_t least_items = 16;  // of a lane
constexpr std::uint64_t most_scratch = std::uint64_t{64} << 20;

/// Results of one lane that lie side by side, with what keeps the next ones aligned; the text says the same.
std::uint64_t aligned(std::uint64_t size) { return (size + 15) / 16 * 16; }

}  // namespace

reduction_grid reduction_grid_for(const kernel_code& code, const kernel_range& range,
                                  std::span<const kernel_argument> arguments, const reduction_device& device) {
  std::int64_t items = 1;
  for (std::size_t d = 0; d < static_cast<std::size_t>(range.dimensions); ++d)
    items *= std::max<std::int64_t>(range.end[d] - range.begin[d], 0);
  reduction_grid made;
  std::int64_t results = 0;
  std::uint64_t size = 0;
  const auto over_reductions = [&](auto&& f) {
    for (std::size_t n = 0; n < std::min(arguments.size(), code.parameters.size()); ++n)
      if (code.parameters[n].access.kind == access_kind::reduce) f(arguments[n]);
  };
  over_reductions([&](const kernel_argument& one) {
    made.elements = std::max(made.elements, one.count);
    results += one.count;
    size += static_cast<std::uint64_t>(one.count) * size_of(one.type);
  });
  std::int64_t lanes = std::max<std::int64_t>(items / std::max(results, least_items), 1);
  if (size > 0) lanes = std::clamp<std::int64_t>(static_cast<std::int64_t>(most_scratch / size), 1, lanes);
  const std::int64_t best = device.is_processor ? 1 : group_of_a_gpu;
  made.group = std::min({best, std::max<std::int64_t>(device.largest_group, 1), lanes});
  made.groups = std::clamp<std::int64_t>(lanes / made.group, 1, groups_per_unit * std::max(device.compute_units, 1));
  made.step = device.is_processor ? 1 : made.lanes();
  over_reductions([&](const kernel_argument& one) {
    made.scratch += aligned(static_cast<std::uint64_t>(made.lanes() * one.count) * size_of(one.type));
  });
  return made;
}

}  // namespace weft
