// SPDX-License-Identifier: Apache-2.0
// The host backend's blocks, mappings and multicast: block_map and multicast do the work.
#include "backends/host/host_backend.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <cstring>

namespace weft::host {

result<atomic_support> host_backend::do_peer_atomics(device_id from, device_id to, atomic_operation operation) {
  if (auto cause = injected("peer_atomics", {from, to})) return *cause;
  if (!has_access(from, to) || !path_between(from, to).native_atomics) return atomic_support::none;
  // what a processor does on memory that it shares with another one
  using s = atomic_support;
  const s sizes = s::scalar_32 | s::scalar_64;
  switch (operation) {
    case atomic_operation::float_add:
    case atomic_operation::float_min:
    case atomic_operation::float_max:
      return s::reduction | s::signed_integers | sizes;
    case atomic_operation::exchange:
    case atomic_operation::compare_exchange:
      return s::signed_integers | s::unsigned_integers | sizes;
    default:
      return s::signed_integers | s::unsigned_integers | s::reduction | sizes;
  }
}

// ---- blocks and mappings --------------------------------------------------------------------------------------------

result<block_granularity> host_backend::do_granularity(device_id device) {
  if (auto cause = injected("granularity", {device})) return *cause;
  return block_granularity{bytes{block_map::granule()}, bytes{block_map::granule()}};
}

result<block_id> host_backend::do_create_block(device_id device, bytes size, bool shareable) {
  if (auto cause = injected("create_block", {device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  const std::string& uuid = description_of(device).uuid;
  return blocks_.create(device, uuid, size.size(), shareable);
}

result<void> host_backend::do_release_block(block_id block) { return blocks_.release(block); }

result<block_description> host_backend::do_describe_block(block_id block) {
  if (auto cause = injected("describe_block", {})) return *cause;
  return blocks_.describe(block);
}

result<void*> host_backend::do_reserve(bytes size, bytes alignment, void* hint) {
  if (auto cause = injected("reserve", {})) return *cause;
  return blocks_.reserve(size.size(), alignment.size(), hint);
}

result<void> host_backend::do_free_reservation(void* base, bytes size) { return blocks_.free(base, size.size()); }

result<void> host_backend::do_map_block(void* address, bytes size, block_id block) {
  if (auto cause = injected("map_block", {})) return *cause;
  return blocks_.map(address, size.size(), block);
}

result<void> host_backend::do_unmap_block(void* address, bytes size) {
  if (auto cause = injected("unmap_block", {})) return *cause;
  return blocks_.unmap(address, size.size());
}

result<void> host_backend::do_set_access(void* address, bytes size, std::span<const device_right> rights) {
  if (auto cause = injected("set_access", {})) return *cause;
  for (const device_right& one : rights) {
    if (auto cause = injected("set_access", {one.device})) return *cause;
  }
  return blocks_.set_access(address, size.size(), rights,
                            [this](device_id device, device_id owner) -> std::optional<error> {
                              if (has_access(device, owner)) return std::nullopt;
                              return without_path(device, owner);
                            });
}

result<access_right> host_backend::do_access_of(device_id device, const void* address) {
  if (auto cause = injected("access_of", {device})) return *cause;
  return blocks_.access_of(device, address);
}

result<block_id> host_backend::do_block_of(const void* address) {
  if (auto cause = injected("block_of", {})) return *cause;
  return blocks_.block_of(address);
}

result<int> host_backend::do_export_block(block_id block) {
  if (auto cause = injected("export_block", {})) return *cause;
  return blocks_.give(block);
}

result<block_id> host_backend::do_import_block(std::optional<device_id> device, int descriptor, bytes size) {
  if (auto cause = device ? injected("import_block", {*device}) : injected("import_block", {})) return *cause;
  auto offered = block_map::inspect(descriptor);
  if (!offered) return std::move(offered).error();
  if (size.value() > offered->header.size) {
    return make_error(errc::corrupt,
                      "a block of " + to_string(bytes{offered->header.size}) + " was said to have " + to_string(size));
  }
  if (!device) {
    const std::string_view uuid{offered->header.device.data()};
    const auto at =
        std::find_if(devices().begin(), devices().end(), [&](const device_description& d) { return d.uuid == uuid; });
    if (at == devices().end()) {
      return make_error(errc::not_found, "the block was made on the device " + std::string{uuid} +
                                             ", which this machine has not; say on which device it is to be taken");
    }
    device = global(static_cast<std::size_t>(at - devices().begin()));
  }
  if (auto cause = scheduler_.lost(*device)) return error{*cause};
  return blocks_.take(*device, std::move(*offered));
}

// ---- multicast ------------------------------------------------------------------------------------------------------

result<bytes> host_backend::do_multicast_granularity(std::span<const device_id> team) {
  for (const device_id id : team) {
    if (auto cause = injected("multicast_granularity", {id})) return *cause;
  }
  if (team.size() < 2) {
    return make_error(errc::unsupported,
                      "multicast is between two devices or more, not " + std::to_string(team.size()));
  }
  for (const device_id a : team) {
    for (const device_id b : team) {
      if (a == b || has_access(a, b)) continue;
      return make_error(errc::unsupported, "no multicast between these devices: " + without_path(a, b).what);
    }
  }
  return bytes{block_map::granule()};
}

result<multicast_id> host_backend::do_create_multicast(std::size_t devices, bytes size) {
  if (auto cause = injected("create_multicast", {})) return *cause;
  if (devices < 2 || devices > layout().devices.size()) {
    return make_error(errc::unsupported, "multicast is between 2 and " + std::to_string(layout().devices.size()) +
                                             " devices here, not " + std::to_string(devices));
  }
  if (size.value() == 0 || size.size() % block_map::granule() != 0) {
    return make_error(errc::invalid_argument, "a multicast object of " + to_string(size) + ": sizes are multiples of " +
                                                  to_string(bytes{block_map::granule()}));
  }
  return multicasts_.add(std::make_shared<multicast_group>(devices, size.size()));
}

void host_backend::do_release_multicast(multicast_id group) { multicasts_.remove(group); }

result<std::shared_ptr<multicast_group>> host_backend::multicast_of(multicast_id group) {
  auto found = multicasts_.find(group);
  if (!found) return make_error(errc::not_found, "there is no such multicast object; was it released?");
  return found;
}

result<void> host_backend::do_add_multicast_device(multicast_id group, device_id device) {
  if (auto cause = injected("add_multicast_device", {device})) return *cause;
  auto found = multicast_of(group);
  if (!found) return std::move(found).error();
  return (*found)->add(device);
}

result<void> host_backend::do_bind_multicast(multicast_id group, block_id block) {
  if (auto cause = injected("bind_multicast", {})) return *cause;
  auto found = multicast_of(group);
  if (!found) return std::move(found).error();
  auto memory = blocks_.find(block);
  if (!memory) return make_error(errc::not_found, "the block to bind was released");
  return (*found)->bind(std::move(memory));
}

result<void> host_backend::do_unbind_multicast(multicast_id group, device_id device) {
  if (auto cause = injected("unbind_multicast", {device})) return *cause;
  auto found = multicast_of(group);
  if (!found) return std::move(found).error();
  return (*found)->unbind(device);
}

result<host_backend::end_of_multicast> host_backend::other_end(const void* address, std::uint64_t size, device_id by,
                                                               bool writes) {
  if (address == nullptr) return make_error(errc::invalid_argument, "a multicast from or to null");
  auto memory = memory_.find(address, size);
  if (!memory) return end_of_multicast{pin{}, const_cast<void*>(address)};  // the host's
  if (auto wrong = beyond_end("a multicast", size, address, memory->user, memory->size)) return std::move(*wrong);
  if (auto cause = memory->broken()) return std::move(*cause);
  if (auto why = memory_.denied(by, *memory, writes); !why.empty())
    return make_error(errc::invalid_argument, std::move(why));
  return end_of_multicast{pin{std::move(memory)}, const_cast<void*>(address)};
}

result<event_ref> host_backend::do_multicast_store(stream_handle handle, multicast_id group, bytes offset,
                                                   const void* src, bytes size) {
  auto stream = stream_of("multicast_store", handle);
  if (!stream) return std::move(stream).error();
  auto found = multicast_of(group);
  if (!found) return std::move(found).error();
  const device_id by = (*stream)->device();
  auto replicas = (*found)->reach(by, offset.value(), size.value());
  if (!replicas) return std::move(replicas).error();
  if (size.value() == 0) return do_record(handle);
  auto from = other_end(src, size.value(), by, false);
  if (!from) return std::move(from).error();
  struct boxed_store {
    end_of_multicast from;
    std::vector<std::shared_ptr<replica>> to;
    std::uint64_t offset, size;
  };
  auto boxed =
      std::make_unique<boxed_store>(boxed_store{std::move(*from), std::move(*replicas), offset.value(), size.value()});
  operation_note note;
  note.kind = trace_kind::copy;
  note.bytes = size.value();
  note.name = "multicast_store";
  return submitted(scheduler_.submit(
      **stream,
      [this, by, boxed = std::move(boxed)]() -> work::outcome {
        const auto* bytes_of = static_cast<const std::byte*>(boxed->from.address);
        if (boxed->from.memory) {
          auto at = memory_.resolve(by, *boxed->from.memory.get(), bytes_of);
          if (!at) return shared_error(std::move(at).error());
          bytes_of = *at;
        }
        for (const auto& one : boxed->to) {
          std::memmove(one->view.get().base + boxed->offset, bytes_of, boxed->size);
          if (one->device != by) transfers_.account(by, one->device, boxed->size);
        }
        return nullptr;
      },
      note));
}

result<event_ref> host_backend::do_multicast_load(stream_handle handle, void* dst, multicast_id group, bytes offset,
                                                  std::size_t count, element_type type, multicast_reduction how) {
  auto stream = stream_of("multicast_load", handle);
  if (!stream) return std::move(stream).error();
  auto found = multicast_of(group);
  if (!found) return std::move(found).error();
  const device_id by = (*stream)->device();
  const std::uint64_t size = count * size_of(type);
  auto replicas = (*found)->reach(by, offset.value(), size);
  if (!replicas) return std::move(replicas).error();
  if (size == 0) return do_record(handle);
  auto to = other_end(dst, size, by, true);
  if (!to) return std::move(to).error();
  struct boxed_load {
    end_of_multicast to;
    std::vector<std::shared_ptr<replica>> from;
    std::uint64_t offset;
    std::size_t count;
    element_type type;
    multicast_reduction how;
  };
  auto boxed =
      std::make_unique<boxed_load>(boxed_load{std::move(*to), std::move(*replicas), offset.value(), count, type, how});
  operation_note note;
  note.kind = trace_kind::copy;
  note.bytes = size;
  note.name = "multicast_load";
  return submitted(scheduler_.submit(
      **stream,
      [this, by, size, boxed = std::move(boxed)]() -> work::outcome {
        auto* at = static_cast<std::byte*>(boxed->to.address);
        if (boxed->to.memory) {
          auto seen = memory_.resolve(by, *boxed->to.memory.get(), at, true);
          if (!seen) return shared_error(std::move(seen).error());
          at = *seen;
        }
        for (const auto& one : boxed->from) {
          if (one->device != by) transfers_.account(one->device, by, size);
        }
        join(at, boxed->from, boxed->offset, boxed->count, boxed->type, boxed->how);
        return nullptr;
      },
      note));
}

}  // namespace weft::host
