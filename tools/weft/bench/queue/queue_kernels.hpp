// SPDX-License-Identifier: Apache-2.0
// What a message costs where kernels stand at the ends of the queues: the latency that a device sees.
#pragma once

#include "queue_bench.hpp"

namespace weft::tool {

/// Messages of this many bytes are those of kernels: what is measured is the way, not the amount.
inline constexpr std::uint64_t kernel_message_size = 8;

/// Measures a row of round trips to or between kernels, each answer checked. `share` is about how long it may take.
/// Errors: as launching; a row that is not offered says why.
void measure_by_kernels(const machine& m, queue_row& row, const queue_plan& plan, std::chrono::nanoseconds share);

}  // namespace weft::tool
