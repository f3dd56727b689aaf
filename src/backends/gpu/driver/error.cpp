// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/error.hpp"

namespace weft::gpu {

std::string name_of(const driver& cu, CUresult status) {
  const char* name = nullptr;
  const char* words = nullptr;
  if (cu.cuGetErrorName != nullptr) static_cast<void>(cu.cuGetErrorName(status, &name));
  if (cu.cuGetErrorString != nullptr) static_cast<void>(cu.cuGetErrorString(status, &words));
  std::string text = name != nullptr ? name : std::string{cu.by->name} + " error";
  text += " (" + std::to_string(status) + ")";
  if (words != nullptr && *words != '\0') text += std::string{": "} + words;
  if (const std::string advice = cu.by->advice(status); !advice.empty()) text += "; " + advice;
  return text;
}

bool is_sticky(const driver& cu, CUresult status) {
  if (status == CUDA_ERROR_UNKNOWN && !cu.by->names_faults) {
    std::size_t free = 0, total = 0;  // a question that touches no stream
    return cu.cuMemGetInfo(&free, &total) == CUDA_ERROR_UNKNOWN;
  }
  switch (status) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return true;
    default:
      return false;
  }
}

errc errc_of(CUresult status, errc otherwise) {
  switch (status) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return errc::out_of_memory;
    case CUDA_ERROR_INVALID_DEVICE:
      return errc::invalid_device;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return errc::incompatible;
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
      return errc::peer_unsupported;
    case CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
      return errc::already_enabled;
    case CUDA_ERROR_PEER_ACCESS_NOT_ENABLED:
      return errc::not_enabled;
    case CUDA_ERROR_TOO_MANY_PEERS:
      return errc::too_many_peers;
    case CUDA_ERROR_NOT_FOUND:
      return errc::not_found;
    case CUDA_ERROR_NOT_READY:
      return errc::not_ready;
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_STUB_LIBRARY:
      return errc::unsupported;
    case CUDA_ERROR_OPERATING_SYSTEM:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return errc::resource_exhausted;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
      return errc::illegal_access;
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
      return errc::kernel_failed;
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return errc::device_lost;
    case CUDA_ERROR_DEINITIALIZED:
      return errc::machine_closed;
    default:
      return otherwise;
  }
}

error cu_error(const driver& cu, CUresult status, std::string doing, errc otherwise) {
  error cause = make_error(errc_of(status, otherwise), std::move(doing) + ": " + name_of(cu, status));
  cause.native_code = status;
  if (is_sticky(cu, status)) cause.scope = error_scope::device;
  return cause;
}

}  // namespace weft::gpu
