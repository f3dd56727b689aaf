// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/cuda/nvml_functions.hpp"
#include "doctor/gather.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <dlfcn.h>
#include <unistd.h>
#include <vector>

namespace weft::tool {

namespace {

using gpu::nvmlDevice;

/// The library, started as long as the object lives.
class management {
 public:
  explicit management(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      const char* problem = ::dlerror();
      why_ = problem != nullptr ? problem : "it cannot be opened";
      return;
    }
#define WEFT_DOCTOR_LOOK_UP(name, parameters) \
  call.name = reinterpret_cast<decltype(call.name)>(::dlsym(handle_, #name));
    WEFT_GPU_NVML_FUNCTIONS(WEFT_DOCTOR_LOOK_UP)
#undef WEFT_DOCTOR_LOOK_UP
    if (call.nvmlInit_v2 == nullptr) {
      why_ = "it has no nvmlInit_v2";
    } else if (const int code = call.nvmlInit_v2(); code != 0) {
      why_ = fmt::format("nvmlInit_v2 gives {}{}", code,
                         code == 9    ? ": no driver is loaded"
                         : code == 18 ? ": the library and the kernel module are of different versions"
                         : code == 4  ? ": no permission"
                         : code == 12 ? ": the library is not found"
                                      : "");
      code_ = code;
    } else {
      is_open_ = true;
    }
  }
  management(const management&) = delete;
  management& operator=(const management&) = delete;
  ~management() {
    if (is_open_ && call.nvmlShutdown != nullptr) call.nvmlShutdown();
  }
  [[nodiscard]] bool is_open() const { return is_open_; }
  [[nodiscard]] const std::string& why() const { return why_; }
  [[nodiscard]] int code() const { return code_; }

  gpu::nvml_functions call;

 private:
  void* handle_;
  std::string why_;
  int code_ = 0;
  bool is_open_ = false;
};

/// A number that a function with one result gives; null where it does not.
template <class T, class Function, class... Given>
json one(Function function, nvmlDevice device, Given... given) {
  T value{};
  if (function == nullptr || function(device, given..., &value) != 0) return nullptr;
  return value;
}

/// Two results, the mode now and after the next reset.
json mode(int (*function)(nvmlDevice, unsigned*, unsigned*), nvmlDevice device) {
  unsigned now = 0;
  unsigned later = 0;
  if (function == nullptr || function(device, &now, &later) != 0) return nullptr;
  return {{"now", now != 0}, {"after_reset", later != 0}};
}

/// As the system writes it: "00000000:1B:00.0" is 0000:1b:00.0.
std::string address_of(const gpu::nvmlPciInfo& place) {
  std::string text{place.address, strnlen(place.address, sizeof place.address)};
  if (text.size() == 16 && text.starts_with("0000")) text.erase(0, 4);
  std::ranges::transform(text, text.begin(),
                         [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

/// How many there are, which of them are down, and errors of all since the driver was loaded.
json links_of(const gpu::nvml_functions& call, nvmlDevice device) {
  unsigned count = 0;
  unsigned long long errors = 0;
  json down = json::array();
  for (unsigned link = 0; call.nvmlDeviceGetNvLinkState != nullptr && link < gpu::nvml_max_links; ++link) {
    unsigned is_up = 0;
    if (call.nvmlDeviceGetNvLinkState(device, link, &is_up) != 0) continue;
    ++count;
    if (is_up == 0) down.push_back(link);
    for (unsigned counter = 0; counter < gpu::nvml_link_error_counters; ++counter) {
      unsigned long long seen = 0;
      if (call.nvmlDeviceGetNvLinkErrorCounter != nullptr &&
          call.nvmlDeviceGetNvLinkErrorCounter(device, link, counter, &seen) == 0)
        errors += seen;
    }
  }
  return {{"count", count}, {"down", std::move(down)}, {"errors", errors}};
}

json users_of(const gpu::nvml_functions& call, nvmlDevice device) {
  if (call.nvmlDeviceGetComputeRunningProcesses_v3 == nullptr) return nullptr;
  std::vector<gpu::nvmlProcess> processes(64);
  auto count = static_cast<unsigned>(processes.size());
  const int code = call.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes.data());
  if (code != 0 && code != gpu::nvml_too_small) return nullptr;
  unsigned others = 0;
  unsigned long long used = 0;
  for (unsigned i = 0; i < std::min<std::size_t>(count, processes.size()); ++i) {
    if (processes[i].pid == static_cast<unsigned>(::getpid())) continue;
    ++others;
    if (processes[i].used_memory != ~0ULL) used += processes[i].used_memory;
  }
  return {{"processes", others}, {"memory", used}};
}

json fabric_of(const gpu::nvml_functions& call, nvmlDevice device) {
  gpu::nvmlFabric fabric{};
  if (call.nvmlDeviceGetGpuFabricInfo == nullptr || call.nvmlDeviceGetGpuFabricInfo(device, &fabric) != 0)
    return nullptr;
  return {{"state", fabric.state}, {"status", fabric.status}, {"clique", fabric.clique}};
}

json remapped_of(const gpu::nvml_functions& call, nvmlDevice device) {
  unsigned corrected = 0;
  unsigned uncorrected = 0;
  unsigned is_pending = 0;
  unsigned has_failed = 0;
  if (call.nvmlDeviceGetRemappedRows == nullptr ||
      call.nvmlDeviceGetRemappedRows(device, &corrected, &uncorrected, &is_pending, &has_failed) != 0)
    return nullptr;
  return {{"corrected", corrected},
          {"uncorrected", uncorrected},
          {"pending", is_pending != 0},
          {"failed", has_failed != 0}};
}

json clock_reasons_of(const gpu::nvml_functions& call, nvmlDevice device) {
  return one<unsigned long long>(call.nvmlDeviceGetCurrentClocksEventReasons != nullptr
                                     ? call.nvmlDeviceGetCurrentClocksEventReasons
                                     : call.nvmlDeviceGetCurrentClocksThrottleReasons,
                                 device);
}

json gpu_of(const gpu::nvml_functions& call, nvmlDevice device) {
  std::array<char, 97> name{};
  gpu::nvmlMemory memory{};
  gpu::nvmlBar1Memory window{};
  json made;
  made["name"] = call.nvmlDeviceGetName != nullptr &&
                         call.nvmlDeviceGetName(device, name.data(), static_cast<unsigned>(name.size() - 1)) == 0
                     ? json(name.data())
                     : json(nullptr);
  const bool has_memory = call.nvmlDeviceGetMemoryInfo != nullptr && call.nvmlDeviceGetMemoryInfo(device, &memory) == 0;
  made["memory"] = has_memory ? json(memory.total) : json(nullptr);
  const bool has_window =
      call.nvmlDeviceGetBAR1MemoryInfo != nullptr && call.nvmlDeviceGetBAR1MemoryInfo(device, &window) == 0;
  made["bar1"] = has_window ? json(window.total) : json(nullptr);
  made["persistence"] = one<unsigned>(call.nvmlDeviceGetPersistenceMode, device);
  made["mig"] = mode(call.nvmlDeviceGetMigMode, device);
  made["compute_mode"] = one<unsigned>(call.nvmlDeviceGetComputeMode, device);
  made["ecc"] = mode(call.nvmlDeviceGetEccMode, device);
  made["memory_errors"] = one<unsigned long long>(call.nvmlDeviceGetTotalEccErrors, device,
                                                  gpu::nvml_memory_error_uncorrected, gpu::nvml_ecc_volatile);
  made["remapped_rows"] = remapped_of(call, device);
  made["retirement_pending"] = one<unsigned>(call.nvmlDeviceGetRetiredPagesPendingStatus, device);
  made["celsius"] = one<unsigned>(call.nvmlDeviceGetTemperature, device, gpu::nvml_temperature_gpu);
  made["slowdown_celsius"] =
      one<unsigned>(call.nvmlDeviceGetTemperatureThreshold, device, gpu::nvml_temperature_slowdown);
  made["clock_reasons"] = clock_reasons_of(call, device);
  made["pcie"] = {{"generation", one<unsigned>(call.nvmlDeviceGetCurrPcieLinkGeneration, device)},
                  {"lanes", one<unsigned>(call.nvmlDeviceGetCurrPcieLinkWidth, device)},
                  {"most_generation", one<unsigned>(call.nvmlDeviceGetMaxPcieLinkGeneration, device)},
                  {"most_lanes", one<unsigned>(call.nvmlDeviceGetMaxPcieLinkWidth, device)}};
  made["nvlinks"] = links_of(call, device);
  made["fabric"] = fabric_of(call, device);
  made["users"] = users_of(call, device);
  return made;
}

}  // namespace

json gather_nvml() {
  const char* chosen = ::secure_getenv("WEFT_CUDA_NVML");
  const management library{chosen != nullptr && *chosen != '\0' ? chosen : "libnvidia-ml.so.1"};
  if (!library.is_open()) return {{"why", library.why()}, {"code", library.code()}};
  const gpu::nvml_functions& call = library.call;
  std::array<char, 97> version{};
  int cuda = 0;
  json made;
  made["driver"] =
      call.nvmlSystemGetDriverVersion != nullptr &&
              call.nvmlSystemGetDriverVersion(version.data(), static_cast<unsigned>(version.size() - 1)) == 0
          ? json(version.data())
          : json(nullptr);
  made["cuda"] = call.nvmlSystemGetCudaDriverVersion_v2 != nullptr && call.nvmlSystemGetCudaDriverVersion_v2(&cuda) == 0
                     ? json(fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10))
                     : json(nullptr);
  unsigned count = 0;
  if (call.nvmlDeviceGetCount_v2 != nullptr) call.nvmlDeviceGetCount_v2(&count);
  std::vector<std::pair<std::string, nvmlDevice>> devices;
  made["gpus"] = json::object();
  for (unsigned i = 0; i < count && call.nvmlDeviceGetHandleByIndex_v2 != nullptr; ++i) {
    nvmlDevice device = nullptr;
    gpu::nvmlPciInfo place{};
    if (call.nvmlDeviceGetHandleByIndex_v2(i, &device) != 0 || call.nvmlDeviceGetPciInfo_v3 == nullptr ||
        call.nvmlDeviceGetPciInfo_v3(device, &place) != 0)
      continue;
    devices.emplace_back(address_of(place), device);
    made["gpus"][devices.back().first] = gpu_of(call, device);
  }
  made["p2p"] = json::object();
  for (const auto& [from, first] : devices) {
    for (const auto& [to, second] : devices) {
      if (from == to || call.nvmlDeviceGetP2PStatus == nullptr) continue;
      json& pair = made["p2p"][from][to];
      for (const auto& [what, index] : {std::pair{"read", gpu::nvml_p2p_read}, std::pair{"write", gpu::nvml_p2p_write},
                                        std::pair{"nvlink", gpu::nvml_p2p_nvlink}}) {
        unsigned status = 0;
        pair[what] = call.nvmlDeviceGetP2PStatus(first, second, index, &status) == 0 ? json(status) : json(nullptr);
      }
    }
  }
  return made;
}

}  // namespace weft::tool
