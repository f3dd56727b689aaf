// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the CUDA driver, which HIP's is put into, declared by ourselves so that this backend builds
// without a toolkit.
// tests/backend/cuda_declarations_test.cpp holds every size, offset, number and signature against cuda.h where one is.
// Enumerations of the driver are plain integers here: a newer driver may answer what this header does not list.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::gpu {

// NOLINTBEGIN(readability-identifier-naming): the names of the driver

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct context_object*;
using CUgreenCtx = struct green_context_object*;
using CUstream = struct stream_object*;
using CUevent = struct event_object*;
using CUmodule = struct module_object*;
using CUlibrary = struct library_object*;
using CUkernel = struct kernel_object*;
using CUfunction = struct function_object*;
using CUmemoryPool = struct pool_object*;
using CUarray = struct array_object*;
using CUdevResourceDesc = struct resource_object*;
using CUmemGenericAllocationHandle = unsigned long long;
using CUhostFn = void (*)(void* data);
using CUoccupancyB2DSize = std::size_t (*)(int block_size);

// what a call answers; only what is told apart here
inline constexpr CUresult CUDA_SUCCESS = 0;
inline constexpr CUresult CUDA_ERROR_INVALID_VALUE = 1;
inline constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
inline constexpr CUresult CUDA_ERROR_NOT_INITIALIZED = 3;
inline constexpr CUresult CUDA_ERROR_DEINITIALIZED = 4;
inline constexpr CUresult CUDA_ERROR_STUB_LIBRARY = 34;
inline constexpr CUresult CUDA_ERROR_DEVICE_UNAVAILABLE = 46;
inline constexpr CUresult CUDA_ERROR_NO_DEVICE = 100;
inline constexpr CUresult CUDA_ERROR_INVALID_DEVICE = 101;
inline constexpr CUresult CUDA_ERROR_INVALID_IMAGE = 200;
inline constexpr CUresult CUDA_ERROR_INVALID_CONTEXT = 201;
inline constexpr CUresult CUDA_ERROR_MAP_FAILED = 205;
inline constexpr CUresult CUDA_ERROR_ALREADY_MAPPED = 208;
inline constexpr CUresult CUDA_ERROR_NO_BINARY_FOR_GPU = 209;
inline constexpr CUresult CUDA_ERROR_ECC_UNCORRECTABLE = 214;
inline constexpr CUresult CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217;
inline constexpr CUresult CUDA_ERROR_INVALID_PTX = 218;
inline constexpr CUresult CUDA_ERROR_NVLINK_UNCORRECTABLE = 220;
inline constexpr CUresult CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222;
inline constexpr CUresult CUDA_ERROR_CONTAINED = 226;
inline constexpr CUresult CUDA_ERROR_OPERATING_SYSTEM = 304;
inline constexpr CUresult CUDA_ERROR_INVALID_HANDLE = 400;
inline constexpr CUresult CUDA_ERROR_ILLEGAL_STATE = 401;
inline constexpr CUresult CUDA_ERROR_NOT_FOUND = 500;
inline constexpr CUresult CUDA_ERROR_NOT_READY = 600;
inline constexpr CUresult CUDA_ERROR_ILLEGAL_ADDRESS = 700;
inline constexpr CUresult CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701;
inline constexpr CUresult CUDA_ERROR_LAUNCH_TIMEOUT = 702;
inline constexpr CUresult CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704;
inline constexpr CUresult CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705;
inline constexpr CUresult CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708;
inline constexpr CUresult CUDA_ERROR_CONTEXT_IS_DESTROYED = 709;
inline constexpr CUresult CUDA_ERROR_ASSERT = 710;
inline constexpr CUresult CUDA_ERROR_TOO_MANY_PEERS = 711;
inline constexpr CUresult CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712;
inline constexpr CUresult CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713;
inline constexpr CUresult CUDA_ERROR_HARDWARE_STACK_ERROR = 714;
inline constexpr CUresult CUDA_ERROR_ILLEGAL_INSTRUCTION = 715;
inline constexpr CUresult CUDA_ERROR_MISALIGNED_ADDRESS = 716;
inline constexpr CUresult CUDA_ERROR_INVALID_ADDRESS_SPACE = 717;
inline constexpr CUresult CUDA_ERROR_INVALID_PC = 718;
inline constexpr CUresult CUDA_ERROR_LAUNCH_FAILED = 719;
inline constexpr CUresult CUDA_ERROR_TENSOR_MEMORY_LEAK = 721;
inline constexpr CUresult CUDA_ERROR_MPS_CLIENT_TERMINATED = 810;
inline constexpr CUresult first_capture_error = 900, last_capture_error = 908;
inline constexpr int capture_relaxed = 2;  // what a thread may do while another captures
inline constexpr CUresult CUDA_ERROR_NOT_PERMITTED = 800;
inline constexpr CUresult CUDA_ERROR_NOT_SUPPORTED = 801;
inline constexpr CUresult CUDA_ERROR_SYSTEM_NOT_READY = 802;
inline constexpr CUresult CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803;
inline constexpr CUresult CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804;
inline constexpr CUresult CUDA_ERROR_UNKNOWN = 999;

/// What a device is asked for by cuDeviceGetAttribute.
enum device_attribute : int {
  max_threads_per_block = 1,
  max_block_dim_x = 2,
  max_block_dim_y = 3,
  max_block_dim_z = 4,
  max_grid_dim_x = 5,
  max_grid_dim_y = 6,
  max_grid_dim_z = 7,
  max_shared_memory_per_block = 8,
  warp_size = 10,
  clock_rate = 13,
  multiprocessor_count = 16,
  kernel_exec_timeout = 17,
  integrated = 18,
  can_map_host_memory = 19,
  compute_mode = 20,
  concurrent_kernels = 31,
  ecc_enabled = 32,
  pci_bus_id = 33,
  pci_device_id = 34,
  memory_clock_rate = 36,
  global_memory_bus_width = 37,
  l2_cache_size = 38,
  max_threads_per_multiprocessor = 39,
  async_engine_count = 40,
  unified_addressing = 41,
  pci_domain_id = 50,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  stream_priorities_supported = 78,
  managed_memory = 83,
  host_native_atomic_supported = 86,
  pageable_memory_access = 88,
  concurrent_managed_access = 89,
  can_use_host_pointer_for_registered_mem = 91,
  cooperative_launch = 95,
  max_shared_memory_per_block_optin = 97,
  can_flush_remote_writes = 98,
  host_register_supported = 99,
  virtual_memory_management_supported = 102,
  handle_type_posix_file_descriptor_supported = 103,
  memory_pools_supported = 115,
  gpu_direct_rdma_supported = 116,
  gpu_direct_rdma_writes_ordering = 118,
  mempool_supported_handle_types = 119,
  can_use_64_bit_stream_mem_ops = 122,
  can_use_stream_wait_value_nor = 123,
  ipc_event_supported = 125,
  handle_type_fabric_supported = 128,
  numa_id = 131,
  multicast_supported = 132,
  host_numa_id = 134,
};

/// Of gpu_direct_rdma_writes_ordering: what other devices write needs no flush before this one reads it.
inline constexpr int bus_writes_ordered_for_owner = 100;

/// What a pair is asked for by cuDeviceGetP2PAttribute. A lower performance rank is better.
enum p2p_attribute : int {
  p2p_performance_rank = 1,
  p2p_access_supported = 2,
  p2p_native_atomic_supported = 3,
  p2p_array_access_supported = 4,
  p2p_only_partial_native_atomic_supported = 5,
};

enum pointer_attribute : int {
  pointer_context = 1,
  pointer_memory_type = 2,
  pointer_device_pointer = 3,
  pointer_host_pointer = 4,
  pointer_sync_memops = 6,
  pointer_buffer_id = 7,
  pointer_is_managed = 8,
  pointer_device_ordinal = 9,
  pointer_is_legacy_ipc_capable = 10,
  pointer_range_start = 11,
  pointer_range_size = 12,
  pointer_mapped = 13,
  pointer_allowed_handle_types = 14,
  pointer_pool = 17,
};

enum memory_type : unsigned {
  memory_type_host = 1,
  memory_type_device = 2,
  memory_type_array = 3,
  memory_type_unified = 4
};

enum function_attribute : int {
  function_max_threads_per_block = 0,
  function_shared_bytes = 1,
  function_local_bytes = 3,
  function_registers = 4,
  function_ptx_version = 5,
  function_binary_version = 6,
  function_max_dynamic_shared_bytes = 8,
};

// flags
inline constexpr unsigned host_alloc_portable = 1, host_alloc_device_map = 2;
inline constexpr unsigned host_register_portable = 1, host_register_device_map = 2;
inline constexpr unsigned attach_global = 1;
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr std::uintptr_t stream_legacy = 1, stream_per_thread = 2;  // as handles
inline constexpr unsigned event_blocking_sync = 1, event_disable_timing = 2, event_interprocess = 4;
inline constexpr unsigned ipc_lazy_enable_peer_access = 1;
inline constexpr unsigned context_schedule_auto = 0, context_schedule_spin = 1, context_schedule_yield = 2,
                          context_schedule_blocking = 4;
inline constexpr unsigned wait_value_geq = 0, wait_value_eq = 1, wait_value_and = 2, wait_value_nor = 3,
                          wait_value_flush = 1U << 30;
inline constexpr unsigned write_value_no_memory_barrier = 1;
inline constexpr int location_invalid = 0, location_device = 1, location_host = 2, location_host_numa = 3,
                     location_host_numa_current = 4;
inline constexpr int allocation_pinned = 1;
inline constexpr int handle_none = 0, handle_posix_fd = 1, handle_fabric = 8;
inline constexpr int access_none = 0, access_read = 1, access_read_write = 3;
inline constexpr int granularity_minimum = 0, granularity_recommended = 1;
inline constexpr int advise_set_read_mostly = 1, advise_unset_read_mostly = 2, advise_set_preferred_location = 3,
                     advise_unset_preferred_location = 4, advise_set_accessed_by = 5, advise_unset_accessed_by = 6;
inline constexpr int pool_release_threshold = 4, pool_reserved_current = 5, pool_reserved_high = 6,
                     pool_used_current = 7, pool_used_high = 8;
inline constexpr int source_order_stream = 1, source_order_during_call = 2, source_order_any = 3;
inline constexpr int resource_sm = 1;
inline constexpr unsigned green_context_default_stream = 1;
inline constexpr int atomic_integer_add = 0;  // … in the order of weft::atomic_operation up to float_max = 12
inline constexpr int jit_info_log_buffer = 3, jit_info_log_size = 4, jit_error_log_buffer = 5, jit_error_log_size = 6;
// cuGetProcAddress
inline constexpr unsigned long long proc_address_default = 0;
inline constexpr int symbol_found = 0, symbol_not_found = 1, symbol_version_not_sufficient = 2;

struct CUuuid {
  char bytes[16];
};
struct CUmemLocation {
  int type = location_device;
  int id = 0;
};
struct CUmemAllocationProp {
  int type = allocation_pinned;
  int requested_handle_types = handle_none;
  CUmemLocation location;
  void* win32_meta_data = nullptr;
  struct {
    unsigned char compression_type = 0;
    unsigned char gpu_direct_rdma_capable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4]{};
  } flags;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  int flags = access_none;
};
struct CUmemPoolProps {
  int allocation_type = allocation_pinned;
  int handle_types = handle_none;
  CUmemLocation location;
  void* win32_security_attributes = nullptr;
  std::size_t max_size = 0;
  unsigned short usage = 0;
  unsigned char reserved[54]{};
};
struct CUmemPoolPtrExportData {
  unsigned char reserved[64];
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUipcEventHandle {
  char reserved[64];
};
struct CUmulticastObjectProp {
  unsigned devices = 0;
  std::size_t size = 0;
  unsigned long long handle_types = 0;
  unsigned long long flags = 0;
};
struct CUmemcpyAttributes {
  int source_access_order = source_order_stream;
  CUmemLocation source_hint{location_invalid, 0};
  CUmemLocation destination_hint{location_invalid, 0};
  unsigned flags = 0;
};
struct CUDA_MEMCPY3D_PEER {
  std::size_t src_x = 0, src_y = 0, src_z = 0, src_lod = 0;
  unsigned src_type = 0;
  const void* src_host = nullptr;
  CUdeviceptr src_device = 0;
  CUarray src_array = nullptr;
  CUcontext src_context = nullptr;
  std::size_t src_pitch = 0, src_height = 0;
  std::size_t dst_x = 0, dst_y = 0, dst_z = 0, dst_lod = 0;
  unsigned dst_type = 0;
  void* dst_host = nullptr;
  CUdeviceptr dst_device = 0;
  CUarray dst_array = nullptr;
  CUcontext dst_context = nullptr;
  std::size_t dst_pitch = 0, dst_height = 0;
  std::size_t width = 0, height = 0, depth = 0;
};
struct CUDA_MEMCPY3D {
  std::size_t src_x = 0, src_y = 0, src_z = 0, src_lod = 0;
  unsigned src_type = 0;
  const void* src_host = nullptr;
  CUdeviceptr src_device = 0;
  CUarray src_array = nullptr;
  void* reserved0 = nullptr;
  std::size_t src_pitch = 0, src_height = 0;
  std::size_t dst_x = 0, dst_y = 0, dst_z = 0, dst_lod = 0;
  unsigned dst_type = 0;
  void* dst_host = nullptr;
  CUdeviceptr dst_device = 0;
  CUarray dst_array = nullptr;
  void* reserved1 = nullptr;
  std::size_t dst_pitch = 0, dst_height = 0;
  std::size_t width = 0, height = 0, depth = 0;
};
struct CUdevSmResource {
  unsigned sm_count, min_sm_partition_size, sm_coscheduled_alignment;
};
/// Multiprocessors of a device that can be given to a green context.
struct CUdevResource {
  int type = 0;
  unsigned char internal_padding[92]{};
  union {
    unsigned char oversize[48]{};
    CUdevSmResource sm;
  };
};

// NOLINTEND(readability-identifier-naming)

}  // namespace weft::gpu
