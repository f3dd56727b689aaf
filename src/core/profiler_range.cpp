// SPDX-License-Identifier: Apache-2.0
// Sources: nvtxTypes.h and nvtxInit.h of NVTX 3 (how a tool puts itself into a process); rocTX's roctx.h.
#include "core/profiler_range.hpp"

#include "core/environment.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <mutex>
#include <new>

namespace weft::detail {
namespace {

// ---- NVTX: the tool's library asks where to put its functions -------------------------------------------------------

using any_function = void (*)();

constexpr unsigned places_of_core = 16;
/// Of the modules from 1 on, core, CUDA, OpenCL, CUDA run time, domains and synchronisation: how many functions each
/// has, with the number 0, which is none.
constexpr std::array<unsigned, 7> module_sizes{0, places_of_core, 9, 15, 7, 16, 7};
constexpr int domains = 5;
constexpr std::size_t push_in_domain = 4, pop_in_domain = 5, create_domain = 12;

struct module_functions {
  std::array<any_function, places_of_core> functions{};
  std::array<any_function*, places_of_core> places{};
};
constinit std::array<module_functions, module_sizes.size()> modules{};

int give_functions(int module, any_function*** table, unsigned* size) {
  if (module <= 0 || static_cast<std::size_t>(module) >= module_sizes.size()) return 0;
  module_functions& one = modules[static_cast<std::size_t>(module)];
  const unsigned count = module_sizes[static_cast<std::size_t>(module)];
  for (unsigned i = 1; i < count; ++i) one.places[i] = &one.functions[i];
  if (table != nullptr) *table = one.places.data();
  if (size != nullptr) *size = count;
  return 1;
}

void take_version(std::uint32_t /*of_tool*/) {}

struct callbacks_table {
  std::size_t size = sizeof(callbacks_table);
  int (*functions)(int, any_function***, unsigned*) = &give_functions;
};
struct version_table {
  std::size_t size = sizeof(version_table);
  std::uint32_t version = 3;
  std::uint32_t reserved = 0;
  void (*take)(std::uint32_t) = &take_version;
};

const void* give_table(std::uint32_t id) {
  static constexpr callbacks_table callbacks;
  static constexpr version_table version;
  constexpr std::uint32_t callbacks_id = 1, version_id = 3;
  return id == callbacks_id ? static_cast<const void*>(&callbacks) : id == version_id ? &version : nullptr;
}

/// The name of a range, as the tool reads it.
struct nvtx_event {
  std::uint16_t version = 3;
  std::uint16_t size = sizeof(nvtx_event);
  std::uint32_t category = 0;
  std::int32_t color_type = 0;
  std::uint32_t color = 0;
  std::int32_t payload_type = 0;
  std::int32_t reserved = 0;
  std::uint64_t payload = 0;
  std::int32_t message_type = 1;  // text of chars
  const char* message = nullptr;
};
static_assert(sizeof(nvtx_event) == 48);

constinit void* nvtx_domain = nullptr;

bool open_nvtx() {
  const auto file = environment("NVTX_INJECTION64_PATH");
  if (!file) return false;
  void* const library = ::dlopen(file->c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return false;
  using start_function = int (*)(const void* (*)(std::uint32_t));
  const auto start = reinterpret_cast<start_function>(::dlsym(library, "InitializeInjectionNvtx2"));
  if (start == nullptr || start(&give_table) == 0) return false;
  const auto& offered = modules[domains].functions;
  if (offered[push_in_domain] == nullptr || offered[pop_in_domain] == nullptr) return false;
  if (offered[create_domain] != nullptr)
    nvtx_domain = reinterpret_cast<void* (*)(const char*)>(offered[create_domain])("weft");
  return true;
}

// ---- rocTX: a library with two functions ----------------------------------------------------------------------------

using roctx_push_function = int (*)(const char*);
using roctx_pop_function = int (*)();
constinit roctx_push_function roctx_push = nullptr;
constinit roctx_pop_function roctx_pop = nullptr;

/// One that a profiler has put into this process; else, where a profiler announces itself, the newest.
bool open_roctx() {
  const auto take = [](void* from) {
    roctx_push = reinterpret_cast<roctx_push_function>(::dlsym(from, "roctxRangePushA"));
    roctx_pop = reinterpret_cast<roctx_pop_function>(::dlsym(from, "roctxRangePop"));
    return roctx_push != nullptr && roctx_pop != nullptr;
  };
  if (take(RTLD_DEFAULT)) return true;
  if (!environment("ROCP_TOOL_LIBRARIES") && !environment("HSA_TOOLS_LIB")) return false;
  for (const char* name : {"librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "libroctx64.so.4"}) {
    void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr && take(library)) return true;
  }
  return false;
}

}  // namespace

constinit std::atomic<profiler_range::listener> profiler_range::found{listener::unknown};

bool profiler_range::look() noexcept {
  static constinit std::mutex once;
  const std::lock_guard lock{once};
  listener now = found.load(std::memory_order_relaxed);
  if (now != listener::unknown) return now != listener::none;
  try {
    now = open_nvtx() ? listener::nvtx : open_roctx() ? listener::roctx : listener::none;
  } catch (const std::bad_alloc&) {
    return false;  // asked again
  }
  found.store(now, std::memory_order_release);
  return now != listener::none;
}

void profiler_range::push(const std::string& words) {
  if (found.load(std::memory_order_acquire) == listener::roctx) {
    roctx_push(words.c_str());
    return;
  }
  nvtx_event event;
  event.message = words.c_str();
  reinterpret_cast<int (*)(void*, const nvtx_event*)>(modules[domains].functions[push_in_domain])(nvtx_domain, &event);
}

void profiler_range::pop() noexcept {
  if (found.load(std::memory_order_acquire) == listener::roctx) {
    roctx_pop();
  } else {
    reinterpret_cast<int (*)(void*)>(modules[domains].functions[pop_in_domain])(nvtx_domain);
  }
}

}  // namespace weft::detail
