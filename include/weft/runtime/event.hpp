// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/event_record.hpp"
#include "weft/core/internals.hpp"

#include <chrono>
#include <coroutine>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <stop_token>

namespace weft {

namespace detail {
class machine_state;
}

/// The one handle of ordered work: wait for it, ask it, make any stream of any device depend on it, or co_await it.
///
/// A default-made event was never recorded: it counts as complete, and only is_recorded() tells the difference.
/// Letting an event go loses neither the work nor its error: synchronize() reports it.
/// Thread: any.
class event {
 public:
  event() = default;
  event(const event&) = default;
  event(event&&) = default;
  // What was here before goes record first: the record may live in memory of the machine that the state keeps.
  event& operator=(event other) noexcept {
    state_.swap(other.state_);
    std::swap(record_, other.record_);
    return *this;
  }
  ~event() = default;

  [[nodiscard]] bool is_recorded() const { return state_ != nullptr; }
  /// True once the work has ended, well or not.
  [[nodiscard]] bool ready() const;

  /// Errors: the root cause of a failed operation, with the operation and its device named.
  void wait(std::source_location where = std::source_location::current()) const;
  /// cancelled when `stop` was requested first. Errors: as wait().
  wait_outcome wait(const std::stop_token& stop, std::source_location where = std::source_location::current()) const;
  /// timed_out when `timeout` on the machine's clock has passed first. Errors: as wait().
  wait_outcome wait_for(std::chrono::nanoseconds timeout,
                        std::source_location where = std::source_location::current()) const;
  /// The root cause once the work has failed. Never waits; does not count as reported.
  [[nodiscard]] std::optional<error> failure() const;

  /// Calls `f` once the work has ended, on the machine's callback thread; at once on this thread for an event that was
  /// never recorded, and after close(). `f` must not wait for events.
  void on_done(std::function<void()> f) const;

  // co_await event: resumes on the machine's callback thread; throws like wait().
  [[nodiscard]] bool await_ready() const { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) const {
    on_done([waiter] { waiter.resume(); });
  }
  void await_resume() const { wait(std::source_location{}); }

  [[nodiscard]] const event_ref& record() const { return record_; }

 private:
  friend struct detail::internals;
  event(std::shared_ptr<detail::machine_state> state, event_ref record)
      : state_(std::move(state)), record_(std::move(record)) {}
  [[nodiscard]] const std::shared_ptr<detail::machine_state>& state() const { return state_; }

  std::shared_ptr<detail::machine_state> state_;
  event_ref record_;
};

/// Time between the ends of two operations of one device, on the machine's clock.
/// Errors: invalid_argument when one was never recorded or carries no time; wrong_device across devices, whose clocks
/// do not compare; not_ready when one has not ended.
[[nodiscard]] std::chrono::nanoseconds elapsed(const event& from, const event& to,
                                               std::source_location where = std::source_location::current());

/// Waits for all, then throws the failure of the first in order that failed.
void wait_all(std::span<const event> events, std::source_location where = std::source_location::current());

}  // namespace weft
