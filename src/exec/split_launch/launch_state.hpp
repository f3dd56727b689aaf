// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/balance/launch_history.hpp"
#include "exec/split_launch/lane.hpp"
#include "runtime/machine_state.hpp"
#include "weft/memory/pool.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::detail {

class launch_job;

/// What launches over devices keep per machine. Thread: any.
class launch_state {
 public:
  explicit launch_state(machine_state& machine);

  lane_pool lanes;
  launch_history history;

  [[nodiscard]] std::uint64_t next_number() { return numbers_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// Also lets launches that have ended, and that nobody waits for, give back what they hold.
  void began(const std::shared_ptr<launch_job>& job);
  /// A launch is over; one that failed is kept until somebody has been told why.
  void ended(const launch_job* job, bool failed);
  void told(const launch_job* job);
  /// Memory of a device for data that passes through: host memory that launches bring and take away again, slices.
  /// Keeps at most a quarter of the device when nobody uses it.
  [[nodiscard]] memory_pool& passing(const device& on);
  /// Gives back what passing() keeps there.
  void trim(device_id device);
  /// Waits for all launches; the first failure that nobody has been told of.
  [[nodiscard]] result<wait_outcome> finish(wait_deadline deadline);

 private:
  std::atomic<std::uint64_t> numbers_{0};
  std::mutex mutex_;
  std::deque<std::shared_ptr<launch_job>> running_;
  std::vector<std::shared_ptr<launch_job>> untold_;
  std::mutex pools_mutex_;
  std::map<device_id, memory_pool> pools_;
};

[[nodiscard]] inline launch_state& launches_of(machine_state& machine) {
  return machine.part_of<launch_state>(part::launches);
}

}  // namespace weft::detail
