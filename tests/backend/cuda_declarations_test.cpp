// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend declares of the driver, against the toolkit's own header: sizes, offsets, numbers, signatures.
// Left out of the build where there is no toolkit. The header comes first: it renames functions by macros.
// clang-format off
#include <cuda.h>
#include <cudaTypedefs.h>
#include <nvrtc.h>

#include "backends/gpu/driver/driver_functions.hpp"
#include "backends/gpu/cuda/nvrtc_functions.hpp"
// clang-format on

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

namespace cuda_declarations_test {

namespace ours = weft::gpu;

// ---- signatures: as many parameters, each of the same size and sort -------------------------------------------------

template <class A, class B>
constexpr bool same_shape =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> && std::is_class_v<A> == std::is_class_v<B>;

template <class...>
struct list {};
template <class A, class B>
constexpr bool same_list = false;
template <>
constexpr bool same_list<list<>, list<>> = true;
template <class A, class... As, class B, class... Bs>
constexpr bool same_list<list<A, As...>, list<B, Bs...>> = same_shape<A, B> && same_list<list<As...>, list<Bs...>>;

template <class F, class G>
constexpr bool fits = false;
template <class R, class... A, class S, class... B>
constexpr bool fits<R (*)(A...), S (*)(B...)> = sizeof(R) == sizeof(S) && same_list<list<A...>, list<B...>>;

#define WEFT_CHECK_SIGNATURE(name, version, parameters) \
  static_assert(fits<decltype(ours::driver_functions::name), PFN_##name##_v##version>, #name);
WEFT_GPU_DRIVER_FUNCTIONS(WEFT_CHECK_SIGNATURE, WEFT_CHECK_SIGNATURE)
#undef WEFT_CHECK_SIGNATURE
static_assert(fits<decltype(ours::driver_functions::cuGetProcAddress), PFN_cuGetProcAddress_v12000>);

#define WEFT_CHECK_COMPILER(name, parameters) \
  static_assert(fits<decltype(ours::nvrtc_functions::name), decltype(&::name)>, #name);
WEFT_GPU_NVRTC_FUNCTIONS(WEFT_CHECK_COMPILER)
#undef WEFT_CHECK_COMPILER
static_assert(static_cast<int>(ours::NVRTC_ERROR_OUT_OF_MEMORY) == static_cast<int>(::NVRTC_ERROR_OUT_OF_MEMORY));
static_assert(static_cast<int>(ours::NVRTC_ERROR_COMPILATION) == static_cast<int>(::NVRTC_ERROR_COMPILATION));

// ---- structures -----------------------------------------------------------------------------------------------------

#define WEFT_CHECK_SIZE(type) \
  static_assert(sizeof(ours::type) == sizeof(::type) && alignof(ours::type) == alignof(::type))
#define WEFT_CHECK_FIELD(type, field, theirs)                             \
  static_assert(offsetof(ours::type, field) == offsetof(::type, theirs)); \
  static_assert(sizeof(ours::type::field) == sizeof(::type::theirs))

WEFT_CHECK_SIZE(CUuuid);
WEFT_CHECK_SIZE(CUmemPoolPtrExportData);
WEFT_CHECK_SIZE(CUipcMemHandle);
WEFT_CHECK_SIZE(CUipcEventHandle);
WEFT_CHECK_SIZE(CUdeviceptr);
WEFT_CHECK_SIZE(CUdevice);
WEFT_CHECK_SIZE(CUmemGenericAllocationHandle);

WEFT_CHECK_SIZE(CUmemLocation);
WEFT_CHECK_FIELD(CUmemLocation, type, type);
WEFT_CHECK_FIELD(CUmemLocation, id, id);

WEFT_CHECK_SIZE(CUmemAllocationProp);
WEFT_CHECK_FIELD(CUmemAllocationProp, type, type);
WEFT_CHECK_FIELD(CUmemAllocationProp, requested_handle_types, requestedHandleTypes);
WEFT_CHECK_FIELD(CUmemAllocationProp, location, location);
WEFT_CHECK_FIELD(CUmemAllocationProp, win32_meta_data, win32HandleMetaData);
WEFT_CHECK_FIELD(CUmemAllocationProp, flags, allocFlags);
WEFT_CHECK_FIELD(CUmemAllocationProp, flags.compression_type, allocFlags.compressionType);
WEFT_CHECK_FIELD(CUmemAllocationProp, flags.gpu_direct_rdma_capable, allocFlags.gpuDirectRDMACapable);
WEFT_CHECK_FIELD(CUmemAllocationProp, flags.usage, allocFlags.usage);

WEFT_CHECK_SIZE(CUmemAccessDesc);
WEFT_CHECK_FIELD(CUmemAccessDesc, location, location);
WEFT_CHECK_FIELD(CUmemAccessDesc, flags, flags);

WEFT_CHECK_SIZE(CUmemPoolProps);
WEFT_CHECK_FIELD(CUmemPoolProps, allocation_type, allocType);
WEFT_CHECK_FIELD(CUmemPoolProps, handle_types, handleTypes);
WEFT_CHECK_FIELD(CUmemPoolProps, location, location);
WEFT_CHECK_FIELD(CUmemPoolProps, win32_security_attributes, win32SecurityAttributes);
WEFT_CHECK_FIELD(CUmemPoolProps, max_size, maxSize);
WEFT_CHECK_FIELD(CUmemPoolProps, usage, usage);
WEFT_CHECK_FIELD(CUmemPoolProps, reserved, reserved);

WEFT_CHECK_SIZE(CUmulticastObjectProp);
WEFT_CHECK_FIELD(CUmulticastObjectProp, devices, numDevices);
WEFT_CHECK_FIELD(CUmulticastObjectProp, size, size);
WEFT_CHECK_FIELD(CUmulticastObjectProp, handle_types, handleTypes);
WEFT_CHECK_FIELD(CUmulticastObjectProp, flags, flags);

WEFT_CHECK_SIZE(CUmemcpyAttributes);
WEFT_CHECK_FIELD(CUmemcpyAttributes, source_access_order, srcAccessOrder);
WEFT_CHECK_FIELD(CUmemcpyAttributes, source_hint, srcLocHint);
WEFT_CHECK_FIELD(CUmemcpyAttributes, destination_hint, dstLocHint);
WEFT_CHECK_FIELD(CUmemcpyAttributes, flags, flags);

#define WEFT_CHECK_BOX(type)                       \
  WEFT_CHECK_SIZE(type);                           \
  WEFT_CHECK_FIELD(type, src_x, srcXInBytes);      \
  WEFT_CHECK_FIELD(type, src_y, srcY);             \
  WEFT_CHECK_FIELD(type, src_z, srcZ);             \
  WEFT_CHECK_FIELD(type, src_type, srcMemoryType); \
  WEFT_CHECK_FIELD(type, src_host, srcHost);       \
  WEFT_CHECK_FIELD(type, src_device, srcDevice);   \
  WEFT_CHECK_FIELD(type, src_array, srcArray);     \
  WEFT_CHECK_FIELD(type, src_pitch, srcPitch);     \
  WEFT_CHECK_FIELD(type, src_height, srcHeight);   \
  WEFT_CHECK_FIELD(type, dst_x, dstXInBytes);      \
  WEFT_CHECK_FIELD(type, dst_y, dstY);             \
  WEFT_CHECK_FIELD(type, dst_z, dstZ);             \
  WEFT_CHECK_FIELD(type, dst_type, dstMemoryType); \
  WEFT_CHECK_FIELD(type, dst_host, dstHost);       \
  WEFT_CHECK_FIELD(type, dst_device, dstDevice);   \
  WEFT_CHECK_FIELD(type, dst_array, dstArray);     \
  WEFT_CHECK_FIELD(type, dst_pitch, dstPitch);     \
  WEFT_CHECK_FIELD(type, dst_height, dstHeight);   \
  WEFT_CHECK_FIELD(type, width, WidthInBytes);     \
  WEFT_CHECK_FIELD(type, height, Height);          \
  WEFT_CHECK_FIELD(type, depth, Depth)
WEFT_CHECK_BOX(CUDA_MEMCPY3D);
WEFT_CHECK_BOX(CUDA_MEMCPY3D_PEER);
WEFT_CHECK_FIELD(CUDA_MEMCPY3D_PEER, src_context, srcContext);
WEFT_CHECK_FIELD(CUDA_MEMCPY3D_PEER, dst_context, dstContext);

WEFT_CHECK_SIZE(CUdevResource);
WEFT_CHECK_FIELD(CUdevResource, type, type);
WEFT_CHECK_FIELD(CUdevResource, sm, sm);
WEFT_CHECK_FIELD(CUdevResource, sm.sm_count, sm.smCount);

// ---- numbers --------------------------------------------------------------------------------------------------------

#define WEFT_CHECK_CODE(name) static_assert(ours::name == static_cast<int>(::name))
#define WEFT_CHECK_NUMBER(mine, theirs) \
  static_assert(static_cast<long long>(ours::mine) == static_cast<long long>(theirs))

WEFT_CHECK_CODE(CUDA_SUCCESS);
WEFT_CHECK_CODE(CUDA_ERROR_INVALID_VALUE);
WEFT_CHECK_CODE(CUDA_ERROR_OUT_OF_MEMORY);
WEFT_CHECK_CODE(CUDA_ERROR_NOT_INITIALIZED);
WEFT_CHECK_CODE(CUDA_ERROR_DEINITIALIZED);
WEFT_CHECK_CODE(CUDA_ERROR_STUB_LIBRARY);
WEFT_CHECK_CODE(CUDA_ERROR_DEVICE_UNAVAILABLE);
WEFT_CHECK_CODE(CUDA_ERROR_NO_DEVICE);
WEFT_CHECK_CODE(CUDA_ERROR_INVALID_DEVICE);
WEFT_CHECK_CODE(CUDA_ERROR_INVALID_IMAGE);
WEFT_CHECK_CODE(CUDA_ERROR_INVALID_CONTEXT);
WEFT_CHECK_CODE(CUDA_ERROR_MAP_FAILED);
WEFT_CHECK_CODE(CUDA_ERROR_ALREADY_MAPPED);
WEFT_CHECK_CODE(CUDA_ERROR_NO_BINARY_FOR_GPU);
WEFT_CHECK_CODE(CUDA_ERROR_ECC_UNCORRECTABLE);
WEFT_CHECK_CODE(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
WEFT_CHECK_CODE(CUDA_ERROR_INVALID_PTX);
WEFT_CHECK_CODE(CUDA_ERROR_NVLINK_UNCORRECTABLE);
WEFT_CHECK_CODE(CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
WEFT_CHECK_CODE(CUDA_ERROR_CONTAINED);
WEFT_CHECK_CODE(CUDA_ERROR_OPERATING_SYSTEM);
WEFT_CHECK_CODE(CUDA_ERROR_INVALID_HANDLE);
WEFT_CHECK_CODE(CUDA_ERROR_ILLEGAL_STATE);
WEFT_CHECK_CODE(CUDA_ERROR_NOT_FOUND);
WEFT_CHECK_CODE(CUDA_ERROR_NOT_READY);
WEFT_CHECK_CODE(CUDA_ERROR_ILLEGAL_ADDRESS);
WEFT_CHECK_CODE(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
WEFT_CHECK_CODE(CUDA_ERROR_LAUNCH_TIMEOUT);
WEFT_CHECK_CODE(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
WEFT_CHECK_CODE(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
WEFT_CHECK_CODE(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
WEFT_CHECK_CODE(CUDA_ERROR_CONTEXT_IS_DESTROYED);
WEFT_CHECK_CODE(CUDA_ERROR_ASSERT);
WEFT_CHECK_CODE(CUDA_ERROR_TOO_MANY_PEERS);
WEFT_CHECK_CODE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
WEFT_CHECK_CODE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
WEFT_CHECK_CODE(CUDA_ERROR_HARDWARE_STACK_ERROR);
WEFT_CHECK_CODE(CUDA_ERROR_ILLEGAL_INSTRUCTION);
WEFT_CHECK_CODE(CUDA_ERROR_MISALIGNED_ADDRESS);
WEFT_CHECK_CODE(CUDA_ERROR_INVALID_ADDRESS_SPACE);
WEFT_CHECK_CODE(CUDA_ERROR_INVALID_PC);
WEFT_CHECK_CODE(CUDA_ERROR_LAUNCH_FAILED);
WEFT_CHECK_CODE(CUDA_ERROR_NOT_PERMITTED);
WEFT_CHECK_CODE(CUDA_ERROR_NOT_SUPPORTED);
WEFT_CHECK_CODE(CUDA_ERROR_SYSTEM_NOT_READY);
WEFT_CHECK_CODE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
WEFT_CHECK_CODE(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
WEFT_CHECK_CODE(CUDA_ERROR_UNKNOWN);

#define WEFT_CHECK_ATTRIBUTE(mine, theirs) WEFT_CHECK_NUMBER(mine, CU_DEVICE_ATTRIBUTE_##theirs)
WEFT_CHECK_ATTRIBUTE(max_threads_per_block, MAX_THREADS_PER_BLOCK);
WEFT_CHECK_ATTRIBUTE(max_block_dim_x, MAX_BLOCK_DIM_X);
WEFT_CHECK_ATTRIBUTE(max_block_dim_y, MAX_BLOCK_DIM_Y);
WEFT_CHECK_ATTRIBUTE(max_block_dim_z, MAX_BLOCK_DIM_Z);
WEFT_CHECK_ATTRIBUTE(max_grid_dim_x, MAX_GRID_DIM_X);
WEFT_CHECK_ATTRIBUTE(max_grid_dim_y, MAX_GRID_DIM_Y);
WEFT_CHECK_ATTRIBUTE(max_grid_dim_z, MAX_GRID_DIM_Z);
WEFT_CHECK_ATTRIBUTE(max_shared_memory_per_block, MAX_SHARED_MEMORY_PER_BLOCK);
WEFT_CHECK_ATTRIBUTE(warp_size, WARP_SIZE);
WEFT_CHECK_ATTRIBUTE(clock_rate, CLOCK_RATE);
WEFT_CHECK_ATTRIBUTE(multiprocessor_count, MULTIPROCESSOR_COUNT);
WEFT_CHECK_ATTRIBUTE(kernel_exec_timeout, KERNEL_EXEC_TIMEOUT);
WEFT_CHECK_ATTRIBUTE(integrated, INTEGRATED);
WEFT_CHECK_ATTRIBUTE(can_map_host_memory, CAN_MAP_HOST_MEMORY);
WEFT_CHECK_ATTRIBUTE(compute_mode, COMPUTE_MODE);
WEFT_CHECK_ATTRIBUTE(concurrent_kernels, CONCURRENT_KERNELS);
WEFT_CHECK_ATTRIBUTE(ecc_enabled, ECC_ENABLED);
WEFT_CHECK_ATTRIBUTE(pci_bus_id, PCI_BUS_ID);
WEFT_CHECK_ATTRIBUTE(pci_device_id, PCI_DEVICE_ID);
WEFT_CHECK_ATTRIBUTE(memory_clock_rate, MEMORY_CLOCK_RATE);
WEFT_CHECK_ATTRIBUTE(global_memory_bus_width, GLOBAL_MEMORY_BUS_WIDTH);
WEFT_CHECK_ATTRIBUTE(l2_cache_size, L2_CACHE_SIZE);
WEFT_CHECK_ATTRIBUTE(max_threads_per_multiprocessor, MAX_THREADS_PER_MULTIPROCESSOR);
WEFT_CHECK_ATTRIBUTE(async_engine_count, ASYNC_ENGINE_COUNT);
WEFT_CHECK_ATTRIBUTE(unified_addressing, UNIFIED_ADDRESSING);
WEFT_CHECK_ATTRIBUTE(pci_domain_id, PCI_DOMAIN_ID);
WEFT_CHECK_ATTRIBUTE(compute_capability_major, COMPUTE_CAPABILITY_MAJOR);
WEFT_CHECK_ATTRIBUTE(compute_capability_minor, COMPUTE_CAPABILITY_MINOR);
WEFT_CHECK_ATTRIBUTE(stream_priorities_supported, STREAM_PRIORITIES_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(managed_memory, MANAGED_MEMORY);
WEFT_CHECK_ATTRIBUTE(host_native_atomic_supported, HOST_NATIVE_ATOMIC_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(pageable_memory_access, PAGEABLE_MEMORY_ACCESS);
WEFT_CHECK_ATTRIBUTE(concurrent_managed_access, CONCURRENT_MANAGED_ACCESS);
WEFT_CHECK_ATTRIBUTE(can_use_host_pointer_for_registered_mem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
WEFT_CHECK_ATTRIBUTE(cooperative_launch, COOPERATIVE_LAUNCH);
WEFT_CHECK_ATTRIBUTE(max_shared_memory_per_block_optin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
WEFT_CHECK_ATTRIBUTE(can_flush_remote_writes, CAN_FLUSH_REMOTE_WRITES);
WEFT_CHECK_ATTRIBUTE(gpu_direct_rdma_supported, GPU_DIRECT_RDMA_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(gpu_direct_rdma_writes_ordering, GPU_DIRECT_RDMA_WRITES_ORDERING);
WEFT_CHECK_NUMBER(bus_writes_ordered_for_owner, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
WEFT_CHECK_ATTRIBUTE(host_register_supported, HOST_REGISTER_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(virtual_memory_management_supported, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(handle_type_posix_file_descriptor_supported, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(memory_pools_supported, MEMORY_POOLS_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(mempool_supported_handle_types, MEMPOOL_SUPPORTED_HANDLE_TYPES);
WEFT_CHECK_ATTRIBUTE(can_use_64_bit_stream_mem_ops, CAN_USE_64_BIT_STREAM_MEM_OPS);
WEFT_CHECK_ATTRIBUTE(can_use_stream_wait_value_nor, CAN_USE_STREAM_WAIT_VALUE_NOR);
WEFT_CHECK_ATTRIBUTE(ipc_event_supported, IPC_EVENT_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(handle_type_fabric_supported, HANDLE_TYPE_FABRIC_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(numa_id, NUMA_ID);
WEFT_CHECK_ATTRIBUTE(multicast_supported, MULTICAST_SUPPORTED);
WEFT_CHECK_ATTRIBUTE(host_numa_id, HOST_NUMA_ID);

WEFT_CHECK_NUMBER(p2p_performance_rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK);
WEFT_CHECK_NUMBER(p2p_access_supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
WEFT_CHECK_NUMBER(p2p_native_atomic_supported, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
WEFT_CHECK_NUMBER(p2p_array_access_supported, CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED);
WEFT_CHECK_NUMBER(pointer_context, CU_POINTER_ATTRIBUTE_CONTEXT);
WEFT_CHECK_NUMBER(pointer_memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
WEFT_CHECK_NUMBER(pointer_device_pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
WEFT_CHECK_NUMBER(pointer_host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER);
WEFT_CHECK_NUMBER(pointer_sync_memops, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
WEFT_CHECK_NUMBER(pointer_buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID);
WEFT_CHECK_NUMBER(pointer_is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED);
WEFT_CHECK_NUMBER(pointer_device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
WEFT_CHECK_NUMBER(pointer_is_legacy_ipc_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
WEFT_CHECK_NUMBER(pointer_range_start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
WEFT_CHECK_NUMBER(pointer_range_size, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
WEFT_CHECK_NUMBER(pointer_mapped, CU_POINTER_ATTRIBUTE_MAPPED);
WEFT_CHECK_NUMBER(pointer_allowed_handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
WEFT_CHECK_NUMBER(pointer_pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
WEFT_CHECK_NUMBER(memory_type_host, CU_MEMORYTYPE_HOST);
WEFT_CHECK_NUMBER(memory_type_device, CU_MEMORYTYPE_DEVICE);
WEFT_CHECK_NUMBER(memory_type_array, CU_MEMORYTYPE_ARRAY);
WEFT_CHECK_NUMBER(memory_type_unified, CU_MEMORYTYPE_UNIFIED);
WEFT_CHECK_NUMBER(function_max_threads_per_block, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
WEFT_CHECK_NUMBER(function_shared_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
WEFT_CHECK_NUMBER(function_local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
WEFT_CHECK_NUMBER(function_registers, CU_FUNC_ATTRIBUTE_NUM_REGS);
WEFT_CHECK_NUMBER(function_ptx_version, CU_FUNC_ATTRIBUTE_PTX_VERSION);
WEFT_CHECK_NUMBER(function_binary_version, CU_FUNC_ATTRIBUTE_BINARY_VERSION);
WEFT_CHECK_NUMBER(function_max_dynamic_shared_bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
WEFT_CHECK_NUMBER(host_alloc_portable, CU_MEMHOSTALLOC_PORTABLE);
WEFT_CHECK_NUMBER(host_alloc_device_map, CU_MEMHOSTALLOC_DEVICEMAP);
WEFT_CHECK_NUMBER(host_register_portable, CU_MEMHOSTREGISTER_PORTABLE);
WEFT_CHECK_NUMBER(host_register_device_map, CU_MEMHOSTREGISTER_DEVICEMAP);
WEFT_CHECK_NUMBER(attach_global, CU_MEM_ATTACH_GLOBAL);
WEFT_CHECK_NUMBER(stream_non_blocking, CU_STREAM_NON_BLOCKING);
WEFT_CHECK_NUMBER(event_blocking_sync, CU_EVENT_BLOCKING_SYNC);
WEFT_CHECK_NUMBER(event_disable_timing, CU_EVENT_DISABLE_TIMING);
WEFT_CHECK_NUMBER(event_interprocess, CU_EVENT_INTERPROCESS);
WEFT_CHECK_NUMBER(ipc_lazy_enable_peer_access, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
WEFT_CHECK_NUMBER(context_schedule_blocking, CU_CTX_SCHED_BLOCKING_SYNC);
WEFT_CHECK_NUMBER(wait_value_geq, CU_STREAM_WAIT_VALUE_GEQ);
WEFT_CHECK_NUMBER(wait_value_eq, CU_STREAM_WAIT_VALUE_EQ);
WEFT_CHECK_NUMBER(wait_value_and, CU_STREAM_WAIT_VALUE_AND);
WEFT_CHECK_NUMBER(wait_value_nor, CU_STREAM_WAIT_VALUE_NOR);
WEFT_CHECK_NUMBER(wait_value_flush, CU_STREAM_WAIT_VALUE_FLUSH);
WEFT_CHECK_NUMBER(write_value_no_memory_barrier, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
WEFT_CHECK_NUMBER(location_invalid, CU_MEM_LOCATION_TYPE_INVALID);
WEFT_CHECK_NUMBER(location_device, CU_MEM_LOCATION_TYPE_DEVICE);
WEFT_CHECK_NUMBER(location_host, CU_MEM_LOCATION_TYPE_HOST);
WEFT_CHECK_NUMBER(location_host_numa, CU_MEM_LOCATION_TYPE_HOST_NUMA);
WEFT_CHECK_NUMBER(location_host_numa_current, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
WEFT_CHECK_NUMBER(allocation_pinned, CU_MEM_ALLOCATION_TYPE_PINNED);
WEFT_CHECK_NUMBER(handle_none, CU_MEM_HANDLE_TYPE_NONE);
WEFT_CHECK_NUMBER(handle_posix_fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
WEFT_CHECK_NUMBER(handle_fabric, CU_MEM_HANDLE_TYPE_FABRIC);
WEFT_CHECK_NUMBER(access_none, CU_MEM_ACCESS_FLAGS_PROT_NONE);
WEFT_CHECK_NUMBER(access_read, CU_MEM_ACCESS_FLAGS_PROT_READ);
WEFT_CHECK_NUMBER(access_read_write, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
WEFT_CHECK_NUMBER(granularity_minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
WEFT_CHECK_NUMBER(granularity_recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
WEFT_CHECK_NUMBER(advise_set_read_mostly, CU_MEM_ADVISE_SET_READ_MOSTLY);
WEFT_CHECK_NUMBER(advise_unset_read_mostly, CU_MEM_ADVISE_UNSET_READ_MOSTLY);
WEFT_CHECK_NUMBER(advise_set_preferred_location, CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
WEFT_CHECK_NUMBER(advise_unset_preferred_location, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
WEFT_CHECK_NUMBER(advise_set_accessed_by, CU_MEM_ADVISE_SET_ACCESSED_BY);
WEFT_CHECK_NUMBER(advise_unset_accessed_by, CU_MEM_ADVISE_UNSET_ACCESSED_BY);
WEFT_CHECK_NUMBER(pool_release_threshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
WEFT_CHECK_NUMBER(pool_reserved_current, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
WEFT_CHECK_NUMBER(pool_reserved_high, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
WEFT_CHECK_NUMBER(pool_used_current, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
WEFT_CHECK_NUMBER(pool_used_high, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
WEFT_CHECK_NUMBER(resource_sm, CU_DEV_RESOURCE_TYPE_SM);
WEFT_CHECK_NUMBER(green_context_default_stream, CU_GREEN_CTX_DEFAULT_STREAM);
WEFT_CHECK_NUMBER(jit_info_log_buffer, CU_JIT_INFO_LOG_BUFFER);
WEFT_CHECK_NUMBER(jit_info_log_size, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
WEFT_CHECK_NUMBER(jit_error_log_buffer, CU_JIT_ERROR_LOG_BUFFER);
WEFT_CHECK_NUMBER(jit_error_log_size, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
WEFT_CHECK_NUMBER(proc_address_default, CU_GET_PROC_ADDRESS_DEFAULT);
WEFT_CHECK_NUMBER(symbol_found, CU_GET_PROC_ADDRESS_SUCCESS);
WEFT_CHECK_NUMBER(symbol_not_found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
WEFT_CHECK_NUMBER(symbol_version_not_sufficient, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
WEFT_CHECK_NUMBER(source_order_stream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
WEFT_CHECK_NUMBER(source_order_during_call, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
WEFT_CHECK_NUMBER(source_order_any, CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
#if CUDA_VERSION >= 13000
WEFT_CHECK_NUMBER(p2p_only_partial_native_atomic_supported,
                  CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED);
WEFT_CHECK_NUMBER(atomic_integer_add, CU_ATOMIC_OPERATION_INTEGER_ADD);
static_assert(static_cast<int>(CU_ATOMIC_OPERATION_FLOAT_MAX) == 12, "in the order of weft::atomic_operation");
#endif

TEST(cuda_declarations, are_those_of_the_toolkits_header) {
  SUCCEED() << "checked when this was compiled, against CUDA " << CUDA_VERSION / 1000 << "."
            << CUDA_VERSION % 1000 / 10;
}

}  // namespace cuda_declarations_test
