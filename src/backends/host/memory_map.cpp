// SPDX-License-Identifier: Apache-2.0
#include "backends/host/memory_map.hpp"

#include "backend/address.hpp"
#include "backend/memory_shortage.hpp"
#include "backends/host/block_map.hpp"
#include "core/hex.hpp"
#include "core/make_error.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/mman.h>

namespace weft::host {
namespace {

constexpr std::size_t graveyard_size = 1024;
constexpr std::size_t patterned = std::size_t{16} << 20;

bool same_range(const allocation& a, const allocation& b) { return a.mapping->range == b.mapping->range; }

/// The address of a device that was found to have a right: one that can be written only if it has that right
/// everywhere.
result<std::byte*> find_alias(const allocation& memory, std::size_t device, std::ptrdiff_t offset) {
  const auto writes = [device](const allocation& a) {
    return a.mapping->rights[device].load(std::memory_order_seq_cst) == access_right::read_write;
  };
  const bool alone = memory.parts.empty();
  const bool all =
      alone ? writes(memory)
            : std::all_of(memory.parts.begin(), memory.parts.end(), [&](const auto& part) { return writes(*part); });
  const auto show = [all](const allocation& a) {
    return a.mapping->show(all ? access_right::read_write : access_right::read);
  };
  if (alone) {
    if (auto shown = show(memory); !shown) return std::move(shown).error();
  }
  for (const auto& part : memory.parts) {
    if (auto shown = show(*part); !shown) return std::move(shown).error();
  }
  const block_mapping& first = alone ? *memory.mapping : *memory.parts.front()->mapping;
  return (all ? first.writable() : first.readable()) + offset;
}

}  // namespace

allocation::allocation() = default;

allocation::~allocation() {
  // release: pairs with the acquire of whoever reads pending
  for (const auto& part : parts) part->pending.fetch_sub(1, std::memory_order_release);
  if (home == nullptr) return;
  if (storage.home != nullptr) {
    (kind == memory_kind::device ? *home->device_memory_[home->local(owner)] : home->host_memory_).give(storage);
    if (charged) home->uncharge(owner, size);
  }
  if (kind == memory_kind::mapped) {
    // The address space stays reserved without memory: a stale pointer faults instead of finding a new mapping.
    window_handle& seen = view_user ? view_user : view;
    if (seen) {
      const window w = seen.get();
      if (::mmap(w.base, w.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
          MAP_FAILED) {
        const std::lock_guard lock{home->graveyard_mutex_};
        auto& grave = home->graveyard_;
        if (grave.size() >= graveyard_size) grave.erase(grave.begin(), grave.begin() + graveyard_size / 2);
        grave.push_back(std::move(seen));
      }
    }
  }
}

memory_map::memory_map(const topology& machine, device_id first, const memory_options& options, fault_plan& faults)
    : machine_(machine),
      first_(first),
      devices_(machine.devices.size()),
      options_(options),
      faults_(faults),
      used_(devices_),
      enabled_(devices_ * devices_) {
  for (std::size_t i = 0; i < devices_; ++i) device_memory_.push_back(std::make_unique<arena>(options.strict));
  graveyard_.reserve(graveyard_size);
}

memory_map::~memory_map() { clear(); }

void memory_map::clear() {
  state_.clear();
  std::map<std::uintptr_t, std::shared_ptr<allocation>> gone;
  {
    const std::unique_lock lock{table_mutex_};
    gone.swap(table_);
    windows_.clear();
  }
  for (const auto& [base, a] : gone) {
    if (a->exported) a->exported->end(share_state::closed);
  }
}

error memory_map::out_of_memory(device_id device, std::size_t asked) {
  weft::detail::memory_shortage found{device, use(device), asked};
  const std::shared_lock lock{table_mutex_};
  for (const auto& [base, a] : table_) {
    if (a->owner == device && a->charged) found.look(a->user, a->size);
  }
  return found.cause();
}

void memory_map::uncharge(device_id device, std::size_t size) noexcept {
  used_[local(device)].fetch_sub(size, std::memory_order_relaxed);
}

result<void> memory_map::charge(device_id device, std::size_t size) {
  auto& used = used_[local(device)];
  const std::uint64_t limit = machine_.devices[local(device)].memory.value();
  std::uint64_t before = used.load(std::memory_order_relaxed);
  do {
    if (size > limit || before > limit - size) return out_of_memory(device, size);
  } while (!used.compare_exchange_weak(before, before + size, std::memory_order_relaxed));
  return {};
}

void memory_map::fill_new(std::byte* memory, std::size_t size) const noexcept {
  if (!options_.fill_new) return;
  // Large memory gets the pattern at both ends: filling it all would make every page of a sparse allocation real.
  const std::size_t head = std::min(size, patterned);
  std::memset(memory, static_cast<int>(*options_.fill_new), head);
  const std::size_t tail = std::min(size - head, patterned);
  std::memset(memory + size - tail, static_cast<int>(*options_.fill_new), tail);
}

result<void*> memory_map::allocate(device_id device, std::size_t size, memory_kind kind, bool own_pages,
                                   std::shared_ptr<access_list> only) {
  if (size == 0) return make_error(errc::invalid_argument, "an allocation of 0 bytes on " + to_string(device));
  // Pinned memory is the host's; unified memory lives on the device until the host touches it, and counts there.
  const bool charged = kind != memory_kind::pinned;
  if (charged) {
    if (auto fits = charge(device, size); !fits) return std::move(fits).error();
  }
  arena& from = kind == memory_kind::device ? *device_memory_[local(device)] : host_memory_;
  auto got = own_pages ? from.take_own(size) : from.take(size);
  if (!got) {
    if (charged) uncharge(device, size);
    error cause = std::move(got).error();
    cause.what = to_string(bytes{size}) + " for " + to_string(device) + ": " + cause.what;
    return cause;
  }
  auto made = std::make_shared<allocation>();
  made->home = this;
  made->kind = kind;
  made->owner = device;
  made->storage = *got;
  made->user = got->user();
  made->device_side = got->device_side();
  made->size = size;
  made->charged = charged;
  made->own_pages = own_pages;
  made->only = std::move(only);
  fill_new(made->device_side, size);
  void* base = made->user;
  const std::unique_lock lock{table_mutex_};
  table_.emplace(number(base), std::move(made));
  return base;
}

result<void> memory_map::adopt(device_id device, void* base, std::size_t size) {
  if (base == nullptr || size == 0 || number(base) + size < number(base)) {
    return make_error(errc::invalid_argument, "adopting null, empty or endless memory");
  }
  auto made = std::make_shared<allocation>();
  made->home = this;
  made->kind = memory_kind::adopted;
  made->owner = device;
  made->user = made->device_side = static_cast<std::byte*>(base);
  made->size = size;
  const std::unique_lock lock{table_mutex_};
  const auto next = table_.upper_bound(number(base));
  const bool hits_next = next != table_.end() && next->first < number(base) + size;
  const bool hits_before =
      next != table_.begin() && std::prev(next)->first + std::prev(next)->second->size > number(base);
  if (hits_next || hits_before)
    return make_error(errc::invalid_argument, "the memory at " + hex(base) + " is known already");
  table_.emplace(number(base), std::move(made));
  return {};
}

result<void> memory_map::release(void* base) {
  std::shared_ptr<allocation> gone;
  const std::unique_lock lock{table_mutex_};
  const auto it = table_.find(number(base));
  if (it == table_.end() || it->second->kind == memory_kind::mapped || it->second->kind == memory_kind::block) {
    return make_error(errc::not_found, "no allocation starts at " + hex(base) + "; was it freed before?");
  }
  gone = std::move(it->second);
  table_.erase(it);
  if (gone->exported) gone->exported->end(share_state::freed);
  // mappings of it end with it
  while (!gone->windows.empty()) {
    const auto window = table_.find(*gone->windows.begin());
    window->second->revoked.store(true, std::memory_order_release);
    unlist(*window->second);
    table_.erase(window);
  }
  return {};
}

memory_use memory_map::use(device_id device) {
  memory_use now;
  now.total = machine_.devices[local(device)].memory;
  now.free = bytes{now.total.value() - used_[local(device)].load(std::memory_order_relaxed)};
  return now;
}

std::shared_ptr<allocation> memory_map::find(const void* address) {
  const std::shared_lock lock{table_mutex_};
  auto it = table_.upper_bound(number(address));
  if (it == table_.begin()) return nullptr;
  --it;
  if (number(address) - it->first >= it->second->size) return nullptr;
  return it->second;
}

bool memory_map::visit(const void* address, const std::function<void(const std::shared_ptr<allocation>&)>& f) {
  const std::unique_lock lock{table_mutex_};
  auto it = table_.upper_bound(number(address));
  if (it == table_.begin()) return false;
  --it;
  if (number(address) - it->first >= it->second->size) return false;
  f(it->second);
  return true;
}

std::shared_ptr<allocation> memory_map::find(const void* address, std::uint64_t extent) {
  auto first = find(address);
  if (!first || first->kind != memory_kind::block) return first;
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - first->user);
  if (extent <= first->size - offset) return first;
  auto whole = std::make_shared<allocation>();
  whole->kind = memory_kind::block;
  whole->owner = first->owner;
  whole->user = first->user;
  whole->device_side = first->device_side;
  const std::shared_lock lock{table_mutex_};
  std::uint64_t reached = 0;
  for (auto it = table_.find(number(first->user)); it != table_.end(); ++it) {
    // only mappings of one reservation touch: reservations are kept apart by where they begin
    const auto& next = it->second;
    if (next->kind != memory_kind::block || next->user != first->user + reached || !same_range(*next, *first)) break;
    whole->parts.push_back(next);
    next->pending.fetch_add(1, std::memory_order_seq_cst);
    reached += next->size;
    if (reached >= extent + offset) break;
  }
  whole->size = reached;
  return whole;
}

void memory_map::add(std::shared_ptr<allocation> made) {
  const std::unique_lock lock{table_mutex_};
  const auto at = number(made->user);
  table_.emplace(at, std::move(made));
}

std::vector<std::shared_ptr<allocation>> memory_map::blocks_in(const void* address, std::uint64_t size) {
  std::vector<std::shared_ptr<allocation>> found;
  const std::shared_lock lock{table_mutex_};
  std::uint64_t reached = 0;
  for (auto it = table_.find(number(address)); it != table_.end() && reached < size; ++it) {
    const auto& next = it->second;
    if (next->kind != memory_kind::block || number(next->user) != number(address) + reached) break;
    if (!found.empty() && !same_range(*next, *found.front())) break;
    found.push_back(next);
    reached += next->size;
  }
  if (reached != size) found.clear();
  return found;
}

void memory_map::remove(std::span<const std::shared_ptr<allocation>> ended) {
  const std::unique_lock lock{table_mutex_};
  for (const auto& one : ended) {
    one->revoked.store(true, std::memory_order_seq_cst);
    table_.erase(number(one->user));
  }
}

void memory_map::unlist(const allocation& window) {
  const std::uintptr_t at = number(window.user);
  window.source->windows.erase(at);
  const auto of_pair = windows_.find(pair(window.by, window.owner));
  of_pair->second.erase(at);
  if (of_pair->second.empty()) windows_.erase(of_pair);
}

result<void> memory_map::enable(device_id from, device_id to) {
  const std::lock_guard lock{peer_mutex_};
  auto& state = enabled_[pair(from, to)];
  if (state.load(std::memory_order_relaxed) != 0) {
    return make_error(errc::already_enabled, to_string(from) + " has access to " + to_string(to) + " already");
  }
  if (const int limit = machine_.devices[local(from)].max_peers; limit > 0) {
    int peers = 0;
    for (std::size_t i = 0; i < devices_; ++i)
      peers += enabled_[local(from) * devices_ + i].load(std::memory_order_relaxed);
    if (peers >= limit) {
      return make_error(errc::too_many_peers, to_string(from) + " has access to " + std::to_string(peers) +
                                                  " peers, which is all its table holds; disable one to reach " +
                                                  to_string(to));
    }
  }
  state.store(1, std::memory_order_release);  // pairs with acquire in enabled
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  const std::shared_lock table{table_mutex_};
  const auto of_pair = windows_.find(pair(from, to));
  if (of_pair == windows_.end()) return {};
  for (const auto& [at, a] : of_pair->second) {
    const window& w = a->view.get();
    ::mprotect(w.base, w.size, PROT_READ | PROT_WRITE);
    a->revoked.store(false, std::memory_order_release);
  }
  return {};
}

void memory_map::revoke(device_id by, device_id owner, bool end) {
  const std::unique_lock table{table_mutex_};
  const auto of_pair = windows_.find(pair(by, owner));
  if (of_pair == windows_.end()) return;
  for (const auto& [at, a] : of_pair->second) {
    // Work that has looked already keeps its memory: it started before. Work that looks later sees the flag (seq_cst
    // on both sides: either it sees revoked, or we see it pending).
    a->revoked.store(true, std::memory_order_seq_cst);
    const window& w = a->view.get();
    if (a->pending.load(std::memory_order_seq_cst) == 0) ::mprotect(w.base, w.size, PROT_NONE);
    if (!end) continue;
    a->source->windows.erase(at);
    table_.erase(at);
  }
  if (end) windows_.erase(of_pair);
}

result<void> memory_map::disable(device_id from, device_id to) {
  {
    const std::lock_guard lock{peer_mutex_};
    auto& state = enabled_[pair(from, to)];
    if (state.load(std::memory_order_relaxed) == 0) {
      return make_error(errc::not_enabled, to_string(from) + " has no access to " + to_string(to));
    }
    state.store(0, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  revoke(from, to, false);
  return {};
}

bool memory_map::enabled(device_id from, device_id to) const noexcept {
  return enabled_[pair(from, to)].load(std::memory_order_acquire) != 0;
}

result<void*> memory_map::map(device_id by, void* address, std::size_t size) {
  auto source = find(address);
  if (!source || source->kind != memory_kind::device) {
    return make_error(errc::not_found, hex(address) + " is not memory of a device");
  }
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(address) - source->user);
  if (size > source->size - offset) {
    return make_error(errc::out_of_range, "mapping " + to_string(bytes{size}) + " at offset " + std::to_string(offset) +
                                              " of an allocation of " + to_string(bytes{source->size}));
  }
  const std::size_t in_file = source->storage.offset + offset;
  const std::size_t start = in_file / page_size() * page_size();
  const std::size_t length = (in_file + size - start + page_size() - 1) / page_size() * page_size();
  auto view = map_file(source->storage.home->file.get(), start, length, !faults_.drops(by, source->owner));
  if (!view) return std::move(view).error();
  auto made = std::make_shared<allocation>();
  made->home = this;
  made->kind = memory_kind::mapped;
  made->owner = source->owner;
  made->by = by;
  made->size = size;
  made->device_side = view->get().base + (in_file - start);
  made->user = made->device_side;
  if (options_.strict) {
    auto visible = reserve(length);
    if (!visible) return std::move(visible).error();
    made->user = visible->get().base + (in_file - start);
    made->view_user = std::move(*visible);
  }
  made->view = std::move(*view);
  made->source = std::move(source);
  made->source_offset = offset;
  const std::uintptr_t at = number(made->user);
  const std::unique_lock lock{table_mutex_};
  table_.emplace(at, made);
  // where there is no memory for one of the lists, nothing has changed
  try {
    made->source->windows.insert(at);
    windows_[pair(by, made->owner)].emplace(at, made.get());
  } catch (...) {
    made->source->windows.erase(at);
    table_.erase(at);
    throw;
  }
  return made->user;
}

result<void> memory_map::unmap(device_id by, void* mapped) {
  std::shared_ptr<allocation> gone;
  const std::unique_lock lock{table_mutex_};
  const auto it = table_.find(number(mapped));
  if (it == table_.end() || it->second->kind != memory_kind::mapped) {
    return make_error(errc::not_found, "no peer mapping starts at " + hex(mapped) + "; was it unmapped before?");
  }
  if (it->second->by != by) {
    return make_error(errc::wrong_device, "the mapping at " + hex(mapped) + " belongs to " + to_string(it->second->by) +
                                              ", not to " + to_string(by));
  }
  it->second->revoked.store(true, std::memory_order_release);
  if (it->second->source) unlist(*it->second);
  gone = std::move(it->second);
  table_.erase(it);
  return {};
}

std::optional<std::string> memory_map::denied(device_id by, const allocation& memory, bool writes) const {
  switch (memory.kind) {
    case memory_kind::pinned:
    case memory_kind::unified:
    case memory_kind::adopted:
      return std::nullopt;
    case memory_kind::mapped:
      if (memory.imported) {
        if (memory.revoked.load(std::memory_order_seq_cst)) return "it was closed";
        return memory.only->denied(by, local(by), writes);
      }
      if (memory.by != by) return "the mapping belongs to " + to_string(memory.by);
      if (memory.revoked.load(std::memory_order_seq_cst)) return "the mapping has ended";
      if (!enabled(by, memory.owner))
        return to_string(by) + " has no access to " + to_string(memory.owner) + " any more";
      return std::nullopt;
    case memory_kind::device:
      if (memory.only) return memory.only->denied(by, local(by), writes);
      if (memory.owner == by || enabled(by, memory.owner)) return std::nullopt;
      return to_string(by) + " has no access to the memory of " + to_string(memory.owner) +
             ": enable it (peer_access) first";
    case memory_kind::block:
      for (const auto& part : memory.parts) {
        if (auto why = denied(by, *part, writes)) return why;
      }
      if (!memory.parts.empty()) return std::nullopt;
      if (memory.revoked.load(std::memory_order_seq_cst)) return "the mapping has ended";
      return memory.mapping->denied(by, local(by), memory.owner, writes);
  }
  return std::nullopt;
}

result<std::byte*> memory_map::resolve(device_id by, allocation& memory, const void* address, bool writes) {
  if (memory.imported) {
    if (auto cause = memory.imported->broken(memory.user)) return *cause;
  }
  if (auto why = denied(by, memory, writes)) return make_error(errc::illegal_access, std::move(*why));
  const auto offset = static_cast<const std::byte*>(address) - memory.user;
  if (memory.kind == memory_kind::block) {
    if (faults_.drops(by, memory.owner) && memory.owner != by && memory.parts.empty()) {
      const std::lock_guard lock{memory.drop_mutex};
      for (const auto& [who, view] : memory.drop_views) {
        if (who == by) return view.get().base + offset;
      }
      auto view = map_file(memory.mapping->memory->file.get(), 0, memory.size, false);
      if (!view) return std::move(view).error();
      memory.drop_views.emplace_back(by, std::move(*view));
      return memory.drop_views.back().second.get().base + offset;
    }
    return find_alias(memory, local(by), offset);
  }
  return seen_by(by, memory, offset);
}

/// Memory of one allocation, whatever the right to it: a private view where what is written does not arrive.
result<std::byte*> memory_map::seen_by(device_id by, allocation& memory, std::ptrdiff_t offset) {
  if (memory.kind != memory_kind::device || memory.owner == by || !faults_.drops(by, memory.owner)) {
    return memory.device_side + offset;
  }
  const std::lock_guard lock{memory.drop_mutex};
  for (const auto& [who, view] : memory.drop_views) {
    if (who == by) return view.get().base + memory.storage.offset % page_size() + offset;
  }
  const std::size_t start = memory.storage.offset / page_size() * page_size();
  auto view = map_file(memory.storage.home->file.get(), start, memory.storage.offset - start + memory.size, false);
  if (!view) return std::move(view).error();
  std::byte* base = view->get().base + (memory.storage.offset - start);
  memory.drop_views.emplace_back(by, std::move(*view));
  return base + offset;
}

result<memory_map::trial> memory_map::try_memory(device_id by, device_id owner, std::size_t size) {
  auto got = device_memory_[local(owner)]->take(size);
  if (!got) return std::move(got).error();
  trial made{std::make_unique<allocation>(), nullptr};
  made.memory->home = this;
  made.memory->owner = owner;
  made.memory->storage = *got;
  made.memory->user = got->user();
  made.memory->device_side = got->device_side();
  made.memory->size = size;
  auto seen = seen_by(by, *made.memory, 0);
  if (!seen) return std::move(seen).error();
  made.seen = *seen;
  return made;
}

void memory_map::forget(device_id device) {
  {
    const std::shared_lock lock{table_mutex_};
    for (const auto& [base, a] : table_) {
      if (a->kind == memory_kind::block)
        a->mapping->rights[local(device)].store(access_right::none, std::memory_order_seq_cst);
    }
  }
  device_memory_[local(device)]->retire();
  for (std::size_t i = 0; i < devices_; ++i) {
    const device_id other{first_.value() + static_cast<int>(i)};
    enabled_[pair(device, other)].store(0, std::memory_order_release);
    enabled_[pair(other, device)].store(0, std::memory_order_release);
    revoke(device, other, true);
    revoke(other, device, true);
  }
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  std::vector<std::shared_ptr<allocation>> gone;
  const std::unique_lock lock{table_mutex_};
  for (auto it = table_.begin(); it != table_.end();) {
    const memory_kind kind = it->second->kind;
    const bool opened_here = it->second->imported && it->second->by == device;
    if (opened_here || (it->second->owner == device && (kind == memory_kind::device || kind == memory_kind::block))) {
      if (it->second->exported) it->second->exported->end(share_state::freed);
      it->second->revoked.store(true, std::memory_order_seq_cst);
      gone.push_back(std::move(it->second));
      it = table_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace weft::host
