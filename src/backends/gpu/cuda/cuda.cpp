// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/cuda/cuda.hpp"

#include "backends/gpu/cuda/nvml.hpp"
#include "backends/gpu/cuda/nvrtc.hpp"
#include "backends/gpu/devices/discovery.hpp"
#include "backends/gpu/driver/error.hpp"
#include "backends/gpu/factory.hpp"
#include "backends/gpu/gpu_backend.hpp"

#include <dlfcn.h>
#include <functional>
#include <utility>

namespace weft::gpu {
namespace {

constexpr const char* stub_words =
    "it is the stub that programs are linked against, not a driver: take the toolkit's lib64/stubs out of "
    "LD_LIBRARY_PATH, and install the driver where there is a GPU";

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

management_library manage(const driver&, const std::string& library, const std::string&) {
  if (library != "none") return load_nvml(library);
  return make_error(errc::unsupported,
                    "the management library was not opened: WEFT_CUDA_NVML, or the program, says none; without it the "
                    "driver's own library is opened, libnvidia-ml.so.1");
}

result<std::shared_ptr<const run_time_compiler>> compiler(const std::string& library, int driver_version) {
  auto made = load_nvrtc(library, driver_version);
  if (!made) return std::move(made).error();
  return std::shared_ptr<const run_time_compiler>{std::move(*made)};
}

int architecture(const driver&, const gpu_place& gpu) { return 10 * gpu.major + gpu.minor; }

std::string architecture_text(int architecture) { return "compute capability " + capability_text(architecture); }

std::string advice(CUresult status) {
  switch (status) {
    case CUDA_ERROR_STUB_LIBRARY:
      return stub_words;
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "another process may have it for itself: look at its compute mode (nvidia-smi -q -d COMPUTE)";
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return "the code was compiled for another architecture: give PTX, or a text, or compile for this one";
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "the PTX is newer than the driver: update the driver, or compile with an older toolkit";
    case CUDA_ERROR_TOO_MANY_PEERS:
      return "disable peer access that is not used any more";
    case CUDA_ERROR_NOT_PERMITTED:
      return "it needs a right that this process does not have, such as a fabric channel";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "the fabric manager may not be running";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "libcuda and the kernel module are of different versions: reboot, or reload the module";
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "the forward-compatibility libcuda does not serve this GPU: take the cuda-compat folder out of "
             "LD_LIBRARY_PATH";
    default:
      return {};
  }
}

/// By cuda.h (13.0), which says of these that the process must be terminated and relaunched; after an assertion the
/// context must be destroyed, and of memory errors it says nothing.
bool ends_process(CUresult fault) {
  switch (fault) {
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
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

std::string uuid_text(const CUuuid& raw) {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < sizeof raw.bytes; ++i) {
    const auto byte = static_cast<unsigned char>(raw.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[byte >> 4U];
    text += digits[byte & 15U];
  }
  return text;
}

}  // namespace

const vendor& cuda() {
  static constexpr vendor one{
      .kind = backend_kind::cuda,
      .name = "CUDA",
      .family = detail::share_family::cuda,
      .driver = {"WEFT_CUDA_DRIVER", "libcuda.so.1"},
      .management = {"WEFT_CUDA_NVML", "libnvidia-ml.so.1"},
      .bus_windows = {"WEFT_CUDA_GDRCOPY", "libgdrapi.so.2"},
      .partitions_variable = "WEFT_CUDA_PARTITIONS",
      .hiding = {"CUDA_VISIBLE_DEVICES"},
      .list_command = "nvidia-smi",
      .oldest_driver = oldest_cuda,
      .knows_pool_sizes = 12020,
      .names_default_stream = oldest_cuda,
      .names_faults = true,
      .has_short_words = true,
      .wraps_words = true,
      .descriptors_have_sizes = false,
      .blocks_name_gpus = true,
      .ends_pool_rights = true,
      .host_atomics_beat_pcie = true,
      .reset_ends_code = true,
      .most_threads = ~std::uint64_t{0},
      .image = &raw_kernel::cuda_image,
      .function = &raw_kernel::cuda_function,
      .load = &load_cuda,
      .manage = &manage,
      .compiler = &compiler,
      .ends_process = &ends_process,
      .allocate_coherent = [](const driver& cu, CUdeviceptr* at, std::size_t size) { return cu.cuMemAlloc(at, size); },
      .architecture = &architecture,
      .architecture_text = &architecture_text,
      .uuid_text = &uuid_text,
      .advice = &advice,
  };
  return one;
}

result<std::shared_ptr<const driver>> load_cuda(const std::string& library) {
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
      return no_driver(library, too_old(cuda(), version));
    return no_driver(library, "it has no cuGetProcAddress: it is no CUDA driver, or one before 11.3");
  }
  driver_functions table;
  constexpr int first_version = 2020;
  const CUresult first = find(ask, table.cuDriverGetVersion, "cuDriverGetVersion", first_version, first_version);
  if (first == CUDA_ERROR_STUB_LIBRARY) return no_driver(library, stub_words, first);
  int version = 0;
  if (table.cuDriverGetVersion == nullptr || table.cuDriverGetVersion(&version) != CUDA_SUCCESS) version = oldest_cuda;
#define WEFT_GPU_FIND(function, since, parameters) \
  static_cast<void>(find(ask, table.function, #function, since, version));
  WEFT_GPU_DRIVER_FUNCTIONS(WEFT_GPU_FIND, WEFT_GPU_FIND)
#undef WEFT_GPU_FIND
  return start_driver(table, library, cuda());
}

// ---- factory --------------------------------------------------------------------------------------------------------

result<std::unique_ptr<backend>> open_with(const backend_options& options, const settings& wanted) noexcept {
  return open_of(cuda(), options, wanted);
}

result<std::unique_ptr<backend>> open(const backend_options& options) noexcept { return open_of(cuda(), options, {}); }

}  // namespace weft::gpu
