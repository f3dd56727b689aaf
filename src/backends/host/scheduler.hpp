// SPDX-License-Identifier: Apache-2.0
// Streams, events and time of the virtual devices. One scheduler with two drivers: on the wall clock each stream has a
// worker thread; on the virtual clock whoever waits runs a discrete-event loop, in which an operation gets its links
// when it is ready (not when it was submitted) and takes the time that the topology says. What an operation does, how
// it fails, what a failure skips and when it counts as reported is the same code for both.
#pragma once

#include "backends/host/fault_plan.hpp"
#include "backends/host/stream_table.hpp"
#include "backends/host/work.hpp"
#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace weft::host {

class scheduler;
class host_stream;

/// What an operation needs on the virtual clock: the wires it occupies, and for how long.
struct cost {
  const link_path* path = nullptr;  // null: no wires
  std::uint64_t bytes = 0;
  double local_rate = 0;  // bytes per second inside one device; 0 takes no time
};

struct operation final : event_record {
  /// Gives the memory back to the stream it came from: an operation is made on one thread and usually ends on another,
  /// which is where the general allocator is slowest (0.5 us instead of 0.2 us for an operation queued and run).
  static void operator delete(operation* op, std::destroying_delete_t);

  host_stream* home = nullptr;  // null for a gate
  operation* next = nullptr;
  std::uint64_t sequence = 0;  // in its stream
  std::uint64_t order = 0;     // in the machine: breaks ties on the virtual clock
  event_ref dependency;        // starts after this has ended, and fails with it
  work body;
  cost price;
  std::stop_token stop;
  bool queued_for_slot = false;                      // counted among those that wait for a place on the device
  std::optional<std::chrono::nanoseconds> ready_at;  // virtual clock: when everything before it had ended
};

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
  [[nodiscard]] bool idle() const noexcept {
    // finished first: it never passes what was submitted by then
    const std::uint64_t finished = finished_.load(std::memory_order_acquire);
    return submitted_.load(std::memory_order_acquire) == finished;
  }

  /// Idle, and no failure is kept. Idle is looked at first: the failure is stored before the operation counts as ended.
  [[nodiscard]] bool settled() const noexcept { return idle() && !poisoned_.load(std::memory_order_acquire); }

  /// Memory of one operation, and its way back. Thread: any.
  [[nodiscard]] void* take_memory();
  void give_memory(void* memory) noexcept;

 private:
  friend class scheduler;
  friend class stream_table;

  static constexpr std::uint64_t inline_bit = std::uint64_t{1} << 63;

  void push(operation* op);
  /// False when there is no thread to be had.
  bool start() noexcept;
  void end();
  void serve(const std::stop_token& shutdown);

  scheduler& owner_;
  std::atomic<int> device_{-1};
  std::atomic<int> priority_{0};
  std::atomic<bool> told_{true};          // failures are kept for synchronize() to tell
  std::atomic<std::uint64_t> handle_{0};  // 0 while it serves as no stream
  std::uint64_t place_ = 0;               // in the table

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
  std::chrono::nanoseconds last_ended_{0};  // of the operation before, while there is no pause; worker only
  std::atomic<bool> slot_reserved_{false};  // a place on the device is kept for what comes next
  std::atomic<free_node*> returned_{nullptr};
  alignas(line) std::atomic<bool> serving_{false};
  std::atomic<pid_t> worker_thread_{0};
  std::mutex worker_mutex_;
  std::jthread worker_;

  // virtual clock, under the scheduler's mutex
  std::deque<operation*> queue_;
  bool busy_ = false;  // its first operation runs

  // the failure that skips what follows
  std::mutex failure_mutex_;
  std::atomic<bool> poisoned_{false};
  std::shared_ptr<const error> poison_;
  std::uint64_t poison_until_ = 0;  // operations up to this sequence are skipped
  std::shared_ptr<const error> unreported_;
};

struct scheduler_options {
  clock_kind clock = clock_kind::wall;
  waiting wait_policy = waiting::adaptive;
  int max_in_flight = 0;
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

  /// Appends an operation to a stream. Null when the machine is closed.
  template <class F>
  [[nodiscard]] event_ref submit(host_stream& stream, F body, const cost& price = {}, std::stop_token stop = {},
                                 event_ref dependency = {}) {
    auto* op = ::new (stream.take_memory()) operation;
    op->home = &stream;
    op->body.set(std::move(body));
    op->price = price;
    op->stop = std::move(stop);
    op->dependency = std::move(dependency);
    return admit(stream, op);
  }
  /// Runs the body on the calling thread if the stream is idle, without an event.
  /// Returns false when it was not run. Only on the wall clock.
  template <class F>
  [[nodiscard]] bool try_inline(host_stream& stream, F&& body, std::shared_ptr<const error>& failure);

  [[nodiscard]] event_ref create_gate();
  void open_gate(event_record& gate, std::shared_ptr<const error> cause);

  [[nodiscard]] wait_outcome wait(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  [[nodiscard]] bool ready(event_record& event);
  [[nodiscard]] result<wait_outcome> synchronize(host_stream& stream, wait_deadline deadline,
                                                 const std::stop_token& stop);

  /// Waits for the work of a stream without reporting its failures; false when `deadline` came first.
  [[nodiscard]] bool drain(host_stream& stream, wait_deadline deadline);

  [[nodiscard]] std::chrono::nanoseconds now() const;
  [[nodiscard]] bool on_wall_clock() const noexcept {
    return options_.clock == clock_kind::wall && options_.max_in_flight == 0;
  }
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  void lose(device_id device, const std::shared_ptr<const error>& cause);
  /// What a call on a lost device is told, or null.
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device);
  [[nodiscard]] std::shared_ptr<const error> cause_of_loss(device_id device);
  void restore(device_id device);

  /// True on a thread that is running an operation.
  [[nodiscard]] bool on_worker() const noexcept;

  /// Ends: what is pending is cancelled, workers are joined.
  void close();

 private:
  friend class host_stream;

  [[nodiscard]] event_ref admit(host_stream& stream, operation* op);
  [[nodiscard]] static std::shared_ptr<const error> closed_error();

  struct device_state {
    std::atomic<bool> lost{false};
    std::stop_source end;  // requested at its loss and at the end of the machine; under device_mutex_
    std::shared_ptr<const error> root, told;  // what took it down, and what later calls are told; under device_mutex_
    // operations at a time, highest priority first
    std::mutex mutex;
    std::condition_variable freed;
    int in_flight = 0;
    std::multiset<int> waiting;
  };

  [[nodiscard]] device_state& state_of(device_id id) {
    return *devices_[static_cast<std::size_t>(id.value() - first_.value())];
  }

  /// Why an operation must not run, or null.
  [[nodiscard]] std::shared_ptr<const error> refusal(operation& op);
  [[nodiscard]] std::shared_ptr<const error> run_body(operation& op) noexcept;
  void execute(operation& op, operation* next);  // wall clock, on the worker
  /// Makes an operation a candidate for a place on its device; before it is its turn, so that priorities count.
  void queue_for_slot(operation& op);
  void finish(operation& op, std::shared_ptr<const error> cause);
  void forget_failure(host_stream& stream);
  void poison(host_stream& stream, const std::shared_ptr<const error>& cause, std::uint64_t sequence);
  [[nodiscard]] wait_outcome await(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  void reported(host_stream& stream, const std::shared_ptr<const error>& cause);
  void stall(std::chrono::nanoseconds duration);
  /// Requested once no work of a device will start any more.
  [[nodiscard]] std::stop_token end_of(device_id device);

  // virtual clock; all under mutex_
  void step(std::unique_lock<std::mutex>& lock);
  void grant();
  [[nodiscard]] std::chrono::nanoseconds duration_of(const operation& op) const;
  wait_outcome drive(event_record& event, wait_deadline deadline, const std::stop_token& stop);

  const topology& machine_;
  device_id first_;
  backend* face_;
  scheduler_options options_;
  fault_plan& faults_;
  std::chrono::steady_clock::time_point epoch_;
  std::atomic<bool> closed_{false};
  std::stop_source shutdown_;
  std::vector<std::unique_ptr<device_state>> devices_;
  std::mutex device_mutex_;

  stream_table streams_;

  std::mutex mutex_;
  std::condition_variable progress_;
  std::atomic<std::int64_t> virtual_now_{0};
  bool driving_ = false;
  std::atomic<pid_t> driver_{0};  // the thread that runs an operation
  struct running {
    std::chrono::nanoseconds end;
    std::uint64_t order;
    operation* op;
    std::shared_ptr<const error> cause;  // why it will not run, decided at its start
    bool operator<(const running& other) const { return end != other.end ? end < other.end : order < other.order; }
  };
  std::set<running> running_;
  std::vector<bool> wire_busy_;
  std::vector<int> device_busy_;
  std::uint64_t admitted_ = 0;
  std::mutex gates_mutex_;
  std::set<event_record*> gates_;  // open gates hold one reference
};

template <class F>
bool scheduler::try_inline(host_stream& stream, F&& body, std::shared_ptr<const error>& failure) {
  if (options_.clock != clock_kind::wall || options_.max_in_flight != 0 || !faults_.empty()) return false;
  std::uint64_t seen = stream.submitted_.load(std::memory_order_relaxed);
  // acquire: pairs with the release of the operation that ended last in this stream
  if (seen != stream.finished_.load(std::memory_order_acquire)) return false;
  if (stream.poisoned_.load(std::memory_order_acquire) ||
      state_of(stream.device()).lost.load(std::memory_order_acquire))
    return false;
  // Nobody submitted since: the turn is ours, and the worker sees the bit before it starts anything that comes later.
  if (!stream.submitted_.compare_exchange_strong(seen, (seen + 1) | host_stream::inline_bit, std::memory_order_seq_cst))
    return false;
  if (!closed_.load(std::memory_order_seq_cst)) {
    failure = body();
  } else {
    failure = closed_error();
  }
  stream.finished_.fetch_add(1, std::memory_order_release);
  stream.submitted_.fetch_and(~host_stream::inline_bit, std::memory_order_release);
  return true;
}

}  // namespace weft::host
