// SPDX-License-Identifier: Apache-2.0
// The virtual driver in a child of the test: its settings are the child's environment, its faults end nobody else.
#pragma once

#include "backends/gpu/cuda/nvrtc_functions.hpp"
#include "backends/gpu/driver/driver_functions.hpp"
#include "support/paths.hpp"
#include "support/processes.hpp"
#include "virtual_driver/virtual_driver.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace virtual_cuda {

using namespace weft::gpu;

/// Which face of the driver this process has; to be set before the first call.
inline std::string& library_path() {
  static std::string path = samples::virtual_cuda_library();
  return path;
}

/// The library of this process, opened at the first call.
inline void* library() {
  static void* const opened = ::dlopen(library_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  return opened;
}

template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library(), name));
}

struct loaded_driver : driver_functions {
  loaded_driver() {
    cuGetProcAddress = find<CUresult(const char*, void**, int, unsigned long long, int*)>("cuGetProcAddress_v2");
#define WEFT_LOOK_UP(name, version, parameters) \
  static_cast<void>(cuGetProcAddress(#name, reinterpret_cast<void**>(&name), version, 0, nullptr));
    WEFT_GPU_DRIVER_FUNCTIONS(WEFT_LOOK_UP, WEFT_LOOK_UP)
#undef WEFT_LOOK_UP
    cuEventSynchronize = find<CUresult(CUevent)>("cuEventSynchronize");
  }

  CUresult (*cuEventSynchronize)(CUevent) = nullptr;  // NOLINT(readability-identifier-naming): weft itself asks instead
};

using environment = std::vector<std::pair<std::string, std::string>>;

/// Expectations of this test that have failed so far; a child starts with those of its parent.
inline int failures_so_far() {
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  int failed = 0;
  for (int n = 0; n < result.total_part_count(); ++n) failed += result.GetTestPartResult(n).failed() ? 1 : 0;
  return failed;
}

/// What this computer keeps of drivers that tests have played must not decide what they find.
inline void keep_nothing_between_processes() { ::setenv("XDG_CACHE_HOME", "/dev/null", 0); }

/// Runs `body` in a child with these variables; the child's failed expectations are the test's.
inline void in_child(const environment& variables, const std::function<void()>& body, int expected = 0) {
  std::fflush(nullptr);  // or the child says it again
  processes::child child{[&] {
    keep_nothing_between_processes();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    const int before = failures_so_far();
    body();
    std::fflush(nullptr);
    return failures_so_far() > before ? 1 : 0;
  }};
  EXPECT_EQ(child.wait(), expected);
}

/// A driver with contexts: that of device 0 is current.
struct session : loaded_driver {
  explicit session(int devices = 1) {
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int n = 0; n < devices; ++n) {
      CUcontext made = nullptr;
      EXPECT_EQ(cuDevicePrimaryCtxRetain(&made, n), CUDA_SUCCESS);
      contexts.push_back(made);
    }
    use(0);
  }
  void use(int device) { EXPECT_EQ(cuCtxSetCurrent(contexts[static_cast<std::size_t>(device)]), CUDA_SUCCESS); }
  CUdeviceptr allocate(std::size_t size) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc(&address, size), CUDA_SUCCESS);
    return address;
  }
  CUstream stream(unsigned flags = stream_non_blocking) {
    CUstream made = nullptr;
    EXPECT_EQ(cuStreamCreateWithPriority(&made, flags, 0), CUDA_SUCCESS);
    return made;
  }
  CUevent event(unsigned flags = 0) {
    CUevent made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  template <class T>
  T read(CUdeviceptr address) {
    T value{};
    EXPECT_EQ(cuMemcpyDtoHAsync(&value, address, sizeof value, nullptr), CUDA_SUCCESS);
    return value;
  }
  template <class T>
  void write(CUdeviceptr address, T value) {
    EXPECT_EQ(cuMemcpyHtoDAsync(address, &value, sizeof value, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  /// Compiles and loads; the compiler's complaint is in `log`.
  CUresult load(const std::string& text, CUmodule* module, std::string* log = nullptr, const char* arch = "sm_90",
                const std::vector<std::pair<const char*, const char*>>& headers = {},
                const std::string& name = "user.cu", const std::vector<const char*>& more = {}) {
    nvrtcProgram program = nullptr;
    nvrtc_functions rtc;
#define WEFT_LOOK_UP(name, parameters) rtc.name = find<nvrtcResult parameters>(#name);
    WEFT_GPU_NVRTC_FUNCTIONS(WEFT_LOOK_UP)
#undef WEFT_LOOK_UP
    std::vector<const char*> names;
    std::vector<const char*> contents;
    for (const auto& [header, content] : headers) {
      names.push_back(header);
      contents.push_back(content);
    }
    EXPECT_EQ(rtc.nvrtcCreateProgram(&program, text.c_str(), name.c_str(), static_cast<int>(headers.size()),
                                     contents.data(), names.data()),
              NVRTC_SUCCESS);
    const std::string architecture = std::string{"--gpu-architecture="} + arch;
    std::vector<const char*> options{architecture.c_str(), "--std=c++17", "--fmad=false"};
    options.insert(options.end(), more.begin(), more.end());
    const nvrtcResult compiled = rtc.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
    std::size_t size = 0;
    EXPECT_EQ(rtc.nvrtcGetProgramLogSize(program, &size), NVRTC_SUCCESS);
    std::string words(size, '\0');
    EXPECT_EQ(rtc.nvrtcGetProgramLog(program, words.data()), NVRTC_SUCCESS);
    if (log != nullptr) *log = words;
    if (compiled != NVRTC_SUCCESS) {
      EXPECT_NE(log, nullptr) << words;
      return 10000 + compiled;
    }
    EXPECT_EQ(rtc.nvrtcGetCUBINSize(program, &size), NVRTC_SUCCESS);
    std::vector<char> image(size);
    EXPECT_EQ(rtc.nvrtcGetCUBIN(program, image.data()), NVRTC_SUCCESS);
    EXPECT_EQ(rtc.nvrtcDestroyProgram(&program), NVRTC_SUCCESS);
    return cuModuleLoadDataEx(module, image.data(), 0, nullptr, nullptr);
  }
  CUfunction kernel(const std::string& text, const char* name) {
    CUmodule module = nullptr;
    EXPECT_EQ(load(text, &module), CUDA_SUCCESS);
    CUfunction found = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&found, module, name), CUDA_SUCCESS);
    return found;
  }
  template <class... A>
  CUresult launch(CUfunction f, unsigned grid, unsigned block, CUstream stream, A... arguments) {
    void* list[] = {static_cast<void*>(&arguments)..., nullptr};
    return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, stream, list, nullptr);
  }

  std::vector<CUcontext> contexts;
};

}  // namespace virtual_cuda
