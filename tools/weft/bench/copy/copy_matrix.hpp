// SPDX-License-Identifier: Apache-2.0
// Copies between all pairs at one size, as a table and as a picture: from in rows, to in columns.
#pragma once

#include "copy_bench.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace weft::tool {

enum class copy_quantity : std::uint8_t { rate, latency };

/// The best way of each pair: direct where it is offered, else staged ("s"). A pair that is further from its like, by
/// the class of its link, than a quarter of them allows is marked "*". Only rows of `size` and of the first `devices`
/// count.
[[nodiscard]] std::string copy_matrix_text(const session& run, const machine& m, const std::vector<copy_row>& rows,
                                           std::uint64_t size, copy_quantity what, std::size_t devices);

[[nodiscard]] std::string copy_matrix_svg(const session& run, const std::vector<copy_row>& rows, std::uint64_t size,
                                          std::size_t devices);

}  // namespace weft::tool
