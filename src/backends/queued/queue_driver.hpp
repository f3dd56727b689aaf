// SPDX-License-Identifier: Apache-2.0
// What a driver with in-order queues and events does for the scheduler: the little in which OpenCL and CUDA differ.
#pragma once

#include "weft/core/error.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"

#include <chrono>
#include <optional>
#include <string>

namespace weft::queued {

/// A queue and an event as the driver names them. Null is none.
using native_queue = void*;
using native_event = void*;

/// What the driver is to call when an event has ended.
struct end_call {
  void (*function)(void*) = nullptr;
  void* data = nullptr;
};

enum class event_state : unsigned char { running, ended, failed };

/// When the work of an event ran.
struct event_times {
  std::optional<std::chrono::steady_clock::time_point> started;  // none: after what came before it in its queue
  std::chrono::steady_clock::time_point ended;
};

/// What gives a result or an error may throw std::bad_alloc; nothing else does.
/// A queue is named together with its device, an event with the device of the queue that made it. Outlives every event
/// that users hold, so it is shared; what it owns goes with it.
/// Thread: any, several at once; but calls that put work into one queue come one at a time.
class queue_driver {
 public:
  queue_driver() = default;
  queue_driver(const queue_driver&) = delete;
  queue_driver& operator=(const queue_driver&) = delete;
  virtual ~queue_driver() = default;

  [[nodiscard]] virtual result<native_queue> create_queue(device_id device, int priority) = 0;
  /// A queue over one that the program made and keeps. `again`: a queue of this function that nothing is in any more,
  /// to be this one, or null. Errors: wrong_device; unsupported.
  [[nodiscard]] virtual result<native_queue> adopt_queue(device_id, void* theirs, native_queue again) {
    static_cast<void>(theirs), static_cast<void>(again);
    return error{
        .code = errc::unsupported, .what = "this driver's queues cannot be shared with the program", .where = {}};
  }
  /// What the driver calls a queue, for the program to put work into. Errors: unsupported.
  [[nodiscard]] virtual result<void*> name_of(device_id, native_queue) {
    return error{
        .code = errc::unsupported, .what = "this driver's queues cannot be shared with the program", .where = {}};
  }
  /// Whether nothing is in a queue that the program puts work into as well. Not waiting; true when its device is lost.
  [[nodiscard]] virtual bool is_empty(device_id, native_queue) noexcept { return true; }
  /// What queues of the device wait for outside of the driver, now or later, will not come: they are to go on until
  /// wait_again(). Not waiting.
  virtual void give_up(device_id) noexcept {}
  virtual void wait_again(device_id) noexcept {}
  /// Whether a fault of one takes the other too: parts of one GPU share its context.
  [[nodiscard]] virtual bool fall_together(device_id a, device_id b) const noexcept { return a == b; }
  /// Nothing is in it any more.
  virtual void destroy_queue(device_id device, native_queue queue) noexcept = 0;

  /// An event that ends when all that the queue holds has ended, and `after` too if it is one; then what comes into the
  /// queue later begins after it. Not waiting.
  [[nodiscard]] virtual result<native_event> mark(device_id device, native_queue queue, native_event after) = 0;
  /// Whether queues of `by` can wait for events of `of`.
  [[nodiscard]] virtual bool can_wait(device_id by, device_id of) const noexcept = 0;
  /// What is in the queue begins without anybody waiting for it.
  virtual void flush(device_id device, native_queue queue) noexcept = 0;
  /// Blocks until the queue is empty; at once when the device is lost.
  virtual void finish(device_id device, native_queue queue) noexcept = 0;

  /// Not waiting. Never goes back to running: on a lost device what has not ended has failed.
  [[nodiscard]] virtual event_state state(device_id device, native_event event) noexcept = 0;
  /// Of an event that failed: "`doing`: what the driver says", with `otherwise` where that says nothing better. Its
  /// scope is the device's when that is lost by it; then the scheduler loses the device, and what
  /// falls together with it.
  [[nodiscard]] virtual error failure(device_id device, native_event event, std::string doing, errc otherwise) = 0;
  /// Blocks until it has ended or failed; state() says which.
  virtual void wait(device_id device, native_event event) noexcept = 0;
  /// Of an event that ended well or not; none where the driver does not know.
  [[nodiscard]] virtual std::optional<event_times> times(device_id device, native_event event) noexcept = 0;
  /// Nobody uses it any more. It may not have ended yet. On any thread, that of call_at_end() too.
  virtual void release(device_id device, native_event event) noexcept = 0;

  /// Has `call` called once the event has ended, well or not, also when its device is lost: exactly once, on any thread
  /// where nothing may be submitted, perhaps before this returns. It stays until then. False: never.
  [[nodiscard]] virtual bool call_at_end(device_id device, native_event event, const end_call& call) noexcept = 0;
  /// Whether state(), failure() and times() may be called where call_at_end() calls. If not, a thread of the scheduler
  /// looks, which is a wake-up later.
  [[nodiscard]] virtual bool may_look_when_called() const noexcept = 0;
};

}  // namespace weft::queued
