// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/capability.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// `mixed` is several of the others as one; no device is of it.
enum class backend_kind : std::uint8_t { host, cuda, hip, opencl, null, mixed };
[[nodiscard]] std::string_view to_string(backend_kind kind);

/// A vendor's own performance rank as a rank of which 0 is best and more is slower: CUDA counts so, HIP gives the
/// number of a link type. Empty for a number that says nothing.
[[nodiscard]] std::optional<int> performance_rank_of(backend_kind vendor, int native_rank);

struct device_description {
  std::string name;
  backend_kind kind = backend_kind::host;
  std::string uuid;
  std::string pci_address;  // empty when it has none
  std::string driver;       // the computer's, with its version; empty for what a program brought itself
  std::optional<int> numa_node;
  bytes memory;
  int compute_units = 0;
  bool own_compute_units = true;  // false: parts of one device run on the same, and the number is a share
  capability capabilities = capability::none;
  bool simulated = false;
  /// Kernels are compiled for images of rings (WEFT_RING_BY_COMMANDS), and take none that lies in memory.
  bool rings_by_commands = false;
  std::string part_of;  // the uuid of the whole device where this is one of several parts of it; else empty
};

struct memory_use {
  bytes total;
  bytes free;
};

/// How a device is at this moment. What no sensor tells is empty.
struct device_health {
  std::optional<double> celsius;
  std::optional<double> watts;
  std::optional<double> busy;  // share of the last moments in which a kernel ran, 0 to 1
  /// Why its clocks are lower than they could be; no reason: they are not.
  std::optional<std::vector<std::string>> held_down_by;
  std::optional<std::uint64_t> memory_errors;  // that could not be corrected, since the driver was loaded
  std::optional<std::uint64_t> link_errors;    // to peers: repeats, recoveries, wrong checksums
  std::optional<int> pcie_generation;          // of the bus as it runs now, which rests at a lower one
  std::optional<int> pcie_lanes;
};

}  // namespace weft
