// SPDX-License-Identifier: Apache-2.0
// Blocks, reservations and mappings, over the driver's memory without an address, address space without memory, and
// rights. Mappings stand in memory_map beside all other memory.
#pragma once

#include "backends/gpu/memory_map.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft::gpu {

/// Memory without an address. Lives while a reference or a mapping holds it.
struct block_memory {
  memory_map* home = nullptr;
  block_id id{};
  device_id device;
  CUmemGenericAllocationHandle handle = 0;
  std::size_t size = 0;
  bool shareable = false;
  bool imported = false;
  bool charged = false;
  std::uint64_t references = 0;  // guarded by the table

  block_memory() = default;
  block_memory(const block_memory&) = delete;
  block_memory& operator=(const block_memory&) = delete;
  ~block_memory();
};

/// Address space without memory.
struct reserved_range {
  memory_map* home = nullptr;
  CUdeviceptr base = 0;
  std::size_t size = 0;      // as it was asked for
  std::size_t reserved = 0;  // … and in whole granules
  std::mutex mutex;
  std::map<std::size_t, std::size_t> busy;  // offset → size: mapped, or still used by work that has not ended

  reserved_range() = default;
  reserved_range(const reserved_range&) = delete;
  reserved_range& operator=(const reserved_range&) = delete;
  ~reserved_range();
};

/// A block at an address: what an allocation of this kind has besides.
struct block_mapping {
  std::shared_ptr<block_memory> memory;
  std::shared_ptr<reserved_range> range;
};

/// Thread: any.
class blocks {
 public:
  explicit blocks(memory_map& memory) : memory_(memory), cu_(memory.cu()) {}

  [[nodiscard]] result<block_granularity> granularity(device_id device) const;
  [[nodiscard]] result<block_id> create(device_id device, std::size_t size, bool shareable);
  [[nodiscard]] result<void> retain(block_id block);
  [[nodiscard]] result<void> release(block_id block);
  [[nodiscard]] result<block_description> describe(block_id block);
  [[nodiscard]] std::shared_ptr<block_memory> find(block_id block);

  [[nodiscard]] result<void*> reserve(std::size_t size, std::size_t alignment, void* hint);
  [[nodiscard]] result<void> free(void* base, std::size_t size);
  [[nodiscard]] result<void> map(void* address, std::size_t size, block_id block);
  [[nodiscard]] result<void> unmap(void* address, std::size_t size);
  /// The rights' devices must be known.
  [[nodiscard]] result<void> set_access(void* address, std::size_t size, std::span<const device_right> rights);
  [[nodiscard]] result<access_right> access_of(device_id device, const void* address);
  [[nodiscard]] result<block_id> block_of(const void* address);

  [[nodiscard]] result<int> give(block_id block);
  /// Without a device the block is of that which the driver names: the first part of the GPU. Errors, then: not_found
  /// where the driver does not tell, or the GPU is not of this machine.
  [[nodiscard]] result<block_id> take(std::optional<device_id> device, int descriptor);

  /// References to blocks of a device go.
  void forget(device_id device);
  void clear();

 private:
  /// Why a device's GPU has no blocks; empty if it has.
  [[nodiscard]] std::string missing(device_id device) const;
  [[nodiscard]] CUmemAllocationProp properties(device_id device, bool shareable) const;
  [[nodiscard]] result<std::size_t> granule(device_id device) const;
  [[nodiscard]] block_id added(std::shared_ptr<block_memory> made);
  [[nodiscard]] std::shared_ptr<reserved_range> range_of(const void* address, std::size_t size);
  [[nodiscard]] result<device_id> home_of(CUmemGenericAllocationHandle handle) const;
  [[nodiscard]] result<std::size_t> size_of(CUmemGenericAllocationHandle handle, device_id device) const;
  [[nodiscard]] result<void> apply(const allocation& mapping, const access_list& rights) const;

  memory_map& memory_;
  const driver& cu_;
  std::mutex mutex_;
  std::map<block_id, std::shared_ptr<block_memory>> blocks_;                // with references
  std::map<std::uintptr_t, std::shared_ptr<reserved_range>> reservations_;  // by base
  std::uint64_t last_id_ = 0;
};

}  // namespace weft::gpu
