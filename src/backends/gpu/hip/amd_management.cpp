// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/hip/amd_management.hpp"

#include "backends/gpu/hip/hip_table.hpp"
#include "core/errors/make_error.hpp"

#include <filesystem>
#include <fstream>

namespace weft::gpu::amd {
namespace {

/// The first word of a file as a value; empty where it cannot be read.
template <class T>
std::optional<T> read(const std::string& file) {
  std::ifstream in{file};
  T value{};
  if (!(in >> value)) return std::nullopt;
  return value;
}

/// A sensor of the first folder of hwmon that has it, divided.
std::optional<double> sensor(const std::string& gpu, const char* name, double unit) {
  std::error_code ignored;
  for (const auto& folder : std::filesystem::directory_iterator{gpu + "/hwmon", ignored}) {
    if (const auto value = read<double>(folder.path().string() + "/" + name)) return *value / unit;
  }
  return std::nullopt;
}

/// "16.0 GT/s PCIe" is generation 4.
std::optional<int> generation_of(const std::optional<double>& transfers) {
  constexpr double rates[] = {2.5, 5, 8, 16, 32, 64};
  for (std::size_t i = 0; transfers && i < std::size(rates); ++i) {
    if (*transfers <= rates[i]) return static_cast<int>(i) + 1;
  }
  return std::nullopt;
}

/// The number behind "ue:": errors that could not be corrected.
std::optional<std::uint64_t> uncorrected(const std::string& file) {
  std::ifstream in{file};
  std::string word;
  std::uint64_t count = 0;
  while (in >> word) {
    if (word == "ue:" && in >> count) return count;
  }
  return std::nullopt;
}

}  // namespace

std::string amd_management::folder_of(const std::string& gpu) const { return root_ + "/bus/pci/devices/" + gpu; }

std::optional<joined_by> amd_management::joined(const gpu_name& from, const gpu_name& to) const {
  std::uint32_t type = 0, hops = 0;
  const auto ask = hip_table().hipExtGetLinkTypeAndHopCount;
  if (ask == nullptr || ask(from.id, to.id, &type, &hops) != CUDA_SUCCESS) return std::nullopt;
  return joined_by{type == hip_link_xgmi ? link_kind::infinity_fabric : link_kind::unknown, 0, 0};
}

std::string amd_management::p2p_refusal(const std::string&, const std::string&) const { return {}; }

std::optional<std::uint64_t> amd_management::free_memory(const std::string& gpu) const {
  if (gpu.empty()) return std::nullopt;
  const auto all = read<std::uint64_t>(folder_of(gpu) + "/mem_info_vram_total");
  const auto used = read<std::uint64_t>(folder_of(gpu) + "/mem_info_vram_used");
  if (!all || !used) return std::nullopt;
  return *all - std::min(*all, *used);
}

result<device_health> amd_management::health(const std::string& gpu) const {
  const std::string folder = folder_of(gpu);
  std::error_code ignored;
  if (gpu.empty() || !std::filesystem::exists(folder + "/hwmon", ignored)) {
    return make_error(errc::unsupported, gpu.empty()
                                             ? "HIP gives this GPU no PCI address, by which its sensors are found"
                                             : "the kernel shows no sensors in " + folder + "/hwmon");
  }
  device_health now;
  now.celsius = sensor(folder, "temp1_input", 1000);
  now.watts = sensor(folder, "power1_average", 1e6);
  if (!now.watts) now.watts = sensor(folder, "power1_input", 1e6);
  if (const auto busy = read<double>(folder + "/gpu_busy_percent")) now.busy = *busy / 100;
  now.memory_errors = uncorrected(folder + "/ras/umc_err_count");
  now.link_errors = uncorrected(folder + "/ras/xgmi_wafl_err_count");
  now.pcie_generation = generation_of(read<double>(folder + "/current_link_speed"));
  now.pcie_lanes = read<int>(folder + "/current_link_width");
  return now;
}

std::string amd_management::driver_version() const {
  return read<std::string>(root_ + "/module/amdgpu/version").value_or("");  // of AMD's own build; the kernel's has none
}

}  // namespace weft::gpu::amd
