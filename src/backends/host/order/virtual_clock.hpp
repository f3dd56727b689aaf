// SPDX-License-Identifier: Apache-2.0
// Simulated time: a discrete-event loop run by whoever waits. An operation gets what it needs (wires, the engine of its
// device) when it is ready, not when it was submitted, and takes the time that the topology and the model say.
#pragma once

#include "backends/host/engine/fault_plan.hpp"
#include "backends/host/order/host_stream.hpp"
#include "backends/host/order/stream_table.hpp"
#include "weft/backend/registry.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <sys/types.h>
#include <vector>

namespace weft::host {

class scheduler;

struct virtual_clock_options {
  int max_in_flight = 0;
  simulation model;
  std::shared_ptr<clock_hold> hold;  // may be null
};

/// What an operation does, how it fails and what follows from that is the scheduler's; this decides when.
/// Thread: any.
class virtual_clock {
 public:
  virtual_clock(const topology& machine, device_id first, scheduler& owner, stream_table& streams, fault_plan& faults,
                virtual_clock_options options);
  virtual_clock(const virtual_clock&) = delete;
  virtual_clock& operator=(const virtual_clock&) = delete;

  [[nodiscard]] std::chrono::nanoseconds now() const noexcept {
    return std::chrono::nanoseconds{now_.load(std::memory_order_acquire)};
  }

  /// Queues an operation in its stream; false, and nothing is done, when the scheduler is closed.
  [[nodiscard]] bool admit(operation& op);
  /// Ends an event that is no operation, at this instant.
  void complete(event_record& event, std::shared_ptr<const error> cause);
  /// Lets one thing happen.
  void poll();
  /// Lets time pass until `event` has ended, `deadline` or a stop request has come.
  wait_outcome drive(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  /// Ends what is queued, in order; the scheduler is closed and refuses it.
  void end();
  [[nodiscard]] bool driven_by(pid_t thread) const noexcept {
    return driver_.load(std::memory_order_relaxed) == thread;
  }

 private:
  struct running {
    std::chrono::nanoseconds end;
    std::uint64_t rank;  // breaks ties
    std::uint64_t order;
    operation* op;
    std::shared_ptr<const error> cause;  // why it will not run, decided at its start
    bool operator<(const running& other) const {
      if (end != other.end) return end < other.end;
      return rank != other.rank ? rank < other.rank : order < other.order;
    }
  };

  // all under mutex_
  void make_room();
  void grant();
  [[nodiscard]] bool is_ready(operation& op);
  [[nodiscard]] bool has_resources(const operation& op) const;
  void occupy(const operation& op, bool busy);
  void start(operation& op);
  /// When the next thing happens; nothing when nothing will. Right after grant().
  [[nodiscard]] std::optional<std::chrono::nanoseconds> next() const;
  void step(std::unique_lock<std::mutex>& lock);
  void advance(std::chrono::nanoseconds to);
  /// Waits, unlocked, while somebody who decides what comes next holds the clock. True when it had to.
  [[nodiscard]] bool wait_for_hold(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::chrono::nanoseconds duration_of(const operation& op);
  [[nodiscard]] std::uint64_t rank_of(const operation& op) const;
  [[nodiscard]] std::chrono::nanoseconds delay_of(const operation& op) const;
  [[nodiscard]] std::size_t index(device_id id) const { return static_cast<std::size_t>(id.value() - first_.value()); }
  [[nodiscard]] std::size_t wire(int link) const {
    return static_cast<std::size_t>(machine_.links[static_cast<std::size_t>(link)].wire);
  }

  const topology& machine_;
  device_id first_;
  scheduler& owner_;
  stream_table& streams_;
  fault_plan& faults_;
  const virtual_clock_options options_;

  std::mutex mutex_;
  std::condition_variable progress_;
  std::atomic<std::int64_t> now_{0};
  bool driving_ = false;
  std::atomic<pid_t> driver_{0};                        // the thread that runs an operation
  std::size_t with_work_ = 0;                           // streams that have operations
  std::vector<operation*> ready_;                       // of one grant()
  std::vector<running> running_;                        // the first to end last
  std::optional<std::chrono::nanoseconds> next_ready_;  // the first of those that are delayed
  std::vector<bool> wire_busy_;
  std::vector<int> device_busy_;
  std::vector<bool> engine_busy_;             // of each device: it computes one kernel at a time
  std::vector<std::uint64_t> kernels_begun_;  // of each device
  std::uint64_t admitted_ = 0;
};

}  // namespace weft::host
