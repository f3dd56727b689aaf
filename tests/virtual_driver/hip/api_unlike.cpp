// SPDX-License-Identifier: Apache-2.0
// What HIP counts, names or does in another way than CUDA. Source: hip_runtime_api.h of 7.1 and HIP's reference.
#include "backends/gpu/hip/hip_attributes.hpp"
#include "backends/gpu/hip/hip_functions.hpp"
#include "virtual_driver/driver/more_functions.hpp"
#include "virtual_driver/hip/runtime.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>

namespace weft::virtual_hip {

namespace amd = weft::gpu::amd;

// ---- what a call answers --------------------------------------------------------------------------------------------

namespace {

struct error_text {
  CUresult code;
  const char* name;
  const char* text;
};
constexpr error_text errors[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {4, "hipErrorDeinitialized", "driver shutting down"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {200, "hipErrorInvalidImage", "device kernel image is invalid"},
    {201, "hipErrorInvalidContext", "invalid device context"},
    {205, "hipErrorMapFailed", "mapping of buffer object failed"},
    {208, "hipErrorAlreadyMapped", "resource already mapped"},
    {209, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {214, "hipErrorECCNotCorrectable", "uncorrectable ECC error encountered"},
    {217, "hipErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {304, "hipErrorOperatingSystem", "OS call failed or operation not supported on this OS"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {401, "hipErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "hipErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "hipErrorLaunchTimeOut", "the launch timed out and was terminated"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "hipErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {710, "hipErrorAssert", "device-side assert triggered"},
    {712, "hipErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "hipErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {900, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {999, "hipErrorUnknown", "unknown error"},
};

CUresult tell(CUresult error, const char** text, const char* error_text::* what) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const error_text& one : errors) {
    if (one.code != error) continue;
    *text = one.*what;
    return CUDA_SUCCESS;
  }
  *text = what == &error_text::name ? "hipErrorUnknown" : "unknown error";
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

WEFT_VIRTUAL_API CUresult hipDrvGetErrorName(CUresult error, const char** text) {
  return tell(error, text, &error_text::name);
}
WEFT_VIRTUAL_API CUresult hipDrvGetErrorString(CUresult error, const char** text) {
  return tell(error, text, &error_text::text);
}

// ---- devices --------------------------------------------------------------------------------------------------------

WEFT_VIRTUAL_API CUresult hipInit(unsigned flags) { return flags == 0 ? ready() : CUDA_ERROR_INVALID_VALUE; }

WEFT_VIRTUAL_API CUresult hipDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = hip_given().version;
  return CUDA_SUCCESS;
}
WEFT_VIRTUAL_API CUresult hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }

WEFT_VIRTUAL_API CUresult hipGetDeviceCount(int* count) {
  return asked([&] { return cuDeviceGetCount(count); });
}
WEFT_VIRTUAL_API CUresult hipDeviceGet(int* device, int ordinal) {
  return asked([&] { return cuDeviceGet(device, ordinal); });
}
WEFT_VIRTUAL_API CUresult hipDeviceGetName(char* name, int size, int device) {
  return asked([&] { return cuDeviceGetName(name, size, device); });
}
/// The text of a number: 16 digits, or "XX" where the hardware has none.
WEFT_VIRTUAL_API CUresult hipDeviceGetUuid(CUuuid* uuid, int device) {
  return asked([&] {
    CUuuid made{};
    const CUresult status = uuid == nullptr ? CUDA_ERROR_INVALID_VALUE : cuDeviceGetUuid_v2(&made, device);
    if (status != CUDA_SUCCESS) return status;
    *uuid = {};
    if (!hip_given().has_uuids) {
      uuid->bytes[0] = uuid->bytes[1] = 'X';
      return CUDA_SUCCESS;
    }
    constexpr std::string_view digits = "0123456789abcdef";
    for (std::size_t i = 0; i < 8; ++i) {
      const auto byte = static_cast<unsigned char>(made.bytes[8 + i] ^ made.bytes[i]);
      uuid->bytes[2 * i] = digits[byte >> 4U];
      uuid->bytes[2 * i + 1] = digits[byte & 15U];
    }
    return CUDA_SUCCESS;
  });
}
WEFT_VIRTUAL_API CUresult hipDeviceTotalMem(std::size_t* bytes, int device) {
  return asked([&] { return cuDeviceTotalMem_v2(bytes, device); });
}
WEFT_VIRTUAL_API CUresult hipDeviceGetPCIBusId(char* address, int size, int device) {
  return asked([&] { return cuDeviceGetPCIBusId(address, size, device); });
}
WEFT_VIRTUAL_API CUresult hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return asked([&] { return cuDeviceCanAccessPeer(can, device, peer); });
}

constexpr int wall_clock_rate = 10017;

WEFT_VIRTUAL_API CUresult hipDeviceGetAttribute(int* value, int attribute, int device) {
  return asked([&]() -> CUresult {
    if (value == nullptr || !the().valid(device))
      return value == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    if (attribute == amd::hip_can_use_stream_wait_value) {
      *value = hip_given().has_wait_values ? 1 : 0;
      return CUDA_SUCCESS;
    }
    for (const amd::attribute_pair& one : amd::hip_attributes) {
      if (one.hip == attribute) return cuDeviceGetAttribute(value, one.ours, device);
    }
    if (attribute == wall_clock_rate) {
      *value = 100000;  // kHz
      return CUDA_SUCCESS;
    }
    *value = 0;  // others that there are
    return attribute >= 0 && (attribute < 92 || (attribute >= 10000 && attribute < 10020)) ? CUDA_SUCCESS
                                                                                           : CUDA_ERROR_INVALID_VALUE;
  });
}

/// Counted from 0, and what CUDA ranks is the type of the link.
WEFT_VIRTUAL_API CUresult hipDeviceGetP2PAttribute(int* value, int attribute, int from, int to) {
  return asked([&]() -> CUresult {
    if (attribute < 0 || attribute > 3) return CUDA_ERROR_INVALID_VALUE;
    const CUresult status = cuDeviceGetP2PAttribute(value, attribute + 1, from, to);
    if (status == CUDA_SUCCESS && attribute == 0) *value = *value == 0 ? 4 : 2;  // XGMI or PCIe
    return status;
  });
}
WEFT_VIRTUAL_API CUresult hipExtGetLinkTypeAndHopCount(int from, int to, unsigned* type, unsigned* hops) {
  int rank = 0;
  const CUresult status = hipDeviceGetP2PAttribute(&rank, 0, from, to);
  if (status == CUDA_SUCCESS) {
    *type = static_cast<unsigned>(rank);
    *hops = rank == 4 ? 1 : 2;
  }
  return status;
}

WEFT_VIRTUAL_API CUresult hipGetDevicePropertiesR0600(char* properties, int device) {
  return asked([&]() -> CUresult {
    if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memset(properties, 0, amd::hip_properties_size);
    const CUresult status = cuDeviceGetName(properties, 256, device);
    if (status != CUDA_SUCCESS) return status;
    std::snprintf(properties + amd::hip_architecture_offset, amd::hip_architecture_size, "%s",
                  hip_given().architecture.c_str());
    return CUDA_SUCCESS;
  });
}

// ---- the device of a thread; contexts, which HIP only pretends to have ----------------------------------------------

WEFT_VIRTUAL_API CUresult hipSetDevice(int device) {
  return asked([&]() -> CUresult {
    if (const CUresult code = begin_driver_call("cuCtxSetCurrent"); code != CUDA_SUCCESS) return code;
    if (!the().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    current_device() = device;
    return CUDA_SUCCESS;
  });
}
WEFT_VIRTUAL_API CUresult hipGetDevice(int* device) {
  return asked([&]() -> CUresult {
    if (const CUresult code = begin_driver_call("cuCtxGetCurrent"); code != CUDA_SUCCESS) return code;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = current_device();
    return CUDA_SUCCESS;
  });
}

/// These do nothing and say that all is well.
WEFT_VIRTUAL_API CUresult hipDevicePrimaryCtxReset(int) { return CUDA_SUCCESS; }
WEFT_VIRTUAL_API CUresult hipCtxEnablePeerAccess(CUcontext, unsigned) { return CUDA_SUCCESS; }
WEFT_VIRTUAL_API CUresult hipCtxDisablePeerAccess(CUcontext) { return CUDA_SUCCESS; }
WEFT_VIRTUAL_API CUresult hipCtxPushCurrent(CUcontext) { return CUDA_SUCCESS; }
/// It does not restore the device.
WEFT_VIRTUAL_API CUresult hipCtxPopCurrent(CUcontext*) { return CUDA_SUCCESS; }
WEFT_VIRTUAL_API CUresult hipCtxSynchronize() { return CUDA_ERROR_NOT_SUPPORTED; }

// ---- access between devices -----------------------------------------------------------------------------------------

namespace {

struct peer_book {
  std::mutex mutex;
  std::array<std::array<bool, most_devices>, most_devices> enabled{};  // from, to: as the program asked

  [[nodiscard]] bool is_open(int to) const {
    return std::any_of(enabled.begin(), enabled.end(),
                       [&](const auto& row) { return row[static_cast<std::size_t>(to)]; });
  }
};
peer_book& peers() {
  static auto* const one = new peer_book;
  return *one;
}

/// Whoever may reach `to` reaches it, or nobody does: memory of a device opens to all its peers.
void open_memory_of(int to, bool is_open) {
  machine& m = the();
  const std::lock_guard lock{m.mutex};
  for (int by = 0; by < m.count(); ++by) {
    if (!m.can_access(by, to)) continue;
    m.devices[static_cast<std::size_t>(by)].peers[static_cast<std::size_t>(to)] = is_open;
    for (const auto& [base, range] : m.ranges) {
      if (range->device == to && range->kind == range_kind::device) m.show(by, *range);
    }
  }
}

CUresult valid_peer(int peer) {
  if (!the().valid(peer) || peer == current_device()) return CUDA_ERROR_INVALID_DEVICE;
  return the().can_access(current_device(), peer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

WEFT_VIRTUAL_API CUresult hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  return entered([&]() -> CUresult {
    if (const CUresult code = begin_driver_call("cuCtxEnablePeerAccess"); code != CUDA_SUCCESS) return code;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult code = valid_peer(peer); code != CUDA_SUCCESS) return code;
    peer_book& book = peers();
    const std::lock_guard lock{book.mutex};
    bool& on = book.enabled[static_cast<std::size_t>(current_device())][static_cast<std::size_t>(peer)];
    if (std::exchange(on, true)) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    open_memory_of(peer, true);
    return CUDA_SUCCESS;
  });
}
WEFT_VIRTUAL_API CUresult hipDeviceDisablePeerAccess(int peer) {
  return entered([&]() -> CUresult {
    if (const CUresult code = begin_driver_call("cuCtxDisablePeerAccess"); code != CUDA_SUCCESS) return code;
    if (const CUresult code = valid_peer(peer); code != CUDA_SUCCESS) return code;
    peer_book& book = peers();
    const std::lock_guard lock{book.mutex};
    bool& on = book.enabled[static_cast<std::size_t>(current_device())][static_cast<std::size_t>(peer)];
    if (!std::exchange(on, false)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    if (!book.is_open(peer)) open_memory_of(peer, false);
    return CUDA_SUCCESS;
  });
}

/// Access of the device and to it ends. After a fault it does nothing but say so, as every call.
WEFT_VIRTUAL_API CUresult hipDeviceReset() {
  return asked([&]() -> CUresult {
    const CUresult status = cuDevicePrimaryCtxReset_v2(current_device());
    if (status != CUDA_SUCCESS) return status;
    forget_context(current_device());
    peer_book& book = peers();
    const std::lock_guard lock{book.mutex};
    const auto gone = static_cast<std::size_t>(current_device());
    for (int other = 0; other < the().count(); ++other) {
      const auto at = static_cast<std::size_t>(other);
      book.enabled[at][gone] = false;
      if (std::exchange(book.enabled[gone][at], false) && !book.is_open(other)) open_memory_of(other, false);
    }
    return CUDA_SUCCESS;
  });
}

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Null is nothing to free.
WEFT_HIP(hipFree, (CUdeviceptr address), address == 0 ? CUDA_SUCCESS : cuMemFree_v2(address))
WEFT_HIP(hipHostFree, (void* address), address == nullptr ? CUDA_SUCCESS : cuMemFreeHost(address))
/// All memory is coherent with running kernels here. So a test asks for the calls, by the kind that was wanted.
WEFT_VIRTUAL_API CUresult hipHostMalloc(void** address, std::size_t size, unsigned flags) {
  return entered([&]() -> CUresult {
    const bool is_coherent = (flags & amd::hip_host_coherent) != 0;
    if (const CUresult code = is_coherent ? begin_driver_call("hipHostMalloc coherent") : CUDA_SUCCESS; code != 0)
      return code;
    return cuMemHostAlloc(address, size,
                          (flags & (host_alloc_portable | host_alloc_device_map)) | host_alloc_device_map);
  });
}
WEFT_VIRTUAL_API CUresult hipExtMallocWithFlags(CUdeviceptr* address, std::size_t size, unsigned flags) {
  return entered([&]() -> CUresult {
    const bool is_uncached = flags == amd::hip_malloc_uncached;
    if (!is_uncached && flags != 0 && flags != amd::hip_malloc_finegrained) return CUDA_ERROR_INVALID_VALUE;
    if (is_uncached && !hip_given().has_uncached) return CUDA_ERROR_INVALID_VALUE;
    const char* const name = is_uncached  ? "hipExtMallocWithFlags uncached"
                             : flags != 0 ? "hipExtMallocWithFlags fine-grained"
                                          : "hipExtMallocWithFlags";
    if (const CUresult code = begin_driver_call(name); code != CUDA_SUCCESS) return code;
    return cuMemAlloc_v2(address, size);
  });
}
/// What it does not know it does not find.
WEFT_VIRTUAL_API CUresult hipMemGetAddressRange(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  return entered([&]() -> CUresult {
    const CUresult status = cuMemGetAddressRange_v2(base, size, address);
    return status == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_NOT_FOUND : status;
  });
}

/// The context of memory is an object of its own making, a size has 32 bits, and managed memory has a type of its own.
WEFT_VIRTUAL_API CUresult hipPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  return entered([&]() -> CUresult {
    if (attribute == pointer_context) {
      static const int its_own = 0;
      *static_cast<const void**>(value) = &its_own;
      return CUDA_SUCCESS;
    }
    if (attribute == pointer_range_size) {
      std::size_t size = 0;
      const CUresult status = cuPointerGetAttribute(&size, attribute, address);
      *static_cast<std::uint32_t*>(value) = static_cast<std::uint32_t>(size);
      return status;
    }
    const CUresult status = cuPointerGetAttribute(value, attribute, address);
    if (status != CUDA_SUCCESS || attribute != pointer_memory_type) return status;
    int is_managed = 0;
    if (cuPointerGetAttribute(&is_managed, pointer_is_managed, address) == CUDA_SUCCESS && is_managed != 0)
      *static_cast<unsigned*>(value) = amd::hip_memory_managed;
    return CUDA_SUCCESS;
  });
}

// ---- memory, addresses and rights apart -----------------------------------------------------------------------------

namespace {

/// What HIP says of a block that it imported, and where it says to have mapped more than there is.
struct told_of_blocks {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, int> imported_on;
  std::set<CUdeviceptr> vacuous;

  static told_of_blocks& get() {
    static auto* const one = new told_of_blocks;
    return *one;
  }
};

}  // namespace

/// On the thread's device, whatever the description says: so newer releases have it.
WEFT_VIRTUAL_API CUresult hipMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                                       const CUmemAllocationProp* properties, unsigned long long flags) {
  return entered([&]() -> CUresult {
    CUmemAllocationProp here;
    if (properties != nullptr) {
      here = *properties;
      if (here.location.type == location_device && the().valid(here.location.id)) here.location.id = current_device();
    }
    return plain(cuMemCreate(handle, size, properties == nullptr ? nullptr : &here, flags));
  });
}

/// A mapping that is longer than its block is a success that maps nothing.
WEFT_VIRTUAL_API CUresult hipMemMap(CUdeviceptr address, std::size_t size, std::size_t offset,
                                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return entered([&]() -> CUresult {
    const CUresult status = cuMemMap(address, size, offset, handle, flags);
    const auto block = the().blocks.find(handle);
    if (status != CUDA_ERROR_INVALID_VALUE || block == nullptr || block->memory == nullptr) return status;
    if (offset != 0 || size <= block->memory->size) return status;
    told_of_blocks& told = told_of_blocks::get();
    const std::lock_guard lock{told.mutex};
    told.vacuous.insert(address);
    return CUDA_SUCCESS;
  });
}
/// … and to end it ends the process.
WEFT_VIRTUAL_API CUresult hipMemUnmap(CUdeviceptr address, std::size_t size) {
  return entered([&]() -> CUresult {
    told_of_blocks& told = told_of_blocks::get();
    const std::lock_guard lock{told.mutex};
    if (told.vacuous.count(address) != 0) std::abort();
    return cuMemUnmap(address, size);
  });
}

/// An imported block is said to be of the device on which the importing thread was.
WEFT_VIRTUAL_API CUresult hipMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                                  CUmemGenericAllocationHandle handle) {
  return entered([&]() -> CUresult {
    const CUresult status = cuMemGetAllocationPropertiesFromHandle(properties, handle);
    told_of_blocks& told = told_of_blocks::get();
    const std::lock_guard lock{told.mutex};
    const auto known = told.imported_on.find(handle);
    if (status == CUDA_SUCCESS && known != told.imported_on.end()) properties->location.id = known->second;
    return status;
  });
}

/// A right on a pool can be given and not be taken away.
WEFT_VIRTUAL_API CUresult hipMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* rights, std::size_t count) {
  return entered([&]() -> CUresult {
    for (std::size_t i = 0; rights != nullptr && i < count; ++i) {
      if (rights[i].flags == access_none) return CUDA_ERROR_INVALID_DEVICE;
    }
    return cuMemPoolSetAccess(pool, rights, count);
  });
}

/// Takes the address of a descriptor, which it reads: anything else ends the process. Later releases take it itself.
WEFT_VIRTUAL_API CUresult hipMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                          int type) {
  return entered([&]() -> CUresult {
    if (handle == nullptr || shareable == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (hip_given().imports_by_address)
      shareable = reinterpret_cast<void*>(static_cast<std::uintptr_t>(*static_cast<const int*>(shareable)));
    const CUresult status = cuMemImportFromShareableHandle(handle, shareable, type);
    if (status == CUDA_SUCCESS) {
      told_of_blocks& told = told_of_blocks::get();
      const std::lock_guard lock{told.mutex};
      told.imported_on[*handle] = current_device();
    }
    return status;
  });
}
/// A size that it cannot reserve is more memory than there is.
WEFT_VIRTUAL_API CUresult hipMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                               CUdeviceptr hint, unsigned long long flags) {
  return entered([&]() -> CUresult {
    const CUresult status = cuMemAddressReserve(address, size, alignment, hint, flags);
    return status == CUDA_ERROR_INVALID_VALUE && address != nullptr && flags == 0 ? CUDA_ERROR_OUT_OF_MEMORY : status;
  });
}

WEFT_HIP(hipMemAdvise, (CUdeviceptr address, std::size_t size, int advice, int device),
         cuMemAdvise_v2(address, size, advice, {location_device, device}))
WEFT_HIP(hipMemPrefetchAsync, (CUdeviceptr address, std::size_t size, int device, CUstream stream),
         cuMemPrefetchAsync_v2(address, size, {location_device, device}, 0, stream))

// ---- copies ---------------------------------------------------------------------------------------------------------

WEFT_HIP(hipMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, std::size_t size, int kind, CUstream stream),
         kind < 0 || kind > 4 ? CUDA_ERROR_INVALID_VALUE : cuMemcpyAsync(dst, src, size, stream))
/// The devices are looked at for being in range, and no further: addresses tell whose memory it is.
WEFT_VIRTUAL_API CUresult hipMemcpyPeerAsync(CUdeviceptr dst, int dst_device, CUdeviceptr src, int src_device,
                                             std::size_t size, CUstream stream) {
  return entered([&]() -> CUresult {
    if (!the().valid(dst_device) || !the().valid(src_device)) return CUDA_ERROR_INVALID_DEVICE;
    const CUresult status = cuMemcpyPeerAsync(dst, context_of(dst_device), src, context_of(src_device), size, stream);
    return status == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_CONTEXT_IS_DESTROYED : status;  // a stream that is none
  });
}

WEFT_VIRTUAL_API CUresult hipDrvMemcpy3DAsync(const amd::HIP_MEMCPY3D* copy, CUstream stream) {
  return entered([&]() -> CUresult {
    if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto type = [](int theirs) -> unsigned {
      return theirs == amd::hip_memory_host ? memory_type_host : memory_type_unified;
    };
    CUDA_MEMCPY3D made;
    made.src_x = copy->src_x;
    made.src_y = copy->src_y;
    made.src_z = copy->src_z;
    made.src_type = type(copy->src_type);
    made.src_host = copy->src_host;
    made.src_device = number(copy->src_device);
    made.src_pitch = copy->src_pitch;
    made.src_height = copy->src_height;
    made.dst_x = copy->dst_x;
    made.dst_y = copy->dst_y;
    made.dst_z = copy->dst_z;
    made.dst_type = type(copy->dst_type);
    made.dst_host = copy->dst_host;
    made.dst_device = number(copy->dst_device);
    made.dst_pitch = copy->dst_pitch;
    made.dst_height = copy->dst_height;
    made.width = copy->width;
    made.height = copy->height;
    made.depth = copy->depth;
    return cuMemcpy3DAsync_v2(&made, stream);
  });
}

WEFT_HIP(hipMemcpyBatchAsync,
         (CUdeviceptr * dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count, CUmemcpyAttributes* attributes,
          std::size_t* attribute_of, std::size_t kinds, std::size_t* failed, CUstream stream),
         failed == nullptr ? CUDA_ERROR_INVALID_VALUE
                           : cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, attribute_of, kinds, stream))

// ---- order and code -------------------------------------------------------------------------------------------------

namespace {

/// One thread at a time asks for an event or waits for it: who waits keeps the others from asking.
std::shared_ptr<std::mutex> lock_of(CUevent event) {
  static std::mutex guard;
  static auto* const all = new std::map<CUevent, std::shared_ptr<std::mutex>>;
  const std::lock_guard lock{guard};
  auto& one = (*all)[event];
  if (one == nullptr) one = std::make_shared<std::mutex>();
  return one;
}

}  // namespace

#define WEFT_HIP_LOCKED(name, parameters, call) \
  WEFT_VIRTUAL_API CUresult name parameters {   \
    return entered([&]() -> CUresult {          \
      const auto mutex = lock_of(event);        \
      const std::lock_guard lock{*mutex};       \
      return call;                              \
    });                                         \
  }
WEFT_HIP_LOCKED(hipEventQuery, (CUevent event), cuEventQuery(event))
WEFT_HIP_LOCKED(hipEventSynchronize, (CUevent event), cuEventSynchronize(event))
WEFT_HIP_LOCKED(hipStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),
                cuStreamWaitEvent(stream, event, flags))

/// The name of the default stream is none to this function: it takes it for an object.
WEFT_VIRTUAL_API CUresult hipStreamGetDevice(CUstream stream, int* device) {
  return entered([&]() -> CUresult {
    if (reinterpret_cast<std::uintptr_t>(stream) == stream_legacy) std::abort();
    CUcontext home = nullptr;
    const CUresult status = cuStreamGetCtx(stream, &home);
    if (status != CUDA_SUCCESS) return status;
    const context_ref found = the().contexts.find(home);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *device = found->device;
    return CUDA_SUCCESS;
  });
}

WEFT_HIP(hipStreamWaitValue32,
         (CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags, std::uint32_t mask),
         !hip_given().has_wait_values || ~mask != 0
             ? CUDA_ERROR_NOT_SUPPORTED
             : cuStreamWaitValue32_v2(stream, address, value, flags | wait_value_plain))
WEFT_HIP(hipStreamWaitValue64,
         (CUstream stream, CUdeviceptr address, unsigned long value, unsigned flags, unsigned long mask),
         !hip_given().has_wait_values || ~mask != 0
             ? CUDA_ERROR_NOT_SUPPORTED
             : cuStreamWaitValue64_v2(stream, address, value, flags | wait_value_plain))
WEFT_HIP(hipStreamWriteValue32, (CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags),
         !hip_given().has_wait_values ? CUDA_ERROR_NOT_SUPPORTED
                                      : cuStreamWriteValue32_v2(stream, address, value, flags))
WEFT_HIP(hipStreamWriteValue64, (CUstream stream, CUdeviceptr address, unsigned long value, unsigned flags),
         !hip_given().has_wait_values ? CUDA_ERROR_NOT_SUPPORTED
                                      : cuStreamWriteValue64_v2(stream, address, value, flags))

/// A stream on some of a device's compute units: bit n of the mask is unit n.
WEFT_VIRTUAL_API CUresult hipExtStreamCreateWithCUMask(CUstream* stream, std::uint32_t words,
                                                       const std::uint32_t* mask) {
  return entered([&]() -> CUresult {
    if (stream == nullptr || mask == nullptr || words == 0) return CUDA_ERROR_INVALID_VALUE;
    if (std::all_of(mask, mask + words, [](std::uint32_t word) { return word == 0; })) return CUDA_ERROR_INVALID_VALUE;
    auto units = std::make_shared<std::vector<unsigned>>();
    for (unsigned n = 0; n < 32 * words; ++n) {
      if ((mask[n / 32] >> n % 32 & 1U) != 0) units->push_back(n);
    }
    const context_ref home = the().contexts.find(context_of(current_device()));
    *stream = the().add(std::make_shared<virtual_cuda::stream>(home, false, 0, std::move(units)));
    return CUDA_SUCCESS;
  });
}

WEFT_HIP(hipModuleLoadDataEx, (CUmodule * module, const void* image, unsigned count, int*, void**),
         count != 0 ? CUDA_ERROR_NOT_SUPPORTED : cuModuleLoadDataEx(module, image, 0, nullptr, nullptr))

}  // namespace weft::virtual_hip
