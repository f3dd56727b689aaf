// SPDX-License-Identifier: Apache-2.0
// What a mixed machine consists of, and whose memory is whose. Order and movement: mixed_order.cpp.
#include "backends/mixed/mixed_backend.hpp"

#include "backend/address.hpp"
#include "backends/mixed/factory.hpp"
#include "backends/mixed/mixed_handle.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

capability without(capability all, capability one) {
  return static_cast<capability>(static_cast<std::uint32_t>(all) & ~static_cast<std::uint32_t>(one));
}

/// The devices of all parts, which follow each other. None has unified memory: every device would have to see it.
backend_identity identity_of(const std::vector<std::unique_ptr<backend>>& parts, topology layout) {
  backend_identity made{backend_kind::mixed, device_id{0}, {}, std::move(layout)};
  for (const auto& part : parts)
    made.devices.insert(made.devices.end(), part->devices().begin(), part->devices().end());
  for (device_description& one : made.devices) one.capabilities = without(one.capabilities, capability::unified_memory);
  for (topology_device& one : made.layout.devices)
    one.capabilities = without(one.capabilities, capability::unified_memory);
  return made;
}

}  // namespace

mixed_backend::mixed_backend(std::vector<std::unique_ptr<backend>> parts, topology layout,
                             std::chrono::steady_clock::time_point epoch)
    : backend(identity_of(parts, std::move(layout))), parts_(std::move(parts)), epoch_(epoch) {
  for (std::size_t i = 0; i < parts_.size(); ++i) part_of_.insert(part_of_.end(), parts_[i]->devices().size(), i);
  for (const auto& part : parts_) {
    part->end_events_after([this](const event_record& event) { return tail_of(event); });
    part->free_memory_after([this](device_id device) { wait_for_uses(device); });
  }
}

mixed_backend::~mixed_backend() { close(); }

mixed_backend::owner mixed_backend::owner_of(const void* address) const noexcept {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (auto found = parts_[i]->find(address)) return {i, *found};
  }
  return {};
}

std::string mixed_backend::apart(device_id from, device_id to) const {
  const auto name = [this](device_id id) {
    return to_string(id) + " (" + std::string{to_string(backend_of(id).kind())} + ")";
  };
  return name(from) + " and " + name(to) +
         " are of different backends: the memory of one has no address in the other; copies go through the host";
}

error mixed_backend::no_peers(device_id from, device_id to) const {
  return make_error(errc::peer_unsupported, apart(from, to));
}

std::optional<error> mixed_backend::rights_apart(std::size_t part, std::span<const device_right> rights) const {
  for (const device_right& one : rights) {
    if (part_of(one.device) != part) return no_peers(one.device, parts_[part]->first_device());
  }
  return std::nullopt;
}

// ---- discover -------------------------------------------------------------------------------------------------------

result<device_health> mixed_backend::do_health(device_id device) { return backend_of(device).health(device); }

result<memory_use> mixed_backend::do_memory(device_id device) { return backend_of(device).memory(device); }

result<peer_description> mixed_backend::do_peer(device_id from, device_id to) {
  if (part_of(from) == part_of(to)) return backend_of(from).peer(from, to);
  peer_description about;
  about.hops = static_cast<int>(path_between(from, to).links.size());
  about.why = apart(from, to);
  return about;
}

// ---- allocate -------------------------------------------------------------------------------------------------------

result<void*> mixed_backend::do_allocate(device_id device, bytes size, memory_kind kind) {
  return backend_of(device).allocate(device, size, kind);
}

result<void*> mixed_backend::do_allocate_coherent(device_id device, bytes size) {
  return backend_of(device).allocate_coherent(device, size);
}

template <class F>
auto mixed_backend::first_that_knows(F&& ask) {
  auto answer = ask(*parts_.front());
  const auto is_other = [](const auto& a) {
    return !a && (a.error().code == errc::unsupported || a.error().code == errc::not_found);
  };
  for (std::size_t i = 1; i < parts_.size() && is_other(answer); ++i) {
    auto here = ask(*parts_[i]);
    // "not found" by one that could have known says more than "not offered"
    if (!is_other(here) || answer.error().code == errc::unsupported) answer = std::move(here);
  }
  return answer;
}

result<void> mixed_backend::do_release(void* base) {
  const owner memory = owner_of(base);  // while nobody else can adopt what it may have been adopted for
  {
    const std::lock_guard lock{adopted_mutex_};
    adopted_.erase(base);
  }
  if (!memory.known()) return first_that_knows([=](backend& by) { return by.release(base); });  // as after a reset
  backend& from = *parts_[memory.part];
  if (memory.is_host_memory() && memory.memory.base == base) {
    const release_outcome outcome = release_later(from, base);
    if (outcome == release_outcome::later) return {};
    if (outcome == release_outcome::before) return not_allocated(base);
  }
  return from.release(base);
}

result<memory_description> mixed_backend::do_find(const void* address) {
  auto found = parts_.front()->find(address);
  for (std::size_t i = 1; i < parts_.size() && !found; ++i) {
    if (auto here = parts_[i]->find(address)) found = std::move(here);
  }
  if (!found) return found;
  const std::lock_guard lock{uses_mutex_};
  const auto used = uses_.find(found->base);
  if (used != uses_.end() && used->second.is_released) return not_allocated(address);  // kept for another's copy alone
  return found;
}

// release() names an address alone, so no two backends may know it; each looks after its own. The range is claimed
// first, so that neither a release nor another adoption waits for a driver that registers.
result<void> mixed_backend::do_adopt(device_id device, void* base, bytes size) {
  const owner around = owner_of(base);
  bool is_fresh = false;
  {
    const std::lock_guard lock{adopted_mutex_};
    std::optional<device_id> by;
    const auto next = adopted_.lower_bound(base);
    if (around.known()) by = around.memory.device;
    if (next != adopted_.end() && number(next->first) - number(base) < size.value()) by = next->second.device;
    if (next != adopted_.begin()) {
      const auto& [start, before] = *std::prev(next);
      if (number(base) - number(start) < before.size.value()) by = before.device;
    }
    if (by && part_of(*by) != part_of(device)) {
      return make_error(errc::invalid_argument, "adopting " + to_string(size) + " at " + hex(base) + " for " +
                                                    to_string(device) + ", of which " + to_string(*by) +
                                                    " of another backend has a part already");
    }
    is_fresh = adopted_.try_emplace(base, claim{device, size}).second;
  }
  auto done = backend_of(device).adopt(device, base, size);
  if (!done && is_fresh) {
    const std::lock_guard lock{adopted_mutex_};
    adopted_.erase(base);
  }
  return done;
}

// Of unified memory, which a mixed machine has not: their own backends say so.
result<event_ref> mixed_backend::do_prefetch(stream_handle stream, void* base, bytes size) {
  return backend_of(stream).prefetch(untagged(stream), base, size);
}

result<void> mixed_backend::do_advise(void* base, bytes size, memory_advice advice, device_id device) {
  return backend_of(device).advise(base, size, advice, device);
}

result<std::shared_ptr<std::byte>> mixed_backend::do_host_window(device_id by, void* address, bytes size) {
  backend& own = backend_of(by);
  const owner memory = owner_of(address);
  if (!memory.known() || memory.part == part_of(by)) return own.host_window(by, address, size);
  // what the host follows anyway is seen by everybody in the same way
  if (memory.is_host_memory()) return parts_[memory.part]->host_window(memory.memory.device, address, size);
  return make_error(errc::illegal_access, "a window for " + to_string(by) + " into memory of " +
                                              to_string(memory.memory.device) + ": " + apart(by, memory.memory.device));
}

result<std::shared_ptr<bus_window>> mixed_backend::do_open_bus_window(void* address, bytes size) {
  const owner memory = owner_of(address);
  return parts_[memory.part]->open_bus_window(address, size);
}

// ---- share ----------------------------------------------------------------------------------------------------------

// A pair of one backend; that has the last word.
bool mixed_backend::do_can_access(device_id from, device_id to) noexcept { return part_of(from) == part_of(to); }

result<void> mixed_backend::do_enable_peer(device_id from, device_id to) {
  return backend_of(from).enable_peer(from, to);
}

result<void> mixed_backend::do_disable_peer(device_id from, device_id to) {
  return backend_of(from).disable_peer(from, to);
}

bool mixed_backend::do_peer_enabled(device_id from, device_id to) noexcept {
  return part_of(from) == part_of(to) && backend_of(from).peer_enabled(from, to);
}

result<peer_delivery> mixed_backend::do_verify_peer(device_id from, device_id to, peer_way way) {
  if (part_of(from) != part_of(to)) return no_peers(from, to);
  return backend_of(from).verify_peer(from, to, way);
}

std::uint64_t mixed_backend::do_peer_epoch() noexcept {
  std::uint64_t sum = 0;  // each only grows, so the sum changes whenever one does
  for (const auto& part : parts_) sum += part->peer_epoch();
  return sum;
}

result<void*> mixed_backend::do_map_peer(device_id by, void* address, bytes size) {
  backend& own = backend_of(by);
  const owner memory = owner_of(address);
  if (memory.known() && memory.part != part_of(by)) return no_peers(by, memory.memory.device);
  return own.map_peer(by, address, size);
}

result<void> mixed_backend::do_unmap_peer(device_id by, void* mapped) { return backend_of(by).unmap_peer(by, mapped); }

result<atomic_support> mixed_backend::do_peer_atomics(device_id from, device_id to, atomic_operation operation) {
  if (part_of(from) != part_of(to)) return atomic_support::none;
  return backend_of(from).peer_atomics(from, to, operation);
}

// ---- share, blocks and mappings -------------------------------------------------------------------------------------

result<block_granularity> mixed_backend::do_granularity(device_id device) {
  return backend_of(device).granularity(device);
}

result<block_id> mixed_backend::do_create_block(device_id device, bytes size, bool shareable) {
  return tagged(backend_of(device).create_block(device, size, shareable), part_of(device));
}

result<void> mixed_backend::do_release_block(block_id block) {
  return backend_of(block).release_block(untagged(block));
}
result<block_description> mixed_backend::do_describe_block(block_id block) {
  return backend_of(block).describe_block(untagged(block));
}

// Addresses without memory say nothing of a device: the first backend that has any gives them.
result<void*> mixed_backend::do_reserve(bytes size, bytes alignment, void* hint) {
  auto got = parts_.front()->reserve(size, alignment, hint);
  for (std::size_t i = 1; i < parts_.size() && !got && got.error().code == errc::unsupported; ++i)
    got = parts_[i]->reserve(size, alignment, hint);
  return got;
}

result<void> mixed_backend::do_free_reservation(void* base, bytes size) {
  return first_that_knows([=](backend& by) { return by.free_reservation(base, size); });
}

result<void> mixed_backend::do_map_block(void* address, bytes size, block_id block) {
  for (std::size_t i = 0; i < std::min(part_in(block), parts_.size() - 1); ++i) {
    const auto taken = parts_[i]->granularity(parts_[i]->first_device());
    if (!taken) continue;
    return make_error(errc::unsupported, "mapping a block of the " + std::string{to_string(backend_of(block).kind())} +
                                             " backend: reservations of a mixed machine are of its first backend with "
                                             "blocks, " +
                                             std::string{to_string(parts_[i]->kind())} +
                                             "; open a machine of its backend alone");
  }
  return backend_of(block).map_block(address, size, untagged(block));
}

result<void> mixed_backend::do_unmap_block(void* address, bytes size) {
  return first_that_knows([=](backend& by) { return by.unmap_block(address, size); });
}

result<void> mixed_backend::do_set_access(void* address, bytes size, std::span<const device_right> rights) {
  const owner memory = owner_of(address);
  if (!memory.known()) return first_that_knows([&](backend& by) { return by.set_access(address, size, rights); });
  if (auto cause = rights_apart(memory.part, rights)) return std::move(*cause);
  return parts_[memory.part]->set_access(address, size, rights);
}

result<access_right> mixed_backend::do_access_of(device_id device, const void* address) {
  backend& by = backend_of(device);
  const owner memory = owner_of(address);
  if (memory.known() && memory.part != part_of(device)) return access_right::none;
  auto right = by.access_of(device, address);
  if (right || right.error().code != errc::unsupported) return right;
  return first_that_knows([=](backend& other) { return other.access_of(other.first_device(), address); });
}

result<block_id> mixed_backend::do_block_of(const void* address) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i]->find(address)) return tagged(parts_[i]->block_of(address), i);
  }
  return first_that_knows([=](backend& by) { return by.block_of(address); });
}

result<int> mixed_backend::do_export_block(block_id block) { return backend_of(block).export_block(untagged(block)); }

result<block_id> mixed_backend::do_import_block(std::optional<device_id> device, int descriptor, bytes size) {
  if (device) return tagged(backend_of(*device).import_block(device, descriptor, size), part_of(*device));
  // whoever knows the device that it was made on
  auto got = tagged(parts_.front()->import_block({}, descriptor, size), 0);
  for (std::size_t i = 1; i < parts_.size() && !got; ++i) {
    if (got.error().code != errc::unsupported && got.error().code != errc::not_found) break;
    auto here = tagged(parts_[i]->import_block({}, descriptor, size), i);
    if (here || here.error().code != errc::unsupported) got = std::move(here);
  }
  return got;
}

// ---- share, multicast -----------------------------------------------------------------------------------------------

result<bytes> mixed_backend::do_multicast_granularity(std::span<const device_id> team) {
  if (team.empty()) return parts_.front()->multicast_granularity(team);
  for (const device_id id : team) {
    if (part_of(id) != part_of(team.front()))
      return make_error(errc::unsupported,
                        "no multicast between devices of different backends: " + apart(team.front(), id));
  }
  return backend_of(team.front()).multicast_granularity(team);
}

result<multicast_id> mixed_backend::do_create_multicast(std::size_t devices, bytes size) {
  auto got = tagged(parts_.front()->create_multicast(devices, size), 0);
  for (std::size_t i = 1; i < parts_.size() && !got && got.error().code == errc::unsupported; ++i)
    got = tagged(parts_[i]->create_multicast(devices, size), i);
  return got;
}

void mixed_backend::do_release_multicast(multicast_id group) { backend_of(group).release_multicast(untagged(group)); }

result<void> mixed_backend::do_add_multicast_device(multicast_id group, device_id device) {
  if (part_of(device) != part_in(group)) {
    return make_error(errc::unsupported, "this multicast object is of the " +
                                             std::string{to_string(backend_of(group).kind())} + " backend, and " +
                                             to_string(device) + " of another: open a machine of its backend alone");
  }
  return backend_of(group).add_multicast_device(untagged(group), device);
}

result<void> mixed_backend::do_bind_multicast(multicast_id group, block_id block) {
  if (part_in(group) != part_in(block))
    return make_error(errc::unsupported, "a block of one backend cannot be bound to a multicast object of another");
  return backend_of(group).bind_multicast(untagged(group), untagged(block));
}

result<void> mixed_backend::do_unbind_multicast(multicast_id group, device_id device) {
  return backend_of(group).unbind_multicast(untagged(group), device);
}

/// Why a stream's own backend cannot use memory of another, which it would take for the host's.
std::optional<error> mixed_backend::not_followed(stream_handle stream, const void* address) const {
  const owner memory = owner_of(address);
  if (!memory.known() || memory.part == part_in(stream) || memory.is_host_memory()) return std::nullopt;
  return make_error(errc::invalid_argument, "a multicast object of the " +
                                                std::string{to_string(backend_of(stream).kind())} +
                                                " backend uses no memory of " + to_string(memory.memory.device) +
                                                ", which is of another: copy it to the host first");
}

result<event_ref> mixed_backend::do_multicast_store(stream_handle stream, multicast_id group, bytes offset,
                                                    const void* src, bytes size) {
  if (part_in(group) != part_in(stream))
    return make_error(errc::unsupported, "a multicast object is used in streams of its own backend's devices");
  if (auto cause = not_followed(stream, src)) return std::move(*cause);
  return backend_of(group).multicast_store(untagged(stream), untagged(group), offset, src, size);
}

result<event_ref> mixed_backend::do_multicast_load(stream_handle stream, void* dst, multicast_id group, bytes offset,
                                                   std::size_t count, element_type type, multicast_reduction how) {
  if (part_in(group) != part_in(stream))
    return make_error(errc::unsupported, "a multicast object is used in streams of its own backend's devices");
  if (auto cause = not_followed(stream, dst)) return std::move(*cause);
  return backend_of(group).multicast_load(untagged(stream), dst, untagged(group), offset, count, type, how);
}

// ---- share, handles of memory ---------------------------------------------------------------------------------------

result<void*> mixed_backend::do_allocate_shareable(device_id device, bytes size, handle_family family) {
  return backend_of(device).allocate_shareable(device, size, family);
}

result<shared_bytes> mixed_backend::do_export_memory(const void* address, bytes size, handle_family family) {
  const owner memory = owner_of(address);
  return parts_[memory.known() ? memory.part : 0]->export_memory(address, size, family);
}

result<opened_memory_description> mixed_backend::do_open_memory(std::optional<device_id> device,
                                                                const shared_bytes& handle, handle_family family,
                                                                std::chrono::nanoseconds timeout) {
  if (device) return backend_of(*device).open_memory(device, handle, family, timeout);
  auto got = parts_.front()->open_memory(device, handle, family, timeout);
  const auto is_not_its_own = [&] {
    return !got && (got.error().code == errc::unsupported || got.error().code == errc::incompatible);
  };
  for (std::size_t i = 1; i < parts_.size() && is_not_its_own(); ++i) {
    auto here = parts_[i]->open_memory(device, handle, family, timeout);
    if (here || here.error().code != errc::unsupported) got = std::move(here);  // "not offered" says less
  }
  return got;
}

result<void> mixed_backend::do_close_memory(void* address) {
  return first_that_knows([=](backend& by) { return by.close_memory(address); });
}

result<void> mixed_backend::do_set_memory_access(void* address, std::span<const device_right> rights) {
  const owner memory = owner_of(address);
  if (!memory.known()) return parts_.front()->set_memory_access(address, rights);
  if (auto cause = rights_apart(memory.part, rights)) return std::move(*cause);
  return parts_[memory.part]->set_memory_access(address, rights);
}

result<access_right> mixed_backend::do_memory_access(device_id device, const void* address) {
  backend& by = backend_of(device);
  const owner memory = owner_of(address);
  if (memory.known() && memory.part != part_of(device)) return access_right::none;
  return by.memory_access(device, address);
}

// ---- watch ----------------------------------------------------------------------------------------------------------

link_traffic mixed_backend::do_traffic() {
  link_traffic all;
  all.bytes_on_link.reserve(layout().links.size());
  std::size_t end = 0;
  for (const auto& part : parts_) {
    end += part->layout().links.size();
    const link_traffic here = part->traffic();
    all.bytes_on_link.insert(all.bytes_on_link.end(), here.bytes_on_link.begin(), here.bytes_on_link.end());
    all.bytes_on_link.resize(end);  // one that keeps no account
  }
  all.bytes_on_link.resize(layout().links.size());
  return all;
}

std::uint64_t mixed_backend::do_watch_traffic(const traffic_source& source) {
  const device_id host;
  std::vector<std::pair<backend*, std::uint64_t>> watched;
  const auto watch = [&](device_id of, const traffic_source& how) {
    backend& by = backend_of(of);
    if (const std::uint64_t id = by.watch_traffic(how)) watched.emplace_back(&by, id);
  };
  const device_id one = source.from == host ? source.to : source.from;
  if (source.from == host || source.to == host || part_of(source.from) == part_of(source.to)) {
    watch(one, source);
  } else {
    watch(source.from, {source.from, host, source.count, source.bytes_each});
    watch(source.to, {host, source.to, source.count, source.bytes_each});
  }
  if (watched.empty()) return 0;
  const std::lock_guard lock{sources_mutex_};
  sources_.emplace(++last_source_, std::move(watched));
  return last_source_;
}

void mixed_backend::do_unwatch_traffic(std::uint64_t id) {
  std::vector<std::pair<backend*, std::uint64_t>> watched;
  {
    const std::lock_guard lock{sources_mutex_};
    const auto found = sources_.find(id);
    if (found == sources_.end()) return;
    watched = std::move(found->second);
    sources_.erase(found);
  }
  for (const auto& [by, own] : watched) by->unwatch_traffic(own);
}

void mixed_backend::do_trace_to(std::shared_ptr<trace_sink> sink) {
  for (const auto& part : parts_) part->trace_to(sink);
}

std::vector<order_violation> mixed_backend::do_order_violations() {
  std::vector<order_violation> all;
  for (const auto& part : parts_) {
    auto some = part->order_violations();
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return all;
}

void mixed_backend::do_note_copy(stream_handle order, const copy_request& whole) {
  backend_of(order).note_copy(untagged(order), whole);
}

void mixed_backend::do_note_reuse(void* base) {
  const owner memory = owner_of(base);
  if (memory.known()) parts_[memory.part]->note_reuse(base);
}

std::shared_ptr<const error> mixed_backend::do_lost(device_id device) { return backend_of(device).lost(device); }

result<void> mixed_backend::do_reset(device_id device) { return backend_of(device).reset(device); }

bool mixed_backend::do_on_worker() noexcept {
  return hops_.is_current() ||
         std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->on_worker(); });
}

// The work of all first: one may be moving memory of another.
void mixed_backend::do_end_work() noexcept {
  for (const auto& part : parts_) part->end_work();
}

void mixed_backend::do_close() noexcept {
  hops_.end();  // every event has ended; what hops through the host sees that
  for (const auto& part : parts_) part->close();
}

}  // namespace weft::detail

namespace weft::mixed {

std::unique_ptr<backend> join(std::vector<std::unique_ptr<backend>> parts, topology layout,
                              std::chrono::steady_clock::time_point epoch) {
  return std::make_unique<detail::mixed_backend>(std::move(parts), std::move(layout), epoch);
}

}  // namespace weft::mixed
