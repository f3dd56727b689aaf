// SPDX-License-Identifier: Apache-2.0
// Multicast objects of the driver: made, joined by devices, bound to blocks, and mapped where they are used. Storing to
// all replicas and joining them in one read are instructions of kernels: own_kernels has those.
#pragma once

#include "backends/gpu/memory/blocks.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft::gpu {

/// Keeps an object as it is, mapped and bound, while an operation uses it.
class multicast_use {
 public:
  multicast_use(std::shared_ptr<void> object, std::atomic<int>& users, CUdeviceptr address,
                std::vector<device_id> replicas)
      : object_(std::move(object)), users_(users), address_(address), replicas_(std::move(replicas)) {
    users_.fetch_add(1, std::memory_order_relaxed);
  }
  multicast_use(const multicast_use&) = delete;
  multicast_use& operator=(const multicast_use&) = delete;
  ~multicast_use() { users_.fetch_sub(1, std::memory_order_release); }  // pairs with acquire in unbind

  /// Where the operation begins: the same on every GPU of the team, and only for multicast instructions.
  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
  [[nodiscard]] const std::vector<device_id>& replicas() const noexcept { return replicas_; }

 private:
  std::shared_ptr<void> object_;
  std::atomic<int>& users_;  // in it
  CUdeviceptr address_;
  std::vector<device_id> replicas_;
};

/// Thread: any.
class multicast_groups {
 public:
  multicast_groups(memory_map& memory, blocks& all_blocks) : memory_(memory), cu_(memory.cu()), blocks_(all_blocks) {}

  [[nodiscard]] result<bytes> granularity(std::span<const device_id> team);
  [[nodiscard]] result<multicast_id> create(std::size_t devices, std::size_t size);
  void release(multicast_id group);
  [[nodiscard]] result<void> add(multicast_id group, device_id device);
  [[nodiscard]] result<void> bind(multicast_id group, block_id block);
  /// Errors: not_ready while work uses the object.
  [[nodiscard]] result<void> unbind(multicast_id group, device_id device);
  /// Maps the object with its first use. Errors: wrong_device, out_of_range; not_ready before all have bound.
  [[nodiscard]] result<std::shared_ptr<const multicast_use>> use(multicast_id group, device_id by, std::uint64_t offset,
                                                                 std::uint64_t size);
  /// What a device has joined goes with its reset: the replicas are gone.
  void forget(device_id device);
  void clear();

 private:
  struct group;
  [[nodiscard]] std::string missing(device_id device) const;
  [[nodiscard]] std::shared_ptr<group> find(multicast_id id);
  [[nodiscard]] result<void> map(group& known) const;

  memory_map& memory_;
  const driver& cu_;
  blocks& blocks_;
  std::mutex mutex_;
  std::map<multicast_id, std::shared_ptr<group>> groups_;
  std::uint64_t last_id_ = 0;
};

}  // namespace weft::gpu
