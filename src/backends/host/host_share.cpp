// SPDX-License-Identifier: Apache-2.0
// The host backend: peer access, windows, and memory that processes share.
#include "backend/address.hpp"
#include "backend/peer_pattern.hpp"
#include "backends/host/host_backend.hpp"
#include "core/hex.hpp"
#include "core/make_error.hpp"

#include <array>
#include <cstring>

namespace weft::host {
result<void> host_backend::enable_peer(device_id from, device_id to) noexcept {
  return guarded([&]() -> result<void> {
    if (auto cause = check_call("enable_peer", {from, to})) return *cause;
    if (from == to) return make_error(errc::invalid_device, to_string(from) + " is not a peer of itself");
    const device_id a{from.value() - first_.value()};
    const device_id b{to.value() - first_.value()};
    if (!machine_.can_access(a, b)) {
      return make_error(errc::peer_unsupported,
                        to_string(from) + " cannot map " + to_string(to) + ": " + peer(from, to)->why);
    }
    return memory_.enable(from, to);
  });
}

result<void> host_backend::disable_peer(device_id from, device_id to) noexcept {
  return guarded([&]() -> result<void> {
    if (auto cause = check_call("disable_peer", {from, to})) return *cause;
    if (from == to) return make_error(errc::invalid_device, to_string(from) + " is not a peer of itself");
    if (!machine_.can_access(device_id{from.value() - first_.value()}, device_id{to.value() - first_.value()})) {
      return make_error(errc::peer_unsupported,
                        to_string(from) + " cannot map " + to_string(to) + ": " + peer(from, to)->why);
    }
    return memory_.disable(from, to);
  });
}

bool host_backend::peer_enabled(device_id from, device_id to) noexcept {
  return known(from) && known(to) && memory_.enabled(from, to);
}

result<void*> host_backend::map_peer(device_id by, void* address, bytes size) noexcept {
  if (auto cause = check_call("map_peer", {by})) return *cause;
  if (address == nullptr || size.value() == 0) return make_error(errc::invalid_argument, "mapping null or zero bytes");
  const auto source = memory_.find(address);
  if (!source) return memory_.absent(address);
  if (source->owner == by)
    return make_error(errc::invalid_device, to_string(by) + " owns this memory and needs no mapping");
  if (!memory_.enabled(by, source->owner)) {
    const device_id a{by.value() - first_.value()};
    const device_id b{source->owner.value() - first_.value()};
    if (!machine_.can_access(a, b)) {
      return make_error(errc::peer_unsupported, to_string(by) + " cannot map " + to_string(source->owner) + ": " +
                                                    peer(by, source->owner)->why);
    }
    return make_error(errc::not_enabled, to_string(by) + " has no access to " + to_string(source->owner) +
                                             ": enable it (peer_access) before mapping");
  }
  try {
    return memory_.map(by, address, size.size());
  } catch (const std::bad_alloc&) {
    return make_error(errc::resource_exhausted, "the host has no memory left for a mapping");
  }
}

result<void> host_backend::unmap_peer(device_id by, void* mapped) noexcept {
  return guarded([&]() -> result<void> {
    if (scheduler_.closed() || here_.forked()) return {};
    if (auto cause = check_call("unmap_peer", {by})) return *cause;
    return memory_.unmap(by, mapped);
  });
}

result<std::shared_ptr<std::byte>> host_backend::host_window(device_id by, void* address, bytes size) noexcept {
  return guarded([&]() -> result<std::shared_ptr<std::byte>> {
    if (auto cause = check_call("host_window", {by})) return *cause;
    auto memory = memory_.find(address, size.value());
    if (!memory) return memory_.absent(address);
    const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(address) - memory->user);
    if (size.value() > memory->size - offset) {
      return make_error(errc::out_of_range, "a window of " + to_string(size) + " at offset " + std::to_string(offset) +
                                                " of an allocation of " + to_string(bytes{memory->size}));
    }
    auto seen = memory_.resolve(by, *memory, address);
    if (!seen) return std::move(seen).error();
    std::byte* at = *seen;
    return std::shared_ptr<std::byte>{std::move(memory), at};
  });
}

result<peer_delivery> host_backend::verify_peer(device_id from, device_id to, peer_way way) noexcept {
  if (auto cause = check_devices({from, to})) return *cause;
  std::array<std::uint64_t, 8> pattern{}, opposite{}, got{};
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = detail::pattern_word(i, from, to);
    opposite[i] = ~pattern[i];
  }
  try {
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
  } catch (const std::bad_alloc&) {
    return make_error(errc::out_of_memory, "the host has no memory left to try a pair of devices");
  }
}

namespace {

error no_tables() { return make_error(errc::resource_exhausted, "the host has no memory left for shared memory"); }

}  // namespace

result<void*> host_backend::allocate_shareable(device_id device, bytes size, handle_family family) noexcept {
  if (auto cause = check_call("allocate", {device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  try {
    std::shared_ptr<access_list> only;
    if (family == handle_family::pool) {
      only = std::make_shared<access_list>(memory_.devices());
      only->set(memory_.local(device), access_right::read_write);
    }
    auto made = memory_.allocate(device, size.size(), memory_kind::device, true, std::move(only));
    if (order_ && made) order_->renewed(*made, size.value());
    return made;
  } catch (const std::bad_alloc&) {
    return no_tables();
  }
}

result<shared_bytes> host_backend::export_memory(const void* address, bytes size, handle_family family) noexcept {
  if (auto cause = check_call("export_memory", {})) return *cause;
  if (address == nullptr || size.value() == 0)
    return make_error(errc::invalid_argument, "exporting null or zero bytes");
  try {
    return sharing_.give(address, size.value(), family == handle_family::pool);
  } catch (const std::bad_alloc&) {
    return no_tables();
  }
}

result<opened_memory_description> host_backend::open_memory(std::optional<device_id> device, const shared_bytes& handle,
                                                            handle_family family,
                                                            std::chrono::nanoseconds limit) noexcept {
  if (auto cause = device ? check_call("open_memory", {*device}) : check_call("open_memory", {})) return *cause;
  if (device) {
    if (auto cause = scheduler_.lost(*device)) return error{*cause};
  }
  try {
    auto made = sharing_.open(device, handle, limit, family == handle_family::pool);
    if (order_ && made) order_->renewed(made->address, made->size.value());
    return made;
  } catch (const std::bad_alloc&) {
    return no_tables();
  }
}

result<void> host_backend::close_memory(void* address) noexcept {
  return guarded([&]() -> result<void> {
    if (scheduler_.closed() || here_.forked()) return {};
    if (auto cause = check_call("close_memory", {})) return *cause;
    return sharing_.close(address);
  });
}

result<void> host_backend::set_memory_access(void* address, std::span<const device_right> rights) noexcept {
  return guarded([&]() -> result<void> {
    if (auto cause = check_call("set_memory_access", {})) return *cause;
    const auto memory = memory_.find(address);
    if (!memory) return memory_.absent(address);
    if (!memory->only) {
      return make_error(errc::invalid_argument, "the memory at " + hex(address) + " is " +
                                                    std::string{to_string(memory->kind)} +
                                                    " memory of no pool: peer access decides who may use it");
    }
    for (const device_right& r : rights) {
      if (auto cause = check_call("set_memory_access", {r.device})) return *cause;
      const device_id a{r.device.value() - first_.value()}, b{memory->owner.value() - first_.value()};
      if (a == b && r.right != access_right::read_write) {
        return make_error(errc::invalid_device, "the right of " + to_string(r.device) +
                                                    " to its own memory cannot be " + std::string{to_string(r.right)});
      }
      if (a != b && r.right != access_right::none && !machine_.can_access(a, b)) {
        return make_error(errc::peer_unsupported, to_string(r.device) + " cannot map the memory of " +
                                                      to_string(memory->owner) + ": " +
                                                      peer(r.device, memory->owner)->why);
      }
    }
    for (const device_right& r : rights) memory->only->set(memory_.local(r.device), r.right);
    return {};
  });
}

result<access_right> host_backend::memory_access(device_id device, const void* address) noexcept {
  return guarded([&]() -> result<access_right> {
    if (auto cause = check_call("memory_access", {device})) return *cause;
    const auto memory = memory_.find(address);
    if (!memory) return memory_.absent(address);
    if (memory_.denied(device, *memory, false)) return access_right::none;
    return memory_.denied(device, *memory, true) ? access_right::read : access_right::read_write;
  });
}

}  // namespace weft::host
