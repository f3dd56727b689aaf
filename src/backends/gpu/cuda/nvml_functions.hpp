// SPDX-License-Identifier: Apache-2.0
// The management library's functions that this backend calls, declared by ourselves.
#pragma once

#include <array>
#include <string_view>

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
struct nvmlBar1Memory {
  unsigned long long total, free, used;
};
struct nvmlProcess {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};
struct nvmlFabric {
  unsigned char cluster[16];
  nvmlReturn status;
  unsigned clique, state;
};
inline constexpr nvmlReturn nvml_too_small = 7;
inline constexpr unsigned nvml_temperature_slowdown = 1;
inline constexpr unsigned nvml_p2p_read = 0, nvml_p2p_write = 1, nvml_p2p_nvlink = 2, nvml_p2p_atomics = 3;
/// Why two GPUs are no peers, by nvmlGpuP2PStatus_t.
inline constexpr std::array<std::string_view, 7> nvml_p2p_words{
    "it is supported",
    "the chipset does not support it",
    "this model of GPU does not support it",
    "it does not pass between their root ports (two sockets)",
    "a setting of the driver turns it off",
    "it is not supported",
    "the driver does not know"};
inline constexpr unsigned nvml_fabric_not_supported = 0, nvml_fabric_completed = 3;
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
  F(nvmlSystemGetCudaDriverVersion_v2, (int* version))                                                         \
  F(nvmlDeviceGetCount_v2, (unsigned* count))                                                                  \
  F(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice* device))                                       \
  F(nvmlDeviceGetPciInfo_v3, (nvmlDevice device, nvmlPciInfo* place))                                          \
  F(nvmlDeviceGetName, (nvmlDevice device, char* text, unsigned size))                                         \
  F(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice device, nvmlBar1Memory* memory))                                  \
  F(nvmlDeviceGetPersistenceMode, (nvmlDevice device, unsigned* is_on))                                        \
  F(nvmlDeviceGetMigMode, (nvmlDevice device, unsigned* now, unsigned* after_reset))                           \
  F(nvmlDeviceGetComputeMode, (nvmlDevice device, unsigned* mode))                                             \
  F(nvmlDeviceGetEccMode, (nvmlDevice device, unsigned* now, unsigned* after_reset))                           \
  F(nvmlDeviceGetRemappedRows, (nvmlDevice device, unsigned* corrected, unsigned* uncorrected, unsigned* is_pending, unsigned* has_failed)) \
  F(nvmlDeviceGetRetiredPagesPendingStatus, (nvmlDevice device, unsigned* is_pending))                         \
  F(nvmlDeviceGetTemperatureThreshold, (nvmlDevice device, unsigned limit, unsigned* celsius))                 \
  F(nvmlDeviceGetMaxPcieLinkGeneration, (nvmlDevice device, unsigned* generation))                             \
  F(nvmlDeviceGetMaxPcieLinkWidth, (nvmlDevice device, unsigned* lanes))                                       \
  F(nvmlDeviceGetGpuFabricInfo, (nvmlDevice device, nvmlFabric* fabric))                                       \
  F(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice device, unsigned* count, nvmlProcess* processes))     \
  F(nvmlDeviceGetP2PStatus, (nvmlDevice device, nvmlDevice peer, unsigned what, unsigned* status))             \
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
