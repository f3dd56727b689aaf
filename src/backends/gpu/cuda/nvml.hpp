// SPDX-License-Identifier: Apache-2.0
// What the management library tells beside the driver: link kinds, free memory without a context, health. It need not
// be there; its header is not part of the toolkit, so what is used of it is declared here.
#pragma once

#include "backends/gpu/cuda/nvml_functions.hpp"
#include "backends/gpu/driver/management.hpp"
#include "weft/backend/backend.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::gpu {

/// Thread: any.
class nvml final : public management {
 public:
  explicit nvml(nvml_functions table) : call_(table) {}
  ~nvml() override;

  /// By NVLink, of the library's generation.
  [[nodiscard]] std::optional<joined_by> joined(const gpu_name& from, const gpu_name& to) const override;
  [[nodiscard]] std::string p2p_refusal(const std::string& from, const std::string& to) const override;
  [[nodiscard]] std::optional<std::uint64_t> free_memory(const std::string& gpu) const override;
  /// Of a MIG instance: that of its GPU, whose address it has.
  [[nodiscard]] result<device_health> health(const std::string& gpu) const override;
  [[nodiscard]] std::string driver_version() const override;

 private:
  /// One that is up.
  struct link {
    int generation = 0;
    bool to_switch = false;
    std::optional<std::uint64_t> to;  // the place of what it leads to
  };
  struct link_ends {
    int to_other = 0;   // links that lead to the other GPU
    int to_switch = 0;  // … and to a switch, behind which every other GPU of it is
    int generation = 0;
  };
  [[nodiscard]] std::vector<link> read_links(nvmlDevice device) const;
  [[nodiscard]] link_ends ends_of(const std::string& gpu, const std::string& other) const;
  [[nodiscard]] nvmlDevice device_at(const std::string& pci_address) const;
  nvml_functions call_;
  mutable std::mutex links_mutex_;
  mutable std::map<std::string, std::vector<link>> links_;  // by address; read once: each takes dozens of calls
};

/// Errors: unsupported with the reason and what to do. It stays open as long as the process.
[[nodiscard]] management_library load_nvml(const std::string& library);

/// What holds clocks down, in words: one for each bit, those that are not known as numbers.
[[nodiscard]] std::vector<std::string> words_of_clock_reasons(std::uint64_t reasons);

}  // namespace weft::gpu
