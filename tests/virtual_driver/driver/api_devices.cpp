// SPDX-License-Identifier: Apache-2.0
// The driver itself and its devices: looking at them touches none.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/module.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

namespace weft::virtual_cuda {
namespace {

struct error_text {
  CUresult code;
  const char* name;
  const char* text;
};
constexpr error_text error_texts[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {226, "CUDA_ERROR_CONTAINED", "contained error"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"},
    {718, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const error_text* text_of(CUresult code) {
  for (const error_text& one : error_texts) {
    if (one.code == code) return &one;
  }
  return nullptr;
}

const topology_device& description(CUdevice ordinal) {
  return given()
      .machine.devices[static_cast<std::size_t>(the().devices[static_cast<std::size_t>(ordinal)].physical_index)];
}

std::string pci_address(CUdevice ordinal) {
  if (!description(ordinal).pci_address.empty()) return description(ordinal).pci_address;
  char text[16];
  std::snprintf(text, sizeof text, "0000:%02x:00.0",
                static_cast<unsigned>(1 + the().devices[static_cast<std::size_t>(ordinal)].physical_index));
  return text;
}

const link_path* path_between(CUdevice from, CUdevice to) {
  const topology& m = given().machine;
  const int n = m.device_count();
  const auto at = static_cast<std::size_t>(the().devices[static_cast<std::size_t>(from)].physical_index * n +
                                           the().devices[static_cast<std::size_t>(to)].physical_index);
  return at < m.peer_paths.size() ? &m.peer_paths[at] : nullptr;
}

// 0 is best: by the rate of the path, or all alike where it is not known.
int rank_of(CUdevice from, CUdevice to) {
  const link_path* const path = path_between(from, to);
  if (path == nullptr || path->bytes_per_second <= 0) return 0;
  std::map<double, int, std::greater<>> rates;
  for (const link_path& p : given().machine.peer_paths) rates[p.bytes_per_second] = 0;
  return static_cast<int>(std::distance(rates.begin(), rates.find(path->bytes_per_second)));
}

bool native_atomics(CUdevice from, CUdevice to) {
  if (!given().native_atomics || !the().can_access(from, to)) return false;
  const link_path* const path = path_between(from, to);
  return path == nullptr || path->links.empty() || path->native_atomics;
}

int attribute_of(int attribute, CUdevice ordinal, bool& known) {
  const settings& s = given();
  known = true;
  switch (attribute) {
    case max_threads_per_block:
    case max_block_dim_x:
    case max_block_dim_y:
      return 1024;
    case max_block_dim_z:
      return 64;
    case max_grid_dim_x: {
      const std::lock_guard lock{shapes().mutex};
      return static_cast<int>(shapes().blocks_along_x);
    }
    case max_grid_dim_y:
    case max_grid_dim_z:
      return 65535;
    case max_shared_memory_per_block:
      return 48 << 10;
    case max_shared_memory_per_block_optin:
      return 227 << 10;
    case warp_size:
      return 32;
    case clock_rate:
      return 1000000;
    case multiprocessor_count:
      return s.multiprocessors;
    case memory_clock_rate:
      return 1000000;
    case global_memory_bus_width:
      return 4096;
    case l2_cache_size:
      return 1 << 20;
    case max_threads_per_multiprocessor:
      return 2048;
    case async_engine_count:
      return 3;
    case compute_capability_major:
      return s.capability_major;
    case compute_capability_minor:
      return s.capability_minor;
    case pci_domain_id:
      return static_cast<int>(std::strtol(pci_address(ordinal).c_str(), nullptr, 16));
    case pci_bus_id:
      return static_cast<int>(std::strtol(pci_address(ordinal).c_str() + 5, nullptr, 16));
    case pci_device_id:
      return static_cast<int>(std::strtol(pci_address(ordinal).c_str() + 8, nullptr, 16));
    case managed_memory:
    case concurrent_managed_access:
      return s.managed ? 1 : 0;
    case can_use_64_bit_stream_mem_ops:
    case can_use_stream_wait_value_nor:
      return s.memory_operations ? 1 : 0;
    case can_map_host_memory:
    case concurrent_kernels:
    case unified_addressing:
    case stream_priorities_supported:
    case host_native_atomic_supported:
    case can_use_host_pointer_for_registered_mem:
    case cooperative_launch:
    case host_register_supported:
    case virtual_memory_management_supported:
    case handle_type_posix_file_descriptor_supported:
    case memory_pools_supported:
    case ipc_event_supported:
      return 1;
    case mempool_supported_handle_types:
      return handle_posix_fd;
    case numa_id:
    case host_numa_id:
      return description(ordinal).numa_node.value_or(0);
    case kernel_exec_timeout:
    case integrated:
    case compute_mode:
    case ecc_enabled:
    case pageable_memory_access:
    case can_flush_remote_writes:
    case handle_type_fabric_supported:
      return 0;
    case multicast_supported:
      return s.multicast ? 1 : 0;
    case gpu_direct_rdma_supported:
      return 1;
    case gpu_direct_rdma_writes_ordering:
      return s.gdr == "unordered" ? 0 : bus_writes_ordered_for_owner;
    default:
      known = attribute > 0 && attribute < 150;
      return 0;
  }
}

template <class F>
CUresult device_call(const char* name, bool arguments, CUdevice ordinal, F&& f) noexcept {
  return plain_call(name, arguments,
                    [&]() -> CUresult { return the().valid(ordinal) ? f() : CUDA_ERROR_INVALID_DEVICE; });
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuInit(unsigned flags) {
  return plain_call("cuInit", flags == 0, [] { return open_machine(); });
}

WEFT_VIRTUAL_API CUresult cuDriverGetVersion(int* version) {
  if (given().stub_code != 0) return given().stub_code;
  if (const CUresult code = begin_call("cuDriverGetVersion"); code != 0) return code;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = given().driver_version;
  return CUDA_SUCCESS;
}

WEFT_VIRTUAL_API CUresult cuGetErrorName(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const error_text* const one = text_of(error);
  *text = one == nullptr ? nullptr : one->name;
  return one == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

WEFT_VIRTUAL_API CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const error_text* const one = text_of(error);
  *text = one == nullptr ? nullptr : one->text;
  return one == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

WEFT_VIRTUAL_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return device_call("cuDeviceGet", device != nullptr, ordinal, [&] {
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceGetCount(int* count) {
  return plain_call("cuDeviceGetCount", count != nullptr, [&] {
    *count = the().count();
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  return device_call("cuDeviceGetName", name != nullptr && size > 0, device, [&] {
    std::snprintf(name, static_cast<std::size_t>(size), "Virtual %s", description(device).name.c_str());
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return device_call("cuDeviceGetUuid", uuid != nullptr, device, [&] {
    const device_uuid id = uuid_of(the().devices[static_cast<std::size_t>(device)].physical_index);
    std::memcpy(uuid->bytes, id.bytes, sizeof id.bytes);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  return device_call("cuDeviceGetAttribute", value != nullptr, device, [&] {
    bool known = false;
    *value = attribute_of(attribute, device, known);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  return device_call("cuDeviceTotalMem", bytes != nullptr, device, [&] {
    *bytes = the().devices[static_cast<std::size_t>(device)].memory;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceGetPCIBusId(char* address, int size, CUdevice device) {
  return device_call("cuDeviceGetPCIBusId", address != nullptr && size > 0, device, [&] {
    std::snprintf(address, static_cast<std::size_t>(size), "%s", pci_address(device).c_str());
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return device_call("cuDeviceCanAccessPeer", can != nullptr, device, [&] {
    if (!the().valid(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = the().can_access(device, peer) ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceGetP2PAttribute(int* value, int attribute, CUdevice from, CUdevice to) {
  const bool known = attribute >= p2p_performance_rank && attribute <= p2p_only_partial_native_atomic_supported;
  return device_call("cuDeviceGetP2PAttribute", value != nullptr && known, from, [&] {
    if (!the().valid(to) || from == to) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
      case p2p_performance_rank:
        *value = rank_of(from, to);
        break;
      case p2p_native_atomic_supported:
        *value = native_atomics(from, to) ? 1 : 0;
        break;
      case p2p_only_partial_native_atomic_supported:
        *value = 0;
        break;
      default:
        *value = the().can_access(from, to) ? 1 : 0;
    }
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDeviceGetP2PAtomicCapabilities(unsigned* capabilities, const int* operations,
                                                           unsigned count, CUdevice from, CUdevice to) {
  return device_call("cuDeviceGetP2PAtomicCapabilities", capabilities != nullptr && operations != nullptr && count != 0,
                     from, [&] {
                       if (!the().valid(to) || from == to) return CUDA_ERROR_INVALID_DEVICE;
                       for (unsigned n = 0; n < count; ++n) {
                         if (operations[n] < 0 || operations[n] > 12) return CUDA_ERROR_INVALID_VALUE;
                         const bool integer = operations[n] < 10;
                         // signed, unsigned, reduction, of 32 and of 64 bits
                         const unsigned forms = integer ? 0b11111U : 0b11101U;
                         capabilities[n] = native_atomics(from, to) ? forms : 0U;
                       }
                       return CUDA_SUCCESS;
                     });
}

WEFT_VIRTUAL_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return device_call("cuDeviceGetDefaultMemPool", pool != nullptr, device, [&] {
    *pool = the().devices[static_cast<std::size_t>(device)].default_pool;
    return CUDA_SUCCESS;
  });
}

}  // namespace weft::virtual_cuda
