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

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

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
  if (!machine.has(gpu_vendor::nvidia)) return does_not_apply("only NVIDIA's driver has parts that can differ");
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
  const bool differs = !module.empty() && library.find('.') != std::string::npos && module != library;
  if (integer_in(machine.nvml(), "code") == mismatch || differs) {
    finding made{
        .found = verdict::failed,
        .summary = fmt::format(
            "The loaded kernel module is of version {}, and the libraries are of version {}. They must be equal.",
            module.empty() ? "?" : module, library.empty() ? "?" : library),
        .effect = "No CUDA program can start.",
        .facts = std::move(facts)};
    made.decisive = made.facts.size();
    if (machine.is_in_container()) {
      made.cause = "The container brings driver libraries of its own.";
      made.steps = {"Take NVIDIA's driver libraries out of the image: the container toolkit mounts those of the host."};
    } else {
      made.cause = "the driver was upgraded, and the old module is still loaded";
      made.is_guess = true;
      made.steps = {fmt::format("Look whether the new module is installed; it must print {}:",
                                library.empty() ? "the version of the libraries" : library),
                    "$ modinfo -F version nvidia",
                    "If it does, restart the computer. If not, build the module first:", "$ sudo dkms autoinstall"};
    }
    return made;
  }
  if (module.empty()) {
    const bool is_bound =
        std::ranges::any_of(machine.gpus(), [](const gpu_facts& gpu) { return gpu.driver == "nvidia"; });
    if (!is_bound && !machine.has_nvml()) return not_known("the module nvidia is not loaded");
    return well("the module does not tell its version; nothing contradicts the libraries", std::move(facts));
  }
  return well("version " + module, std::move(facts));
}

finding nouveau(const machine_facts& machine) {
  if (!machine.has(gpu_vendor::nvidia)) return does_not_apply("there is no GPU of NVIDIA");
  finding made;
  for (const gpu_facts& gpu : machine.gpus()) {
    if (gpu.driver != "nouveau") continue;
    made.about.push_back(gpu.address);
    made.facts.push_back({gpu.address, "driver nouveau", pci_folder + gpu.address + "/driver"});
  }
  if (made.about.empty()) return well("no GPU is held by nouveau");
  made.found = verdict::failed;
  made.decisive = made.facts.size();
  made.summary = gpus_do(machine, made.about, "is", "are") + " held by nouveau, the driver that comes with Linux.";
  made.effect = "nouveau cannot compute: no CUDA program can use it.";
  made.steps = {
      "Install NVIDIA's driver (Debian: nvidia-driver; Ubuntu: ubuntu-drivers install), then restart. Its package "
      "keeps "
      "nouveau from loading.",
      "If nouveau still holds it: write \"blacklist nouveau\" into /etc/modprobe.d/nouveau.conf, make the initial "
      "ramdisk "
      "again (Debian, Ubuntu: update-initramfs -u; Fedora: dracut -f), and restart."};
  return made;
}

finding device_nodes(const machine_facts& machine) {
  const json& nodes = machine.record().at("/nodes");
  if (!nodes.is_object()) return not_known("nobody has looked at /dev");
  const auto has_driver = [&](const char* name) {
    return std::ranges::any_of(machine.gpus(), [name](const gpu_facts& gpu) { return gpu.driver == name; });
  };
  if (!has_driver("nvidia") && !has_driver("amdgpu"))
    return does_not_apply("no GPU has a driver that makes device files");
  finding made;
  std::vector<std::string> expected;
  if (has_driver("nvidia")) expected = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
  if (has_driver("amdgpu")) expected.emplace_back("/dev/kfd");
  std::erase_if(expected, [&](const std::string& path) { return part_of(nodes, path).is_object(); });
  for (const std::string& path : expected) made.facts.push_back({path, "absent", "/dev"});
  if (!expected.empty()) {
    made.add(verdict::failed,
             fmt::format("{} {} not exist.", fmt::join(expected, " and "), expected.size() == 1 ? "does" : "do"));
    if (machine.is_in_container()) {
      made.steps = {"Start the container with its GPUs:", has_driver("nvidia")
                                                              ? "$ docker run --gpus all …"
                                                              : "$ docker run --device /dev/kfd --device /dev/dri …"};
    } else if (has_driver("nvidia")) {
      made.steps = {"$ sudo nvidia-modprobe -c 0 -u"};
    } else {
      made.steps = {"$ sudo modprobe amdgpu", "The kernel must be built with HSA_AMD."};
    }
  }
  std::vector<std::string> closed;
  std::string group;
  for (const auto& [path, node] : nodes.items()) {
    // of no use without a GPU that it leads to, and not needed by every program
    const bool is_needed =
        !path.starts_with("/dev/nvidia-caps") && !path.starts_with("/dev/nvidia-nvswitch") && path != "/dev/gdrdrv";
    if (is_needed && !bool_in(node, "usable").value_or(true)) closed.push_back(path);
  }
  std::ranges::sort(closed, {}, [](const std::string& path) {
    return std::pair{path.size(), path};
  });  // /dev/kfd before the many of /dev/dri
  for (const std::string& path : closed) {
    const json& node = part_of(nodes, path);
    group = string_in(node, "group").value_or("?");
    made.facts.push_back({path,
                          fmt::format("mode {}, group {}: {}", string_in(node, "mode").value_or("?"), group,
                                      string_in(node, "why").value_or("")),
                          "access(2)"});
  }
  if (!closed.empty()) {
    constexpr std::size_t most = 2;
    const auto more = closed.size() > most ? fmt::format(" and {} more", closed.size() - most) : std::string{};
    closed.resize(std::min(closed.size(), most));
    made.add(verdict::failed, fmt::format("This user may not open {}{}.", fmt::join(closed, ", "), more));
    if (machine.is_in_container()) {
      made.steps.emplace_back("Give the container the devices and their group (docker run --device … --group-add …).");
    } else if (group == "render" || group == "video") {
      made.steps.insert(made.steps.end(),
                        {fmt::format("$ sudo usermod -aG {} $USER", group),
                         "Log out and in again (sessions of tmux too); id must then show the group."});
    } else {
      made.steps.emplace_back("Let a group or all users open them (a rule of udev).");
    }
  }
  if (made.found == verdict::ok)
    return well(fmt::format("this user can open {}", counted(nodes.size(), "device file")));
  made.effect = "Programs of this user find no GPU.";
  made.decisive = made.facts.size();
  return made;
}

finding libraries(const machine_facts& machine) {
  if (machine.gpus().empty()) return does_not_apply("there is no GPU");
  if (!machine.record().at("/libraries").is_object()) return not_known("nobody has looked for libraries");
  finding made;
  const auto add = [&](verdict how_bad, const json& library, const std::string& sentence,
                       const std::vector<std::string>& steps) {
    made.add(how_bad, sentence, {}, steps);
    made.facts.push_back({string_in(library, "name").value_or("libnvidia-ml.so.1"),
                          string_in(library, "path").value_or("absent"),
                          string_in(library, "why").value_or("dlopen(3)")});
  };
  if (machine.has(gpu_vendor::nvidia)) {
    const json& cuda = library_of(machine, "cuda");
    const json& nvrtc = library_of(machine, "nvrtc");
    if (!is_there(cuda)) {
      add(verdict::failed, cuda, "The driver's library libcuda.so.1 is not there.",
          {"Install it with the driver (Debian: libcuda1; Ubuntu: libnvidia-compute-VERSION, of the driver's own "
           "version)."});
    } else if (string_in(cuda, "path")->find("/stubs/") != std::string::npos) {
      add(verdict::failed, cuda,
          "Programs load a stub of libcuda.so.1: an empty library of the toolkit, only meant for linking.",
          {"See where its folder is named:",
           fmt::format("$ echo $LD_LIBRARY_PATH; grep -rn {} /etc/ld.so.conf.d ~/.bashrc ~/.profile",
                       folder_of(*string_in(cuda, "path"))),
           "Take it out of there, log in again, and if it was in /etc/ld.so.conf.d:", "$ sudo ldconfig"});
    }
    if (!is_there(nvrtc)) {
      add(verdict::warning, nvrtc,
          "NVRTC, NVIDIA's compiler at run time, is not there: kernels from source do not run.",
          {"Install it (Debian: libnvrtc; pip: nvidia-cuda-nvrtc-cu12), or name it in WEFT_CUDA_NVRTC."});
    }
    if (!machine.has_nvml()) {
      add(verdict::warning, machine.nvml(), "NVIDIA's management library (NVML) does not answer: sensors are not read.",
          {"Install libnvidia-ml1, of the driver's own version."});
    }
  }
  if (machine.has(gpu_vendor::amd)) {
    const json& opencl = library_of(machine, "opencl");
    const json& hip = library_of(machine, "hip");
    if (!is_there(hip) && !is_there(opencl)) {
      add(verdict::failed, hip, "Neither libamdhip64 nor libOpenCL is there.",
          {"Install ROCm's run time (packages hip-runtime-amd, rocm-opencl-runtime)."});
    } else if (is_there(opencl) && machine.record().names("/etc/OpenCL/vendors").empty()) {
      add(verdict::warning, opencl, "libOpenCL finds no driver: /etc/OpenCL/vendors is empty.",
          {"Install rocm-opencl-runtime."});
    }
  }
  if (made.found != verdict::ok) {
    made.effect =
        made.found == verdict::failed ? "No program can use these GPUs." : "Programs start, but cannot do all.";
    made.decisive = made.facts.size();
    return made;
  }
  for (const char* name : {"cuda", "nvrtc", "opencl", "hip"}) {
    const json& library = library_of(machine, name);
    if (is_there(library))
      made.facts.push_back({string_in(library, "name").value_or(name), string_in(library, "version").value_or("there"),
                            *string_in(library, "path")});
  }
  made.summary = fmt::format("found {}", counted(made.facts.size(), "library that programs open"));
  if (made.facts.size() != 1) made.summary = fmt::format("found {} libraries that programs open", made.facts.size());
  return made;
}

namespace {

/// Source: CUDA Toolkit Release Notes, minimum driver of each major version.
std::string driver_for(std::int64_t cuda) {
  return cuda == 12   ? "driver 525 or newer"
         : cuda == 13 ? "driver 580 or newer"
                      : fmt::format("a driver that serves CUDA {}.0 or newer", cuda);
}

}  // namespace

finding toolkit(const machine_facts& machine) {
  if (!machine.has(gpu_vendor::nvidia)) return does_not_apply("there is no GPU of NVIDIA");
  const auto driver_text = string_in(library_of(machine, "cuda"), "version");
  const auto compiler_text = string_in(library_of(machine, "nvrtc"), "version");
  const auto driver = version_pair(driver_text);
  const auto compiler = version_pair(compiler_text);
  if (!driver || !compiler)
    return not_known(!driver ? "libcuda does not report its CUDA version" : "there is no NVRTC that tells its version");
  finding made{
      .facts = {{"NVRTC", *compiler_text, "nvrtcVersion"}, {"driver serves CUDA", *driver_text, "cuDriverGetVersion"}}};
  made.summary = fmt::format("NVRTC {} for a driver of CUDA {}", *compiler_text, *driver_text);
  if (compiler->first <= driver->first) return made;
  made.found = verdict::failed;
  made.decisive = made.facts.size();
  made.summary =
      fmt::format("NVRTC, NVIDIA's compiler at run time, is of CUDA {}; the driver takes code of CUDA {} at most.",
                  *compiler_text, *driver_text);
  made.effect =
      "Programs that compile kernels as they run (weft, CuPy, Numba) fail. Compiled programs are not affected.";
  made.facts.front().where = string_in(library_of(machine, "nvrtc"), "path").value_or("nvrtcVersion");
  made.steps = {
      fmt::format(
          "Install {}: that mends all programs. Or, for weft alone, an older NVRTC in a Python environment of its "
          "own:",
          driver_for(compiler->first)),
      fmt::format("$ pip install 'nvidia-cuda-nvrtc-cu{}=={}.*'", driver->first, *driver_text),
      fmt::format("$ export WEFT_CUDA_NVRTC=$(python3 -c 'import nvidia.cuda_nvrtc as n; "
                  "print(n.__path__[0])')/lib/libnvrtc.so.{}",
                  driver->first)};
  return made;
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
      {"If the network library does not say that it uses dma-buf:", "$ sudo modprobe nvidia-peermem"});
}

}  // namespace weft::tool::doctor_checks
