// SPDX-License-Identifier: Apache-2.0
// HIPRTC: the run-time compiler of the virtual driver under its other names, with its other options.
#include "backends/gpu/cuda/nvrtc_functions.hpp"
#include "virtual_driver/hip/runtime.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

extern "C" {
using weft::gpu::nvrtcProgram;
using weft::gpu::nvrtcResult;
nvrtcResult nvrtcCreateProgram(nvrtcProgram* handle, const char* source, const char* name, int header_count,
                               const char* const* headers, const char* const* include_names);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* handle);
nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int count, const char* const* options);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram handle, std::size_t* size);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram handle, char* bytes);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram handle, std::size_t* size);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram handle, char* text);
}

namespace weft::virtual_hip {

WEFT_VIRTUAL_API nvrtcResult hiprtcCreateProgram(nvrtcProgram* handle, const char* source, const char* name,
                                                 int header_count, const char** headers, const char** include_names) {
  return nvrtcCreateProgram(handle, source, name, header_count, headers, include_names);
}
WEFT_VIRTUAL_API nvrtcResult hiprtcDestroyProgram(nvrtcProgram* handle) { return nvrtcDestroyProgram(handle); }

/// An architecture that it does not know ends the process, as the real one's compiler does.
WEFT_VIRTUAL_API nvrtcResult hiprtcCompileProgram(nvrtcProgram handle, int count, const char** options) {
  std::vector<std::string> words{"-D__HIPCC_RTC__=1"};
  for (int n = 0; n < count; ++n) {
    const std::string_view word = options[n];
    constexpr std::string_view target = "--offload-arch=";
    if (word.starts_with(target)) {
      constexpr std::string_view known[] = {"gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100"};
      const std::string_view name = word.substr(target.size(), word.find(':') - target.size());
      if (std::find(std::begin(known), std::end(known), name) == std::end(known)) std::abort();
      words.emplace_back("--gpu-architecture=sm_90");
    } else if (word.starts_with("-std=")) {
      words.emplace_back("-" + std::string{word});
    } else if (word.starts_with("-I") || word.starts_with("-D")) {
      words.emplace_back(word);
    }
  }
  std::vector<const char*> given;
  for (const std::string& word : words) given.push_back(word.c_str());
  return nvrtcCompileProgram(handle, static_cast<int>(given.size()), given.data());
}
WEFT_VIRTUAL_API nvrtcResult hiprtcGetCodeSize(nvrtcProgram handle, std::size_t* size) {
  return nvrtcGetCUBINSize(handle, size);
}
WEFT_VIRTUAL_API nvrtcResult hiprtcGetCode(nvrtcProgram handle, char* bytes) { return nvrtcGetCUBIN(handle, bytes); }
WEFT_VIRTUAL_API nvrtcResult hiprtcGetProgramLogSize(nvrtcProgram handle, std::size_t* size) {
  return nvrtcGetProgramLogSize(handle, size);
}
WEFT_VIRTUAL_API nvrtcResult hiprtcGetProgramLog(nvrtcProgram handle, char* text) {
  return nvrtcGetProgramLog(handle, text);
}

}  // namespace weft::virtual_hip
