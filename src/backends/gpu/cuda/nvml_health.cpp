// SPDX-License-Identifier: Apache-2.0
// How a GPU is, as the management library tells: each sensor by itself, since a GPU has some and not others.
#include "backends/gpu/cuda/nvml.hpp"
#include "backends/gpu/driver/error.hpp"

#include <array>
#include <cstdio>
#include <string_view>

namespace weft::gpu {
namespace {

struct clock_reason {
  std::uint64_t bit;
  std::string_view words;
};

// NvmlClocksEventReasons of the NVML reference
constexpr std::array<clock_reason, 9> clock_reasons{{
    {0x001, "no work"},
    {0x002, "clocks that were set for applications"},
    {0x004, "the power limit"},
    {0x008, "a slowdown by the hardware"},
    {0x010, "the slowest GPU of its sync boost group"},
    {0x020, "heat, by the driver"},
    {0x040, "heat, by the hardware"},
    {0x080, "the brake of the power supply"},
    {0x100, "clocks that were set for displays"},
}};

/// What a function tells of a device; empty where it is not there or does not know.
template <class T, class F, class... Which>
std::optional<T> told(F* function, nvmlDevice device, Which... which) {
  T value{};
  if (function == nullptr || function(device, which..., &value) != NVML_SUCCESS) return std::nullopt;
  return value;
}

}  // namespace

std::vector<std::string> words_of_clock_reasons(std::uint64_t reasons) {
  std::vector<std::string> words;
  for (const clock_reason& one : clock_reasons) {
    if ((reasons & one.bit) != 0) words.emplace_back(one.words);
    reasons &= ~one.bit;
  }
  for (; reasons != 0; reasons &= reasons - 1) {
    std::array<char, 24> number{};
    std::snprintf(number.data(), number.size(), "0x%llx", static_cast<unsigned long long>(reasons & (~reasons + 1)));
    words.emplace_back(number.data());
  }
  return words;
}

result<device_health> nvml::health(const std::string& gpu) const {
  const nvmlDevice device = device_at(gpu);
  if (device == nullptr) {
    return make_error(errc::unsupported,
                      gpu.empty()
                          ? "the driver gives this GPU no PCI address, by which its sensors are found"
                          : "the management library knows no GPU at " + gpu + "; nvidia-smi lists those that it knows");
  }
  device_health now;
  if (const auto celsius = told<unsigned>(call_.nvmlDeviceGetTemperature, device, nvml_temperature_gpu))
    now.celsius = *celsius;
  if (const auto milliwatts = told<unsigned>(call_.nvmlDeviceGetPowerUsage, device)) now.watts = *milliwatts / 1000.0;
  if (const auto rates = told<nvmlUtilization>(call_.nvmlDeviceGetUtilizationRates, device))
    now.busy = rates->gpu / 100.0;
  // the same question under its newer name first: the older one may go
  auto reasons = told<unsigned long long>(call_.nvmlDeviceGetCurrentClocksEventReasons, device);
  if (!reasons) reasons = told<unsigned long long>(call_.nvmlDeviceGetCurrentClocksThrottleReasons, device);
  if (reasons) now.held_down_by = words_of_clock_reasons(*reasons);
  if (const auto errors = told<unsigned long long>(call_.nvmlDeviceGetTotalEccErrors, device,
                                                   nvml_memory_error_uncorrected, nvml_ecc_volatile))
    now.memory_errors = *errors;
  if (const auto generation = told<unsigned>(call_.nvmlDeviceGetCurrPcieLinkGeneration, device))
    now.pcie_generation = static_cast<int>(*generation);
  if (const auto lanes = told<unsigned>(call_.nvmlDeviceGetCurrPcieLinkWidth, device))
    now.pcie_lanes = static_cast<int>(*lanes);
  for (unsigned number = 0; number < nvml_max_links; ++number) {
    for (unsigned counter = 0; counter < nvml_link_error_counters; ++counter) {
      if (const auto count = told<unsigned long long>(call_.nvmlDeviceGetNvLinkErrorCounter, device, number, counter))
        now.link_errors = now.link_errors.value_or(0) + *count;
    }
  }
  return now;
}

}  // namespace weft::gpu
