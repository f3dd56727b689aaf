// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/cuda/nvrtc.hpp"

#include "backend/kernels/kernel_text.hpp"
#include "backends/common/compiler_words.hpp"
#include "backends/gpu/driver/error.hpp"
#include "backends/gpu/factory.hpp"
#include "backends/gpu/kernels/compile_text.hpp"
#include "core/environment.hpp"

#include <algorithm>
#include <array>
#include <dlfcn.h>
#include <sys/stat.h>

namespace weft::gpu {
namespace {

/// The folders in which a toolkit may lie.
std::vector<std::string> toolkits() {
  std::vector<std::string> found;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (auto folder = detail::environment(name)) found.push_back(*std::move(folder));
  }
  found.emplace_back("/usr/local/cuda");
  return found;
}

/// Sources of users may include the toolkit's headers; the text of a WEFT_KERNEL includes nothing.
std::vector<std::string> include_options() {
  std::vector<std::string> options;
  for (const std::string& folder : toolkits()) {
    struct stat about{};
    const std::string headers = folder + "/include";
    if (stat(headers.c_str(), &about) == 0) options.push_back("--include-path=" + headers);
  }
  return options;
}

result<std::shared_ptr<const nvrtc>> open_one(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();  // NOLINT(concurrency-mt-unsafe): the thread's own in every libc of today
    return make_error(errc::unsupported, why == nullptr ? name + " could not be opened" : why);
  }
  nvrtc_functions table;
  std::string missing;
#define WEFT_GPU_LOOK_UP(name, parameters)                                    \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #name)); \
  if (table.name == nullptr) missing += missing.empty() ? #name : ", " #name;
  WEFT_GPU_NVRTC_FUNCTIONS(WEFT_GPU_LOOK_UP)
#undef WEFT_GPU_LOOK_UP
  if (!missing.empty()) {
    dlclose(library);
    return make_error(errc::unsupported, name + " is no NVRTC of CUDA 11.2 or newer: it has no " + missing);
  }
  return std::make_shared<const nvrtc>(table, name);
}

}  // namespace

std::string capability_text(int architecture) {
  return std::to_string(architecture / 10) + "." + std::to_string(architecture % 10);
}

nvrtc::nvrtc(const nvrtc_functions& table, std::string library) : call_(table), library_(std::move(library)) {
  int count = 0;
  if (call_.nvrtcGetNumSupportedArchs(&count) == NVRTC_SUCCESS && count > 0) {
    architectures_.resize(static_cast<std::size_t>(count));
    if (call_.nvrtcGetSupportedArchs(architectures_.data()) != NVRTC_SUCCESS) architectures_.clear();
    std::sort(architectures_.begin(), architectures_.end());
  }
}

bool nvrtc::works() const {
  nvrtcProgram program = nullptr;
  if (call_.nvrtcCreateProgram(&program, "", "nothing.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS) return false;
  const nvrtcResult status = call_.nvrtcCompileProgram(program, 0, nullptr);
  call_.nvrtcDestroyProgram(&program);
  return status == NVRTC_SUCCESS;
}

bool nvrtc::knows(int architecture) const {
  return std::binary_search(architectures_.begin(), architectures_.end(), architecture);
}

result<std::string> nvrtc::target_of(const kernel_code& code, int architecture) const {
  if (architectures_.empty() || knows(architecture)) return "sm_" + std::to_string(architecture);
  const auto above = std::upper_bound(architectures_.begin(), architectures_.end(), architecture);
  if (above == architectures_.begin()) {
    return make_error(errc::incompatible, common::title_of(code) + " cannot be compiled for compute capability " +
                                              capability_text(architecture) + ": " + library_ + " begins with " +
                                              capability_text(architectures_.front()) +
                                              "; name that of an older toolkit in WEFT_CUDA_NVRTC");
  }
  return "compute_" + std::to_string(*std::prev(above));
}

result<compiled_image> nvrtc::compile(const kernel_code& code, int architecture, bool verbose) const {
  const std::string text = kernel_text(code, dialect::cuda);
  if (text.empty()) {
    return make_error(errc::unsupported, "the raw kernel '" + code.name +
                                             "' has no source for CUDA; it runs where one of its sources does");
  }
  auto target = target_of(code, architecture);
  if (!target) return std::move(target).error();
  std::vector<std::string> options = kernel_options(code, dialect::cuda, 0);
  if (code.raw) {
    for (std::string& folder : include_options()) options.push_back(std::move(folder));
  }
  options.push_back("--gpu-architecture=" + *target);
  if (verbose) options.emplace_back("--ptxas-options=-v");
  const bool is_ptx = target->starts_with("compute_");
  const program_calls calls{"NVRTC",
                            ".cu",
                            NVRTC_ERROR_OUT_OF_MEMORY,
                            call_.nvrtcCreateProgram,
                            call_.nvrtcDestroyProgram,
                            call_.nvrtcCompileProgram,
                            call_.nvrtcGetProgramLogSize,
                            call_.nvrtcGetProgramLog,
                            is_ptx ? call_.nvrtcGetPTXSize : call_.nvrtcGetCUBINSize,
                            is_ptx ? call_.nvrtcGetPTX : call_.nvrtcGetCUBIN};
  auto made = compile_text<nvrtcProgram>(calls, library_, code, text, *target, options);
  if (made) made->is_ptx = is_ptx;
  return made;
}

result<std::shared_ptr<const nvrtc>> load_nvrtc(const std::string& library, int driver_version) {
  const std::string named = library.empty() ? detail::environment("WEFT_CUDA_NVRTC").value_or("") : library;
  if (!named.empty()) {
    auto made = open_one(named);
    if (!made) made.error().what = "the compiler named for CUDA kernels cannot be used: " + made.error().what;
    return made;
  }
  // A driver loads the machine code of its own major version and older ones.
  struct version {
    const char* file;
    int major;
  };
  constexpr std::array versions{version{"libnvrtc.so.13", 13}, version{"libnvrtc.so.12", 12},
                                version{"libnvrtc.so.11.2", 11}};
  std::string first_reason;
  for (const bool newer_than_driver : {false, true}) {
    for (const version& one : versions) {
      if ((driver_version > 0 && one.major > driver_version / 1000) != newer_than_driver) continue;
      std::vector<std::string> places{one.file};
      for (const std::string& folder : toolkits()) {
        for (const char* const below : {"/lib64/", "/lib/"}) places.push_back(folder + below + one.file);
      }
      for (const std::string& place : places) {
        auto made = open_one(place);
        if (made && (*made)->works()) return made;
        if (first_reason.empty())
          first_reason = made ? place + " compiles nothing: are its builtins missing?" : made.error().what;
      }
    }
  }
  return make_error(errc::unsupported,
                    "CUDA kernels need NVRTC, of which neither libnvrtc.so.13, .12 nor .11.2 was found (" +
                        first_reason +
                        "); install it (the package libnvrtc of your system, or pip's nvidia-cuda-nvrtc), or name its "
                        "file in WEFT_CUDA_NVRTC");
}

result<void> compile(const kernel_code& code) noexcept {
  try {
    constexpr int oldest = 70;  // rings order their accesses with the host's from there on
    auto with = load_nvrtc({}, 0);
    if (!with) return std::move(with).error();
    const std::vector<int>& known = (*with)->architectures();
    const auto first = std::find_if(known.begin(), known.end(), [](int one) { return one >= oldest; });
    auto made = (*with)->compile(code, first == known.end() ? oldest : *first);
    if (!made) return std::move(made).error();
    return {};
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
}

}  // namespace weft::gpu
