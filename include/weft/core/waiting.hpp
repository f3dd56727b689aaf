// SPDX-License-Identifier: Apache-2.0
// How a wait is made, bounded, and ends.
#pragma once

#include <chrono>
#include <cstdint>

namespace weft {

/// How a wait ended. `failed`: the work itself failed, and the record's cause says why; what users wait on throws it.
enum class wait_outcome : std::uint8_t { ok, timed_out, cancelled, failed };

/// When to stop waiting, in the time of the backend's clock (virtual time when that is virtual).
using wait_deadline = std::chrono::nanoseconds;
inline constexpr wait_deadline no_deadline = wait_deadline::max();

/// `timeout` from `now` on; a timeout that reaches past the end of time is none.
[[nodiscard]] constexpr wait_deadline deadline_after(std::chrono::nanoseconds now, std::chrono::nanoseconds timeout) {
  return timeout > no_deadline - now ? no_deadline : now + timeout;
}

/// How a host thread waits: spin and then park (adaptive), spin only, or park at once.
enum class waiting : std::uint8_t { adaptive, spin, park };

}  // namespace weft
