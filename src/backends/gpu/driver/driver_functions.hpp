// SPDX-License-Identifier: Apache-2.0
// Every function of the driver that this backend, or a test that plays a program of its own, may call, once: name, the
// version of CUDA whose form of it is meant (as cuGetProcAddress takes it), whether the backend cannot do without it,
// and its parameters. gpu/hip fills the same table by adapters.
#pragma once

#include "backends/gpu/driver/driver_types.hpp"

// clang-format off
#define WEFT_GPU_DRIVER_FUNCTIONS(REQUIRED, OPTIONAL)                                                                 \
  /* driver */                                                                                                        \
  REQUIRED(cuInit, 2000, (unsigned flags))                                                                            \
  REQUIRED(cuDriverGetVersion, 2020, (int* version))                                                                  \
  REQUIRED(cuGetErrorName, 6000, (CUresult error, const char** text))                                                 \
  REQUIRED(cuGetErrorString, 6000, (CUresult error, const char** text))                                               \
  /* devices */                                                                                                       \
  REQUIRED(cuDeviceGet, 2000, (CUdevice* device, int ordinal))                                                        \
  REQUIRED(cuDeviceGetCount, 2000, (int* count))                                                                      \
  REQUIRED(cuDeviceGetName, 2000, (char* name, int size, CUdevice device))                                            \
  REQUIRED(cuDeviceGetUuid, 11040, (CUuuid* uuid, CUdevice device))                                                   \
  REQUIRED(cuDeviceGetAttribute, 2000, (int* value, int attribute, CUdevice device))                                  \
  REQUIRED(cuDeviceTotalMem, 3020, (std::size_t* bytes, CUdevice device))                                             \
  REQUIRED(cuDeviceGetPCIBusId, 4010, (char* address, int size, CUdevice device))                                     \
  REQUIRED(cuDeviceCanAccessPeer, 4000, (int* can, CUdevice device, CUdevice peer))                                   \
  REQUIRED(cuDeviceGetP2PAttribute, 8000, (int* value, int attribute, CUdevice from, CUdevice to))                    \
  OPTIONAL(cuDeviceGetP2PAtomicCapabilities, 13000, (unsigned* capabilities, const int* operations, unsigned count,   \
                                                     CUdevice from, CUdevice to))                                     \
  OPTIONAL(cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool* pool, CUdevice device))                                   \
  /* contexts */                                                                                                      \
  REQUIRED(cuDevicePrimaryCtxRetain, 7000, (CUcontext* context, CUdevice device))                                     \
  REQUIRED(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                                       \
  REQUIRED(cuDevicePrimaryCtxReset, 11000, (CUdevice device))                                                         \
  OPTIONAL(cuDevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned* flags, int* active))                         \
  OPTIONAL(cuDevicePrimaryCtxSetFlags, 11000, (CUdevice device, unsigned flags))                                      \
  REQUIRED(cuCtxSetCurrent, 4000, (CUcontext context))                                                                \
  REQUIRED(cuCtxGetCurrent, 4000, (CUcontext* context))                                                               \
  REQUIRED(cuCtxPushCurrent, 4000, (CUcontext context))                                                               \
  REQUIRED(cuCtxPopCurrent, 4000, (CUcontext* context))                                                               \
  OPTIONAL(cuCtxSynchronize, 2000, ())                                                                                \
  REQUIRED(cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned flags))                                             \
  REQUIRED(cuCtxDisablePeerAccess, 4000, (CUcontext peer))                                                            \
  REQUIRED(cuCtxGetStreamPriorityRange, 5050, (int* least, int* greatest))                                            \
  /* memory */                                                                                                        \
  REQUIRED(cuMemAlloc, 3020, (CUdeviceptr* address, std::size_t size))                                                \
  REQUIRED(cuMemFree, 3020, (CUdeviceptr address))                                                                    \
  REQUIRED(cuMemGetInfo, 3020, (std::size_t* free, std::size_t* total))                                               \
  REQUIRED(cuMemHostAlloc, 2020, (void** address, std::size_t size, unsigned flags))                                  \
  REQUIRED(cuMemFreeHost, 2000, (void* address))                                                                      \
  REQUIRED(cuMemHostRegister, 6050, (void* address, std::size_t size, unsigned flags))                                \
  REQUIRED(cuMemHostUnregister, 4000, (void* address))                                                                \
  REQUIRED(cuMemHostGetDevicePointer, 3020, (CUdeviceptr* address, void* host, unsigned flags))                       \
  REQUIRED(cuMemGetAddressRange, 3020, (CUdeviceptr* base, std::size_t* size, CUdeviceptr address))                   \
  REQUIRED(cuMemAllocManaged, 6000, (CUdeviceptr* address, std::size_t size, unsigned flags))                         \
  REQUIRED(cuPointerGetAttribute, 4000, (void* value, int attribute, CUdeviceptr address))                            \
  OPTIONAL(cuPointerSetAttribute, 6000, (const void* value, int attribute, CUdeviceptr address))                      \
  OPTIONAL(cuMemAdvise, 12020, (CUdeviceptr address, std::size_t size, int advice, CUmemLocation location))           \
  OPTIONAL(cuMemPrefetchAsync, 12020, (CUdeviceptr address, std::size_t size, CUmemLocation location, unsigned flags, \
                                       CUstream stream))                                                              \
  /* copies and fills */                                                                                              \
  REQUIRED(cuMemcpyAsync, 4000, (CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream))                \
  REQUIRED(cuMemcpyHtoDAsync, 3020, (CUdeviceptr dst, const void* src, std::size_t size, CUstream stream))            \
  REQUIRED(cuMemcpyDtoHAsync, 3020, (void* dst, CUdeviceptr src, std::size_t size, CUstream stream))                  \
  REQUIRED(cuMemcpyDtoDAsync, 3020, (CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream))            \
  REQUIRED(cuMemcpyPeerAsync, 4000, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,  \
                                     std::size_t size, CUstream stream))                                              \
  REQUIRED(cuMemcpy3DAsync, 3020, (const CUDA_MEMCPY3D* copy, CUstream stream))                                       \
  REQUIRED(cuMemcpy3DPeerAsync, 4000, (const CUDA_MEMCPY3D_PEER* copy, CUstream stream))                              \
  OPTIONAL(cuMemcpyBatchAsync, 13000, (CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,   \
                                       CUmemcpyAttributes* attributes, std::size_t* attribute_of, std::size_t kinds,  \
                                       CUstream stream))                                                              \
  REQUIRED(cuMemsetD8Async, 3020, (CUdeviceptr dst, unsigned char value, std::size_t count, CUstream stream))         \
  REQUIRED(cuMemsetD16Async, 3020, (CUdeviceptr dst, unsigned short value, std::size_t count, CUstream stream))       \
  REQUIRED(cuMemsetD32Async, 3020, (CUdeviceptr dst, unsigned value, std::size_t count, CUstream stream))             \
  /* memory, addresses and rights apart */                                                                            \
  OPTIONAL(cuMemCreate, 10020, (CUmemGenericAllocationHandle* handle, std::size_t size,                               \
                                const CUmemAllocationProp* properties, unsigned long long flags))                     \
  OPTIONAL(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))                                                \
  OPTIONAL(cuMemMap, 10020, (CUdeviceptr address, std::size_t size, std::size_t offset,                               \
                             CUmemGenericAllocationHandle handle, unsigned long long flags))                          \
  OPTIONAL(cuMemUnmap, 10020, (CUdeviceptr address, std::size_t size))                                                \
  OPTIONAL(cuMemSetAccess, 10020, (CUdeviceptr address, std::size_t size, const CUmemAccessDesc* rights,              \
                                   std::size_t count))                                                                \
  OPTIONAL(cuMemGetAccess, 10020, (unsigned long long* right, const CUmemLocation* location, CUdeviceptr address))    \
  OPTIONAL(cuMemAddressReserve, 10020, (CUdeviceptr* address, std::size_t size, std::size_t alignment,                \
                                        CUdeviceptr hint, unsigned long long flags))                                  \
  OPTIONAL(cuMemAddressFree, 10020, (CUdeviceptr address, std::size_t size))                                          \
  OPTIONAL(cuMemGetAllocationGranularity, 10020, (std::size_t* size, const CUmemAllocationProp* properties,           \
                                                  int which))                                                         \
  OPTIONAL(cuMemExportToShareableHandle, 10020, (void* shareable, CUmemGenericAllocationHandle handle, int type,      \
                                                 unsigned long long flags))                                           \
  OPTIONAL(cuMemImportFromShareableHandle, 10020, (CUmemGenericAllocationHandle* handle, void* shareable, int type))  \
  OPTIONAL(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle* handle, void* address))                 \
  OPTIONAL(cuMemGetAllocationPropertiesFromHandle, 10020, (CUmemAllocationProp* properties,                           \
                                                           CUmemGenericAllocationHandle handle))                      \
  /* pools */                                                                                                         \
  OPTIONAL(cuMemPoolCreate, 11020, (CUmemoryPool* pool, const CUmemPoolProps* properties))                            \
  OPTIONAL(cuMemPoolDestroy, 11020, (CUmemoryPool pool))                                                              \
  OPTIONAL(cuMemPoolSetAttribute, 11020, (CUmemoryPool pool, int attribute, void* value))                             \
  OPTIONAL(cuMemPoolGetAttribute, 11020, (CUmemoryPool pool, int attribute, void* value))                             \
  OPTIONAL(cuMemPoolSetAccess, 11020, (CUmemoryPool pool, const CUmemAccessDesc* rights, std::size_t count))          \
  OPTIONAL(cuMemPoolGetAccess, 11020, (int* right, CUmemoryPool pool, CUmemLocation* location))                       \
  OPTIONAL(cuMemPoolTrimTo, 11020, (CUmemoryPool pool, std::size_t keep))                                             \
  OPTIONAL(cuMemPoolExportToShareableHandle, 11020, (void* shareable, CUmemoryPool pool, int type,                    \
                                                     unsigned long long flags))                                       \
  OPTIONAL(cuMemPoolImportFromShareableHandle, 11020, (CUmemoryPool* pool, void* shareable, int type,                 \
                                                       unsigned long long flags))                                     \
  OPTIONAL(cuMemPoolExportPointer, 11020, (CUmemPoolPtrExportData* data, CUdeviceptr address))                        \
  OPTIONAL(cuMemPoolImportPointer, 11020, (CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data))    \
  OPTIONAL(cuMemAllocFromPoolAsync, 11020, (CUdeviceptr* address, std::size_t size, CUmemoryPool pool,                \
                                            CUstream stream))                                                         \
  OPTIONAL(cuMemFreeAsync, 11020, (CUdeviceptr address, CUstream stream))                                             \
  /* between processes */                                                                                             \
  OPTIONAL(cuIpcGetMemHandle, 4010, (CUipcMemHandle* handle, CUdeviceptr address))                                    \
  OPTIONAL(cuIpcOpenMemHandle, 11000, (CUdeviceptr* address, CUipcMemHandle handle, unsigned flags))                  \
  OPTIONAL(cuIpcCloseMemHandle, 4010, (CUdeviceptr address))                                                          \
  OPTIONAL(cuIpcGetEventHandle, 4010, (CUipcEventHandle* handle, CUevent event))                                      \
  OPTIONAL(cuIpcOpenEventHandle, 4010, (CUevent* event, CUipcEventHandle handle))                                     \
  /* streams and events */                                                                                            \
  REQUIRED(cuStreamCreateWithPriority, 5050, (CUstream* stream, unsigned flags, int priority))                        \
  REQUIRED(cuStreamDestroy, 4000, (CUstream stream))                                                                  \
  OPTIONAL(cuStreamGetCtx, 9020, (CUstream stream, CUcontext* context))                                               \
  OPTIONAL(cuStreamIsCapturing, 10000, (CUstream stream, int* status))                                                \
  OPTIONAL(cuThreadExchangeStreamCaptureMode, 10010, (int* mode))                                                     \
  REQUIRED(cuStreamQuery, 2000, (CUstream stream))                                                                    \
  REQUIRED(cuStreamSynchronize, 2000, (CUstream stream))                                                              \
  REQUIRED(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned flags))                                 \
  REQUIRED(cuLaunchHostFunc, 10000, (CUstream stream, CUhostFn function, void* data))                                 \
  OPTIONAL(cuStreamWaitValue32, 11070, (CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags))   \
  OPTIONAL(cuStreamWriteValue32, 11070, (CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags))  \
  OPTIONAL(cuStreamWaitValue64, 11070, (CUstream stream, CUdeviceptr address, unsigned long value, unsigned flags))   \
  OPTIONAL(cuStreamWriteValue64, 11070, (CUstream stream, CUdeviceptr address, unsigned long value, unsigned flags))  \
  REQUIRED(cuEventCreate, 2000, (CUevent* event, unsigned flags))                                                     \
  REQUIRED(cuEventDestroy, 4000, (CUevent event))                                                                     \
  REQUIRED(cuEventRecord, 2000, (CUevent event, CUstream stream))                                                     \
  REQUIRED(cuEventQuery, 2000, (CUevent event))                                                                       \
  REQUIRED(cuEventElapsedTime, 2000, (float* milliseconds, CUevent start, CUevent end))                               \
  /* multicast */                                                                                                     \
  OPTIONAL(cuMulticastCreate, 12010, (CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* properties)) \
  OPTIONAL(cuMulticastAddDevice, 12010, (CUmemGenericAllocationHandle handle, CUdevice device))                       \
  OPTIONAL(cuMulticastBindMem, 12010, (CUmemGenericAllocationHandle handle, std::size_t offset,                       \
                                       CUmemGenericAllocationHandle memory, std::size_t memory_offset,                \
                                       std::size_t size, unsigned long long flags))                                   \
  OPTIONAL(cuMulticastUnbind, 12010, (CUmemGenericAllocationHandle handle, CUdevice device, std::size_t offset,       \
                                      std::size_t size))                                                              \
  OPTIONAL(cuMulticastGetGranularity, 12010, (std::size_t* size, const CUmulticastObjectProp* properties, int which)) \
  /* code */                                                                                                          \
  REQUIRED(cuModuleLoadDataEx, 2010, (CUmodule* module, const void* image, unsigned count, int* options,              \
                                      void** values))                                                                 \
  REQUIRED(cuModuleUnload, 2000, (CUmodule module))                                                                   \
  REQUIRED(cuModuleGetFunction, 2000, (CUfunction* function, CUmodule module, const char* name))                      \
  OPTIONAL(cuModuleGetGlobal, 3020, (CUdeviceptr* address, std::size_t* size, CUmodule module, const char* name))     \
  REQUIRED(cuLaunchKernel, 4000, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,             \
                                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,        \
                                  CUstream stream, void** parameters, void** extra))                                  \
  OPTIONAL(cuLaunchCooperativeKernel, 9000, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,  \
                                             unsigned block_x, unsigned block_y, unsigned block_z,                    \
                                             unsigned shared_bytes, CUstream stream, void** parameters))              \
  REQUIRED(cuFuncGetAttribute, 2020, (int* value, int attribute, CUfunction function))                                \
  OPTIONAL(cuFuncSetAttribute, 9000, (CUfunction function, int attribute, int value))                                 \
  OPTIONAL(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, (int* blocks, CUfunction function, int block,           \
                                                               std::size_t dynamic_shared))                           \
  OPTIONAL(cuOccupancyMaxPotentialBlockSize, 6050, (int* grid, int* block, CUfunction function,                       \
                                                    CUoccupancyB2DSize shared_of_block, std::size_t dynamic_shared,   \
                                                    int limit))                                                       \
  /* parts of a device */                                                                                             \
  OPTIONAL(cuDeviceGetDevResource, 12040, (CUdevice device, CUdevResource* resource, int type))                       \
  OPTIONAL(cuDevSmResourceSplitByCount, 12040, (CUdevResource* parts, unsigned* count, const CUdevResource* whole,    \
                                                CUdevResource* remaining, unsigned flags, unsigned minimum))          \
  OPTIONAL(cuDevResourceGenerateDesc, 12040, (CUdevResourceDesc* description, CUdevResource* parts, unsigned count))  \
  OPTIONAL(cuGreenCtxCreate, 12040, (CUgreenCtx* context, CUdevResourceDesc description, CUdevice device,             \
                                     unsigned flags))                                                                 \
  OPTIONAL(cuGreenCtxDestroy, 12040, (CUgreenCtx context))                                                            \
  OPTIONAL(cuCtxFromGreenCtx, 12040, (CUcontext* context, CUgreenCtx green))                                          \
  OPTIONAL(cuGreenCtxStreamCreate, 12050, (CUstream* stream, CUgreenCtx context, unsigned flags, int priority))
// clang-format on

namespace weft::gpu {

/// The driver as a table. What is optional may be null.
struct driver_functions {
  // NOLINTBEGIN(readability-identifier-naming): the functions of the driver keep their names
  // found by dlsym, everything else by it
  CUresult (*cuGetProcAddress)(const char* name, void** function, int version, unsigned long long flags,
                               int* outcome) = nullptr;
#define WEFT_GPU_MEMBER(name, version, parameters) CUresult(*name) parameters = nullptr;
  WEFT_GPU_DRIVER_FUNCTIONS(WEFT_GPU_MEMBER, WEFT_GPU_MEMBER)
#undef WEFT_GPU_MEMBER
  // NOLINTEND(readability-identifier-naming)
};

}  // namespace weft::gpu
