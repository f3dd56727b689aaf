// SPDX-License-Identifier: Apache-2.0
// Functions that the backend does not use and other programs do: name, the version that brought this form, the symbol,
// and its parameters. Forms with addresses of 32 bits (before 3.2) are not among them.
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"

// clang-format off
#define WEFT_VIRTUAL_MORE_FUNCTIONS(ROW) \
  ROW(cuGetProcAddress, 11030, cuGetProcAddress, (const char* name, void** function, int version, unsigned long long flags)) \
  ROW(cuGetProcAddress, 12000, cuGetProcAddress_v2, (const char* name, void** function, int version, unsigned long long flags, int* outcome)) \
  ROW(cuDeviceGetUuid, 9020, cuDeviceGetUuid, (CUuuid* uuid, CUdevice device)) \
  ROW(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease, (CUdevice device)) \
  ROW(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset, (CUdevice device)) \
  ROW(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags)) \
  ROW(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool, (CUmemoryPool* pool, CUdevice device)) \
  ROW(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool)) \
  ROW(cuMemGetDefaultMemPool, 13000, cuMemGetDefaultMemPool, (CUmemoryPool* pool, const CUmemLocation* location, int type)) \
  ROW(cuMemGetMemPool, 13000, cuMemGetMemPool, (CUmemoryPool* pool, const CUmemLocation* location, int type)) \
  ROW(cuMemAllocAsync, 11020, cuMemAllocAsync, (CUdeviceptr* address, std::size_t size, CUstream stream)) \
  ROW(cuPointerGetAttributes, 7000, cuPointerGetAttributes, (unsigned count, const int* attributes, void** values, CUdeviceptr address)) \
  ROW(cuMemAllocHost, 3020, cuMemAllocHost_v2, (void** address, std::size_t size)) \
  ROW(cuMemHostRegister, 4000, cuMemHostRegister, (void* address, std::size_t size, unsigned flags)) \
  ROW(cuIpcOpenMemHandle, 4010, cuIpcOpenMemHandle, (CUdeviceptr* address, CUipcMemHandle handle, unsigned flags)) \
  ROW(cuCtxCreate, 2000, cuCtxCreate, (CUcontext* context, unsigned flags, CUdevice device)) \
  ROW(cuCtxCreate, 3020, cuCtxCreate_v2, (CUcontext* context, unsigned flags, CUdevice device)) \
  ROW(cuCtxCreate, 11040, cuCtxCreate_v3, (CUcontext* context, const void* affinity, int affinity_count, unsigned flags, CUdevice device)) \
  ROW(cuCtxCreate, 12050, cuCtxCreate_v4, (CUcontext* context, const CUctxCreateParams* wanted, unsigned flags, CUdevice device)) \
  ROW(cuCtxDestroy, 2000, cuCtxDestroy, (CUcontext context)) \
  ROW(cuCtxDestroy, 4000, cuCtxDestroy_v2, (CUcontext context)) \
  ROW(cuCtxGetDevice, 2000, cuCtxGetDevice, (CUdevice* device)) \
  ROW(cuCtxGetFlags, 7000, cuCtxGetFlags, (unsigned* flags)) \
  ROW(cuCtxPushCurrent, 2000, cuCtxPushCurrent, (CUcontext context)) \
  ROW(cuCtxPopCurrent, 2000, cuCtxPopCurrent, (CUcontext* context)) \
  ROW(cuStreamCreate, 2000, cuStreamCreate, (CUstream* stream, unsigned flags)) \
  ROW(cuStreamDestroy, 2000, cuStreamDestroy, (CUstream stream)) \
  ROW(cuEventDestroy, 2000, cuEventDestroy, (CUevent event)) \
  ROW(cuEventSynchronize, 2000, cuEventSynchronize, (CUevent event)) \
  ROW(cuEventElapsedTime, 12080, cuEventElapsedTime_v2, (float* milliseconds, CUevent start, CUevent end)) \
  ROW(cuMemcpy, 4000, cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, std::size_t size)) \
  ROW(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, (CUdeviceptr dst, const void* src, std::size_t size)) \
  ROW(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, (void* dst, CUdeviceptr src, std::size_t size)) \
  ROW(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, std::size_t size)) \
  ROW(cuMemcpyPeer, 4000, cuMemcpyPeer, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, std::size_t size)) \
  ROW(cuMemcpy2D, 3020, cuMemcpy2D_v2, (const CUDA_MEMCPY2D* copy)) \
  ROW(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* copy)) \
  ROW(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* copy, CUstream stream)) \
  ROW(cuMemcpy3D, 3020, cuMemcpy3D_v2, (const CUDA_MEMCPY3D* copy)) \
  ROW(cuMemsetD8, 3020, cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, std::size_t count)) \
  ROW(cuMemsetD16, 3020, cuMemsetD16_v2, (CUdeviceptr dst, unsigned short value, std::size_t count)) \
  ROW(cuMemsetD32, 3020, cuMemsetD32_v2, (CUdeviceptr dst, unsigned value, std::size_t count)) \
  ROW(cuModuleLoad, 2000, cuModuleLoad, (CUmodule* module, const char* file)) \
  ROW(cuModuleLoadData, 2000, cuModuleLoadData, (CUmodule* module, const void* image)) \
  ROW(cuLibraryLoadData, 12000, cuLibraryLoadData, (CUlibrary* library, const void* image, int* options, void** values, unsigned count, int* library_options, void** library_values, unsigned library_count)) \
  ROW(cuLibraryUnload, 12000, cuLibraryUnload, (CUlibrary library)) \
  ROW(cuLibraryGetKernel, 12000, cuLibraryGetKernel, (CUkernel* kernel, CUlibrary library, const char* name)) \
  ROW(cuLibraryGetModule, 12000, cuLibraryGetModule, (CUmodule* module, CUlibrary library)) \
  ROW(cuKernelGetFunction, 12000, cuKernelGetFunction, (CUfunction* function, CUkernel kernel)) \
  ROW(cuKernelGetAttribute, 12000, cuKernelGetAttribute, (int* value, int attribute, CUkernel kernel, CUdevice device)) \
  ROW(cuLaunchKernelEx, 11060, cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra))

// clang-format on

namespace weft::virtual_cuda {

using namespace weft::gpu;

// NOLINTBEGIN(readability-identifier-naming): the driver's own names
using CUlibrary = struct CUlib_st*;
using CUkernel = CUfunction;  // taken wherever a function is
struct CUctxCreateParams {
  const void* affinity = nullptr;
  int affinity_count = 0;
  const void* graphics = nullptr;
};
struct CUDA_MEMCPY2D {
  std::size_t src_x = 0, src_y = 0;
  unsigned src_type = 0;
  const void* src_host = nullptr;
  CUdeviceptr src_device = 0;
  CUarray src_array = nullptr;
  std::size_t src_pitch = 0;
  std::size_t dst_x = 0, dst_y = 0;
  unsigned dst_type = 0;
  void* dst_host = nullptr;
  CUdeviceptr dst_device = 0;
  CUarray dst_array = nullptr;
  std::size_t dst_pitch = 0;
  std::size_t width = 0, height = 0;
};
struct CUlaunchAttribute {
  int id = 0;
  int pad = 0;
  union {
    char bytes[64];
    int cooperative;
    unsigned cluster[3];
  };
};
struct CUlaunchConfig {
  unsigned grid_x = 0, grid_y = 0, grid_z = 0, block_x = 0, block_y = 0, block_z = 0, shared_bytes = 0;
  CUstream stream = nullptr;
  const CUlaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
// NOLINTEND(readability-identifier-naming)

extern "C" {
#define WEFT_DECLARE(name, version, symbol, parameters) CUresult symbol parameters;
WEFT_VIRTUAL_MORE_FUNCTIONS(WEFT_DECLARE)
#undef WEFT_DECLARE
}

}  // namespace weft::virtual_cuda
