// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's management library knows of each GPU, and what AMD's driver shows in the system's files.
#include "backends/gpu/cuda/nvml_functions.hpp"
#include "doctor/finding_words.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace weft::tool::doctor_checks {

namespace {

// What to do, by nvmlGpuP2PStatus_t, as gpu::nvml_p2p_words.
constexpr std::array<std::string_view, gpu::nvml_p2p_words.size()> p2p_advice{
    "",
    "Put both GPUs below one PCIe switch or root port.",
    "",  // nothing to set
    "Use GPUs of one socket together, or NVLink.",
    "Take the setting out of NVreg_RegistryDwords in /etc/modprobe.d, then load the module nvidia again.",
    "",
    "Restart. Then look at the kernel's log (weft doctor --check kernel-log).",
};

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

/// The same of what GPUs of other vendors have too: nobody has looked at theirs.
finding not_looked_at(const machine_facts& machine) {
  if (machine.has(gpu_vendor::nvidia)) return not_known(machine.nvml_why());
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  return not_known("the driver does not tell; the vendor's own tool may (amd-smi metric, amd-smi process, xpu-smi)");
}

evidence nvml_fact(const gpu_facts& gpu, std::string value) {
  return {gpu.address, std::move(value), std::string{from_nvml}};
}

/// Modules that are soldered or screwed to a board with switches: nobody seats them again.
bool is_module(const gpu_facts& gpu) {
  return gpu.name.find("HBM") != std::string::npos || gpu.name.find("SXM") != std::string::npos;
}

}  // namespace

finding persistence(const machine_facts& machine) {
  const auto gpus = told(machine);
  if (gpus.empty()) return without_nvml(machine);
  finding made;
  for (const gpu_facts* gpu : gpus) {
    const auto is_on = integer_in(*gpu->nvml, "persistence");
    if (!is_on) continue;
    made.facts.push_back(nvml_fact(*gpu, *is_on != 0 ? "on" : "off"));
    if (*is_on == 0) made.about.push_back(gpu->address);
  }
  if (made.facts.empty()) return not_known("the driver does not tell its persistence mode");
  if (made.about.empty()) return well("on", std::move(made.facts));
  put_decisive_first(made);
  made.summary = fmt::format("Persistence mode is off on {}.", gpus_text(machine, made.about));
  made.effect =
      "The driver shuts a GPU down when no program uses it. The next program starts one to two seconds later.";
  made.steps = {"Until the next restart:", "$ sudo nvidia-smi -pm 1",
                "Permanently: take --no-persistence-mode out of the service's ExecStart, and start it:",
                "$ sudo systemctl edit --full nvidia-persistenced",
                "$ sudo systemctl enable --now nvidia-persistenced"};
  return made;
}

finding gpu_mode(const machine_facts& machine) {
  finding made;
  for (const gpu_facts& gpu : machine.gpus()) {
    const std::string file = pci_folder + gpu.address + "/current_compute_partition";
    if (const auto partition = machine.record().text(file))
      made.facts.push_back({gpu.address, "compute partition " + *partition, file});
  }
  const auto gpus = told(machine);
  if (gpus.empty() && made.facts.empty()) return not_looked_at(machine);
  if (gpus.empty()) {
    made.summary = made.facts.front().value;
    return made;
  }
  std::vector<std::string> divided, waiting, closed, exclusive;
  for (const gpu_facts* gpu : gpus) {
    const json& mig = part_of(*gpu->nvml, "mig");
    const auto mode = integer_in(*gpu->nvml, "compute_mode").value_or(0);
    const auto note = [&](std::vector<std::string>& list, std::string value) {
      list.push_back(gpu->address);
      made.about.push_back(gpu->address);
      made.facts.push_back(nvml_fact(*gpu, std::move(value)));
    };
    if (bool_in(mig, "now").value_or(false)) {
      note(divided, "MIG on");
    } else if (bool_in(mig, "after_reset").value_or(false)) {
      note(waiting, "MIG on after the next reset");
    }
    constexpr std::int64_t prohibited = 2;
    if (mode == prohibited) note(closed, "compute mode prohibited");
    if (mode == 1 || mode == 3) note(exclusive, "compute mode exclusive");
  }
  if (made.about.empty()) return well("undivided, and open to several processes", std::move(made.facts));
  made.decisive = made.facts.size();
  if (!closed.empty())
    made.add(verdict::failed,
             gpus_do(machine, closed, "refuses", "refuse") + " all CUDA programs (compute mode \"prohibited\").",
             "Programs do not find it.",
             {"Somebody set this on purpose. If it is no longer wanted, let programs use it again:",
              fmt::format("$ sudo nvidia-smi -i {} -c DEFAULT", fmt::join(closed, ","))});
  if (!exclusive.empty())
    made.add(verdict::warning,
             gpus_do(machine, exclusive, "takes", "take") + " one process at a time (compute mode \"exclusive\").",
             "The second process fails.",
             {"To let several in:", fmt::format("$ sudo nvidia-smi -i {} -c DEFAULT", fmt::join(exclusive, ","))});
  if (!divided.empty())
    made.add(verdict::ok, gpus_do(machine, divided, "is", "are") + " divided into parts (MIG is on).",
             "A divided GPU cannot copy directly to other GPUs.",
             {"If that is wanted, do nothing. Turning MIG off removes its parts and what runs on them:",
              fmt::format("$ sudo nvidia-smi -i {} -mig 0", fmt::join(divided, ","))});
  if (!waiting.empty())
    made.add(verdict::warning, fmt::format("MIG waits for a reset of {}.", gpus_text(machine, waiting)),
             "Until then it is not divided.",
             {"Let its programs end (ask their users), then:",
              fmt::format("$ sudo nvidia-smi --gpu-reset -i {}", fmt::join(waiting, ","))});
  return made;
}

namespace {

/// Errors that AMD's driver has counted: "ue: 0" of "ue: 0, ce: 3".
std::optional<std::int64_t> uncorrected_of(const std::optional<std::string>& text) {
  if (!text || !text->starts_with("ue:")) return std::nullopt;
  const std::string_view rest = trimmed(std::string_view{*text}.substr(3));
  return whole_number(rest.substr(0, rest.find_first_not_of("0123456789")));
}

}  // namespace

finding gpu_memory(const machine_facts& machine) {
  finding made;
  std::vector<std::string> worn, pending, counted_errors;
  std::int64_t errors = 0;
  for (const gpu_facts& gpu : machine.gpus()) {
    const std::string file = pci_folder + gpu.address + "/ras/umc_err_count";
    const json& rows = part_of(*gpu.nvml, "remapped_rows");
    const auto from_amd = uncorrected_of(machine.record().text(file));
    const auto seen = gpu.nvml->is_object() ? integer_in(*gpu.nvml, "memory_errors") : from_amd;
    if (!rows.is_object() && !seen) continue;
    const bool has_failed = bool_in(rows, "failed").value_or(false);
    const bool is_pending =
        bool_in(rows, "pending").value_or(false) || integer_in(*gpu.nvml, "retirement_pending").value_or(0) != 0;
    made.facts.push_back(
        {gpu.address,
         fmt::format("{} since the driver was loaded{}",
                     seen.value_or(0) > 0 ? counted(static_cast<std::size_t>(*seen), "uncorrected error") + " counted"
                                          : "no uncorrected errors counted",
                     has_failed   ? "; a bad row could not be replaced by spare memory"
                     : is_pending ? "; a bad row waits for a reset"
                                  : ""),
         from_amd ? file : std::string{from_nvml}});
    if (has_failed) worn.push_back(gpu.address);
    if (is_pending && !has_failed) pending.push_back(gpu.address);
    if (seen.value_or(0) > 0 && !has_failed) {
      counted_errors.push_back(gpu.address);
      errors += *seen;
    }
  }
  if (made.facts.empty())
    return told(machine).empty()
               ? not_looked_at(machine)
               : does_not_apply("these GPUs do not count memory errors: ECC is off, or they have none");
  const auto say = [&](const std::vector<std::string>& list, verdict how_bad, const std::string& sentence) {
    if (list.empty()) return;
    made.add(how_bad, sentence);
    for (const std::string& address : list) {  // errors and a row that waits are often of one GPU
      if (std::ranges::find(made.about, address) == made.about.end()) made.about.push_back(address);
    }
  };
  say(worn, verdict::failed,
      gpus_do(machine, worn, "has", "have") + " bad memory that could not be replaced by spare memory.");
  say(counted_errors, verdict::failed,
      fmt::format("{} had {} that could not be corrected.", gpus_do(machine, counted_errors, "has", "have"),
                  counted(static_cast<std::size_t>(errors), "memory error")));
  say(pending, verdict::warning,
      gpus_do(machine, pending, "has", "have") + " bad memory. It is replaced by spare memory at the next reset.");
  if (made.found == verdict::ok) {
    made.summary = fmt::format("no errors on {}", counted(made.facts.size(), "GPU"));
    return made;
  }
  put_decisive_first(made);
  if (!worn.empty()) {
    made.effect = "Programs on it can fail at any time.";
    made.steps = {
        "Take it out of use: drain it in the batch system, or leave it out of CUDA_VISIBLE_DEVICES. Save nvidia-smi "
        "-q, run NVIDIA's diagnostics for all GPUs (dcgmi diag -r 3), and have it replaced."};
  } else {
    made.effect = counted_errors.empty() ? "It usually works until then; reset it soon."
                                         : "The programs that ran on it then have failed.";
    made.steps = {"Let its programs end (ask their users), then reset it:",
                  fmt::format("$ sudo nvidia-smi --gpu-reset -i {}", fmt::join(made.about, ",")),
                  "If errors come again, run NVIDIA's diagnostics for all GPUs (dcgmi diag -r 3). If they fail, have "
                  "it replaced."};
  }
  return made;
}

namespace {

/// GPUs slow down a little before their limit.
constexpr std::int64_t near_degrees = 3;

struct temperature {
  std::string sensor;
  std::int64_t celsius = 0, limit = 0;
};

/// The sensor of a GPU of AMD's that is nearest to its limit.
std::optional<temperature> hottest_of(const gpu_facts& gpu) {
  std::optional<temperature> found;
  const json& sensors = part_of(*gpu.amd, "temperatures");
  for (const json& one : sensors.is_array() ? sensors : json::array()) {
    const auto celsius = integer_in(one, "celsius");
    const auto limit = integer_in(one, "limit");
    if (!celsius || !limit || *celsius < -1000 || *celsius > 1000 || *limit <= 0 || *limit > 1000) continue;
    if (!found || *limit - *celsius < found->limit - found->celsius)
      found = temperature{string_in(one, "name").value_or("?"), *celsius, *limit};
  }
  return found;
}

}  // namespace

finding clocks(const machine_facts& machine) {
  struct reason {
    std::uint64_t bit;
    const char* what;
    bool is_heat;
  };
  constexpr std::uint64_t heat_bits = 0x40 | 0x20;  // by the hardware, by the driver
  // nvmlClocksEventReasons: idleness, settings of users and the usual power limit are no faults
  static constexpr reason reasons[] = {{heat_bits, "it is too hot", true},
                                       {0x80, "the power supply holds it back (power brake)", false},
                                       {0x08, "the hardware protects itself", false}};
  finding made;
  std::set<std::string> texts;
  bool is_hot = false;
  const auto note_near = [&](const gpu_facts& gpu) {
    is_hot = true;
    made.about.push_back(gpu.address);
    texts.insert("its temperature is near the limit");
  };
  for (const gpu_facts& gpu : machine.gpus()) {
    if (const auto hottest = hottest_of(gpu)) {
      made.facts.push_back({gpu.address, fmt::format("{} C, limit {} C", hottest->celsius, hottest->limit),
                            pci_folder + gpu.address + "/hwmon, " + hottest->sensor});
      if (hottest->celsius >= hottest->limit - near_degrees) note_near(gpu);
    }
  }
  const auto gpus = told(machine);
  if (gpus.empty() && made.facts.empty()) return not_looked_at(machine);
  for (const gpu_facts* gpu : gpus) {
    const auto bits = static_cast<std::uint64_t>(integer_in(*gpu->nvml, "clock_reasons").value_or(0));
    const auto celsius = integer_in(*gpu->nvml, "celsius");
    const auto limit = integer_in(*gpu->nvml, "slowdown_celsius");
    if (!celsius && part_of(*gpu->nvml, "clock_reasons").is_null()) continue;
    std::string held;
    for (const reason& one : reasons) {
      if ((bits & one.bit) == 0) continue;
      held += (held.empty() ? "" : " and ") + std::string{one.what};
      is_hot = is_hot || one.is_heat;
    }
    const bool is_near = celsius && limit && *celsius >= *limit - near_degrees;
    made.facts.push_back(nvml_fact(
        *gpu, fmt::format("{} C{}{}", celsius ? std::to_string(*celsius) : "?",
                          limit ? fmt::format(", hardware limit {} C", *limit) : "", held.empty() ? "" : ": " + held)));
    if (held.empty() && is_near) note_near(*gpu);
    if (held.empty()) continue;
    made.about.push_back(gpu->address);
    texts.insert(held);
  }
  if (made.facts.empty()) return not_known("the driver tells neither clocks nor temperatures");
  if (made.about.empty())
    return well(gpus.empty() ? "no temperature is near its limit" : "neither heat nor power holds clocks down",
                std::move(made.facts));
  put_decisive_first(made);
  made.found = verdict::warning;
  made.summary =
      fmt::format("{} slower than it could: {}.", gpus_do(machine, made.about, "runs", "run"), fmt::join(texts, "; "));
  made.effect = "Kernels take longer, and GPUs that work with it wait.";
  const bool is_alone = made.about.size() == 1 && machine.gpus().size() > 1;
  made.steps = {!is_hot    ? "Look at its power cables, and at the power supplies of the chassis."
                : is_alone ? "Only this GPU is hot: look at the fans and the airflow of its slot (cards without fans "
                             "need those of the chassis)."
                           : "Look at fans, dust and the temperature of the room."};
  return made;
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
  finding made;
  const gpu_facts* worst = nullptr;
  std::vector<std::string> noisy;
  for (const gpu_facts* gpu : gpus) {
    const auto found = links.find(gpu->address);
    if (found == links.end()) continue;
    const count& one = found->second;
    made.facts.push_back(nvml_fact(*gpu, fmt::format("{} of {} links up{}, {} since the driver was loaded", one.up,
                                                     one.all, one.down.empty() ? "" : " (down: " + one.down + ")",
                                                     counted(static_cast<std::size_t>(one.errors), "error"))));
    if (one.up < most[gpu->name]) {
      worst = gpu;
      made.about.push_back(gpu->address);
      made.add(verdict::warning, fmt::format("GPU {} has {} of {} NVLinks up.", gpu->address, one.up, most[gpu->name]));
    } else if (one.errors > 0) {
      noisy.push_back(gpu->address);
    }
  }
  if (worst != nullptr) {
    made.effect = "Copies to and from it are slower.";
    made.steps = {"Let its programs end (ask their users), then reset it:",
                  fmt::format("$ sudo nvidia-smi --gpu-reset -i {}", fmt::join(made.about, ",")),
                  is_module(*worst) ? "If links stay down: the board needs service; ask its vendor."
                                    : "If links stay down: switch off, and seat the GPU and its NVLink bridge again."};
  } else if (!noisy.empty()) {
    made.about = noisy;
    made.summary = fmt::format("The NVLinks of {} have counted errors.", gpus_text(machine, noisy));
    made.effect = "Packets are repeated. Many of them make copies slower.";
    made.steps = {"Look whether the number grows under load:", "$ nvidia-smi nvlink -e",
                  "If it does, ask the vendor; a bridge can be seated again."};
  } else {
    const bool none_up = std::ranges::all_of(links, [](const auto& one) { return one.second.up == 0; });
    return well(none_up ? "no NVLink is connected: no bridge, or no switch" : "as many links as on each like GPU",
                std::move(made.facts));
  }
  made.found = verdict::warning;
  put_decisive_first(made);
  return made;
}

finding fabric(const machine_facts& machine) {
  finding made;
  constexpr std::int64_t not_supported = 0, completed = 3;
  static constexpr const char* names[] = {"not supported", "not started", "in progress", "completed"};
  for (const gpu_facts* gpu : told(machine)) {
    const json& state_of = part_of(*gpu->nvml, "fabric");
    const auto state = integer_in(state_of, "state");
    if (!state || *state == not_supported) continue;
    const auto status = integer_in(state_of, "status").value_or(0);
    const std::string name = *state >= 0 && *state <= completed ? names[*state] : std::to_string(*state);
    made.facts.push_back(
        nvml_fact(*gpu, fmt::format("registration {}{}", name, status == 0 ? "" : fmt::format(", error {}", status))));
    if (*state != completed || status != 0) made.about.push_back(gpu->address);
  }
  const system_record& record = machine.record();
  const bool has_manager = record.has_folder("/var/run/nvidia-fabricmanager");
  if (made.facts.empty() && machine.switches().empty()) return does_not_apply("there are no switches for NVLink");
  const bool is_silent = made.facts.empty() && !has_manager && !machine.is_in_container();
  if (made.about.empty() && !is_silent) {
    if (made.facts.empty() && machine.is_in_container())
      return not_known("there are switches, and only the host sees its fabric manager");
    return well("every GPU is part of it", std::move(made.facts));
  }
  put_decisive_first(made);
  made.found = verdict::failed;
  if (is_silent) made.facts = {{"/var/run/nvidia-fabricmanager", "absent", "/var/run"}};
  if (is_silent) made.decisive = 1;
  made.summary = is_silent ? std::string{"The fabric manager does not run."}
                 : made.about.size() == machine.gpus().size()
                     ? fmt::format("None of the {} GPUs has joined the NVLink fabric.", made.about.size())
                     : fmt::format("{} not joined the NVLink fabric.", gpus_do(machine, made.about, "has", "have"));
  made.effect =
      "The service nvidia-fabricmanager sets up the NVLink switches. Until it has, every CUDA program fails with error "
      "802.";
  const std::string driver = string_in(machine.nvml(), "driver").value_or("");
  made.steps = {
      fmt::format("See whether its service runs. If it is unknown, install the package nvidia-fabricmanager of "
                  "exactly the driver's version{}, from where the driver came.",
                  driver.empty() ? "" : " (" + driver + ")"),
      "$ systemctl status nvidia-fabricmanager",
      "Start it, now and with each start of the computer:",
      "$ sudo systemctl enable --now nvidia-fabricmanager",
      "If it does not start, or runs already, see its log (it must be of the driver's version):",
      "$ journalctl -u nvidia-fabricmanager",
      "Then check:",
      "$ weft doctor --check fabric"};
  return made;
}

finding p2p_status(const machine_facts& machine) {
  const system_record& record = machine.record();
  if (machine.gpus().size() < 2) return does_not_apply("there are no two GPUs");
  if (!machine.has(gpu_vendor::nvidia) && !machine.has(gpu_vendor::amd))
    return not_known("the driver does not tell whether GPUs may be peers");
  const std::string parameter = "/sys/module/amdgpu/parameters/pcie_p2p";
  if (!machine.has(gpu_vendor::nvidia)) {
    const auto is_on = record.text(parameter);
    if (!is_on) return not_known("amdgpu does not tell whether peers may use PCIe");
    if (*is_on != "N" && *is_on != "0") return well("amdgpu allows peers over PCIe", {{"pcie_p2p", *is_on, parameter}});
    std::vector<std::string> steps{
        "See how they are joined. If every pair is XGMI, nothing need be done:", "$ amd-smi topology",
        "Else see where it is turned off:", "$ grep -r pcie_p2p /etc/modprobe.d /proc/cmdline"};
    steps.emplace_back(
        "In /etc/modprobe.d: take it out, and run sudo update-initramfs -u (Fedora, RHEL: dracut -f). In "
        "/proc/cmdline: "
        "take it out of GRUB_CMDLINE_LINUX in /etc/default/grub, and run sudo update-grub. Nowhere: add "
        "amdgpu.pcie_p2p=1 there. Then restart.");
    return {.found = verdict::warning,
            .summary = "AMD's driver does not allow peer access over PCIe (pcie_p2p is off).",
            .effect = "Copies go through the host, except between GPUs that Infinity Fabric joins.",
            .steps = std::move(steps),
            .facts = {{"pcie_p2p", *is_on, parameter}},
            .decisive = 1};
  }
  const json& told_of = record.at("/nvml/p2p");
  if (!machine.has_nvml() || !told_of.is_object()) return without_nvml(machine);
  std::map<std::size_t, std::vector<std::string>> refused;
  std::set<std::string> about;
  std::size_t all = 0;
  const auto is_divided = [&](const std::string& address) {  // by MIG: gpu-mode tells
    const gpu_facts* gpu = machine.gpu_at(address);
    return gpu != nullptr && bool_in(part_of(*gpu->nvml, "mig"), "now").value_or(false);
  };
  for (const auto& [from, row] : told_of.items()) {
    if (!row.is_object()) continue;
    for (const auto& [to, pair] : row.items()) {
      if (is_divided(from) || is_divided(to)) continue;
      const auto read = integer_in(pair, "read");
      const auto write = integer_in(pair, "write");
      if (!read && !write) continue;
      ++all;
      const std::int64_t worst = read.value_or(0) != 0 ? *read : write.value_or(0);
      if (worst == 0) continue;
      refused[static_cast<std::size_t>(std::clamp<std::int64_t>(worst, 0, p2p_advice.size() - 1))].push_back(
          fmt::format("{} to {}", from, to));
      about.insert({from, to});
    }
  }
  if (all == 0) return not_known("the driver tells of no pair whether it may be peers");
  if (refused.empty()) return well(fmt::format("all {} ordered pairs may be peers", all));
  finding made{.effect = "Copies between them go through the host. weft does that by itself."};
  made.about.assign(about.begin(), about.end());
  const bool is_virtual = machine.is_in_virtual_machine();
  for (const auto& [status, names] : refused) {
    made.add(verdict::ok,
             fmt::format("{} of {} ordered pairs of GPUs have no peer access: {}.", names.size(), all,
                         is_virtual && status == 1 ? "the virtual machine shows a chipset that does not support it"
                                                   : gpu::nvml_p2p_words[status]));
    made.facts.push_back({names.front() + (names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : ""),
                          std::string{gpu::nvml_p2p_words[status]}, fmt::format("nvmlDeviceGetP2PStatus, {}", status)});
    if (!p2p_advice[status].empty() && !is_virtual) made.steps.emplace_back(p2p_advice[status]);
  }
  made.decisive = made.facts.size();
  if (is_virtual)
    made.steps = {
        "You cannot change this inside the virtual machine. Ask its operator for GPUs with peer access (with QEMU and "
        "VFIO: one x-nv-gpudirect-clique for all), or choose an instance type with NVLink."};
  if (is_virtual) {
    made.facts.push_back({"virtual machine", "yes", "weft doctor --check hypervisor"});
    made.decisive = made.facts.size();
  }
  // what nobody can change is worth a word, and no warning
  const bool can_change = !made.steps.empty();
  if (can_change) made.found = verdict::warning;
  if (!can_change)
    made.steps = {"Nothing need be done, and nothing can be set. Programs that copy between GPUs take longer here."};
  return made;
}

finding gpu_users(const machine_facts& machine) {
  finding made;
  std::int64_t held = 0;
  for (const gpu_facts& gpu : machine.gpus()) {
    const bool is_amd = gpu.nvml->is_null();
    const json& users = part_of(is_amd ? *gpu.amd : *gpu.nvml, "users");
    const auto count = integer_in(users, "processes");
    if (!count) continue;
    const auto used = integer_in(users, "memory").value_or(0);
    made.facts.push_back(
        {gpu.address,
         fmt::format("{}, {}", counted(static_cast<std::size_t>(std::max<std::int64_t>(*count, 0)), "other process"),
                     size_text(used)),
         is_amd ? "/sys/class/kfd/kfd/proc" : std::string{from_nvml}});
    if (*count <= 0 || !gpu.memory || used <= *gpu.memory / 10) continue;
    made.about.push_back(gpu.address);
    held += used;
  }
  if (made.facts.empty())
    return told(machine).empty() ? not_looked_at(machine) : not_known("the driver does not tell who uses the GPUs");
  if (made.about.empty()) return well("no other process, or little memory of theirs", std::move(made.facts));
  put_decisive_first(made);
  made.found = verdict::warning;
  made.summary = fmt::format("Other processes hold {} of {}.", size_text(held), gpus_text(machine, made.about));
  made.effect = "Your programs get less memory, and run slower.";
  made.steps = {"See whose they are (in a container, on the host):",
                machine.has(gpu_vendor::nvidia)
                    ? "$ nvidia-smi --query-compute-apps=pid,used_memory,gpu_bus_id --format=csv"
                    : "$ grep . /sys/class/kfd/kfd/proc/*/vram_*",
                "$ ps -o pid,user,etime,cmd -p PID", "End only your own."};
  return made;
}

}  // namespace weft::tool::doctor_checks
