// SPDX-License-Identifier: Apache-2.0
#include "doctor/checks/checks.hpp"

#include <algorithm>
#include <array>

namespace weft::tool {

namespace {

constexpr std::array table{
    check{"pci-gpus", "does each GPU on the bus have its driver?", doctor_checks::pci_gpus},
    check{"pci-link", "is each GPU joined to the bus by all its lanes?", doctor_checks::pci_link},
    check{"pci-window", "does the bus show the whole memory of each GPU?", doctor_checks::pci_window},
    check{"pci-errors", "has the bus counted errors?", doctor_checks::pci_errors},
    check{"iommu", "does the IOMMU translate what GPUs access?", doctor_checks::iommu},
    check{"acs", "may switches pass requests from GPU to GPU?", doctor_checks::acs},
    check{"hypervisor", "is this a virtual machine?", doctor_checks::hypervisor},
    check{"kernel-log", "has the kernel reported faults of GPUs?", doctor_checks::kernel_log},
    check{"driver-version", "are the driver's module and its libraries of one version?", doctor_checks::driver_version},
    check{"nouveau", "does the driver nouveau hold a GPU?", doctor_checks::nouveau},
    check{"device-nodes", "can this user open the devices?", doctor_checks::device_nodes},
    check{"libraries", "are the libraries there that programs open?", doctor_checks::libraries},
    check{"toolkit", "does the driver know what the compiler makes?", doctor_checks::toolkit},
    check{"container", "was the container started with GPUs?", doctor_checks::container},
    check{"shared-memory", "is /dev/shm large enough?", doctor_checks::shared_memory},
    check{"limits", "may the process open and lock enough?", doctor_checks::limits},
    check{"virtual-memory", "do the kernel's settings suit large reservations?", doctor_checks::virtual_memory},
    check{"numa", "may the process run near its GPUs?", doctor_checks::numa},
    check{"cpus", "are there two CPUs for each GPU?", doctor_checks::cpus},
    check{"environment", "do variables hide GPUs or slow them down?", doctor_checks::environment},
    check{"processes", "can processes share memory?", doctor_checks::processes},
    check{"rdma", "can network adapters reach GPU memory?", doctor_checks::rdma},
    check{"persistence", "does the driver stay awake?", doctor_checks::persistence},
    check{"gpu-mode", "may several processes and peers use each GPU?", doctor_checks::gpu_mode},
    check{"gpu-memory", "is the memory of each GPU sound?", doctor_checks::gpu_memory},
    check{"clocks", "does heat or power hold clocks down?", doctor_checks::clocks},
    check{"nvlink", "is every NVLink up?", doctor_checks::nvlink},
    check{"fabric", "has the fabric manager set up the switches?", doctor_checks::fabric},
    check{"p2p-status", "does the driver allow peer access?", doctor_checks::p2p_status},
    check{"gpu-users", "do other processes use the GPUs?", doctor_checks::gpu_users},
    check{"p2p-data", "does data arrive over each pair?", doctor_checks::p2p_data, true},
    check{"p2p-rate", "is each pair as fast as its like?", doctor_checks::p2p_rate, true},
    check{"host-rate", "is each GPU's way to host memory as fast as its link?", doctor_checks::host_rate, true},
    check{"kernels", "does a kernel run on each GPU?", doctor_checks::kernels, true},
};

finding& of(diagnosis& all, std::string_view name) {
  const auto found = std::ranges::find(table, name, &check::name);
  return all.findings[static_cast<std::size_t>(found - table.begin())];
}

/// Trouble that is no part of another.
bool is_open(const finding& one) {
  return (one.found == verdict::warning || one.found == verdict::failed) && one.part_of.empty();
}

bool is_about(const finding& one, const std::string& address) {
  return std::ranges::find(one.about, address) != one.about.end();
}

bool is_of_one_gpu(const finding& one, const finding& other) {
  return std::ranges::any_of(other.about, [&](const std::string& address) { return is_about(one, address); });
}

/// What becomes of the steps of a finding when its cause is known: those against the cause take their place, come after
/// them (they help meanwhile), or are left out (they would do less).
enum class cause_steps : std::uint8_t { replace, add, leave_out };

/// Tells `cause` as the reason of `effect`, where both are of the same GPUs: one finding, as bad as the worse of the
/// two.
void explain(diagnosis& all, std::string_view effect, std::string_view cause, cause_steps how) {
  finding& shown = of(all, effect);
  finding& merged = of(all, cause);
  if (!is_open(shown) || !is_open(merged) || !(merged.about.empty() || is_of_one_gpu(shown, merged))) return;
  const bool is_first = std::ranges::count(all.findings, effect, &finding::part_of) == 0;
  merged.part_of = effect;
  if (merged.found == verdict::failed && shown.found != verdict::failed) {
    shown.found = verdict::failed;
    // the worse of the two says what to do, and how soon
    if (!merged.effect.empty()) shown.effect = merged.effect;
    if (how == cause_steps::leave_out) shown.steps = merged.steps;
  }
  const bool has_guess = shown.is_guess && !shown.cause.empty();
  if (how == cause_steps::replace) {
    shown.summary = merged.summary + " " + shown.summary;  // what is broken, then what that does
    shown.cause = merged.cause;
    shown.is_guess = merged.is_guess;
  } else {
    if (!shown.cause.empty()) shown.cause += shown.cause.ends_with('.') ? " " : ". ";
    shown.cause += merged.summary;
    // one guess is enough
    if (!merged.cause.empty() && !has_guess) shown.cause += (merged.is_guess ? " Likely: " : " ") + merged.cause;
  }
  if (is_first && how == cause_steps::replace) shown.steps.clear();
  if (how != cause_steps::leave_out) shown.steps.insert(shown.steps.end(), merged.steps.begin(), merged.steps.end());
  shown.facts.insert(shown.facts.begin() + static_cast<std::ptrdiff_t>(std::min(shown.decisive, std::size_t{1})),
                     merged.facts.begin(), merged.facts.begin() + static_cast<std::ptrdiff_t>(merged.decisive));
  shown.decisive += merged.decisive;
}

/// Leaves out what only follows from a failure, or from the same GPU's trouble: its own advice would lead astray.
/// Not where its summary has the word `unless`: that is another matter.
void follows(diagnosis& all, std::string_view trouble, std::string_view consequence, std::string_view unless = "\n") {
  const finding& shown = of(all, trouble);
  finding& merged = of(all, consequence);
  if (!is_open(shown) || !is_open(merged) || merged.summary.find(unless) != std::string::npos) return;
  if (shown.found == verdict::failed || is_of_one_gpu(shown, merged)) merged.part_of = trouble;
}

}  // namespace

std::string_view to_string(verdict found) {
  switch (found) {
    case verdict::ok:
      return "ok";
    case verdict::warning:
      return "warning";
    case verdict::failed:
      return "failed";
    case verdict::unknown:
      return "unknown";
    case verdict::not_applicable:
      break;
  }
  return "not_applicable";
}

void finding::add(verdict how_bad, std::string_view sentence, std::string_view its_effect,
                  const std::vector<std::string>& its_steps) {
  const auto append = [](std::string& text, std::string_view more) {
    if (!text.empty() && !more.empty()) text += ' ';
    text += more;
  };
  if (how_bad != verdict::ok && found != verdict::failed) found = how_bad;
  append(summary, sentence);
  append(effect, its_effect);
  steps.insert(steps.end(), its_steps.begin(), its_steps.end());
}

std::span<const check> all_checks() { return table; }

std::size_t diagnosis::count(verdict found) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      findings, [found](const finding& one) { return one.found == found && one.part_of.empty(); }));
}

diagnosis diagnose(const machine_facts& machine) {
  diagnosis all;
  const bool is_simulated = bool_in(machine.record().document(), "simulated").value_or(false);
  for (const check& one : table) {
    all.findings.push_back(is_simulated && !one.needs_work
                               ? finding{.found = verdict::not_applicable, .summary = "the machine is simulated"}
                               : one.look(machine));
  }
  explain(all, "p2p-data", "iommu", cause_steps::add);
  explain(all, "p2p-data", "acs", cause_steps::add);
  explain(all, "p2p-rate", "pci-link", cause_steps::replace);
  explain(all, "p2p-rate", "nvlink", cause_steps::replace);
  follows(all, "p2p-rate", "host-rate");
  explain(all, "host-rate", "pci-link", cause_steps::replace);
  explain(all, "pci-gpus", "kernel-log", cause_steps::replace);
  explain(all, "gpu-memory", "kernel-log", cause_steps::leave_out);
  follows(all, "pci-errors", "kernel-log", "IOMMU");
  for (const char* consequence : {"device-nodes", "libraries", "driver-version"})
    follows(all, "container", consequence);
  for (const char* missing : {"pci-gpus", "nouveau", "driver-version"}) follows(all, missing, "libraries");
  follows(all, "pci-gpus", "nouveau");
  follows(all, "fabric", "kernels");
  // both by the CPUs that the shell may use
  finding& far = of(all, "numa");
  finding& few = of(all, "cpus");
  if (is_open(far) && is_open(few) && !far.about.empty() && few.summary.find("control group") == std::string::npos) {
    few.part_of = "numa";
    far.add(few.found, few.summary, few.effect);
  }
  return all;
}

}  // namespace weft::tool
