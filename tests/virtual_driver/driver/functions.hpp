// SPDX-License-Identifier: Apache-2.0
// Every function of the backend's table under the symbol that a driver exports it by.
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"

// clang-format off
#define WEFT_VIRTUAL_FUNCTIONS(ROW) \
  ROW(cuInit, 2000, cuInit) \
  ROW(cuDriverGetVersion, 2020, cuDriverGetVersion) \
  ROW(cuGetErrorName, 6000, cuGetErrorName) \
  ROW(cuGetErrorString, 6000, cuGetErrorString) \
  ROW(cuDeviceGet, 2000, cuDeviceGet) \
  ROW(cuDeviceGetCount, 2000, cuDeviceGetCount) \
  ROW(cuDeviceGetName, 2000, cuDeviceGetName) \
  ROW(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2) \
  ROW(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute) \
  ROW(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2) \
  ROW(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId) \
  ROW(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer) \
  ROW(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute) \
  ROW(cuDeviceGetP2PAtomicCapabilities, 13000, cuDeviceGetP2PAtomicCapabilities) \
  ROW(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool) \
  ROW(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain) \
  ROW(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2) \
  ROW(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2) \
  ROW(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState) \
  ROW(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2) \
  ROW(cuCtxSetCurrent, 4000, cuCtxSetCurrent) \
  ROW(cuCtxGetCurrent, 4000, cuCtxGetCurrent) \
  ROW(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2) \
  ROW(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2) \
  ROW(cuCtxSynchronize, 2000, cuCtxSynchronize) \
  ROW(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess) \
  ROW(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess) \
  ROW(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange) \
  ROW(cuMemAlloc, 3020, cuMemAlloc_v2) \
  ROW(cuMemFree, 3020, cuMemFree_v2) \
  ROW(cuMemGetInfo, 3020, cuMemGetInfo_v2) \
  ROW(cuMemHostAlloc, 2020, cuMemHostAlloc) \
  ROW(cuMemFreeHost, 2000, cuMemFreeHost) \
  ROW(cuMemHostRegister, 6050, cuMemHostRegister_v2) \
  ROW(cuMemHostUnregister, 4000, cuMemHostUnregister) \
  ROW(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2) \
  ROW(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2) \
  ROW(cuMemAllocManaged, 6000, cuMemAllocManaged) \
  ROW(cuPointerGetAttribute, 4000, cuPointerGetAttribute) \
  ROW(cuPointerSetAttribute, 6000, cuPointerSetAttribute) \
  ROW(cuMemAdvise, 12020, cuMemAdvise_v2) \
  ROW(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2) \
  ROW(cuMemcpyAsync, 4000, cuMemcpyAsync) \
  ROW(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2) \
  ROW(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2) \
  ROW(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2) \
  ROW(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync) \
  ROW(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2) \
  ROW(cuMemcpy3DPeerAsync, 4000, cuMemcpy3DPeerAsync) \
  ROW(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2) \
  ROW(cuMemsetD8Async, 3020, cuMemsetD8Async) \
  ROW(cuMemsetD16Async, 3020, cuMemsetD16Async) \
  ROW(cuMemsetD32Async, 3020, cuMemsetD32Async) \
  ROW(cuMemCreate, 10020, cuMemCreate) \
  ROW(cuMemRelease, 10020, cuMemRelease) \
  ROW(cuMemMap, 10020, cuMemMap) \
  ROW(cuMemUnmap, 10020, cuMemUnmap) \
  ROW(cuMemSetAccess, 10020, cuMemSetAccess) \
  ROW(cuMemGetAccess, 10020, cuMemGetAccess) \
  ROW(cuMemAddressReserve, 10020, cuMemAddressReserve) \
  ROW(cuMemAddressFree, 10020, cuMemAddressFree) \
  ROW(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity) \
  ROW(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle) \
  ROW(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle) \
  ROW(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle) \
  ROW(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle) \
  ROW(cuMemPoolCreate, 11020, cuMemPoolCreate) \
  ROW(cuMemPoolDestroy, 11020, cuMemPoolDestroy) \
  ROW(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute) \
  ROW(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute) \
  ROW(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess) \
  ROW(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess) \
  ROW(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo) \
  ROW(cuMemPoolExportToShareableHandle, 11020, cuMemPoolExportToShareableHandle) \
  ROW(cuMemPoolImportFromShareableHandle, 11020, cuMemPoolImportFromShareableHandle) \
  ROW(cuMemPoolExportPointer, 11020, cuMemPoolExportPointer) \
  ROW(cuMemPoolImportPointer, 11020, cuMemPoolImportPointer) \
  ROW(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync) \
  ROW(cuMemFreeAsync, 11020, cuMemFreeAsync) \
  ROW(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle) \
  ROW(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2) \
  ROW(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle) \
  ROW(cuIpcGetEventHandle, 4010, cuIpcGetEventHandle) \
  ROW(cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle) \
  ROW(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority) \
  ROW(cuStreamDestroy, 4000, cuStreamDestroy_v2) \
  ROW(cuStreamGetCtx, 9020, cuStreamGetCtx) \
  ROW(cuStreamIsCapturing, 10000, cuStreamIsCapturing) \
  ROW(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode) \
  ROW(cuStreamQuery, 2000, cuStreamQuery) \
  ROW(cuStreamSynchronize, 2000, cuStreamSynchronize) \
  ROW(cuStreamWaitEvent, 3020, cuStreamWaitEvent) \
  ROW(cuLaunchHostFunc, 10000, cuLaunchHostFunc) \
  ROW(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2) \
  ROW(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2) \
  ROW(cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2) \
  ROW(cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2) \
  ROW(cuEventCreate, 2000, cuEventCreate) \
  ROW(cuEventDestroy, 4000, cuEventDestroy_v2) \
  ROW(cuEventRecord, 2000, cuEventRecord) \
  ROW(cuEventQuery, 2000, cuEventQuery) \
  ROW(cuEventElapsedTime, 2000, cuEventElapsedTime) \
  ROW(cuMulticastCreate, 12010, cuMulticastCreate) \
  ROW(cuMulticastAddDevice, 12010, cuMulticastAddDevice) \
  ROW(cuMulticastBindMem, 12010, cuMulticastBindMem) \
  ROW(cuMulticastUnbind, 12010, cuMulticastUnbind) \
  ROW(cuMulticastGetGranularity, 12010, cuMulticastGetGranularity) \
  ROW(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx) \
  ROW(cuModuleUnload, 2000, cuModuleUnload) \
  ROW(cuModuleGetFunction, 2000, cuModuleGetFunction) \
  ROW(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2) \
  ROW(cuLaunchKernel, 4000, cuLaunchKernel) \
  ROW(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel) \
  ROW(cuFuncGetAttribute, 2020, cuFuncGetAttribute) \
  ROW(cuFuncSetAttribute, 9000, cuFuncSetAttribute) \
  ROW(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  ROW(cuOccupancyMaxPotentialBlockSize, 6050, cuOccupancyMaxPotentialBlockSize) \
  ROW(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource) \
  ROW(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount) \
  ROW(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc) \
  ROW(cuGreenCtxCreate, 12040, cuGreenCtxCreate) \
  ROW(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy) \
  ROW(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx) \
  ROW(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate)

// clang-format on

namespace weft::virtual_cuda {

using namespace weft::gpu;

extern "C" {
CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int* version);
CUresult cuGetErrorName(CUresult error, const char** text);
CUresult cuGetErrorString(CUresult error, const char** text);
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDeviceGetCount(int* count);
CUresult cuDeviceGetName(char* name, int size, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device);
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device);
CUresult cuDeviceGetPCIBusId(char* address, int size, CUdevice device);
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer);
CUresult cuDeviceGetP2PAttribute(int* value, int attribute, CUdevice from, CUdevice to);
CUresult cuDeviceGetP2PAtomicCapabilities(unsigned* capabilities, const int* operations, unsigned count, CUdevice from,
                                          CUdevice to);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext* context);
CUresult cuCtxSynchronize();
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
CUresult cuCtxDisablePeerAccess(CUcontext peer);
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest);
CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total);
CUresult cuMemHostAlloc(void** address, std::size_t size, unsigned flags);
CUresult cuMemFreeHost(void* address);
CUresult cuMemHostRegister_v2(void* address, std::size_t size, unsigned flags);
CUresult cuMemHostUnregister(void* address);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned flags);
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address);
CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t size, unsigned flags);
CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address);
CUresult cuPointerSetAttribute(const void* value, int attribute, CUdeviceptr address);
CUresult cuMemAdvise_v2(CUdeviceptr address, std::size_t size, int advice, CUmemLocation location);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, std::size_t size, CUmemLocation location, unsigned flags,
                               CUstream stream);
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, std::size_t size, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, std::size_t size, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream);
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                           std::size_t size, CUstream stream);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream);
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,
                               CUmemcpyAttributes* attributes, std::size_t* attribute_of, std::size_t kinds,
                               CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, std::size_t count, CUstream stream);
CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, std::size_t count, CUstream stream);
CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, std::size_t count, CUstream stream);
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp* properties,
                     unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, std::size_t size);
CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* rights, std::size_t count);
CUresult cuMemGetAccess(unsigned long long* right, const CUmemLocation* location, CUdeviceptr address);
CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment, CUdeviceptr hint,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size);
CUresult cuMemGetAllocationGranularity(std::size_t* size, const CUmemAllocationProp* properties, int which);
CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable, int type);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle);
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* rights, std::size_t count);
CUresult cuMemPoolGetAccess(int* right, CUmemoryPool pool, CUmemLocation* location);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t keep);
CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool pool, int type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* shareable, int type, unsigned long long flags);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address);
CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t size, CUmemoryPool pool, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr address);
CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event);
CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle);
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data);
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags);
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags);
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, unsigned long value, unsigned flags);
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, unsigned long value, unsigned flags);
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end);
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* properties);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, std::size_t offset,
                            CUmemGenericAllocationHandle memory, std::size_t memory_offset, std::size_t size,
                            unsigned long long flags);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, std::size_t offset, std::size_t size);
CUresult cuMulticastGetGranularity(std::size_t* size, const CUmulticastObjectProp* properties, int which);
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options, void** values);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* size, CUmodule module, const char* name);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                        void** extra);
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                   CUstream stream, void** parameters);
CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function);
CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int block,
                                                     std::size_t dynamic_shared);
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function,
                                          CUoccupancyB2DSize shared_of_block, std::size_t dynamic_shared, int limit);
CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, int type);
CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned* count, const CUdevResource* whole,
                                     CUdevResource* remaining, unsigned flags, unsigned minimum);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* parts, unsigned count);
CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc description, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(CUgreenCtx context);
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green);
CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx context, unsigned flags, int priority);
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context);
CUresult cuStreamIsCapturing(CUstream stream, int* status);
CUresult cuThreadExchangeStreamCaptureMode(int* mode);
}

}  // namespace weft::virtual_cuda
