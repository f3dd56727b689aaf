// SPDX-License-Identifier: Apache-2.0
// Memory, addresses and rights, each made apart from the others.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/multicast.hpp"

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace weft::virtual_cuda {
namespace {

// The name of the file says what it is, in this process and in the one that it is sent to.
std::string name_of_block(int physical_device) { return "weft-virtual-block-" + std::to_string(physical_device); }

std::optional<int> device_of_block(int file) {
  char path[64];
  char target[128] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  if (::readlink(path, target, sizeof target - 1) < 0) return std::nullopt;
  int physical = 0;
  if (std::sscanf(target, "/memfd:weft-virtual-block-%d", &physical) != 1) return std::nullopt;
  return the().ordinal_of(physical);
}

bool right_flags(int flags) { return flags == access_none || flags == access_read || flags == access_read_write; }

// The mappings that make up exactly [address, address + size); empty when there is a gap or a part of one.
std::vector<std::shared_ptr<memory_range>> whole_mappings(std::uint64_t address, std::size_t size) {
  std::vector<std::shared_ptr<memory_range>> all;
  const machine& m = the();
  std::uint64_t at = address;
  for (auto it = m.ranges.find(address); at < address + size; ++it) {
    if (it == m.ranges.end() || it->first != at) return {};
    if (it->second->kind != range_kind::mapping && it->second->kind != range_kind::multicast) return {};
    at += it->second->size;
    all.push_back(it->second);
  }
  return at == address + size ? all : std::vector<std::shared_ptr<memory_range>>{};
}

bool covers(std::uint64_t address, std::size_t size) {
  const auto& all = the().reservations;
  auto it = all.upper_bound(address);
  if (it == all.begin()) return false;
  --it;
  return size <= it->second && address - it->first <= it->second - size;
}

bool anything_in(std::uint64_t address, std::size_t size) {
  const auto it = the().ranges.lower_bound(address);
  return the().find(address) != nullptr || (it != the().ranges.end() && it->first < address + size);
}

CUresult map_now(std::uint64_t address, std::size_t size, CUmemGenericAllocationHandle handle) {
  machine& m = the();
  const auto block = m.blocks.find(handle);
  if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_group = block->group != nullptr;
  if (size > (is_group ? block->group->size : block->memory->size)) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock{m.mutex};
  if (!covers(address, size) || anything_in(address, size)) return CUDA_ERROR_INVALID_VALUE;
  auto range = std::make_shared<memory_range>();
  range->kind = is_group ? range_kind::multicast : range_kind::mapping;
  range->base = address;
  range->size = size;
  range->id = m.next_id++;
  range->group = block->group;
  range->device = is_group ? -1 : block->memory->device;
  range->memory = block->memory;
  range->handle = handle;
  if (!is_group && !m.space.show(address_space::engine, address, size, range->memory->file, 0, true))
    return CUDA_ERROR_OUT_OF_MEMORY;
  m.ranges.emplace(address, range);
  return CUDA_SUCCESS;
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuMemGetAllocationGranularity(std::size_t* size, const CUmemAllocationProp* properties,
                                                        int which) {
  return plain_call("cuMemGetAllocationGranularity", size != nullptr && properties != nullptr && (which & ~1) == 0,
                    [&]() -> CUresult {
                      if (properties->location.type == location_device && !the().valid(properties->location.id)) {
                        return CUDA_ERROR_INVALID_DEVICE;
                      }
                      *size = granularity;
                      return CUDA_SUCCESS;
                    });
}

WEFT_VIRTUAL_API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                                      const CUmemAllocationProp* properties, unsigned long long flags) {
  const bool arguments = handle != nullptr && properties != nullptr && flags == 0 && size != 0 &&
                         size % granularity == 0 && properties->type == allocation_pinned;
  return plain_call("cuMemCreate", arguments, [&]() -> CUresult {
    machine& m = the();
    if (properties->location.type != location_device) return CUDA_ERROR_NOT_SUPPORTED;
    if (!m.valid(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (properties->requested_handle_types == handle_fabric) return CUDA_ERROR_NOT_PERMITTED;
    if ((properties->requested_handle_types & ~handle_posix_fd) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    const int device = properties->location.id;
    auto memory = std::make_shared<physical>();
    {
      const std::lock_guard lock{m.mutex};
      if (!m.charge(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
      memory->device = device;
      memory->charged = size;
    }
    const int physical_index = m.devices[static_cast<std::size_t>(device)].physical_index;
    memory->file = ::memfd_create(name_of_block(physical_index).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    memory->own_file = true;
    memory->size = size;
    memory->handle_types = properties->requested_handle_types;
    memory->properties = *properties;
    if (memory->file < 0 || ::ftruncate(memory->file, static_cast<off_t>(size)) != 0 ||
        ::fcntl(memory->file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto block = std::make_shared<block_handle>();
    block->memory = std::move(memory);
    *handle = m.blocks.add(std::move(block));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return plain_call("cuMemRelease", true, [&]() -> CUresult {
    const auto block = the().blocks.find(handle);
    if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock{the().mutex};
    if (--block->references == 0) the().blocks.take(handle);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                              CUdeviceptr hint, unsigned long long flags) {
  const bool arguments =
      address != nullptr && size != 0 && size % granularity == 0 && flags == 0 && (alignment & (alignment - 1)) == 0;
  return plain_call("cuMemAddressReserve", arguments, [&]() -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto got = m.space.take(size, std::max(alignment, granularity), hint);
    if (!got) return CUDA_ERROR_OUT_OF_MEMORY;
    m.reservations.emplace(*got, size);
    *address = *got;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  return plain_call("cuMemAddressFree", address != 0 && size != 0, [&]() -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto it = m.reservations.find(address);
    if (it == m.reservations.end() || it->second != size || anything_in(address, size)) return CUDA_ERROR_INVALID_VALUE;
    m.reservations.erase(it);
    m.space.give(address, size);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset,
                                   CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const bool arguments =
      address != 0 && size != 0 && size % granularity == 0 && address % granularity == 0 && offset == 0 && flags == 0;
  return plain_call("cuMemMap", arguments, [&] { return map_now(address, size, handle); });
}

WEFT_VIRTUAL_API CUresult cuMemUnmap(CUdeviceptr address, std::size_t size) {
  return plain_call("cuMemUnmap", address != 0 && size != 0, [&]() -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto all = whole_mappings(address, size);
    if (all.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& range : all) m.end(range);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* rights,
                                         std::size_t count) {
  const bool arguments = address != 0 && size != 0 && rights != nullptr && count != 0;
  return plain_call("cuMemSetAccess", arguments, [&]() -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto all = whole_mappings(address, size);
    if (all.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t n = 0; n < count; ++n) {
      const CUmemLocation& by = rights[n].location;
      if (by.type != location_device || !right_flags(rights[n].flags)) return CUDA_ERROR_INVALID_VALUE;
      if (!m.valid(by.id)) return CUDA_ERROR_INVALID_DEVICE;
      for (const auto& range : all) {
        const bool reaches = range->group != nullptr
                                 ? range->group->has(by.id)
                                 : range->device == by.id || range->device < 0 || m.can_access(by.id, range->device);
        if (rights[n].flags != access_none && !reaches) return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    for (std::size_t n = 0; n < count; ++n) {
      for (const auto& range : all) {
        range->rights[static_cast<std::size_t>(rights[n].location.id)] = static_cast<std::uint8_t>(rights[n].flags);
        m.show(rights[n].location.id, *range);
      }
    }
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemGetAccess(unsigned long long* right, const CUmemLocation* location,
                                         CUdeviceptr address) {
  return plain_call("cuMemGetAccess", right != nullptr && location != nullptr, [&]() -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto range = m.find(address);
    const bool is_mapped =
        range != nullptr && (range->kind == range_kind::mapping || range->kind == range_kind::multicast);
    if (!is_mapped || location->type != location_device) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!m.valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    *right = range->rights[static_cast<std::size_t>(location->id)];
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return plain_call("cuMemRetainAllocationHandle", handle != nullptr && address != nullptr, [&]() -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto range = m.find(reinterpret_cast<std::uint64_t>(address));
    if (range == nullptr || range->kind != range_kind::mapping) return CUDA_ERROR_INVALID_VALUE;
    if (const auto block = m.blocks.find(range->handle)) {
      ++block->references;
    } else {
      auto again = std::make_shared<block_handle>();  // released while mapped: the memory still has a name
      again->memory = range->memory;
      range->handle = m.blocks.add(std::move(again));
    }
    *handle = range->handle;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                                 CUmemGenericAllocationHandle handle) {
  return plain_call("cuMemGetAllocationPropertiesFromHandle", properties != nullptr, [&]() -> CUresult {
    const auto block = the().blocks.find(handle);
    if (block == nullptr || block->memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *properties = block->memory->properties;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle, int type,
                                                       unsigned long long flags) {
  return plain_call("cuMemExportToShareableHandle", shareable != nullptr && flags == 0, [&]() -> CUresult {
    const auto block = the().blocks.find(handle);
    if (block == nullptr || block->memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (type != handle_posix_fd) return CUDA_ERROR_NOT_SUPPORTED;
    if ((block->memory->handle_types & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    const int file = ::fcntl(block->memory->file, F_DUPFD_CLOEXEC, 3);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    std::memcpy(shareable, &file, sizeof file);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                         int type) {
  return plain_call("cuMemImportFromShareableHandle", handle != nullptr, [&]() -> CUresult {
    if (type != handle_posix_fd) return CUDA_ERROR_NOT_SUPPORTED;
    const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    const auto device = device_of_block(file);
    struct stat about{};
    constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    if (!device || ::fstat(file, &about) != 0 || (::fcntl(file, F_GET_SEALS) & seals) != seals) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto block = std::make_shared<block_handle>();
    block->memory = std::make_shared<physical>();
    block->memory->file = ::fcntl(file, F_DUPFD_CLOEXEC, 3);
    if (block->memory->file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    block->memory->own_file = true;
    block->memory->size = static_cast<std::size_t>(about.st_size);
    block->memory->device = *device;
    block->memory->handle_types = handle_posix_fd;
    block->memory->properties.requested_handle_types = handle_posix_fd;
    block->memory->properties.location.id = *device;
    *handle = the().blocks.add(std::move(block));
    return CUDA_SUCCESS;
  });
}

}  // namespace weft::virtual_cuda
