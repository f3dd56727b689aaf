// SPDX-License-Identifier: Apache-2.0
// Every address of the machine: which allocation it lies in, whose it is, and who may use it now.
#pragma once

#include "backend/address.hpp"
#include "backends/host/arena.hpp"
#include "backends/host/fault_plan.hpp"
#include "backends/host/shared_allocation.hpp"
#include "weft/backend/backend.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <vector>

namespace weft::host {

struct memory_options {
  bool strict = false;
  std::optional<std::byte> fill_new;
};

class memory_map;
struct block_memory;
struct block_mapping;

/// One allocation, adopted range, peer mapping or mapping of a block. Lives while the table or an operation holds it.
struct allocation {
  memory_map* home = nullptr;
  memory_kind kind = memory_kind::device;
  device_id owner;                   // where the bytes are
  device_id by;                      // mapped: who may use it
  std::byte* user = nullptr;         // the address that users know
  std::byte* device_side = nullptr;  // where devices find the bytes
  std::size_t size = 0;
  block storage;                            // device, pinned, unified
  window_handle view, view_user;            // mapped: the second mapping of the owner's bytes
  std::shared_ptr<allocation> source;       // mapped: the memory behind it …
  std::size_t source_offset = 0;            // … and where in it the mapping starts
  std::set<std::uintptr_t> windows;         // device: where peer mappings of it start, guarded by the table
  bool charged = false;                     // counts against the owner's limit
  std::atomic<std::uint64_t> pending{0};    // operations submitted with it
  std::atomic<bool> revoked{false};         // mapped: access was disabled or the mapping ended
  bool own_pages = false;                   // device: nothing else lies in its pages
  std::shared_ptr<export_record> exported;  // guarded by the table
  std::unique_ptr<import_record> imported;  // mapped: the memory of another process
  std::shared_ptr<access_list> only;        // from the start: who may use it, where peer access does not decide
  std::mutex drop_mutex;
  std::vector<std::pair<device_id, window_handle>> drop_views;  // what a device sees whose writes never arrive
  std::unique_ptr<block_mapping> mapping;                       // block: what is mapped, and who may use it
  std::vector<std::shared_ptr<allocation>> parts;               // block: mappings that touch, seen as one for one range

  allocation();
  allocation(const allocation&) = delete;
  allocation& operator=(const allocation&) = delete;
  ~allocation();
};

/// Holds an allocation for one operation.
class pin {
 public:
  pin() = default;
  explicit pin(std::shared_ptr<allocation> held) : held_(std::move(held)) {
    if (held_) held_->pending.fetch_add(1, std::memory_order_seq_cst);
  }
  pin(pin&& other) noexcept = default;
  pin& operator=(pin&& other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  pin(const pin&) = delete;
  pin& operator=(const pin&) = delete;
  ~pin() {
    // release: pairs with the acquire of whoever reads pending to reuse the memory
    if (held_) held_->pending.fetch_sub(1, std::memory_order_release);
  }
  [[nodiscard]] allocation* get() const { return held_.get(); }
  [[nodiscard]] const std::shared_ptr<allocation>& shared() const { return held_; }
  explicit operator bool() const { return held_ != nullptr; }

 private:
  std::shared_ptr<allocation> held_;
};

/// Thread: any.
class memory_map {
 public:
  memory_map(const topology& machine, device_id first, const memory_options& options, fault_plan& faults);
  ~memory_map();

  /// `own_pages`: nothing else lies in its pages, so that it can be exported. `only`: who may use it.
  [[nodiscard]] result<void*> allocate(device_id device, std::size_t size, memory_kind kind, bool own_pages = false,
                                       std::shared_ptr<access_list> only = nullptr);
  [[nodiscard]] result<void> adopt(device_id device, void* base, std::size_t size);
  [[nodiscard]] result<void> release(void* base);
  [[nodiscard]] memory_use use(device_id device);

  /// The allocation that an address lies in; empty when there is none.
  [[nodiscard]] std::shared_ptr<allocation> find(const void* address);
  /// Shows the allocation while nothing changes in the table; false when there is none.
  bool visit(const void* address, const std::function<void(const std::shared_ptr<allocation>&)>& f);
  /// The same for a range. One that reaches over mappings of blocks that touch finds all of them as one allocation.
  [[nodiscard]] std::shared_ptr<allocation> find(const void* address, std::uint64_t extent);

  // for block_map: mappings of blocks are found like any other memory
  [[nodiscard]] result<void> charge(device_id device, std::size_t size);
  void uncharge(device_id device, std::size_t size) noexcept;
  void add(std::shared_ptr<allocation> made);
  /// The mappings of blocks that make up exactly this range; empty when there is none, or a gap, or a part of one.
  [[nodiscard]] std::vector<std::shared_ptr<allocation>> blocks_in(const void* address, std::uint64_t size);
  /// Takes them out of the table; operations that hold them may still end.
  void remove(std::span<const std::shared_ptr<allocation>> ended);
  /// Writes the pattern of new memory, where there is one.
  void fill_new(std::byte* memory, std::size_t size) const noexcept;
  [[nodiscard]] std::size_t devices() const { return devices_; }
  [[nodiscard]] std::size_t local(device_id id) const { return static_cast<std::size_t>(id.value() - first_.value()); }

  [[nodiscard]] result<void> enable(device_id from, device_id to);
  [[nodiscard]] result<void> disable(device_id from, device_id to);
  [[nodiscard]] bool enabled(device_id from, device_id to) const noexcept;
  [[nodiscard]] std::uint64_t peer_epoch() const noexcept { return epoch_.load(std::memory_order_acquire); }
  [[nodiscard]] result<void*> map(device_id by, void* address, std::size_t size);
  [[nodiscard]] result<void> unmap(device_id by, void* mapped);

  /// Whether a device may use an allocation now; the reason when it may not.
  [[nodiscard]] std::optional<std::string> denied(device_id by, const allocation& memory, bool writes = false) const;
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
  /// The error for an address that find() does not know.
  template <class What>
  [[nodiscard]] error absent(const What& what) const {
    return state_.absent(what);
  }

  [[nodiscard]] const memory_options& options() const { return options_; }

 private:
  table_state state_;
  friend struct allocation;
  [[nodiscard]] std::size_t pair(device_id from, device_id to) const { return local(from) * devices_ + local(to); }
  [[nodiscard]] error out_of_memory(device_id device, std::size_t asked);
  void revoke(device_id by, device_id owner, bool end);
  void unlist(const allocation& window);
  [[nodiscard]] result<std::byte*> seen_by(device_id by, allocation& memory, std::ptrdiff_t offset);

  const topology& machine_;
  device_id first_;
  std::size_t devices_;
  memory_options options_;
  fault_plan& faults_;
  std::vector<std::unique_ptr<arena>> device_memory_;
  arena host_memory_{false};
  std::vector<std::atomic<std::uint64_t>> used_;
  std::vector<std::atomic<std::uint8_t>> enabled_;
  std::atomic<std::uint64_t> epoch_{1};
  std::mutex peer_mutex_;

  mutable std::shared_mutex table_mutex_;
  std::map<std::uintptr_t, std::shared_ptr<allocation>> table_;
  // peer mappings by pair, then by where they start: a change of one pair looks at no other memory
  std::map<std::size_t, std::map<std::uintptr_t, allocation*>> windows_;

  // Address space of ended mappings, kept inaccessible for a while so that a stale pointer faults.
  std::mutex graveyard_mutex_;
  std::vector<window_handle> graveyard_;
};

}  // namespace weft::host
