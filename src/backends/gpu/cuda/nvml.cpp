// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/cuda/nvml.hpp"

#include "backends/gpu/driver/error.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <dlfcn.h>
#include <string_view>
#include <type_traits>

namespace weft::gpu {
namespace {

/// NVML counts versions, of which some generations have two: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0.
int generation_of(unsigned version) {
  constexpr std::array generations{0, 1, 2, 2, 3, 3, 4, 5};
  const auto last = static_cast<unsigned>(generations.size()) - 1;
  return version <= last ? generations[version] : generations[last] + static_cast<int>(version - last);
}

/// "00000000:17:00.0" and "0000:17:00.0" are the same place: domain, bus and device as one number; empty for no
/// address.
std::optional<std::uint64_t> place_of(std::string_view address) {
  std::array<std::uint64_t, 3> parts{};
  const std::array<char, 3> ends{':', ':', '.'};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t end = address.find(ends[i]);
    if (end == std::string_view::npos) return std::nullopt;
    const char* const begin = address.data();  // NOLINT(bugprone-suspicious-stringview-data-usage): its end is given
    const auto read = std::from_chars(begin, begin + end, parts[i], 16);
    if (read.ec != std::errc{} || read.ptr != begin + end) return std::nullopt;
    address.remove_prefix(end + 1);
  }
  return parts[0] << 32 | parts[1] << 16 | parts[2];
}

management_library no_management(const std::string& library, const std::string& why) {
  return make_error(errc::unsupported, "the management library " + library + " cannot be used: " + why +
                                           "; it comes with NVIDIA's driver, and WEFT_CUDA_NVML names another one");
}

}  // namespace

nvml::~nvml() {
  if (call_.nvmlShutdown != nullptr) static_cast<void>(call_.nvmlShutdown());
}

nvmlDevice nvml::device_at(const std::string& pci_address) const {
  nvmlDevice device = nullptr;
  if (pci_address.empty() || call_.nvmlDeviceGetHandleByPciBusId_v2 == nullptr) return nullptr;
  if (call_.nvmlDeviceGetHandleByPciBusId_v2(pci_address.c_str(), &device) != NVML_SUCCESS) return nullptr;
  return device;
}

std::vector<nvml::link> nvml::read_links(nvmlDevice device) const {
  std::vector<link> found;
  for (unsigned number = 0; number < nvml_max_links; ++number) {
    unsigned active = 0;
    if (call_.nvmlDeviceGetNvLinkState(device, number, &active) != NVML_SUCCESS || active == 0) continue;
    link made;
    unsigned kind = nvml_remote_unknown, version = 0;
    if (call_.nvmlDeviceGetNvLinkVersion != nullptr &&
        call_.nvmlDeviceGetNvLinkVersion(device, number, &version) == NVML_SUCCESS)
      made.generation = generation_of(version);
    if (call_.nvmlDeviceGetNvLinkRemoteDeviceType != nullptr)
      static_cast<void>(call_.nvmlDeviceGetNvLinkRemoteDeviceType(device, number, &kind));
    made.to_switch = kind == nvml_remote_switch;
    nvmlPciInfo remote{};
    if (call_.nvmlDeviceGetNvLinkRemotePciInfo_v2 != nullptr &&
        call_.nvmlDeviceGetNvLinkRemotePciInfo_v2(device, number, &remote) == NVML_SUCCESS) {
      remote.address[sizeof remote.address - 1] = '\0';
      made.to = place_of(remote.address);
    }
    found.push_back(made);
  }
  return found;
}

nvml::link_ends nvml::ends_of(const std::string& gpu, const std::string& other) const {
  link_ends found;
  const auto place = place_of(other);
  const std::lock_guard lock{links_mutex_};
  auto known = links_.find(gpu);
  if (known == links_.end()) {
    const nvmlDevice device = device_at(gpu);
    known = links_.emplace(gpu, device == nullptr ? std::vector<link>{} : read_links(device)).first;
  }
  for (const link& one : known->second) {
    found.generation = std::max(found.generation, one.generation);
    if (one.to_switch) ++found.to_switch;
    if (place && one.to == place) ++found.to_other;
  }
  return found;
}

std::optional<joined_by> nvml::joined(const gpu_name& from, const gpu_name& to) const {
  if (call_.nvmlDeviceGetNvLinkState == nullptr || device_at(from.pci_address) == nullptr) return std::nullopt;
  const link_ends here = ends_of(from.pci_address, to.pci_address);
  if (here.to_other > 0) return joined_by{link_kind::nvlink, here.to_other, here.generation};
  if (here.to_switch == 0) return joined_by{};
  const link_ends there = ends_of(to.pci_address, from.pci_address);
  if (there.to_switch == 0) return joined_by{};
  return joined_by{link_kind::nvlink, std::min(here.to_switch, there.to_switch),
                   std::min(here.generation, there.generation)};
}

std::string nvml::p2p_refusal(const std::string& from, const std::string& to) const {
  const nvmlDevice one = device_at(from);
  const nvmlDevice other = device_at(to);
  unsigned status = 0;
  if (one == nullptr || other == nullptr || call_.nvmlDeviceGetP2PStatus == nullptr ||
      call_.nvmlDeviceGetP2PStatus(one, other, nvml_p2p_read, &status) != NVML_SUCCESS || status == 0)
    return {};
  return std::string{nvml_p2p_words[std::min<std::size_t>(status, nvml_p2p_words.size() - 1)]};
}

std::optional<std::uint64_t> nvml::free_memory(const std::string& gpu) const {
  const nvmlDevice device = device_at(gpu);
  nvmlMemory memory{};
  if (device == nullptr || call_.nvmlDeviceGetMemoryInfo == nullptr ||
      call_.nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS)
    return std::nullopt;
  return memory.free;
}

std::string nvml::driver_version() const {
  std::array<char, 96> text{};
  if (call_.nvmlSystemGetDriverVersion == nullptr ||
      call_.nvmlSystemGetDriverVersion(text.data(), static_cast<unsigned>(text.size()) - 1) != NVML_SUCCESS)
    return {};
  return text.data();
}

management_library load_nvml(const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    return no_management(library, why != nullptr ? why : "it could not be opened");
  }
  nvml_functions table;
#define WEFT_GPU_FIND(name, parameters) table.name = reinterpret_cast<decltype(table.name)>(::dlsym(opened, #name));
  WEFT_GPU_NVML_FUNCTIONS(WEFT_GPU_FIND)
#undef WEFT_GPU_FIND
  if (table.nvmlInit_v2 == nullptr) return no_management(library, "it has no nvmlInit_v2");
  if (const nvmlReturn status = table.nvmlInit_v2(); status != NVML_SUCCESS)
    return no_management(library, "nvmlInit_v2 gives " + std::to_string(status));
  return std::shared_ptr<const management>{std::make_shared<nvml>(table)};
}

}  // namespace weft::gpu
