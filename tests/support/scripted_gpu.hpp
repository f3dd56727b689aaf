// SPDX-License-Identifier: Apache-2.0
// A CUDA driver made of functions: it has devices that answer questions, memory that is numbers, and contexts. What it
// is asked for is written down, and any call can be told to fail. For what the host code of the backend does with a
// driver's answers; programs run on the virtual driver.
#pragma once

#include "backends/gpu/cuda/cuda.hpp"
#include "backends/gpu/driver/driver_functions.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft::test {

struct scripted_device {
  std::string name = "Scripted GPU";
  std::string pci = "0000:17:00.0";
  unsigned char uuid = 0x10;  // every byte
  std::uint64_t memory = std::uint64_t{1} << 30;
  std::map<int, int> attributes;
};

/// The one of the process; made anew by every test.
struct scripted_gpu {
  static scripted_gpu& get() {
    static scripted_gpu one;
    return one;
  }

  std::mutex mutex;
  int version = 13000;
  std::vector<scripted_device> devices;
  std::map<std::pair<int, int>, std::map<int, int>> pairs;  // attributes of peers
  std::map<std::string, int> fails;                         // what a function answers instead of doing anything
  std::vector<std::string> calls;                           // in order, with the arguments that matter
  std::map<unsigned long long, std::size_t> memory;         // address → size
  std::map<int, std::size_t> used;
  unsigned long long next = 0x7000'0000'0000;
  std::map<int, int> retained;
  int generation = 0;
  static inline thread_local std::vector<gpu::CUcontext> stack;

  /// What the call is to answer, and that it was made.
  int called(const std::string& name, const std::string& with = "") {
    const std::lock_guard lock{mutex};
    calls.push_back(with.empty() ? name : name + " " + with);
    const auto it = fails.find(name);
    return it == fails.end() ? gpu::CUDA_SUCCESS : it->second;
  }
  [[nodiscard]] int count(const std::string& name) {
    const std::lock_guard lock{mutex};
    return static_cast<int>(std::count_if(calls.begin(), calls.end(), [&](const std::string& call) {
      return call == name || call.starts_with(name + " ");
    }));
  }
  static gpu::CUcontext context_of(int device) {
    return reinterpret_cast<gpu::CUcontext>(static_cast<std::uintptr_t>(0x1000 + device));
  }
  static int device_of(gpu::CUcontext context) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 0x1000;
  }
  gpu::CUcontext owner = nullptr;  // of all memory, as it tells; null: it does not
  static int current() { return stack.empty() ? -1 : device_of(stack.back()); }
};

namespace scripted {

template <class F>
struct refusal;
template <class... A>
struct refusal<int (*)(A...)> {
  static int call(A...) { return gpu::CUDA_ERROR_NOT_SUPPORTED; }
};

inline bool known(int device) { return device >= 0 && device < static_cast<int>(scripted_gpu::get().devices.size()); }

}  // namespace scripted

/// `devices` of one kind, and a table that answers for them.
inline gpu::driver_functions scripted_table(int devices = 1) {
  using namespace gpu;
  scripted_gpu& all = scripted_gpu::get();
  all.version = 13000;
  all.devices.assign(static_cast<std::size_t>(devices), {});
  all.pairs.clear();
  all.fails.clear();
  all.calls.clear();
  all.memory.clear();
  all.used.clear();
  all.retained.clear();
  scripted_gpu::stack.clear();
  for (int i = 0; i < devices; ++i) {
    scripted_device& one = all.devices[static_cast<std::size_t>(i)];
    one.uuid = static_cast<unsigned char>(0x10 + i);
    one.pci = "0000:1" + std::to_string(i) + ":00.0";
    one.attributes = {{multiprocessor_count, 8},
                      {compute_capability_major, 9},
                      {unified_addressing, 1},
                      {memory_pools_supported, 1},
                      {can_use_host_pointer_for_registered_mem, 1},
                      {host_numa_id, -1},
                      {stream_priorities_supported, 1}};
  }

  driver_functions t;
#define WEFT_SCRIPTED_REFUSE(name, version, parameters) t.name = &scripted::refusal<decltype(t.name)>::call;
#define WEFT_SCRIPTED_SKIP(name, version, parameters)
  WEFT_GPU_DRIVER_FUNCTIONS(WEFT_SCRIPTED_REFUSE, WEFT_SCRIPTED_SKIP)
#undef WEFT_SCRIPTED_REFUSE
#undef WEFT_SCRIPTED_SKIP

  t.cuInit = [](unsigned) { return scripted_gpu::get().called("cuInit"); };
  t.cuDriverGetVersion = [](int* version) {
    *version = scripted_gpu::get().version;
    return scripted_gpu::get().called("cuDriverGetVersion");
  };
  t.cuGetErrorName = [](CUresult error, const char** text) -> CUresult {
    static std::map<int, std::string> names;
    const std::lock_guard lock{scripted_gpu::get().mutex};
    *text = names.try_emplace(error, "SCRIPTED_" + std::to_string(error)).first->second.c_str();
    return CUDA_SUCCESS;
  };
  t.cuGetErrorString = [](CUresult, const char** text) -> CUresult {
    *text = "in the driver's own words";
    return CUDA_SUCCESS;
  };
  t.cuDeviceGetCount = [](int* count) -> CUresult {
    *count = static_cast<int>(scripted_gpu::get().devices.size());
    return scripted_gpu::get().called("cuDeviceGetCount");
  };
  t.cuDeviceGet = [](CUdevice* device, int ordinal) -> CUresult {
    *device = ordinal;
    return scripted_gpu::get().called("cuDeviceGet", std::to_string(ordinal));
  };
  t.cuDeviceGetName = [](char* name, int size, CUdevice device) -> CUresult {
    std::snprintf(name, static_cast<std::size_t>(size), "%s",
                  scripted_gpu::get().devices[static_cast<std::size_t>(device)].name.c_str());
    return CUDA_SUCCESS;
  };
  t.cuDeviceGetUuid = [](CUuuid* uuid, CUdevice device) -> CUresult {
    std::memset(uuid, scripted_gpu::get().devices[static_cast<std::size_t>(device)].uuid, sizeof *uuid);
    return scripted_gpu::get().called("cuDeviceGetUuid");
  };
  t.cuDeviceGetAttribute = [](int* value, int attribute, CUdevice device) -> CUresult {
    const auto& known = scripted_gpu::get().devices[static_cast<std::size_t>(device)].attributes;
    const auto it = known.find(attribute);
    *value = it == known.end() ? 0 : it->second;
    return CUDA_SUCCESS;
  };
  t.cuDeviceTotalMem = [](std::size_t* size, CUdevice device) -> CUresult {
    *size = scripted_gpu::get().devices[static_cast<std::size_t>(device)].memory;
    return scripted_gpu::get().called("cuDeviceTotalMem", std::to_string(device));
  };
  t.cuDeviceGetPCIBusId = [](char* address, int size, CUdevice device) -> CUresult {
    std::snprintf(address, static_cast<std::size_t>(size), "%s",
                  scripted_gpu::get().devices[static_cast<std::size_t>(device)].pci.c_str());
    return CUDA_SUCCESS;
  };
  t.cuDeviceGetP2PAttribute = [](int* value, int attribute, CUdevice from, CUdevice to) -> CUresult {
    const auto& of_pair = scripted_gpu::get().pairs[{from, to}];
    const auto it = of_pair.find(attribute);
    *value = it == of_pair.end() ? 0 : it->second;
    return CUDA_SUCCESS;
  };
  t.cuDeviceCanAccessPeer = [](int* can, CUdevice from, CUdevice to) -> CUresult {
    *can = scripted_gpu::get().pairs.contains({from, to}) ? 1 : 0;
    return CUDA_SUCCESS;
  };

  t.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice device) -> CUresult {
    scripted_gpu& g = scripted_gpu::get();
    if (const int failed = g.called("cuDevicePrimaryCtxRetain", std::to_string(device)); failed != 0) return failed;
    const std::lock_guard lock{g.mutex};
    ++g.retained[device];
    *context = scripted_gpu::context_of(device);
    return CUDA_SUCCESS;
  };
  t.cuDevicePrimaryCtxRelease = [](CUdevice device) -> CUresult {
    scripted_gpu& g = scripted_gpu::get();
    const int answer = g.called("cuDevicePrimaryCtxRelease", std::to_string(device));
    const std::lock_guard lock{g.mutex};
    --g.retained[device];
    return answer;
  };
  t.cuDevicePrimaryCtxReset = [](CUdevice device) -> CUresult {
    return scripted_gpu::get().called("cuDevicePrimaryCtxReset", std::to_string(device));
  };
  t.cuCtxGetCurrent = [](CUcontext* context) -> CUresult {
    *context = scripted_gpu::stack.empty() ? nullptr : scripted_gpu::stack.back();
    return CUDA_SUCCESS;
  };
  t.cuCtxPushCurrent = [](CUcontext context) -> CUresult {
    if (const int failed = scripted_gpu::get().called("cuCtxPushCurrent"); failed != 0) return failed;
    scripted_gpu::stack.push_back(context);
    return CUDA_SUCCESS;
  };
  t.cuCtxPopCurrent = [](CUcontext* context) -> CUresult {
    static_cast<void>(scripted_gpu::get().called("cuCtxPopCurrent"));
    if (scripted_gpu::stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = scripted_gpu::stack.back();
    scripted_gpu::stack.pop_back();
    return CUDA_SUCCESS;
  };
  t.cuCtxEnablePeerAccess = [](CUcontext peer, unsigned) -> CUresult {
    return scripted_gpu::get().called("cuCtxEnablePeerAccess", std::to_string(scripted_gpu::current()) + ">" +
                                                                   std::to_string(scripted_gpu::device_of(peer)));
  };
  t.cuCtxDisablePeerAccess = [](CUcontext peer) -> CUresult {
    return scripted_gpu::get().called("cuCtxDisablePeerAccess", std::to_string(scripted_gpu::current()) + ">" +
                                                                    std::to_string(scripted_gpu::device_of(peer)));
  };
  t.cuMemAlloc = [](CUdeviceptr* address, std::size_t size) -> CUresult {
    scripted_gpu& g = scripted_gpu::get();
    if (scripted_gpu::current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (const int failed = g.called("cuMemAlloc", "on " + std::to_string(scripted_gpu::current())); failed != 0)
      return failed;
    const std::lock_guard lock{g.mutex};
    *address = g.next;
    g.next += (size + 0xFFFF) / 0x10000 * 0x10000;
    g.memory[*address] = size;
    return CUDA_SUCCESS;
  };
  t.cuMemFree = [](CUdeviceptr address) -> CUresult {
    scripted_gpu& g = scripted_gpu::get();
    if (const int failed = g.called("cuMemFree", "on " + std::to_string(scripted_gpu::current())); failed != 0)
      return failed;
    const std::lock_guard lock{g.mutex};
    return g.memory.erase(address) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  t.cuPointerGetAttribute = [](void* value, int attribute, CUdeviceptr address) -> CUresult {
    scripted_gpu& g = scripted_gpu::get();
    const std::lock_guard lock{g.mutex};
    const auto it = g.memory.upper_bound(address);
    if (it == g.memory.begin() || address - std::prev(it)->first >= std::prev(it)->second)
      return CUDA_ERROR_INVALID_VALUE;
    if (attribute == pointer_memory_type) *static_cast<unsigned*>(value) = memory_type_device;
    if (attribute == pointer_device_ordinal) *static_cast<int*>(value) = 0;
    if (attribute == pointer_context) *static_cast<CUcontext*>(value) = g.owner;
    return CUDA_SUCCESS;
  };
  t.cuMemGetAddressRange = [](CUdeviceptr* base, std::size_t* size, CUdeviceptr address) -> CUresult {
    scripted_gpu& g = scripted_gpu::get();
    const std::lock_guard lock{g.mutex};
    const auto it = std::prev(g.memory.upper_bound(address));
    *base = it->first;
    *size = it->second;
    return CUDA_SUCCESS;
  };
  t.cuMemHostRegister = [](void*, std::size_t, unsigned) -> CUresult {
    return scripted_gpu::get().called("cuMemHostRegister", "on " + std::to_string(scripted_gpu::current()));
  };
  t.cuMemHostUnregister = [](void*) -> CUresult {
    return scripted_gpu::get().called("cuMemHostUnregister", "on " + std::to_string(scripted_gpu::current()));
  };
  t.cuMemHostGetDevicePointer = [](CUdeviceptr* address, void* host, unsigned) -> CUresult {
    *address = reinterpret_cast<std::uintptr_t>(host);
    return CUDA_SUCCESS;
  };
  t.cuMemGetInfo = [](std::size_t* free, std::size_t* total) -> CUresult {
    const auto& one = scripted_gpu::get().devices[static_cast<std::size_t>(std::max(0, scripted_gpu::current()))];
    *free = *total = one.memory;
    return scripted_gpu::get().called("cuMemGetInfo");
  };
  return t;
}

/// Peers that reach each other in this direction.
inline void offer_peer(int from, int to, std::map<int, int> attributes = {{gpu::p2p_access_supported, 1}}) {
  scripted_gpu::get().pairs[{from, to}] = std::move(attributes);
}

}  // namespace weft::test
