// SPDX-License-Identifier: Apache-2.0
// What the gpu backend shares between devices and processes: memory_map, blocks, multicast and sharing do it.
#include "backend/address.hpp"
#include "backends/gpu/gpu_backend.hpp"

#include <utility>

namespace weft::gpu {

// ---- peers ----------------------------------------------------------------------------------------------------------

bool gpu_backend::do_can_access(device_id from, device_id to) noexcept { return memory_.can_access(from, to); }

result<void> gpu_backend::do_enable_peer(device_id from, device_id to) {
  for (const device_id end : {from, to}) {
    if (auto cause = scheduler_->lost(end)) return error{*cause};
  }
  part_peers();  // a GPU has few places for peers
  auto done = memory_.enable(from, to);
  if (!done) return noticed(from, std::move(done).error());
  return done;
}

result<void> gpu_backend::do_disable_peer(device_id from, device_id to) {
  auto done = memory_.disable(from, to);
  if (done) part_peers();
  return done;
}

/// The driver's access goes where disable_peer() ended it. A copy that the driver has begun must not lose it: then it
/// is for whoever looks next, who waits for a stream or enables another peer.
void gpu_backend::part_peers() {
  if (!memory_.has_to_part()) return;
  memory_.part([this](std::size_t gpu) {
    for (std::size_t d = 0; d < devices().size(); ++d) {
      if (places_->gpu_of(d) != gpu) continue;
      if (!scheduler_->idle_on(global(d))) return false;
    }
    return true;
  });
}

bool gpu_backend::do_peer_enabled(device_id from, device_id to) noexcept { return memory_.enabled(from, to); }

result<void*> gpu_backend::do_map_peer(device_id by, void* address, bytes size) {
  return memory_.map(by, address, size.size());
}

result<void> gpu_backend::do_unmap_peer(device_id by, void* mapped) { return memory_.unmap(by, mapped); }

result<atomic_support> gpu_backend::do_peer_atomics(device_id from, device_id to, atomic_operation operation) {
  if (!memory_.can_access(from, to)) return atomic_support::none;
  using s = atomic_support;
  const bool is_float = operation >= atomic_operation::float_add;
  // what every GPU does in its own memory, in words of the size that all have
  const s all =
      (is_float ? s::none : s::signed_integers | s::unsigned_integers) | s::scalar_32 |
      (operation == atomic_operation::float_min || operation == atomic_operation::float_max ? s::none : s::scalar_64);
  if (found_.same_gpu(local(from), local(to))) return all;
  const gpu_pair& pair = found_.pair_of(local(from), local(to));
  if (cu_->cuDeviceGetP2PAtomicCapabilities != nullptr) {
    unsigned capabilities = 0;
    const int asked = static_cast<int>(operation);
    const CUresult status = cu_->cuDeviceGetP2PAtomicCapabilities(
        &capabilities, &asked, 1, found_.gpu_of(local(from)).id, found_.gpu_of(local(to)).id);
    if (status == CUDA_SUCCESS) return static_cast<s>(capabilities & 0x7FU);
  }
  // an older driver knows all or nothing
  return pair.native_atomics ? all : s::none;
}

// ---- blocks and mappings --------------------------------------------------------------------------------------------

result<block_granularity> gpu_backend::do_granularity(device_id device) { return blocks_.granularity(device); }

result<block_id> gpu_backend::do_create_block(device_id device, bytes size, bool shareable) {
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto made = blocks_.create(device, size.size(), shareable);
  if (made || made.error().code != errc::out_of_memory) return made;
  look_at(device);
  return blocks_.create(device, size.size(), shareable);
}

result<void> gpu_backend::do_release_block(block_id block) { return blocks_.release(block); }

result<block_description> gpu_backend::do_describe_block(block_id block) { return blocks_.describe(block); }

result<void*> gpu_backend::do_reserve(bytes size, bytes alignment, void* hint) {
  return blocks_.reserve(size.size(), alignment.size(), hint);
}

result<void> gpu_backend::do_free_reservation(void* base, bytes size) { return blocks_.free(base, size.size()); }

result<void> gpu_backend::do_map_block(void* address, bytes size, block_id block) {
  return blocks_.map(address, size.size(), block);
}

result<void> gpu_backend::do_unmap_block(void* address, bytes size) { return blocks_.unmap(address, size.size()); }

result<void> gpu_backend::do_set_access(void* address, bytes size, std::span<const device_right> rights) {
  return blocks_.set_access(address, size.size(), rights);
}

result<access_right> gpu_backend::do_access_of(device_id device, const void* address) {
  return blocks_.access_of(device, address);
}

result<block_id> gpu_backend::do_block_of(const void* address) { return blocks_.block_of(address); }

result<int> gpu_backend::do_export_block(block_id block) { return blocks_.give(block); }

result<block_id> gpu_backend::do_import_block(std::optional<device_id> device, int descriptor, bytes size) {
  return blocks_.take(device, descriptor, size.size());
}

// ---- multicast ------------------------------------------------------------------------------------------------------

result<bytes> gpu_backend::do_multicast_granularity(std::span<const device_id> team) {
  return multicast_.granularity(team);
}

result<multicast_id> gpu_backend::do_create_multicast(std::size_t devices, bytes size) {
  return multicast_.create(devices, size.size());
}

void gpu_backend::do_release_multicast(multicast_id group) { multicast_.release(group); }

result<void> gpu_backend::do_add_multicast_device(multicast_id group, device_id device) {
  return multicast_.add(group, device);
}

result<void> gpu_backend::do_bind_multicast(multicast_id group, block_id block) {
  return multicast_.bind(group, block);
}

result<void> gpu_backend::do_unbind_multicast(multicast_id group, device_id device) {
  auto done = multicast_.unbind(group, device);
  if (done || done.error().code != errc::not_ready) return done;
  // what has ended may not have been looked at
  for (std::size_t d = 0; d < devices().size(); ++d) look_at(global(d));
  return multicast_.unbind(group, device);
}

// ---- handles of memory ----------------------------------------------------------------------------------------------

result<void*> gpu_backend::do_allocate_shareable(device_id device, bytes size, handle_family family) {
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto made = sharing_.allocate(device, size.size(), family);
  if (!made && made.error().code == errc::out_of_memory) {
    look_at(device);
    made = sharing_.allocate(device, size.size(), family);
  }
  if (!made) return noticed(device, std::move(made).error());
  return made;
}

result<shared_bytes> gpu_backend::do_export_memory(const void* address, bytes size, handle_family family) {
  return sharing_.give(address, size.value(), family);
}

result<opened_memory_description> gpu_backend::do_open_memory(std::optional<device_id> device,
                                                              const shared_bytes& handle, handle_family family,
                                                              std::chrono::nanoseconds timeout) {
  if (device) {
    if (auto cause = scheduler_->lost(*device)) return error{*cause};
  }
  const auto see_all_ends = [this] {
    for (std::size_t d = 0; d < devices().size(); ++d) see_ends(global(d));
  };
  return sharing_.open(device, handle, timeout, family, see_all_ends);
}

result<void> gpu_backend::do_close_memory(void* address) { return sharing_.close(address); }

result<void> gpu_backend::do_set_memory_access(void* address, std::span<const device_right> rights) {
  return sharing_.set_access(address, rights);
}

result<access_right> gpu_backend::do_memory_access(device_id device, const void* address) {
  const auto memory = memory_.find(address);
  if (!memory) return not_allocated(address);
  if (!memory_.denied(device, *memory).empty()) return access_right::none;
  return memory_.denied(device, *memory, true).empty() ? access_right::read_write : access_right::read;
}

}  // namespace weft::gpu
