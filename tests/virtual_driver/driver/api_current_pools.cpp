// SPDX-License-Identifier: Apache-2.0
// The pool that cuMemAllocAsync takes memory of a device from: its default one, until the program sets another.
#include "virtual_driver/driver/call.hpp"

namespace weft::virtual_cuda {
namespace {

constexpr int allocation_managed = 2;

/// Of devices only: there are no pools of the host's memory, and none of managed memory.
CUresult pool_of(const char* name, CUmemoryPool* pool, const CUmemLocation* location, int type, bool current) {
  return plain_call(name, pool != nullptr && location != nullptr, [&]() -> CUresult {
    if (type == allocation_managed || location->type == location_host || location->type == location_host_numa)
      return CUDA_ERROR_NOT_SUPPORTED;
    if (type != allocation_pinned || location->type != location_device) return CUDA_ERROR_INVALID_VALUE;
    if (!the().valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = current ? the().pool_of(location->id) : the().devices[static_cast<std::size_t>(location->id)].default_pool;
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUmemoryPool machine::pool_of(int ordinal) const {
  const device& d = devices[static_cast<std::size_t>(ordinal)];
  const CUmemoryPool set = d.current_pool.load();
  return set != nullptr && pools.find(set) != nullptr ? set : d.default_pool;  // the one that was set may be destroyed
}

WEFT_VIRTUAL_API CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  return plain_call("cuDeviceGetMemPool", pool != nullptr, [&]() -> CUresult {
    if (!the().valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = the().pool_of(ordinal);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  return plain_call("cuDeviceSetMemPool", true, [&]() -> CUresult {
    if (!the().valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    const auto pool = the().pools.find(handle);
    if (pool == nullptr || pool->device != ordinal || pool->imported) return CUDA_ERROR_INVALID_VALUE;
    the().devices[static_cast<std::size_t>(ordinal)].current_pool.store(handle);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, const CUmemLocation* location, int type) {
  return pool_of("cuMemGetDefaultMemPool", pool, location, type, false);
}
WEFT_VIRTUAL_API CUresult cuMemGetMemPool(CUmemoryPool* pool, const CUmemLocation* location, int type) {
  return pool_of("cuMemGetMemPool", pool, location, type, true);
}

}  // namespace weft::virtual_cuda
