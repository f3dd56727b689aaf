// SPDX-License-Identifier: Apache-2.0
// The memory of a machine as every backend has it: whose each address is, which device may use it, how much is left. A
// backend's memory_map adds how memory is made, and what its driver is told.
#pragma once

#include "backend/address.hpp"
#include "backend/memory_shortage.hpp"
#include "backends/common/address_table.hpp"
#include "backends/common/allocation.hpp"
#include "backends/common/peer_table.hpp"
#include "weft/backend/backend.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace weft::common {

/// Thread: any.
template <class A>
class memory_model {
 public:
  using allocation_type = A;
  using ref = std::shared_ptr<A>;

  memory_model(const memory_model&) = delete;
  memory_model& operator=(const memory_model&) = delete;

  [[nodiscard]] std::size_t local(device_id id) const { return peers_.local(id); }
  [[nodiscard]] device_id global(std::size_t device) const { return peers_.global(device); }
  [[nodiscard]] std::size_t devices() const { return peers_.devices(); }

  // addresses: address_table says more
  [[nodiscard]] ref find(const void* address) const { return table_.find(address); }
  [[nodiscard]] ref find(const void* address, std::uint64_t extent) const { return table_.find(address, extent); }
  /// Errors: not_found.
  [[nodiscard]] result<memory_description> describe(const void* address) const {
    const ref found = find(address);
    if (!found) return not_allocated(address);
    return memory_description{.base = found->user,
                              .size = bytes{found->size},
                              .kind = found->kind,
                              .device = found->kind == memory_kind::mapped ? found->by : found->owner,
                              .pending = found->pending.load(std::memory_order_acquire),  // pairs with release in ~pin
                              .serial = found->serial};
  }
  template <class F>
  bool visit(const void* address, F&& f) const {
    return table_.visit(address, std::forward<F>(f));
  }
  [[nodiscard]] std::vector<ref> blocks_in(const void* address, std::uint64_t size) const {
    return table_.blocks_in(address, size);
  }
  void add(ref made) { table_.add(std::move(made)); }
  void remove(const ref& ended) { table_.remove(ended); }
  /// What is to be mapped, as it is now: it may have been freed since the front looked. Errors: not_found;
  /// out_of_range.
  [[nodiscard]] result<ref> to_be_mapped(const void* address, std::size_t size) const {
    ref source = find(address);
    if (!source || source->kind != memory_kind::device) return not_allocated(address);
    if (auto wrong = beyond_end("a mapping", size, address, source->user, source->size)) return std::move(*wrong);
    return source;
  }
  /// Whether a byte of it has a stale address.
  [[nodiscard]] bool is_stale(const void* base, std::size_t size) const { return table_.is_stale(base, size); }
  void remove_stale(const void* address) { table_.remove_stale(address); }
  /// Ends a peer mapping. Errors: not_found; wrong_device.
  [[nodiscard]] result<void> unmap(device_id by, void* mapped) {
    auto gone = table_.unmap(by, mapped);
    if (!gone) return std::move(gone).error();
    return {};
  }

  // what devices have left
  /// Errors: out_of_memory, naming the largest allocations.
  [[nodiscard]] result<void> charge(device_id device, std::size_t size) {
    std::atomic<std::uint64_t>& used = used_[local(device)];
    const std::uint64_t total = totals_[local(device)].value();
    std::uint64_t before = used.load(std::memory_order_relaxed);
    do {
      if (size > total || before > total - size) return out_of_memory(device, size);
    } while (!used.compare_exchange_weak(before, before + size, std::memory_order_relaxed));
    return {};
  }
  void uncharge(device_id device, std::size_t size) noexcept {
    used_[local(device)].fetch_sub(size, std::memory_order_relaxed);
  }
  [[nodiscard]] error out_of_memory(device_id device, std::size_t asked) const {
    weft::detail::memory_shortage found{device, use(device), asked};
    table_.for_each([&](const ref& one) {
      if (one->owner == device && one->charged != 0) found.look(one->user, one->size);
    });
    return found.cause();
  }
  [[nodiscard]] virtual memory_use use(device_id device) const {
    const bytes total = totals_[local(device)];
    const std::uint64_t used = used_[local(device)].load(std::memory_order_relaxed);
    return {.total = total, .free = bytes{used < total.value() ? total.value() - used : 0}};
  }

  // who may
  [[nodiscard]] bool enabled(device_id from, device_id to) const noexcept { return peers_.enabled(from, to); }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return peers_.epoch(); }
  /// Whether bytes go between the memories of two devices without access of one to the other.
  [[nodiscard]] virtual bool copies_without_access(device_id, device_id) const { return false; }
  /// Why a device may not use an allocation now; empty if it may. Rights only: what is wrong with memory of another
  /// process, which broken() says, is no device's doing and loses none.
  [[nodiscard]] std::string denied(device_id by, const A& memory, bool writes = false) const {
    for (const ref& part : memory.parts) {
      if (std::string why = denied(by, *part, writes); !why.empty()) return why;
    }
    if (!memory.parts.empty()) return {};
    if (memory.kind == memory_kind::mapped && !memory.only && by == memory.by && !enabled(by, memory.owner))
      return to_string(by) + " has no access to " + to_string(memory.owner) + " any more";
    if (memory.revoked.load()) return memory.why_revoked();
    if (memory.only) return without_right(by, memory, writes);
    switch (memory.kind) {
      case memory_kind::mapped:
        if (by != memory.by) return "the mapping belongs to " + to_string(memory.by) + ", not to " + to_string(by);
        return {};
      case memory_kind::pinned:
      case memory_kind::unified:
      case memory_kind::adopted:
        return denied_of_host(by, memory);
      default:
        if (memory.owner == by || enabled(by, memory.owner)) return {};
        return to_string(by) + " has no access to the memory of " + to_string(memory.owner) +
               ": enable it (peer_access) first";
    }
  }

 protected:
  /// A peer mapping that is a name, for `A` with `reserved` addresses. It has the offset of the source in its page, as
  /// an alias of it would have. Errors: as to_be_mapped(); resource_exhausted.
  [[nodiscard]] result<ref> named_mapping(device_id by, const void* address, std::size_t size) const {
    auto source = to_be_mapped(address, size);
    if (!source) return source;
    auto made = std::make_shared<A>();
    made->kind = memory_kind::mapped;
    made->owner = (*source)->owner;
    made->by = by;
    made->size = size;
    made->source_offset = number(address) - number((*source)->user);
    made->source = std::move(*source);
    made->reserved = reserve_addresses(whole_pages(size + page_size()));
    if (!made->reserved) return make_error(errc::resource_exhausted, "there is no address space left for a mapping");
    made->user = made->reserved.get() + number(address) % page_size();
    return made;
  }

  /// Ends all for which `goes(allocation)` is true, on the account of their devices too.
  template <class F>
  void end_if(F&& goes) {
    const auto gone = table_.end_if([&](A& one) {
      if (!goes(one)) return false;
      uncharge(one.owner, std::exchange(one.charged, 0));
      return true;
    });
  }

  /// `memory_of` is asked how much memory each of the places has.
  template <class Places, class F>
  memory_model(device_id first, const Places& places, F memory_of)
      : peers_(first, places.size()), used_(places.size()) {
    totals_.reserve(places.size());
    for (const auto& one : places) totals_.push_back(std::invoke(memory_of, one));
  }
  ~memory_model() = default;

  /// Why kernels of a device cannot use memory of the host; empty if they can.
  [[nodiscard]] virtual std::string denied_of_host(device_id, const A&) const { return {}; }

  address_table<A> table_;
  peer_table peers_;

 private:
  [[nodiscard]] std::string without_right(device_id by, const A& memory, bool writes) const {
    const access_right right = memory.only->of(local(by));
    if (right == access_right::read_write || (right == access_right::read && !writes)) return {};
    const bool is_block = memory.kind == memory_kind::block;
    const std::string what = is_block ? "a mapping of a block of " + to_string(memory.owner) : "this memory";
    if (right == access_right::read) return to_string(by) + " may only read " + what;
    return to_string(by) + " has no right to " + what +
           (is_block ? "; grant it one first" : ", which peer access does not cover: set its access");
  }

  std::vector<bytes> totals_;
  std::vector<std::atomic<std::uint64_t>> used_;
};

}  // namespace weft::common
