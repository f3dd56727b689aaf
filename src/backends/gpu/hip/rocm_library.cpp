// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/hip/rocm_library.hpp"

#include "core/environment.hpp"

#include <dlfcn.h>
#include <mutex>
#include <unistd.h>
#include <vector>

namespace weft::gpu::amd {
namespace {

void* open(const std::string& name, library_place place) {
  constexpr int mode = RTLD_NOW | RTLD_LOCAL;
  if (place == library_place::among_others) return ::dlopen(name.c_str(), mode);
  static std::mutex guard;
  static Lmid_t ours = LM_ID_NEWLM;  // one namespace for all: a process can have few
  const std::scoped_lock hold(guard);
  void* const opened = ::dlmopen(ours, name.c_str(), mode);
  if (opened != nullptr && ours == LM_ID_NEWLM) ::dlinfo(opened, RTLD_DI_LMID, &ours);
  return opened;
}

}  // namespace

bool can_have_gpus() { return ::access("/dev/kfd", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0; }

rocm_library open_rocm_library(const std::string& wanted, const std::string& base, std::initializer_list<int> versions,
                               library_place place, std::string& why) {
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
    one.handle = open(one.name, place);
    if (one.handle != nullptr) return one;
    const char* const said = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    if (why.empty()) why = said != nullptr ? said : "it could not be opened";
  }
  return {};
}

}  // namespace weft::gpu::amd
