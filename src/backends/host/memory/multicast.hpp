// SPDX-License-Identifier: Apache-2.0
// Multicast of the virtual devices, in software: a store is a copy to each replica, a load reads all of them. Hardware
// does both in the switch, with one message on each device's link.
#pragma once

#include "backends/host/memory/block_map.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::host {

/// One device's memory in a multicast object.
struct replica {
  device_id device;
  std::shared_ptr<block_memory> memory;
  window_handle view;
};

/// Thread: any.
class multicast_group {
 public:
  multicast_group(std::size_t devices, std::size_t size) : devices_(devices), size_(size) {}

  [[nodiscard]] result<void> add(device_id device);
  [[nodiscard]] result<void> bind(std::shared_ptr<block_memory> memory);
  [[nodiscard]] result<void> unbind(device_id device);
  /// Every replica. Errors: not_ready naming who has not bound; out_of_range; wrong_device for a stranger.
  [[nodiscard]] result<std::vector<std::shared_ptr<replica>>> reach(device_id by, std::uint64_t offset,
                                                                    std::uint64_t size);

 private:
  std::size_t devices_;
  std::size_t size_;
  std::mutex mutex_;
  std::map<device_id, std::shared_ptr<replica>> bound_;  // empty until bound
};

/// Joins `count` elements of all replicas, in the order of their devices.
void join(std::byte* to, const std::vector<std::shared_ptr<replica>>& from, std::uint64_t offset, std::size_t count,
          element_type type, multicast_reduction how) noexcept;

/// Thread: any.
class multicast_table {
 public:
  [[nodiscard]] multicast_id add(std::shared_ptr<multicast_group> made);
  [[nodiscard]] std::shared_ptr<multicast_group> find(multicast_id id);
  void remove(multicast_id id);
  void clear();

 private:
  std::mutex mutex_;
  std::map<multicast_id, std::shared_ptr<multicast_group>> groups_;
  std::uint64_t last_ = 0;
};

}  // namespace weft::host
