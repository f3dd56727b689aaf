// SPDX-License-Identifier: Apache-2.0
#include "doctor/gather.hpp"

#include "doctor/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <iterator>
#include <link.h>
#include <sched.h>
#include <set>
#include <sys/klog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <vector>

namespace weft::tool {

namespace {

constexpr std::size_t largest_text = 64 * 1024;

class descriptor_of_file {
 public:
  explicit descriptor_of_file(const std::string& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  descriptor_of_file(const descriptor_of_file&) = delete;
  descriptor_of_file& operator=(const descriptor_of_file&) = delete;
  ~descriptor_of_file() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] bool is_open() const { return number_ >= 0; }
  /// Up to `limit` bytes; what an error left unread is absent.
  [[nodiscard]] std::string read(std::size_t limit) const {
    std::string bytes(limit, '\0');
    std::size_t size = 0;
    while (size < limit) {
      const ssize_t got = ::read(number_, bytes.data() + size, limit - size);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      size += static_cast<std::size_t>(got);
    }
    bytes.resize(size);
    return bytes;
  }

 private:
  int number_;
};

/// Letters that JSON can hold.
std::string clean(std::string text) {
  for (char& letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 0x7f || (code < 0x20 && letter != '\n' && letter != '\t')) letter = '?';
  }
  return text;
}

/// The words of the kernel's command line that decide about GPUs and memory. Others may name disks and secrets.
std::string kernel_words(const std::string& line) {
  static constexpr std::array<std::string_view, 13> kept{"iommu",
                                                         "intel_iommu",
                                                         "amd_iommu",
                                                         "pci",
                                                         "pcie_aspm",
                                                         "pcie_acs_override",
                                                         "nouveau",
                                                         "nvidia",
                                                         "nvidia-drm",
                                                         "amdgpu",
                                                         "numa_balancing",
                                                         "rd.driver.blacklist",
                                                         "modprobe.blacklist"};
  std::string words;
  for (const std::string_view word : split(trimmed(line), ' ')) {
    const std::string_view option = word.substr(0, word.find('='));
    const std::string_view module = option.substr(0, option.find('.'));
    if (std::ranges::find(kept, option) == kept.end() && std::ranges::find(kept, module) == kept.end()) continue;
    words += (words.empty() ? "" : " ") + std::string{word};
  }
  return words;
}

/// Lines "name: value" of the process's own state that tell of its surroundings.
std::string status_lines(const std::string& text) {
  std::string lines;
  for (const std::string_view line : split(text, '\n')) {
    for (const std::string_view name :
         {"NSpid:", "Seccomp:", "NoNewPrivs:", "Cpus_allowed_list:", "Mems_allowed_list:"}) {
      if (line.starts_with(name)) lines += std::string{line} + "\n";
    }
  }
  return lines;
}

class gathering {
 public:
  json take() {
    // an object, whatever was found
    for (const char* part : {"files", "unreadable", "links", "folders"}) document_.emplace(part, json::object());
    return std::move(document_);
  }

  void set(const std::string& part, json value) { document_[part] = std::move(value); }

  void file(const std::string& path) {
    if (auto text = text_of(path)) document_["files"][path] = clean(std::move(*text));
  }
  void files(const std::string& folder, std::initializer_list<const char*> names) {
    for (const char* name : names) file(folder + "/" + name);
  }
  /// The same with what is kept of its text.
  template <class Keep>
  void file(const std::string& path, Keep&& keep) {
    if (const auto text = text_of(path)) document_["files"][path] = clean(keep(*text));
  }
  std::string link(const std::string& path) {
    std::array<char, 4096> target{};
    const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
    if (size <= 0) return {};
    std::string to{target.data(), static_cast<std::size_t>(size)};
    document_["links"][path] = clean(to);
    return to;
  }
  /// The names in a folder.
  std::vector<std::string> folder(const std::string& path) {
    struct stat about{};
    if (::stat(path.c_str(), &about) != 0 || !S_ISDIR(about.st_mode)) return {};
    std::vector<std::string> names;
    for (const std::string& found : paths(path + "/*")) names.push_back(found.substr(path.size() + 1));
    document_["folders"][path] = names;
    return names;
  }
  static std::vector<std::string> paths(const std::string& pattern) {
    glob_t found{};
    std::vector<std::string> list;
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) list.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    return list;
  }
  std::optional<std::string> text_of(const std::string& path, std::size_t limit = largest_text) {
    const descriptor_of_file opened{path};
    if (!opened.is_open()) {
      if (errno != ENOENT && errno != ENOTDIR) document_["unreadable"][path] = reason_of(errno);
      return std::nullopt;
    }
    return opened.read(limit);
  }

 private:
  json document_ = json::object();
};

// ---- PCI ------------------------------------------------------------------------------------------------------------

/// Addresses of bridges above a device, from its path in the tree of devices.
std::vector<std::string> bridges_above(const std::string& target) {
  std::vector<std::string> list;
  const auto parts = split(target, '/');
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (std::ranges::count(parts[i], ':') == 2) list.emplace_back(parts[i]);
  }
  return list;
}

bool is_of_interest(std::string_view type) {
  // display, processing accelerator, InfiniBand, Ethernet, and "other bridge", which NVSwitches are
  for (const std::string_view kind : {"0x03", "0x12", "0x0207", "0x0200", "0x0680"}) {
    if (type.starts_with(kind)) return true;
  }
  return false;
}

void gather_device(gathering& to, const std::string& address) {
  const std::string folder = pci_folder + address;
  to.files(folder,
           {"class", "vendor", "device", "numa_node", "current_link_speed", "current_link_width", "max_link_speed",
            "max_link_width", "resource", "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal",
            "mem_info_vram_total", "current_compute_partition", "current_memory_partition", "ras/umc_err_count"});
  to.link(folder);
  to.link(folder + "/driver");
  const std::string group = to.link(folder + "/iommu_group");
  if (!group.empty()) to.file("/sys/kernel/iommu_groups/" + group.substr(group.rfind('/') + 1) + "/type");
}

void gather_pci(gathering& to) {
  std::set<std::string> wanted;
  std::set<std::string> bridges;
  for (const std::string& path : gathering::paths(pci_folder + "*")) {
    const descriptor_of_file type{path + "/class"};
    if (!type.is_open() || !is_of_interest(type.read(16))) continue;
    wanted.insert(path.substr(pci_folder.size()));
    std::array<char, 4096> target{};
    const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
    if (size <= 0) continue;
    for (std::string& bridge : bridges_above({target.data(), static_cast<std::size_t>(size)}))
      bridges.insert(std::move(bridge));
  }
  to.set("pci", json(wanted));
  wanted.insert(bridges.begin(), bridges.end());
  for (const std::string& address : wanted) gather_device(to, address);

  json acs = json::object();
  for (const std::string& bridge : bridges) {
    const auto bytes = to.text_of(pci_folder + bridge + "/config", 4096);
    if (!bytes) continue;
    if (bytes->size() <= 256) {  // what the kernel shows to users
      acs["why"] = "only root can read the configuration space of bridges";
      continue;
    }
    const auto state = acs_of(std::as_bytes(std::span{*bytes}));
    acs[bridge] = state ? json{{"can", state->can}, {"does", state->does}} : json(nullptr);
  }
  to.set("acs", std::move(acs));
}

// ---- the process, and what surrounds it
// ------------------------------------------------------------------------------

json limits_of_process() {
  json made;
  const auto text = [](rlim_t value) { return value == RLIM_INFINITY ? json("unlimited") : json(value); };
  for (const auto& [name, which] :
       {std::pair{"memlock", RLIMIT_MEMLOCK}, std::pair{"nofile", RLIMIT_NOFILE}, std::pair{"nproc", RLIMIT_NPROC}}) {
    rlimit limit{};
    if (::getrlimit(which, &limit) != 0) continue;
    made[name] = text(limit.rlim_cur);
    made[std::string{name} + "_hard"] = text(limit.rlim_max);
  }
  return made;
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> starts) {
  return std::ranges::any_of(starts, [name](std::string_view start) { return name.starts_with(start); });
}

/// WEFT_WORLD_TOKEN and NVIDIA_API_KEY begin like settings that a report wants.
bool may_be_secret(std::string_view name) {
  std::string upper{name};
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  const std::array words{"TOKEN", "SECRET", "PASSW", "PASSPHRASE", "KEY", "CREDENTIAL"};
  return std::ranges::any_of(words, [&upper](std::string_view word) { return upper.find(word) != upper.npos; });
}

json gather_process() {
  json made;
  made["is_root"] = ::geteuid() == 0;
  cpu_set_t processors;
  CPU_ZERO(&processors);
  made["processors"] =
      ::sched_getaffinity(0, sizeof processors, &processors) == 0 ? json(CPU_COUNT(&processors)) : json(nullptr);
  made["limits"] = limits_of_process();
  json environment = json::object();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (name.starts_with("WEFT_JOIN") || may_be_secret(name)) continue;  // the address of a meeting place
    if (starts_with_any(name, {"CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_", "HSA_", "GPU_", "WEFT_", "OCL_", "POCL_"}))
      environment[std::string{name}] = clean(std::string{text.substr(equals + 1)});
  }
  made["environment"] = std::move(environment);
  return made;
}

json gather_nodes() {
  json nodes = json::object();
  for (const char* pattern :
       {"/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/*", "/dev/nvidia-nvswitch*",
        "/dev/kfd", "/dev/dri/renderD*", "/dev/gdrdrv", "/dev/nvidia-caps-imex-channels/*"}) {
    for (const std::string& path : gathering::paths(pattern)) {
      struct stat about{};
      if (::stat(path.c_str(), &about) != 0) continue;
      const group* owner = ::getgrgid(about.st_gid);
      // access(2) asks for the real user, and does not wake a GPU as opening would
      const bool can_use = ::access(path.c_str(), R_OK | W_OK) == 0;
      nodes[path] = {{"mode", fmt::format("{:04o}", about.st_mode & 07777U)},
                     {"group", owner != nullptr ? owner->gr_name : std::to_string(about.st_gid)},
                     {"usable", can_use},
                     {"why", can_use ? json(nullptr) : json(reason_of(errno))}};
    }
  }
  return nodes;
}

json gather_shared_memory() {
  struct statvfs about{};
  if (::statvfs("/dev/shm", &about) != 0) return {{"why", reason_of(errno)}};
  return {{"size", about.f_blocks * about.f_frsize}, {"free", about.f_bavail * about.f_frsize}};
}

// ---- libraries
// -------------------------------------------------------------------------------------------------------

std::string library_path(void* handle) {
  link_map* map = nullptr;
  return ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : "";
}

/// Opens the first that is there and asks it for its version, in its own way.
template <class Ask>
json library(std::initializer_list<std::string> names, Ask&& ask) {
  std::string why;
  for (const std::string& name : names) {
    void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* problem = ::dlerror();
      if (why.empty()) why = problem != nullptr ? problem : "it cannot be opened";
      continue;
    }
    // it stays open: some do not survive being closed
    return {{"name", name}, {"path", clean(library_path(handle))}, {"version", ask(handle)}, {"why", nullptr}};
  }
  return {{"name", *names.begin()}, {"path", nullptr}, {"version", nullptr}, {"why", clean(why)}};
}

template <class F>
F function_of(void* handle, const char* name) {
  return reinterpret_cast<F>(::dlsym(handle, name));
}

json gather_libraries(const std::string& cuda, const std::string& nvrtc) {
  const auto no_version = [](void*) { return json(nullptr); };
  json made;
  made["cuda"] = library({cuda}, [](void* handle) {
    int version = 0;  // this call needs no cuInit
    const auto ask = function_of<int (*)(int*)>(handle, "cuDriverGetVersion");
    if (ask == nullptr || ask(&version) != 0) return json(nullptr);
    return json(fmt::format("{}.{}", version / 1000, version % 1000 / 10));
  });
  const auto compiler_version = [](void* handle) {
    int major = 0;
    int minor = 0;
    const auto ask = function_of<int (*)(int*, int*)>(handle, "nvrtcVersion");
    if (ask == nullptr || ask(&major, &minor) != 0) return json(nullptr);
    return json(fmt::format("{}.{}", major, minor));
  };
  made["nvrtc"] = nvrtc.empty() ? library({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"}, compiler_version)
                                : library({nvrtc}, compiler_version);
  made["opencl"] = library({"libOpenCL.so.1"}, no_version);
  made["hip"] = library({"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}, no_version);
  return made;
}

std::string named_by(const char* variable, const char* otherwise) {
  const char* name = ::secure_getenv(variable);
  return name != nullptr && *name != '\0' ? name : otherwise;
}

// ---- the kernel's log
// ------------------------------------------------------------------------------------------------

json gather_kernel_log() {
  constexpr int read_all = 3, size_of_buffer = 10;
  const int size = ::klogctl(size_of_buffer, nullptr, 0);
  std::string text(size > 0 ? static_cast<std::size_t>(size) : std::size_t{1} << 20, '\0');
  const int got = ::klogctl(read_all, text.data(), static_cast<int>(text.size()));
  if (got < 0) return {{"why", reason_of(errno)}};
  text.resize(static_cast<std::size_t>(got));
  json lines = json::array();
  for (const std::string_view line : split(text, '\n')) {
    if (is_about_gpus(std::string{line})) lines.push_back(clean(std::string{line}));
  }
  constexpr std::size_t most = 200;  // the newest tell of now
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - most);
  return {{"lines", std::move(lines)}};
}

void gather_files(gathering& to) {
  to.file("/proc/cmdline", kernel_words);
  to.file("/proc/self/status", status_lines);
  to.file("/proc/meminfo", [](const std::string& text) { return text.substr(0, text.find('\n')); });
  to.file("/proc/cpuinfo",
          [](const std::string& text) { return text.find(" hypervisor") != std::string::npos ? "hypervisor" : ""; });
  for (const char* path : {"/proc/loadavg",
                           "/proc/driver/nvidia/version",
                           "/sys/module/nvidia/version",
                           "/sys/hypervisor/type",
                           "/sys/class/dmi/id/sys_vendor",
                           "/sys/class/dmi/id/product_name",
                           "/proc/sys/vm/overcommit_memory",
                           "/proc/sys/vm/max_map_count",
                           "/proc/sys/vm/nr_hugepages",
                           "/proc/sys/vm/zone_reclaim_mode",
                           "/sys/kernel/mm/transparent_hugepage/enabled",
                           "/proc/sys/kernel/numa_balancing",
                           "/proc/sys/kernel/yama/ptrace_scope",
                           "/proc/sys/kernel/dmesg_restrict",
                           "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                           "/sys/devices/system/cpu/online",
                           "/sys/devices/system/cpu/smt/active",
                           "/sys/devices/system/node/online",
                           "/sys/fs/cgroup/cpu.max",
                           "/sys/fs/cgroup/memory.max",
                           "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
                           "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
                           "/sys/module/amdgpu/version",
                           "/sys/module/amdgpu/parameters/pcie_p2p"})
    to.file(path);
  for (const char* name : {"nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "nouveau", "amdgpu", "gdrdrv"}) {
    struct stat about{};
    // a folder of a module has dozens of names, none of which matters
    if (::stat(fmt::format("/sys/module/{}", name).c_str(), &about) == 0)
      to.file(fmt::format("/sys/module/{}/refcnt", name));
  }
  for (const std::string& node : gathering::paths("/sys/devices/system/node/node*")) to.file(node + "/cpulist");
  to.folder("/sys/class/iommu");
  to.folder("/sys/class/infiniband");
  to.folder("/etc/OpenCL/vendors");
  to.folder("/var/run/nvidia-fabricmanager");
  for (const char* mark : {"/.dockerenv", "/run/.containerenv"}) to.file(mark, [](const std::string&) { return ""; });
}

}  // namespace

bool is_about_gpus(const std::string& line) {
  for (const char* words : {"NVRM:", "nvidia-nvswitch", "nvidia-nvlink", "AER:", "pcieport", "DMAR:", "AMD-Vi",
                            "amdgpu", "[drm:amdgpu", "IO_PAGE_FAULT", "nouveau"}) {
    if (line.find(words) == std::string::npos) continue;
    // the start of a driver, which every log has, is no event
    for (const char* event : {"Xid", "SXid", "rror", "ault", "fail", "Fail", "reset", "RmInit", "mismatch", "fallen",
                              "timeout", "hang", "Severity", "severity"}) {
      if (line.find(event) != std::string::npos) return true;
    }
  }
  return false;
}

std::optional<acs_state> acs_of(std::span<const std::byte> configuration) {
  const auto word = [&](std::size_t at) {
    return static_cast<std::uint32_t>(configuration[at]) | static_cast<std::uint32_t>(configuration[at + 1]) << 8U;
  };
  // extended capabilities: 16 bits of id, 4 of version, 12 of the next one's place. Each is at least 4 bytes long, so
  // a list in 4,096 bytes that is longer than 960 goes in a circle.
  std::size_t at = 0x100;
  for (int seen = 0; seen < 960 && at >= 0x100 && at + 8 <= configuration.size(); ++seen) {
    if (word(at) == 0x000d) {
      return acs_state{static_cast<std::uint16_t>(word(at + 4)), static_cast<std::uint16_t>(word(at + 6))};
    }
    at = word(at + 2) >> 4U & 0xffcU;
  }
  return std::nullopt;
}

json gather_system() {
  gathering to;
  to.set("schema", "weft.machine/1");
  gather_files(to);
  gather_pci(to);
  to.set("process", gather_process());
  to.set("nodes", gather_nodes());
  to.set("shared_memory", gather_shared_memory());
  to.set("libraries", gather_libraries(named_by("WEFT_CUDA_DRIVER", "libcuda.so.1"), named_by("WEFT_CUDA_NVRTC", "")));
  to.set("nvml", gather_nvml());
  to.set("amd", gather_amd());
  to.set("kernel_log", gather_kernel_log());
  return to.take();
}

}  // namespace weft::tool
