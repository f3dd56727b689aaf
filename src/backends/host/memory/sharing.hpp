// SPDX-License-Identifier: Apache-2.0
// Memory handles of the host backend: what this process exports, and what it has open of others.
#pragma once

#include "backends/host/memory/memory_map.hpp"
#include "backends/host/memory/shared_allocation.hpp"

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace weft::host {

/// Thread: any.
class sharing {
 public:
  /// `identities` name the devices for every process that plays the same machine.
  sharing(const topology& machine, device_id first, memory_map& memory, std::vector<std::uint64_t> identities)
      : machine_(machine), first_(first), memory_(memory), identities_(std::move(identities)) {}

  [[nodiscard]] result<shared_bytes> give(const void* address, std::uint64_t size, handle_family family);
  [[nodiscard]] result<opened_memory_description> open(std::optional<device_id> by, const shared_bytes& handle,
                                                       std::chrono::nanoseconds timeout, handle_family family);
  [[nodiscard]] result<void> close(void* address);
  /// Joins the server's thread.
  void end() noexcept { server_.stop(); }

 private:
  /// What is open already, counted once more; empty if it is not. Under the mutex.
  [[nodiscard]] result<opened_memory_description> again(const detail::share_ticket& h, device_id by);
  [[nodiscard]] device_id owner_of(std::uint64_t identity, device_id otherwise) const;

  const topology& machine_;
  device_id first_;
  memory_map& memory_;
  std::vector<std::uint64_t> identities_;
  detail::share_server server_;
  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, device_id>, std::weak_ptr<allocation>> open_;  // by key and device
  std::map<std::uint64_t, std::weak_ptr<detail::process_watch>> exporters_;        // by door
};

}  // namespace weft::host
