// SPDX-License-Identifier: Apache-2.0
// Sources: the kernel's Documentation/gpu/amdgpu/thermal.rst (hwmon) and Documentation/ABI/testing of kfd; kfd's
// kfd_topology.c (location_id, domain) and kfd_process.c (vram_<gpu_id> of each process).
#include "doctor/gather.hpp"
#include "doctor/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <unistd.h>

namespace weft::tool {

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in{file};
  std::string text(256, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return std::string{trimmed(text)};
}
std::optional<std::int64_t> number_of(const fs::path& file) { return whole_number(text_of(file)); }

/// Names in a folder, in order; none where it cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator at{folder, ignored}, end; !ignored && at != end; at.increment(ignored))
    names.push_back(at->path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// Sensors of a device in whole degrees, with the temperature at which it slows down where that is known.
json temperatures_of(const fs::path& device) {
  json list = json::array();
  for (const std::string& monitor : names_in(device / "hwmon")) {
    const fs::path folder = device / "hwmon" / monitor;
    for (const std::string& name : names_in(folder)) {
      if (!name.starts_with("temp") || !name.ends_with("_input")) continue;
      const std::string sensor = name.substr(0, name.size() - std::string_view{"_input"}.size());
      const auto now = number_of(folder / name);
      if (!now) continue;
      const std::string label = text_of(folder / (sensor + "_label"));
      json one{{"name", label.empty() ? sensor : label}, {"celsius", *now / 1000}};
      if (const auto limit = number_of(folder / (sensor + "_crit")); limit && *limit > 0) one["limit"] = *limit / 1000;
      list.push_back(std::move(one));
    }
  }
  return list;
}

/// PCI addresses of GPUs by the numbers that the driver for computing gives them.
std::map<std::string, std::string> addresses_by_number(const fs::path& kfd) {
  std::map<std::string, std::string> found;
  for (const std::string& node : names_in(kfd / "topology/nodes")) {
    const fs::path folder = kfd / "topology/nodes" / node;
    const std::string number = text_of(folder / "gpu_id");
    if (number.empty() || number == "0") continue;  // a processor
    std::int64_t location = -1, domain = 0;
    std::ifstream properties{folder / "properties"};
    for (std::string name, value; properties >> name >> value;) {
      if (name == "location_id") location = whole_number(value).value_or(-1);
      if (name == "domain") domain = whole_number(value).value_or(0);
    }
    if (location < 0 || domain < 0) continue;
    found[number] =
        fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
  }
  return found;
}

}  // namespace

json gather_amd(const std::string& root) {
  json gpus = json::object();
  const fs::path devices = root + pci_folder;
  for (const std::string& address : names_in(devices)) {
    if (text_of(devices / address / "vendor") != "0x1002" || !text_of(devices / address / "class").starts_with("0x"))
      continue;
    json found = temperatures_of(devices / address);
    if (!found.empty()) gpus[address]["temperatures"] = std::move(found);
  }
  const fs::path kfd = root + "/sys/class/kfd/kfd";
  const auto addresses = addresses_by_number(kfd);
  for (const auto& [number, address] : addresses) gpus[address]["users"] = {{"processes", 0}, {"memory", 0}};
  for (const std::string& process : names_in(kfd / "proc")) {
    if (process == std::to_string(::getpid())) continue;
    for (const auto& [number, address] : addresses) {
      const auto bytes = number_of(kfd / "proc" / process / ("vram_" + number));
      if (!bytes || *bytes <= 0) continue;
      json& users = gpus[address]["users"];
      users["processes"] = users["processes"].get<std::int64_t>() + 1;
      users["memory"] = users["memory"].get<std::int64_t>() + *bytes;
    }
  }
  return gpus;
}

}  // namespace weft::tool
