// SPDX-License-Identifier: Apache-2.0
// Older forms of functions: a program that was linked long ago, or that asks for an old version, finds these symbols.
#include "virtual_driver/driver/call.hpp"

namespace weft::virtual_cuda {

WEFT_VIRTUAL_API CUresult cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  int outcome = symbol_found;
  const CUresult code = cuGetProcAddress_v2(name, function, version, flags, &outcome);
  // this form has no other way to say so
  return code == CUDA_SUCCESS && outcome != symbol_found ? CUDA_ERROR_NOT_FOUND : code;
}

WEFT_VIRTUAL_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
WEFT_VIRTUAL_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
WEFT_VIRTUAL_API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }
WEFT_VIRTUAL_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}
WEFT_VIRTUAL_API CUresult cuMemHostRegister(void* address, std::size_t size, unsigned flags) {
  return cuMemHostRegister_v2(address, size, flags);
}
WEFT_VIRTUAL_API CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return cuIpcOpenMemHandle_v2(address, handle, flags);
}
WEFT_VIRTUAL_API CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }
WEFT_VIRTUAL_API CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }
WEFT_VIRTUAL_API CUresult cuCtxPopCurrent(CUcontext* context) { return cuCtxPopCurrent_v2(context); }
WEFT_VIRTUAL_API CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }
WEFT_VIRTUAL_API CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

}  // namespace weft::virtual_cuda
