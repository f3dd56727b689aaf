// SPDX-License-Identifier: Apache-2.0
// How long the steps of a schedule take: the copies, launches and waits that a communicator submits for them, in their
// order, on a timeline. Pure.
#pragma once

#include "collective/schedule/move_ways.hpp"
#include "collective/schedule/schedule_steps.hpp"
#include "weft/core/topology.hpp"

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

namespace weft::detail {

/// What a schedule is for: bytes of an element, and the devices that the ranks live on.
struct replay_ground {
  const topology& machine;
  std::span<const device_id> devices;
  std::size_t element_size = 1;
};

/// Whether a fold loads or stores memory of other ranks.
[[nodiscard]] bool is_remote(const schedule_fold& fold);

/// Seconds that each round's folds over other ranks' memory take on links and in memory; 0 for a round without, and
/// where the rate of a link is unknown. They work at the same time and do not keep a link for themselves, so all of
/// them take as long as the busiest wire or memory of the round, and wait once for the latency.
[[nodiscard]] std::vector<double> remote_seconds_of(const collective_schedule& schedule, const replay_ground& ground);

/// From the submission to the end of the last step, when nothing else is under way. The rate of every link that is
/// crossed must be known.
[[nodiscard]] std::chrono::nanoseconds replay(const schedule_steps& steps, const replay_ground& ground, move_ways& ways,
                                              std::chrono::nanoseconds launch_latency);

}  // namespace weft::detail
