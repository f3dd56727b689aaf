// SPDX-License-Identifier: Apache-2.0
// What surrounds the GPUs: the container, the limits of the process, memory and processors of the host.
#include "doctor/finding_words.hpp"

#include <algorithm>
#include <cstdlib>
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
  std::vector<evidence> facts{{"container", "yes", "/.dockerenv or /run/.containerenv"}};
  const auto devices = variable(machine, "NVIDIA_VISIBLE_DEVICES");
  const auto abilities = variable(machine, "NVIDIA_DRIVER_CAPABILITIES");
  if (devices) facts.push_back({"NVIDIA_VISIBLE_DEVICES", *devices, "the environment"});
  if (abilities) facts.push_back({"NVIDIA_DRIVER_CAPABILITIES", *abilities, "the environment"});
  if (!machine.has(gpu_vendor::nvidia))
    return well("a container, and no GPU of NVIDIA to hand into it", std::move(facts));
  const json& nodes = machine.record().at("/nodes");
  if (!part_of(nodes, "/dev/nvidiactl").is_object() && !machine.has_nvml()) {
    return {
        verdict::failed,
        "the container was started without GPUs",
        devices && (*devices == "void" || devices->empty()) ? "NVIDIA_VISIBLE_DEVICES asks for none" : "",
        "docker run --gpus all (NVIDIA Container Toolkit on the host), or --device nvidia.com/gpu=all (CDI, podman)",
        std::move(facts),
        {},
        {}};
  }
  if (abilities && *abilities != "all" && abilities->find("compute") == std::string::npos) {
    return {verdict::failed,
            "the container has no libraries to compute: NVIDIA_DRIVER_CAPABILITIES is " + *abilities,
            {},
            "start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            std::move(facts),
            {},
            {}};
  }
  return well("a container with GPUs", std::move(facts));
}

finding shared_memory(const machine_facts& machine) {
  constexpr std::int64_t enough = std::int64_t{1} << 30;
  const auto size = integer_in(machine.record().at("/shared_memory"), "size");
  if (!size)
    return not_known("/dev/shm cannot be asked: " +
                     string_in(machine.record().at("/shared_memory"), "why").value_or("nobody has"));
  const std::string text = to_string(bytes{static_cast<std::uint64_t>(std::max<std::int64_t>(*size, 0))});
  std::vector<evidence> facts{{"/dev/shm", text, "statvfs(3)"}};
  if (*size >= enough) return well("/dev/shm has " + text, std::move(facts));
  return {verdict::warning,
          "/dev/shm has only " + text,
          "NCCL, MPI and data loaders keep their buffers there and fail or slow down; weft itself does not use it",
          machine.is_in_container() ? "docker run --ipc=host, or --shm-size=8g" : "mount -o remount,size=8G /dev/shm",
          std::move(facts),
          {},
          {}};
}

finding limits(const machine_facts& machine) {
  const json& limits = machine.record().at("/process/limits");
  if (!limits.is_object()) return not_known("nobody has asked for the limits of the process");
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  const auto look = [&](const char* name, const char* letter, std::int64_t least, const std::string& why) {
    const json& limit = part_of(limits, name);
    if (limit.is_null()) return;
    facts.push_back({name, limit.is_string() ? limit.get<std::string>() : limit.dump(), "getrlimit(2)"});
    const auto number = integer_in(limits, name);
    if (!number || *number >= least) return;
    wrong.add(verdict::warning, {}, fmt::format("{} is {}: {}", name, *number, why));
    advice += fmt::format("{}ulimit -{} {}", advice.empty() ? "" : "; ", letter,
                          least >= (1 << 20) ? "unlimited" : std::to_string(4 * least));
  };
  look("nofile", "n", 1024, "each block of memory that is shared between processes needs a descriptor");
  look("nproc", "u", 512, "each device has a few threads");
  const bool registers = !machine.rdma_adapters().empty() || !machine.record().names("/sys/class/infiniband").empty();
  if (registers) look("memlock", "l", std::int64_t{1} << 30, "network libraries lock the memory that they send from");
  if (wrong.any()) {
    return wrong.told({}, advice + " (for good: /etc/security/limits.conf; in a container: docker run --ulimit)",
                      std::move(facts));
  }
  return well("descriptors, threads and locked memory suffice", std::move(facts));
}

finding virtual_memory(const machine_facts& machine) {
  const system_record& record = machine.record();
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  const auto look = [&](const char* name, auto&& is_bad, const std::string& sentence, const char* value) {
    const std::string file = fmt::format("/proc/sys/vm/{}", name);
    const auto number = record.number(file);
    if (!number) return;
    facts.push_back({name, std::to_string(*number), file});
    if (!is_bad(*number)) return;
    wrong.add(verdict::warning, {}, fmt::format("{} is {}: {}", name, *number, sentence));
    advice += fmt::format("{}sysctl vm.{}={}", advice.empty() ? "" : "; ", name, value);
  };
  look(
      "overcommit_memory", [](std::int64_t n) { return n == 2; },
      "drivers reserve more addresses than there is memory, and are refused", "0");
  look("max_map_count", [](std::int64_t n) { return n < 65530; }, "each mapping of a buffer counts", "262144");
  look(
      "zone_reclaim_mode", [](std::int64_t n) { return n != 0; },
      "a NUMA node that is full waits instead of using another", "0");
  if (facts.empty()) return not_known("/proc/sys/vm cannot be read");
  if (wrong.any()) return wrong.told({}, "sudo " + advice, std::move(facts));
  return well("overcommit, mappings and reclaim are as drivers want them", std::move(facts));
}

finding numa(const machine_facts& machine) {
  const system_record& record = machine.record();
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  const std::string online = record.text("/sys/devices/system/node/online").value_or("0");
  if (number_list(online).size() < 2) return does_not_apply("the host has one NUMA node");
  std::vector<evidence> facts{{"nodes", online, "/sys/devices/system/node/online"}};
  complaints wrong;
  std::string advice;
  const std::string allowed_text = status_of(machine, "Cpus_allowed_list:");
  const auto allowed = number_list(allowed_text);
  if (!allowed.empty()) facts.push_back({"processors of this process", allowed_text, "/proc/self/status"});
  for (const gpu_facts& gpu : machine.gpus()) {
    if (!gpu.numa_node) continue;
    const std::string file = fmt::format("/sys/devices/system/node/node{}/cpulist", *gpu.numa_node);
    const auto text = record.text(file);
    facts.push_back(
        {gpu.address, fmt::format("node {}", *gpu.numa_node), "/sys/bus/pci/devices/" + gpu.address + "/numa_node"});
    if (!text || allowed.empty()) continue;
    const auto near = number_list(*text);
    const bool is_near = std::ranges::any_of(allowed, [&near](int one) { return near.contains(one); });
    if (is_near || near.empty()) continue;
    wrong.add(verdict::warning, gpu.address,
              fmt::format("this process may not run on node {}, where {} is", *gpu.numa_node, gpu.title()));
    advice =
        "start it with processors of that node too (numactl --cpunodebind, taskset, or the cpuset of the container)";
  }
  if (record.number("/proc/sys/kernel/numa_balancing") == 1) {
    facts.push_back({"numa_balancing", "1", "/proc/sys/kernel/numa_balancing"});
    wrong.add(verdict::warning, {}, "automatic NUMA balancing moves pages while GPUs use them");
    advice += std::string{advice.empty() ? "" : "; "} + "sudo sysctl kernel.numa_balancing=0";
  }
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  return well("the process may run near each GPU", std::move(facts));
}

finding processors(const machine_facts& machine) {
  const system_record& record = machine.record();
  const auto allowed = integer_in(record.at("/process"), "processors");
  if (!allowed) return not_known("the system does not say on which processors this process may run");
  std::vector<evidence> facts{{"processors", std::to_string(*allowed), "sched_getaffinity(2)"}};
  double usable = static_cast<double>(*allowed);
  if (const auto quota = quota_of(record, facts)) usable = std::min(usable, *quota);
  if (const auto governor = record.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    facts.push_back({"governor", *governor, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"});
  const std::size_t gpus = machine.gpus().size();
  if (gpus > 0 && usable < 2.0 * static_cast<double>(gpus)) {
    return {verdict::warning,
            fmt::format("{:.3g} processors for {}", usable, counted(gpus, "GPU")),
            "each GPU has a thread that starts its work and one that waits for it; they take turns",
            "give the process more: taskset, the cpuset or the quota of the container (docker run --cpus)",
            std::move(facts),
            {},
            {}};
  }
  return well(fmt::format("{:.3g} processors for {}", usable, counted(gpus, "GPU")), std::move(facts));
}

finding environment(const machine_facts& machine) {
  struct rule {
    const char* name;
    const char* value;  // nullptr: any
    verdict how_bad;
    const char* effect;
  };
  static constexpr rule rules[] = {
      {"CUDA_LAUNCH_BLOCKING", "1", verdict::warning, "each launch waits for its end"},
      {"CUDA_DEVICE_MAX_CONNECTIONS", "1", verdict::warning, "streams of a GPU run one after the other"},
      {"CUDA_DISABLE_PTX_JIT", "1", verdict::warning, "kernels that were not compiled for this GPU do not load"},
      {"NCCL_P2P_DISABLE", "1", verdict::warning, "NCCL copies between GPUs through the host (weft does not read it)"},
      {"NCCL_IB_DISABLE", "1", verdict::warning, "NCCL does not use InfiniBand (weft does not read it)"},
      {"HSA_ENABLE_SDMA", "0", verdict::warning, "copies of AMD GPUs take compute units"},
      {"HSA_OVERRIDE_GFX_VERSION", nullptr, verdict::warning, "the AMD runtime is told of another GPU than there is"},
      {"WEFT_CHECK", "1", verdict::warning, "weft checks every access of kernels on the host backend"},
      {"WEFT_VERIFY_PEERS", "never", verdict::warning, "weft trusts pairs that lose data"},
      {"WEFT_BACKEND", "host", verdict::warning, "weft plays devices on the processor and leaves the GPUs alone"},
  };
  const json& set = machine.record().at("/process/environment");
  if (!set.is_object()) return not_known("nobody has looked at the environment");
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  const auto add = [&](verdict how_bad, const std::string& name, const std::string& value, const std::string& effect) {
    wrong.add(how_bad, {}, fmt::format("{}={}: {}", name, value, effect));
    facts.push_back({name, value, "the environment"});
    advice += (advice.empty() ? "unset " : " ") + name;
  };
  for (const rule& one : rules) {
    const auto value = variable(machine, one.name);
    if (value && (one.value == nullptr || *value == one.value)) add(one.how_bad, one.name, *value, one.effect);
  }
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) {
    const auto value = variable(machine, name);
    if (!value) continue;
    const bool is_cuda = std::string_view{name} == "CUDA_VISIBLE_DEVICES";
    const auto vendor = is_cuda ? gpu_vendor::nvidia : gpu_vendor::amd;
    const auto all = static_cast<std::size_t>(std::ranges::count(machine.gpus(), vendor, &gpu_facts::vendor));
    if (all == 0) continue;
    // a list ends at the first entry that names no device
    std::size_t shown = 0;
    for (const std::string_view entry : split(*value, ',')) {
      if (trimmed(entry).empty() || trimmed(entry).starts_with('-')) break;
      ++shown;
    }
    if (shown == 0) {
      add(verdict::failed, name, value->empty() ? "''" : *value, "programs see no GPU");
    } else if (shown < all) {
      facts.push_back({name, *value, "the environment"});
    }
  }
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  if (!facts.empty())
    return well(fmt::format("{} shows programs a part of the GPUs", facts.front().what), std::move(facts));
  return well("no variable hides or slows down GPUs");
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
    return {
        verdict::warning,
        fmt::format("ptrace_scope is {}: one process may not copy from the memory of another", *scope),
        "MPI and UCX then send through shared memory, with two copies; weft passes descriptors and does not need it",
        "sudo sysctl kernel.yama.ptrace_scope=0, or 1 for processes of one parent",
        std::move(facts),
        {},
        {}};
  }
  if (machine.is_in_container() || ids.find('\t') != std::string::npos) {
    return well("within this container; between two, IPC handles need --ipc=host and --pid=host", std::move(facts));
  }
  return well("processes of one user can share memory", std::move(facts));
}

}  // namespace weft::tool::doctor_checks
