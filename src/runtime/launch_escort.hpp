// SPDX-License-Identifier: Apache-2.0
// What has to happen around every launch that is given a piece of memory: a layer above lays it down by the address,
// and whoever launches asks.
#pragma once

#include "runtime/machine_state.hpp"
#include "weft/backend/backend.hpp"

#include <memory>
#include <shared_mutex>
#include <unordered_map>

namespace weft::detail {

/// Submits what goes before and behind a launch, in the launch's own stream. What is before may have run when the
/// launch is refused: it must come to nothing without what is behind. Thread: one launch at a time.
class launch_escort {
 public:
  launch_escort() = default;
  launch_escort(const launch_escort&) = delete;
  launch_escort& operator=(const launch_escort&) = delete;
  virtual ~launch_escort() = default;

  [[nodiscard]] virtual result<void> before(backend& driver, stream_handle order) = 0;
  /// The event that the launch ends with.
  [[nodiscard]] virtual result<event_ref> behind(backend& driver, stream_handle order) = 0;
};

/// The escorts of a machine. Thread: any.
class launch_escorts {
 public:
  explicit launch_escorts(machine_state&) {}

  void add(const void* address, const std::shared_ptr<launch_escort>& escort) {
    const std::unique_lock lock{mutex_};
    of_[address] = escort;
  }
  void remove(const void* address) noexcept {
    const std::unique_lock lock{mutex_};
    of_.erase(address);
  }
  /// Null when a launch with this memory needs none.
  [[nodiscard]] std::shared_ptr<launch_escort> find(const void* address) const {
    const std::shared_lock lock{mutex_};
    const auto found = of_.find(address);
    return found == of_.end() ? nullptr : found->second.lock();
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::weak_ptr<launch_escort>> of_;
};

[[nodiscard]] inline launch_escorts& escorts_of(machine_state& machine) {
  return machine.part_of<launch_escorts>(part::escorts);
}

}  // namespace weft::detail
