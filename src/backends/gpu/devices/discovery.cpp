// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/devices/discovery.hpp"

#include "backends/common/own_place.hpp"
#include "backends/gpu/devices/partitions.hpp"
#include "backends/gpu/driver/error.hpp"
#include "core/environment.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <string_view>

namespace weft::gpu {
namespace {

constexpr int compute_mode_exclusive = 3, compute_mode_prohibited = 2;

/// Of a device; `otherwise` where the driver does not know the question.
int attribute(const driver& cu, CUdevice device, int which, int otherwise = 0) {
  int value = 0;
  return cu.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : otherwise;
}

bool offers(const driver& cu, CUdevice device, int which) { return attribute(cu, device, which) != 0; }

/// What sysfs says of a PCI device; empty where it says nothing or -1.
std::optional<int> numa_node_of(const std::string& root, std::string address) {
  if (address.empty()) return std::nullopt;
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file{root + "/bus/pci/devices/" + address + "/numa_node"};
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

class finder {
 public:
  finder(const driver& cu, const management* management, const settings& wanted, const backend_options& options)
      : cu_(cu), management_(management), wanted_(wanted), options_(options) {}

  result<discovery> run() {
    std::string partitions = wanted_.partitions;
    if (partitions.empty()) partitions = detail::environment(by_.partitions_variable).value_or("");
    if (!partitions.empty() && partitions != "0" && partitions != "1") {
      return make_error(errc::invalid_argument,
                        std::string{by_.partitions_variable} + " is \"" + partitions +
                            "\"; it is 0, the logical devices of a GPU sharing its multiprocessors, or 1");
    }
    splits_ = partitions != "0";
    int count = 0;
    if (const CUresult status = cu_.cuDeviceGetCount(&count); status != CUDA_SUCCESS)
      return cu_error(cu_, status, "counting the GPUs", errc::unsupported);
    if (const std::string hidden = hidden_by(by_); !hidden.empty()) {
      found_.notes.push_back(hidden + ": the driver shows " + std::to_string(count) + (count == 1 ? " GPU" : " GPUs") +
                             ", numbered as that variable orders them");
    }
    std::string reasons;
    for (int i = 0; i < count; ++i) {
      if (std::string why = add(i); !why.empty()) {
        reasons += "; " + why;
        found_.notes.push_back(std::move(why));
      }
    }
    if (found_.gpus.empty())
      return make_error(errc::unsupported, cu_.library + " offers no GPU that can be used" + reasons);
    judge_pairs();
    for (std::size_t i = 0; i < found_.gpus.size(); ++i) split(i);
    judge_capabilities();
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool is_elsewhere(const gpu_place& gpu) const {
    if (!options_.leave_out) return false;
    device_description about;
    about.name = gpu.name;
    about.kind = by_.kind;
    about.uuid = gpu.uuid;
    about.pci_address = gpu.pci_address;
    return options_.leave_out(about);
  }

  /// Why a GPU is left out; empty when it is not.
  std::string add(int ordinal) {
    const std::string place = "GPU " + std::to_string(ordinal);
    gpu_place gpu;
    if (const CUresult status = cu_.cuDeviceGet(&gpu.id, ordinal); status != CUDA_SUCCESS)
      return place + " is left out: " + name_of(cu_, status);
    std::array<char, 256> name{};
    if (cu_.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, gpu.id) == CUDA_SUCCESS)
      gpu.name = name.data();
    if (gpu.name.empty()) gpu.name = std::string{"a "} + by_.name + " device";
    const std::string title = place + " (" + gpu.name + ")";
    std::size_t memory = 0;
    if (const CUresult status = cu_.cuDeviceTotalMem(&memory, gpu.id); status != CUDA_SUCCESS || memory == 0)
      return title +
             " is left out: " + (status == CUDA_SUCCESS ? "it says that it has no memory" : name_of(cu_, status));
    gpu.memory = memory;
    const int mode = attribute(cu_, gpu.id, compute_mode);
    if (mode == compute_mode_prohibited) {
      return title + " is left out: its compute mode is \"prohibited\"; nvidia-smi -c 0 opens it";
    }
    if (!offers(cu_, gpu.id, unified_addressing)) {
      return title + " is left out: it has no unified addressing, by which weft tells whose an address is";
    }
    if (mode == compute_mode_exclusive)
      found_.notes.push_back(title + " serves one process at a time (compute mode \"exclusive process\")");
    identify(gpu, ordinal);
    if (is_elsewhere(gpu)) return title + " is left out: an earlier backend of the machine has it";
    ask(gpu);
    if (is_instance(gpu)) {
      found_.notes.push_back(title +
                             " is a MIG instance: it has no peer access, and memory and multiprocessors of "
                             "its own");
    }
    found_.gpus.push_back(std::move(gpu));
    return {};
  }

  static bool is_instance(const gpu_place& gpu) { return gpu.name.find(" MIG ") != std::string::npos; }

  void identify(gpu_place& gpu, int ordinal) const {
    CUuuid raw{};
    if (cu_.cuDeviceGetUuid(&raw, gpu.id) == CUDA_SUCCESS) gpu.uuid = by_.uuid_text(raw);
    std::array<char, 32> address{};
    if (cu_.cuDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), gpu.id) == CUDA_SUCCESS)
      gpu.pci_address = address.data();
    std::transform(gpu.pci_address.begin(), gpu.pci_address.end(), gpu.pci_address.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    // without one, its place still names it to every process that sees the same GPUs
    if (gpu.uuid.empty())
      gpu.uuid = std::string{to_string(by_.kind)} + "/" + std::to_string(ordinal) + "/" + gpu.pci_address;
    const int node = attribute(cu_, gpu.id, host_numa_id, -1);
    gpu.numa_node = node >= 0 ? std::optional{node} : numa_node_of(wanted_.system_root, gpu.pci_address);
  }

  void ask(gpu_place& gpu) const {
    const auto has = [&](int which) { return offers(cu_, gpu.id, which); };
    const auto value = [&](int which, int otherwise) { return attribute(cu_, gpu.id, which, otherwise); };
    gpu.compute_units = std::max(1, value(multiprocessor_count, 1));
    gpu.major = value(compute_capability_major, 0);
    gpu.minor = value(compute_capability_minor, 0);
    gpu.architecture = by_.architecture(cu_, gpu);
    gpu.largest_block = value(max_threads_per_block, 1024);
    gpu.largest_grid = {value(max_grid_dim_x, 65535), value(max_grid_dim_y, 65535), value(max_grid_dim_z, 65535)};
    gpu.integrated = has(integrated);
    gpu.host_pointers = has(can_use_host_pointer_for_registered_mem);
    gpu.host_atomics = has(host_native_atomic_supported);
    gpu.managed = has(managed_memory);
    gpu.concurrent_managed = has(concurrent_managed_access);
    gpu.registers_host = has(host_register_supported);
    gpu.priorities = has(stream_priorities_supported);
    gpu.has_short_words = (by_.has_short_words || has(can_use_64_bit_stream_mem_ops)) &&
                          cu_.cuStreamWaitValue32 != nullptr && cu_.cuStreamWriteValue32 != nullptr;
    gpu.has_long_words =
        has(can_use_64_bit_stream_mem_ops) && cu_.cuStreamWaitValue64 != nullptr && cu_.cuStreamWriteValue64 != nullptr;
    gpu.compares_by_nor = has(can_use_stream_wait_value_nor);
    gpu.flushes_remote_writes = has(can_flush_remote_writes);
    // both are asked for by GDRCopy's window: memory that can be pinned, and no flush before the owner reads
    gpu.orders_bus_writes =
        has(gpu_direct_rdma_supported) && value(gpu_direct_rdma_writes_ordering, 0) >= bus_writes_ordered_for_owner;
    gpu.blocks = has(virtual_memory_management_supported) && cu_.cuMemCreate != nullptr && cu_.cuMemMap != nullptr;
    gpu.block_descriptors = gpu.blocks && has(handle_type_posix_file_descriptor_supported);
    gpu.pools = has(memory_pools_supported) && cu_.cuMemPoolCreate != nullptr;
    gpu.pool_descriptors = gpu.pools && (value(mempool_supported_handle_types, 0) & handle_posix_fd) != 0;
    gpu.ipc = cu_.cuIpcGetMemHandle != nullptr && cu_.cuIpcOpenMemHandle != nullptr;
    gpu.multicast = gpu.blocks && has(multicast_supported) && cu_.cuMulticastCreate != nullptr;
  }

  void judge_pairs() {
    const std::size_t count = found_.gpus.size();
    found_.pairs.resize(count * count);
    for (std::size_t from = 0; from < count; ++from) {
      for (std::size_t to = 0; to < count; ++to) {
        if (from != to) found_.pairs[from * count + to] = judge(found_.gpus[from], found_.gpus[to]);
      }
    }
  }

  [[nodiscard]] gpu_pair judge(const gpu_place& from, const gpu_place& to) const {
    gpu_pair pair;
    int can = 0;
    pair.access = cu_.cuDeviceCanAccessPeer(&can, from.id, to.id) == CUDA_SUCCESS && can != 0;
    if (!pair.access) return pair;
    const auto value = [&](int which) -> std::optional<int> {
      int read = 0;
      if (cu_.cuDeviceGetP2PAttribute(&read, which, from.id, to.id) != CUDA_SUCCESS) return std::nullopt;
      return read;
    };
    pair.rank = value(p2p_performance_rank);
    pair.native_atomics = value(p2p_native_atomic_supported).value_or(0) != 0;
    pair.partial_atomics = !pair.native_atomics && value(p2p_only_partial_native_atomic_supported).value_or(0) != 0;
    pair.arrays = value(p2p_array_access_supported).value_or(0) != 0;
    if (management_ == nullptr) return pair;
    const auto link = management_->joined({from.id, from.pci_address}, {to.id, to.pci_address});
    if (!link) return pair;
    if (link->kind != link_kind::unknown) {
      pair.kind = link->kind;
      pair.generation = link->generation;
      pair.lanes = link->lanes;
    } else if (!from.integrated && !to.integrated) {
      pair.kind = link_kind::pcie;  // what else there is would have been told
    }
    return pair;
  }

  /// The devices that a GPU is offered as.
  void split(std::size_t index) {
    gpu_place& gpu = found_.gpus[index];
    const int parts = std::max(1, options_.logical_devices);
    if (parts > gpu.compute_units) {
      found_.notes.push_back(gpu.name + " stays whole: it cannot be split into " + std::to_string(parts) +
                             " parts, having " + std::to_string(gpu.compute_units) + " multiprocessors");
      return add_part(index, 0, 1);
    }
    if (parts > 1) {
      auto shares = splits_ ? split_multiprocessors(cu_, gpu.id, static_cast<unsigned>(parts))
                            : make_error(errc::unsupported, std::string{by_.partitions_variable} + " is 0");
      const std::string offered = gpu.name + " is offered as " + std::to_string(parts) + " logical devices";
      if (shares) {
        gpu.shares = std::move(*shares);
        const auto each = static_cast<int>(gpu.shares.front().sm.sm_count);
        const int left = gpu.compute_units - each * parts;
        found_.notes.push_back(offered + " of " + std::to_string(each) + " multiprocessors each" +
                               (left == 0 ? "" : ", " + std::to_string(left) + " being left over") +
                               ": they share its caches, its memory's bandwidth and its faults, and what keeps their "
                               "memory apart is this library");
      } else {
        found_.notes.push_back(offered + ": they share its multiprocessors (" + shares.error().what +
                               ") and its faults, and what keeps their memory apart is this library");
      }
    }
    for (int part = 0; part < parts; ++part) add_part(index, part, parts);
  }

  void add_part(std::size_t index, int part, int parts) {
    const gpu_place& gpu = found_.gpus[index];
    device_place made;
    made.gpu = index;
    made.part = part;
    made.parts = parts;
    device_description& about = made.description;
    about.name = gpu.name;
    about.kind = by_.kind;
    about.uuid = gpu.uuid;
    about.pci_address = gpu.pci_address;
    // another driver than the computer's says nothing that the next process could rely on
    if (wanted_.driver.empty() && !wanted_.table) {
      about.driver = std::string{by_.name} + " " + version_text(cu_.version);
      const std::string version = management_ == nullptr ? std::string{} : management_->driver_version();
      if (!version.empty()) about.driver += ", driver " + version;
    }
    about.numa_node = gpu.numa_node;
    const auto share = static_cast<unsigned>(parts);
    about.memory = bytes{gpu.memory / share};
    if (options_.memory_per_device) about.memory = std::min(about.memory, *options_.memory_per_device);
    about.compute_units =
        gpu.shares.empty() ? gpu.compute_units / parts : static_cast<int>(gpu.shares.front().sm.sm_count);
    if (parts > 1) {
      about.name += ", part " + std::to_string(part + 1) + " of " + std::to_string(parts);
      about.part_of = gpu.uuid;
      about.own_compute_units = !gpu.shares.empty();
      about.uuid += "/" + std::to_string(part);
      about.pci_address.clear();  // a place that several share names none of them
    }
    found_.devices.push_back(std::move(made));
  }

  void judge_capabilities() {
    const bool one_memory = std::all_of(found_.gpus.begin(), found_.gpus.end(),
                                        [](const gpu_place& gpu) { return gpu.managed && gpu.concurrent_managed; });
    for (std::size_t d = 0; d < found_.devices.size(); ++d) {
      const gpu_place& gpu = found_.gpu_of(d);
      capability& set = found_.devices[d].description.capabilities;
      set = capability::kernels | capability::timing | capability::pinned_memory;
      if (one_memory) set = set | capability::unified_memory;
      if (gpu.priorities) set = set | capability::priorities;
      for (std::size_t other = 0; other < found_.devices.size(); ++other) {
        if (other == d) continue;
        const bool together = found_.same_gpu(d, other);
        if (together || found_.pair_of(d, other).access) set = set | capability::peer_to_peer;
        if (together || found_.pair_of(d, other).native_atomics) set = set | capability::native_atomics;
      }
    }
  }

  const driver& cu_;
  const vendor& by_ = *cu_.by;
  const management* management_;
  const settings& wanted_;
  const backend_options& options_;
  bool splits_ = true;  // the multiprocessors of a GPU, for its parts
  discovery found_;
};

}  // namespace

result<discovery> discover(const driver& cu, const management* management, const settings& wanted,
                           const backend_options& options) {
  return finder{cu, management, wanted, options}.run();
}

result<topology> layout_of(const discovery& found, const vendor& by) {
  const auto count = found.devices.size();
  topology made;
  made.name = std::string{to_string(by.kind)};
  made.description = std::string{"GPUs as the driver of "} + by.name +
                     " shows them; the rates of what joins them are unknown until measured";
  made.simulated = false;
  made.access.assign(count * count, false);
  const auto join = [&](std::size_t from, std::size_t to, link_kind kind, bool atomics, int generation, int lanes) {
    topology_link link;
    link.from = static_cast<int>(from);
    link.to = static_cast<int>(to);
    link.wire = static_cast<int>(made.links.size());
    link.kind = kind;
    link.generation = generation;
    link.lanes = lanes;
    link.native_atomics = atomics;
    made.links.push_back(link);
  };

  // one socket for each NUMA node that a GPU is near; those whose node is not known are near the first
  std::vector<int> nodes;
  for (const gpu_place& gpu : found.gpus) {
    if (gpu.numa_node) nodes.push_back(*gpu.numa_node);
  }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  const auto socket_of = [&](const gpu_place& gpu) {
    const auto at = gpu.numa_node ? std::find(nodes.begin(), nodes.end(), *gpu.numa_node) : nodes.begin();
    return count + static_cast<std::size_t>(at - nodes.begin());
  };

  for (std::size_t d = 0; d < count; ++d) {
    const device_description& one = found.devices[d].description;
    topology_device device;
    device.name = one.name;
    device.memory = one.memory;
    device.compute_units = one.compute_units;
    device.pci_address = common::own_place(found.devices, one);
    device.numa_node = one.numa_node;
    device.capabilities = one.capabilities;
    made.devices.push_back(std::move(device));
    made.nodes.push_back({.kind = node_kind::device,
                          .name = to_string(device_id{static_cast<int>(d)}),
                          .parent = static_cast<int>(socket_of(found.gpu_of(d))),
                          .numa_node = one.numa_node});
  }
  for (std::size_t i = 0; i < std::max<std::size_t>(1, nodes.size()); ++i) {
    topology_node socket{.kind = node_kind::socket, .name = "socket" + std::to_string(i)};
    if (!nodes.empty()) socket.numa_node = nodes[i];
    made.nodes.push_back(std::move(socket));
  }
  for (std::size_t a = count; a < made.nodes.size(); ++a) {
    for (std::size_t b = count; b < made.nodes.size(); ++b) {
      if (a != b) join(a, b, link_kind::socket, false, 0, 0);
    }
  }

  for (std::size_t d = 0; d < count; ++d) {
    const gpu_place& gpu = found.gpu_of(d);
    const std::size_t socket = socket_of(gpu);
    // by what name what is better than PCIe goes, the driver does not say
    const bool is_better = gpu.host_atomics && by.host_atomics_beat_pcie;
    const bool is_pcie = !gpu.integrated && !is_better && !gpu.pci_address.empty();
    const link_kind kind = gpu.integrated ? link_kind::host_memory : is_pcie ? link_kind::pcie : link_kind::unknown;
    join(d, socket, kind, gpu.host_atomics, 0, 0);
    join(socket, d, kind, gpu.host_atomics, 0, 0);
    for (std::size_t other = 0; other < count; ++other) {
      if (other == d) continue;
      const bool together = found.same_gpu(d, other);
      const gpu_pair& pair = found.pair_of(d, other);
      if (!together && !pair.access) continue;
      made.access[d * count + other] = true;
      if (together) {
        join(d, other, link_kind::device_memory, true, 0, 0);
      } else if (pair.kind != link_kind::pcie) {
        join(d, other, pair.kind, pair.native_atomics, pair.generation, pair.lanes);
      }
    }
  }
  return complete_topology(std::move(made));
}

}  // namespace weft::gpu
