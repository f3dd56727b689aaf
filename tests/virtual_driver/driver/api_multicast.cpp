// SPDX-License-Identifier: Apache-2.0
// Multicast objects are made, joined and bound here; they are mapped like other memory.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/multicast.hpp"

#include <algorithm>
#include <sys/mman.h>

namespace weft::virtual_cuda {
namespace {

/// Calls `f` with the object, the lock held.
template <class F>
CUresult object_call(const char* name, bool arguments, CUmemGenericAllocationHandle handle, F&& f) noexcept {
  return plain_call(name, arguments, [&]() -> CUresult {
    if (!given().multicast) return CUDA_ERROR_NOT_SUPPORTED;
    const auto known = the().blocks.find(handle);
    if (known == nullptr || known->group == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock{the().mutex};
    return f(*known->group);
  });
}

bool is_team(const CUmulticastObjectProp& about) {
  return about.devices != 0 && about.devices <= static_cast<unsigned>(the().count()) && about.handle_types == 0 &&
         about.flags == 0;
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* about) {
  return plain_call("cuMulticastCreate", handle != nullptr && about != nullptr, [&]() -> CUresult {
    if (!given().multicast) return CUDA_ERROR_NOT_SUPPORTED;
    if (!is_team(*about) || about->size == 0 || about->size % granularity != 0) return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_shared<block_handle>();
    made->group = std::make_shared<multicast_object>();
    made->group->devices = about->devices;
    made->group->size = about->size;
    *handle = the().blocks.add(std::move(made));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  return object_call("cuMulticastAddDevice", true, handle, [&](multicast_object& group) -> CUresult {
    if (!the().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (group.has(device) || group.joined.size() == group.devices) return CUDA_ERROR_INVALID_VALUE;
    // a switch joins who reaches each other
    for (const int other : group.joined) {
      if (!the().can_access(device, other) || !the().can_access(other, device)) return CUDA_ERROR_NOT_SUPPORTED;
    }
    group.joined.push_back(device);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, std::size_t offset,
                                             CUmemGenericAllocationHandle memory, std::size_t memory_offset,
                                             std::size_t size, unsigned long long flags) {
  // an object is bound as a whole here
  const bool arguments = offset == 0 && memory_offset == 0 && size != 0 && size % granularity == 0 && flags == 0;
  return object_call("cuMulticastBindMem", arguments, handle, [&](multicast_object& group) -> CUresult {
    const auto block = the().blocks.find(memory);
    if (block == nullptr || block->memory == nullptr || size != group.size || size > block->memory->size)
      return CUDA_ERROR_INVALID_VALUE;
    const int device = block->memory->device;
    if (!group.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    // hardware waits here, without end
    if (group.joined.size() != group.devices || group.bound.contains(device)) return CUDA_ERROR_ILLEGAL_STATE;
    auto made = std::make_unique<multicast_object::replica>();
    void* const view = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, block->memory->file, 0);
    if (view == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    made->memory = block->memory;
    made->view = static_cast<std::byte*>(view);
    made->size = size;
    group.bound.emplace(device, std::move(made));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, std::size_t offset,
                                            std::size_t size) {
  return object_call("cuMulticastUnbind", true, handle, [&](multicast_object& group) -> CUresult {
    if (offset != 0 || size != group.size) return CUDA_ERROR_INVALID_VALUE;
    return group.bound.erase(device) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

WEFT_VIRTUAL_API CUresult cuMulticastGetGranularity(std::size_t* size, const CUmulticastObjectProp* about, int which) {
  return plain_call("cuMulticastGetGranularity", size != nullptr && about != nullptr && (which & ~1) == 0,
                    [&]() -> CUresult {
                      if (!given().multicast) return CUDA_ERROR_NOT_SUPPORTED;
                      if (!is_team(*about)) return CUDA_ERROR_INVALID_VALUE;
                      *size = granularity;
                      return CUDA_SUCCESS;
                    });
}

}  // namespace weft::virtual_cuda
