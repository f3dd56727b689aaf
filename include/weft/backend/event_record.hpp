// SPDX-License-Identifier: Apache-2.0
// The state behind an event, shared by the host that waits and the backend that completes. Backends whose driver has
// events of its own keep them in `native` and complete the record when they notice; the host backend derives its
// operations from it.
#pragma once

#include "weft/core/error.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/waiting.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <utility>
#include <vector>

namespace weft {

class backend;

/// Counted state of one event.
/// Thread: any.
class event_record {
 public:
  event_record() = default;
  event_record(const event_record&) = delete;
  event_record& operator=(const event_record&) = delete;
  virtual ~event_record() = default;  // counted ownership of derived operations; not an interface

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept {
    // pairs with the release decrement of the other owners: the last one sees all their writes
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  /// True once the work has ended, well or not.
  [[nodiscard]] bool finished() const noexcept {
    return (word_.load(std::memory_order_acquire) & finished_bit) != 0;  // pairs with release in complete
  }
  /// The root cause, or null. Only valid once finished.
  [[nodiscard]] const std::shared_ptr<const error>& cause() const noexcept { return cause_; }

  /// Ends the record: stores the cause, wakes every waiter, runs the callbacks on this thread. Once only. `ending`, if
  /// any, is lowered by one as soon as the record is finished, before anybody is woken or called.
  void complete(std::shared_ptr<const error> cause, std::atomic<std::uint32_t>* ending = nullptr) noexcept;

  /// Blocks the calling thread until finished, `until` on the steady clock (max: no limit), or stop.
  /// Thread: any. Cost: no system call when it ends while spinning.
  wait_outcome wait(std::chrono::steady_clock::time_point until, const std::stop_token& stop, waiting policy) noexcept;

  /// Calls `f` once finished, on the completing thread; at once when finished already. `f` must be short.
  /// Cost: the driver is asked to tell of the end; where it ends by waiting anyway, on_ending() costs less.
  void on_complete(std::function<void()> f);
  /// Calls `f` with the cause, or null, before anybody can see the work finished: for what a waiter must find done. It
  /// does not hasten that: some backends see an end only when somebody waits or asks, unless tell() or on_complete()
  /// asked for more.
  void on_ending(std::function<void(const error*)> f);
  /// The end is to be seen when it comes, though nobody waits: for endings that others hang on.
  void tell() noexcept;

  /// When the work ran, on the backend's clock; valid once finished. Cost: some drivers are asked here, and know until
  /// the device is reset or the machine is closed; after that, when the end was seen.
  struct span {
    std::chrono::nanoseconds started{0}, ended{0};
  };
  [[nodiscard]] virtual span times() const noexcept { return {started, ended}; }

  backend* owner = nullptr;
  device_id device;
  std::uint64_t stream = 0;
  std::chrono::nanoseconds started{0};  // for times(); set before it is finished
  std::chrono::nanoseconds ended{0};
  bool timed = true;
  std::uint64_t native = 0;
  std::shared_ptr<const void> order_mark;  // check modes: what the work comes after; set before anybody has the event

 protected:
  /// The end is to be seen without anybody waiting. Called once, by the first tell() or on_complete() of a record that
  /// has not finished; it may finish meanwhile. Without locks, on the thread of who asks.
  virtual void watched() noexcept {}

 private:
  void run_endings() noexcept;

  static constexpr std::uint32_t finished_bit = 1;
  static constexpr std::uint32_t parked_bit = 2;
  static constexpr std::uint32_t callbacks_bit = 4;
  static constexpr std::uint32_t endings_bit = 8;
  static constexpr std::uint32_t nudge = 16;

  std::atomic<std::uint32_t> references_{1};
  std::atomic<std::uint32_t> word_{0};
  std::shared_ptr<const error> cause_;
  std::mutex callbacks_mutex_;
  std::vector<std::function<void()>> callbacks_;
  std::vector<std::function<void(const error*)>> endings_;
};

/// Owning pointer to an event_record. Null stands for work that had ended when the call returned.
class event_ref {
 public:
  event_ref() = default;
  /// Takes over one reference.
  explicit event_ref(event_record* record) noexcept : record_(record) {}
  event_ref(const event_ref& other) noexcept : record_(other.record_) {
    if (record_ != nullptr) record_->retain();
  }
  event_ref(event_ref&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  event_ref& operator=(event_ref other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~event_ref() {
    if (record_ != nullptr) record_->drop();
  }

  [[nodiscard]] event_record* get() const noexcept { return record_; }
  event_record* operator->() const noexcept { return record_; }
  event_record& operator*() const noexcept { return *record_; }
  explicit operator bool() const noexcept { return record_ != nullptr; }

 private:
  event_record* record_ = nullptr;
};

}  // namespace weft
