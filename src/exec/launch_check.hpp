// SPDX-License-Identifier: Apache-2.0
// What every launch checks before anything is submitted.
#pragma once

#include "runtime/launch_escort.hpp"
#include "runtime/machine_state.hpp"
#include "weft/exec/launch.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

namespace weft::detail {

/// False when there is nothing to run. Errors: incompatible (dimensions, number of arguments), invalid_argument.
[[nodiscard]] bool checked_range(const kernel_code& code, const kernel_range& over, std::size_t arguments,
                                 std::source_location where);
/// Errors: invalid_argument for a block that no device has; unsupported for a kernel that reduces, whose blocks decide
/// the bits of its result.
void check_block(const kernel_code& code, const std::array<int, 3>& block, std::source_location where);
/// No range reaches a border at a multiple of more, and the least common multiple with a block still fits.
inline constexpr std::int64_t largest_granularity = std::int64_t{1} << 50;
/// Errors: invalid_argument below 1.
void check_granularity(const kernel_code& code, std::int64_t granularity, std::source_location where);
/// Errors: incompatible and out_of_range, with the position and the name of the parameter.
[[nodiscard]] kernel_argument checked_argument(const kernel_code& code, std::size_t position,
                                               const launch_argument& given, const kernel_range& over,
                                               std::source_location where);
/// What has to go before and behind a launch with these arguments: for rings alone.
[[nodiscard]] std::vector<std::shared_ptr<launch_escort>> escorts_for(machine_state& state, const kernel_code& code,
                                                                      std::span<const launch_argument> arguments);
/// The remark of a launch that sets launch_options::model where the clock is real.
[[nodiscard]] std::string model_without_virtual_clock(const kernel_code& code);
/// The first one with a periodic halo, or null.
[[nodiscard]] const kernel_parameter* periodic_parameter(const kernel_code& code);
/// Whether a query leaves out no device of any machine, and orders none.
[[nodiscard]] bool takes_any_device(const device_query& query);
/// Checks and launches in one stream of one device.
[[nodiscard]] event launch_on(const std::shared_ptr<machine_state>& state, device_id on, stream_handle order,
                              std::shared_ptr<const kernel_code> code, const kernel_range& over,
                              std::span<const launch_argument> arguments, const launch_options& options,
                              std::source_location where);
/// Errors: not_found, with the nearest names.
[[nodiscard]] std::shared_ptr<const kernel_code> registered_kernel(const std::shared_ptr<machine_state>& state,
                                                                   std::string_view name, std::source_location where);

}  // namespace weft::detail
