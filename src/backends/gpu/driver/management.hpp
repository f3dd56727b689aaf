// SPDX-License-Identifier: Apache-2.0
// What is told beside the driver of the GPUs of a computer: how they are joined, free memory without a context, health.
#pragma once

#include "backends/gpu/driver/driver_types.hpp"
#include "weft/backend/backend.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace weft::gpu {

/// A GPU as the driver and as the bus name it.
struct gpu_name {
  CUdevice id = 0;
  const std::string& pci_address;  // as the driver writes it; empty: none
};

/// How two GPUs are joined.
struct joined_by {
  link_kind kind = link_kind::unknown;  // unknown: by nothing that is better than PCIe
  int lanes = 0;                        // links that are up and lead to the other; 0: not told
  int generation = 0;                   // of the links; 0: not told
};

/// Thread: any.
class management {
 public:
  management() = default;
  management(const management&) = delete;
  management& operator=(const management&) = delete;
  virtual ~management() = default;

  /// Empty where it does not know.
  [[nodiscard]] virtual std::optional<joined_by> joined(const gpu_name& from, const gpu_name& to) const = 0;
  /// Why `from` cannot read the memory of `to`; empty where it can, or where nothing says so.
  [[nodiscard]] virtual std::string p2p_refusal(const std::string& from, const std::string& to) const = 0;
  /// Without a context.
  [[nodiscard]] virtual std::optional<std::uint64_t> free_memory(const std::string& pci_address) const = 0;
  /// Errors: unsupported for a GPU that it does not know.
  [[nodiscard]] virtual result<device_health> health(const std::string& pci_address) const = 0;
  /// "550.54.15"; empty when it does not say.
  [[nodiscard]] virtual std::string driver_version() const = 0;
};

/// What tells, or why there is none.
using management_library = result<std::shared_ptr<const management>>;

}  // namespace weft::gpu
