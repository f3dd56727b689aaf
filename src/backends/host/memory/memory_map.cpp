// SPDX-License-Identifier: Apache-2.0
#include "backends/host/memory/memory_map.hpp"

#include "backend/address.hpp"
#include "backends/host/memory/block_map.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <sys/mman.h>

namespace weft::host {
namespace {

constexpr std::size_t graveyard_size = 1024;
constexpr std::size_t patterned = std::size_t{16} << 20;

/// The address of a device that was found to have a right: one that can be written only if it has that right
/// everywhere.
result<std::byte*> find_alias(const allocation& memory, std::size_t device, std::ptrdiff_t offset) {
  const auto writes = [device](const allocation& a) { return a.only->of(device) == access_right::read_write; };
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
  if (home == nullptr) return;
  if (storage.home != nullptr) {
    (kind == memory_kind::device ? *home->device_memory_[home->local(owner)] : home->host_memory_).give(storage);
    if (charged != 0) home->uncharge(owner, charged);
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

void allocation::hide() const noexcept {
  if (imported) return;  // its last page says what the exporter did, and is read until it is closed
  const window& w = view.get();
  if (w.base != nullptr && pending.load() == 0) ::mprotect(w.base, w.size, PROT_NONE);
}

memory_map::memory_map(const topology& machine, device_id first, const memory_options& options, fault_plan& faults)
    : memory_model(first, machine.devices, &topology_device::memory),
      machine_(machine),
      options_(options),
      faults_(faults) {
  for (std::size_t i = 0; i < devices(); ++i) device_memory_.push_back(std::make_unique<arena>(options.strict));
  graveyard_.reserve(graveyard_size);
}

memory_map::~memory_map() { clear(); }

void memory_map::clear() {
  const auto gone = table_.clear([](allocation& one) {
    if (one.exported) one.exported->end(share_state::closed);
  });
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
                                   std::shared_ptr<common::access_list> only) {
  if (size == 0) return make_error(errc::invalid_argument, "an allocation of 0 bytes on " + to_string(device));
  // Pinned memory is the host's; unified memory lives on the device until the host touches it, and counts there.
  const bool charged = kind != memory_kind::pinned;
  auto made = std::make_shared<allocation>();
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
  made->home = this;
  made->kind = kind;
  made->owner = device;
  made->storage = *got;
  made->user = got->user();
  made->device_side = got->device_side();
  made->size = size;
  made->charged = charged ? size : 0;
  made->own_pages = own_pages;
  made->only = std::move(only);
  fill_new(made->device_side, size);
  void* base = made->user;
  table_.add(std::move(made));
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
  return table_.add_alone(std::move(made));
}

result<void> memory_map::release(void* base) {
  auto gone = table_.release(base, [](allocation& one) {
    if (one.exported) one.exported->end(share_state::freed);
  });
  if (!gone) return std::move(gone).error();
  return {};
}

result<void> memory_map::enable(device_id from, device_id to) {
  const std::lock_guard lock{peer_mutex_};
  const auto limit = static_cast<std::size_t>(machine_.devices[local(from)].max_peers);
  if (limit > 0 && !enabled(from, to) && peers_.peers_of(from) >= limit) {
    return make_error(errc::too_many_peers, to_string(from) + " has access to " + std::to_string(limit) +
                                                " peers, which is all its table holds; disable one to reach " +
                                                to_string(to));
  }
  if (auto done = peers_.enable(from, to); !done) return done;
  table_.for_each_window(from, to, [](allocation& one) {
    const window& w = one.view.get();
    ::mprotect(w.base, w.size, PROT_READ | PROT_WRITE);
    one.revoked.store(false);
  });
  return {};
}

result<void> memory_map::disable(device_id from, device_id to) {
  {
    const std::lock_guard lock{peer_mutex_};
    if (auto done = peers_.disable(from, to); !done) return done;
  }
  table_.for_each_window(from, to, [](allocation& one) {
    // Work that has looked already keeps its memory: it started before. Work that looks later sees the flag: either it
    // sees revoked, or we see it pending.
    one.revoked.store(true);
    one.hide();
  });
  return {};
}

result<void*> memory_map::map(device_id by, void* address, std::size_t size) {
  auto found = to_be_mapped(address, size);
  if (!found) return std::move(found).error();
  ref source = std::move(*found);
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(address) - source->user);
  const std::size_t in_file = source->storage.offset + offset;
  const std::size_t start = in_file / page_size() * page_size();
  const std::size_t length = whole_pages(in_file + size - start);
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
  void* const base = made->user;
  table_.add(std::move(made));
  return base;
}

result<std::byte*> memory_map::resolve(device_id by, allocation& memory, const void* address, bool writes) {
  if (auto cause = memory.broken()) return std::move(*cause);
  if (auto why = denied(by, memory, writes); !why.empty()) return make_error(errc::illegal_access, std::move(why));
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
  trial made{std::make_unique<allocation>(), nullptr};
  auto got = device_memory_[local(owner)]->take(size);
  if (!got) return std::move(got).error();
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
  table_.for_each([&](const ref& one) {
    if (one->kind == memory_kind::block) one->only->set(local(device), access_right::none);
  });
  peers_.forget(device);
  end_if([&](allocation& one) {
    const bool is_mapping = one.kind == memory_kind::mapped;
    const bool goes = is_mapping
                          ? one.by == device || (one.source && one.owner == device)
                          : one.owner == device && (one.kind == memory_kind::device || one.kind == memory_kind::block);
    if (goes && one.exported) one.exported->end(share_state::freed);
    return goes;
  });
}

}  // namespace weft::host
