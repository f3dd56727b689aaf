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
    {5, "CUDA_ERROR_PROFILER_DISABLED", "the profiler is off in this process"},
    {6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "the profiler was not initialised"},
    {7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "the profiler runs already"},
    {8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "the profiler does not run"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "the call needs a newer driver"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "the device has no licence for this"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "the context is current already"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {206, "CUDA_ERROR_UNMAP_FAILED", "a mapping could not be ended"},
    {207, "CUDA_ERROR_ARRAY_IS_MAPPED", "the array is mapped"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {210, "CUDA_ERROR_ALREADY_ACQUIRED", "the resource is acquired already"},
    {211, "CUDA_ERROR_NOT_MAPPED", "the resource is not mapped"},
    {212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "the resource is not mapped as an array"},
    {213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "the resource is not mapped as a pointer"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "the device has no such limit"},
    {216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "another thread uses the context"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "the graphics context is not valid"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "the compiler of PTX was not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "compiling PTX is turned off"},
    {224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "the device has no such affinity"},
    {225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "kernels of this device cannot synchronise it"},
    {226, "CUDA_ERROR_CONTAINED", "contained error"},
    {300, "CUDA_ERROR_INVALID_SOURCE", "the kernel's source is not valid"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "the file was not found"},
    {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "a shared object lacks a symbol"},
    {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "a shared object did not initialise"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {402, "CUDA_ERROR_LOSSY_QUERY", "the answer would leave out what was asked"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "the launch uses another texturing mode"},
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
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "a cooperative launch has more blocks than run at once"},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "a kernel left tensor memory allocated"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "there is no connection to the MPS server"},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE", "the MPS server did not answer rightly"},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "the MPS server takes no clients now"},
    {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the MPS server has as many clients as it takes"},
    {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "the MPS server has as many connections as it takes"},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS server ended this client"},
    {811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "kernels cannot launch kernels here"},
    {812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "another version of kernels that launch kernels"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not allowed while a stream is captured"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier call spoilt the capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "it would join two captures"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the stream is not the one whose capture was begun"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "a captured stream was not joined to the first"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "a capture would depend on what is outside"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "a capture would depend on the default stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "the event was recorded in a capture"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "another thread began the capture"},
    {909, "CUDA_ERROR_TIMEOUT", "the wait timed out"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph cannot be updated so"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", "a device outside CUDA failed"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "the cluster of blocks has a wrong size"},
    {913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "the function is not loaded"},
    {914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "the resource has another type"},
    {915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "the resources cannot be configured so"},
    {916, "CUDA_ERROR_KEY_ROTATION", "a key was being replaced"},
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
      return static_cast<int>(limits().shared_per_block);
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
      return limits().threads;
    case 81:  // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
      return static_cast<int>(limits().shared);
    case 106:  // CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR
      return limits().blocks;
    case 111:  // CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK
      return static_cast<int>(limits().shared_of_driver);
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
