// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory/blocks.hpp"

#include "backend/address.hpp"
#include "backends/gpu/driver/device_pointer.hpp"

#include <algorithm>
#include <fcntl.h>
#include <limits>
#include <unistd.h>
#include <utility>

namespace weft::gpu {
namespace {

CUdeviceptr gpu_number(const void* address) { return static_cast<CUdeviceptr>(number(address)); }
using common::extent_of;

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
  if (home == nullptr) return;
  home->later(
      [cu = &home->cu(), at = gpu_number(base), n = reserved] { static_cast<void>(cu->cuMemAddressFree(at, n)); });
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

/// Where a thread has to be to make or import a block; nowhere where its description says on which GPU it is.
result<current_context> blocks::place_for_blocks(device_id device) const {
  if (cu_.by->blocks_name_gpus) return current_context{};
  return memory_.places().enter(memory_.local(device));
}

result<block_id> blocks::create(device_id device, std::size_t size, bool shareable) {
  memory_.settle();
  auto step = granule(device);
  if (!step) return std::move(step).error();
  if (auto ok = check_size(size, *step, device); !ok) return std::move(ok).error();
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
  auto here = place_for_blocks(device);
  if (!here) return std::move(here).error();
  const CUmemAllocationProp wanted = properties(device, shareable);
  const CUresult status = cu_.cuMemCreate(&made->handle, size, &wanted, 0);
  if (status != CUDA_SUCCESS) {
    made->handle = 0;
    return cu_error(cu_, status, "a block of " + to_string(bytes{size}) + " on " + to_string(device));
  }
  return added(std::move(made));
}

// ---- reservations ---------------------------------------------------------------------------------------------------

result<void*> blocks::reserve(std::size_t size, std::size_t alignment, void* hint) {
  memory_.settle();
  if (auto ok = check_reservation(size, alignment); !ok) return std::move(ok).error();
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
  made->base = static_cast<std::byte*>(pointer(base));
  made->reserved = asked;
  return keep(std::move(made));
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
  auto made = std::make_shared<allocation>();
  describe_mapping(*made, memory, address, size);
  made->gpu = gpu_number(address);
  made->told = std::make_unique<common::access_list>(memory_.devices());
  const auto at = std::make_shared<place>();
  made->give_back = [cu = &cu_, memory, at, from = made->gpu, size] {
    static_cast<void>(cu->cuMemUnmap(from, size));
    at->free();
  };
  auto taken = take_place(*memory, address, size, *step);  // from here on nothing takes memory but the table, last
  if (!taken) return std::move(taken).error();
  *at = std::move(*taken);
  made->reservation = at->range.get();
  if (const CUresult status = cu_.cuMemMap(made->gpu, size, 0, memory->handle, 0); status != CUDA_SUCCESS) {
    at->free();
    return cu_error(cu_, status, "mapping " + extent_of(address, size), errc::invalid_argument);
  }
  made->home = &memory_;
  memory_.add(std::move(made));
  return {};
}

/// Tells the driver what each GPU may do: the most that any of its devices may. Under mutex_.
result<void> blocks::apply(const allocation_ref& mapping, const common::access_list& rights) {
  const discovery& found = memory_.found();
  std::vector<CUmemAccessDesc> wanted;
  common::access_list told{memory_.devices()};
  bool has_put_off = false;
  for (std::size_t gpu = 0; gpu < found.gpus.size(); ++gpu) {
    access_right now = access_right::none, next = access_right::none;
    for (std::size_t d = 0; d < found.devices.size(); ++d) {
      if (found.devices[d].gpu != gpu) continue;
      now = std::max(now, mapping->told->of(d));
      next = std::max(next, rights.of(d));
    }
    // work that has begun keeps its right: to take it away would lose the device
    const bool stays = next < now && mapping->pending.load() != 0;
    has_put_off = has_put_off || stays;
    if (now != next && !stays) wanted.push_back({{location_device, found.gpus[gpu].id}, flags_of(next)});
    for (std::size_t d = 0; d < found.devices.size(); ++d) {
      if (found.devices[d].gpu == gpu) told.set(d, stays ? now : next);
    }
  }
  if (!wanted.empty()) {
    const CUresult status = cu_.cuMemSetAccess(mapping->gpu, mapping->size, wanted.data(), wanted.size());
    if (status != CUDA_SUCCESS)
      return cu_error(cu_, status, "setting rights on " + extent_of(mapping->user, mapping->size),
                      errc::invalid_argument);
  }
  mapping->told->copy(told);
  if (has_put_off) apply_later(mapping);
  return {};
}

/// Takes from the driver what apply() has left it, once no work uses the mapping.
void blocks::apply_later(const allocation_ref& mapping) {
  if (mapping->is_put_off) return;
  // where work goes on, apply() puts it off again: to ask for that under late work's mutex could end the mapping there
  mapping->is_put_off = memory_.at_the_next_look([this, it = std::weak_ptr<allocation>{mapping}] {
    const auto there = it.lock();
    if (!there) return;
    const std::lock_guard lock{mutex_};
    there->is_put_off = false;
    static_cast<void>(guarded([&] { return apply(there, *there->only); }));
  });
}

result<void> blocks::set_access(void* address, std::size_t size, std::span<const device_right> rights) {
  const std::lock_guard lock{mutex_};
  auto found = to_be_set(address, size, rights, [this](device_id device, device_id owner) -> std::optional<error> {
    if (memory_.can_access(device, owner)) return std::nullopt;
    return make_error(errc::peer_unsupported, to_string(device) + " cannot reach a block of " + to_string(owner) +
                                                  ": there is no peer path between them");
  });
  if (!found) return std::move(found).error();
  const std::vector<allocation_ref>& mappings = *found;
  std::vector<std::unique_ptr<common::access_list>> next;
  for (const auto& mapping : mappings) {
    next.push_back(std::make_unique<common::access_list>(memory_.devices()));
    next.back()->copy(*mapping->only);
    for (const device_right& one : rights) next.back()->set(memory_.local(one.device), one.right);
  }
  // Work that starts sees a right withdrawn before the driver does, or is seen pending; given it is after the driver's.
  const auto change = [&](std::size_t i) {
    common::access_list& only = *mappings[i]->only;
    for (std::size_t d = 0; d < memory_.devices(); ++d) only.set(d, std::min(only.of(d), next[i]->of(d)));
    auto done = guarded([&] { return apply(mappings[i], *next[i]); });  // without memory the old rights come back too
    if (done) only.copy(*next[i]);
    return done;
  };
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    common::access_list before{memory_.devices()};
    before.copy(*mappings[i]->only);
    auto done = change(i);
    if (done) {
      next[i]->copy(before);  // what undoing goes back to
      continue;
    }
    mappings[i]->only->copy(before);
    while (i-- > 0) static_cast<void>(change(i));
    return done;
  }
  return {};
}

// ---- between processes ----------------------------------------------------------------------------------------------

result<int> blocks::give(block_id block) {
  auto found = to_be_given(block);
  if (!found) return std::move(found).error();
  const std::shared_ptr<block_memory> memory = std::move(*found);
  int given = -1;
  const CUresult status = cu_.cuMemExportToShareableHandle(&given, memory->handle, handle_posix_fd, 0);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, "a descriptor for a block");
  static_cast<void>(::fcntl(given, F_SETFD, FD_CLOEXEC));
  return given;
}

/// The driver tells nothing of the size of what it imported; what can be mapped is no longer than that. What the maker
/// told is mapped once to see that it is there; else the size is searched for.
result<std::size_t> blocks::size_of(CUmemGenericAllocationHandle handle, int descriptor, device_id device,
                                    std::size_t told) const {
  if (cu_.by->descriptors_have_sizes) {
    const off_t end = ::lseek(descriptor, 0, SEEK_END);
    if (end > 0 && told <= static_cast<std::size_t>(end)) return static_cast<std::size_t>(end);
    return make_error(errc::corrupt, "descriptor " + std::to_string(descriptor) +
                                         (end > 0 ? " has less memory than was told" : " does not tell its size"));
  }
  auto step = granule(device);
  if (!step) return std::move(step).error();
  const std::size_t of_gpu = memory_.found().gpu_of(memory_.local(device)).memory / *step;
  const std::size_t expected = told / *step + (told % *step != 0 ? 1 : 0);
  if (expected > of_gpu)
    return make_error(errc::corrupt, "a block of " + to_string(device) + " was said to have " + to_string(bytes{told}));
  const std::size_t most = told != 0 ? expected : of_gpu;
  CUdeviceptr base = 0;
  CUresult status = cu_.cuMemAddressReserve(&base, most * *step, 0, 0, 0);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, "address space for an imported block");
  const auto maps = [&](std::size_t granules) {
    status = cu_.cuMemMap(base, granules * *step, 0, handle, 0);
    if (status == CUDA_SUCCESS) static_cast<void>(cu_.cuMemUnmap(base, granules * *step));
    return status == CUDA_SUCCESS;
  };
  std::size_t fits = told != 0 && maps(most) ? most : 0;
  for (std::size_t over = most + 1; told == 0 && over - fits > 1;) {
    const std::size_t middle = fits + (over - fits) / 2;
    (maps(middle) ? fits : over) = middle;
  }
  static_cast<void>(cu_.cuMemAddressFree(base, most * *step));
  if (fits == 0) return cu_error(cu_, status, "mapping an imported block", errc::corrupt);
  return fits * *step;
}

/// Whose a block is that somebody offers: the first device of the GPU that the driver names.
result<device_id> blocks::home_of(CUmemGenericAllocationHandle handle) const {
  constexpr const char* advice = "; say on which device it is to be taken";
  CUmemAllocationProp about;
  if (!cu_.by->blocks_name_gpus || cu_.cuMemGetAllocationPropertiesFromHandle == nullptr ||
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

result<block_id> blocks::take(std::optional<device_id> wanted, int descriptor, std::size_t told) {
  const device_id asked = wanted.value_or(memory_.global(0));
  if (const std::string why = missing(asked); !why.empty())
    return make_error(errc::unsupported, "blocks on " + to_string(asked) + ": " + why);
  if (descriptor < 0 || ::fcntl(descriptor, F_GETFD) < 0)
    return make_error(errc::invalid_argument, std::to_string(descriptor) + " is not an open descriptor");
  auto made = std::make_shared<block_memory>();
  auto inside = place_for_blocks(asked);
  if (!inside) return std::move(inside).error();
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
  auto size = size_of(made->handle, descriptor, device, told);
  if (!size) return std::move(size).error();
  made->device = device;
  made->size = *size;
  made->shareable = made->imported = true;
  return added(std::move(made));
}

}  // namespace weft::gpu
