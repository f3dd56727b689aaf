// SPDX-License-Identifier: Apache-2.0
// The bus, what stands between GPUs and memory, and what the kernel says of them.
#include "doctor/finding_words.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace weft::tool::doctor_checks {

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
    xid{63, "the GPU has retired bad memory", false},
    xid{64, "the GPU could not retire bad memory", false},
    xid{74, "an NVLink failed", false},
    xid{79, "the GPU has fallen off the bus", false},
    xid{94, "memory error, contained in one program", false},
    xid{95, "memory error that was not contained", false},
    xid{119, "the GPU's own processor (GSP) does not answer", false},
};

/// The steps where a GPU has no driver.
std::vector<std::string> steps_to_load(bool is_nvidia) {
  std::vector<std::string> steps{"Load the driver:"};
  if (!is_nvidia) {
    steps.emplace_back("$ sudo modprobe amdgpu");
    steps.emplace_back("If it says \"not found\", install amdgpu-dkms and restart.");
    return steps;
  }
  steps.emplace_back("$ sudo modprobe nvidia");
  steps.emplace_back(
      "If it says \"not found\", the driver is not installed. Install it and restart: on Debian the package "
      "nvidia-driver, on Fedora and RHEL from NVIDIA's repository, on Ubuntu by this command:");
  steps.emplace_back("$ sudo ubuntu-drivers install");
  steps.emplace_back("If it says \"Key was rejected\", sign the module, or turn Secure Boot off in the firmware.");
  steps.emplace_back(
      "If it works, and nouveau still holds a GPU: write the line \"blacklist nouveau\" into a file of "
      "/etc/modprobe.d, "
      "then:");
  steps.emplace_back("$ sudo update-initramfs -u && sudo reboot");
  return steps;
}

}  // namespace

finding pci_gpus(const machine_facts& machine) {
  if (machine.gpus().empty()) {
    finding none = does_not_apply("This computer has no NVIDIA, AMD or Intel GPU on its PCI bus.");
    none.steps = {"$ lspci | grep -iE 'vga|3d|display|accel'"};
    none.steps.emplace_back(
        machine.is_in_virtual_machine()
            ? "This is a virtual machine: attach a GPU to it (PCI passthrough), or choose an instance "
              "type with GPUs."
            : "If lspci lists no card either: switch off, seat it again, check its power cables, and "
              "look whether the firmware has its slot on.");
    none.facts.push_back({"display and accelerator devices", "0", pci_folder});
    none.decisive = 1;
    return none;
  }
  std::vector<std::string> without, kept, unlisted;
  std::vector<std::string> held;
  finding made;
  for (const gpu_facts& gpu : machine.gpus()) {
    made.facts.push_back({gpu.address,
                          fmt::format("{}, driver {}", to_string(gpu.vendor), gpu.driver.empty() ? "none" : gpu.driver),
                          gpu.is_on_bus ? pci_folder + gpu.address + "/driver" : std::string{from_nvml}});
    if (gpu.driver == "nouveau") held.push_back(gpu.address);  // a check of its own
    if (!gpu.is_on_bus || gpu.driver == "nouveau") continue;
    if (gpu.driver.empty()) without.push_back(gpu.address);
    if (gpu.driver == "vfio-pci" || gpu.driver == "pci-stub") kept.push_back(gpu.address);
    const bool is_lost =
        gpu.driver == "nvidia" && machine.has_nvml() && gpu.nvml->is_null() && !machine.is_in_container();
    if (is_lost) unlisted.push_back(gpu.address);
  }
  const auto say = [&](const std::vector<std::string>& gpus, verdict how_bad, const std::string& sentence,
                       const std::vector<std::string>& steps) {
    if (gpus.empty()) return;
    made.add(how_bad, sentence, {}, steps);
    made.about.insert(made.about.end(), gpus.begin(), gpus.end());
  };
  say(unlisted, verdict::failed,
      gpus_do(machine, unlisted, "no longer answers", "no longer answer") + ". The kernel still lists it.",
      {"Save a report first, the log is lost afterwards:", "$ sudo nvidia-bug-report.sh",
       "Let what runs on the other GPUs end, then switch the computer off and on (a restart is often not enough).",
       "If it happens again: check power cables and cooling, seat the card and its riser again, then replace it."});
  const gpu_facts* first = without.empty() ? nullptr : machine.gpu_at(without.front());
  const bool is_nvidia = first != nullptr && first->vendor == gpu_vendor::nvidia;
  const std::string others =
      held.empty() ? "" : " " + gpus_do(machine, held, "is", "are") + " held by nouveau, which cannot compute.";
  say(without, verdict::failed, gpus_do(machine, without, "has no driver.", "have no driver.") + others,
      steps_to_load(is_nvidia));
  say(kept, verdict::warning, gpus_do(machine, kept, "is", "are") + " kept for virtual machines (driver vfio-pci).",
      {"To use it here: take its id out of vfio-pci.ids (kernel options, /etc/modprobe.d), then restart."});
  if (made.found == verdict::ok) {
    made.summary = fmt::format("{}, each with its driver", counted(machine.gpus().size(), "GPU"));
  } else {
    const std::size_t bad = made.about.size();
    const std::size_t well = machine.gpus().size() - bad;
    made.effect = bad == 1 ? "No program can use it." : "No program can use them.";
    if (bad == unlisted.size() && well > 0)
      made.effect +=
          fmt::format(" The other {} may go on working, or fail as well.", well == 1 ? "one" : std::to_string(well));
    put_decisive_first(made);
  }
  return made;
}

finding pci_link(const machine_facts& machine) {
  finding made;
  std::set<std::string> texts;
  std::vector<std::string> by_slot, by_fault;
  std::int64_t wanted = 0;  // lanes of the first one by a fault
  std::size_t known = 0;
  for (const gpu_facts& gpu : machine.gpus()) {
    const bus_link& link = gpu.link;
    if (!link.lanes || !link.most_lanes) continue;
    ++known;
    const bus_link slot = gpu.bridges.empty() ? bus_link{} : machine.link_of(gpu.bridges.back());
    made.facts.push_back({gpu.address,
                          fmt::format("now {}, card {}, slot {}", link_text(link.lanes, link.rate),
                                      link_text(link.most_lanes, link.most_rate),
                                      slot.most_lanes ? link_text(slot.most_lanes, slot.most_rate) : "not known"),
                          pci_folder + gpu.address + "/current_link_width"});
    if (*link.lanes >= *link.most_lanes) continue;
    const bool is_by_slot = slot.most_lanes && *slot.most_lanes <= *link.lanes;
    if (!is_by_slot && by_fault.empty())
      wanted = std::min(*link.most_lanes, slot.most_lanes.value_or(*link.most_lanes));
    (is_by_slot ? by_slot : by_fault).push_back(gpu.address);
    texts.insert(fmt::format("{} of {} lanes", *link.lanes, *link.most_lanes));
  }
  if (known == 0) {
    return machine.gpus().empty() ? does_not_apply("there is no GPU")
                                  : not_known("the system does not say how many lanes the links have");
  }
  if (texts.empty()) {
    // the generation falls while a GPU rests, so that it tells nothing here
    made.summary = fmt::format("all lanes of {} are in use", counted(known, "GPU"));
    return made;
  }
  made.about = by_fault;
  made.about.insert(made.about.end(), by_slot.begin(), by_slot.end());
  made.summary =
      fmt::format("{} only {} of the PCIe bus.", gpus_do(machine, made.about, "uses", "use"), fmt::join(texts, ", "));
  made.effect = "Copies to and from it are slower in that proportion.";
  if (by_fault.empty()) {
    made.cause = "The slot has no more lanes. The board may be built so.";
    made.steps = {
        "If the speed matters: move the card to a slot with more lanes, or look in the firmware whether it splits "
        "this slot (bifurcation)."};
  } else {
    made.found = verdict::warning;
    made.cause =
        "card and slot both have more, so a riser, a cable or a dirty contact; or the firmware splits the slot "
        "(bifurcation)";
    made.is_guess = true;
    made.steps = {
        fmt::format("Switch the computer off, and seat the card and its riser again. Then this must print {}:", wanted),
        fmt::format("$ cat {}{}/current_link_width", pci_folder, by_fault.front()),
        "If not: another riser, another slot; and look in the firmware whether it splits this slot."};
  }
  put_decisive_first(made);
  return made;
}

finding pci_window(const machine_facts& machine) {
  finding made;
  std::set<std::string> texts;
  for (const gpu_facts& gpu : machine.gpus()) {
    if (!gpu.memory || !gpu.window) continue;
    made.facts.push_back({gpu.address, fmt::format("{} of {}", size_text(*gpu.window), size_text(*gpu.memory)),
                          gpu.nvml->is_null() ? pci_folder + gpu.address + "/resource" : std::string{from_nvml}});
    // some of the memory is never shown: it is the driver's own
    if (*gpu.window >= *gpu.memory / 8 * 7) continue;
    made.about.push_back(gpu.address);
    texts.insert(fmt::format("{} of {}", size_text(*gpu.window), size_text(*gpu.memory)));
  }
  if (made.facts.empty()) {
    return machine.gpus().empty()
               ? does_not_apply("there is no GPU")
               : not_known("nothing tells the size of the memory, or of its window on the bus (BAR1)");
  }
  if (made.about.empty()) {
    made.summary = "the bus shows the whole memory of each GPU";
    return made;
  }
  made.summary = fmt::format("{} only {} of memory on the PCIe bus (BAR1).",
                             gpus_do(machine, made.about, "shows", "show"), fmt::join(texts, ", "));
  const bool has_use = machine.gpus().size() > 1 && machine.may_have_peers();
  made.effect =
      has_use
          ? "Other GPUs and network adapters reach memory through this window."
          : "That does no harm: only peer access and network adapters would need more, and this computer uses neither.";
  if (has_use) made.found = verdict::warning;
  made.steps = {
      std::string{has_use ? "Turn on" : "Nothing need be done. To change it, turn on"} +
      " \"Above 4G decoding\" and \"Resizable BAR\" in the firmware. Cards without Resizable BAR always show 256 MiB."};
  put_decisive_first(made);
  return made;
}

namespace {

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
  finding made;
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
      const std::int64_t others =
          std::max<std::int64_t>(total_errors(machine.record(), folder + "/aer_dev_nonfatal").value_or(0), 0) +
          std::max<std::int64_t>(total_errors(machine.record(), folder + "/aer_dev_fatal").value_or(0), 0);
      if (*corrected <= 0 && others == 0) continue;
      made.facts.push_back(
          {place, fmt::format("{} corrected, {} not corrected, since the computer started", *corrected, others),
           folder + "/aer_dev_correctable, _nonfatal, _fatal"});
      const std::string who =
          place == gpu.address ? "GPU " + place : fmt::format("The bridge {} above GPU {}", place, gpu.address);
      if (others == 0 && *corrected < many) {
        few += *corrected;
        continue;
      }
      made.add(
          others > 0 ? verdict::failed : verdict::warning,
          fmt::format("{} has counted {} PCIe errors{}.", who, *corrected + others,
                      others > 0 ? fmt::format(", {} of which could not be corrected", others) : ", all corrected"));
      made.about.push_back(gpu.address);
    }
  }
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  if (known == 0)
    return not_known("the system counts no errors of these devices: AER is off, or a virtual machine hides it");
  if (made.found == verdict::ok) {
    return well(few == 0 ? "no errors since the computer started"
                         : fmt::format("{} corrected errors since the computer started, which is few", few),
                std::move(made.facts));
  }
  made.effect = "Packets are repeated, which is slow; those that could not be corrected end programs.";
  made.cause = "a bad riser, cable or contact, or a riser that is too long for this PCIe generation";
  made.is_guess = true;
  made.steps = {fmt::format("$ grep . {}{}/aer_dev_*", pci_folder, made.about.front()),
                "Look whether the count grows under load. Then switch off and seat the card and its riser again.",
                "Try another riser, or set the slot one PCIe generation lower in the firmware."};
  made.decisive = made.facts.size();
  return made;
}

finding iommu(const machine_facts& machine) {
  const system_record& record = machine.record();
  finding made;
  const std::string words = record.text("/proc/cmdline").value_or("");
  const auto units = record.names("/sys/class/iommu");
  made.about = machine.translated();
  for (const std::string& address : made.about) {
    const std::string group = record.link(pci_folder + address + "/iommu_group");
    const std::string type = "/sys/kernel/iommu_groups/" + group.substr(group.rfind('/') + 1) + "/type";
    made.facts.push_back({address, record.text(type).value_or("") + " (translating)", type});
  }
  if (!words.empty()) made.facts.push_back({"kernel options", words, "/proc/cmdline"});
  if (!units.empty()) made.facts.push_back({"units", fmt::format("{}", fmt::join(units, ", ")), "/sys/class/iommu"});
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  if (made.about.empty()) {
    const bool has_groups = std::ranges::any_of(machine.gpus(), [&](const gpu_facts& gpu) {
      return !record.link(pci_folder + gpu.address + "/iommu_group").empty();
    });
    if (!has_groups && !units.empty())
      return not_known("the system has an IOMMU, but does not say what it does for GPUs");
    return well(units.empty() ? "no IOMMU is on" : "the IOMMU passes accesses through", std::move(made.facts));
  }
  if (machine.gpus().size() < 2)
    return well("the IOMMU translates; with one GPU that costs little", std::move(made.facts));
  if (machine.is_in_virtual_machine())
    return well("the virtual machine has an IOMMU of its own", std::move(made.facts));
  const bool is_amd = std::ranges::any_of(units, [](const std::string& unit) { return unit.starts_with("ivhd"); });
  made.found = verdict::warning;
  made.summary = fmt::format("The IOMMU translates the memory accesses of {}.", gpus_text(machine, made.about));
  made.effect = "Copies between GPUs over PCIe are slower. On some systems they deliver wrong data.";
  const bool is_tried = machine.record().at("/work").is_object();
  if (!is_tried)
    made.steps = {"First see whether copies are wrong here:", "$ weft doctor --run",
                  "If they are, stop programs that use several GPUs, and do this now. If not, do it at the "
                  "next maintenance:"};
  made.steps.insert(
      made.steps.end(),
      {"Add iommu=pt to the kernel options (Debian, Ubuntu: GRUB_CMDLINE_LINUX in /etc/default/grub, then sudo "
       "update-grub), and "
       "restart. Then check: weft doctor --run",
       fmt::format(
           "If that finds wrong data, turn {} off in the firmware. Virtual machines then get no devices of this "
           "computer, and devices are no longer kept apart.",
           is_amd ? "AMD-Vi (IOMMU)" : "VT-d")});
  put_decisive_first(made);
  return made;
}

finding acs(const machine_facts& machine) {
  if (machine.gpus().size() < 2) return does_not_apply("there are no two GPUs");
  const bool has_bridges =
      std::ranges::any_of(machine.gpus(), [](const gpu_facts& gpu) { return !gpu.bridges.empty(); });
  if (!has_bridges) return does_not_apply("no bridge is above the GPUs");
  const json& told = machine.record().at("/acs");
  if (const auto why = string_in(told, "why")) {
    return not_known(*why, {machine.is_in_container() ? "Run it on the host, as root: weft doctor --check acs"
                                                      : "$ sudo weft doctor --check acs"});
  }
  if (!told.is_object() || told.empty()) return not_known("the configuration space of bridges was not read");
  const auto redirecting = machine.redirecting();
  if (redirecting.empty()) return well("no bridge above a GPU redirects requests");
  finding made{
      .found = verdict::warning,
      .summary = fmt::format("Access Control Services (ACS) are on for {} above GPUs.",
                             counted(redirecting.size(), "PCIe bridge")),
      .effect =
          "Copies between GPUs go through the processor instead of through the switch: slower, and some programs hang.",
      .cause =
          "Linux turns them on with the IOMMU; firmware and hypervisors do too. They keep devices of virtual machines "
          "apart."};
  made.steps = {"If this computer gives devices to virtual machines, leave them on.",
                "Otherwise turn them off until the next restart:"};
  for (const std::string& bridge : redirecting) {
    made.facts.push_back(
        {bridge,
         fmt::format("ACS control 0x{:04x}: requests are redirected", *integer_in(part_of(told, bridge), "does")),
         pci_folder + bridge + "/config"});
    made.steps.push_back(fmt::format("$ sudo setpci -s {} ECAP_ACS+0x6.w=0000", bridge));
  }
  made.steps.insert(made.steps.end(),
                    {"Then check:", "$ sudo weft doctor --check acs",
                     "Permanently: turn ACS off in the firmware, or add this kernel option, with its single quotes, to "
                     "GRUB_CMDLINE_LINUX in /etc/default/grub, then run sudo update-grub and restart:",
                     fmt::format("| 'pci=disable_acs_redir={}'", fmt::join(redirecting, ";"))});
  made.decisive = made.facts.size();
  for (const gpu_facts& gpu : machine.gpus()) {
    if (std::ranges::find_first_of(gpu.bridges, redirecting) != gpu.bridges.end()) made.about.push_back(gpu.address);
  }
  return made;
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

/// The GPU that a line of the log names: "0000:66:00.0", or "PCI:0000:65:00" without its function.
std::string gpu_in(const machine_facts& machine, const std::string& line) {
  for (const gpu_facts& gpu : machine.gpus()) {
    if (line.find(gpu.address.substr(0, gpu.address.rfind('.'))) != std::string::npos) return gpu.address;
  }
  return {};
}

std::string times(std::size_t count) { return count == 1 ? "once" : fmt::format("{} times", count); }

/// What the lines of the log are about, each kind of them counted.
struct log_lines {
  std::map<std::int64_t, std::size_t> xids;
  std::size_t translations = 0, bus_errors = 0, resets = 0;
};

}  // namespace

finding kernel_log(const machine_facts& machine) {
  const json& lines = machine.record().at("/kernel_log/lines");
  if (!lines.is_array()) {
    const auto why = string_in(machine.record().at("/kernel_log"), "why");
    return not_known("the kernel's log cannot be read: " + why.value_or("it was not asked for"),
                     {"$ sudo weft doctor --check kernel-log"});
  }
  log_lines seen;
  finding made;
  std::set<std::string> about;
  for (const json& one : lines) {
    if (!one.is_string()) continue;
    const auto line = one.get<std::string>();
    const auto holds = [&line](std::string_view part) { return line.find(part) != std::string::npos; };
    if (const auto number = xid_of(line)) {
      ++seen.xids[*number];
    } else if (holds("DMAR:") || holds("AMD-Vi") || holds("IO_PAGE_FAULT")) {
      ++seen.translations;
    } else if (holds("AER:") || holds("pcieport")) {
      ++seen.bus_errors;
    } else if (holds("amdgpu") && (holds("reset") || holds("timeout"))) {
      ++seen.resets;
    } else {
      continue;
    }
    if (const std::string gpu = gpu_in(machine, line); !gpu.empty()) about.insert(gpu);
    if (made.facts.size() < 5) made.facts.push_back({"line", line, "the kernel's log (dmesg)"});
  }
  std::size_t programs = 0;
  bool is_lost = false;
  for (const auto& [number, count] : seen.xids) {
    const auto known = std::ranges::find(xids, number, &xid::number);
    if (known != xids.end() && known->is_programs) {
      programs += count;
      continue;
    }
    is_lost = is_lost || number == 79 || number == 119;
    made.add(number == 63 || known == xids.end() ? verdict::warning : verdict::failed,
             fmt::format("NVIDIA's driver has reported error {} (Xid), {}: {}.", number, times(count),
                         known == xids.end() ? "see NVIDIA's table of Xid errors" : known->meaning));
  }
  if (seen.resets > 0)
    made.add(verdict::failed, fmt::format("The driver amdgpu has reset a GPU, {}.", times(seen.resets)));
  if (seen.translations > 0)
    made.add(verdict::failed, fmt::format("The IOMMU has blocked accesses to memory, {}.", times(seen.translations)));
  if (seen.bus_errors > 0)
    made.add(verdict::warning, fmt::format("The PCIe bus has reported errors, {}.", times(seen.bus_errors)));
  made.about.assign(about.begin(), about.end());
  made.decisive = made.facts.size();
  if (made.found == verdict::ok) {
    made.decisive = 0;
    made.about.clear();
    made.summary = programs > 0 ? fmt::format("only faults of programs (Xid 13, 31, 43, 45), {}", times(programs))
                                : "no faults of GPUs, their links, or the IOMMU";
    return made;
  }
  const std::string which = made.about.empty() ? "ADDRESS" : made.about.front();
  constexpr std::int64_t uncorrected = 48, uncontained = 95;
  if (seen.xids.contains(uncorrected) || seen.xids.contains(uncontained))
    made.effect =
        "Programs that ran on it at that time (sudo dmesg -T tells when) may have crashed, or have wrong results. "
        "Start none before the reset.";
  if (is_lost) {
    made.steps = {
        "Save a report (it writes nvidia-bug-report.log.gz):", "$ sudo nvidia-bug-report.sh",
        "Then switch the computer off and on (a restart is often not enough).",
        "If it happens again: check power cables and cooling, seat the card and its riser again, then replace it."};
  } else if (seen.translations > 0) {
    made.effect = "A device was stopped from using memory that was not given to it.";
    made.cause = "a broken connection, or a program or driver that used memory after freeing it";
    made.is_guess = true;
    made.steps = {
        "Mend the GPU's connection first, if pci-errors names it. If it comes back after that, these lines tell "
        "when and which device. Look for the program that used it then:",
        "$ sudo dmesg -T | grep -E 'IO_PAGE_FAULT|DMAR'"};
  } else if (!seen.xids.empty()) {
    made.steps = {"Stop the programs of this GPU now, and tell their users. Then reset it:",
                  fmt::format("$ sudo nvidia-smi --gpu-reset -i {}", which),
                  "If the error comes again, run NVIDIA's diagnostics (dcgmi diag -r 3, all GPUs), and have the GPU "
                  "replaced if they "
                  "fail."};
  } else {
    made.steps = {"Look at the lines around it: sudo dmesg"};
  }
  return made;
}

}  // namespace weft::tool::doctor_checks
