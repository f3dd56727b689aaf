// SPDX-License-Identifier: Apache-2.0
// The host backend: peer access, windows, and memory that processes share.
#include "backend/address.hpp"
#include "backend/peer_pattern.hpp"
#include "backends/host/host_backend.hpp"

#include <array>
#include <cstring>

namespace weft::host {

bool host_backend::do_can_access(device_id from, device_id to) noexcept { return has_access(from, to); }

result<void> host_backend::do_enable_peer(device_id from, device_id to) {
  if (auto cause = injected("enable_peer", {from, to})) return *cause;
  return memory_.enable(from, to);
}

result<void> host_backend::do_disable_peer(device_id from, device_id to) {
  if (auto cause = injected("disable_peer", {from, to})) return *cause;
  return memory_.disable(from, to);
}

bool host_backend::do_peer_enabled(device_id from, device_id to) noexcept { return memory_.enabled(from, to); }

result<void*> host_backend::do_map_peer(device_id by, void* address, bytes size) {
  if (auto cause = injected("map_peer", {by})) return *cause;
  return memory_.map(by, address, size.size());
}

result<void> host_backend::do_unmap_peer(device_id by, void* mapped) {
  if (auto cause = injected("unmap_peer", {by})) return *cause;
  return memory_.unmap(by, mapped);
}

result<std::shared_ptr<std::byte>> host_backend::do_host_window(device_id by, void* address, bytes size) {
  if (auto cause = injected("host_window", {by})) return *cause;
  auto memory = memory_.find(address, size.value());
  if (!memory) return not_allocated(address);
  std::shared_ptr<void> held = memory;
  // As work that has begun keeps pages from being hidden; before the right to them is looked at. Other memory stays
  // anyway, and costs no allocation here.
  if (memory->kind == memory_kind::mapped || memory->kind == memory_kind::block) held = std::make_shared<pin>(memory);
  auto seen = memory_.resolve(by, *memory, address);
  if (!seen) return std::move(seen).error();
  return std::shared_ptr<std::byte>{std::move(held), *seen};
}

result<peer_delivery> host_backend::do_verify_peer(device_id from, device_id to, peer_way way) {
  std::array<std::uint64_t, 8> pattern{}, opposite{}, got{};
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = detail::pattern_word(i, from, to);
    opposite[i] = ~pattern[i];
  }
  auto trial = memory_.try_memory(from, to, sizeof pattern);
  if (!trial) return std::move(trial).error();
  std::byte* const there = trial->memory->device_side;
  // what `write` leaves there of the pattern
  const auto try_writing = [&](const char* how, auto&& write) -> std::optional<peer_delivery> {
    std::memcpy(there, opposite.data(), sizeof opposite);
    write();
    std::memcpy(got.data(), there, sizeof got);
    std::string bad = detail::first_difference(pattern, got);
    if (bad.empty()) return std::nullopt;
    return peer_delivery{false, how + bad};
  };
  if (way != peer_way::allocations) {
    if (auto lost =
            try_writing("a copy: ", [&] { transfers_.try_copy(from, to, there, std::as_bytes(std::span{pattern})); }))
      return std::move(*lost);
  }
  if (way == peer_way::commands) return peer_delivery{};
  if (auto lost = try_writing("stores: ", [&] { std::memcpy(trial->seen, pattern.data(), sizeof pattern); }))
    return std::move(*lost);
  std::memcpy(there, opposite.data(), sizeof opposite);
  std::memcpy(got.data(), trial->seen, sizeof got);
  if (std::string bad = detail::first_difference(opposite, got); !bad.empty())
    return peer_delivery{false, "loads: " + bad};
  return peer_delivery{};
}

result<void*> host_backend::do_allocate_shareable(device_id device, bytes size, handle_family family) {
  if (auto cause = injected("allocate", {device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  std::shared_ptr<common::access_list> only;
  if (family == handle_family::pool) {
    only = std::make_shared<common::access_list>(memory_.devices());
    only->set(memory_.local(device), access_right::read_write);
  }
  auto made = memory_.allocate(device, size.size(), memory_kind::device, true, std::move(only));
  if (order_ && made) order_->renewed(*made, size.value());
  return made;
}

result<shared_bytes> host_backend::do_export_memory(const void* address, bytes size, handle_family family) {
  if (auto cause = injected("export_memory", {})) return *cause;
  return sharing_.give(address, size.value(), family);
}

result<opened_memory_description> host_backend::do_open_memory(std::optional<device_id> device,
                                                               const shared_bytes& handle, handle_family family,
                                                               std::chrono::nanoseconds timeout) {
  if (auto cause = device ? injected("open_memory", {*device}) : injected("open_memory", {})) return *cause;
  if (device) {
    if (auto cause = scheduler_.lost(*device)) return error{*cause};
  }
  auto made = sharing_.open(device, handle, timeout, family);
  if (order_ && made) order_->renewed(made->address, made->size.value());
  return made;
}

result<void> host_backend::do_close_memory(void* address) {
  if (auto cause = injected("close_memory", {})) return *cause;
  return sharing_.close(address);
}

result<void> host_backend::do_set_memory_access(void* address, std::span<const device_right> rights) {
  if (auto cause = injected("set_memory_access", {})) return *cause;
  const auto memory = memory_.find(address);
  if (!memory) return not_allocated(address);
  for (const device_right& r : rights) {
    if (auto cause = injected("set_memory_access", {r.device})) return *cause;
  }
  auto wrong = common::not_settable(*memory, address, rights, [&](device_id device) -> std::optional<error> {
    if (has_access(device, memory->owner)) return std::nullopt;
    return without_path(device, memory->owner);
  });
  if (wrong) return std::move(*wrong);
  for (const device_right& r : rights) memory->only->set(memory_.local(r.device), r.right);
  return {};
}

result<access_right> host_backend::do_memory_access(device_id device, const void* address) {
  if (auto cause = injected("memory_access", {device})) return *cause;
  const auto memory = memory_.find(address);
  if (!memory) return not_allocated(address);
  if (!memory_.denied(device, *memory).empty()) return access_right::none;
  return memory_.denied(device, *memory, true).empty() ? access_right::read_write : access_right::read;
}

}  // namespace weft::host
