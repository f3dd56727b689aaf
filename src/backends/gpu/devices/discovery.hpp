// SPDX-License-Identifier: Apache-2.0
// Which GPUs there are, what they can do, and what joins them; asked without making a context on any of them.
#pragma once

#include "backends/gpu/driver/driver.hpp"
#include "backends/gpu/driver/management.hpp"
#include "backends/gpu/factory.hpp"
#include "weft/backend/backend.hpp"
#include "weft/core/topology.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace weft::gpu {

/// A device of the driver: a GPU, or a MIG instance.
struct gpu_place {
  CUdevice id = 0;
  std::string name, uuid, pci_address;
  std::optional<int> numa_node;
  std::uint64_t memory = 0;
  int compute_units = 1;
  int major = 0, minor = 0;           // compute capability
  int architecture = 0;               // that kernels are compiled for: see run_time_compiler
  int largest_block = 1024;           // threads
  std::array<int, 3> largest_grid{};  // blocks
  bool integrated = false;
  bool host_pointers = false;  // adopted memory has the same address here as on the host
  bool host_atomics = false;   // with the host, over their link
  bool managed = false, concurrent_managed = false;
  bool registers_host = false;
  bool priorities = false;
  bool has_short_words = false;        // stream memory operations of 4 bytes
  bool has_long_words = false;         // … and of 8
  bool compares_by_nor = false;        // … and one more comparison
  bool flushes_remote_writes = false;  // … and waits that see what other devices wrote before the value
  bool orders_bus_writes = false;      // running kernels see writes across the bus in their order
  bool blocks = false, block_descriptors = false;
  bool pools = false, pool_descriptors = false;
  bool ipc = false;
  bool multicast = false;
  std::vector<CUdevResource> shares;  // the multiprocessors of each part; empty: all share all
};

/// One device of the machine: a GPU, or a part of one.
struct device_place {
  std::size_t gpu = 0;  // index
  int part = 0, parts = 1;
  device_description description;
};

/// What `from` may do with the memory of `to`, two different GPUs.
struct gpu_pair {
  bool access = false;
  std::optional<int> rank;  // the driver's: 0 is best
  bool native_atomics = false, partial_atomics = false, arrays = false;
  link_kind kind = link_kind::unknown;
  int generation = 0, lanes = 0;  // of what joins them, where that is told
};

struct discovery {
  std::vector<gpu_place> gpus;
  std::vector<device_place> devices;
  std::vector<gpu_pair> pairs;     // [from * gpus + to]
  std::vector<std::string> notes;  // what was left out or hidden, and why

  [[nodiscard]] const gpu_place& gpu_of(std::size_t device) const { return gpus[devices[device].gpu]; }
  [[nodiscard]] const gpu_pair& pair_of(std::size_t from, std::size_t to) const {
    return pairs[devices[from].gpu * gpus.size() + devices[to].gpu];
  }
  /// Parts of one GPU share its memory: what keeps them apart is this library.
  [[nodiscard]] bool same_gpu(std::size_t a, std::size_t b) const { return devices[a].gpu == devices[b].gpu; }
};

/// Errors: unsupported when no GPU is left, with every reason.
[[nodiscard]] result<discovery> discover(const driver& cu, const management* management, const settings& wanted,
                                         const backend_options& options);

/// The devices, the sockets, the links to them, and links between devices that have access.
/// Errors: invalid_topology for what no machine is.
[[nodiscard]] result<topology> layout_of(const discovery& found, const vendor& by);

}  // namespace weft::gpu
