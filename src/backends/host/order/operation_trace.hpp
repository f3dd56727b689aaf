// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/order/host_stream.hpp"
#include "backends/host/order/operation.hpp"
#include "weft/core/trace.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

namespace weft::host {

/// Turns operations that end into records, while somebody listens.
/// Thread: any. Cost: one load and a branch while nobody does.
class operation_trace {
 public:
  void to(std::shared_ptr<trace_sink> sink) noexcept;
  [[nodiscard]] bool on() const noexcept { return on_.load(std::memory_order_acquire); }  // pairs with release in to

  struct interval {
    std::chrono::nanoseconds submitted, started, ended;
  };
  /// What `op` did, and before that how long its stream stood still for it. While its body still lives.
  void add(const operation& op, bool failed) noexcept;
  /// The same of what ran without an operation, on the thread of its caller.
  void add(const host_stream& stream, const operation_note& note, const interval& when, bool failed) noexcept;

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::shared_ptr<trace_sink> sink_;
};

}  // namespace weft::host
