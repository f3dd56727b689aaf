// SPDX-License-Identifier: Apache-2.0
// What has crossed the links of a machine: counted by commands when they end, and read from words that threads count
// in.
#pragma once

#include "weft/backend/backend.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace weft::detail {

/// Thread: any.
class traffic_account {
 public:
  /// `machine` outlives this; its devices are those from `first` on.
  traffic_account(const topology& machine, device_id first)
      : machine_(machine), first_(first), links_(machine.links.size()) {}

  /// The way between two devices, or a device and the host (no device); null where nothing is crossed.
  [[nodiscard]] const link_path* between(device_id from, device_id to) const;
  void add(const link_path& path, std::uint64_t count) noexcept;
  [[nodiscard]] link_traffic now();
  /// Its id. The devices are this machine's, or the host.
  [[nodiscard]] std::uint64_t watch(const traffic_source& source);
  void unwatch(std::uint64_t id);

 private:
  [[nodiscard]] std::size_t local(device_id id) const { return static_cast<std::size_t>(id.value() - first_.value()); }

  const topology& machine_;
  device_id first_;
  std::vector<std::atomic<std::uint64_t>> links_;
  std::mutex mutex_;
  std::map<std::uint64_t, traffic_source> sources_;
  std::uint64_t last_ = 0;
};

}  // namespace weft::detail
