// SPDX-License-Identifier: Apache-2.0
// The faults of a topology, counted as the machine runs.
#pragma once

#include "weft/core/error.hpp"
#include "weft/core/topology.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace weft::host {

/// Thread: any.
class fault_plan {
 public:
  /// `first`: the device id of the topology's first device. What is asked comes with ids of the machine.
  explicit fault_plan(const topology& machine, device_id first = device_id{0});

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

  /// A backend function is about to start, for these devices if it is for any.
  [[nodiscard]] std::optional<error> on_call(std::string_view function,
                                             std::span<const device_id> devices = {}) noexcept;

  struct copy_verdict {
    bool fails = false;
    bool corrupts = false;
    int link = -1;  // the link that failed, or -1
  };
  /// A copy is about to cross these links; ids are empty for memory that no device owns. What goes through host memory
  /// of a device (a step of a staged copy) may fail as a copy of the pair, but only the pair's own link changes data.
  [[nodiscard]] copy_verdict on_copy(std::span<const int> links, device_id from, device_id to,
                                     bool through_host = false) noexcept;

  /// Whether every copy over these links is corrupted, the first as well as the last; counts nothing.
  [[nodiscard]] bool always_corrupts(std::span<const int> links, device_id from, device_id to) const noexcept;

  struct operation_verdict {
    std::chrono::nanoseconds stall{0};
    bool lost = false;
  };
  /// An operation is about to start on a device.
  [[nodiscard]] operation_verdict on_operation(device_id device) noexcept;

  /// What `from` writes into `to` never arrives.
  [[nodiscard]] bool drops(device_id from, device_id to) const noexcept;

 private:
  struct entry {
    topology_fault fault;
    std::atomic<std::uint64_t> seen{0};
    explicit entry(topology_fault f) : fault(std::move(f)) {}
    [[nodiscard]] bool is_on_way(std::span<const int> links, device_id from, device_id to) const noexcept;
    [[nodiscard]] bool strikes() noexcept {
      const auto now = seen.fetch_add(1, std::memory_order_relaxed) + 1;
      return fault.nth == 0 || fault.nth == now;
    }
  };
  std::vector<std::unique_ptr<entry>> entries_;
};

}  // namespace weft::host
