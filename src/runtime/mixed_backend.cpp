// SPDX-License-Identifier: Apache-2.0
// What a mixed machine consists of, and whose memory is whose. Order and movement: mixed_order.cpp.
#include "runtime/mixed_backend.hpp"

#include "backend/address.hpp"
#include "core/hex.hpp"
#include "core/make_error.hpp"
#include "runtime/mixed_handle.hpp"

#include <algorithm>
#include <cstdio>

namespace weft::detail {
namespace {

capability without(capability all, capability one) {
  return static_cast<capability>(static_cast<std::uint32_t>(all) & ~static_cast<std::uint32_t>(one));
}

}  // namespace

mixed_backend::mixed_backend(std::vector<std::unique_ptr<backend>> parts, topology layout,
                             std::chrono::steady_clock::time_point epoch)
    : parts_(std::move(parts)), layout_(std::move(layout)), epoch_(epoch) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto of_part = parts_[i]->devices();
    descriptions_.insert(descriptions_.end(), of_part.begin(), of_part.end());
    part_of_.insert(part_of_.end(), of_part.size(), i);
  }
  // it would have to be seen by every device of the machine
  for (device_description& one : descriptions_)
    one.capabilities = without(one.capabilities, capability::unified_memory);
  for (topology_device& one : layout_.devices) one.capabilities = without(one.capabilities, capability::unified_memory);
}

mixed_backend::~mixed_backend() { close(); }

std::size_t mixed_backend::part_of(device_id device) const noexcept {
  return device.value() >= 0 && device.index() < part_of_.size() ? part_of_[device.index()] : owner::none;
}

backend* mixed_backend::backend_of(device_id device) const noexcept {
  const std::size_t part = part_of(device);
  return part == owner::none ? nullptr : parts_[part].get();
}

backend* mixed_backend::backend_of(stream_handle stream) const noexcept {
  return parts_[std::min(part_in(stream), parts_.size() - 1)].get();
}
backend* mixed_backend::backend_of(block_id block) const noexcept {
  return parts_[std::min(part_in(block), parts_.size() - 1)].get();
}
backend* mixed_backend::backend_of(multicast_id group) const noexcept {
  return parts_[std::min(part_in(group), parts_.size() - 1)].get();
}

mixed_backend::owner mixed_backend::owner_of(const void* address) const noexcept {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (auto found = parts_[i]->find(address)) return {i, *found};
  }
  return {};
}

error mixed_backend::no_device(device_id device) const {
  return make_error(errc::invalid_device, "there is no " + to_string(device) + ": this machine has " +
                                              std::to_string(descriptions_.size()) + " devices, from gpu0");
}

std::string mixed_backend::apart(device_id from, device_id to) const {
  const auto name = [this](device_id id) {
    const backend* by = backend_of(id);
    return to_string(id) + (by == nullptr ? "" : " (" + std::string{to_string(by->kind())} + ")");
  };
  return name(from) + " and " + name(to) +
         " are of different backends: the memory of one has no address in the other; copies go through the host";
}

error mixed_backend::no_peers(device_id from, device_id to) const {
  if (part_of(from) == owner::none) return no_device(from);
  if (part_of(to) == owner::none) return no_device(to);
  return make_error(errc::peer_unsupported, apart(from, to));
}

std::optional<error> mixed_backend::rights_apart(std::size_t part, std::span<const device_right> rights) const {
  for (const device_right& one : rights) {
    if (part_of(one.device) == part) continue;
    if (part_of(one.device) == owner::none) return no_device(one.device);
    return no_peers(one.device, parts_[part]->first_device());
  }
  return std::nullopt;
}

// ---- discover -------------------------------------------------------------------------------------------------------

result<device_health> mixed_backend::health(device_id device) noexcept {
  backend* const by = backend_of(device);
  return by == nullptr ? no_device(device) : by->health(device);
}

result<memory_use> mixed_backend::memory(device_id device) noexcept {
  backend* const by = backend_of(device);
  return by == nullptr ? no_device(device) : by->memory(device);
}

result<peer_description> mixed_backend::peer(device_id from, device_id to) noexcept {
  const std::size_t part = part_of(from);
  if (part == owner::none) return no_device(from);
  if (part_of(to) == owner::none) return no_device(to);
  if (part == part_of(to)) return parts_[part]->peer(from, to);
  if (closed_.load(std::memory_order_acquire)) return closed_machine();
  peer_description about;
  about.hops = static_cast<int>(layout_.peer_paths[layout_.pair(from, to)].links.size());
  about.why = apart(from, to);
  return about;
}

// ---- allocate -------------------------------------------------------------------------------------------------------

result<void*> mixed_backend::allocate(device_id device, bytes size, memory_kind kind) noexcept {
  backend* const by = backend_of(device);
  if (by == nullptr) return no_device(device);
  if (kind == memory_kind::unified) {
    return make_error(errc::unsupported,
                      "unified memory on " + to_string(device) +
                          ": a mixed machine has none that the devices of all its backends see; take "
                          "pinned memory, or open one backend alone");
  }
  return by->allocate(device, size, kind);
}

result<void> mixed_backend::release(void* base) noexcept {
  const owner memory = owner_of(base);
  if (!memory.known()) return parts_.front()->release(base);  // its reason, or its leave after the end of the machine
  backend& from = *parts_[memory.part];
  if (memory.is_host_memory() && memory.memory.base == base) {
    const release_outcome outcome = release_later(from, base);
    if (outcome == release_outcome::later) return {};
    if (outcome == release_outcome::before) return not_allocated(base);
  }
  return from.release(base);
}

result<memory_description> mixed_backend::find(const void* address) noexcept {
  auto found = parts_.front()->find(address);
  for (std::size_t i = 1; i < parts_.size() && !found; ++i) {
    if (auto here = parts_[i]->find(address)) return here;
  }
  return found;
}

result<void> mixed_backend::adopt(device_id device, void* base, bytes size) noexcept {
  backend* const by = backend_of(device);
  return by == nullptr ? no_device(device) : by->adopt(device, base, size);
}

// Of unified memory, which a mixed machine has not: their own backends say so.
result<event_ref> mixed_backend::prefetch(stream_handle stream, void* base, bytes size) noexcept {
  return backend_of(stream)->prefetch(untagged(stream), base, size);
}

result<void> mixed_backend::advise(void* base, bytes size, memory_advice advice, device_id device) noexcept {
  backend* const by = backend_of(device);
  return by == nullptr ? no_device(device) : by->advise(base, size, advice, device);
}

result<std::shared_ptr<std::byte>> mixed_backend::host_window(device_id by, void* address, bytes size) noexcept {
  backend* const own = backend_of(by);
  if (own == nullptr) return no_device(by);
  const owner memory = owner_of(address);
  if (!memory.known() || memory.part == part_of(by)) return own->host_window(by, address, size);
  // what the host follows anyway is seen by everybody in the same way
  if (memory.is_host_memory()) return parts_[memory.part]->host_window(memory.memory.device, address, size);
  return make_error(errc::illegal_access, "a window for " + to_string(by) + " into memory of " +
                                              to_string(memory.memory.device) + ": " + apart(by, memory.memory.device));
}

// ---- share ----------------------------------------------------------------------------------------------------------

result<void> mixed_backend::enable_peer(device_id from, device_id to) noexcept {
  const std::size_t part = part_of(from);
  if (part == owner::none || part != part_of(to)) return no_peers(from, to);
  return parts_[part]->enable_peer(from, to);
}

result<void> mixed_backend::disable_peer(device_id from, device_id to) noexcept {
  const std::size_t part = part_of(from);
  if (part == owner::none || part != part_of(to)) return no_peers(from, to);
  return parts_[part]->disable_peer(from, to);
}

bool mixed_backend::peer_enabled(device_id from, device_id to) noexcept {
  const std::size_t part = part_of(from);
  return part != owner::none && part == part_of(to) && parts_[part]->peer_enabled(from, to);
}

result<peer_delivery> mixed_backend::verify_peer(device_id from, device_id to, peer_way way) noexcept {
  const std::size_t part = part_of(from);
  if (part == owner::none || part != part_of(to)) return no_peers(from, to);
  return parts_[part]->verify_peer(from, to, way);
}

std::uint64_t mixed_backend::peer_epoch() noexcept {
  std::uint64_t sum = 0;  // each only grows, so the sum changes whenever one does
  for (const auto& part : parts_) sum += part->peer_epoch();
  return sum;
}

result<void*> mixed_backend::map_peer(device_id by, void* address, bytes size) noexcept {
  backend* const own = backend_of(by);
  if (own == nullptr) return no_device(by);
  const owner memory = owner_of(address);
  if (memory.known() && memory.part != part_of(by)) return no_peers(by, memory.memory.device);
  return own->map_peer(by, address, size);
}

result<void> mixed_backend::unmap_peer(device_id by, void* mapped) noexcept {
  backend* const own = backend_of(by);
  return own == nullptr ? no_device(by) : own->unmap_peer(by, mapped);
}

result<atomic_support> mixed_backend::peer_atomics(device_id from, device_id to, atomic_operation operation) noexcept {
  const std::size_t part = part_of(from);
  if (part == owner::none || part_of(to) == owner::none) return no_peers(from, to);
  return part == part_of(to) ? parts_[part]->peer_atomics(from, to, operation) : atomic_support::none;
}

// ---- share, blocks and mappings -------------------------------------------------------------------------------------

result<block_granularity> mixed_backend::granularity(device_id device) noexcept {
  backend* const by = backend_of(device);
  return by == nullptr ? no_device(device) : by->granularity(device);
}

result<block_id> mixed_backend::create_block(device_id device, bytes size, bool shareable) noexcept {
  backend* const by = backend_of(device);
  if (by == nullptr) return no_device(device);
  return tagged(by->create_block(device, size, shareable), part_of(device));
}

result<void> mixed_backend::retain_block(block_id block) noexcept {
  return backend_of(block)->retain_block(untagged(block));
}
result<void> mixed_backend::release_block(block_id block) noexcept {
  return backend_of(block)->release_block(untagged(block));
}
result<block_description> mixed_backend::describe_block(block_id block) noexcept {
  return backend_of(block)->describe_block(untagged(block));
}

// Addresses without memory say nothing of a device: the first backend that has any gives them.
result<void*> mixed_backend::reserve(bytes size, bytes alignment, void* hint) noexcept {
  auto got = parts_.front()->reserve(size, alignment, hint);
  for (std::size_t i = 1; i < parts_.size() && !got && got.error().code == errc::unsupported; ++i)
    got = parts_[i]->reserve(size, alignment, hint);
  return got;
}

template <class F>
auto mixed_backend::first_that_knows(F&& ask) noexcept {
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

result<void> mixed_backend::free_reservation(void* base, bytes size) noexcept {
  return first_that_knows([=](backend& by) { return by.free_reservation(base, size); });
}

result<void> mixed_backend::map_block(void* address, bytes size, block_id block) noexcept {
  return backend_of(block)->map_block(address, size, untagged(block));
}

result<void> mixed_backend::unmap_block(void* address, bytes size) noexcept {
  return first_that_knows([=](backend& by) { return by.unmap_block(address, size); });
}

result<void> mixed_backend::set_access(void* address, bytes size, std::span<const device_right> rights) noexcept {
  const owner memory = owner_of(address);
  if (!memory.known()) return first_that_knows([&](backend& by) { return by.set_access(address, size, rights); });
  if (auto cause = rights_apart(memory.part, rights)) return std::move(*cause);
  return parts_[memory.part]->set_access(address, size, rights);
}

result<access_right> mixed_backend::access_of(device_id device, const void* address) noexcept {
  backend* const by = backend_of(device);
  if (by == nullptr) return no_device(device);
  const owner memory = owner_of(address);
  if (memory.known() && memory.part != part_of(device)) return access_right::none;
  auto right = by->access_of(device, address);
  if (right || right.error().code != errc::unsupported) return right;
  return first_that_knows([=](backend& other) { return other.access_of(other.first_device(), address); });
}

result<block_id> mixed_backend::block_of(const void* address) noexcept {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i]->find(address)) return tagged(parts_[i]->block_of(address), i);
  }
  return first_that_knows([=](backend& by) { return by.block_of(address); });
}

result<int> mixed_backend::export_block(block_id block) noexcept {
  return backend_of(block)->export_block(untagged(block));
}

result<block_id> mixed_backend::import_block(device_id device, int descriptor) noexcept {
  if (device == device_id{}) {  // whoever knows the device that it was made on
    auto got = tagged(parts_.front()->import_block(device, descriptor), 0);
    for (std::size_t i = 1; i < parts_.size() && !got; ++i) {
      if (got.error().code != errc::unsupported && got.error().code != errc::not_found) break;
      auto here = tagged(parts_[i]->import_block(device, descriptor), i);
      if (here || here.error().code != errc::unsupported) got = std::move(here);
    }
    return got;
  }
  backend* const by = backend_of(device);
  if (by == nullptr) return no_device(device);
  return tagged(by->import_block(device, descriptor), part_of(device));
}

// ---- share, multicast -----------------------------------------------------------------------------------------------

result<bytes> mixed_backend::multicast_granularity(std::span<const device_id> team) noexcept {
  if (team.empty()) return parts_.front()->multicast_granularity(team);
  for (const device_id id : team) {
    if (part_of(id) == owner::none) return no_device(id);
    if (part_of(id) != part_of(team.front()))
      return make_error(errc::unsupported,
                        "no multicast between devices of different backends: " + apart(team.front(), id));
  }
  return backend_of(team.front())->multicast_granularity(team);
}

result<multicast_id> mixed_backend::create_multicast(std::size_t devices, bytes size) noexcept {
  auto got = tagged(parts_.front()->create_multicast(devices, size), 0);
  for (std::size_t i = 1; i < parts_.size() && !got && got.error().code == errc::unsupported; ++i)
    got = tagged(parts_[i]->create_multicast(devices, size), i);
  return got;
}

void mixed_backend::release_multicast(multicast_id group) noexcept {
  backend_of(group)->release_multicast(untagged(group));
}

result<void> mixed_backend::add_multicast_device(multicast_id group, device_id device) noexcept {
  if (part_of(device) == owner::none) return no_device(device);
  if (part_of(device) != part_in(group)) {
    return make_error(errc::unsupported, "this multicast object is of the " +
                                             std::string{to_string(backend_of(group)->kind())} + " backend, and " +
                                             to_string(device) + " of another: open a machine of its backend alone");
  }
  return backend_of(group)->add_multicast_device(untagged(group), device);
}

result<void> mixed_backend::bind_multicast(multicast_id group, block_id block) noexcept {
  if (part_in(group) != part_in(block))
    return make_error(errc::unsupported, "a block of one backend cannot be bound to a multicast object of another");
  return backend_of(group)->bind_multicast(untagged(group), untagged(block));
}

result<void> mixed_backend::unbind_multicast(multicast_id group, device_id device) noexcept {
  return backend_of(group)->unbind_multicast(untagged(group), device);
}

result<event_ref> mixed_backend::multicast_store(stream_handle stream, multicast_id group, bytes offset,
                                                 const void* src, bytes size) noexcept {
  if (part_in(group) != part_in(stream))
    return make_error(errc::unsupported, "a multicast object is used in streams of its own backend's devices");
  return backend_of(group)->multicast_store(untagged(stream), untagged(group), offset, src, size);
}

result<event_ref> mixed_backend::multicast_load(stream_handle stream, void* dst, multicast_id group, bytes offset,
                                                std::size_t count, element_type type,
                                                multicast_reduction how) noexcept {
  if (part_in(group) != part_in(stream))
    return make_error(errc::unsupported, "a multicast object is used in streams of its own backend's devices");
  return backend_of(group)->multicast_load(untagged(stream), dst, untagged(group), offset, count, type, how);
}

// ---- share, handles of memory ---------------------------------------------------------------------------------------

result<void*> mixed_backend::allocate_shareable(device_id device, bytes size, handle_family family) noexcept {
  backend* const by = backend_of(device);
  if (by == nullptr) return no_device(device);
  return by->allocate_shareable(device, size, family);
}

result<shared_bytes> mixed_backend::export_memory(const void* address, bytes size, handle_family family) noexcept {
  const owner memory = owner_of(address);
  return parts_[memory.known() ? memory.part : 0]->export_memory(address, size, family);
}

result<opened_memory_description> mixed_backend::open_memory(std::optional<device_id> device,
                                                             const shared_bytes& handle, handle_family family,
                                                             std::chrono::nanoseconds limit) noexcept {
  if (device) {
    backend* const by = backend_of(*device);
    return by == nullptr ? no_device(*device) : by->open_memory(device, handle, family, limit);
  }
  auto got = parts_.front()->open_memory(device, handle, family, limit);
  const auto is_not_its_own = [&] {
    return !got && (got.error().code == errc::unsupported || got.error().code == errc::incompatible);
  };
  for (std::size_t i = 1; i < parts_.size() && is_not_its_own(); ++i)
    got = parts_[i]->open_memory(device, handle, family, limit);
  return got;
}

result<void> mixed_backend::close_memory(void* address) noexcept {
  return first_that_knows([=](backend& by) { return by.close_memory(address); });
}

result<void> mixed_backend::set_memory_access(void* address, std::span<const device_right> rights) noexcept {
  const owner memory = owner_of(address);
  if (!memory.known()) return parts_.front()->set_memory_access(address, rights);
  if (auto cause = rights_apart(memory.part, rights)) return std::move(*cause);
  return parts_[memory.part]->set_memory_access(address, rights);
}

result<access_right> mixed_backend::memory_access(device_id device, const void* address) noexcept {
  backend* const by = backend_of(device);
  if (by == nullptr) return no_device(device);
  const owner memory = owner_of(address);
  if (memory.known() && memory.part != part_of(device)) return access_right::none;
  return by->memory_access(device, address);
}

// ---- watch ----------------------------------------------------------------------------------------------------------

link_traffic mixed_backend::traffic() {
  link_traffic all;
  all.bytes_on_link.reserve(layout_.links.size());
  std::size_t end = 0;
  for (const auto& part : parts_) {
    end += part->layout().links.size();
    const link_traffic here = part->traffic();
    all.bytes_on_link.insert(all.bytes_on_link.end(), here.bytes_on_link.begin(), here.bytes_on_link.end());
    all.bytes_on_link.resize(end);  // one that keeps no account
  }
  all.bytes_on_link.resize(layout_.links.size());
  return all;
}

std::uint64_t mixed_backend::watch_traffic(const traffic_source& source) noexcept {
  const device_id host;
  std::vector<std::pair<backend*, std::uint64_t>> watched;
  const auto watch = [&](device_id of, const traffic_source& how) {
    backend* const by = backend_of(of);
    if (by == nullptr) return;
    if (const std::uint64_t id = by->watch_traffic(how)) watched.emplace_back(by, id);
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

void mixed_backend::unwatch_traffic(std::uint64_t id) noexcept {
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

void mixed_backend::trace_to(std::shared_ptr<trace_sink> sink) noexcept {
  for (const auto& part : parts_) part->trace_to(sink);
}

std::vector<order_violation> mixed_backend::order_violations() {
  std::vector<order_violation> all;
  for (const auto& part : parts_) {
    auto some = part->order_violations();
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return all;
}

void mixed_backend::note_copy(stream_handle order, const copy_request& whole) noexcept {
  backend_of(order)->note_copy(untagged(order), whole);
}

void mixed_backend::note_reuse(void* base) noexcept {
  const owner memory = owner_of(base);
  if (memory.known()) parts_[memory.part]->note_reuse(base);
}

std::shared_ptr<const error> mixed_backend::lost(device_id device) noexcept {
  backend* const by = backend_of(device);
  return by == nullptr ? nullptr : by->lost(device);
}

result<void> mixed_backend::reset(device_id device) noexcept {
  backend* const by = backend_of(device);
  if (by == nullptr) return no_device(device);
  forget_uses(device);
  return by->reset(device);
}

bool mixed_backend::on_worker() noexcept {
  return hops_.is_current() ||
         std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->on_worker(); });
}

void mixed_backend::close() noexcept {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  // the work of all first: one may be moving memory of another
  for (const auto& part : parts_) part->end_work();
  // every event has ended; what hops through the host sees that
  hops_.end();
  for (const auto& part : parts_) part->close();
}

}  // namespace weft::detail
