// SPDX-License-Identifier: Apache-2.0
// Blocks, reservations and mappings, over the driver's memory without an address, address space without memory, and
// rights. Mappings stand in memory_map beside all other memory.
#pragma once

#include "backends/common/block_table.hpp"
#include "backends/gpu/memory/memory_map.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::gpu {

struct block_memory : common::known_block {
  memory_map* home = nullptr;
  CUmemGenericAllocationHandle handle = 0;

  block_memory() = default;
  block_memory(const block_memory&) = delete;
  block_memory& operator=(const block_memory&) = delete;
  ~block_memory();
};

struct reserved_range : common::known_reservation {
  memory_map* home = nullptr;
  std::size_t reserved = 0;  // size in whole granules

  reserved_range() = default;
  ~reserved_range();
};

/// Thread: any.
class blocks : public common::block_table<memory_map, block_memory, reserved_range> {
 public:
  explicit blocks(memory_map& memory) : block_table(memory), cu_(memory.cu()) {}

  [[nodiscard]] result<block_granularity> granularity(device_id device) const;
  [[nodiscard]] result<block_id> create(device_id device, std::size_t size, bool shareable);
  [[nodiscard]] result<void*> reserve(std::size_t size, std::size_t alignment, void* hint);
  [[nodiscard]] result<void> map(void* address, std::size_t size, block_id block);
  /// The rights' devices must be known.
  [[nodiscard]] result<void> set_access(void* address, std::size_t size, std::span<const device_right> rights);

  [[nodiscard]] result<int> give(block_id block);
  /// Without a device the block is of that which the driver names: the first part of the GPU. Errors, then: not_found
  /// where the driver does not tell, or the GPU is not of this machine.
  [[nodiscard]] result<block_id> take(std::optional<device_id> device, int descriptor, std::size_t told);

 private:
  /// Why a device's GPU has no blocks; empty if it has.
  [[nodiscard]] std::string missing(device_id device) const;
  [[nodiscard]] CUmemAllocationProp properties(device_id device, bool shareable) const;
  [[nodiscard]] result<std::size_t> granule(device_id device) const;
  [[nodiscard]] result<device_id> home_of(CUmemGenericAllocationHandle handle) const;
  [[nodiscard]] result<current_context> place_for_blocks(device_id device) const;
  [[nodiscard]] result<std::size_t> size_of(CUmemGenericAllocationHandle handle, int descriptor, device_id device,
                                            std::size_t told) const;
  [[nodiscard]] result<void> apply(const allocation_ref& mapping, const common::access_list& rights);
  void apply_later(const allocation_ref& mapping);

  const driver& cu_;
};

}  // namespace weft::gpu
