// SPDX-License-Identifier: Apache-2.0
// The management library's functions that this backend calls, declared by ourselves.
#pragma once

namespace weft::gpu {

// NOLINTBEGIN(readability-identifier-naming): the names of the library

using nvmlReturn = int;
using nvmlDevice = struct nvml_device_object*;
inline constexpr nvmlReturn NVML_SUCCESS = 0;

struct nvmlMemory {
  unsigned long long total, free, used;
};
struct nvmlPciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char address[32];
};
struct nvmlUtilization {
  unsigned gpu, memory;  // percent of the last moments
};
inline constexpr unsigned nvml_temperature_gpu = 0;
inline constexpr unsigned nvml_remote_gpu = 0, nvml_remote_switch = 2, nvml_remote_unknown = 255;
inline constexpr unsigned nvml_max_links = 18;
inline constexpr unsigned nvml_memory_error_uncorrected = 1, nvml_ecc_volatile = 0;
inline constexpr unsigned nvml_link_error_counters = 5;  // replay, recovery, crc flit, crc data, ecc data

// clang-format off
#define WEFT_GPU_NVML_FUNCTIONS(F)                                                                             \
  F(nvmlInit_v2, ())                                                                                           \
  F(nvmlShutdown, ())                                                                                          \
  F(nvmlSystemGetDriverVersion, (char* text, unsigned size))                                                   \
  F(nvmlDeviceGetHandleByPciBusId_v2, (const char* address, nvmlDevice* device))                               \
  F(nvmlDeviceGetMemoryInfo, (nvmlDevice device, nvmlMemory* memory))                                          \
  F(nvmlDeviceGetTemperature, (nvmlDevice device, unsigned sensor, unsigned* celsius))                         \
  F(nvmlDeviceGetPowerUsage, (nvmlDevice device, unsigned* milliwatts))                                        \
  F(nvmlDeviceGetUtilizationRates, (nvmlDevice device, nvmlUtilization* rates))                                \
  F(nvmlDeviceGetCurrPcieLinkGeneration, (nvmlDevice device, unsigned* generation))                            \
  F(nvmlDeviceGetCurrPcieLinkWidth, (nvmlDevice device, unsigned* lanes))                                      \
  F(nvmlDeviceGetCurrentClocksEventReasons, (nvmlDevice device, unsigned long long* reasons))                  \
  F(nvmlDeviceGetCurrentClocksThrottleReasons, (nvmlDevice device, unsigned long long* reasons))               \
  F(nvmlDeviceGetTotalEccErrors, (nvmlDevice device, unsigned kind, unsigned counter, unsigned long long* count)) \
  F(nvmlDeviceGetNvLinkState, (nvmlDevice device, unsigned link, unsigned* active))                            \
  F(nvmlDeviceGetNvLinkVersion, (nvmlDevice device, unsigned link, unsigned* version))                         \
  F(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice device, unsigned link, nvmlPciInfo* remote))              \
  F(nvmlDeviceGetNvLinkRemoteDeviceType, (nvmlDevice device, unsigned link, unsigned* kind))                       \
  F(nvmlDeviceGetNvLinkErrorCounter, (nvmlDevice device, unsigned link, unsigned counter, unsigned long long* count))
// clang-format on

/// What the library lacks is null: all but the first two is.
struct nvml_functions {
#define WEFT_GPU_MEMBER(name, parameters) nvmlReturn(*name) parameters = nullptr;
  WEFT_GPU_NVML_FUNCTIONS(WEFT_GPU_MEMBER)
#undef WEFT_GPU_MEMBER
};

// NOLINTEND(readability-identifier-naming)

}  // namespace weft::gpu
