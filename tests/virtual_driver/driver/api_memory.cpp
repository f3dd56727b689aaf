// SPDX-License-Identifier: Apache-2.0
// Memory that has an address from the start: of devices, of the host, and of both.
#include "virtual_driver/driver/call.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace weft::virtual_cuda {
namespace {

constexpr unsigned host_register_read_only = 8;

// Programs must not count on zeros: so small new memory holds none.
void spoil(const memory_range& range) {
  constexpr std::size_t most = std::size_t{1} << 20;
  if (range.size <= most) std::memset(the().space.at(address_space::engine, range.base), 0xcd, range.size);
}

CUresult allocate_host(const context_ref& c, range_kind kind, std::uint64_t* address, std::size_t size) {
  machine& m = the();
  void* const memory = std::aligned_alloc(page, up(size, page));
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, 0xcd, std::min(size, std::size_t{1} << 20));
  auto range = std::make_shared<memory_range>();
  range->kind = kind;
  range->base = reinterpret_cast<std::uint64_t>(memory);
  range->size = size;
  range->device = c->device;
  range->generation = c->generation;
  const std::lock_guard lock{m.mutex};
  range->id = m.next_id++;
  m.ranges.emplace(range->base, range);
  *address = range->base;
  return CUDA_SUCCESS;
}

// Whether the system has every page of a range for this process to read and to write.
bool is_mapped(std::uint64_t begin, std::uint64_t end) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  char line[512];
  while (begin < end && std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long from = 0;
    unsigned long to = 0;
    char rights[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3 || to <= begin) continue;
    if (from > begin || rights[0] != 'r' || rights[1] != 'w') break;
    begin = to;
  }
  std::fclose(maps);
  return begin >= end;
}

bool is_host(const memory_range& r) { return r.kind == range_kind::pinned || r.kind == range_kind::registered; }

// The answer of cuPointerGetAttribute about a range, or nothing known.
CUresult tell(const memory_range& r, std::uint64_t address, int attribute, void* value) {
  const auto put = [&](auto answer) {
    std::memcpy(value, &answer, sizeof answer);
    return CUDA_SUCCESS;
  };
  machine& m = the();
  switch (attribute) {
    case pointer_context:
      if (r.kind == range_kind::mapping || r.kind == range_kind::pool || r.kind == range_kind::multicast)
        return put(CUcontext{nullptr});
      {
        const context_ref maker = m.maker_of(r);
        return put(maker == nullptr ? CUcontext{nullptr} : maker->handle);
      }
    case pointer_memory_type:
      return put(is_host(r) ? unsigned{memory_type_host} : unsigned{memory_type_device});
    case pointer_device_pointer:
      return put(CUdeviceptr{address});
    case pointer_host_pointer:
      if (!is_host(r) && r.kind != range_kind::managed) return CUDA_ERROR_INVALID_VALUE;
      return put(reinterpret_cast<void*>(address));
    case pointer_sync_memops:
      return put(0);
    case pointer_buffer_id:
      return put(static_cast<unsigned long long>(r.id));
    case pointer_is_managed:
      return put(r.kind == range_kind::managed ? 1 : 0);
    case pointer_device_ordinal:
      return put(r.device);
    case pointer_is_legacy_ipc_capable:
      return put(r.kind == range_kind::device ? 1 : 0);
    case pointer_range_start:
      return put(CUdeviceptr{r.base});
    case pointer_range_size:
      return put(r.size);
    case pointer_mapped:
      return put(1);
    case pointer_allowed_handle_types:
      return put(static_cast<unsigned long long>(r.memory ? r.memory->handle_types : 0));
    case pointer_pool:
      return put(r.home ? r.home->handle : CUmemoryPool{nullptr});
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult tell_nothing(int attribute, void* value) {
  constexpr int no_device = -2;
  switch (attribute) {
    case pointer_device_ordinal:
      std::memcpy(value, &no_device, sizeof no_device);
      return CUDA_SUCCESS;
    case pointer_memory_type:
    case pointer_sync_memops:
    case pointer_is_managed:
    case pointer_is_legacy_ipc_capable:
    case pointer_mapped:
      std::memset(value, 0, sizeof(int));
      return CUDA_SUCCESS;
    case pointer_context:
    case pointer_device_pointer:
    case pointer_host_pointer:
    case pointer_buffer_id:
    case pointer_range_start:
    case pointer_range_size:
    case pointer_allowed_handle_types:
    case pointer_pool:
      std::memset(value, 0, sizeof(std::uint64_t));
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult pin(const char* name, void** address, std::size_t size, unsigned flags) {
  return context_call(name, address != nullptr && flags < 8, [&](const context_ref& c) {
    std::uint64_t made = 0;
    const CUresult code = size == 0 ? CUDA_SUCCESS : allocate_host(c, range_kind::pinned, &made, size);
    if (code == CUDA_SUCCESS) *address = reinterpret_cast<void*>(made);
    return code;
  });
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size) {
  return context_call("cuMemAlloc", address != nullptr && size != 0, [&](const context_ref& c) -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    CUresult code = 0;
    const auto range = m.allocate(c->device, size, range_kind::device, code);
    if (range == nullptr) return code;
    range->generation = c->generation;
    m.show(*range);
    spoil(*range);
    m.ranges.emplace(range->base, range);
    *address = range->base;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemFree_v2(CUdeviceptr address) {
  return context_call("cuMemFree", true, [&](const context_ref&) -> CUresult {
    machine& m = the();
    if (address == 0) return CUDA_SUCCESS;
    int owner = -1;
    {
      const std::lock_guard lock{m.mutex};
      const auto range = m.find(address);
      if (range == nullptr || range->base != address || is_host(*range) || range->kind == range_kind::mapping ||
          range->kind == range_kind::multicast || range->kind == range_kind::imported ||
          range->kind == range_kind::global || range->opened != 0) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      // What a stream gave is taken without a wait. All work of the device comes before anything else goes; that of
      // its peers does not, and loses its sight of the memory at once (PyTorch issue 196257).
      if (range->kind != range_kind::pool) owner = range->device;
      for (int by = 0; range->kind == range_kind::device && by < m.count(); ++by) {
        if (by != range->device) m.space.hide(address_space::device(by), range->base, range->size);
      }
    }
    if (owner >= 0) m.drain(owner);
    const std::lock_guard lock{m.mutex};
    const auto range = m.find(address);
    if (range == nullptr || range->base != address) return CUDA_ERROR_INVALID_VALUE;
    if (range->kind == range_kind::pool) range->home->used -= range->size;
    if (range->kind == range_kind::managed) std::free(reinterpret_cast<void*>(address));
    m.end(range);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return context_call("cuMemGetInfo", free != nullptr && total != nullptr, [&](const context_ref& c) {
    const std::lock_guard lock{the().mutex};
    const device& d = the().devices[static_cast<std::size_t>(c->device)];
    *free = d.memory - std::min(d.memory, d.used);
    *total = d.memory;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemHostAlloc(void** address, std::size_t size, unsigned flags) {
  return pin("cuMemHostAlloc", address, size, flags);
}
WEFT_VIRTUAL_API CUresult cuMemAllocHost_v2(void** address, std::size_t size) {
  return pin("cuMemAllocHost", address, size, 0);
}

WEFT_VIRTUAL_API CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t size, unsigned flags) {
  return context_call("cuMemAllocManaged", address != nullptr && size != 0 && (flags & 3U) != 0,
                      [&](const context_ref& c) -> CUresult {
                        if (!given().managed) return CUDA_ERROR_NOT_SUPPORTED;
                        std::uint64_t made = 0;
                        const CUresult code = allocate_host(c, range_kind::managed, &made, size);
                        if (code == CUDA_SUCCESS) *address = made;
                        return code;
                      });
}

WEFT_VIRTUAL_API CUresult cuMemFreeHost(void* address) {
  return context_call("cuMemFreeHost", true, [&](const context_ref& c) -> CUresult {
    machine& m = the();
    if (address == nullptr) return CUDA_SUCCESS;
    {
      const std::lock_guard lock{m.mutex};
      const auto range = m.find(reinterpret_cast<std::uint64_t>(address));
      if (range == nullptr || range->kind != range_kind::pinned ||
          range->base != reinterpret_cast<std::uint64_t>(address)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    machine::drain(c);
    const std::lock_guard lock{m.mutex};
    const auto range = m.find(reinterpret_cast<std::uint64_t>(address));
    if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
    m.end(range);
    std::free(address);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemHostRegister_v2(void* address, std::size_t size, unsigned flags) {
  return context_call("cuMemHostRegister", address != nullptr && size != 0 && flags < 16,
                      [&](const context_ref& c) -> CUresult {
                        machine& m = the();
                        const auto base = reinterpret_cast<std::uint64_t>(address);
                        if ((flags & host_register_read_only) != 0) return CUDA_ERROR_NOT_SUPPORTED;
                        if (m.space.holds(base) || !is_mapped(base, base + size)) return CUDA_ERROR_INVALID_VALUE;
                        const std::lock_guard lock{m.mutex};
                        const auto after = m.ranges.lower_bound(base);
                        // what the driver itself page-locked is not refused as registered before
                        if (const auto own = m.find(base); own != nullptr && own->kind == range_kind::pinned)
                          return CUDA_ERROR_INVALID_VALUE;
                        if (m.find(base) != nullptr || (after != m.ranges.end() && after->first < base + size)) {
                          return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
                        }
                        auto range = std::make_shared<memory_range>();
                        range->kind = range_kind::registered;
                        range->base = base;
                        range->size = size;
                        range->id = m.next_id++;
                        range->device = c->device;
                        range->generation = c->generation;
                        m.ranges.emplace(base, range);
                        return CUDA_SUCCESS;
                      });
}

WEFT_VIRTUAL_API CUresult cuMemHostUnregister(void* address) {
  return context_call("cuMemHostUnregister", address != nullptr, [&](const context_ref&) -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto base = reinterpret_cast<std::uint64_t>(address);
    const auto range = m.find(base);
    if (range == nullptr) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    // the driver knows it, and by another call or address
    if (range->kind != range_kind::registered || range->base != base) return CUDA_ERROR_INVALID_VALUE;
    m.ranges.erase(base);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned flags) {
  return context_call("cuMemHostGetDevicePointer", address != nullptr && host != nullptr && flags == 0,
                      [&](const context_ref&) -> CUresult {
                        const std::lock_guard lock{the().mutex};
                        const auto range = the().find(reinterpret_cast<std::uint64_t>(host));
                        if (range == nullptr || (!is_host(*range) && range->kind != range_kind::managed)) {
                          return CUDA_ERROR_INVALID_VALUE;
                        }
                        *address = reinterpret_cast<std::uint64_t>(host);
                        return CUDA_SUCCESS;
                      });
}

WEFT_VIRTUAL_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  return context_call("cuMemGetAddressRange", true, [&](const context_ref&) -> CUresult {
    const std::lock_guard lock{the().mutex};
    const auto range = the().find(address);
    if (range == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = range->base;
    if (size != nullptr) *size = range->size;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  return plain_call("cuPointerGetAttribute", value != nullptr, [&]() -> CUresult {
    const context_ref c = current();  // which only the address that its kernels use depends on
    if (c == nullptr && attribute == pointer_device_pointer) return CUDA_ERROR_INVALID_CONTEXT;
    if (const int lost = c == nullptr ? 0 : c->lost.load(); lost != 0) return lost;
    const std::lock_guard lock{the().mutex};
    const auto range = the().find(address);
    if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return tell(*range, address, attribute, value);
  });
}

// Of what is no pointer of the driver's each attribute is null, and that is no error.
WEFT_VIRTUAL_API CUresult cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                                                 CUdeviceptr address) {
  const bool arguments = count != 0 && attributes != nullptr && values != nullptr;
  return context_call("cuPointerGetAttributes", arguments, [&](const context_ref&) -> CUresult {
    const std::lock_guard lock{the().mutex};
    const auto range = the().find(address);
    for (unsigned n = 0; n < count; ++n) {
      if (values[n] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      if (const CUresult code = tell_nothing(attributes[n], values[n]); code != CUDA_SUCCESS) return code;
      if (range == nullptr) continue;
      const CUresult code = tell(*range, address, attributes[n], values[n]);
      // device memory has no address of the host's
      if (code != CUDA_SUCCESS && attributes[n] != pointer_host_pointer) return code;
    }
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuPointerSetAttribute(const void* value, int attribute, CUdeviceptr address) {
  return context_call("cuPointerSetAttribute", value != nullptr && attribute == pointer_sync_memops,
                      [&](const context_ref&) -> CUresult {
                        const std::lock_guard lock{the().mutex};
                        const auto range = the().find(address);
                        return range == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
                      });
}

WEFT_VIRTUAL_API CUresult cuMemAdvise_v2(CUdeviceptr address, std::size_t size, int advice, CUmemLocation location) {
  return context_call("cuMemAdvise", size != 0 && advice >= 1 && advice <= 6, [&](const context_ref&) -> CUresult {
    const std::lock_guard lock{the().mutex};
    const auto range = the().find(address);
    if (range == nullptr || range->kind != range_kind::managed || address + size > range->base + range->size) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool placed = advice >= advise_set_preferred_location && advice != advise_unset_preferred_location;
    if (placed && location.type == location_device && !the().valid(location.id)) return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, std::size_t size, CUmemLocation location,
                                                unsigned flags, CUstream stream) {
  return stream_call("cuMemPrefetchAsync", stream, size != 0 && flags == 0, [&](const stream_ref& s) -> CUresult {
    {
      const std::lock_guard lock{the().mutex};
      const auto range = the().find(address);
      if (range == nullptr || range->kind != range_kind::managed || address + size > range->base + range->size) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (location.type == location_device && !the().valid(location.id)) return CUDA_ERROR_INVALID_DEVICE;
    }
    submit(s, {.run = [] { return CUDA_SUCCESS; }, .guarded = false});
    return CUDA_SUCCESS;
  });
}

}  // namespace weft::virtual_cuda
