// SPDX-License-Identifier: Apache-2.0
// The share group of the CUDA backend: arguments are checked here; memory_map, blocks, multicast and sharing do the
// rest.
#include "backend/address.hpp"
#include "backends/gpu/gpu_backend.hpp"

#include <array>
#include <exception>
#include <utility>

namespace weft::gpu {
namespace {

/// Runs what allocates: nothing may leave this border but a value.
template <class F>
auto guarded(F&& f) noexcept -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception&) {
    return make_error(errc::resource_exhausted, "the host has no memory left for the tables of the CUDA backend");
  }
}

}  // namespace

error gpu_backend::without_path(device_id from, device_id to) noexcept {
  auto about = peer(from, to);
  return make_error(errc::peer_unsupported, to_string(from) + " cannot map " + to_string(to) + ": " +
                                                (about ? about->why : about.error().what));
}

// ---- peers ----------------------------------------------------------------------------------------------------------

result<void> gpu_backend::enable_peer(device_id from, device_id to) noexcept {
  if (auto cause = check_call({from, to})) return *cause;
  if (from == to) return make_error(errc::invalid_device, to_string(from) + " is not a peer of itself");
  if (!memory_.can_access(from, to)) return without_path(from, to);
  for (const device_id end : {from, to}) {
    if (auto cause = scheduler_->lost(end)) return error{*cause};
  }
  part_peers();  // a GPU has few places for peers
  auto done = guarded([&] { return memory_.enable(from, to); });
  if (!done) return noticed(from, std::move(done).error());
  return done;
}

result<void> gpu_backend::disable_peer(device_id from, device_id to) noexcept {
  if (auto cause = check_call({from, to})) return *cause;
  if (from == to) return make_error(errc::invalid_device, to_string(from) + " is not a peer of itself");
  if (!memory_.can_access(from, to)) return without_path(from, to);
  return guarded([&]() -> result<void> {
    auto done = memory_.disable(from, to);
    if (done) part_peers();
    return done;
  });
}

/// The driver's access goes where disable_peer() ended it. A copy that the driver has begun must not lose it: then it
/// is for whoever looks next, who waits for a stream or enables another peer.
void gpu_backend::part_peers() noexcept {
  if (!memory_.has_to_part()) return;
  memory_.part([this](std::size_t gpu) {
    for (std::size_t d = 0; d < descriptions_.size(); ++d) {
      if (places_->gpu_of(d) != gpu) continue;
      for (queued::queued_stream* order : scheduler_->streams_of(memory_.global(d))) {
        if (!scheduler_->idle(*order)) return false;
      }
    }
    return true;
  });
}

bool gpu_backend::peer_enabled(device_id from, device_id to) noexcept {
  return known(from) && known(to) && memory_.enabled(from, to);
}

result<void*> gpu_backend::map_peer(device_id by, void* address, bytes size) noexcept {
  if (auto cause = check_call({by})) return *cause;
  if (address == nullptr || size.value() == 0) return make_error(errc::invalid_argument, "mapping null or zero bytes");
  const auto source = memory_.find(address);
  if (!source) return memory_.absent(address);
  if (source->owner == by)
    return make_error(errc::invalid_device, to_string(by) + " owns this memory and needs no mapping");
  if (!memory_.can_access(by, source->owner)) return without_path(by, source->owner);
  if (!memory_.enabled(by, source->owner)) {
    return make_error(errc::not_enabled, to_string(by) + " has no access to " + to_string(source->owner) +
                                             ": enable it (peer_access) before mapping");
  }
  return guarded([&] { return memory_.map(by, source, address, size.size()); });
}

result<void> gpu_backend::unmap_peer(device_id by, void* mapped) noexcept {
  if (scheduler_->closed() || here_.forked()) return {};
  if (auto cause = check_call({by})) return *cause;
  return memory_.unmap(by, mapped);
}

result<atomic_support> gpu_backend::peer_atomics(device_id from, device_id to, atomic_operation operation) noexcept {
  if (auto cause = check_call({from, to})) return *cause;
  if (from == to) return make_error(errc::invalid_device, to_string(from) + " is not a peer of itself");
  if (static_cast<std::size_t>(operation) >= atomic_operation_count) {
    return make_error(errc::invalid_argument,
                      "there is no atomic operation " + std::to_string(static_cast<int>(operation)));
  }
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

result<block_granularity> gpu_backend::granularity(device_id device) noexcept {
  if (auto cause = check_call({device})) return *cause;
  return guarded([&] { return blocks_.granularity(device); });
}

result<block_id> gpu_backend::create_block(device_id device, bytes size, bool shareable) noexcept {
  if (auto cause = check_call({device})) return *cause;
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  return guarded([&] {
    auto made = blocks_.create(device, size.size(), shareable);
    if (made || made.error().code != errc::out_of_memory) return made;
    look_at(device);
    return blocks_.create(device, size.size(), shareable);
  });
}

result<void> gpu_backend::retain_block(block_id block) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return blocks_.retain(block); });
}

result<void> gpu_backend::release_block(block_id block) noexcept {
  if (scheduler_->closed() || here_.forked()) return {};  // everything went with the machine
  return guarded([&] { return blocks_.release(block); });
}

result<block_description> gpu_backend::describe_block(block_id block) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return blocks_.describe(block); });
}

result<void*> gpu_backend::reserve(bytes size, bytes alignment, void* hint) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return blocks_.reserve(size.size(), alignment.size(), hint); });
}

result<void> gpu_backend::free_reservation(void* base, bytes size) noexcept {
  if (scheduler_->closed() || here_.forked()) return {};
  return guarded([&] { return blocks_.free(base, size.size()); });
}

result<void> gpu_backend::map_block(void* address, bytes size, block_id block) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return blocks_.map(address, size.size(), block); });
}

result<void> gpu_backend::unmap_block(void* address, bytes size) noexcept {
  if (scheduler_->closed() || here_.forked()) return {};
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return blocks_.unmap(address, size.size()); });
}

result<void> gpu_backend::set_access(void* address, bytes size, std::span<const device_right> rights) noexcept {
  if (auto cause = check_call({})) return *cause;
  for (const device_right& one : rights) {
    if (auto cause = check_call({one.device})) return *cause;
  }
  return guarded([&] { return blocks_.set_access(address, size.size(), rights); });
}

result<access_right> gpu_backend::access_of(device_id device, const void* address) noexcept {
  if (auto cause = check_call({device})) return *cause;
  return guarded([&] { return blocks_.access_of(device, address); });
}

result<block_id> gpu_backend::block_of(const void* address) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return blocks_.block_of(address); });
}

result<int> gpu_backend::export_block(block_id block) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return blocks_.give(block); });
}

result<block_id> gpu_backend::import_block(device_id device, int descriptor) noexcept {
  if (device == device_id{}) {
    if (auto cause = check_call({})) return *cause;
    return guarded([&] { return blocks_.take(std::nullopt, descriptor); });
  }
  if (auto cause = check_call({device})) return *cause;
  return guarded([&] { return blocks_.take(device, descriptor); });
}

// ---- multicast ------------------------------------------------------------------------------------------------------

result<bytes> gpu_backend::multicast_granularity(std::span<const device_id> team) noexcept {
  if (auto cause = check_call({})) return *cause;
  for (const device_id one : team) {
    if (auto cause = check_call({one})) return *cause;
  }
  return guarded([&] { return multicast_.granularity(team); });
}

result<multicast_id> gpu_backend::create_multicast(std::size_t devices, bytes size) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return multicast_.create(devices, size.size()); });
}

void gpu_backend::release_multicast(multicast_id group) noexcept {
  if (!scheduler_->closed() && !here_.forked()) multicast_.release(group);
}

result<void> gpu_backend::add_multicast_device(multicast_id group, device_id device) noexcept {
  if (auto cause = check_call({device})) return *cause;
  return guarded([&] { return multicast_.add(group, device); });
}

result<void> gpu_backend::bind_multicast(multicast_id group, block_id block) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return multicast_.bind(group, block); });
}

result<void> gpu_backend::unbind_multicast(multicast_id group, device_id device) noexcept {
  if (auto cause = check_call({device})) return *cause;
  return guarded([&] {
    auto done = multicast_.unbind(group, device);
    if (done || done.error().code != errc::not_ready) return done;
    // what has ended may not have been looked at
    for (std::size_t d = 0; d < descriptions_.size(); ++d) look_at(memory_.global(d));
    return multicast_.unbind(group, device);
  });
}

// ---- handles of memory ----------------------------------------------------------------------------------------------

result<void*> gpu_backend::allocate_shareable(device_id device, bytes size, handle_family family) noexcept {
  if (auto cause = check_call({device})) return *cause;
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto made = guarded([&] {
    auto first = sharing_.allocate(device, size.size(), family);
    if (first || first.error().code != errc::out_of_memory) return first;
    look_at(device);
    return sharing_.allocate(device, size.size(), family);
  });
  if (!made) return noticed(device, std::move(made).error());
  return made;
}

result<shared_bytes> gpu_backend::export_memory(const void* address, bytes size, handle_family family) noexcept {
  if (auto cause = check_call({})) return *cause;
  return guarded([&] { return sharing_.give(address, size.value(), family); });
}

result<opened_memory_description> gpu_backend::open_memory(std::optional<device_id> device, const shared_bytes& handle,
                                                           handle_family family,
                                                           std::chrono::nanoseconds limit) noexcept {
  if (auto cause = check_call({})) return *cause;
  if (device) {
    if (auto cause = check_call({*device})) return *cause;
    if (auto cause = scheduler_->lost(*device)) return error{*cause};
  }
  const auto see_all_ends = [this] {
    for (std::size_t d = 0; d < descriptions_.size(); ++d) see_ends(memory_.global(d));
  };
  return guarded([&] { return sharing_.open(device, handle, limit, family, see_all_ends); });
}

result<void> gpu_backend::close_memory(void* address) noexcept {
  if (scheduler_->closed() || here_.forked()) return {};
  return guarded([&] { return sharing_.close(address); });
}

result<void> gpu_backend::set_memory_access(void* address, std::span<const device_right> rights) noexcept {
  if (auto cause = check_call({})) return *cause;
  for (const device_right& one : rights) {
    if (auto cause = check_call({one.device})) return *cause;
  }
  return guarded([&] { return sharing_.set_access(address, rights); });
}

result<access_right> gpu_backend::memory_access(device_id device, const void* address) noexcept {
  if (auto cause = check_call({device})) return *cause;
  const auto memory = memory_.find(address);
  if (!memory) return memory_.absent(address);
  if (!memory_.denied(device, *memory).empty()) return access_right::none;
  return memory_.denied(device, *memory, true).empty() ? access_right::read_write : access_right::read;
}

}  // namespace weft::gpu
