// SPDX-License-Identifier: Apache-2.0
// What surrounds the GPUs: the container, the limits of the process, memory and processors of the host.
#include "doctor/finding_words.hpp"

#include <algorithm>
#include <set>

namespace weft::tool::doctor_checks {

namespace {

std::optional<std::string> variable(const machine_facts& machine, const char* name) {
  return string_in(machine.record().at("/process/environment"), name);
}

/// The rest of the line of /proc/self/status that begins with `name`.
std::string status_of(const machine_facts& machine, std::string_view name) {
  const auto text = machine.record().text("/proc/self/status").value_or("");
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with(name)) return std::string{trimmed(line.substr(name.size()))};
  }
  return {};
}

/// Processors that the control group's quota is worth; none without a quota.
std::optional<double> quota_of(const system_record& record, std::vector<evidence>& facts) {
  if (const auto text = record.text("/sys/fs/cgroup/cpu.max")) {
    const auto words = split(*text, ' ');
    const auto quota = whole_number(words.front());
    const auto period = words.size() > 1 ? whole_number(words[1]) : std::nullopt;
    if (!quota || !period || *period <= 0) return std::nullopt;
    facts.push_back({"quota", *text, "/sys/fs/cgroup/cpu.max"});
    return static_cast<double>(*quota) / static_cast<double>(*period);
  }
  const auto quota = record.number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto period = record.number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (!quota || *quota <= 0 || !period || *period <= 0) return std::nullopt;
  facts.push_back({"quota", fmt::format("{} us of {} us", *quota, *period), "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"});
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

finding container(const machine_facts& machine) {
  if (!machine.is_in_container()) return does_not_apply("this is no container");
  finding made{.facts = {{"container", "yes", "/.dockerenv or /run/.containerenv"}}};
  const auto devices = variable(machine, "NVIDIA_VISIBLE_DEVICES");
  const auto abilities = variable(machine, "NVIDIA_DRIVER_CAPABILITIES");
  if (devices) made.facts.push_back({"NVIDIA_VISIBLE_DEVICES", *devices, "the environment"});
  if (abilities) made.facts.push_back({"NVIDIA_DRIVER_CAPABILITIES", *abilities, "the environment"});
  made.summary = machine.has(gpu_vendor::nvidia) ? "a container with GPUs"
                                                 : "a container; there is no GPU of NVIDIA to hand into it";
  if (!machine.has(gpu_vendor::nvidia)) return made;
  made.effect = "No program in the container can use a GPU.";
  made.steps = {
      "Start a new container with the GPUs. The host needs NVIDIA's container toolkit (try nvidia-ctk --version):",
      "$ docker run --gpus all …",
      "With CDI (podman, newer Docker):",
      "$ podman run --device nvidia.com/gpu=all …",
      "In Kubernetes: nvidia.com/gpu in resources.limits.",
      "Do not install a driver in the container."};
  made.decisive = made.facts.size();
  if (!part_of(machine.record().at("/nodes"), "/dev/nvidiactl").is_object() && !machine.has_nvml()) {
    made.found = verdict::failed;
    made.summary = "The container was started without GPUs.";
    if (devices && (*devices == "void" || devices->empty()))
      made.cause = "NVIDIA_VISIBLE_DEVICES asks for none (the image, or docker run -e, sets it).";
    return made;
  }
  if (abilities && *abilities != "all" && abilities->find("compute") == std::string::npos) {
    made.found = verdict::failed;
    made.summary = fmt::format("The container has no CUDA libraries: NVIDIA_DRIVER_CAPABILITIES is {}.", *abilities);
    made.steps = {"$ docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …"};
    return made;
  }
  return {.summary = made.summary, .facts = made.facts};
}

finding shared_memory(const machine_facts& machine) {
  constexpr std::int64_t enough = std::int64_t{1} << 30;
  const auto size = integer_in(machine.record().at("/shared_memory"), "size");
  if (!size)
    return not_known("/dev/shm cannot be asked: " +
                     string_in(machine.record().at("/shared_memory"), "why").value_or("nobody has"));
  std::vector<evidence> facts{{"/dev/shm", size_text(*size), "statvfs(3)"}};
  if (*size >= enough) return well("/dev/shm has " + size_text(*size), std::move(facts));
  finding made{.found = verdict::warning,
               .summary = fmt::format("/dev/shm, the memory that processes share, has only {}.", size_text(*size)),
               .effect = "NCCL, MPI and data loaders keep buffers there: they fail or are slow. weft does not use it.",
               .facts = std::move(facts),
               .decisive = 1};
  if (machine.is_in_container()) {
    made.cause = "Containers get 64 MiB unless asked.";
    made.steps = {"Start a new container with more:", "$ docker run --shm-size=8g …",
                  "In Kubernetes: an emptyDir of medium Memory at /dev/shm."};
  } else {
    made.steps = {"$ sudo mount -o remount,size=8G /dev/shm", "Permanently: the line of /dev/shm in /etc/fstab."};
  }
  return made;
}

finding limits(const machine_facts& machine) {
  const json& limits = machine.record().at("/process/limits");
  if (!limits.is_object()) return not_known("nobody has asked for the limits of the process");
  finding made;
  std::vector<std::string> for_root;
  const auto look = [&](std::string_view name, const char* letter, std::int64_t least, std::int64_t wanted,
                        std::string_view before, std::string_view after) {
    const std::string key{name};
    if (part_of(limits, key).is_null()) return;
    const auto number = integer_in(limits, key);
    const auto hard = integer_in(limits, key + "_hard");
    const auto text = [&](std::optional<std::int64_t> value) {
      return !value ? std::string{"unlimited"} : name == "memlock" ? size_text(*value) : std::to_string(*value);
    };
    evidence fact{key, fmt::format("{}, at most {}", text(number), text(hard)), "getrlimit(2)"};
    if (!number || *number >= least) return made.facts.push_back(std::move(fact));
    made.facts.insert(made.facts.begin(), std::move(fact));
    ++made.decisive;
    made.add(verdict::warning, fmt::format("{}{}{}", before, text(number), after));
    const std::string most = wanted > 0 ? std::to_string(wanted) : "unlimited";
    const bool is_allowed = !hard || (wanted > 0 && *hard >= wanted);
    if (is_allowed) made.steps.push_back(fmt::format("$ ulimit -{} {}", letter, most));
    if (!is_allowed) for_root.push_back(fmt::format("* - {} {}", key, most));
  };
  look("nofile", "n", 1024, 4096, "A process may open ", " files; sharing memory between processes needs more.");
  look("nproc", "u", 512, 4096, "This user may have ", " threads; each device needs a few.");
  const bool registers = !machine.rdma_adapters().empty() || !machine.record().names("/sys/class/infiniband").empty();
  if (registers)
    look("memlock", "l", std::int64_t{1} << 30, 0, "A process may lock ",
         " of memory; network libraries lock what they send.");
  if (made.found == verdict::ok) return well("descriptors, threads and locked memory suffice", std::move(made.facts));
  made.effect =
      "Programs end with \"Too many open files\", \"Cannot allocate memory\" or \"Resource temporarily "
      "unavailable\" when they reach a limit.";
  if (!for_root.empty()) {
    made.steps.emplace_back(
        "Root must raise the hard limit. For services: LimitNOFILE= and LimitMEMLOCK= in the unit. For containers: "
        "docker run --ulimit. For logins, add to /etc/security/limits.conf and log in again:");
    for (const std::string& line : for_root) made.steps.push_back("| " + line);
  }
  return made;
}

finding virtual_memory(const machine_facts& machine) {
  const system_record& record = machine.record();
  finding made;
  const auto look = [&](const char* name, auto&& is_bad, const std::string& sentence, const char* value) {
    const std::string file = fmt::format("/proc/sys/vm/{}", name);
    const auto number = record.number(file);
    if (!number) return;
    evidence fact{name, std::to_string(*number), file};
    if (!is_bad(*number)) return made.facts.push_back(std::move(fact));
    made.facts.insert(made.facts.begin(), std::move(fact));
    ++made.decisive;
    made.add(verdict::warning, fmt::format("vm.{} is {}: {}", name, *number, sentence), {},
             {fmt::format("$ sudo sysctl vm.{}={}", name, value)});
  };
  look(
      "overcommit_memory", [](std::int64_t n) { return n == 2; },
      "drivers reserve more addresses than there is memory, and are refused.", "0");
  look("max_map_count", [](std::int64_t n) { return n < 65530; }, "each mapping of a buffer counts.", "262144");
  look(
      "zone_reclaim_mode", [](std::int64_t n) { return n != 0; },
      "a full NUMA node waits instead of using its neighbour.", "0");
  if (made.facts.empty()) return not_known("/proc/sys/vm cannot be read");
  if (made.found == verdict::ok)
    return well("overcommit, mappings and reclaim are as drivers want them", std::move(made.facts));
  made.steps.emplace_back("Permanently: write it into a file such as /etc/sysctl.d/90-gpu.conf.");
  return made;
}

finding numa(const machine_facts& machine) {
  const system_record& record = machine.record();
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  const std::string online = record.text("/sys/devices/system/node/online").value_or("0");
  if (number_list(online).size() < 2) return does_not_apply("the host has one NUMA node");
  finding made;
  const std::string allowed_text = status_of(machine, "Cpus_allowed_list:");
  const auto allowed = number_list(allowed_text);
  std::set<int> far_nodes;
  for (const gpu_facts* gpu : machine.visible()) {
    if (!gpu->numa_node) continue;
    const auto text = record.text(fmt::format("/sys/devices/system/node/node{}/cpulist", *gpu->numa_node));
    made.facts.push_back({gpu->address, fmt::format("NUMA node {}, CPUs {}", *gpu->numa_node, text.value_or("?")),
                          pci_folder + gpu->address + "/numa_node"});
    if (!text || allowed.empty()) continue;
    const auto near = number_list(*text);
    if (near.empty() || std::ranges::any_of(allowed, [&near](int one) { return near.contains(one); })) continue;
    made.about.push_back(gpu->address);
    far_nodes.insert(*gpu->numa_node);
  }
  put_decisive_first(made);
  const auto decide = [&](evidence fact, const std::string& sentence, const std::string& effect,
                          const std::vector<std::string>& steps) {
    made.add(verdict::warning, sentence, effect, steps);
    made.facts.insert(made.facts.begin(), std::move(fact));
    ++made.decisive;
  };
  if (!far_nodes.empty()) {
    decide({"CPUs of this shell", allowed_text, "/proc/self/status"},
           fmt::format("Programs started from this shell may only use CPUs {}. {} near NUMA node {}.", allowed_text,
                       gpus_do(machine, made.about, "is", "are"), fmt::join(far_nodes, ", ")),
           "Copies between them and host memory pass the link between the sockets.",
           {"See whether this shell belongs to a batch job or a container, whose name is in the path:",
            "$ cat /proc/self/cgroup",
            "If so, ask there for CPUs of both sockets, two for each GPU. If not, it was started by taskset or "
            "numactl: start one without.",
            "Or use only GPUs that are near: leave the others out of CUDA_VISIBLE_DEVICES."});
  }
  if (record.number("/proc/sys/kernel/numa_balancing") == 1) {
    decide({"numa_balancing", "1", "/proc/sys/kernel/numa_balancing"}, "Automatic NUMA balancing is on.",
           "The kernel moves memory between sockets while GPUs use it, and stalls them.",
           {"$ sudo sysctl kernel.numa_balancing=0",
            "Permanently: write it into a file such as /etc/sysctl.d/90-gpu.conf."});
  }
  if (made.found == verdict::ok) return well("programs may run near each GPU", std::move(made.facts));
  return made;
}

finding cpus(const machine_facts& machine) {
  const system_record& record = machine.record();
  const auto allowed = integer_in(record.at("/process"), "processors");
  if (!allowed) return not_known("the system does not say on which CPUs this process may run");
  std::vector<evidence> facts{{"CPUs", std::to_string(*allowed), "sched_getaffinity(2)"}};
  const auto quota = quota_of(record, facts);
  const double usable = std::min(static_cast<double>(*allowed), quota.value_or(static_cast<double>(*allowed)));
  const bool is_by_quota = quota && *quota < static_cast<double>(*allowed);
  const std::size_t gpus = machine.visible().size();
  const std::size_t wanted = 2 * gpus;
  if (usable >= static_cast<double>(wanted))
    return well(fmt::format("{:.3g} CPUs for {}", usable, counted(gpus, "GPU")), std::move(facts));
  finding made{.found = verdict::warning,
               .summary = fmt::format("Programs may use {:.3g} CPUs for {}.", usable, counted(gpus, "GPU")),
               .effect =
                   "Each GPU usually keeps two threads busy, one that starts work and one that waits. They then wait "
                   "for a free CPU.",
               .facts = std::move(facts)};
  made.decisive = made.facts.size();
  if (is_by_quota) {
    made.summary =
        fmt::format("The control group allows {:.3g} CPUs of {}, for {}.", usable, *allowed, counted(gpus, "GPU"));
    made.steps = {
        fmt::format("Allow at least {} (docker run --cpus={}, or resources.limits in Kubernetes).", wanted, wanted)};
  } else {
    made.steps = {fmt::format(
        "Allow at least {} (taskset, the cpuset of the container, or the batch system's own options).", wanted)};
  }
  return made;
}

finding environment(const machine_facts& machine) {
  struct rule {
    const char* name;
    const char* value;  // nullptr: any
    const char* effect;
  };
  static constexpr rule rules[] = {
      {"CUDA_LAUNCH_BLOCKING", "1", "This is a setting for debugging: programs wait after each kernel."},
      {"CUDA_DEVICE_MAX_CONNECTIONS", "1", "Streams of a GPU run one after the other."},
      {"CUDA_DISABLE_PTX_JIT", "1", "Kernels that were not compiled for this GPU do not load."},
      {"NCCL_P2P_DISABLE", "1", "NCCL copies between GPUs through the host (weft does not read it)."},
      {"NCCL_IB_DISABLE", "1", "NCCL does not use InfiniBand (weft does not read it)."},
      {"HSA_ENABLE_SDMA", "0", "Copies of AMD GPUs take compute units."},
      {"HSA_OVERRIDE_GFX_VERSION", nullptr, "AMD's run time is told of another GPU than there is."},
      {"WEFT_CHECK", "1", "weft checks every access of kernels on the host backend, which is slower."},
      {"WEFT_VERIFY_PEERS", "never", "weft trusts pairs that lose data."},
      {"WEFT_BACKEND", "host", "weft plays devices on the processor and leaves the GPUs alone."},
  };
  if (!machine.record().at("/process/environment").is_object())
    return not_known("nobody has looked at the environment");
  finding made;
  std::string unset;
  const auto add = [&](verdict how_bad, const std::string& name, const std::string& value, const std::string& effect) {
    made.add(how_bad, fmt::format("{} is {}.", name, value.empty() ? "empty" : "set to " + value), effect);
    made.facts.insert(made.facts.begin(), {name, value, "the environment"});
    ++made.decisive;
    unset += " " + name;
  };
  for (const auto& [name, vendor] :
       {std::pair{"CUDA_VISIBLE_DEVICES", gpu_vendor::nvidia}, std::pair{"HIP_VISIBLE_DEVICES", gpu_vendor::amd},
        std::pair{"ROCR_VISIBLE_DEVICES", gpu_vendor::amd}}) {
    const auto value = variable(machine, name);
    if (!value || !machine.has(vendor)) continue;
    // a list ends at the first entry that names no device
    const std::string_view first = trimmed(split(*value, ',').front());
    const auto number = whole_number(first);
    const json& listed = part_of(machine.nvml(), "gpus");
    const bool is_beyond = vendor == gpu_vendor::nvidia && number && listed.is_object() && !listed.empty() &&
                           *number >= static_cast<std::int64_t>(listed.size());
    if (first.empty() || first.starts_with('-') || is_beyond) {
      add(verdict::failed, name, *value, "Programs see no GPU.");
    } else {
      made.facts.push_back({name, *value, "the environment"});
    }
  }
  const bool hides_all = made.found == verdict::failed;
  for (const rule& one : rules) {
    const auto value = variable(machine, one.name);
    if (value && (one.value == nullptr || *value == one.value)) add(verdict::warning, one.name, *value, one.effect);
  }
  if (made.found == verdict::ok) {
    made.summary = made.facts.empty() ? "no variable hides or slows down GPUs"
                                      : fmt::format("{} chooses the GPUs that programs see", made.facts.front().what);
    return made;
  }
  made.steps = {"$ unset" + unset, "If it comes back, look for it in ~/.bashrc, ~/.profile and /etc/profile.d."};
  if (hides_all)
    made.steps.insert(made.steps.begin(),
                      "In a batch job, ask the batch system for GPUs: it sets the variable. Elsewhere:");
  return made;
}

finding processes(const machine_facts& machine) {
  const system_record& record = machine.record();
  std::vector<evidence> facts;
  const auto scope = record.number("/proc/sys/kernel/yama/ptrace_scope");
  if (scope) facts.push_back({"ptrace_scope", std::to_string(*scope), "/proc/sys/kernel/yama/ptrace_scope"});
  const std::string seccomp = status_of(machine, "Seccomp:");
  if (!seccomp.empty()) facts.push_back({"seccomp", seccomp, "/proc/self/status"});
  const std::string ids = status_of(machine, "NSpid:");
  if (scope.value_or(0) >= 2) {
    return {.found = verdict::warning,
            .summary = fmt::format("One process may not copy from the memory of another (ptrace_scope is {}).", *scope),
            .effect =
                "MPI and UCX send through shared memory instead, with two copies. weft passes descriptors and does not "
                "need it.",
            .steps = {"$ sudo sysctl kernel.yama.ptrace_scope=1"},
            .facts = std::move(facts),
            .decisive = 1};
  }
  if (machine.is_in_container() || ids.find('\t') != std::string::npos)
    return well("within this container; between two, IPC handles need --ipc=host and --pid=host", std::move(facts));
  return well("processes of one user can share memory", std::move(facts));
}

}  // namespace weft::tool::doctor_checks
