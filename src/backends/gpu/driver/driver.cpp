// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/driver.hpp"

#include "backends/gpu/driver/error.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <utility>

namespace weft::gpu {
namespace {

error no_driver(const std::string& library, const std::string& why, int native = 0) {
  error cause = make_error(errc::unsupported, library + " cannot be used: " + why);
  cause.native_code = native;
  return cause;
}

constexpr const char* stub_words =
    "it is the stub that programs are linked against, not a driver: take the toolkit's lib64/stubs out of "
    "LD_LIBRARY_PATH, and install the driver where there is a GPU";

std::string too_old(int version) {
  return "it is the driver of CUDA " + version_text(version) + ", and weft needs " + version_text(oldest_driver) +
         " or newer: update the driver";
}

/// Why there is no GPU although there is a driver.
std::string nothing_visible() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe): read at the start
  if (visible == nullptr) return "it finds no GPU: nvidia-smi shows what the system has";
  return "CUDA_VISIBLE_DEVICES is \"" + std::string{visible} +
         "\", which leaves no GPU: what comes after a name that is not there counts as hidden too";
}

/// What cuInit refused to do, in a sentence.
std::string not_started(const driver_functions& cu, CUresult status) {
  switch (status) {
    case CUDA_ERROR_STUB_LIBRARY:
      return stub_words;
    case CUDA_ERROR_NO_DEVICE:
      return nothing_visible();
    default:
      return name_of(cu, status);
  }
}

/// Asks a library for one function in the form of a version: the driver's answer, what it found, and its verdict.
using resolver = std::function<CUresult(const char* name, int version, void** function, int* outcome)>;

resolver resolver_of(void* opened) {
  using modern = CUresult (*)(const char*, void**, int, unsigned long long, int*);
  using first = CUresult (*)(const char*, void**, int, unsigned long long);
  if (auto* const f = reinterpret_cast<modern>(::dlsym(opened, "cuGetProcAddress_v2")); f != nullptr) {
    return [f](const char* name, int version, void** function, int* outcome) {
      return f(name, function, version, proc_address_default, outcome);
    };
  }
  if (auto* const f = reinterpret_cast<first>(::dlsym(opened, "cuGetProcAddress")); f != nullptr) {
    return [f](const char* name, int version, void** function, int* outcome) {
      *outcome = symbol_found;
      return f(name, function, version, proc_address_default);
    };
  }
  return {};
}

/// A code of success says nothing of the pointer, nor a pointer of the code.
template <class Function>
CUresult find(const resolver& ask, Function& function, const char* name, int version, int driver) {
  // a function of another version may have other parameters, and drivers differ in whether they refuse it
  if (version > driver) {
    function = nullptr;
    return CUDA_ERROR_NOT_FOUND;
  }
  void* address = nullptr;
  int outcome = symbol_not_found;
  const CUresult status = ask(name, version, &address, &outcome);
  const bool is_there = status == CUDA_SUCCESS && outcome == symbol_found && address != nullptr;
  function = is_there ? reinterpret_cast<Function>(address) : nullptr;
  return status;
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

result<std::shared_ptr<const driver>> start_driver(driver_functions table, std::string name) {
  auto made = std::make_shared<driver>();
  static_cast<driver_functions&>(*made) = table;
  made->library = std::move(name);
  if (table.cuDriverGetVersion == nullptr || table.cuInit == nullptr)
    return no_driver(made->library, "it has no cuInit or no cuDriverGetVersion, which every CUDA driver has");
  // before anything else: what an old driver lacks is not worth a word
  const CUresult asked = table.cuDriverGetVersion(&made->version);
  if (asked != CUDA_SUCCESS) return no_driver(made->library, not_started(table, asked), asked);
  if (made->version < oldest_driver) return no_driver(made->library, too_old(made->version));
  const char* missing = nullptr;
#define WEFT_GPU_REQUIRE(function, since, parameters) \
  if (table.function == nullptr && missing == nullptr) missing = #function;
#define WEFT_GPU_SKIP(function, since, parameters)
  WEFT_GPU_DRIVER_FUNCTIONS(WEFT_GPU_REQUIRE, WEFT_GPU_SKIP)
#undef WEFT_GPU_REQUIRE
#undef WEFT_GPU_SKIP
  if (missing != nullptr) {
    return no_driver(made->library, std::string{"it has no "} + missing + ", which the driver of CUDA " +
                                        version_text(oldest_driver) + " has: update the driver");
  }
  const CUresult started = table.cuInit(0);
  if (started != CUDA_SUCCESS) return no_driver(made->library, not_started(table, started), started);
  int count = 0;
  const CUresult counted = table.cuDeviceGetCount(&count);
  if (counted != CUDA_SUCCESS) return no_driver(made->library, not_started(table, counted), counted);
  if (count == 0) return no_driver(made->library, nothing_visible(), CUDA_ERROR_NO_DEVICE);
  return std::shared_ptr<const driver>{std::move(made)};
}

result<std::shared_ptr<const driver>> load_driver(const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    return no_driver(library, (why != nullptr ? std::string{why} : "it could not be opened") +
                                  "; install NVIDIA's driver, or name its library with WEFT_CUDA_DRIVER");
  }
  const resolver ask = resolver_of(opened);
  if (!ask) {
    // drivers before 11.3 have no such function, but say their version
    const auto of_version =
        reinterpret_cast<decltype(driver_functions::cuDriverGetVersion)>(::dlsym(opened, "cuDriverGetVersion"));
    int version = 0;
    if (of_version != nullptr && of_version(&version) == CUDA_SUCCESS && version > 0)
      return no_driver(library, too_old(version));
    return no_driver(library, "it has no cuGetProcAddress: it is no CUDA driver, or one before 11.3");
  }
  driver_functions table;
  constexpr int first_version = 2020;
  const CUresult first = find(ask, table.cuDriverGetVersion, "cuDriverGetVersion", first_version, first_version);
  if (first == CUDA_ERROR_STUB_LIBRARY) return no_driver(library, stub_words, first);
  int version = 0;
  if (table.cuDriverGetVersion == nullptr || table.cuDriverGetVersion(&version) != CUDA_SUCCESS)
    version = oldest_driver;
#define WEFT_GPU_FIND(function, since, parameters) \
  static_cast<void>(find(ask, table.function, #function, since, version));
  WEFT_GPU_DRIVER_FUNCTIONS(WEFT_GPU_FIND, WEFT_GPU_FIND)
#undef WEFT_GPU_FIND
  return start_driver(table, library);
}

}  // namespace weft::gpu
