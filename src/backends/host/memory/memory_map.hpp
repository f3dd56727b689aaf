// SPDX-License-Identifier: Apache-2.0
// Every address of the machine: which allocation it lies in, whose it is, and who may use it now.
#pragma once

#include "backends/common/memory_model.hpp"
#include "backends/host/engine/fault_plan.hpp"
#include "backends/host/memory/arena.hpp"
#include "backends/host/memory/shared_allocation.hpp"
#include "weft/backend/backend.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace weft::host {

struct memory_options {
  bool strict = false;
  std::optional<std::byte> fill_new;
};

class memory_map;
struct block_memory;
struct block_mapping;

/// One allocation, adopted range, peer mapping or mapping of a block.
struct allocation : common::known_range<allocation> {
  memory_map* home = nullptr;
  std::byte* device_side = nullptr;         // where devices find the bytes
  block storage;                            // device, pinned, unified
  window_handle view, view_user;            // mapped: the second mapping of the owner's bytes
  bool own_pages = false;                   // device: nothing else lies in its pages
  std::shared_ptr<export_record> exported;  // guarded by the table
  std::unique_ptr<import_record> imported;  // mapped: the memory of another process
  std::mutex drop_mutex;
  std::vector<std::pair<device_id, window_handle>> drop_views;  // what a device sees whose writes never arrive
  std::unique_ptr<block_mapping> mapping;                       // block: what is mapped, and who may use it

  allocation();
  ~allocation();
  [[nodiscard]] std::optional<error> broken() const { return imported ? imported->broken(user) : std::nullopt; }
  /// Its address faults from now on, unless an operation uses it.
  void hide() const noexcept;
  void begin_as(const allocation& first) {
    known_range::begin_as(first);
    device_side = first.device_side;
  }
};

using pin = common::pin<allocation>;

/// Thread: any.
class memory_map final : public common::memory_model<allocation> {
 public:
  memory_map(const topology& machine, device_id first, const memory_options& options, fault_plan& faults);
  ~memory_map();

  /// `own_pages`: nothing else lies in its pages, so that it can be exported. `only`: who may use it.
  [[nodiscard]] result<void*> allocate(device_id device, std::size_t size, memory_kind kind, bool own_pages = false,
                                       std::shared_ptr<common::access_list> only = nullptr);
  [[nodiscard]] result<void> adopt(device_id device, void* base, std::size_t size);
  [[nodiscard]] result<void> release(void* base);
  /// Writes the pattern of new memory, where there is one.
  void fill_new(std::byte* memory, std::size_t size) const noexcept;

  [[nodiscard]] result<void> enable(device_id from, device_id to);
  [[nodiscard]] result<void> disable(device_id from, device_id to);
  /// The address must lie in memory of a device, which `by` may use.
  [[nodiscard]] result<void*> map(device_id by, void* address, std::size_t size);

  /// Where a device finds an address that it may use. A device whose writes to the owner are dropped gets a private
  /// view; one that may only read a block gets an address that faults when written.
  [[nodiscard]] result<std::byte*> resolve(device_id by, allocation& memory, const void* address, bool writes = false);

  /// Memory of a device that is in no table and on no account, and where another one finds it: for a try.
  struct trial {
    std::unique_ptr<allocation> memory;
    std::byte* seen = nullptr;
  };
  [[nodiscard]] result<trial> try_memory(device_id by, device_id owner, std::size_t size);

  /// Everything on a device goes: its memory, mappings and relations. What the host sees too stays.
  void forget(device_id device);
  void clear();

  [[nodiscard]] const memory_options& options() const { return options_; }

 private:
  friend struct allocation;
  [[nodiscard]] result<std::byte*> seen_by(device_id by, allocation& memory, std::ptrdiff_t offset);

  const topology& machine_;
  memory_options options_;
  fault_plan& faults_;
  std::vector<std::unique_ptr<arena>> device_memory_;
  arena host_memory_{false};
  std::mutex peer_mutex_;

  // Address space of ended mappings, kept inaccessible for a while so that a stale pointer faults.
  std::mutex graveyard_mutex_;
  std::vector<window_handle> graveyard_;
};

}  // namespace weft::host
