// SPDX-License-Identifier: Apache-2.0
// The bus, what stands between GPUs and memory, and what the kernel says of them.
#include "doctor/finding_words.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace weft::tool {

namespace {

struct xid {
  std::int64_t number;
  std::string_view meaning;
  bool is_programs;  // a program's own fault can cause it
};
// NVIDIA, "Xid errors", the table of error messages.
constexpr std::array xids{
    xid{13, "a kernel failed: access, instruction or alignment", true},
    xid{31, "a kernel touched memory that is not mapped", true},
    xid{43, "a program's work was stopped after a fault", true},
    xid{45, "a program's work was ended early", true},
    xid{48, "memory error of two bits", false},
    xid{63, "a row or page of memory was put out of use", false},
    xid{64, "a bad row or page could not be put out of use", false},
    xid{74, "an NVLink failed", false},
    xid{79, "the GPU has fallen off the bus", false},
    xid{94, "memory error, contained in one program", false},
    xid{95, "memory error that was not contained", false},
    xid{119, "the GPU's own processor (GSP) does not answer", false},
};

}  // namespace

namespace doctor_checks {

finding pci_gpus(const machine_facts& machine) {
  if (machine.gpus().empty()) {
    finding none = does_not_apply("no GPU of NVIDIA, AMD or Intel is on the PCI bus");
    none.advice = machine.is_in_virtual_machine()
                      ? "give the virtual machine a GPU (PCI passthrough), or choose an instance type with GPUs"
                      : "look with lspci whether the system sees the card; seat it again, or turn on its slot in the "
                        "firmware";
    none.facts.push_back({"devices", "0 of class display or accelerator", pci_folder});
    return none;
  }
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  for (const gpu_facts& gpu : machine.gpus()) {
    facts.push_back({gpu.address,
                     fmt::format("{}, driver {}", to_string(gpu.vendor), gpu.driver.empty() ? "none" : gpu.driver),
                     gpu.is_on_bus ? pci_folder + gpu.address + "/driver" : std::string{from_nvml}});
    if (!gpu.is_on_bus || gpu.driver == "nouveau") continue;  // a check of its own
    if (gpu.driver.empty()) {
      wrong.add(verdict::failed, gpu.address, gpu.title() + " has no driver");
      advice = gpu.vendor == gpu_vendor::nvidia ? "install NVIDIA's driver (Debian: apt install nvidia-driver; Ubuntu: "
                                                  "ubuntu-drivers install), then restart"
               : gpu.vendor == gpu_vendor::amd  ? "load it (modprobe amdgpu), or install amdgpu-dkms, then restart"
                                                : "install a kernel that has the driver xe or i915 for this GPU";
    } else if (gpu.driver == "vfio-pci" || gpu.driver == "pci-stub") {
      wrong.add(verdict::warning, gpu.address,
                fmt::format("{} is kept for a virtual machine (driver {})", gpu.title(), gpu.driver));
      if (advice.empty()) advice = "to use it here, take its id out of vfio-pci.ids and /etc/modprobe.d, then restart";
    } else if (gpu.driver == "nvidia" && machine.has_nvml() && gpu.nvml->is_null() && !machine.is_in_container()) {
      wrong.add(verdict::failed, gpu.address, gpu.title() + " is on the bus, but its driver does not list it");
      advice = "look for its Xid in the kernel's log (weft doctor --check kernel-log); switch the computer off and on";
    }
  }
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  return well(counted(machine.gpus().size(), "GPU") + ", each with its driver", std::move(facts));
}

finding pci_link(const machine_facts& machine) {
  complaints wrong;
  std::vector<evidence> facts;
  std::set<std::string> causes;
  std::size_t known = 0;
  for (const gpu_facts& gpu : machine.gpus()) {
    const bus_link& link = gpu.link;
    if (!link.lanes || !link.most_lanes) continue;
    ++known;
    const bus_link slot = gpu.bridges.empty() ? bus_link{} : machine.link_of(gpu.bridges.back());
    facts.push_back({gpu.address,
                     fmt::format("{} now, card {}, slot {}", link_text(link.lanes, link.rate),
                                 link_text(link.most_lanes, link.most_rate),
                                 slot.most_lanes ? link_text(slot.most_lanes, slot.most_rate) : "not known"),
                     pci_folder + gpu.address + "/current_link_width"});
    if (*link.lanes >= *link.most_lanes) continue;
    wrong.add(verdict::warning, gpu.address,
              fmt::format("{} runs on {} of its {} lanes ({})", gpu.title(), *link.lanes, *link.most_lanes,
                          link_text(link.lanes, link.rate)));
    causes.insert(slot.most_lanes && *slot.most_lanes <= *link.lanes
                      ? fmt::format("its slot has {} lanes", *slot.most_lanes)
                      : "the slot offers more: a riser, a cable, a dirty contact, or lanes that the firmware divides");
  }
  if (known == 0) {
    return machine.gpus().empty() ? does_not_apply("there is no GPU")
                                  : not_known("the system does not say how many lanes the links have");
  }
  if (wrong.any()) {
    return wrong.told(fmt::format("{}", fmt::join(causes, "; ")),
                      "use another slot, or seat the card and its riser again; look for bifurcation in the firmware",
                      std::move(facts));
  }
  // the rate falls while a GPU rests, so that it tells nothing here
  return well(fmt::format("all lanes of {} are in use", counted(known, "GPU")), std::move(facts));
}

finding pci_window(const machine_facts& machine) {
  complaints wrong;
  std::vector<evidence> facts;
  for (const gpu_facts& gpu : machine.gpus()) {
    if (!gpu.memory || !gpu.window) continue;
    const auto size = [](std::int64_t count) { return to_string(bytes{static_cast<std::uint64_t>(count)}); };
    facts.push_back({gpu.address, fmt::format("{} of {}", size(*gpu.window), size(*gpu.memory)),
                     gpu.nvml->is_null() ? pci_folder + gpu.address + "/resource" : std::string{from_nvml}});
    // some of the memory is never shown: it is the driver's own
    if (*gpu.window < *gpu.memory / 8 * 7)
      wrong.add(verdict::warning, gpu.address,
                fmt::format("the bus shows {} of the {} of {}", size(*gpu.window), size(*gpu.memory), gpu.title()));
  }
  if (facts.empty()) {
    return machine.gpus().empty() ? does_not_apply("there is no GPU")
                                  : not_known("nothing tells the size of the memory, or of its window on the bus");
  }
  if (!wrong.any()) return well("the bus shows the whole memory of each GPU", std::move(facts));
  if (machine.gpus().size() < 2)
    return well("the bus shows a part of the memory; only peers would need the rest", facts);
  return wrong.told(
      "peers and network adapters reach memory through this window",
      "turn on \"Above 4G decoding\" and \"Resizable BAR\" in the firmware; cards without it keep 256 MiB",
      std::move(facts));
}

namespace {

struct error_counts {
  std::int64_t corrected = 0, others = 0;
};

/// The last line of each file: "TOTAL_ERR_COR 12".
std::optional<std::int64_t> total_errors(const system_record& record, const std::string& file) {
  const auto text = record.text(file);
  if (!text) return std::nullopt;
  for (const std::string_view line : split(*text, '\n')) {
    if (line.starts_with("TOTAL_ERR")) return whole_number(line.substr(line.rfind(' ') + 1));
  }
  return std::nullopt;
}

}  // namespace

finding pci_errors(const machine_facts& machine) {
  constexpr std::int64_t many = 100;  // a link that trains at the start has some
  complaints wrong;
  std::vector<evidence> facts;
  std::int64_t few = 0;
  std::size_t known = 0;
  std::set<std::string> looked_at;
  for (const gpu_facts& gpu : machine.gpus()) {
    std::vector<std::string> places = gpu.bridges;
    places.push_back(gpu.address);
    for (const std::string& place : places) {
      const std::string folder = pci_folder + place;
      const auto corrected = total_errors(machine.record(), folder + "/aer_dev_correctable");
      if (!corrected || !looked_at.insert(place).second) continue;
      ++known;
      const std::int64_t others = total_errors(machine.record(), folder + "/aer_dev_nonfatal").value_or(0) +
                                  total_errors(machine.record(), folder + "/aer_dev_fatal").value_or(0);
      if (*corrected == 0 && others == 0) continue;
      facts.push_back({place, fmt::format("{} corrected, {} not corrected", *corrected, others),
                       folder + "/aer_dev_correctable, _nonfatal, _fatal"});
      const std::string who =
          place == gpu.address ? gpu.title() : fmt::format("bridge {} above {}", place, gpu.title());
      if (others > 0) {
        wrong.add(verdict::failed, gpu.address,
                  fmt::format("{} has counted {}", who,
                              counted(static_cast<std::size_t>(others), "error") + " that could not be corrected"));
      } else if (*corrected >= many) {
        wrong.add(verdict::warning, gpu.address, fmt::format("{} has counted {} corrected errors", who, *corrected));
      } else {
        few += *corrected;
      }
    }
  }
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  if (known == 0)
    return not_known("the system counts no errors of these devices: AER is off, or a virtual machine hides it");
  if (wrong.any()) {
    return wrong.told("a bad riser, cable or contact, or a link that is too fast for its length",
                      "look whether the count grows under load; seat the card again, change the riser, or set the slot "
                      "one generation lower in the firmware",
                      std::move(facts));
  }
  return well(
      few == 0 ? "no errors since the start" : fmt::format("{} corrected errors since the start, which is few", few),
      std::move(facts));
}

finding iommu(const machine_facts& machine) {
  const system_record& record = machine.record();
  std::vector<evidence> facts;
  const std::string words = record.text("/proc/cmdline").value_or("");
  if (!words.empty()) facts.push_back({"kernel options", words, "/proc/cmdline"});
  const auto units = record.names("/sys/class/iommu");
  if (!units.empty()) facts.push_back({"units", fmt::format("{}", fmt::join(units, ", ")), "/sys/class/iommu"});
  const auto translated = machine.translated();
  for (const std::string& address : translated) {
    const std::string group = record.link(pci_folder + address + "/iommu_group");
    const std::string type = "/sys/kernel/iommu_groups/" + group.substr(group.rfind('/') + 1) + "/type";
    facts.push_back({address, record.text(type).value_or(""), type});
  }
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  if (translated.empty()) {
    const bool has_groups = std::ranges::any_of(machine.gpus(), [&](const gpu_facts& gpu) {
      return !record.link(pci_folder + gpu.address + "/iommu_group").empty();
    });
    if (!has_groups && !units.empty())
      return not_known("the system has an IOMMU, but does not say what it does for GPUs");
    return well(units.empty() ? "no IOMMU is on" : "the IOMMU passes accesses through", std::move(facts));
  }
  if (machine.gpus().size() < 2) return well("the IOMMU translates; with one GPU that costs little", std::move(facts));
  if (machine.is_in_virtual_machine()) return well("the virtual machine has an IOMMU of its own", std::move(facts));
  return {verdict::warning,
          fmt::format("the IOMMU translates what {} access", counted(translated.size(), "GPU")),
          "accesses between GPUs over PCIe then pass the root complex: slower, and on some systems lost",
          "start the kernel with iommu=pt (GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, restart); if data is "
          "still lost, turn VT-d or AMD-Vi off in the firmware",
          std::move(facts),
          translated,
          {}};
}

finding acs(const machine_facts& machine) {
  if (machine.gpus().size() < 2) return does_not_apply("there are no two GPUs");
  const bool has_bridges =
      std::ranges::any_of(machine.gpus(), [](const gpu_facts& gpu) { return !gpu.bridges.empty(); });
  if (!has_bridges) return does_not_apply("no bridge is above the GPUs");
  const json& told = machine.record().at("/acs");
  if (const auto why = string_in(told, "why"))
    return not_known(*why, "sudo weft doctor --check acs, or: sudo lspci -vvv | grep -e '^[0-9a-f]' -e ACSCtl");
  if (!told.is_object() || told.empty()) return not_known("the configuration space of bridges was not read");
  const auto redirecting = machine.redirecting();
  if (redirecting.empty()) return well("no bridge above a GPU redirects requests");
  std::vector<evidence> facts;
  std::vector<std::string> about;
  for (const std::string& bridge : redirecting) {
    facts.push_back({bridge, fmt::format("ACS control 0x{:04x}", *integer_in(part_of(told, bridge), "does")),
                     pci_folder + bridge + "/config, extended capability 0x000d"});
  }
  for (const gpu_facts& gpu : machine.gpus()) {
    if (std::ranges::find_first_of(gpu.bridges, redirecting) != gpu.bridges.end()) about.push_back(gpu.address);
  }
  return {verdict::warning,
          fmt::format("{} above GPUs {} requests up to the root complex", counted(redirecting.size(), "bridge"),
                      redirecting.size() == 1 ? "sends" : "send"),
          "Access Control Services are on, as virtual machines want it: GPUs below one switch then talk through the "
          "processor",
          fmt::format("turn ACS off in the firmware, or after each start, for each bridge above: setpci -s {} "
                      "ECAP_ACS+0x6.w=0000 (not on a host of virtual machines)",
                      redirecting.front()),
          std::move(facts),
          std::move(about),
          {}};
}

finding hypervisor(const machine_facts& machine) {
  const system_record& record = machine.record();
  if (!machine.is_in_virtual_machine()) return well("no: this is the computer itself");
  std::vector<evidence> facts{{"flag", "hypervisor", "/proc/cpuinfo"}};
  for (const char* file : {"/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name", "/sys/hypervisor/type"}) {
    if (const auto text = record.text(file))
      facts.push_back({file + std::string_view{file}.rfind('/') + 1, *text, file});
  }
  return well("yes: what peers can do depends on how the hypervisor hands GPUs on", std::move(facts));
}

namespace {

std::optional<std::int64_t> xid_of(const std::string& line) {
  const auto at = line.find("Xid");
  if (line.find("NVRM") == std::string::npos || at == std::string::npos) return std::nullopt;
  const auto colon = line.find("): ", at);
  if (colon == std::string::npos) return std::nullopt;
  const std::size_t begin = colon + 3;
  return whole_number(std::string_view{line}.substr(begin, line.find_first_not_of("0123456789", begin) - begin));
}

}  // namespace

finding kernel_log(const machine_facts& machine) {
  const json& lines = machine.record().at("/kernel_log/lines");
  if (!lines.is_array()) {
    const auto why = string_in(machine.record().at("/kernel_log"), "why");
    return not_known("the kernel's log cannot be read: " + why.value_or("it was not asked for"),
                     "sudo weft doctor --check kernel-log, or: sudo dmesg | grep -e NVRM -e AER -e DMAR -e AMD-Vi");
  }
  std::map<std::int64_t, std::size_t> seen;
  std::size_t translations = 0;
  std::size_t bus_errors = 0;
  std::size_t resets = 0;
  std::vector<evidence> facts;
  for (const json& one : lines) {
    if (!one.is_string()) continue;
    const auto line = one.get<std::string>();
    const auto holds = [&line](std::string_view part) { return line.find(part) != std::string::npos; };
    if (const auto number = xid_of(line)) {
      ++seen[*number];
    } else if (holds("DMAR:") || holds("AMD-Vi") || holds("IO_PAGE_FAULT")) {
      ++translations;
    } else if (holds("AER:") || holds("pcieport")) {
      ++bus_errors;
    } else if (holds("amdgpu") && (holds("reset") || holds("timeout"))) {
      ++resets;
    } else {
      continue;
    }
    if (facts.size() < 5) facts.push_back({"line", line, "the kernel's log (dmesg)"});
  }
  complaints wrong;
  std::size_t programs = 0;
  for (const auto& [number, count] : seen) {
    const auto known = std::ranges::find(xids, number, &xid::number);
    if (known != xids.end() && known->is_programs) {
      programs += count;
      continue;
    }
    wrong.add(number == 63 || known == xids.end() ? verdict::warning : verdict::failed, {},
              fmt::format("Xid {} {}: {}", number, counted(count, "time"),
                          known == xids.end() ? "see NVIDIA's table of Xid errors" : known->meaning));
  }
  if (translations > 0)
    wrong.add(verdict::failed, {}, fmt::format("the IOMMU has refused accesses, {}", counted(translations, "time")));
  if (resets > 0) wrong.add(verdict::failed, {}, fmt::format("amdgpu has reset a GPU, {}", counted(resets, "time")));
  if (bus_errors > 0)
    wrong.add(verdict::warning, {}, fmt::format("the bus has reported errors, {}", counted(bus_errors, "time")));
  if (wrong.any()) {
    const bool is_lost = seen.contains(79) || seen.contains(119);
    return wrong.told({},
                      is_lost ? "switch the computer off and on; if it comes again: power cables, heat, then the card"
                      : translations > 0
                          ? "start the kernel with iommu=pt; a program that writes past its memory can cause it too"
                          : "nvidia-smi -q shows which GPU; reset it (nvidia-smi --gpu-reset), and replace the card "
                            "if the number grows",
                      std::move(facts));
  }
  if (programs > 0)
    return well(fmt::format("only faults of programs (Xid 13, 31, 43, 45), {}", counted(programs, "time")),
                std::move(facts));
  return well("no faults of GPUs, their links, or the IOMMU");
}

}  // namespace doctor_checks
}  // namespace weft::tool
