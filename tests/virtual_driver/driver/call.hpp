// SPDX-License-Identifier: Apache-2.0
// What every exported function begins with: it is counted, may be told to fail, and looks at the state of the process.
#pragma once

#include "virtual_driver/driver/functions.hpp"
#include "virtual_driver/driver/machine.hpp"
#include "virtual_driver/driver/more_functions.hpp"

#include <new>

namespace weft::virtual_cuda {

/// Counts the call; answers the code that it was told to fail with, or 0. If told so, ends the process or never
/// returns.
[[nodiscard]] CUresult begin_call(const char* name) noexcept;
/// A kernel begins to run: counted as "device.launch", and never among the calls, since it is nobody's who could say
/// when.
[[nodiscard]] CUresult begin_kernel() noexcept;
/// As begin_call(), and whether the driver may be called at all: initialised, not in a child of fork, not in a host
/// function.
[[nodiscard]] CUresult begin_driver_call(const char* name) noexcept;
[[nodiscard]] std::uint64_t calls_of(const std::string& name);
/// "cuMemAlloc@3=2,cuLaunchKernel@1=kill": replaces the plan and counts from here on.
void plan_faults(const std::string& plan);
void count_from_zero();

template <class F>
CUresult plain_call(const char* name, bool arguments, F&& f) noexcept {
  const own_work here;
  if (const CUresult code = begin_driver_call(name); code != 0) return code;
  if (!arguments) return CUDA_ERROR_INVALID_VALUE;
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

/// With a context that is current and not lost.
template <class F>
CUresult context_call(const char* name, bool arguments, F&& f) noexcept {
  return plain_call(name, arguments, [&]() -> CUresult {
    const context_ref c = current();
    if (c == nullptr) return context_stack().empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (const int lost = c->lost.load(); lost != 0) return lost;
    return f(c);
  });
}

/// With a stream, whose context need not be the current one.
template <class F>
CUresult stream_call(const char* name, CUstream handle, bool arguments, F&& f) noexcept {
  return context_call(name, arguments, [&](const context_ref&) -> CUresult {
    const stream_ref s = stream_of(handle);
    if (s == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const int lost = s->home()->lost.load(); lost != 0) return lost;
    if (s->orphaned().load()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return f(s);
  });
}

}  // namespace weft::virtual_cuda

#define WEFT_VIRTUAL_API extern "C" __attribute__((visibility("default")))
