// SPDX-License-Identifier: Apache-2.0
// Streams, events and waits. Work in one stream runs in the order of submission; a failed operation fails what follows
// it in its stream and what waits for it elsewhere, with the first cause, until a wait has reported that cause.
#pragma once

#include "weft/backend/facets/handles_facet.hpp"
#include "weft/core/word_comparison.hpp"

#include <chrono>
#include <memory>
#include <stop_token>
#include <vector>

namespace weft {

/// A word of memory that a stream writes, or waits for.
struct word_request {
  void* address = nullptr;
  std::uint32_t size = 4;  // 4 or 8; the address is a multiple of it
  std::uint64_t value = 0;
  word_comparison comparison = word_comparison::greater_equal;  // of a wait
};

/// A thread is at a device until this ends, on the same thread.
class thread_place {
 public:
  thread_place() = default;
  thread_place(const thread_place&) = delete;
  thread_place& operator=(const thread_place&) = delete;
  virtual ~thread_place() = default;
};

class order_facet : public handles_facet {
 protected:
  using handles_facet::handles_facet;
  ~order_facet() = default;

  /// Makes what calls for the device need current for the calling thread. Null where they need nothing.
  [[nodiscard]] virtual result<std::unique_ptr<thread_place>> do_enter(device_id) {
    return std::unique_ptr<thread_place>{};
  }

  /// Failures in a stream that is not `told` surface at its events only: the library's own, behind an operation of the
  /// user.
  [[nodiscard]] virtual result<stream_handle> do_create_stream(device_id, int /*priority*/, bool /*told*/) {
    return not_offered("streams");
  }
  /// A stream over a queue of the driver that the program made and keeps until do_destroy_stream(): what both put into
  /// it runs in the order in which it came there, and events and waits of the stream cover both. Errors: wrong_device.
  [[nodiscard]] virtual result<stream_handle> do_adopt_stream(device_id, void* /*driver_queue*/) {
    return not_offered("streams of the program's");
  }
  /// The driver's queue of a stream, for other libraries to put work into; it stays until do_destroy_stream(), or
  /// do_reset() of its device. What is held back, behind a host function or an event of another backend, is not in it
  /// yet. Errors: not_found.
  [[nodiscard]] virtual result<void*> do_driver_queue(stream_handle) { return not_offered("queues of a driver"); }
  virtual void do_destroy_stream(stream_handle) {}
  /// The device's stream for work that names none.
  [[nodiscard]] virtual result<stream_handle> do_default_stream(device_id) { return not_offered("streams"); }
  [[nodiscard]] virtual result<event_ref> do_record(stream_handle) { return not_offered("events"); }
  /// Of an event that may be null, or have ended.
  [[nodiscard]] virtual result<void> do_wait_event(stream_handle, const event_ref&) { return not_offered("events"); }
  /// Writes the word by one store, in order: who sees the value, on any device or the host, sees what the stream did
  /// before. The request is valid in itself. Errors: not_found; out_of_range. Without a right to the memory the event
  /// fails as a kernel with such an argument does.
  [[nodiscard]] virtual result<event_ref> do_write_value(stream_handle, const word_request&) {
    return not_offered("words of memory that streams write");
  }
  /// Later operations of the stream start once the word compares, whoever writes it, and see what its writer had done.
  /// Where the value does not come this ends with close(), and with the loss or the reset of the device, as work that
  /// has not run does; a driver that cannot take a wait back then finds a value that compares in the word. Errors:
  /// those of do_write_value().
  [[nodiscard]] virtual result<event_ref> do_wait_value(stream_handle, const word_request&) {
    return not_offered("words of memory that streams wait for");
  }
  /// An event that the host completes with do_open_gate(): what waits for it in a stream waits for the host.
  [[nodiscard]] virtual result<event_ref> do_create_gate() { return not_offered("gates"); }
  // NOLINTNEXTLINE(performance-unnecessary-value-param): an override keeps it
  virtual void do_open_gate(const event_ref&, std::shared_ptr<const error> /*cause*/) {}
  [[nodiscard]] virtual wait_outcome do_wait(event_record& event, wait_deadline, const std::stop_token& stop) noexcept {
    return event.wait(std::chrono::steady_clock::time_point::max(), stop, waiting::adaptive);
  }
  [[nodiscard]] virtual bool do_ready(event_record& event) { return event.finished(); }
  /// True when all work of the stream has ended. Never waits.
  [[nodiscard]] virtual bool do_idle(stream_handle) { return true; }
  /// Idle, and without a failure that would skip what comes next: nothing to be ordered after. Never waits.
  [[nodiscard]] virtual bool do_settled(stream_handle stream) { return do_idle(stream); }
  /// Waits for all work of the stream; gives the first cause that no wait has reported, and forgets it.
  [[nodiscard]] virtual result<wait_outcome> do_synchronize(stream_handle, wait_deadline, const std::stop_token&) {
    return not_offered("streams");
  }
  /// Waits for what was submitted to the device, and reports no failure. False when the deadline came first.
  [[nodiscard]] virtual bool do_drain(device_id, wait_deadline) { return true; }
  [[nodiscard]] virtual std::vector<stream_handle> do_streams_of(device_id) { return {}; }
  /// Whether the stream was made with `told`.
  [[nodiscard]] virtual bool do_tells(stream_handle) { return true; }
  /// The clock of deadlines, events and records; on the wall clock it counts from backend_options::epoch. Called at any
  /// time, also while the backend closes.
  [[nodiscard]] virtual std::chrono::nanoseconds do_now() noexcept {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
};

}  // namespace weft
