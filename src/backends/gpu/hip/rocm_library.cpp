// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/hip/rocm_library.hpp"

#include "core/environment.hpp"

#include <dlfcn.h>
#include <vector>

namespace weft::gpu::amd {

rocm_library open_rocm_library(const std::string& wanted, const std::string& base, std::initializer_list<int> versions,
                               std::string& why) {
  std::vector<rocm_library> places;
  if (!wanted.empty()) {
    places.push_back({nullptr, wanted, 0});
  } else {
    const std::string folder = detail::environment("ROCM_PATH").value_or("/opt/rocm") + "/lib/";
    for (const int version : versions) {
      const std::string name = base + "." + std::to_string(version);
      places.push_back({nullptr, name, version});
      places.push_back({nullptr, folder + name, version});
    }
  }
  for (rocm_library& one : places) {
    one.handle = ::dlopen(one.name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (one.handle != nullptr) return one;
    const char* const said = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    if (why.empty()) why = said != nullptr ? said : "it could not be opened";
  }
  return {};
}

}  // namespace weft::gpu::amd
