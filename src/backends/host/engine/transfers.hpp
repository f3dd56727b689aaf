// SPDX-License-Identifier: Apache-2.0
// Copies of the virtual devices: what they need to be legal, which links they cross, what goes wrong on the way.
#pragma once

#include "backend/traffic_account.hpp"
#include "backends/host/engine/copy_engine.hpp"
#include "backends/host/engine/fault_plan.hpp"
#include "backends/host/memory/memory_map.hpp"
#include "backends/host/order/scheduler.hpp"
#include "weft/backend/backend.hpp"

#include <memory>
#include <span>
#include <vector>

namespace weft::host {

/// A copy that has been checked as far as it can be before it runs. Holds its memory.
struct prepared_copy {
  copy_request request;
  device_id by;  // whose stream runs it
  pin dst, src;  // empty for plain host memory
  const link_path* path = nullptr;
};

/// Thread: any.
class transfers {
 public:
  transfers(const topology& machine, device_id first, memory_map& memory, fault_plan& faults);

  /// Errors: invalid_argument (overlap, a block to which no device at work has the right), not_found,
  /// out_of_range.
  [[nodiscard]] result<prepared_copy> prepare(const copy_request& request, device_id by);
  /// Moves the bytes, if the devices may still; null or the cause.
  [[nodiscard]] std::shared_ptr<const error> move(const prepared_copy& copy);

  /// Moves the bytes into a slot and out of it, a cache's worth at a time.
  [[nodiscard]] std::shared_ptr<const error> move_through(prepared_copy& in, prepared_copy& out);

  /// Leaves in `into` what a copy of these bytes from one device would leave in the memory of the other. Not counted.
  void try_copy(device_id from, device_id to, std::byte* into, std::span<const std::byte> bytes);

  [[nodiscard]] cost cost_of(const prepared_copy& copy) const noexcept;
  /// What a trace says of bytes that go from where `src` lies to where `dst` does.
  [[nodiscard]] static operation_note note_of(const pin& src, const pin& dst, std::uint64_t count) noexcept;
  /// Bytes per second of the memory itself; 0 when unknown.
  [[nodiscard]] double memory_rate(const allocation& memory) const noexcept;

  /// Counts what a kernel of one device moved over the links to another.
  void account(device_id from, device_id to, std::uint64_t count) noexcept {
    traffic_.add(*traffic_.between(from, to), count);
  }
  [[nodiscard]] detail::traffic_account& traffic() noexcept { return traffic_; }

 private:
  [[nodiscard]] std::size_t index(device_id id) const { return static_cast<std::size_t>(id.value() - first_.value()); }
  [[nodiscard]] const link_path* path_of(const allocation* src, const allocation* dst) const;
  std::shared_ptr<const error> carry(std::byte* to, const std::byte* from, const copy_request& request,
                                     std::size_t whole, bool corrupts);

  const topology& machine_;
  device_id first_;
  memory_map& memory_;
  fault_plan& faults_;
  copy_engine engine_;
  detail::traffic_account traffic_;
  std::vector<link_path> through_host_;  // [src * N + dst]: pinned memory near src → dst
};

}  // namespace weft::host
