// SPDX-License-Identifier: Apache-2.0
// The functions of HIP that fill the driver's table, declared by ourselves. tests/backend/hip_declarations_test.cpp
// holds them against HIP's own header where one is.
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"

// clang-format off
// The same parameters in the same order, and the same numbers in them, under another name. Addresses are pointers here
// and integers there, which every calling convention of a 64-bit system passes alike.
#define WEFT_GPU_HIP_ALIKE(REQUIRED, OPTIONAL)                                                                        \
  REQUIRED(cuInit, hipInit)                                                                                           \
  REQUIRED(cuGetErrorName, hipDrvGetErrorName)                                                                        \
  REQUIRED(cuGetErrorString, hipDrvGetErrorString)                                                                    \
  REQUIRED(cuDeviceGet, hipDeviceGet)                                                                                 \
  REQUIRED(cuDeviceGetCount, hipGetDeviceCount)                                                                       \
  REQUIRED(cuDeviceGetName, hipDeviceGetName)                                                                         \
  REQUIRED(cuDeviceGetUuid, hipDeviceGetUuid)                                                                         \
  REQUIRED(cuDeviceTotalMem, hipDeviceTotalMem)                                                                       \
  REQUIRED(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)                                                                 \
  REQUIRED(cuDeviceCanAccessPeer, hipDeviceCanAccessPeer)                                                             \
  OPTIONAL(cuDeviceGetDefaultMemPool, hipDeviceGetDefaultMemPool)                                                     \
  OPTIONAL(cuCtxSynchronize, hipDeviceSynchronize)                                                                    \
  REQUIRED(cuCtxGetStreamPriorityRange, hipDeviceGetStreamPriorityRange)                                              \
  REQUIRED(cuMemAlloc, hipMalloc)                                                                                     \
  REQUIRED(cuMemFree, hipFree)                                                                                        \
  REQUIRED(cuMemGetInfo, hipMemGetInfo)                                                                               \
  REQUIRED(cuMemFreeHost, hipHostFree)                                                                                \
  REQUIRED(cuMemHostRegister, hipHostRegister)                                                                        \
  REQUIRED(cuMemHostUnregister, hipHostUnregister)                                                                    \
  REQUIRED(cuMemHostGetDevicePointer, hipHostGetDevicePointer)                                                        \
  REQUIRED(cuMemGetAddressRange, hipMemGetAddressRange)                                                               \
  REQUIRED(cuMemAllocManaged, hipMallocManaged)                                                                       \
  OPTIONAL(cuPointerSetAttribute, hipPointerSetAttribute)                                                             \
  REQUIRED(cuMemcpyHtoDAsync, hipMemcpyHtoDAsync)                                                                     \
  REQUIRED(cuMemcpyDtoHAsync, hipMemcpyDtoHAsync)                                                                     \
  REQUIRED(cuMemcpyDtoDAsync, hipMemcpyDtoDAsync)                                                                     \
  REQUIRED(cuMemsetD8Async, hipMemsetD8Async)                                                                         \
  REQUIRED(cuMemsetD16Async, hipMemsetD16Async)                                                                       \
  REQUIRED(cuMemsetD32Async, hipMemsetD32Async)                                                                       \
  OPTIONAL(cuMemCreate, hipMemCreate)                                                                                 \
  OPTIONAL(cuMemRelease, hipMemRelease)                                                                               \
  OPTIONAL(cuMemMap, hipMemMap)                                                                                       \
  OPTIONAL(cuMemUnmap, hipMemUnmap)                                                                                   \
  OPTIONAL(cuMemSetAccess, hipMemSetAccess)                                                                           \
  OPTIONAL(cuMemGetAccess, hipMemGetAccess)                                                                           \
  OPTIONAL(cuMemAddressReserve, hipMemAddressReserve)                                                                 \
  OPTIONAL(cuMemAddressFree, hipMemAddressFree)                                                                       \
  OPTIONAL(cuMemGetAllocationGranularity, hipMemGetAllocationGranularity)                                             \
  OPTIONAL(cuMemExportToShareableHandle, hipMemExportToShareableHandle)                                               \
  OPTIONAL(cuMemRetainAllocationHandle, hipMemRetainAllocationHandle)                                                 \
  OPTIONAL(cuMemGetAllocationPropertiesFromHandle, hipMemGetAllocationPropertiesFromHandle)                           \
  OPTIONAL(cuMemPoolCreate, hipMemPoolCreate)                                                                         \
  OPTIONAL(cuMemPoolDestroy, hipMemPoolDestroy)                                                                       \
  OPTIONAL(cuMemPoolSetAttribute, hipMemPoolSetAttribute)                                                             \
  OPTIONAL(cuMemPoolGetAttribute, hipMemPoolGetAttribute)                                                             \
  OPTIONAL(cuMemPoolSetAccess, hipMemPoolSetAccess)                                                                   \
  OPTIONAL(cuMemPoolGetAccess, hipMemPoolGetAccess)                                                                   \
  OPTIONAL(cuMemPoolTrimTo, hipMemPoolTrimTo)                                                                         \
  OPTIONAL(cuMemPoolExportPointer, hipMemPoolExportPointer)                                                           \
  OPTIONAL(cuMemPoolImportPointer, hipMemPoolImportPointer)                                                           \
  OPTIONAL(cuMemAllocFromPoolAsync, hipMallocFromPoolAsync)                                                           \
  OPTIONAL(cuMemFreeAsync, hipFreeAsync)                                                                              \
  OPTIONAL(cuIpcGetMemHandle, hipIpcGetMemHandle)                                                                     \
  OPTIONAL(cuIpcOpenMemHandle, hipIpcOpenMemHandle)                                                                   \
  OPTIONAL(cuIpcCloseMemHandle, hipIpcCloseMemHandle)                                                                 \
  OPTIONAL(cuIpcGetEventHandle, hipIpcGetEventHandle)                                                                 \
  OPTIONAL(cuIpcOpenEventHandle, hipIpcOpenEventHandle)                                                               \
  REQUIRED(cuStreamCreateWithPriority, hipStreamCreateWithPriority)                                                   \
  REQUIRED(cuStreamDestroy, hipStreamDestroy)                                                                         \
  OPTIONAL(cuStreamIsCapturing, hipStreamIsCapturing)                                                                 \
  OPTIONAL(cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode)                                     \
  REQUIRED(cuStreamQuery, hipStreamQuery)                                                                             \
  REQUIRED(cuStreamSynchronize, hipStreamSynchronize)                                                                 \
  REQUIRED(cuStreamWaitEvent, hipStreamWaitEvent)                                                                     \
  REQUIRED(cuLaunchHostFunc, hipLaunchHostFunc)                                                                       \
  OPTIONAL(cuStreamWriteValue32, hipStreamWriteValue32)                                                               \
  OPTIONAL(cuStreamWriteValue64, hipStreamWriteValue64)                                                               \
  REQUIRED(cuEventCreate, hipEventCreateWithFlags)                                                                    \
  REQUIRED(cuEventDestroy, hipEventDestroy)                                                                           \
  REQUIRED(cuEventRecord, hipEventRecord)                                                                             \
  REQUIRED(cuEventQuery, hipEventQuery)                                                                               \
  REQUIRED(cuEventElapsedTime, hipEventElapsedTime)                                                                   \
  REQUIRED(cuModuleUnload, hipModuleUnload)                                                                           \
  REQUIRED(cuModuleGetFunction, hipModuleGetFunction)                                                                 \
  OPTIONAL(cuModuleGetGlobal, hipModuleGetGlobal)                                                                     \
  REQUIRED(cuLaunchKernel, hipModuleLaunchKernel)                                                                     \
  OPTIONAL(cuLaunchCooperativeKernel, hipModuleLaunchCooperativeKernel)                                               \
  REQUIRED(cuFuncGetAttribute, hipFuncGetAttribute)                                                                   \
  OPTIONAL(cuFuncSetAttribute, hipFuncSetAttribute)                                                                   \
  OPTIONAL(cuOccupancyMaxActiveBlocksPerMultiprocessor, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor)

// What the adapters call: of other parameters, other numbers, or no counterpart.
#define WEFT_GPU_HIP_FUNCTIONS(REQUIRED, OPTIONAL)                                                                    \
  REQUIRED(hipDriverGetVersion, (int* version))                                                                       \
  REQUIRED(hipGetDevicePropertiesR0600, (void* properties, int device))                                               \
  REQUIRED(hipDeviceGetAttribute, (int* value, int attribute, int device))                                            \
  REQUIRED(hipDeviceGetP2PAttribute, (int* value, int attribute, int from, int to))                                   \
  REQUIRED(hipSetDevice, (int device))                                                                                \
  REQUIRED(hipGetDevice, (int* device))                                                                               \
  REQUIRED(hipDeviceReset, ())                                                                                        \
  REQUIRED(hipDeviceEnablePeerAccess, (int peer, unsigned flags))                                                     \
  REQUIRED(hipDeviceDisablePeerAccess, (int peer))                                                                    \
  REQUIRED(hipHostMalloc, (void** address, std::size_t size, unsigned flags))                                         \
  OPTIONAL(hipExtMallocWithFlags, (void** address, std::size_t size, unsigned flags))                                 \
  REQUIRED(hipPointerGetAttribute, (void* value, int attribute, void* address))                                       \
  OPTIONAL(hipMemAdvise, (const void* address, std::size_t size, int advice, int device))                             \
  OPTIONAL(hipMemPrefetchAsync, (const void* address, std::size_t size, int device, CUstream stream))                 \
  REQUIRED(hipMemcpyAsync, (void* dst, const void* src, std::size_t size, int kind, CUstream stream))                 \
  REQUIRED(hipMemcpyPeerAsync, (void* dst, int dst_device, const void* src, int src_device, std::size_t size,         \
                                CUstream stream))                                                                     \
  REQUIRED(hipDrvMemcpy3DAsync, (const HIP_MEMCPY3D* copy, CUstream stream))                                          \
  OPTIONAL(hipMemcpyBatchAsync, (void** dsts, void** srcs, std::size_t* sizes, std::size_t count,                     \
                                 CUmemcpyAttributes* attributes, std::size_t* attribute_of, std::size_t kinds,        \
                                 std::size_t* failed, CUstream stream))                                               \
  OPTIONAL(hipMemImportFromShareableHandle, (CUmemGenericAllocationHandle* handle, void* shareable, int type))        \
  OPTIONAL(hipMemPoolExportToShareableHandle, (void* shareable, CUmemoryPool pool, int type, unsigned flags))         \
  OPTIONAL(hipMemPoolImportFromShareableHandle, (CUmemoryPool* pool, void* shareable, int type, unsigned flags))      \
  OPTIONAL(hipStreamGetDevice, (CUstream stream, int* device))                                                        \
  OPTIONAL(hipStreamWaitValue32, (CUstream stream, void* address, std::uint32_t value, unsigned flags,                \
                                  std::uint32_t mask))                                                                \
  OPTIONAL(hipStreamWaitValue64, (CUstream stream, void* address, std::uint64_t value, unsigned flags,                \
                                  std::uint64_t mask))                                                                \
  REQUIRED(hipModuleLoadDataEx, (CUmodule* module, const void* image, unsigned count, int* options, void** values))   \
  OPTIONAL(hipExtStreamCreateWithCUMask, (CUstream* stream, std::uint32_t words, const std::uint32_t* mask))          \
  OPTIONAL(hipExtGetLinkTypeAndHopCount, (int from, int to, std::uint32_t* type, std::uint32_t* hops))
// clang-format on

namespace weft::gpu::amd {

// NOLINTBEGIN(readability-identifier-naming): the names of the library

struct HIP_MEMCPY3D {
  std::size_t src_x = 0, src_y = 0, src_z = 0, src_lod = 0;
  int src_type = 0;
  const void* src_host = nullptr;
  void* src_device = nullptr;
  void* src_array = nullptr;
  std::size_t src_pitch = 0, src_height = 0;
  std::size_t dst_x = 0, dst_y = 0, dst_z = 0, dst_lod = 0;
  int dst_type = 0;
  void* dst_host = nullptr;
  void* dst_device = nullptr;
  void* dst_array = nullptr;
  std::size_t dst_pitch = 0, dst_height = 0;
  std::size_t width = 0, height = 0, depth = 0;
};

inline constexpr int hip_memory_host = 1, hip_memory_device = 2, hip_memory_managed = 3;
inline constexpr int hip_copy_default = 4;
inline constexpr unsigned hip_host_coherent = 0x40000000;
inline constexpr unsigned hip_malloc_finegrained = 1, hip_malloc_uncached = 3;
inline constexpr std::uint32_t hip_link_xgmi = 4;
/// Of hipDeviceProp_t as HIP 6.0 and later have it (…R0600): its size, and where the name of the architecture begins.
inline constexpr std::size_t hip_properties_size = 1472, hip_architecture_offset = 1160, hip_architecture_size = 256;

/// HIP as a table, of what the adapters call. What is optional may be null.
struct hip_functions {
#define WEFT_GPU_MEMBER(name, parameters) CUresult(*name) parameters = nullptr;
  WEFT_GPU_HIP_FUNCTIONS(WEFT_GPU_MEMBER, WEFT_GPU_MEMBER)
#undef WEFT_GPU_MEMBER
};

// NOLINTEND(readability-identifier-naming)

}  // namespace weft::gpu::amd
