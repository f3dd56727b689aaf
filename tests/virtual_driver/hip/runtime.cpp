// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/hip/runtime.hpp"

#include "virtual_driver/driver/settings.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace weft::virtual_hip {
namespace {

std::atomic<CUresult> fault{CUDA_SUCCESS};

bool ends_the_process(CUresult status) {
  switch (status) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
      return true;
    default:
      return false;
  }
}

/// Of a context of this process.
CUresult fault_of_any() {
  const std::lock_guard lock{the().mutex};
  for (const device& one : the().devices) {
    if (one.primary != nullptr && ends_the_process(one.primary->lost.load())) return one.primary->lost.load();
  }
  return CUDA_SUCCESS;
}

struct kept_contexts {
  std::mutex mutex;
  std::array<CUcontext, most_devices> handles{};
};
kept_contexts& kept() {
  static auto* const one = new kept_contexts;
  return *one;
}

std::string text_of(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): once, under the lock of a static
  return value == nullptr ? otherwise : value;
}

}  // namespace

const hip_settings& hip_given() {
  static const auto* const one = [] {
    auto* const made = new hip_settings;
    made->version = std::atoi(text_of("WEFT_VIRTUAL_HIP_VERSION", "70125424").c_str());
    made->architecture = text_of("WEFT_VIRTUAL_HIP_ARCH", "gfx90a:sramecc+:xnack-");
    made->imports_by_address = text_of("WEFT_VIRTUAL_HIP_IMPORT", "address") == "address";
    made->has_wait_values = text_of("WEFT_VIRTUAL_HIP_WAIT_VALUES", "1") != "0";
    made->has_uncached = text_of("WEFT_VIRTUAL_HIP_UNCACHED", "1") != "0";
    made->names_faults = text_of("WEFT_VIRTUAL_HIP_FAULTS", "named") == "named";
    made->has_uuids = text_of("WEFT_VIRTUAL_HIP_UUIDS", "1") != "0";
    static constexpr std::string_view known[] = {"ARCH",  "FAULTS",  "IMPORT",     "UNCACHED",
                                                 "UUIDS", "VERSION", "WAIT_VALUES"};
    made->problem = unknown_setting("WEFT_VIRTUAL_HIP_", known);
    if (!made->problem.empty()) std::fprintf(stderr, "weft virtual HIP runtime: %s\n", made->problem.c_str());
    return made;
  }();
  return *one;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

CUcontext context_of(int device) {
  kept_contexts& all = kept();
  const std::lock_guard lock{all.mutex};
  CUcontext& handle = all.handles[static_cast<std::size_t>(device)];
  if (handle == nullptr) {
    static_cast<void>(the().retain_primary(device));
    const std::lock_guard books{the().mutex};
    handle = the().devices[static_cast<std::size_t>(device)].primary->handle;
  }
  return handle;
}

void forget_context(int device) {
  kept_contexts& all = kept();
  const std::lock_guard lock{all.mutex};
  if (std::exchange(all.handles[static_cast<std::size_t>(device)], nullptr) != nullptr)
    static_cast<void>(the().release_primary(device));
}

CUresult ready() noexcept {
  if (!is_open()) {
    if (!hip_given().problem.empty()) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult code = cuInit(0); code != CUDA_SUCCESS) return code;
    if (the().count() == 0) return CUDA_ERROR_NO_DEVICE;
  }
  if (const CUresult code = fault.load(); code != CUDA_SUCCESS) return code;
  return noted(fault_of_any());
}

CUresult noted(CUresult status) noexcept {
  if (ends_the_process(status)) {
    if (!hip_given().names_faults) status = CUDA_ERROR_UNKNOWN;
    fault.store(status);
  }
  if (status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY) last_error() = status;
  return status;
}

CUresult& last_error() {
  thread_local CUresult last = CUDA_SUCCESS;
  return last;
}

}  // namespace weft::virtual_hip
