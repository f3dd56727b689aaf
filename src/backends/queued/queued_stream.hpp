// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/common/failures.hpp"
#include "backends/queued/chain.hpp"
#include "backends/queued/command.hpp"
#include "weft/backend/backend.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace weft::queued {

class scheduler;

/// One stream: an in-order queue of the driver, and before it a line of commands that cannot be handed over yet. The
/// scheduler does everything; this is its state.
class queued_stream {
 public:
  queued_stream(scheduler& owner, device_id device, int priority, native_queue queue, bool adopted)
      : owner_(owner), device_(device), priority_(priority), queue_(queue), adopted_(adopted), shared_(adopted) {}
  queued_stream(const queued_stream&) = delete;
  queued_stream& operator=(const queued_stream&) = delete;

  [[nodiscard]] scheduler& owner() const noexcept { return owner_; }
  [[nodiscard]] device_id device() const noexcept { return device_; }
  [[nodiscard]] native_queue queue() const noexcept { return queue_; }
  [[nodiscard]] stream_handle handle() const noexcept { return stream_handle{handle_.load(std::memory_order_acquire)}; }
  [[nodiscard]] std::uint64_t track() const noexcept { return track_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool counted_idle() const noexcept {
    // finished first: it never passes what was submitted by then
    const std::uint64_t finished = finished_.load(std::memory_order_acquire);
    if (submitted_.load(std::memory_order_acquire) != finished) return false;
    // between its count and its event's end a command runs endings, which are short
    while (ending_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
    return true;
  }

 private:
  friend class scheduler;

  scheduler& owner_;
  const device_id device_;
  const int priority_;
  const native_queue queue_;
  const bool adopted_;                    // the program made the queue
  std::atomic<bool> shared_;              // the program puts work into it too
  std::atomic<std::uint64_t> handle_{0};  // 0 while it serves as no stream
  std::uint64_t place_ = 0;               // in the table
  std::uint64_t generation_ = 0;
  std::atomic<std::uint64_t> track_{0};

  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<std::uint32_t> ending_{0};  // commands that are counted there and whose events do not say so yet

  std::mutex mutex_;                                 // what follows
  chain<command, &command::next_waiting_> waiting_;  // not handed over yet; the first says why
  chain<command, &command::next_flying_> flying_;    // in the driver's queue
  command* on_host_ = nullptr;                       // what the worker runs
  chain<command, &command::next_to_arm_> to_arm_;    // in the driver's queue, watched, and the driver is not told yet;
                                                     // one reference each
  event_ref last_;                                   // what was submitted last

  // whoever holds the flag takes the stream forward; who finds it held leaves a note
  std::atomic_flag held_;
  std::atomic<bool> again_{false};
  std::chrono::nanoseconds last_ended_{0};  // under held_

  common::failure_ledger failures_;

  queued_stream* next_posted_ = nullptr;  // of those that the scheduler's thread takes forward; with its mutex
  bool is_posted_ = false;

  std::condition_variable_any work_;  // with mutex_
  std::jthread worker_;               // runs host functions; started with the first
};

}  // namespace weft::queued
