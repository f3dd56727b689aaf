// SPDX-License-Identifier: Apache-2.0
// What HIP has under another name and with the same meaning.
#include "virtual_driver/hip/runtime.hpp"

namespace weft::virtual_hip {

// ---- memory ---------------------------------------------------------------------------------------------------------

WEFT_HIP(hipMalloc, (CUdeviceptr * address, std::size_t size), cuMemAlloc_v2(address, size))
WEFT_HIP(hipMemGetInfo, (std::size_t* free, std::size_t* total), cuMemGetInfo_v2(free, total))
WEFT_HIP(hipHostRegister, (void* address, std::size_t size, unsigned flags),
         cuMemHostRegister_v2(address, size, flags | host_register_device_map))
WEFT_HIP(hipHostUnregister, (void* address), cuMemHostUnregister(address))
WEFT_HIP(hipHostGetDevicePointer, (CUdeviceptr * address, void* host, unsigned flags),
         cuMemHostGetDevicePointer_v2(address, host, flags))
WEFT_HIP(hipMallocManaged, (CUdeviceptr * address, std::size_t size, unsigned flags),
         cuMemAllocManaged(address, size, flags))
WEFT_HIP(hipPointerSetAttribute, (const void* value, int attribute, CUdeviceptr address),
         cuPointerSetAttribute(value, attribute, address))

// ---- copies and fills -----------------------------------------------------------------------------------------------

WEFT_HIP(hipMemcpyHtoDAsync, (CUdeviceptr dst, const void* src, std::size_t size, CUstream stream),
         cuMemcpyHtoDAsync_v2(dst, src, size, stream))
WEFT_HIP(hipMemcpyDtoHAsync, (void* dst, CUdeviceptr src, std::size_t size, CUstream stream),
         cuMemcpyDtoHAsync_v2(dst, src, size, stream))
WEFT_HIP(hipMemcpyDtoDAsync, (CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream),
         cuMemcpyDtoDAsync_v2(dst, src, size, stream))
WEFT_HIP(hipMemsetD8Async, (CUdeviceptr dst, unsigned char value, std::size_t count, CUstream stream),
         cuMemsetD8Async(dst, value, count, stream))
WEFT_HIP(hipMemsetD16Async, (CUdeviceptr dst, unsigned short value, std::size_t count, CUstream stream),
         cuMemsetD16Async(dst, value, count, stream))
WEFT_HIP(hipMemsetD32Async, (CUdeviceptr dst, unsigned value, std::size_t count, CUstream stream),
         cuMemsetD32Async(dst, value, count, stream))

// ---- memory, addresses and rights apart -----------------------------------------------------------------------------

using block = CUmemGenericAllocationHandle;
WEFT_HIP(hipMemRelease, (block handle), cuMemRelease(handle))
WEFT_HIP(hipMemSetAccess, (CUdeviceptr address, std::size_t size, const CUmemAccessDesc* rights, std::size_t count),
         cuMemSetAccess(address, size, rights, count))
WEFT_HIP(hipMemGetAccess, (unsigned long long* right, const CUmemLocation* location, CUdeviceptr address),
         cuMemGetAccess(right, location, address))
WEFT_HIP(hipMemAddressFree, (CUdeviceptr address, std::size_t size), cuMemAddressFree(address, size))
WEFT_HIP(hipMemGetAllocationGranularity, (std::size_t* size, const CUmemAllocationProp* properties, int which),
         cuMemGetAllocationGranularity(size, properties, which))
WEFT_HIP(hipMemExportToShareableHandle, (void* shareable, block handle, int type, unsigned long long flags),
         plain(cuMemExportToShareableHandle(shareable, handle, type, flags)))
WEFT_HIP(hipMemRetainAllocationHandle, (block * handle, void* address), cuMemRetainAllocationHandle(handle, address))

// ---- pools ----------------------------------------------------------------------------------------------------------

WEFT_HIP(hipDeviceGetDefaultMemPool, (CUmemoryPool * pool, int device), cuDeviceGetDefaultMemPool(pool, device))
WEFT_HIP(hipMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps* properties),
         plain(cuMemPoolCreate(pool, properties)))
WEFT_HIP(hipMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void* value),
         cuMemPoolSetAttribute(pool, attribute, value))
WEFT_HIP(hipMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void* value),
         cuMemPoolGetAttribute(pool, attribute, value))
WEFT_HIP(hipMemPoolGetAccess, (int* right, CUmemoryPool pool, CUmemLocation* location),
         plain(cuMemPoolGetAccess(right, pool, location)))
WEFT_HIP(hipMemPoolTrimTo, (CUmemoryPool pool, std::size_t keep), cuMemPoolTrimTo(pool, keep))
WEFT_HIP(hipMemPoolExportToShareableHandle, (void* shareable, CUmemoryPool pool, int type, unsigned flags),
         plain(cuMemPoolExportToShareableHandle(shareable, pool, type, flags)))
WEFT_HIP(hipMemPoolImportFromShareableHandle, (CUmemoryPool * pool, void* shareable, int type, unsigned flags),
         plain(cuMemPoolImportFromShareableHandle(pool, shareable, type, flags)))
WEFT_HIP(hipMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr address),
         cuMemPoolExportPointer(data, address))
WEFT_HIP(hipMemPoolImportPointer, (CUdeviceptr * address, CUmemoryPool pool, CUmemPoolPtrExportData* data),
         cuMemPoolImportPointer(address, pool, data))
WEFT_HIP(hipMallocFromPoolAsync, (CUdeviceptr * address, std::size_t size, CUmemoryPool pool, CUstream stream),
         cuMemAllocFromPoolAsync(address, size, pool, stream))
WEFT_HIP(hipFreeAsync, (CUdeviceptr address, CUstream stream), cuMemFreeAsync(address, stream))

// ---- between processes ----------------------------------------------------------------------------------------------

WEFT_HIP(hipIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address), cuIpcGetMemHandle(handle, address))
WEFT_HIP(hipIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags),
         cuIpcOpenMemHandle_v2(address, handle, flags))
WEFT_HIP(hipIpcCloseMemHandle, (CUdeviceptr address), cuIpcCloseMemHandle(address))
WEFT_HIP(hipIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), cuIpcGetEventHandle(handle, event))
WEFT_HIP(hipIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle), cuIpcOpenEventHandle(event, handle))

// ---- streams and events ---------------------------------------------------------------------------------------------

WEFT_HIP(hipDeviceSynchronize, (), cuCtxSynchronize())
WEFT_HIP(hipDeviceGetStreamPriorityRange, (int* least, int* greatest), cuCtxGetStreamPriorityRange(least, greatest))
WEFT_HIP(hipStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority),
         cuStreamCreateWithPriority(stream, flags, priority))
WEFT_HIP(hipStreamDestroy, (CUstream stream), cuStreamDestroy_v2(stream))
WEFT_HIP(hipStreamIsCapturing, (CUstream stream, int* status), cuStreamIsCapturing(stream, status))
WEFT_HIP(hipThreadExchangeStreamCaptureMode, (int* mode), cuThreadExchangeStreamCaptureMode(mode))
WEFT_HIP(hipStreamQuery, (CUstream stream), cuStreamQuery(stream))
WEFT_HIP(hipStreamSynchronize, (CUstream stream), cuStreamSynchronize(stream))
WEFT_HIP(hipLaunchHostFunc, (CUstream stream, CUhostFn function, void* data), cuLaunchHostFunc(stream, function, data))
WEFT_HIP(hipEventCreateWithFlags, (CUevent * event, unsigned flags), cuEventCreate(event, flags))
WEFT_HIP(hipEventDestroy, (CUevent event), cuEventDestroy_v2(event))
WEFT_HIP(hipEventRecord, (CUevent event, CUstream stream), cuEventRecord(event, stream))
WEFT_HIP(hipEventElapsedTime, (float* milliseconds, CUevent start, CUevent end),
         cuEventElapsedTime(milliseconds, start, end))

// ---- code -----------------------------------------------------------------------------------------------------------

WEFT_HIP(hipModuleUnload, (CUmodule module), cuModuleUnload(module))
WEFT_HIP(hipModuleGetFunction, (CUfunction * function, CUmodule module, const char* name),
         cuModuleGetFunction(function, module, name))
WEFT_HIP(hipModuleGetGlobal, (CUdeviceptr * address, std::size_t* size, CUmodule module, const char* name),
         cuModuleGetGlobal_v2(address, size, module, name))
WEFT_HIP(hipModuleLaunchKernel,
         (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
          unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra),
         cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                        extra))
WEFT_HIP(hipModuleLaunchCooperativeKernel,
         (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
          unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters),
         cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                                   parameters))
WEFT_HIP(hipFuncGetAttribute, (int* value, int attribute, CUfunction function),
         cuFuncGetAttribute(value, attribute, function))
WEFT_HIP(hipFuncSetAttribute, (CUfunction function, int attribute, int value),
         cuFuncSetAttribute(function, attribute, value))
WEFT_HIP(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
         (int* blocks, CUfunction function, int block, std::size_t dynamic_shared),
         cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block, dynamic_shared))

}  // namespace weft::virtual_hip
