// SPDX-License-Identifier: Apache-2.0
// The driver, its libraries, and the files that lead to them.
#include "doctor/finding_words.hpp"

#include <algorithm>
#include <cctype>

namespace weft::tool::doctor_checks {

namespace {

/// The first word with two dots or more, "550.54.15", after `after`.
std::string version_in(const std::string& text, std::string_view after) {
  const auto begin = text.find(after);
  if (begin == std::string::npos) return {};
  for (const std::string_view word : split(std::string_view{text}.substr(begin + after.size()), ' ')) {
    const std::string_view one = trimmed(word.substr(0, word.find('\n')));
    if (!one.empty() && std::isdigit(static_cast<unsigned char>(one.front())) != 0 &&
        one.find('.') != std::string_view::npos)
      return std::string{one};
  }
  return {};
}

const json& library_of(const machine_facts& machine, const char* name) {
  return part_of(machine.record().at("/libraries"), name);
}

bool is_there(const json& library) { return string_in(library, "path").has_value(); }

/// "libcuda.so.550.54.15" is of version 550.54.15.
std::string version_of_file(const std::string& path) {
  const auto at = path.rfind(".so.");
  return at == std::string::npos ? std::string{} : path.substr(at + 4);
}

/// "12.4" as 12 and 4.
std::optional<std::pair<std::int64_t, std::int64_t>> version_pair(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  const auto dot = text->find('.');
  const auto major = whole_number(std::string_view{*text}.substr(0, dot));
  const auto minor =
      dot == std::string::npos ? std::optional<std::int64_t>{0} : whole_number(std::string_view{*text}.substr(dot + 1));
  if (!major || !minor) return std::nullopt;
  return std::pair{*major, *minor};
}

}  // namespace

finding driver_version(const machine_facts& machine) {
  if (!machine.has(gpu_vendor::nvidia))
    return does_not_apply("only NVIDIA's driver has parts that can differ, and there is no GPU of NVIDIA");
  const system_record& record = machine.record();
  const std::string module = version_in(record.text("/proc/driver/nvidia/version").value_or(""), "Kernel Module");
  const auto path = string_in(library_of(machine, "cuda"), "path");
  const std::string library = version_of_file(path.value_or(""));
  const std::string told = string_in(machine.nvml(), "driver").value_or("");
  std::vector<evidence> facts;
  if (!module.empty()) facts.push_back({"kernel module", module, "/proc/driver/nvidia/version"});
  if (!library.empty()) facts.push_back({"libcuda", library, *path});
  if (!told.empty()) facts.push_back({"driver", told, std::string{from_nvml}});
  constexpr std::int64_t mismatch = 18;  // NVML_ERROR_LIB_RM_VERSION_MISMATCH
  const bool differs =
      !module.empty() && !library.empty() && library.find('.') != std::string::npos && module != library;
  if (integer_in(machine.nvml(), "code") == mismatch || differs) {
    return {verdict::failed,
            fmt::format("the kernel module is of version {}, its libraries of version {}",
                        module.empty() ? "?" : module, library.empty() ? "another" : library),
            machine.is_in_container() ? "the container brings libraries of its own"
                                      : "the driver was upgraded, and the old module is still loaded",
            machine.is_in_container()
                ? "take NVIDIA's driver libraries out of the image: the container toolkit mounts those of the host"
                : "restart the computer; or end all programs on GPUs, then rmmod nvidia_uvm nvidia_drm "
                  "nvidia_modeset nvidia and modprobe nvidia",
            std::move(facts),
            {},
            {}};
  }
  if (module.empty()) {
    const bool is_bound =
        std::ranges::any_of(machine.gpus(), [](const gpu_facts& gpu) { return gpu.driver == "nvidia"; });
    if (!is_bound && !machine.has_nvml())
      return not_known("the module nvidia is not loaded",
                       "modprobe nvidia; install the driver if there is no such module");
    return well("the module does not tell its version; nothing contradicts the libraries", std::move(facts));
  }
  return well("version " + module, std::move(facts));
}

finding nouveau(const machine_facts& machine) {
  if (!machine.has(gpu_vendor::nvidia)) return does_not_apply("there is no GPU of NVIDIA");
  complaints wrong;
  std::vector<evidence> facts;
  for (const gpu_facts& gpu : machine.gpus()) {
    if (gpu.driver != "nouveau") continue;
    wrong.add(verdict::failed, gpu.address, gpu.title() + " is held by nouveau, which cannot compute");
    facts.push_back({gpu.address, "driver nouveau", "/sys/bus/pci/devices/" + gpu.address + "/driver"});
  }
  if (wrong.any()) {
    return wrong.told("the system chose its own driver at the start",
                      "install NVIDIA's driver; it writes \"blacklist nouveau\" and \"options nouveau modeset=0\" into "
                      "/etc/modprobe.d; then update-initramfs -u, and restart",
                      std::move(facts));
  }
  return well("no");
}

finding device_nodes(const machine_facts& machine) {
  const json& nodes = machine.record().at("/nodes");
  if (!nodes.is_object()) return not_known("nobody has looked at /dev");
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  const auto expect = [&](const std::string& path, const std::string& how_to_get) {
    if (part_of(nodes, path).is_object()) return;
    wrong.add(verdict::failed, {}, path + " does not exist");
    facts.push_back({path, "absent", "/dev"});
    advice = how_to_get;
  };
  const std::string start_container =
      "start the container with its GPUs: docker run --gpus all, or --device nvidia.com/gpu=all";
  const bool has_driver = std::ranges::any_of(
      machine.gpus(), [](const gpu_facts& gpu) { return gpu.driver == "nvidia" || gpu.driver == "amdgpu"; });
  if (!has_driver) return does_not_apply("no GPU has a driver that makes device files");
  for (const gpu_facts& gpu : machine.gpus()) {
    if (gpu.driver == "nvidia") {
      for (const char* path : {"/dev/nvidiactl", "/dev/nvidia-uvm"}) {
        if (std::ranges::none_of(facts, [path](const evidence& known) { return known.what == path; }))
          expect(path, machine.is_in_container()
                           ? start_container
                           : "nvidia-modprobe -c 0 -u makes them; nvidia-persistenced keeps them");
      }
    } else if (gpu.driver == "amdgpu" &&
               std::ranges::none_of(facts, [](const evidence& known) { return known.what == "/dev/kfd"; })) {
      expect("/dev/kfd", machine.is_in_container() ? "start the container with --device /dev/kfd --device /dev/dri"
                                                   : "modprobe amdgpu; the kernel must have HSA_AMD");
    }
  }
  std::vector<std::string> closed;
  for (const auto& [path, node] : nodes.items()) {
    // of no use without a GPU that it leads to, and not needed by every program
    const bool is_needed =
        !path.starts_with("/dev/nvidia-caps") && !path.starts_with("/dev/nvidia-nvswitch") && path != "/dev/gdrdrv";
    if (!is_needed || bool_in(node, "usable").value_or(true)) continue;
    closed.push_back(path);
    const std::string group = string_in(node, "group").value_or("?");
    facts.push_back({path,
                     fmt::format("mode {}, group {}: {}", string_in(node, "mode").value_or("?"), group,
                                 string_in(node, "why").value_or("")),
                     "access(2)"});
    advice = group == "render" || group == "video"
                 ? fmt::format("sudo usermod -aG {} $USER, then log in again", group)
                 : "let the group or all users open it (udev rule), or give the container the device with --device";
  }
  if (!closed.empty()) {
    constexpr std::size_t most = 2;
    std::ranges::stable_sort(closed, {}, &std::string::size);  // /dev/kfd before the many of /dev/dri
    const auto more = closed.size() > most ? fmt::format(" and {} more", closed.size() - most) : std::string{};
    closed.resize(std::min(closed.size(), most));
    wrong.add(verdict::failed, {}, fmt::format("this user may not open {}{}", fmt::join(closed, ", "), more));
  }
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  return well(fmt::format("this user can open {}", counted(nodes.size(), "device file")));
}

finding libraries(const machine_facts& machine) {
  if (!machine.record().at("/libraries").is_object()) return not_known("nobody has looked for libraries");
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  const auto add = [&](verdict how_bad, const json& library, const std::string& sentence,
                       const std::string& what_to_do) {
    wrong.add(how_bad, {}, sentence);
    facts.push_back({string_in(library, "name").value_or("?"), string_in(library, "path").value_or("absent"),
                     string_in(library, "why").value_or("dlopen(3)")});
    advice += (advice.empty() ? "" : "; ") + what_to_do;
  };
  if (machine.has(gpu_vendor::nvidia)) {
    const json& cuda = library_of(machine, "cuda");
    const json& nvrtc = library_of(machine, "nvrtc");
    if (!is_there(cuda)) {
      add(verdict::failed, cuda, "libcuda.so.1 cannot be opened",
          machine.is_in_container()
              ? "start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
              : "install the driver's library (Debian: libcuda1; Ubuntu: libnvidia-compute-<version>)");
    } else if (string_in(cuda, "path")->find("/stubs/") != std::string::npos) {
      add(verdict::failed, cuda, "libcuda.so.1 is the toolkit's stub, which only serves to link",
          "take the folder \"stubs\" out of LD_LIBRARY_PATH");
    }
    if (!is_there(nvrtc)) {
      add(verdict::warning, nvrtc, "the compiler NVRTC cannot be opened: kernels from source do not run",
          "install it (pip install nvidia-cuda-nvrtc-cu12 or Debian's libnvrtc), or name it in WEFT_CUDA_NVRTC");
    }
    if (!machine.has_nvml())
      add(verdict::warning, machine.nvml(), "NVIDIA's management library does not answer",
          "install libnvidia-ml1, or start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility");
  }
  if (machine.has(gpu_vendor::amd)) {
    const json& opencl = library_of(machine, "opencl");
    const json& hip = library_of(machine, "hip");
    if (!is_there(hip) && !is_there(opencl)) {
      add(verdict::failed, hip, "neither libamdhip64 nor libOpenCL can be opened",
          "install ROCm's runtime (hip-runtime-amd, rocm-opencl-runtime)");
    } else if (is_there(opencl) && machine.record().names("/etc/OpenCL/vendors").empty()) {
      add(verdict::warning, opencl, "libOpenCL finds no driver: /etc/OpenCL/vendors is empty",
          "install rocm-opencl-runtime");
    }
  }
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  for (const char* name : {"cuda", "nvrtc", "opencl", "hip"}) {
    const json& library = library_of(machine, name);
    if (is_there(library))
      facts.push_back({string_in(library, "name").value_or(name), string_in(library, "version").value_or("there"),
                       *string_in(library, "path")});
  }
  return well(fmt::format("{} that programs open", counted(facts.size(), "library")), std::move(facts));
}

finding toolkit(const machine_facts& machine) {
  if (!machine.has(gpu_vendor::nvidia)) return does_not_apply("there is no GPU of NVIDIA");
  const auto driver_text = string_in(library_of(machine, "cuda"), "version");
  const auto compiler_text = string_in(library_of(machine, "nvrtc"), "version");
  const auto driver = version_pair(driver_text);
  const auto compiler = version_pair(compiler_text);
  if (!driver || !compiler)
    return not_known(!driver ? "libcuda does not tell which CUDA it serves"
                             : "there is no NVRTC that tells its version");
  std::vector<evidence> facts{{"driver serves CUDA", *driver_text, "cuDriverGetVersion"},
                              {"NVRTC", *compiler_text, "nvrtcVersion"}};
  if (compiler->first > driver->first) {
    return {verdict::failed,
            fmt::format("NVRTC {} makes code that a driver for CUDA {} does not take", *compiler_text, *driver_text),
            {},
            fmt::format("install a newer driver, or NVRTC of CUDA {} (pip install nvidia-cuda-nvrtc-cu{})",
                        driver->first, driver->first),
            std::move(facts),
            {},
            {}};
  }
  return well(fmt::format("NVRTC {} for a driver of CUDA {}", *compiler_text, *driver_text), std::move(facts));
}

finding rdma(const machine_facts& machine) {
  const system_record& record = machine.record();
  if (machine.rdma_adapters().empty() && record.names("/sys/class/infiniband").empty())
    return does_not_apply("there is no network adapter for remote memory access");
  if (!machine.has(gpu_vendor::nvidia))
    return does_not_apply("there is no GPU of NVIDIA, whose driver needs a module for it");
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    const std::string file = fmt::format("/sys/module/{}/refcnt", module);
    if (record.text(file)) return well(fmt::format("the module {} is loaded", module), {{module, "loaded", file}});
  }
  return not_known(
      "nvidia_peermem is not loaded; whether dma-buf serves in its place (open kernel modules, Linux 5.12) cannot be "
      "read",
      "modprobe nvidia-peermem, if the network library does not say that it uses dma-buf");
}

}  // namespace weft::tool::doctor_checks
