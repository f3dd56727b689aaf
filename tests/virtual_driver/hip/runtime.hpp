// SPDX-License-Identifier: Apache-2.0
// The face of HIP over the virtual driver: the same devices and page tables, and HIP's own rules where it differs. Each
// thread has a current device in place of a stack of contexts; the library starts itself.
#pragma once

#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/functions.hpp"
#include "virtual_driver/driver/machine.hpp"

#include <string>

namespace weft::virtual_hip {

using namespace weft::virtual_cuda;

/// What a test says about HIP, by environment; the machine is that of WEFT_VIRTUAL_CUDA_….
struct hip_settings {
  int version = 70125424;          // WEFT_VIRTUAL_HIP_VERSION, as hipDriverGetVersion says it
  std::string architecture;        // WEFT_VIRTUAL_HIP_ARCH; gfx90a without it, with the features that a driver names
  bool imports_by_address = true;  // WEFT_VIRTUAL_HIP_IMPORT=value: a descriptor is given itself, not its address
  bool has_wait_values = true;     // WEFT_VIRTUAL_HIP_WAIT_VALUES=0
  bool has_uncached = true;        // WEFT_VIRTUAL_HIP_UNCACHED=0: fine-grained memory alone
  bool names_faults = true;        // WEFT_VIRTUAL_HIP_FAULTS=unknown: each is an unknown error
  bool has_uuids = true;           // WEFT_VIRTUAL_HIP_UUIDS=0
  std::string problem;             // a name that is no setting; hipInit answers INVALID_VALUE and says it on stderr
};
[[nodiscard]] const hip_settings& hip_given();

/// The device of this thread.
[[nodiscard]] int& current_device();
/// The context that HIP keeps to itself for a device; made when it is first needed.
[[nodiscard]] CUcontext context_of(int device);
/// It went with a reset.
void forget_context(int device);

/// Starts the driver. A fault of any device leaves every later call of the process failing with it.
[[nodiscard]] CUresult ready() noexcept;
/// Of this thread, until it is asked for.
[[nodiscard]] CUresult& last_error();
/// Remembers a fault, and a failure as the thread's last.
CUresult noted(CUresult status) noexcept;

/// With the context of the thread's device current.
template <class F>
CUresult entered(F&& f) noexcept {
  if (const CUresult code = ready(); code != CUDA_SUCCESS) return code;
  try {
    context_stack() = {context_of(current_device())};
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return noted(f());
}

/// Without one.
template <class F>
CUresult asked(F&& f) noexcept {
  if (const CUresult code = ready(); code != CUDA_SUCCESS) return code;
  return noted(f());
}

/// HIP has one code for every part of a description that cannot be.
[[nodiscard]] constexpr CUresult plain(CUresult status) {
  return status == CUDA_ERROR_NOT_SUPPORTED || status == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : status;
}

[[nodiscard]] inline CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace weft::virtual_hip

#define WEFT_HIP(name, parameters, call)                \
  WEFT_VIRTUAL_API CUresult name parameters {           \
    return entered([&]() -> CUresult { return call; }); \
  }
