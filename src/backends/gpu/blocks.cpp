// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/blocks.hpp"

#include "backend/address.hpp"
#include "backends/gpu/device_pointer.hpp"

#include <algorithm>
#include <bit>
#include <fcntl.h>
#include <limits>
#include <unistd.h>

namespace weft::gpu {
namespace {

CUdeviceptr gpu_number(const void* address) { return static_cast<CUdeviceptr>(number(address)); }
std::string extent(const void* address, std::size_t size) { return to_string(bytes{size}) + " at " + hex(address); }

error no_block(block_id block) {
  return make_error(errc::not_found,
                    "there is no block " + std::to_string(static_cast<std::uint64_t>(block)) + "; was it released?");
}

int flags_of(access_right right) {
  switch (right) {
    case access_right::read:
      return access_read;
    case access_right::read_write:
      return access_read_write;
    default:
      return access_none;
  }
}

}  // namespace

block_memory::~block_memory() {
  if (home == nullptr) return;
  if (handle != 0) home->later([cu = &home->cu(), h = handle] { static_cast<void>(cu->cuMemRelease(h)); });
  if (charged) home->uncharge(device, size);
}

reserved_range::~reserved_range() {
  if (home == nullptr || base == 0) return;
  home->later([cu = &home->cu(), at = base, n = reserved] { static_cast<void>(cu->cuMemAddressFree(at, n)); });
}

std::string blocks::missing(device_id device) const {
  const gpu_place& gpu = memory_.found().gpu_of(memory_.local(device));
  if (gpu.blocks) return {};
  return gpu.name + " has no virtual memory management";
}

CUmemAllocationProp blocks::properties(device_id device, bool shareable) const {
  CUmemAllocationProp made;
  made.requested_handle_types = shareable ? handle_posix_fd : handle_none;
  made.location = {location_device, memory_.found().gpu_of(memory_.local(device)).id};
  return made;
}

result<block_granularity> blocks::granularity(device_id device) const {
  if (const std::string why = missing(device); !why.empty())
    return make_error(errc::unsupported, "blocks on " + to_string(device) + ": " + why);
  const CUmemAllocationProp wanted =
      properties(device, memory_.found().gpu_of(memory_.local(device)).block_descriptors);
  std::size_t least = 0, best = 0;
  CUresult status = cu_.cuMemGetAllocationGranularity(&least, &wanted, granularity_minimum);
  if (status == CUDA_SUCCESS) status = cu_.cuMemGetAllocationGranularity(&best, &wanted, granularity_recommended);
  if (status != CUDA_SUCCESS || least == 0)
    return cu_error(cu_, status, "the granularity of blocks on " + to_string(device), errc::unsupported);
  return block_granularity{bytes{least}, bytes{std::max(least, best)}};
}

result<std::size_t> blocks::granule(device_id device) const {
  auto known = granularity(device);
  if (!known) return std::move(known).error();
  return known->minimum.size();
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

block_id blocks::added(std::shared_ptr<block_memory> made) {
  const std::lock_guard lock{mutex_};
  made->id = block_id{++last_id_};
  made->references = 1;
  const block_id id = made->id;
  blocks_.emplace(id, std::move(made));
  return id;
}

result<block_id> blocks::create(device_id device, std::size_t size, bool shareable) {
  memory_.settle();
  auto step = granule(device);
  if (!step) return std::move(step).error();
  if (size == 0 || size % *step != 0) {
    return make_error(errc::invalid_argument, "a block of " + to_string(bytes{size}) + " on " + to_string(device) +
                                                  ": sizes are multiples of " + to_string(bytes{*step}) +
                                                  " there (see granularity)");
  }
  if (shareable && !memory_.found().gpu_of(memory_.local(device)).block_descriptors) {
    return make_error(errc::unsupported, to_string(device) + " exports no block as a descriptor");
  }
  if (auto fits = memory_.charge(device, size); !fits) return std::move(fits).error();
  auto made = std::make_shared<block_memory>();
  made->home = &memory_;
  made->device = device;
  made->size = size;
  made->shareable = shareable;
  made->charged = true;
  const CUmemAllocationProp wanted = properties(device, shareable);
  const CUresult status = cu_.cuMemCreate(&made->handle, size, &wanted, 0);
  if (status != CUDA_SUCCESS) {
    made->handle = 0;
    return cu_error(cu_, status, "a block of " + to_string(bytes{size}) + " on " + to_string(device));
  }
  return added(std::move(made));
}

result<void> blocks::retain(block_id block) {
  const std::lock_guard lock{mutex_};
  const auto it = blocks_.find(block);
  if (it == blocks_.end()) return no_block(block);
  ++it->second->references;
  return {};
}

result<void> blocks::release(block_id block) {
  std::shared_ptr<block_memory> gone;
  const std::lock_guard lock{mutex_};
  const auto it = blocks_.find(block);
  if (it == blocks_.end()) return no_block(block);
  if (--it->second->references != 0) return {};
  gone = std::move(it->second);
  blocks_.erase(it);
  return {};
}

std::shared_ptr<block_memory> blocks::find(block_id block) {
  const std::lock_guard lock{mutex_};
  const auto it = blocks_.find(block);
  return it == blocks_.end() ? nullptr : it->second;
}

result<block_description> blocks::describe(block_id block) {
  const auto known = find(block);
  if (!known) return no_block(block);
  return block_description{known->device, bytes{known->size}, known->shareable, known->imported};
}

result<block_id> blocks::block_of(const void* address) {
  const auto found = memory_.find(address);
  if (!found || found->kind != memory_kind::block)
    return make_error(errc::not_found, "no block is mapped at " + hex(address));
  const std::shared_ptr<block_memory> block = found->mapping->memory;
  const std::lock_guard lock{mutex_};
  // the last reference may have gone while a mapping kept the memory
  if (++block->references == 1) blocks_.emplace(block->id, block);
  return block->id;
}

// ---- reservations ---------------------------------------------------------------------------------------------------

result<void*> blocks::reserve(std::size_t size, std::size_t alignment, void* hint) {
  memory_.settle();
  const auto page = page_size();
  if (size == 0 || size % page != 0) {
    return make_error(errc::invalid_argument, "a reservation of " + to_string(bytes{size}) +
                                                  ": sizes are multiples of a page, " + to_string(bytes{page}));
  }
  if (alignment != 0 && !std::has_single_bit(alignment)) {
    return make_error(errc::invalid_argument,
                      "the alignment of a reservation is 0 or a power of two, not " + std::to_string(alignment));
  }
  std::size_t to = alignment;
  std::string why;
  for (std::size_t d = 0; d < memory_.devices(); ++d) {
    auto step = granule(memory_.global(d));
    if (step) to = std::max(to, *step);
    if (!step) why = step.error().what;
  }
  if (to == alignment && !why.empty()) return make_error(errc::unsupported, std::move(why));
  auto made = std::make_shared<reserved_range>();
  // the driver takes whole granules
  const std::size_t step = std::min(to, std::size_t{2} << 20);
  if (size > std::numeric_limits<std::size_t>::max() - step)
    return make_error(errc::resource_exhausted, "there is no address space for " + to_string(bytes{size}));
  made->size = size;
  CUdeviceptr base = 0;
  const std::size_t asked = (size + step - 1) / step * step;
  const CUresult status = cu_.cuMemAddressReserve(&base, asked, to, gpu_number(hint), 0);
  if (status != CUDA_SUCCESS) {
    error cause = cu_error(cu_, status, "reserving " + to_string(bytes{size}));
    if (cause.code == errc::out_of_memory) cause.code = errc::resource_exhausted;  // of addresses
    return cause;
  }
  made->home = &memory_;
  made->base = base;
  made->reserved = asked;
  const std::lock_guard lock{mutex_};
  reservations_.emplace(static_cast<std::uintptr_t>(base), std::move(made));
  return pointer(base);
}

result<void> blocks::free(void* base, std::size_t size) {
  std::shared_ptr<reserved_range> gone;
  const std::lock_guard lock{mutex_};
  const auto it = reservations_.find(number(base));
  if (it == reservations_.end())
    return make_error(errc::not_found, "no reservation starts at " + hex(base) + "; was it freed before?");
  if (it->second->size != size) {
    return make_error(errc::invalid_argument, "the reservation at " + hex(base) + " has " +
                                                  to_string(bytes{it->second->size}) + ", not " +
                                                  to_string(bytes{size}) + ": it is freed as a whole");
  }
  std::map<std::size_t, std::size_t> busy;
  {
    const std::lock_guard range{it->second->mutex};
    busy = it->second->busy;
  }
  for (const auto& [offset, length] : busy) {
    const auto still = memory_.find(pointer(it->second->base + offset));
    if (still && still->kind == memory_kind::block) {
      return make_error(errc::invalid_argument, "the reservation at " + hex(base) + " still has " +
                                                    to_string(bytes{length}) + " mapped at offset " +
                                                    std::to_string(offset) + ": unmap it first");
    }
  }
  // what work still uses keeps the address space until that has ended
  gone = std::move(it->second);
  reservations_.erase(it);
  return {};
}

std::shared_ptr<reserved_range> blocks::range_of(const void* address, std::size_t size) {
  auto it = reservations_.upper_bound(number(address));
  if (it == reservations_.begin()) return nullptr;
  --it;
  const std::size_t offset = number(address) - it->first;
  if (offset >= it->second->size || size > it->second->size - offset) return nullptr;
  return it->second;
}

// ---- mappings -------------------------------------------------------------------------------------------------------

result<void> blocks::map(void* address, std::size_t size, block_id block) {
  memory_.settle();
  const std::lock_guard lock{mutex_};
  const auto known = blocks_.find(block);
  if (known == blocks_.end()) return no_block(block);
  const std::shared_ptr<block_memory> memory = known->second;
  auto step = granule(memory->device);
  if (!step) return std::move(step).error();
  if (size == 0 || size % *step != 0 || size > memory->size) {
    return make_error(errc::invalid_argument,
                      "mapping " + to_string(bytes{size}) + " of a block of " + to_string(bytes{memory->size}) +
                          ": a mapping is not longer than its block, and a multiple of " + to_string(bytes{*step}));
  }
  auto range = range_of(address, size);
  if (!range) {
    return make_error(errc::invalid_argument,
                      "mapping " + extent(address, size) + ": no reservation covers that; reserve it first");
  }
  const std::size_t offset = gpu_number(address) - range->base;
  if (offset % *step != 0) {
    return make_error(errc::invalid_argument, "mapping at offset " + std::to_string(offset) +
                                                  " of a reservation: offsets are multiples of " +
                                                  to_string(bytes{*step}));
  }
  auto mapping = std::make_shared<block_mapping>();
  mapping->memory = memory;
  mapping->range = range;
  auto made = std::make_shared<allocation>();
  made->kind = memory_kind::block;
  made->owner = memory->device;
  made->user = static_cast<std::byte*>(address);
  made->gpu = gpu_number(address);
  made->size = size;
  made->only = std::make_unique<access_list>(memory_.devices());
  made->mapping = mapping;
  std::optional<std::size_t> taken;  // offset of what is there
  CUresult status = CUDA_SUCCESS;
  {
    const std::lock_guard busy{range->mutex};
    const auto next = range->busy.lower_bound(offset);
    if (next != range->busy.begin() && std::prev(next)->first + std::prev(next)->second > offset)
      taken = std::prev(next)->first;
    if (next != range->busy.end() && next->first < offset + size) taken = next->first;
    if (!taken) status = cu_.cuMemMap(made->gpu, size, 0, memory->handle, 0);
    if (!taken && status == CUDA_SUCCESS) range->busy.emplace(offset, size);
  }
  if (taken && memory_.find(pointer(range->base + *taken))) {
    return make_error(errc::invalid_argument,
                      "mapping " + extent(address, size) + ": something is mapped there already; unmap it first");
  }
  if (taken) {
    return make_error(errc::not_ready, "mapping " + extent(address, size) +
                                           ": work still uses what was mapped there before; wait for it first");
  }
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, "mapping " + extent(address, size), errc::invalid_argument);
  made->give_back = [cu = &cu_, mapping = std::move(mapping), at = made->gpu, size, offset] {
    static_cast<void>(cu->cuMemUnmap(at, size));
    const std::lock_guard busy{mapping->range->mutex};
    mapping->range->busy.erase(offset);
  };
  made->home = &memory_;
  memory_.add(std::move(made));
  return {};
}

result<void> blocks::unmap(void* address, std::size_t size) {
  std::vector<std::shared_ptr<allocation>> ended;
  const std::lock_guard lock{mutex_};
  if (size != 0) ended = memory_.blocks_in(address, size);
  if (ended.empty()) {
    const auto there = memory_.find(address);
    if (!there || there->kind != memory_kind::block)
      return make_error(errc::not_found, "no block is mapped at " + hex(address) + "; was it unmapped before?");
    return make_error(errc::invalid_argument, "unmapping " + extent(address, size) +
                                                  ": mappings end as a whole; the one there is " +
                                                  extent(there->user, there->size));
  }
  // the driver is told when no work uses it any more
  for (const auto& one : ended) memory_.remove(one);
  return {};
}

/// Tells the driver what each GPU may do: the most that any of its devices may.
result<void> blocks::apply(const allocation& mapping, const access_list& rights) const {
  const discovery& found = memory_.found();
  std::vector<CUmemAccessDesc> wanted;
  for (std::size_t gpu = 0; gpu < found.gpus.size(); ++gpu) {
    access_right now = access_right::none, next = access_right::none;
    for (std::size_t d = 0; d < found.devices.size(); ++d) {
      if (found.devices[d].gpu != gpu) continue;
      now = std::max(now, mapping.only->of(d));
      next = std::max(next, rights.of(d));
    }
    // work that has begun keeps its right: to take it away would lose the device
    const bool is_taken = next < now && mapping.pending.load(std::memory_order_acquire) != 0;
    if (now != next && !is_taken) wanted.push_back({{location_device, found.gpus[gpu].id}, flags_of(next)});
  }
  if (wanted.empty()) return {};
  const CUresult status = cu_.cuMemSetAccess(mapping.gpu, mapping.size, wanted.data(), wanted.size());
  if (status != CUDA_SUCCESS)
    return cu_error(cu_, status, "setting rights on " + extent(mapping.user, mapping.size), errc::invalid_argument);
  return {};
}

result<void> blocks::set_access(void* address, std::size_t size, std::span<const device_right> rights) {
  if (rights.empty()) return make_error(errc::invalid_argument, "setting rights for no device");
  const std::lock_guard lock{mutex_};
  const auto mappings = size == 0 ? std::vector<std::shared_ptr<allocation>>{} : memory_.blocks_in(address, size);
  if (mappings.empty()) {
    return make_error(errc::invalid_argument, "setting rights on " + extent(address, size) +
                                                  ": that must be one or several whole mappings that touch");
  }
  for (const device_right& one : rights) {
    if (one.right > access_right::read_write)
      return make_error(errc::invalid_argument,
                        "a right is none, read or read_write, not " + std::to_string(static_cast<int>(one.right)));
    if (one.right == access_right::none) continue;
    for (const auto& mapping : mappings) {
      if (one.device == mapping->owner || memory_.can_access(one.device, mapping->owner)) continue;
      return make_error(errc::peer_unsupported, to_string(one.device) + " cannot reach a block of " +
                                                    to_string(mapping->owner) + ": there is no peer path between them");
    }
  }
  std::vector<std::unique_ptr<access_list>> next;
  for (const auto& mapping : mappings) {
    auto list = std::make_unique<access_list>(memory_.devices());
    for (std::size_t d = 0; d < memory_.devices(); ++d) list->set(d, mapping->only->of(d));
    for (const device_right& one : rights) list->set(memory_.local(one.device), one.right);
    next.push_back(std::move(list));
  }
  const auto keep = [&](access_list& into, const access_list& from) {
    for (std::size_t d = 0; d < memory_.devices(); ++d) into.set(d, from.of(d));
  };
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    access_list before{memory_.devices()};
    keep(before, *mappings[i]->only);
    auto done = apply(*mappings[i], *next[i]);
    if (done) {
      keep(*mappings[i]->only, *next[i]);
      keep(*next[i], before);  // what undoing goes back to
      continue;
    }
    while (i-- > 0) {
      static_cast<void>(apply(*mappings[i], *next[i]));
      keep(*mappings[i]->only, *next[i]);
    }
    return done;
  }
  return {};
}

result<access_right> blocks::access_of(device_id device, const void* address) {
  const auto found = memory_.find(address);
  if (!found || found->kind != memory_kind::block)
    return make_error(errc::not_found, "no block is mapped at " + hex(address));
  return found->only->of(memory_.local(device));
}

// ---- between processes ----------------------------------------------------------------------------------------------

result<int> blocks::give(block_id block) {
  const auto memory = find(block);
  if (!memory) return no_block(block);
  if (!memory->shareable) {
    return make_error(errc::invalid_argument, "a block of " + to_string(bytes{memory->size}) + " on " +
                                                  to_string(memory->device) +
                                                  " was not made to be shared: ask for that when it is made");
  }
  int given = -1;
  const CUresult status = cu_.cuMemExportToShareableHandle(&given, memory->handle, handle_posix_fd, 0);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, "a descriptor for a block");
  static_cast<void>(::fcntl(given, F_SETFD, FD_CLOEXEC));
  return given;
}

/// The driver tells nothing of the size of what it imported; what can be mapped is no longer than that.
result<std::size_t> blocks::size_of(CUmemGenericAllocationHandle handle, device_id device) const {
  auto step = granule(device);
  if (!step) return std::move(step).error();
  const std::size_t most = memory_.found().gpu_of(memory_.local(device)).memory / *step;
  CUdeviceptr base = 0;
  CUresult status = cu_.cuMemAddressReserve(&base, most * *step, 0, 0, 0);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, "address space for an imported block");
  std::size_t fits = 0, over = most + 1;
  while (over - fits > 1) {
    const std::size_t middle = fits + (over - fits) / 2;
    status = cu_.cuMemMap(base, middle * *step, 0, handle, 0);
    if (status == CUDA_SUCCESS) static_cast<void>(cu_.cuMemUnmap(base, middle * *step));
    (status == CUDA_SUCCESS ? fits : over) = middle;
  }
  static_cast<void>(cu_.cuMemAddressFree(base, most * *step));
  if (fits == 0) return cu_error(cu_, status, "mapping an imported block", errc::corrupt);
  return fits * *step;
}

/// Whose a block is that somebody offers: the first device of the GPU that the driver names.
result<device_id> blocks::home_of(CUmemGenericAllocationHandle handle) const {
  constexpr const char* advice = "; say on which device it is to be taken";
  CUmemAllocationProp about;
  if (cu_.cuMemGetAllocationPropertiesFromHandle == nullptr ||
      cu_.cuMemGetAllocationPropertiesFromHandle(&about, handle) != CUDA_SUCCESS ||
      about.location.type != location_device) {
    return make_error(errc::not_found,
                      std::string{"the driver does not tell on which GPU the block was made"} + advice);
  }
  const discovery& found = memory_.found();
  for (std::size_t d = 0; d < found.devices.size(); ++d) {
    if (found.gpu_of(d).id == about.location.id) return memory_.global(d);
  }
  return make_error(errc::not_found, "the block was made on GPU " + std::to_string(about.location.id) +
                                         ", which this machine has not" + advice);
}

result<block_id> blocks::take(std::optional<device_id> wanted, int descriptor) {
  const device_id asked = wanted.value_or(memory_.global(0));
  if (const std::string why = missing(asked); !why.empty())
    return make_error(errc::unsupported, "blocks on " + to_string(asked) + ": " + why);
  if (descriptor < 0 || ::fcntl(descriptor, F_GETFD) < 0)
    return make_error(errc::invalid_argument, std::to_string(descriptor) + " is not an open descriptor");
  auto made = std::make_shared<block_memory>();
  CUresult status =
      cu_.cuMemImportFromShareableHandle(&made->handle, pointer(static_cast<CUdeviceptr>(descriptor)), handle_posix_fd);
  if (status != CUDA_SUCCESS) {
    error cause = cu_error(cu_, status, "what was offered as a block is none of this driver", errc::corrupt);
    if (cause.code != errc::out_of_memory && cause.code != errc::resource_exhausted) cause.code = errc::corrupt;
    return cause;
  }
  made->home = &memory_;
  const auto owner = wanted ? result<device_id>{*wanted} : home_of(made->handle);
  if (!owner) return owner.error();
  const device_id device = *owner;
  CUmemAllocationProp about;
  const int here = memory_.found().gpu_of(memory_.local(device)).id;
  if (cu_.cuMemGetAllocationPropertiesFromHandle != nullptr &&
      cu_.cuMemGetAllocationPropertiesFromHandle(&about, made->handle) == CUDA_SUCCESS &&
      about.location.type == location_device && about.location.id != here) {
    return make_error(errc::incompatible,
                      "the block is of GPU " + std::to_string(about.location.id) + ", not of " + to_string(device));
  }
  auto size = size_of(made->handle, device);
  if (!size) return std::move(size).error();
  made->device = device;
  made->size = *size;
  made->shareable = made->imported = true;
  return added(std::move(made));
}

void blocks::forget(device_id device) {
  std::vector<std::shared_ptr<block_memory>> gone;
  const std::lock_guard lock{mutex_};
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    if (it->second->device == device) {
      it->second->references = 0;
      gone.push_back(std::move(it->second));
      it = blocks_.erase(it);
    } else {
      ++it;
    }
  }
}

void blocks::clear() {
  std::map<block_id, std::shared_ptr<block_memory>> all;
  std::map<std::uintptr_t, std::shared_ptr<reserved_range>> ranges;
  const std::lock_guard lock{mutex_};
  all.swap(blocks_);
  ranges.swap(reservations_);
}

}  // namespace weft::gpu
