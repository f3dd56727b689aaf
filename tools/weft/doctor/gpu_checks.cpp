// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's management library knows of each GPU, and what AMD's driver shows in the system's files.
#include "backends/gpu/nvml_functions.hpp"
#include "doctor/finding_words.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace weft::tool {

namespace {

// by nvmlGpuP2PStatus_t, as gpu::nvml_p2p_words
constexpr std::array<std::string_view, gpu::nvml_p2p_words.size()> p2p_advice{
    "",
    "put both GPUs below one PCIe switch or root port; in a virtual machine, the hypervisor must present them so",
    "nothing to set: NVIDIA's driver offers it on this model only over NVLink, or not at all",
    "use GPUs of one socket, or NVLink",
    "take it out of NVreg_RegistryDwords in /etc/modprobe.d, then load the module again",
    "nothing to set",
    "restart; then look at the kernel's log (weft doctor --check kernel-log)",
};

}  // namespace

namespace doctor_checks {

namespace {

/// Those that the management library tells something of.
std::vector<const gpu_facts*> told(const machine_facts& machine) {
  std::vector<const gpu_facts*> list;
  for (const gpu_facts& gpu : machine.gpus()) {
    if (gpu.nvml->is_object()) list.push_back(&gpu);
  }
  return list;
}

/// For a check that asks NVML alone, where it does not answer.
finding without_nvml(const machine_facts& machine) {
  return machine.has(gpu_vendor::nvidia) ? not_known(machine.nvml_why()) : does_not_apply(machine.nvml_why());
}

evidence nvml_fact(const gpu_facts& gpu, std::string value) {
  return {gpu.address, std::move(value), std::string{from_nvml}};
}

}  // namespace

finding persistence(const machine_facts& machine) {
  const auto gpus = told(machine);
  if (gpus.empty()) return without_nvml(machine);
  complaints wrong;
  std::vector<evidence> facts;
  for (const gpu_facts* gpu : gpus) {
    const auto is_on = integer_in(*gpu->nvml, "persistence");
    if (!is_on) continue;
    facts.push_back(nvml_fact(*gpu, *is_on != 0 ? "on" : "off"));
    if (*is_on == 0) wrong.add(verdict::warning, gpu->address, "off on " + gpu->title());
  }
  if (facts.empty()) return not_known("the driver does not tell its persistence mode");
  if (!wrong.any()) return well("on", std::move(facts));
  finding made =
      wrong.told("the driver leaves a GPU when its last program ends: the next one waits a second or more for it",
                 "sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1", std::move(facts));
  made.summary = fmt::format("persistence mode is off on {}", counted(wrong.count(), "GPU"));
  return made;
}

finding gpu_mode(const machine_facts& machine) {
  const auto gpus = told(machine);
  if (gpus.empty()) return without_nvml(machine);
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  for (const gpu_facts* gpu : gpus) {
    const json& mig = part_of(*gpu->nvml, "mig");
    const bool is_divided = bool_in(mig, "now").value_or(false);
    if (is_divided) {
      wrong.add(verdict::warning, gpu->address, "MIG is on: parts of " + gpu->title() + " are no peers of anything");
      facts.push_back(nvml_fact(*gpu, "MIG on"));
      advice = fmt::format("if you need peers: sudo nvidia-smi -i {} -mig 0, and reset the GPU", gpu->address);
    } else if (bool_in(mig, "after_reset").value_or(false)) {
      wrong.add(verdict::warning, gpu->address, "MIG waits for a reset of " + gpu->title());
      facts.push_back(nvml_fact(*gpu, "MIG on after the next reset"));
      advice = fmt::format("sudo nvidia-smi -i {} --gpu-reset, or restart", gpu->address);
    }
    constexpr std::int64_t prohibited = 2, exclusive = 3;
    const auto mode = integer_in(*gpu->nvml, "compute_mode");
    if (mode == prohibited || mode == exclusive || mode == 1) {
      wrong.add(mode == prohibited ? verdict::failed : verdict::warning, gpu->address,
                mode == prohibited ? gpu->title() + " is closed to programs (compute mode \"prohibited\")"
                                   : "only one process may use " + gpu->title() + " (compute mode \"exclusive\")");
      facts.push_back(nvml_fact(*gpu, fmt::format("compute mode {}", *mode)));
      advice = fmt::format("sudo nvidia-smi -i {} -c 0", gpu->address);
    }
  }
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  return well("undivided, and open to several processes");
}

finding gpu_memory(const machine_facts& machine) {
  const auto gpus = told(machine);
  if (gpus.empty()) return without_nvml(machine);
  complaints wrong;
  std::vector<evidence> facts;
  std::size_t known = 0;
  bool must_go = false;
  for (const gpu_facts* gpu : gpus) {
    const json& rows = part_of(*gpu->nvml, "remapped_rows");
    const auto errors = integer_in(*gpu->nvml, "memory_errors");
    if (rows.is_object() || errors) ++known;
    if (bool_in(rows, "failed").value_or(false)) {
      must_go = true;
      wrong.add(verdict::failed, gpu->address, gpu->title() + " has no spare row left for a bad one");
      facts.push_back(nvml_fact(*gpu, "remapping of a row has failed"));
    } else if (bool_in(rows, "pending").value_or(false) ||
               integer_in(*gpu->nvml, "retirement_pending").value_or(0) != 0) {
      wrong.add(verdict::warning, gpu->address, gpu->title() + " puts bad memory out of use at its next reset");
      facts.push_back(nvml_fact(*gpu, fmt::format("rows remapped: {} after errors, one pending",
                                                  integer_in(rows, "uncorrected").value_or(0))));
    }
    if (errors.value_or(0) > 0) {
      wrong.add(verdict::failed, gpu->address,
                fmt::format("{} has had {} that could not be corrected", gpu->title(),
                            counted(static_cast<std::size_t>(*errors), "memory error")));
      facts.push_back(nvml_fact(*gpu, fmt::format("{} since the driver was loaded", *errors)));
    }
  }
  if (known == 0) return not_known("these GPUs do not count memory errors (no ECC)");
  if (!wrong.any()) return well(fmt::format("no errors on {}", counted(known, "GPU")), std::move(facts));
  return wrong.told(
      {},
      must_go ? "stop using the GPU, run NVIDIA's diagnostics (dcgmi diag -r 3), and have it replaced"
              : "end its programs and reset it (sudo nvidia-smi --gpu-reset -i ADDRESS); if errors come again, "
                "dcgmi diag -r 3, and have it replaced",
      std::move(facts));
}

finding clocks(const machine_facts& machine) {
  struct reason {
    std::uint64_t bit;
    const char* what;
    const char* advice;
  };
  // nvmlClocksEventReasons: idleness, settings of users and the usual power limit are no faults
  static constexpr reason reasons[] = {
      {0x40, "heat (hardware)", "look at fans, dust and the room's temperature"},
      {0x20, "heat (driver)", "look at fans, dust and the room's temperature"},
      {0x80, "the power supply (power brake)", "look at its power cables and at the supply of the chassis"},
      {0x08, "hardware protection", "look at cooling and power cables"},
  };
  const auto gpus = told(machine);
  if (gpus.empty()) return without_nvml(machine);
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  for (const gpu_facts* gpu : gpus) {
    const auto bits = integer_in(*gpu->nvml, "clock_reasons");
    const auto celsius = integer_in(*gpu->nvml, "celsius");
    const auto limit = integer_in(*gpu->nvml, "slowdown_celsius");
    if (bits || celsius) {
      facts.push_back(nvml_fact(*gpu, fmt::format("{} C{}, reasons 0x{:x}", celsius ? std::to_string(*celsius) : "?",
                                                  limit ? fmt::format(" of {} C", *limit) : "", bits.value_or(0))));
    }
    const auto found = std::ranges::find_if(
        reasons, [&](const reason& one) { return (static_cast<std::uint64_t>(bits.value_or(0)) & one.bit) != 0; });
    if (found != std::end(reasons)) {
      wrong.add(verdict::warning, gpu->address, fmt::format("{} is held down by {}", gpu->title(), found->what));
      advice = found->advice;
    } else if (celsius && limit && *celsius >= *limit - 3) {
      wrong.add(verdict::warning, gpu->address,
                fmt::format("{} is at {} C, and slows down at {} C", gpu->title(), *celsius, *limit));
      advice = reasons[0].advice;
    }
  }
  if (facts.empty()) return not_known("the driver tells neither clocks nor temperatures");
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  return well("neither heat nor power holds clocks down", std::move(facts));
}

finding nvlink(const machine_facts& machine) {
  const auto gpus = told(machine);
  if (gpus.empty()) return without_nvml(machine);
  struct count {
    std::int64_t up = 0, all = 0, errors = 0;
    std::string down;
  };
  std::map<std::string, count> links;
  std::map<std::string, std::int64_t> most;  // of each model
  for (const gpu_facts* gpu : gpus) {
    const json& told_of = part_of(*gpu->nvml, "nvlinks");
    const auto all = integer_in(told_of, "count");
    const json& down = part_of(told_of, "down");
    if (all.value_or(0) <= 0) continue;
    count& one = links[gpu->address];
    one.all = *all;
    one.up = *all - static_cast<std::int64_t>(down.is_array() ? down.size() : 0);
    one.errors = std::max<std::int64_t>(integer_in(told_of, "errors").value_or(0), 0);
    for (const json& link : down.is_array() ? down : json::array())
      one.down += (one.down.empty() ? "" : ", ") + link.dump();
    most[gpu->name] = std::max(most[gpu->name], one.up);
  }
  if (links.empty()) return does_not_apply("these GPUs have no NVLink");
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  for (const gpu_facts* gpu : gpus) {
    const auto found = links.find(gpu->address);
    if (found == links.end()) continue;
    const count& one = found->second;
    facts.push_back(nvml_fact(*gpu, fmt::format("{} of {} links up, {}", one.up, one.all,
                                                counted(static_cast<std::size_t>(one.errors), "error"))));
    if (one.up < most[gpu->name]) {
      wrong.add(verdict::failed, gpu->address,
                fmt::format("{} has {} of {} links up (down: {})", gpu->title(), one.up, most[gpu->name], one.down));
      advice =
          "reset the GPU (sudo nvidia-smi --gpu-reset); if the link stays down, seat the GPU or its bridge again, then "
          "look "
          "at the kernel's log";
    } else if (one.errors > 0) {
      wrong.add(verdict::warning, gpu->address,
                fmt::format("the links of {} have counted {}", gpu->title(),
                            counted(static_cast<std::size_t>(one.errors), "error")));
      if (advice.empty()) advice = "look whether the number grows under load; then seat the GPU or its bridge again";
    }
  }
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  const bool none_up = std::ranges::all_of(links, [](const auto& one) { return one.second.up == 0; });
  return well(none_up ? "no NVLink is connected: no bridge, or no switch" : "as many links as on each like GPU",
              std::move(facts));
}

finding fabric(const machine_facts& machine) {
  const auto gpus = told(machine);
  complaints wrong;
  std::vector<evidence> facts;
  constexpr std::int64_t not_supported = 0, completed = 3;
  for (const gpu_facts* gpu : gpus) {
    const json& state_of = part_of(*gpu->nvml, "fabric");
    const auto state = integer_in(state_of, "state");
    if (!state || *state == not_supported) continue;
    const auto status = integer_in(state_of, "status").value_or(0);
    static constexpr const char* names[] = {"not supported", "not started", "in progress", "completed"};
    const std::string name = *state >= 0 && *state <= completed ? names[*state] : std::to_string(*state);
    facts.push_back(nvml_fact(*gpu, fmt::format("registration {}, status {}", name, status)));
    if (*state != completed || status != 0)
      wrong.add(verdict::failed, gpu->address,
                fmt::format("{} is not part of the fabric (registration {})", gpu->title(), name));
  }
  const system_record& record = machine.record();
  const bool has_manager = record.has_folder("/var/run/nvidia-fabricmanager");
  if (facts.empty() && machine.switches().empty()) return does_not_apply("there are no switches for NVLink");
  if (facts.empty() && !has_manager && !machine.is_in_container()) {
    wrong.add(verdict::failed, {}, "the fabric manager does not run");
    facts.push_back({"/var/run/nvidia-fabricmanager", "absent", "/var/run"});
  }
  if (wrong.any()) {
    const std::string driver = string_in(machine.nvml(), "driver").value_or("");
    return wrong.told(
        "until it has set up the switches, CUDA does not start (error 802)",
        fmt::format("sudo systemctl enable --now nvidia-fabricmanager, of the driver's own version{}; its log says "
                    "what it waits for (journalctl -u nvidia-fabricmanager)",
                    driver.empty() ? "" : " " + driver),
        std::move(facts));
  }
  if (facts.empty() && machine.is_in_container())
    return not_known("there are switches, and only the host sees its fabric manager");
  return well("every GPU is part of it", std::move(facts));
}

finding p2p_status(const machine_facts& machine) {
  const system_record& record = machine.record();
  if (machine.gpus().size() < 2) return does_not_apply("there are no two GPUs");
  const std::string parameter = "/sys/module/amdgpu/parameters/pcie_p2p";
  if (!machine.has(gpu_vendor::nvidia)) {
    const auto is_on = record.text(parameter);
    if (!is_on) return not_known("amdgpu does not tell whether peers may use PCIe");
    if (*is_on != "N" && *is_on != "0") return well("amdgpu allows peers over PCIe", {{"pcie_p2p", *is_on, parameter}});
    return {verdict::warning,
            "amdgpu does not allow peers over PCIe",
            {},
            "load it with amdgpu.pcie_p2p=1 (kernel option), and a kernel with HSA_AMD_P2P",
            {{"pcie_p2p", *is_on, parameter}},
            {},
            {}};
  }
  const json& told_of = record.at("/nvml/p2p");
  if (!machine.has_nvml() || !told_of.is_object()) return without_nvml(machine);
  std::map<std::int64_t, std::vector<std::string>> refused;
  std::set<std::string> about;
  std::size_t all = 0;
  for (const auto& [from, row] : told_of.items()) {
    if (!row.is_object()) continue;
    for (const auto& [to, pair] : row.items()) {
      const auto read = integer_in(pair, "read");
      const auto write = integer_in(pair, "write");
      if (!read && !write) continue;
      ++all;
      const std::int64_t worst = read.value_or(0) != 0 ? *read : write.value_or(0);
      if (worst == 0) continue;
      refused[worst].push_back(from + " to " + to);
      about.insert({from, to});
    }
  }
  if (all == 0) return not_known("the driver does not tell which pairs may be peers");
  if (refused.empty()) return well(fmt::format("all {} may be peers", counted(all, "ordered pair")));
  std::vector<evidence> facts;
  std::string summary;
  std::string advice;
  for (const auto& [status, names] : refused) {
    const auto which = static_cast<std::size_t>(std::clamp<std::int64_t>(status, 0, p2p_advice.size() - 1));
    summary += fmt::format("{}{} of {}: {}", summary.empty() ? "" : "; ", names.size(), counted(all, "ordered pair"),
                           gpu::nvml_p2p_words[which]);
    advice += (advice.empty() ? "" : "; ") + std::string{p2p_advice[which]};
    for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 3); ++i)
      facts.push_back({names[i], fmt::format("status {}", status), "nvmlDeviceGetP2PStatus"});
  }
  finding made{verdict::warning,
               "no peer access for " + summary,
               {},
               advice + "; weft copies these pairs through the host by itself",
               std::move(facts),
               std::vector<std::string>{about.begin(), about.end()},
               {}};
  if (machine.is_in_virtual_machine())
    made.cause = "this is a virtual machine, and the hypervisor decides what peers can do";
  return made;
}

finding gpu_users(const machine_facts& machine) {
  const auto gpus = told(machine);
  if (gpus.empty()) return without_nvml(machine);
  complaints wrong;
  std::vector<evidence> facts;
  std::size_t known = 0;
  for (const gpu_facts* gpu : gpus) {
    const json& users = part_of(*gpu->nvml, "users");
    const auto count = integer_in(users, "processes");
    if (!count) continue;
    ++known;
    const auto used = integer_in(users, "memory").value_or(0);
    if (*count <= 0) continue;
    facts.push_back(
        nvml_fact(*gpu, fmt::format("{}, {}", counted(static_cast<std::size_t>(*count), "other process"),
                                    to_string(bytes{static_cast<std::uint64_t>(std::max<std::int64_t>(used, 0))}))));
    if (gpu->memory && used > *gpu->memory / 10) {
      wrong.add(verdict::warning, gpu->address,
                fmt::format("other processes hold {} of {}", to_string(bytes{static_cast<std::uint64_t>(used)}),
                            gpu->title()));
    }
  }
  if (known == 0) return not_known("the driver does not tell who uses the GPUs");
  if (wrong.any())
    return wrong.told("memory and time are shared with them",
                      "nvidia-smi shows them; end what is left over from earlier runs", std::move(facts));
  return well(facts.empty() ? "no other process" : "other processes use little memory", std::move(facts));
}

}  // namespace doctor_checks
}  // namespace weft::tool
