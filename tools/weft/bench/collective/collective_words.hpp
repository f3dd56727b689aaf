// SPDX-License-Identifier: Apache-2.0
// Collectives as they are typed and shown: names, devices, and what a size means.
#pragma once

#include "command_line/output.hpp"
#include "weft/collective/collective_cost.hpp"
#include "weft/collective/data_type.hpp"
#include "weft/collective/reduction_op.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

/// "all_reduce,broadcast", or "all"; each once, in the order of the table.
[[nodiscard]] result<std::vector<collective>> parse_collectives(std::string_view text);

/// "ring,direct", "automatic", or "all" for every one but automatic.
[[nodiscard]] result<std::vector<collective_algorithm>> parse_algorithms(std::string_view text);

/// "float32", or as C++ says it: float, double, half.
[[nodiscard]] result<data_type> parse_type(std::string_view text);

/// "sum", "product", "min", "max" or "average".
[[nodiscard]] result<reduction_op::kind> parse_operation(std::string_view text);
[[nodiscard]] reduction_op operation_of(reduction_op::kind kind);

/// "any" or "rank".
[[nodiscard]] result<reduction_order> parse_order(std::string_view text);

/// "0,2,5" or "gpu0,gpu2": rank by rank; a device may be several ranks.
[[nodiscard]] result<std::vector<int>> parse_devices(std::string_view text);

/// Whether it combines elements, and so has an operation.
[[nodiscard]] constexpr bool combines(collective what) {
  return what == collective::all_reduce || what == collective::reduce || what == collective::reduce_scatter;
}

/// So many elements of a whole array, over so many ranks, from or to rank 0: for blocks as even as they can be.
[[nodiscard]] collective_shape shape_of(collective what, int ranks, std::int64_t elements);

/// Devices of ranks: those that were named, or `ranks` of them in neighbour_order(); with more ranks than devices,
/// neighbours share one. Errors: failure (absent, usage).
[[nodiscard]] std::vector<device_id> devices_of_ranks(const topology& machine, const std::vector<int>& named,
                                                      std::optional<int> ranks);

/// Elements of a size. Errors: failure (usage) when not one fits, or more do than a collective counts.
[[nodiscard]] std::int64_t elements_of(std::uint64_t size, data_type type);

}  // namespace weft::tool
