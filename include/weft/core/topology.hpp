// SPDX-License-Identifier: Apache-2.0
// A machine as data: devices, the switches and sockets between them, directed links, who may map whom, and faults.
// Everything here is plain values, so that routes and costs can be computed for machines that nobody here owns.
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/capability.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// The kind of wire behind a link; `unknown` when it cannot be told, never a guess. `device_memory`: both ends are
/// parts of one GPU, and what passes stays in its memory.
enum class link_kind : std::uint8_t {
  unknown,
  host_memory,
  pcie,
  nvlink,
  infinity_fabric,
  xe_link,
  socket,
  network,
  device_memory
};
[[nodiscard]] std::string_view to_string(link_kind kind);

/// A place that data passes through. Devices come first in `topology::nodes`, in device order.
enum class node_kind : std::uint8_t { device, socket, pcie_switch, fabric_switch };

struct topology_node {
  node_kind kind = node_kind::device;
  std::string name;             // "gpu0", "socket1", "switch2"
  std::optional<int> parent{};  // index of the node above it in the PCIe tree; a socket has none
  std::optional<int> numa_node{};
  int computer = 0;  // that a socket is in: an index into `computers`
  friend bool operator==(const topology_node&, const topology_node&) = default;
};

/// One direction of a connection between two nodes. The two directions of a half-duplex connection share `wire`.
struct topology_link {
  int from = 0;  // node indices
  int to = 0;
  int wire = 0;  // links with the same wire cannot move data at the same time
  link_kind kind = link_kind::unknown;
  int generation = 0;           // PCIe or NVLink generation; 0 when it has none
  int lanes = 0;                // PCIe lanes or NVLink links in use; 0 when it has none
  double bytes_per_second = 0;  // rate in this direction after line coding, before packet headers; 0 when unknown
  std::chrono::nanoseconds latency{0};
  bool native_atomics = false;
  friend bool operator==(const topology_link&, const topology_link&) = default;
};

struct topology_device {
  std::string name;  // model name, as a driver would give it
  bytes memory;
  int compute_units = 1;
  double speed = 1.0;           // relative to the other devices of this machine
  double bytes_per_second = 0;  // memory bandwidth of the device itself; 0 when unknown
  std::string pci_address;      // "0000:17:00.0"; empty when it has none
  std::optional<int> numa_node{};
  capability capabilities = capability::none;
  int max_peers = 0;  // size of the table of enabled peers; 0 is no limit
  friend bool operator==(const topology_device&, const topology_device&) = default;
};

/// The faults a topology can be told to have, each counted from the start of the machine.
struct topology_fault {
  enum class kind : std::uint8_t {
    copy_fails,     // the nth copy that crosses `link` (or goes from → to) reports a failure
    device_stalls,  // the nth operation on `device` waits `duration` before it starts
    drops_data,     // from → to is advertised as peer access; what is written never arrives
    device_lost,    // the nth operation on `device` takes it down
    call_fails,     // the nth call of the backend function `call` reports a failure
    corrupts,       // the nth copy from → to changes one byte
  };
  kind what = kind::copy_fails;
  std::optional<int> link{};  // index into `links`
  std::optional<device_id> device{};
  std::optional<device_id> from{};
  std::optional<device_id> to{};
  std::string call{};
  std::uint64_t nth = 1;  // 1 is the first; 0 is every time
  std::chrono::nanoseconds duration{0};
  friend bool operator==(const topology_fault&, const topology_fault&) = default;
};
[[nodiscard]] std::string_view to_string(topology_fault::kind kind);

/// The way data takes between two places: link indices in order, the slowest rate and the summed latency.
struct link_path {
  std::vector<int> links{};
  double bytes_per_second = 0;  // of the slowest link; 0 when any is unknown
  std::chrono::nanoseconds latency{0};
  bool native_atomics = false;  // every link has them
  friend bool operator==(const link_path&, const link_path&) = default;
};

/// A whole machine. load_topology(), parse_topology(), host_topology(), complete_topology() and machine::layout() give
/// one that is checked and complete.
struct topology {
  std::string name;
  std::string description;
  std::vector<std::string> sources;  // where the figures were published
  bool simulated = true;             // false for the plain host machine and for real devices
  std::vector<topology_device> devices;
  std::vector<topology_node> nodes;    // the devices, then sockets and switches
  std::vector<std::string> computers;  // names, of a machine that is a cluster; empty: one
  std::vector<topology_link> links;
  std::vector<bool> access;  // [from * N + to]: from may map the memory of to
  std::vector<topology_fault> faults;
  // Derived by complete_topology():
  std::vector<link_path> peer_paths;  // [from * N + to]: through switches and sockets, never through another device
  std::vector<link_path> to_host;     // device → the memory of its socket
  std::vector<link_path> from_host;   // the memory of its socket → device
  std::vector<link_path>
      between_sockets;  // [from * N + to]: between the memories of two devices' sockets; empty if one

  [[nodiscard]] int device_count() const { return static_cast<int>(devices.size()); }
  [[nodiscard]] std::size_t pair(device_id from, device_id to) const {
    return from.index() * devices.size() + to.index();
  }
  [[nodiscard]] bool can_access(device_id from, device_id to) const { return access[pair(from, to)]; }
  /// Index of the socket that a device hangs on, through any switches; empty in an unfinished topology.
  [[nodiscard]] std::optional<int> socket_of(device_id device) const;
  /// Index of the computer that a device is in; 0 in an unfinished topology.
  [[nodiscard]] int computer_of(device_id device) const;
  friend bool operator==(const topology&, const topology&) = default;
};

inline constexpr int max_devices = 1024;

/// The topology of a name that ships with weft ("dgx_h100"), or of a file (anything with a '/' or ending in .json).
/// Errors: not_found, for a name with the nearest one and all others; io_failed for a file that cannot be read;
/// invalid_topology with line, key and what was expected; unsupported when a file is asked for in a build without a
/// JSON reader.
[[nodiscard]] result<topology> load_topology(std::string_view name_or_file);

/// A topology from JSON text; `origin` names it in errors.
[[nodiscard]] result<topology> parse_topology(std::string_view json, std::string_view origin);

/// Checks a hand-built topology and fills what is derived from it.
[[nodiscard]] result<topology> complete_topology(topology machine);

/// N virtual devices that are what they are: parts of this host, all of them peers, links unknown until measured.
[[nodiscard]] topology host_topology(int device_count, bytes memory_per_device);

/// Names of the topologies that ship with weft, sorted.
[[nodiscard]] std::vector<std::string_view> shipped_topologies();

/// How far apart two devices are, in the letters of `nvidia-smi topo -m`: X, NV#, PIX, PXB, PHB, NODE, SYS;
/// MEM for two parts of one GPU, XG# for Infinity Fabric, XL# for Xe Link and NET for another computer. The same in
/// both directions. Cost: a search of all links.
[[nodiscard]] std::string link_class(const topology& machine, device_id from, device_id to);
/// Of all pairs, by machine.pair(). Cost: one search for each device.
[[nodiscard]] std::vector<std::string> link_classes(const topology& machine);

}  // namespace weft
