// SPDX-License-Identifier: Apache-2.0
// The functions of libOpenCL in a table, found when it is opened: weft is linked against no OpenCL.
#pragma once

#include "core/errors/make_error.hpp"
#include "weft/core/error.hpp"
#include "weft/core/result.hpp"

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#endif
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS  // clCreateCommandQueue, the only one that OpenCL 1.2 has
#include <CL/cl.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace weft::opencl {

// Every loader of OpenCL 1.2 has these.
#define WEFT_CL_REQUIRED(f)                                                                                        \
  f(clGetPlatformIDs) f(clGetPlatformInfo) f(clGetDeviceIDs) f(clGetDeviceInfo) f(clCreateSubDevices)              \
      f(clReleaseDevice) f(clCreateContext) f(clReleaseContext) f(clCreateCommandQueue) f(clReleaseCommandQueue)   \
          f(clCreateBuffer) f(clReleaseMemObject) f(clCreateProgramWithSource) f(clBuildProgram)                   \
              f(clGetProgramBuildInfo) f(clReleaseProgram) f(clCreateKernel) f(clReleaseKernel)                    \
                  f(clGetKernelWorkGroupInfo) f(clSetKernelArg) f(clEnqueueNDRangeKernel) f(clEnqueueCopyBuffer)   \
                      f(clEnqueueCopyBufferRect) f(clEnqueueReadBuffer) f(clEnqueueReadBufferRect)                 \
                          f(clEnqueueWriteBuffer) f(clEnqueueWriteBufferRect) f(clEnqueueFillBuffer)               \
                              f(clEnqueueMarkerWithWaitList) f(clEnqueueBarrierWithWaitList) f(clEnqueueMapBuffer) \
                                  f(clEnqueueUnmapMemObject) f(clFlush) f(clFinish) f(clWaitForEvents)             \
                                      f(clGetEventInfo) f(clGetEventProfilingInfo) f(clSetEventCallback)           \
                                          f(clRetainEvent) f(clReleaseEvent)

// Younger than that: null where the loader does not have them.
#define WEFT_CL_OPTIONAL(f) f(clSVMAlloc) f(clSVMFree) f(clCreateCommandQueueWithProperties)

struct api {
// NOLINTBEGIN(readability-identifier-naming): the functions of the standard keep their names
#define WEFT_CL_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_CL_REQUIRED(WEFT_CL_MEMBER)
  WEFT_CL_OPTIONAL(WEFT_CL_MEMBER)
#undef WEFT_CL_MEMBER
  // NOLINTEND(readability-identifier-naming)
};

/// The table of a library, which stays open as long as the process: drivers do not like to be unloaded.
/// Errors: unsupported when it is not there, or not an OpenCL loader.
[[nodiscard]] result<std::shared_ptr<const api>> load_api(const std::string& library);

/// "CL_OUT_OF_RESOURCES (-5)"
[[nodiscard]] std::string name_of(cl_int status);

/// What a call that failed is to weft: out of memory, a lost device, …
[[nodiscard]] errc errc_of(cl_int status, errc otherwise);

/// `doing` failed with `status`.
[[nodiscard]] error cl_error(cl_int status, std::string doing, errc otherwise = errc::resource_exhausted);

/// Owns one reference to an OpenCL object.
template <class Handle, auto Release>
class held {
 public:
  held() = default;
  held(std::shared_ptr<const api> cl, Handle handle) : cl_(std::move(cl)), handle_(handle) {}
  held(held&& other) noexcept : cl_(std::move(other.cl_)), handle_(std::exchange(other.handle_, nullptr)) {}
  held& operator=(held&& other) noexcept {
    std::swap(cl_, other.cl_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~held() {
    if (handle_ != nullptr) static_cast<void>((cl_.get()->*Release)(handle_));
  }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, nullptr); }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  std::shared_ptr<const api> cl_;
  Handle handle_ = nullptr;
};

using context_handle = held<cl_context, &api::clReleaseContext>;
using queue_handle = held<cl_command_queue, &api::clReleaseCommandQueue>;
using buffer_handle = held<cl_mem, &api::clReleaseMemObject>;
using program_handle = held<cl_program, &api::clReleaseProgram>;
using kernel_handle = held<cl_kernel, &api::clReleaseKernel>;
using event_handle = held<cl_event, &api::clReleaseEvent>;
using device_handle = held<cl_device_id, &api::clReleaseDevice>;

}  // namespace weft::opencl
