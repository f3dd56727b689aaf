// SPDX-License-Identifier: Apache-2.0
// What the kernel's driver amdgpu tells of a GPU in sysfs, and HIP of the link between two. AMD's management libraries
// read the same files, and their structures change from release to release.
#pragma once

#include "backends/gpu/driver/management.hpp"

#include <string>
#include <utility>

namespace weft::gpu::amd {

/// Thread: any. Source: the kernel's documentation of amdgpu, "GPU Power/Thermal Controls and Monitoring" and "RAS".
class amd_management final : public management {
 public:
  explicit amd_management(std::string system_root) : root_(std::move(system_root)) {}

  /// Infinity Fabric (XGMI), or what is no better than PCIe.
  [[nodiscard]] std::optional<joined_by> joined(const gpu_name& from, const gpu_name& to) const override;
  [[nodiscard]] std::string p2p_refusal(const std::string& from, const std::string& to) const override;
  [[nodiscard]] std::optional<std::uint64_t> free_memory(const std::string& gpu) const override;
  [[nodiscard]] result<device_health> health(const std::string& gpu) const override;
  [[nodiscard]] std::string driver_version() const override;

 private:
  [[nodiscard]] std::string folder_of(const std::string& gpu) const;
  std::string root_;  // /sys
};

}  // namespace weft::gpu::amd
