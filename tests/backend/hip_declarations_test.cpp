// SPDX-License-Identifier: Apache-2.0
// What the HIP backend declares of HIP, against HIP's own header: signatures, structures and numbers. Left out of the
// build where there is none of 6.2 or newer; scripts/hip-headers brings that of 7.1. The header comes first: it renames
// functions by macros.
// clang-format off
#define __HIP_PLATFORM_AMD__ 1            // NOLINT(bugprone-reserved-identifier): HIP's own switches
#define __HIP_DISABLE_CPP_FUNCTIONS__ 1  // NOLINT(bugprone-reserved-identifier): its functions without templates beside them
#include <hip/hip_runtime_api.h>

#include "backends/gpu/hip/hip_attributes.hpp"
#include "backends/gpu/hip/hip_functions.hpp"
// clang-format on

#include "weft/compat/hip_peer.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

namespace hip_declarations_test {

namespace ours = weft::gpu;
namespace amd = weft::gpu::amd;
namespace compat = weft::compat::hip;

// ---- signatures: as many parameters, each of the same size; pointers and integers of 64 bits are passed alike ------

template <class A, class B>
constexpr bool same_shape = sizeof(A) == sizeof(B) && std::is_class_v<A> == std::is_class_v<B> &&
                            std::is_floating_point_v<A> == std::is_floating_point_v<B>;

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

/// A name that the header gives to a template, too: the function of C is that which the cast finds.
using from_pool =
    decltype(static_cast<hipError_t (*)(void**, std::size_t, hipMemPool_t, hipStream_t)>(&::hipMallocFromPoolAsync));
#define WEFT_TYPE_hipMallocFromPoolAsync ~, from_pool
#define WEFT_SECOND(first, second, ...) second
#define WEFT_TYPE_OF(special, theirs) WEFT_SECOND(special, decltype(&::theirs), ~)

#define WEFT_CHECK_ALIKE(cuda, theirs) \
  static_assert(fits<decltype(ours::driver_functions::cuda), WEFT_TYPE_OF(WEFT_TYPE_##theirs, theirs)>, #theirs);
WEFT_GPU_HIP_ALIKE(WEFT_CHECK_ALIKE, WEFT_CHECK_ALIKE)
#undef WEFT_CHECK_ALIKE

#define WEFT_CHECK_ADAPTED(name, parameters) \
  static_assert(fits<decltype(amd::hip_functions::name), decltype(&::name)>, #name);
WEFT_GPU_HIP_FUNCTIONS(WEFT_CHECK_ADAPTED, WEFT_CHECK_ADAPTED)
#undef WEFT_CHECK_ADAPTED

// ---- structures -----------------------------------------------------------------------------------------------------

#define WEFT_CHECK_SIZE(type, theirs) static_assert(sizeof(ours::type) == sizeof(::theirs), #theirs)
#define WEFT_CHECK_FIELD(type, field, theirs, their_field) \
  static_assert(offsetof(ours::type, field) == offsetof(::theirs, their_field), #theirs "." #their_field)

WEFT_CHECK_SIZE(CUuuid, hipUUID);
WEFT_CHECK_SIZE(CUmemLocation, hipMemLocation);
WEFT_CHECK_FIELD(CUmemLocation, id, hipMemLocation, id);
WEFT_CHECK_SIZE(CUmemAllocationProp, hipMemAllocationProp);
WEFT_CHECK_FIELD(CUmemAllocationProp, location, hipMemAllocationProp, location);
WEFT_CHECK_FIELD(CUmemAllocationProp, flags, hipMemAllocationProp, allocFlags);
WEFT_CHECK_SIZE(CUmemAccessDesc, hipMemAccessDesc);
WEFT_CHECK_FIELD(CUmemAccessDesc, flags, hipMemAccessDesc, flags);
WEFT_CHECK_SIZE(CUmemPoolProps, hipMemPoolProps);
WEFT_CHECK_FIELD(CUmemPoolProps, handle_types, hipMemPoolProps, handleTypes);
WEFT_CHECK_FIELD(CUmemPoolProps, location, hipMemPoolProps, location);
WEFT_CHECK_FIELD(CUmemPoolProps, max_size, hipMemPoolProps, maxSize);
WEFT_CHECK_SIZE(CUmemPoolPtrExportData, hipMemPoolPtrExportData);
WEFT_CHECK_SIZE(CUipcMemHandle, hipIpcMemHandle_t);
WEFT_CHECK_SIZE(CUipcEventHandle, hipIpcEventHandle_t);
WEFT_CHECK_SIZE(CUmemcpyAttributes, hipMemcpyAttributes);
WEFT_CHECK_FIELD(CUmemcpyAttributes, destination_hint, hipMemcpyAttributes, dstLocHint);
WEFT_CHECK_FIELD(CUmemcpyAttributes, flags, hipMemcpyAttributes, flags);
WEFT_CHECK_SIZE(amd::HIP_MEMCPY3D, HIP_MEMCPY3D);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, src_type, HIP_MEMCPY3D, srcMemoryType);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, src_host, HIP_MEMCPY3D, srcHost);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, src_device, HIP_MEMCPY3D, srcDevice);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, src_pitch, HIP_MEMCPY3D, srcPitch);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, src_height, HIP_MEMCPY3D, srcHeight);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, dst_x, HIP_MEMCPY3D, dstXInBytes);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, dst_type, HIP_MEMCPY3D, dstMemoryType);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, dst_device, HIP_MEMCPY3D, dstDevice);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, dst_pitch, HIP_MEMCPY3D, dstPitch);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, width, HIP_MEMCPY3D, WidthInBytes);
WEFT_CHECK_FIELD(amd::HIP_MEMCPY3D, depth, HIP_MEMCPY3D, Depth);
static_assert(sizeof(::hipDeviceProp_t) == amd::hip_properties_size);
static_assert(offsetof(::hipDeviceProp_t, gcnArchName) == amd::hip_architecture_offset);
static_assert(sizeof(::hipDeviceProp_t::gcnArchName) == amd::hip_architecture_size);

// ---- numbers --------------------------------------------------------------------------------------------------------

#define WEFT_CHECK(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs)

WEFT_CHECK(ours::CUDA_SUCCESS, hipSuccess);
WEFT_CHECK(ours::CUDA_ERROR_INVALID_VALUE, hipErrorInvalidValue);
WEFT_CHECK(ours::CUDA_ERROR_OUT_OF_MEMORY, hipErrorOutOfMemory);
WEFT_CHECK(ours::CUDA_ERROR_NOT_INITIALIZED, hipErrorNotInitialized);
WEFT_CHECK(ours::CUDA_ERROR_DEINITIALIZED, hipErrorDeinitialized);
WEFT_CHECK(ours::CUDA_ERROR_NO_DEVICE, hipErrorNoDevice);
WEFT_CHECK(ours::CUDA_ERROR_INVALID_DEVICE, hipErrorInvalidDevice);
WEFT_CHECK(ours::CUDA_ERROR_INVALID_IMAGE, hipErrorInvalidImage);
WEFT_CHECK(ours::CUDA_ERROR_INVALID_CONTEXT, hipErrorInvalidContext);
WEFT_CHECK(ours::CUDA_ERROR_MAP_FAILED, hipErrorMapFailed);
WEFT_CHECK(ours::CUDA_ERROR_ALREADY_MAPPED, hipErrorAlreadyMapped);
WEFT_CHECK(ours::CUDA_ERROR_NO_BINARY_FOR_GPU, hipErrorNoBinaryForGpu);
WEFT_CHECK(ours::CUDA_ERROR_ECC_UNCORRECTABLE, hipErrorECCNotCorrectable);
WEFT_CHECK(ours::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, hipErrorPeerAccessUnsupported);
WEFT_CHECK(ours::CUDA_ERROR_OPERATING_SYSTEM, hipErrorOperatingSystem);
WEFT_CHECK(ours::CUDA_ERROR_INVALID_HANDLE, hipErrorInvalidHandle);
WEFT_CHECK(ours::CUDA_ERROR_ILLEGAL_STATE, hipErrorIllegalState);
WEFT_CHECK(ours::CUDA_ERROR_NOT_FOUND, hipErrorNotFound);
WEFT_CHECK(ours::CUDA_ERROR_NOT_READY, hipErrorNotReady);
WEFT_CHECK(ours::CUDA_ERROR_ILLEGAL_ADDRESS, hipErrorIllegalAddress);
WEFT_CHECK(ours::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, hipErrorLaunchOutOfResources);
WEFT_CHECK(ours::CUDA_ERROR_LAUNCH_TIMEOUT, hipErrorLaunchTimeOut);
WEFT_CHECK(ours::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, hipErrorPeerAccessAlreadyEnabled);
WEFT_CHECK(ours::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, hipErrorPeerAccessNotEnabled);
WEFT_CHECK(ours::CUDA_ERROR_CONTEXT_IS_DESTROYED, hipErrorContextIsDestroyed);
WEFT_CHECK(ours::CUDA_ERROR_ASSERT, hipErrorAssert);
WEFT_CHECK(ours::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, hipErrorHostMemoryAlreadyRegistered);
WEFT_CHECK(ours::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, hipErrorHostMemoryNotRegistered);
WEFT_CHECK(ours::CUDA_ERROR_LAUNCH_FAILED, hipErrorLaunchFailure);
WEFT_CHECK(ours::CUDA_ERROR_NOT_SUPPORTED, hipErrorNotSupported);
WEFT_CHECK(ours::CUDA_ERROR_UNKNOWN, hipErrorUnknown);
WEFT_CHECK(ours::first_capture_error, hipErrorStreamCaptureUnsupported);
WEFT_CHECK(ours::last_capture_error, hipErrorStreamCaptureWrongThread);

WEFT_CHECK(ours::p2p_performance_rank - 1, hipDevP2PAttrPerformanceRank);
WEFT_CHECK(ours::p2p_access_supported - 1, hipDevP2PAttrAccessSupported);
WEFT_CHECK(ours::p2p_native_atomic_supported - 1, hipDevP2PAttrNativeAtomicSupported);
WEFT_CHECK(ours::p2p_array_access_supported - 1, hipDevP2PAttrHipArrayAccessSupported);
WEFT_CHECK(ours::pointer_context, HIP_POINTER_ATTRIBUTE_CONTEXT);
WEFT_CHECK(ours::pointer_memory_type, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE);
WEFT_CHECK(ours::pointer_is_managed, HIP_POINTER_ATTRIBUTE_IS_MANAGED);
WEFT_CHECK(ours::pointer_device_ordinal, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
WEFT_CHECK(ours::pointer_range_start, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR);
WEFT_CHECK(ours::pointer_range_size, HIP_POINTER_ATTRIBUTE_RANGE_SIZE);
WEFT_CHECK(ours::memory_type_host, hipMemoryTypeHost);
WEFT_CHECK(ours::memory_type_device, hipMemoryTypeDevice);
WEFT_CHECK(amd::hip_memory_host, hipMemoryTypeHost);
WEFT_CHECK(amd::hip_memory_device, hipMemoryTypeDevice);
WEFT_CHECK(amd::hip_memory_managed, hipMemoryTypeManaged);
WEFT_CHECK(amd::hip_copy_default, hipMemcpyDefault);
WEFT_CHECK(amd::hip_host_coherent, hipHostMallocCoherent);
WEFT_CHECK(amd::hip_malloc_finegrained, hipDeviceMallocFinegrained);
WEFT_CHECK(amd::hip_malloc_uncached, hipDeviceMallocUncached);
WEFT_CHECK(ours::host_alloc_portable, hipHostMallocPortable);
WEFT_CHECK(ours::host_alloc_device_map, hipHostMallocMapped);
WEFT_CHECK(ours::host_register_portable, hipHostRegisterPortable);
WEFT_CHECK(ours::host_register_device_map, hipHostRegisterMapped);
WEFT_CHECK(ours::attach_global, hipMemAttachGlobal);
WEFT_CHECK(ours::stream_non_blocking, hipStreamNonBlocking);
WEFT_CHECK(ours::event_disable_timing, hipEventDisableTiming);
WEFT_CHECK(ours::event_interprocess, hipEventInterprocess);
WEFT_CHECK(ours::ipc_lazy_enable_peer_access, hipIpcMemLazyEnablePeerAccess);
WEFT_CHECK(ours::wait_value_geq, hipStreamWaitValueGte);
WEFT_CHECK(ours::wait_value_eq, hipStreamWaitValueEq);
WEFT_CHECK(ours::wait_value_and, hipStreamWaitValueAnd);
WEFT_CHECK(ours::wait_value_nor, hipStreamWaitValueNor);
WEFT_CHECK(ours::location_device, hipMemLocationTypeDevice);
WEFT_CHECK(ours::location_host, hipMemLocationTypeHost);
WEFT_CHECK(ours::allocation_pinned, hipMemAllocationTypePinned);
WEFT_CHECK(ours::handle_posix_fd, hipMemHandleTypePosixFileDescriptor);
WEFT_CHECK(ours::access_read, hipMemAccessFlagsProtRead);
WEFT_CHECK(ours::access_read_write, hipMemAccessFlagsProtReadWrite);
WEFT_CHECK(ours::granularity_minimum, hipMemAllocationGranularityMinimum);
WEFT_CHECK(ours::granularity_recommended, hipMemAllocationGranularityRecommended);
WEFT_CHECK(ours::advise_set_read_mostly, hipMemAdviseSetReadMostly);
WEFT_CHECK(ours::advise_unset_accessed_by, hipMemAdviseUnsetAccessedBy);
WEFT_CHECK(ours::pool_release_threshold, hipMemPoolAttrReleaseThreshold);
WEFT_CHECK(ours::pool_reserved_current, hipMemPoolAttrReservedMemCurrent);
WEFT_CHECK(ours::pool_used_high, hipMemPoolAttrUsedMemHigh);
WEFT_CHECK(ours::source_order_stream, hipMemcpySrcAccessOrderStream);
WEFT_CHECK(ours::capture_relaxed, hipStreamCaptureModeRelaxed);
WEFT_CHECK(ours::function_max_threads_per_block, HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
WEFT_CHECK(ours::function_max_dynamic_shared_bytes, hipFuncAttributeMaxDynamicSharedMemorySize);

WEFT_CHECK(amd::hip_ecc_enabled, hipDeviceAttributeEccEnabled);
WEFT_CHECK(amd::hip_async_engine_count, hipDeviceAttributeAsyncEngineCount);
WEFT_CHECK(amd::hip_can_map_host_memory, hipDeviceAttributeCanMapHostMemory);
WEFT_CHECK(amd::hip_can_use_host_pointer_for_registered_mem, hipDeviceAttributeCanUseHostPointerForRegisteredMem);
WEFT_CHECK(amd::hip_clock_rate, hipDeviceAttributeClockRate);
WEFT_CHECK(amd::hip_compute_mode, hipDeviceAttributeComputeMode);
WEFT_CHECK(amd::hip_concurrent_kernels, hipDeviceAttributeConcurrentKernels);
WEFT_CHECK(amd::hip_concurrent_managed_access, hipDeviceAttributeConcurrentManagedAccess);
WEFT_CHECK(amd::hip_cooperative_launch, hipDeviceAttributeCooperativeLaunch);
WEFT_CHECK(amd::hip_host_native_atomic_supported, hipDeviceAttributeHostNativeAtomicSupported);
WEFT_CHECK(amd::hip_integrated, hipDeviceAttributeIntegrated);
WEFT_CHECK(amd::hip_kernel_exec_timeout, hipDeviceAttributeKernelExecTimeout);
WEFT_CHECK(amd::hip_l2_cache_size, hipDeviceAttributeL2CacheSize);
WEFT_CHECK(amd::hip_compute_capability_major, hipDeviceAttributeComputeCapabilityMajor);
WEFT_CHECK(amd::hip_managed_memory, hipDeviceAttributeManagedMemory);
WEFT_CHECK(amd::hip_max_block_dim_x, hipDeviceAttributeMaxBlockDimX);
WEFT_CHECK(amd::hip_max_block_dim_y, hipDeviceAttributeMaxBlockDimY);
WEFT_CHECK(amd::hip_max_block_dim_z, hipDeviceAttributeMaxBlockDimZ);
WEFT_CHECK(amd::hip_max_grid_dim_x, hipDeviceAttributeMaxGridDimX);
WEFT_CHECK(amd::hip_max_grid_dim_y, hipDeviceAttributeMaxGridDimY);
WEFT_CHECK(amd::hip_max_grid_dim_z, hipDeviceAttributeMaxGridDimZ);
WEFT_CHECK(amd::hip_max_threads_per_block, hipDeviceAttributeMaxThreadsPerBlock);
WEFT_CHECK(amd::hip_max_threads_per_multiprocessor, hipDeviceAttributeMaxThreadsPerMultiProcessor);
WEFT_CHECK(amd::hip_memory_bus_width, hipDeviceAttributeMemoryBusWidth);
WEFT_CHECK(amd::hip_memory_clock_rate, hipDeviceAttributeMemoryClockRate);
WEFT_CHECK(amd::hip_compute_capability_minor, hipDeviceAttributeComputeCapabilityMinor);
WEFT_CHECK(amd::hip_multiprocessor_count, hipDeviceAttributeMultiprocessorCount);
WEFT_CHECK(amd::hip_pageable_memory_access, hipDeviceAttributePageableMemoryAccess);
WEFT_CHECK(amd::hip_pci_bus_id, hipDeviceAttributePciBusId);
WEFT_CHECK(amd::hip_pci_device_id, hipDeviceAttributePciDeviceId);
WEFT_CHECK(amd::hip_pci_domain_id, hipDeviceAttributePciDomainId);
WEFT_CHECK(amd::hip_max_shared_memory_per_block, hipDeviceAttributeMaxSharedMemoryPerBlock);
WEFT_CHECK(amd::hip_shared_memory_per_block_optin, hipDeviceAttributeSharedMemPerBlockOptin);
WEFT_CHECK(amd::hip_stream_priorities_supported, hipDeviceAttributeStreamPrioritiesSupported);
WEFT_CHECK(amd::hip_warp_size, hipDeviceAttributeWarpSize);
WEFT_CHECK(amd::hip_memory_pools_supported, hipDeviceAttributeMemoryPoolsSupported);
WEFT_CHECK(amd::hip_virtual_memory_management_supported, hipDeviceAttributeVirtualMemoryManagementSupported);
WEFT_CHECK(amd::hip_host_register_supported, hipDeviceAttributeHostRegisterSupported);
WEFT_CHECK(amd::hip_memory_pool_supported_handle_types, hipDeviceAttributeMemoryPoolSupportedHandleTypes);
WEFT_CHECK(amd::hip_can_use_stream_wait_value, hipDeviceAttributeCanUseStreamWaitValue);

// specification 002's functions by their names
WEFT_CHECK(compat::hipErrorInvalidValue, hipErrorInvalidValue);
WEFT_CHECK(compat::hipErrorOutOfMemory, hipErrorOutOfMemory);
WEFT_CHECK(compat::hipErrorDeinitialized, hipErrorDeinitialized);
WEFT_CHECK(compat::hipErrorNoDevice, hipErrorNoDevice);
WEFT_CHECK(compat::hipErrorInvalidDevice, hipErrorInvalidDevice);
WEFT_CHECK(compat::hipErrorNotFound, hipErrorNotFound);
WEFT_CHECK(compat::hipErrorIllegalAddress, hipErrorIllegalAddress);
WEFT_CHECK(compat::hipErrorPeerAccessAlreadyEnabled, hipErrorPeerAccessAlreadyEnabled);
WEFT_CHECK(compat::hipErrorPeerAccessNotEnabled, hipErrorPeerAccessNotEnabled);
WEFT_CHECK(compat::hipErrorContextIsDestroyed, hipErrorContextIsDestroyed);
WEFT_CHECK(compat::hipErrorLaunchFailure, hipErrorLaunchFailure);
WEFT_CHECK(compat::hipErrorUnknown, hipErrorUnknown);
static_assert(sizeof(compat::hipStream_t) == sizeof(::hipStream_t));

TEST(hip_declarations, are_those_of_hips_header) {
  SUCCEED() << "they were compared by the compiler, with HIP " << HIP_VERSION_MAJOR << "." << HIP_VERSION_MINOR;
}

}  // namespace hip_declarations_test
