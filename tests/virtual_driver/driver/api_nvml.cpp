// SPDX-License-Identifier: Apache-2.0
// The management library: what it says about the devices of the machine, all of them, whatever is visible to CUDA.
#include "backends/gpu/cuda/nvml_functions.hpp"
#include "virtual_driver/driver/call.hpp"

#include <cctype>
#include <cstdio>
#include <cstring>
#include <strings.h>

namespace weft::virtual_cuda {
namespace {

constexpr nvmlReturn invalid_argument = 2, not_supported = 3, uninitialized = 1, not_found = 6, small = 7;
std::atomic<int> started{0};

std::string pci_of(int n) {
  const std::string& given_address = given().machine.devices[static_cast<std::size_t>(n)].pci_address;
  if (!given_address.empty()) return given_address;
  char text[16];
  std::snprintf(text, sizeof text, "0000:%02x:00.0", static_cast<unsigned>(1 + n));
  return text;
}

// Handles are numbers from 1 on.
int index_of(nvmlDevice device) {
  const auto n = reinterpret_cast<std::uintptr_t>(device);
  return n >= 1 && n <= given().machine.devices.size() ? static_cast<int>(n) - 1 : -1;
}
nvmlDevice handle_of(int n) { return reinterpret_cast<nvmlDevice>(static_cast<std::uintptr_t>(n) + 1); }

// The device at the other end of the l-th NVLink, −1 where it is a switch, −2 without such a link.
int remote_of(int n, unsigned link) {
  const topology& m = given().machine;
  unsigned seen = 0;
  for (const topology_link& l : m.links) {
    if (l.from != n || l.kind != link_kind::nvlink) continue;
    const auto lanes = static_cast<unsigned>(l.lanes > 0 ? l.lanes : 1);
    if (link < seen + lanes) return l.to < m.device_count() ? l.to : -1;
    seen += lanes;
  }
  return -2;
}

template <class F>
nvmlReturn device_call(const char* name, bool arguments, nvmlDevice device, F&& f) noexcept {
  if (const CUresult code = begin_call(name); code != 0) return code;
  if (started.load() == 0) return uninitialized;
  const int n = index_of(device);
  return !arguments || n < 0 ? invalid_argument : f(n);
}

template <class F>
nvmlReturn link_call(const char* name, bool arguments, nvmlDevice device, unsigned link, F&& f) noexcept {
  return device_call(name, arguments && link < nvml_max_links, device, [&](int n) {
    const int remote = remote_of(n, link);
    return remote == -2 ? not_supported : f(n, remote);
  });
}

template <class T>
nvmlReturn tell(T* out, T value) {
  *out = value;
  return NVML_SUCCESS;
}

template <class T>
nvmlReturn sense(T* out, const std::optional<T>& sensor, T more = 0) {
  return sensor ? tell(out, *sensor + more) : not_supported;
}

}  // namespace

WEFT_VIRTUAL_API nvmlReturn nvmlInit_v2() {
  if (const CUresult code = begin_call("nvmlInit_v2"); code != 0) return code;
  ++started;
  return NVML_SUCCESS;
}
WEFT_VIRTUAL_API nvmlReturn nvmlShutdown() {
  if (const CUresult code = begin_call("nvmlShutdown"); code != 0) return code;
  if (started.load() == 0) return uninitialized;
  --started;
  return NVML_SUCCESS;
}
WEFT_VIRTUAL_API const char* nvmlErrorString(nvmlReturn code) {
  switch (code) {
    case NVML_SUCCESS:
      return "Success";
    case uninitialized:
      return "Uninitialized";
    case invalid_argument:
      return "Invalid Argument";
    case not_supported:
      return "Not Supported";
    case not_found:
      return "Not Found";
    default:
      return "Unknown Error";
  }
}
WEFT_VIRTUAL_API nvmlReturn nvmlSystemGetDriverVersion(char* text, unsigned size) {
  if (const CUresult code = begin_call("nvmlSystemGetDriverVersion"); code != 0) return code;
  constexpr char version[] = "580.00 (weft virtual)";
  if (text == nullptr) return invalid_argument;
  if (size < sizeof version) return small;
  std::memcpy(text, version, sizeof version);
  return NVML_SUCCESS;
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char* address, nvmlDevice* device) {
  if (const CUresult code = begin_call("nvmlDeviceGetHandleByPciBusId_v2"); code != 0) return code;
  if (started.load() == 0) return uninitialized;
  if (address == nullptr || device == nullptr) return invalid_argument;
  for (int n = 0; n < given().machine.device_count(); ++n) {
    if (strcasecmp(pci_of(n).c_str(), address) == 0) return tell(device, handle_of(n));
  }
  return not_found;
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice* device) {
  if (const CUresult code = begin_call("nvmlDeviceGetHandleByUUID"); code != 0) return code;
  if (started.load() == 0) return uninitialized;
  if (uuid == nullptr || device == nullptr) return invalid_argument;
  for (int n = 0; n < given().machine.device_count(); ++n) {
    if (uuid_of(n).text() == uuid) return tell(device, handle_of(n));
  }
  return not_found;
}
WEFT_VIRTUAL_API nvmlReturn nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (const CUresult code = begin_call("nvmlSystemGetCudaDriverVersion_v2"); code != 0) return code;
  return version == nullptr ? invalid_argument : static_cast<nvmlReturn>(cuDriverGetVersion(version));
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetCount_v2(unsigned* count) {
  if (const CUresult code = begin_call("nvmlDeviceGetCount_v2"); code != 0) return code;
  if (started.load() == 0) return uninitialized;
  return count == nullptr ? invalid_argument : tell(count, static_cast<unsigned>(given().machine.device_count()));
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice* device) {
  if (const CUresult code = begin_call("nvmlDeviceGetHandleByIndex_v2"); code != 0) return code;
  if (started.load() == 0) return uninitialized;
  if (device == nullptr || index >= given().machine.devices.size()) return invalid_argument;
  return tell(device, handle_of(static_cast<int>(index)));
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetPciInfo_v3(nvmlDevice device, nvmlPciInfo* place) {
  return device_call("nvmlDeviceGetPciInfo_v3", place != nullptr, device, [&](int n) {
    *place = {};
    // eight digits of domain, and capital letters, as the library writes them
    std::snprintf(place->address, sizeof place->address, "0000%s", pci_of(n).c_str());
    for (char& letter : place->address) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    std::snprintf(place->legacy_address, sizeof place->legacy_address, "%s", pci_of(n).c_str());
    return NVML_SUCCESS;
  });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetName(nvmlDevice device, char* text, unsigned size) {
  return device_call("nvmlDeviceGetName", text != nullptr, device, [&](int n) {
    const std::string name = "Virtual " + given().machine.devices[static_cast<std::size_t>(n)].name;
    if (size <= name.size()) return small;
    std::memcpy(text, name.c_str(), name.size() + 1);
    return NVML_SUCCESS;
  });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetPersistenceMode(nvmlDevice device, unsigned* is_on) {
  return device_call("nvmlDeviceGetPersistenceMode", is_on != nullptr, device, [&](int) { return tell(is_on, 1U); });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetP2PStatus(nvmlDevice device, nvmlDevice peer, unsigned what,
                                                   unsigned* status) {
  return device_call("nvmlDeviceGetP2PStatus", status != nullptr && index_of(peer) >= 0 && what <= nvml_p2p_atomics,
                     device, [&](int n) {
                       const int other = index_of(peer);
                       const bool can = n != other && given().machine.can_access(device_id{n}, device_id{other});
                       return tell(status, can ? 0U : 1U);  // what a topology refuses, its chipset does
                     });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory* memory) {
  return device_call("nvmlDeviceGetMemoryInfo", memory != nullptr, device, [&](int n) {
    memory->total = given().machine.devices[static_cast<std::size_t>(n)].memory.value();
    memory->used = 0;
    for (int v = 0; is_open() && v < the().count(); ++v) {
      const auto& d = the().devices[static_cast<std::size_t>(v)];
      if (d.physical_index == n) memory->used = __atomic_load_n(&d.used, __ATOMIC_RELAXED);
    }
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
  });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetTemperature(nvmlDevice device, unsigned sensor, unsigned* celsius) {
  return device_call("nvmlDeviceGetTemperature", celsius != nullptr && sensor == nvml_temperature_gpu, device,
                     [&](int n) { return sense(celsius, given().health.celsius, static_cast<unsigned>(n)); });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetPowerUsage(nvmlDevice device, unsigned* milliwatts) {
  return device_call("nvmlDeviceGetPowerUsage", milliwatts != nullptr, device, [&](int) {
    const auto& watts = given().health.watts;
    return watts ? tell(milliwatts, 1000 * *watts) : not_supported;
  });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetUtilizationRates(nvmlDevice device, nvmlUtilization* rates) {
  return device_call("nvmlDeviceGetUtilizationRates", rates != nullptr, device, [&](int) {
    const auto& busy = given().health.busy;
    return busy ? tell(rates, nvmlUtilization{*busy, 0}) : not_supported;
  });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice device, unsigned long long* reasons) {
  return device_call("nvmlDeviceGetCurrentClocksThrottleReasons", reasons != nullptr, device,
                     [&](int) { return sense(reasons, given().health.reasons); });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice device, unsigned long long* reasons) {
  return device_call("nvmlDeviceGetCurrentClocksEventReasons", reasons != nullptr, device,
                     [&](int) { return sense(reasons, given().health.reasons); });
}
// Corrected errors there are none; what can be set are those that could not be, since the driver was loaded.
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetTotalEccErrors(nvmlDevice device, unsigned kind, unsigned counter,
                                                        unsigned long long* count) {
  return device_call("nvmlDeviceGetTotalEccErrors", count != nullptr && kind < 2 && counter < 2, device, [&](int) {
    const auto& errors = given().health.memory_errors;
    const bool asked = kind == nvml_memory_error_uncorrected && counter == nvml_ecc_volatile;
    return errors ? tell(count, asked ? *errors : 0ULL) : not_supported;
  });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice device, unsigned* generation) {
  return device_call("nvmlDeviceGetCurrPcieLinkGeneration", generation != nullptr, device,
                     [&](int) { return sense(generation, given().health.pcie_generation); });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice device, unsigned* lanes) {
  return device_call("nvmlDeviceGetCurrPcieLinkWidth", lanes != nullptr, device,
                     [&](int) { return sense(lanes, given().health.pcie_lanes); });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetPcieThroughput(nvmlDevice device, unsigned counter, unsigned* kib_per_second) {
  return device_call("nvmlDeviceGetPcieThroughput", kib_per_second != nullptr && counter < 2, device,
                     [&](int) { return tell(kib_per_second, 0U); });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetNvLinkState(nvmlDevice device, unsigned link, unsigned* active) {
  return link_call("nvmlDeviceGetNvLinkState", active != nullptr, device, link,
                   [&](int, int) { return tell(active, 1U); });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetNvLinkVersion(nvmlDevice device, unsigned link, unsigned* version) {
  return link_call("nvmlDeviceGetNvLinkVersion", version != nullptr, device, link,
                   [&](int, int) { return tell(version, 6U); });  // NVLink 4
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice device, unsigned link, nvmlPciInfo* remote) {
  return link_call("nvmlDeviceGetNvLinkRemotePciInfo_v2", remote != nullptr, device, link, [&](int, int other) {
    *remote = {};
    const std::string address = other >= 0 ? pci_of(other) : "0000:f0:00.0";
    std::snprintf(remote->address, sizeof remote->address, "%s", address.c_str());
    std::snprintf(remote->legacy_address, sizeof remote->legacy_address, "%s", address.c_str());
    return NVML_SUCCESS;
  });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice device, unsigned link, unsigned* kind) {
  return link_call("nvmlDeviceGetNvLinkRemoteDeviceType", kind != nullptr, device, link,
                   [&](int, int other) { return tell(kind, other >= 0 ? nvml_remote_gpu : nvml_remote_switch); });
}
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetNvLinkErrorCounter(nvmlDevice device, unsigned link, unsigned counter,
                                                            unsigned long long* count) {
  return link_call("nvmlDeviceGetNvLinkErrorCounter", count != nullptr && counter < nvml_link_error_counters, device,
                   link, [&](int, int) { return sense(count, given().health.link_errors); });
}

// How near two devices are, as the topology calls it; the numbers are NVML's.
WEFT_VIRTUAL_API nvmlReturn nvmlDeviceGetTopologyCommonAncestor(nvmlDevice a, nvmlDevice b, unsigned* level) {
  return device_call("nvmlDeviceGetTopologyCommonAncestor", level != nullptr && index_of(b) >= 0, a, [&](int n) {
    const int other = index_of(b);
    if (n == other) return tell(level, 0U);
    const std::string name = link_class(given().machine, device_id{n}, device_id{other});
    return tell(level, name == "PIX" ? 10U : name == "PXB" ? 20U : name == "PHB" ? 30U : name == "NODE" ? 40U : 50U);
  });
}

}  // namespace weft::virtual_cuda
