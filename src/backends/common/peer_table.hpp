// SPDX-License-Identifier: Apache-2.0
// Which device of a machine may use the memory of which, as the library says; what the driver was asked for besides is
// the backend's.
#pragma once

#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::common {

/// Thread: any; those that change one pair, one at a time.
class peer_table {
 public:
  peer_table(device_id first, std::size_t devices) : first_(first), devices_(devices), enabled_(devices * devices) {}

  [[nodiscard]] std::size_t local(device_id id) const { return static_cast<std::size_t>(id.value() - first_.value()); }
  [[nodiscard]] device_id global(std::size_t device) const {
    return device_id{first_.value() + static_cast<int>(device)};
  }
  [[nodiscard]] std::size_t devices() const { return devices_; }

  [[nodiscard]] bool enabled(device_id from, device_id to) const noexcept {
    return enabled_[pair(from, to)].load(std::memory_order_acquire);
  }
  /// How many peers a device has access to.
  [[nodiscard]] std::size_t peers_of(device_id from) const noexcept;
  /// Grows with every change.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_.load(std::memory_order_acquire); }

  /// Errors: already_enabled.
  [[nodiscard]] result<void> enable(device_id from, device_id to);
  /// Errors: not_enabled.
  [[nodiscard]] result<void> disable(device_id from, device_id to);
  /// Access of a device to others, and of others to it, is gone.
  void forget(device_id device) noexcept;

 private:
  [[nodiscard]] std::size_t pair(device_id from, device_id to) const { return local(from) * devices_ + local(to); }

  device_id first_;
  std::size_t devices_;
  std::vector<std::atomic<bool>> enabled_;  // [from * N + to]
  std::atomic<std::uint64_t> epoch_{1};
};

}  // namespace weft::common
