// SPDX-License-Identifier: Apache-2.0
// Pools: memory that is given and taken back in the order of streams.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/foreign_memory.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::virtual_cuda {
namespace {

template <class F>
CUresult pool_call(const char* name, CUmemoryPool handle, bool arguments, F&& f) noexcept {
  return plain_call(name, arguments, [&]() -> CUresult {
    const auto p = the().pools.find(handle);
    return p == nullptr ? CUDA_ERROR_INVALID_VALUE : f(p);
  });
}

void note_use(pool& p) {
  p.used_high = std::max(p.used_high, p.used);
  p.reserved = std::max(p.reserved, p.used);
  p.reserved_high = std::max(p.reserved_high, p.reserved);
}

// A pool's descriptor is a file whose name says where it came from, in this process and in the one that it is sent to.
std::string token_text(const pool& p) {
  return "weft-virtual-pool-" + std::to_string(the().devices[static_cast<std::size_t>(p.device)].physical_index) + "-" +
         origin_of(record_here(foreign_record::kind::pool_pointer), p.id);
}

// What the same stream freed and has not come to yet: order is kept without a wait. The free finds another range there.
std::shared_ptr<memory_range> take_freed(const stream_ref& s, const std::shared_ptr<pool>& p, std::size_t size) {
  machine& m = the();
  for (const auto& [base, range] : m.ranges) {
    if (range->home != p || range->opened >= 0 || range->freed_in.lock() != s || range->size != size) continue;
    const std::size_t charged = up(size, 512);
    if (!m.charge(p->device, charged)) return nullptr;
    auto again = std::make_shared<memory_range>(*range);
    again->id = m.next_id++;
    again->opened = 0;
    again->freed_in.reset();
    again->memory->charged = charged;
    return again;
  }
  return nullptr;
}

CUresult allocate_from(const stream_ref& s, const std::shared_ptr<pool>& p, std::size_t size, CUdeviceptr* address) {
  if (p->imported) return CUDA_ERROR_NOT_PERMITTED;
  machine& m = the();
  const std::lock_guard lock{m.mutex};
  if (p->properties.max_size != 0 && (size > p->properties.max_size || p->used > p->properties.max_size - size)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult code = 0;
  auto range = take_freed(s, p, size);
  if (range == nullptr) range = m.allocate(p->device, size, range_kind::pool, code);
  if (range == nullptr) return code;
  range->home = p;
  // of no context that the program creates and destroys
  if (m.devices[static_cast<std::size_t>(p->device)].primary == s->home()) range->generation = s->home()->generation;
  range->memory->handle_types = p->properties.handle_types;
  p->used += range->size;
  note_use(*p);
  m.show(*range);
  m.ranges[range->base] = range;
  *address = range->base;
  return CUDA_SUCCESS;
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  const bool arguments = handle != nullptr && properties != nullptr && properties->allocation_type == allocation_pinned;
  return plain_call("cuMemPoolCreate", arguments, [&]() -> CUresult {
    if (properties->location.type != location_device) return CUDA_ERROR_NOT_SUPPORTED;
    if (!the().valid(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (properties->handle_types == handle_fabric) return CUDA_ERROR_NOT_PERMITTED;
    if ((properties->handle_types & ~handle_posix_fd) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    auto made = std::make_shared<pool>();
    made->device = properties->location.id;
    made->properties = *properties;
    made->rights[static_cast<std::size_t>(made->device)] = access_read_write;
    {
      const std::lock_guard lock{the().mutex};
      made->id = the().next_id++;
    }
    *handle = made->handle = the().pools.add(made);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return pool_call("cuMemPoolDestroy", handle, true, [&](const std::shared_ptr<pool>& p) -> CUresult {
    if (p->is_default) return CUDA_ERROR_INVALID_VALUE;
    the().pools.take(handle);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void* value) {
  return pool_call("cuMemPoolSetAttribute", handle, value != nullptr, [&](const std::shared_ptr<pool>& p) -> CUresult {
    const std::lock_guard lock{the().mutex};
    std::uint64_t number = 0;
    switch (attribute) {
      case 1:
      case 2:
      case 3:
        return CUDA_SUCCESS;  // how memory is used again: no matter here
      case pool_release_threshold:
        std::memcpy(&p->threshold, value, sizeof p->threshold);
        return CUDA_SUCCESS;
      case pool_reserved_high:
      case pool_used_high:
        std::memcpy(&number, value, sizeof number);
        if (number != 0) return CUDA_ERROR_INVALID_VALUE;
        (attribute == pool_used_high ? p->used_high : p->reserved_high) =
            attribute == pool_used_high ? p->used : p->reserved;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

WEFT_VIRTUAL_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void* value) {
  return pool_call("cuMemPoolGetAttribute", handle, value != nullptr, [&](const std::shared_ptr<pool>& p) -> CUresult {
    const std::lock_guard lock{the().mutex};
    const auto put = [&](std::uint64_t number) {
      std::memcpy(value, &number, sizeof number);
      return CUDA_SUCCESS;
    };
    const int one = 1;
    switch (attribute) {
      case 1:
      case 2:
      case 3:
        std::memcpy(value, &one, sizeof one);
        return CUDA_SUCCESS;
      case pool_release_threshold:
        return put(p->threshold);
      case pool_reserved_current:
        return put(p->reserved);
      case pool_reserved_high:
        return put(p->reserved_high);
      case pool_used_current:
        return put(p->used);
      case pool_used_high:
        return put(p->used_high);
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

WEFT_VIRTUAL_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* rights, std::size_t count) {
  return pool_call("cuMemPoolSetAccess", handle, rights != nullptr && count != 0,
                   [&](const std::shared_ptr<pool>& p) -> CUresult {
                     machine& m = the();
                     for (std::size_t n = 0; n < count; ++n) {
                       const CUmemLocation& by = rights[n].location;
                       if (by.type != location_device) return CUDA_ERROR_INVALID_VALUE;
                       if (!m.valid(by.id)) return CUDA_ERROR_INVALID_DEVICE;
                       const bool none = rights[n].flags == access_none;
                       if (by.id == p->device ? none : (!none && !m.can_access(by.id, p->device))) {
                         return CUDA_ERROR_INVALID_DEVICE;
                       }
                       if (!none && rights[n].flags != access_read_write) return CUDA_ERROR_INVALID_VALUE;
                     }
                     const std::lock_guard lock{m.mutex};
                     for (std::size_t n = 0; n < count; ++n) {
                       const int by = rights[n].location.id;
                       p->rights[static_cast<std::size_t>(by)] = static_cast<std::uint8_t>(rights[n].flags);
                       for (const auto& [base, range] : m.ranges) {
                         if (range->home == p) m.show(by, *range);
                       }
                     }
                     return CUDA_SUCCESS;
                   });
}

WEFT_VIRTUAL_API CUresult cuMemPoolGetAccess(int* right, CUmemoryPool handle, CUmemLocation* location) {
  return pool_call("cuMemPoolGetAccess", handle, right != nullptr && location != nullptr,
                   [&](const std::shared_ptr<pool>& p) -> CUresult {
                     if (location->type != location_device) return CUDA_ERROR_INVALID_VALUE;
                     if (!the().valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
                     const std::lock_guard lock{the().mutex};
                     *right = p->rights[static_cast<std::size_t>(location->id)];
                     return CUDA_SUCCESS;
                   });
}

WEFT_VIRTUAL_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, std::size_t keep) {
  return pool_call("cuMemPoolTrimTo", handle, true, [&](const std::shared_ptr<pool>& p) -> CUresult {
    const std::lock_guard lock{the().mutex};
    p->reserved = std::max(p->used, std::min(p->reserved, keep));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool handle, int type,
                                                           unsigned long long flags) {
  return pool_call("cuMemPoolExportToShareableHandle", handle, shareable != nullptr && flags == 0,
                   [&](const std::shared_ptr<pool>& p) -> CUresult {
                     if (type != handle_posix_fd) return CUDA_ERROR_NOT_SUPPORTED;
                     if ((p->properties.handle_types & type) == 0) return CUDA_ERROR_INVALID_VALUE;
                     const int file = ::memfd_create(token_text(*p).c_str(), MFD_CLOEXEC);
                     if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
                     std::memcpy(shareable, &file, sizeof file);
                     return CUDA_SUCCESS;
                   });
}

WEFT_VIRTUAL_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* handle, void* shareable, int type,
                                                             unsigned long long flags) {
  return plain_call("cuMemPoolImportFromShareableHandle", handle != nullptr && flags == 0, [&]() -> CUresult {
    if (type != handle_posix_fd) return CUDA_ERROR_NOT_SUPPORTED;
    char path[64];
    char target[128] = {};
    char origin[64] = {};
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)));
    int physical = -1;
    if (::readlink(path, target, sizeof target - 1) < 0 ||
        std::sscanf(target, "/memfd:weft-virtual-pool-%d-%63[0-9/]", &physical, origin) != 2) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int device = the().ordinal_of(physical);
    if (device < 0) return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_shared<pool>();
    made->device = device;
    made->imported = true;
    made->origin = origin;
    made->properties.location.id = device;
    made->rights[static_cast<std::size_t>(device)] = access_read_write;
    *handle = made->handle = the().pools.add(made);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  return plain_call("cuMemPoolExportPointer", data != nullptr, [&]() -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto range = m.find(address);
    if (range == nullptr || range->kind != range_kind::pool || range->base != address || range->home->imported ||
        (range->home->properties.handle_types & handle_posix_fd) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    foreign_record record = record_here(foreign_record::kind::pool_pointer);
    record.id = range->home->id;
    record.offset = range->memory->offset;
    record.size = range->size;
    record.file = range->memory->file;
    record.physical_device = m.devices[static_cast<std::size_t>(range->device)].physical_index;
    seal(record);
    std::memcpy(data->reserved, &record, sizeof record);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool handle,
                                                 CUmemPoolPtrExportData* data) {
  return pool_call("cuMemPoolImportPointer", handle, address != nullptr && data != nullptr,
                   [&](const std::shared_ptr<pool>& p) -> CUresult {
                     foreign_record record;
                     std::memcpy(&record, data->reserved, sizeof record);
                     if (!p->imported || !is_whole(record, foreign_record::kind::pool_pointer) ||
                         origin_of(record, record.id) != p->origin) {
                       return CUDA_ERROR_INVALID_VALUE;
                     }
                     const int file = open_file_of(record);
                     if (file < 0) return CUDA_ERROR_MAP_FAILED;
                     machine& m = the();
                     const std::lock_guard lock{m.mutex};
                     auto range = std::make_shared<memory_range>();
                     range->memory = std::make_shared<physical>();
                     range->memory->file = file;
                     range->memory->own_file = true;
                     range->memory->offset = record.offset;
                     range->memory->size = up(record.size, page);
                     const auto at = m.space.take(record.size, page);
                     if (!at) return CUDA_ERROR_MAP_FAILED;
                     range->kind = range_kind::pool;
                     range->base = *at;
                     range->size = record.size;
                     range->id = m.next_id++;
                     range->device = p->device;
                     range->home = p;
                     p->used += range->size;
                     m.show(*range);
                     m.ranges.emplace(range->base, range);
                     *address = range->base;
                     return CUDA_SUCCESS;
                   });
}

WEFT_VIRTUAL_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t size, CUmemoryPool handle,
                                                  CUstream stream) {
  return stream_call("cuMemAllocFromPoolAsync", stream, address != nullptr && size != 0,
                     [&](const stream_ref& s) -> CUresult {
                       const auto p = the().pools.find(handle);
                       if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
                       return allocate_from(s, p, size, address);
                     });
}

WEFT_VIRTUAL_API CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t size, CUstream stream) {
  return stream_call("cuMemAllocAsync", stream, address != nullptr && size != 0, [&](const stream_ref& s) -> CUresult {
    return allocate_from(s, the().pools.find(the().pool_of(s->home()->device)), size, address);
  });
}

WEFT_VIRTUAL_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return stream_call("cuMemFreeAsync", stream, true, [&](const stream_ref& s) -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    machine& m = the();
    std::shared_ptr<memory_range> range;
    {
      const std::lock_guard lock{m.mutex};
      range = m.find(address);
      if (range == nullptr || range->kind != range_kind::pool || range->base != address || range->opened != 0) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      range->opened = -1;  // freed once
      range->freed_in = s;
      // Whoever allocates in this stream comes behind the free: for limits it counts from now on.
      range->home->used -= range->size;
      range->home->reserved =
          std::max(range->home->used, std::min<std::size_t>(range->home->reserved, range->home->threshold));
      m.uncharge(range->device, range->memory->charged);
      range->memory->charged = 0;
    }
    submit(s, {.run =
                   [range] {
                     machine& all = the();
                     const std::lock_guard lock{all.mutex};
                     if (all.find(range->base) == range) all.end(range);
                     return CUDA_SUCCESS;
                   },
               .guarded = false,
               .even_when_lost = true});
    return CUDA_SUCCESS;
  });
}

}  // namespace weft::virtual_cuda
