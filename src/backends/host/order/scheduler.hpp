// SPDX-License-Identifier: Apache-2.0
// Streams and events of the virtual devices. One scheduler with two drivers: on the wall clock each stream has a worker
// thread; on the virtual clock whoever waits runs the loop of virtual_clock. What an operation does, how it fails, what
// a failure skips and when it counts as reported is the same code for both.
#pragma once

#include "backend/address.hpp"
#include "backends/host/engine/fault_plan.hpp"
#include "backends/host/order/host_stream.hpp"
#include "backends/host/order/operation.hpp"
#include "backends/host/order/operation_trace.hpp"
#include "backends/host/order/stream_table.hpp"
#include "backends/host/order/virtual_clock.hpp"
#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace weft::host {

struct scheduler_options {
  clock_kind clock = clock_kind::wall;
  waiting wait_policy = waiting::adaptive;
  int max_in_flight = 0;
  simulation model{};
  std::shared_ptr<clock_hold> hold{};
  std::optional<std::chrono::steady_clock::time_point> epoch{};  // of the wall clock; empty: now
};

/// Thread: any.
class scheduler {
 public:
  scheduler(const topology& machine, device_id first, backend* face, const scheduler_options& options,
            fault_plan& faults);
  ~scheduler();

  /// Null when there are too many streams.
  [[nodiscard]] host_stream* create(device_id device, int priority, bool told);
  void destroy(stream_handle handle);
  [[nodiscard]] host_stream* find(stream_handle handle) const noexcept { return streams_.find(handle); }
  [[nodiscard]] std::vector<stream_handle> streams_of(device_id device);
  /// Without memory, in the order in which they were made.
  template <class F>
  void for_each_stream(device_id device, F&& f) const {
    streams_.for_each([&](host_stream& s) {
      if (s.device() == device) f(s);
    });
  }

  /// Appends an operation to a stream. Null when the machine is closed.
  template <class F>
  [[nodiscard]] event_ref submit(host_stream& stream, F body, const operation_note& note = {}, const cost& price = {},
                                 std::stop_token stop = {}, event_ref dependency = {},
                                 std::function<bool()> until = {}) {
    operation* op = made(stream, std::move(body), note, price, std::move(stop));
    op->dependency = std::move(dependency);
    op->until = std::move(until);
    return admit(stream, op);
  }
  /// As submit(). Of an idle stream the calling thread runs it, if it is brief: it waits for nothing, and takes no
  /// longer than to wake a thread.
  template <class F>
  [[nodiscard]] event_ref submit_or_run(host_stream& stream, bool is_brief, F body, const operation_note& note = {},
                                        const cost& price = {}, std::stop_token stop = {}) {
    operation* op = made(stream, std::move(body), note, price, std::move(stop));
    const std::uint64_t turn = is_brief ? take_turn(stream) : 0;
    return turn != 0 ? run_here(stream, op, turn) : admit(stream, op);
  }
  /// Runs the body on the calling thread if the stream is idle, without an event.
  /// Returns false when it was not run. Only on the wall clock.
  template <class F>
  [[nodiscard]] bool try_inline(host_stream& stream, F&& body, const operation_note& note,
                                std::shared_ptr<const error>& failure);

  [[nodiscard]] event_ref create_gate() { return failures_.create_gate(); }
  void open_gate(event_record& gate, std::shared_ptr<const error> cause);

  [[nodiscard]] wait_outcome wait(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  [[nodiscard]] bool ready(event_record& event);
  [[nodiscard]] bool tells(host_stream& stream) { return stream.failures_.reports_errors(); }
  [[nodiscard]] result<wait_outcome> synchronize(host_stream& stream, wait_deadline deadline,
                                                 const std::stop_token& stop);

  /// Waits for the work of a stream without reporting its failures; false when `deadline` came first.
  [[nodiscard]] bool drain(host_stream& stream, wait_deadline deadline);

  [[nodiscard]] std::chrono::nanoseconds now() const;
  [[nodiscard]] bool on_wall_clock() const noexcept {
    return options_.clock == clock_kind::wall && options_.max_in_flight == 0;
  }
  [[nodiscard]] bool closed() const noexcept { return failures_.closed(); }

  /// Records of what ends go to `sink` from now on; null: nowhere.
  void trace_to(std::shared_ptr<trace_sink> sink) noexcept { trace_.to(std::move(sink)); }

  void lose(device_id device, const std::shared_ptr<const error>& cause);
  /// What a call on a lost device is told, or null.
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) const { return failures_.lost(device); }
  [[nodiscard]] std::shared_ptr<const error> cause_of_loss(device_id device) const {
    return failures_.cause_of_loss(device);
  }
  void restore(device_id device);

  /// True on a thread that is running an operation.
  [[nodiscard]] bool on_worker() const noexcept;

  /// Ends: what is pending is cancelled, workers are joined.
  void close();

 private:
  friend class host_stream;
  friend class virtual_clock;

  template <class F>
  [[nodiscard]] operation* made(host_stream& stream, F body, const operation_note& note, const cost& price,
                                std::stop_token stop) {
    auto* op = ::new (stream.take_memory()) operation;
    op->home = &stream;
    op->body.set(std::move(body));
    op->note = note;
    op->price = price;
    op->stop = std::move(stop);
    return op;
  }
  [[nodiscard]] event_ref admit(host_stream& stream, operation* op);
  /// The number in its stream of what the calling thread may run now, until it gives the turn back: nothing of the
  /// stream is unfinished, and its worker waits. 0: it may not. Only on the wall clock.
  [[nodiscard]] std::uint64_t take_turn(host_stream& stream) noexcept;
  static void give_turn(host_stream& stream) noexcept {
    stream.submitted_.fetch_and(~host_stream::inline_bit, std::memory_order_release);
  }
  [[nodiscard]] event_ref run_here(host_stream& stream, operation* op, std::uint64_t turn);
  void belong(host_stream& stream, operation& op) const noexcept;

  struct device_state {
    std::stop_source end;  // requested at its loss and at the end of the machine; under device_mutex_
    // operations at a time, highest priority first
    std::mutex mutex;
    std::condition_variable freed;
    int in_flight = 0;
    std::map<int, int> waiting;  // by priority; those of all streams are there, so that nothing is made later

    [[nodiscard]] int first_priority() const {
      return std::find_if(waiting.rbegin(), waiting.rend(), [](const auto& at) { return at.second != 0; })->first;
    }
  };

  [[nodiscard]] device_state& state_of(device_id id) {
    return *devices_[static_cast<std::size_t>(id.value() - first_.value())];
  }

  /// Why an operation must not run, or null.
  [[nodiscard]] std::shared_ptr<const error> refusal(operation& op);
  [[nodiscard]] static std::shared_ptr<const error> run_body(operation& op) noexcept;
  void execute(operation& op, operation* next);  // wall clock, on the worker
  /// Holds the worker until the operation's dependency has ended and what it waits for holds.
  void stand_still(operation& op, bool traced);
  /// How to wait now: asleep where more streams have work than there are cores.
  [[nodiscard]] waiting policy_now() const noexcept;
  /// Makes an operation a candidate for a place on its device; before it is its turn, so that priorities count.
  void queue_for_slot(operation& op);
  void finish(operation& op, std::shared_ptr<const error> cause);
  [[nodiscard]] wait_outcome await(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  [[nodiscard]] std::shared_ptr<const error> lose_by_fault(device_id device);
  void stall(std::chrono::nanoseconds duration);
  /// Requested once no work of a device will start any more.
  [[nodiscard]] std::stop_token end_of(device_id device);

  device_id first_;
  backend* face_;
  scheduler_options options_;
  fault_plan& faults_;
  std::chrono::steady_clock::time_point epoch_;
  common::failures failures_;
  std::stop_source shutdown_;
  std::vector<std::unique_ptr<device_state>> devices_;
  std::mutex device_mutex_;

  stream_table streams_;

  std::mutex tracks_mutex_;
  std::vector<common::track_numbers> tracks_;  // of each device
  operation_trace trace_;
  virtual_clock clock_;  // idle on the wall clock
};

template <class F>
bool scheduler::try_inline(host_stream& stream, F&& body, const operation_note& note,
                           std::shared_ptr<const error>& failure) {
  if (take_turn(stream) == 0) return false;
  if (closed()) {
    failure = shared_error(closed_machine());
  } else if (!trace_.on()) {
    failure = common::outcome_of_host_function(stream.device(), body);
  } else {
    const std::chrono::nanoseconds started = now();
    failure = common::outcome_of_host_function(stream.device(), body);
    trace_.add(stream, note, {started, started, now()}, failure != nullptr);
  }
  stream.finished_.fetch_add(1, std::memory_order_release);
  give_turn(stream);
  return true;
}

}  // namespace weft::host
