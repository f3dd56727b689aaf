// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/exec/balance.hpp"
#include "weft/exec/launch.hpp"
#include "weft/runtime/device_query.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <vector>

namespace weft {

/// How a launch goes on when a device fails in the middle of it.
enum class failure_policy : std::uint8_t {
  fail_fast,        // what has not begun is not begun; the first cause is the launch's
  retry_elsewhere,  // the pieces of a lost device run on the others, if their inputs are still somewhere
};

struct memory_limit {
  device_id device;
  bytes most;  // that the launch may use there
};

/// How a launch is spread over devices. All of it has a default that a newcomer can leave.
struct spread_options {
  device_query devices{};  // which; all of the machine unless said
  balance strategy = balance::automatic;
  std::vector<double> weights{};  // of the chosen devices, in their order: balance::weighted
  std::vector<memory_limit> memory_limits{};
  bool keep_on_device = true;         // false: results of arrays go to the host, and the devices' memory back
  bool asynchronous = true;           // false: the call returns when the launch has ended
  bool unified_memory = false;        // host memory is used where it is, by devices that can; nothing is copied. Not
                                      // memory that the machine knows already, by another such argument on its way
                                      // either: invalid_argument
  bool peer_to_peer = true;           // false: data between devices goes through the host
  std::array<int, 3> block{0, 0, 0};  // as of launch_options; borders are multiples of its outermost extent
  std::int64_t granularity = 1;       // the same for other reasons: borders are multiples of it as well
  failure_policy on_failure = failure_policy::fail_fast;
  std::stop_token stop{};              // pieces that have not begun are not begun; the launch ends as cancelled
  std::optional<kernel_cost> model{};  // what the kernel costs on a virtual clock
};

}  // namespace weft
