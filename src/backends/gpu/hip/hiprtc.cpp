// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/hip/hiprtc.hpp"

#include "backend/kernels/kernel_text.hpp"
#include "backends/common/compiler_words.hpp"
#include "backends/gpu/factory.hpp"
#include "backends/gpu/hip/hip.hpp"
#include "backends/gpu/hip/rocm_library.hpp"
#include "backends/gpu/kernels/compile_text.hpp"
#include "core/environment.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <array>
#include <dlfcn.h>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::gpu::amd {
namespace {

/// Since which version of ROCm, as 1000 times major + 10 times minor, its compiler serves an architecture for sure.
/// Source: the releases' lists of supported GPUs, and the targets of their LLVM.
struct served_architecture {
  int number;
  int since;
};
constexpr std::array served{
    served_architecture{0x803, 5000},  served_architecture{0x900, 5000},  served_architecture{0x906, 5000},
    served_architecture{0x908, 5000},  served_architecture{0x90a, 5000},  served_architecture{0x1010, 5000},
    served_architecture{0x1012, 5000}, served_architecture{0x1030, 5000}, served_architecture{0x942, 5070},
    served_architecture{0x1100, 5070}, served_architecture{0x1101, 5070}, served_architecture{0x1102, 5070},
    served_architecture{0x950, 7000},  served_architecture{0x1150, 7000}, served_architecture{0x1151, 7000},
    served_architecture{0x1200, 7000}, served_architecture{0x1201, 7000},
};
constexpr int everywhere = 0x90a;  // on which all that weft's kernels may say compiles, and every version serves

/// Of the release that a library is of: a compiler inside the runtime knows that one's, a library of its own has the
/// major version in its name.
int version_of(const rocm_library& found) {
  auto* const ask = reinterpret_cast<CUresult (*)(int*)>(::dlsym(found.handle, "hipDriverGetVersion"));
  int version = 0;
  if (ask != nullptr && ask(&version) == CUDA_SUCCESS) return hip_version(version);
  return 1000 * found.major;
}

/// A runtime with a compiler inside must not start twice on GPUs: where there are some, it stands where all find it.
library_place place_of(std::string_view base) {
  return base == "libamdhip64.so" && can_have_gpus() ? library_place::among_others : library_place::alone;
}

result<std::shared_ptr<const hiprtc>> table_of(const rocm_library& found, int driver_version) {
  hiprtc_functions table;
  std::string missing;
#define WEFT_GPU_LOOK_UP(name, parameters)                                           \
  table.name = reinterpret_cast<decltype(table.name)>(::dlsym(found.handle, #name)); \
  if (table.name == nullptr) missing += missing.empty() ? #name : ", " #name;
  WEFT_GPU_HIPRTC_FUNCTIONS(WEFT_GPU_LOOK_UP)
#undef WEFT_GPU_LOOK_UP
  if (!missing.empty()) return make_error(errc::unsupported, found.name + " is no HIPRTC: it has no " + missing);
  return std::make_shared<const hiprtc>(table, found.name, version_of(found), driver_version);
}

}  // namespace

bool hiprtc::knows(int architecture) const {
  // a runtime shows no GPU that the compiler of its release does not serve
  if (version_ != 0 && version_ / 1000 == driver_version_ / 1000) return true;
  return std::any_of(served.begin(), served.end(), [&](const served_architecture& one) {
    return one.number == architecture && (version_ == 0 || one.since <= version_);
  });
}

result<compiled_image> hiprtc::compile(const kernel_code& code, int architecture, bool verbose) const {
  const std::string text = kernel_text(code, dialect::hip);
  if (text.empty()) {
    return make_error(errc::unsupported, "the raw kernel '" + code.name +
                                             "' has no source for HIP; it runs where one of its sources does");
  }
  const std::string target = gfx_name(architecture);
  if (!knows(architecture)) {
    return make_error(errc::incompatible, common::title_of(code) + " cannot be compiled for " + target + ": " +
                                              library_ +
                                              " may not serve it, and would then end the process; name the HIPRTC of "
                                              "the runtime's own release in WEFT_HIP_HIPRTC");
  }
  std::vector<std::string> options = kernel_options(code, dialect::hip, 0);
  options.push_back("--offload-arch=" + target);
  if (verbose) options.emplace_back("-Rpass-analysis=kernel-resource-usage");
  const program_calls calls{"HIPRTC",
                            ".hip",
                            HIPRTC_ERROR_OUT_OF_MEMORY,
                            call_.hiprtcCreateProgram,
                            call_.hiprtcDestroyProgram,
                            call_.hiprtcCompileProgram,
                            call_.hiprtcGetProgramLogSize,
                            call_.hiprtcGetProgramLog,
                            call_.hiprtcGetCodeSize,
                            call_.hiprtcGetCode};
  return compile_text<hiprtcProgram>(calls, library_, code, text, target, options);
}

result<std::shared_ptr<const hiprtc>> load_hiprtc(const std::string& library, int driver_version) {
  const std::string named = library.empty() ? detail::environment("WEFT_HIP_HIPRTC").value_or("") : library;
  const int driver_major = driver_version / 1000;
  std::string why;
  if (!named.empty()) {
    const rocm_library found = open_rocm_library(named, {}, {}, library_place::among_others, why);
    if (found.handle != nullptr) return table_of(found, driver_version);
    return make_error(errc::unsupported, "the compiler named for HIP kernels cannot be used: " + why);
  }
  // a runtime loads the code objects of its own release and older ones; before 7 the compiler is in the runtime, too
  for (const int major : {7, 6, 5}) {
    if (driver_major != 0 && major > driver_major) continue;
    for (const char* const base : {"libhiprtc.so", "libamdhip64.so"}) {
      const rocm_library found = open_rocm_library({}, base, {major}, place_of(base), why);
      if (found.handle == nullptr) continue;
      if (auto made = table_of(found, driver_version)) return made;
    }
  }
  return make_error(errc::unsupported,
                    "HIP kernels need HIPRTC, of which neither libhiprtc.so.7, .6 nor .5 was found (" + why +
                        "); install it (hip-runtime-amd of ROCm), or name its file in WEFT_HIP_HIPRTC");
}

}  // namespace weft::gpu::amd

namespace weft::gpu {

result<void> compile_for_hip(const kernel_code& code) noexcept {
  try {
    auto with = amd::load_hiprtc({}, 0);
    if (!with) return std::move(with).error();
    auto made = (*with)->compile(code, amd::everywhere);
    if (!made) return std::move(made).error();
    return {};
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
}

}  // namespace weft::gpu
