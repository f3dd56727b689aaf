// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

namespace weft::tool {

namespace {

const json no_answers;

std::optional<gpu_vendor> vendor_of(std::int64_t number) {
  switch (number) {
    case 0x10de:
      return gpu_vendor::nvidia;
    case 0x1002:
      return gpu_vendor::amd;
    case 0x8086:
      return gpu_vendor::intel;
    default:
      return std::nullopt;
  }
}

std::string last_name(const std::string& link) { return link.empty() ? link : link.substr(link.rfind('/') + 1); }

/// "16.0 GT/s PCIe" is 16.
std::optional<double> rate_of(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  const double rate = std::strtod(text->c_str(), nullptr);
  return rate > 0 ? std::optional{rate} : std::nullopt;
}

std::optional<int> lanes_of(const std::optional<std::int64_t>& number) {
  return number && *number >= 1 && *number <= 32 ? std::optional{static_cast<int>(*number)} : std::nullopt;
}

/// The largest memory that a device's registers show on the bus: lines "first last flags" of `resource`.
std::optional<std::int64_t> largest_window(const std::optional<std::string>& resource) {
  if (!resource) return std::nullopt;
  std::optional<std::int64_t> largest;
  int lines = 0;
  for (const std::string_view line : split(*resource, '\n')) {
    if (++lines > 6) break;  // the expansion ROM follows
    const auto words = split(trimmed(line), ' ');
    if (words.size() < 2) continue;
    const auto first = whole_number(words[0]);
    const auto last = whole_number(words[1]);
    if (!first || !last || *first < 1 || *last <= *first) continue;  // from 0 on: not assigned
    largest = std::max(largest.value_or(0), *last - *first + 1);
  }
  return largest;
}

}  // namespace

std::string_view to_string(gpu_vendor vendor) {
  switch (vendor) {
    case gpu_vendor::nvidia:
      return "NVIDIA";
    case gpu_vendor::amd:
      return "AMD";
    case gpu_vendor::intel:
      break;
  }
  return "Intel";
}

std::string machine_facts::title() const {
  std::map<std::string, int> models;
  for (const gpu_facts& gpu : gpus_) ++models[gpu.model()];
  std::string text;
  for (const auto& [model, count] : models) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, model);
  if (const auto driver = string_in(nvml(), "driver")) text += ", driver " + *driver;
  return text;
}

std::vector<const gpu_facts*> machine_facts::visible() const {
  std::vector<const gpu_facts*> all;
  all.reserve(gpus_.size());
  for (const gpu_facts& gpu : gpus_) all.push_back(&gpu);
  const auto shown = string_in(record_.at("/process/environment"), "CUDA_VISIBLE_DEVICES");
  // numbers count in the bus's order only among equal models, or where the environment says so
  const bool is_equal =
      std::ranges::all_of(gpus_, [this](const gpu_facts& gpu) { return gpu.name == gpus_.front().name; });
  const bool is_by_bus = string_in(record_.at("/process/environment"), "CUDA_DEVICE_ORDER") == "PCI_BUS_ID";
  if (!shown || !(is_equal || is_by_bus)) return all;
  std::vector<const gpu_facts*> some;
  for (const std::string_view entry : split(*shown, ',')) {
    const auto number = whole_number(entry);
    if (!number) return all;  // a UUID
    if (*number < 0 || *number >= static_cast<std::int64_t>(all.size())) break;
    some.push_back(all[static_cast<std::size_t>(*number)]);
  }
  return some;
}

bool machine_facts::may_have_peers() const {
  const json& told = record_.at("/nvml/p2p");
  if (!told.is_object() || told.empty()) return true;
  for (const auto& [from, row] : told.items()) {
    if (!row.is_object()) continue;
    for (const auto& [to, pair] : row.items()) {
      if (integer_in(pair, "read").value_or(0) == 0) return true;
    }
  }
  return false;
}

bus_link machine_facts::link_of(const std::string& address) const {
  const std::string folder = pci_folder + address + "/";
  return {lanes_of(record_.number(folder + "current_link_width")), lanes_of(record_.number(folder + "max_link_width")),
          rate_of(record_.text(folder + "current_link_speed")), rate_of(record_.text(folder + "max_link_speed"))};
}

void machine_facts::add_from_bus(const std::string& address) {
  const std::string folder = pci_folder + address;
  const std::string type = record_.text(folder + "/class").value_or("");
  const auto number = record_.number(folder + "/vendor");
  const auto vendor = number ? vendor_of(*number) : std::nullopt;
  if (type.starts_with("0x0207")) rdma_adapters_.push_back(address);
  if (!vendor) return;
  if (type.starts_with("0x0680") && vendor == gpu_vendor::nvidia) switches_.push_back(address);
  const bool is_gpu = type.starts_with("0x03") || type.starts_with("0x12");
  const std::string place = record_.link(folder);
  std::vector<std::string> above;
  for (const std::string_view part : split(place, '/')) {
    if (std::ranges::count(part, ':') == 2 && part != address) above.emplace_back(part);
  }
  // Intel's graphics inside the processor sits on the root bus itself: no device for several GPUs
  if (!is_gpu || (vendor == gpu_vendor::intel && above.empty())) return;
  gpu_facts one;
  one.address = address;
  one.vendor = *vendor;
  one.driver = last_name(record_.link(folder + "/driver"));
  one.is_on_bus = true;
  one.bridges = std::move(above);
  one.link = link_of(address);
  if (const auto node = record_.number(folder + "/numa_node"); node && *node >= 0 && *node < 4096)
    one.numa_node = static_cast<int>(*node);
  one.memory = record_.number(folder + "/mem_info_vram_total");
  one.window = largest_window(record_.text(folder + "/resource"));
  one.nvml = &no_answers;
  one.amd = &part_of(record_.at("/amd"), address);
  gpus_.push_back(std::move(one));
}

void machine_facts::add_from_nvml(const std::string& address, const json& told) {
  auto found = std::ranges::find(gpus_, address, &gpu_facts::address);
  if (found == gpus_.end()) {
    gpus_.emplace_back();
    found = std::prev(gpus_.end());
    found->address = address;
    found->amd = &no_answers;
  }
  found->nvml = &told;
  found->name = string_in(told, "name").value_or("");
  if (const auto memory = integer_in(told, "memory")) found->memory = memory;
  if (const auto window = integer_in(told, "bar1")) found->window = window;
}

machine_facts::machine_facts(const system_record& record) : record_(record) {
  if (const json& addresses = record.at("/pci"); addresses.is_array()) {
    for (const json& address : addresses) {
      if (address.is_string()) add_from_bus(address.get<std::string>());
    }
  }
  if (const json& told = record.at("/nvml/gpus"); told.is_object()) {
    for (const auto& [address, one] : told.items()) add_from_nvml(address, one);
  }
  std::ranges::sort(gpus_, {}, &gpu_facts::address);
}

const gpu_facts* machine_facts::gpu_at(const std::string& address) const {
  const auto found = std::ranges::find(gpus_, address, &gpu_facts::address);
  return found == gpus_.end() ? nullptr : &*found;
}

bool machine_facts::has(gpu_vendor vendor) const {
  return std::ranges::any_of(gpus_, [vendor](const gpu_facts& gpu) { return gpu.vendor == vendor; });
}

bool machine_facts::is_in_virtual_machine() const {
  return record_.text("/proc/cpuinfo") == "hypervisor" || record_.text("/sys/hypervisor/type").has_value();
}

bool machine_facts::is_in_container() const {
  return record_.text("/.dockerenv").has_value() || record_.text("/run/.containerenv").has_value();
}

std::vector<std::string> machine_facts::translated() const {
  std::vector<std::string> list;
  for (const gpu_facts& gpu : gpus_) {
    const std::string group = last_name(record_.link(pci_folder + gpu.address + "/iommu_group"));
    const auto type = record_.text("/sys/kernel/iommu_groups/" + group + "/type");
    if (!group.empty() && type && type->starts_with("DMA")) list.push_back(gpu.address);
  }
  return list;
}

std::vector<std::string> machine_facts::redirecting() const {
  constexpr std::int64_t request_redirect = 0x04, completion_redirect = 0x08;
  std::set<std::string> list;
  for (const gpu_facts& gpu : gpus_) {
    for (const std::string& bridge : gpu.bridges) {
      const auto does = integer_in(part_of(record_.at("/acs"), bridge), "does");
      if (does && (*does & (request_redirect | completion_redirect)) != 0) list.insert(bridge);
    }
  }
  return {list.begin(), list.end()};
}

std::string machine_facts::nvml_why() const {
  return has(gpu_vendor::nvidia)
             ? "NVIDIA's management library does not answer: " + string_in(nvml(), "why").value_or("it was not asked")
             : "only GPUs of NVIDIA have it, and there is none";
}

namespace {

int generation_of(double rate) {
  constexpr double rates[] = {2.5, 5, 8, 16, 32, 64};
  for (std::size_t i = 0; i < std::size(rates); ++i) {
    if (rate <= rates[i]) return static_cast<int>(i) + 1;
  }
  return 7;
}

}  // namespace

std::string link_text(std::optional<int> lanes, std::optional<double> rate) {
  return fmt::format("gen {} x{}", rate ? std::to_string(generation_of(*rate)) : "?",
                     lanes ? std::to_string(*lanes) : "?");
}

std::optional<double> link_bytes_per_second(std::optional<int> lanes, std::optional<double> rate) {
  if (!lanes || !rate) return std::nullopt;
  const int generation = generation_of(*rate);
  const double coding = generation <= 2 ? 8.0 / 10 : generation <= 5 ? 128.0 / 130 : 242.0 / 256;
  return *rate * 1e9 / 8 * *lanes * coding;
}

}  // namespace weft::tool
