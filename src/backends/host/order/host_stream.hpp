// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/common/failures.hpp"
#include "backends/host/order/operation.hpp"
#include "weft/backend/backend.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <sys/types.h>
#include <thread>

namespace weft::host {

class scheduler;

/// One stream. Created by the scheduler; workers start with the first operation that needs one.
class host_stream {
 public:
  explicit host_stream(scheduler& owner) : owner_(owner) {}
  ~host_stream();
  host_stream(const host_stream&) = delete;
  host_stream& operator=(const host_stream&) = delete;

  [[nodiscard]] device_id device() const { return device_id{device_.load(std::memory_order_relaxed)}; }
  [[nodiscard]] int priority() const { return priority_.load(std::memory_order_relaxed); }
  [[nodiscard]] stream_handle handle() const { return stream_handle{handle_.load(std::memory_order_acquire)}; }
  /// Its number among the streams of its device, the smallest that is free when it is made: what a trace calls it.
  [[nodiscard]] std::uint64_t track() const { return track_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool idle() const noexcept {
    // finished first: it never passes what was submitted by then
    const std::uint64_t finished = finished_.load(std::memory_order_acquire);
    if (submitted_.load(std::memory_order_acquire) != finished) return false;
    // between its count and its event's end an operation runs endings, which are short
    while (ending_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
    return true;
  }

  /// Idle, and no failure is kept. Idle is looked at first: the failure is stored before the operation counts as ended.
  [[nodiscard]] bool settled() const noexcept { return idle() && failures_.is_clear(); }

  /// Memory of one operation, and its way back. Thread: any.
  [[nodiscard]] void* take_memory();
  void give_memory(void* memory) noexcept;

 private:
  friend class scheduler;
  friend class stream_table;
  friend class virtual_clock;

  static constexpr std::uint64_t inline_bit = std::uint64_t{1} << 63;
  /// The number of the operation submitted last.
  [[nodiscard]] std::uint64_t last_sequence() const noexcept {
    return submitted_.load(std::memory_order_relaxed) & ~inline_bit;
  }

  void push(operation* op);
  /// False when there is no thread to be had.
  bool start() noexcept;
  void end();
  void serve(const std::stop_token& shutdown);

  scheduler& owner_;
  std::atomic<int> device_{-1};
  std::atomic<int> priority_{0};
  std::atomic<std::uint64_t> handle_{0};  // 0 while it serves as no stream
  std::atomic<std::uint64_t> track_{0};
  std::uint64_t place_ = 0;  // in the table

  struct free_node {
    free_node* next;
  };
  static constexpr std::size_t line = 64;

  // Written by whoever submits.
  alignas(line) std::atomic<std::uint64_t> submitted_{0};  // operations so far; the top bit: the caller runs one itself
  std::atomic_flag take_lock_;
  free_node* free_ = nullptr;  // under take_lock_
  // Written by both sides.
  alignas(line) std::atomic<operation*> arrivals_{nullptr};  // newest first
  alignas(line) std::atomic<std::uint32_t> doorbell_{0};     // 1: the worker sleeps
  // Written by whoever runs.
  alignas(line) std::atomic<std::uint64_t> finished_{0};
  std::atomic<std::uint32_t> ending_{0};    // operations that are counted there and whose events do not say so yet
  std::chrono::nanoseconds last_ended_{0};  // of the operation before, while there is no pause; worker only
  std::atomic<bool> slot_reserved_{false};  // a place on the device is kept for what comes next
  std::atomic<free_node*> returned_{nullptr};
  alignas(line) std::atomic<bool> serving_{false};
  std::atomic<pid_t> worker_thread_{0};
  std::mutex worker_mutex_;
  std::jthread worker_;

  // under the virtual clock's mutex
  std::deque<operation*> queue_;
  bool busy_ = false;  // its first operation runs

  common::failure_ledger failures_;
};

}  // namespace weft::host
