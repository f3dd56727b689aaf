// SPDX-License-Identifier: Apache-2.0
// Order among commands: streams, events, failures and what they skip, gates, waits. One for every backend whose driver
// has in-order queues and events.
//
// A command is handed to the driver as soon as nothing before it in its stream is held back; waits for commands that
// the driver has, and can wait for, are the driver's too. What only the host can tell (a gate, a host function, an
// event that the driver cannot wait for, a failure that skips what follows) holds a stream back, until it is known. So
// nothing is ever submitted that may have to be taken back: no driver can, and in OpenCL user events that nobody
// completes hang some of them. One exception: what is handed over behind a wait that is the driver's, when a device was
// lost that it waits for and nobody has looked yet, runs; its event tells of the loss.
//
// The end of a command is seen by whoever looks or waits; the driver is asked to call only where somebody wants to be
// told without waiting (event_record::watched), or a stream is held back by what it has in the queue.
#pragma once

#include "backends/queued/queued_stream.hpp"
#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace weft::queued {

/// Thread: any.
class scheduler {
 public:
  /// Serves `count` devices from `first`. `moved` is told of every command that ended well and has a path.
  scheduler(std::shared_ptr<queue_driver> driver, device_id first, std::size_t count, backend* face, waiting policy,
            std::function<void(const link_path&, std::uint64_t)> moved);
  ~scheduler();
  scheduler(const scheduler&) = delete;
  scheduler& operator=(const scheduler&) = delete;

  [[nodiscard]] result<queued_stream*> create(device_id device, int priority, bool told);
  /// A stream over a queue that the program made and keeps. Errors: the driver's.
  [[nodiscard]] result<queued_stream*> adopt(device_id device, void* driver_queue);
  /// The driver's name of a stream's queue. From now on the program is taken to put work into it.
  [[nodiscard]] result<void*> share_queue(queued_stream& s);
  void destroy(stream_handle handle);
  [[nodiscard]] queued_stream* find(stream_handle handle) const noexcept;
  [[nodiscard]] std::vector<queued_stream*> streams_of(device_id device) const;
  /// Calls `f` for each stream that there is, and was: those that went may serve again. Without a lock, without memory.
  template <class F>
  void for_each_row(F f) const;

  /// Takes over the command. Null when the machine is closed.
  [[nodiscard]] event_ref submit(queued_stream& to, std::unique_ptr<command> made);
  /// An event that ends with what the stream holds now. Null when the machine is closed.
  [[nodiscard]] event_ref record(queued_stream& of);
  /// What is submitted to the stream later starts after `before`, and not at all if that fails. False when the machine
  /// is closed.
  [[nodiscard]] bool wait_for(queued_stream& in, const event_ref& before);

  [[nodiscard]] event_ref create_gate() { return failures_.create_gate(); }
  void open_gate(event_record& gate, std::shared_ptr<const error> cause);

  [[nodiscard]] wait_outcome wait(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  [[nodiscard]] bool ready(event_record& event);
  [[nodiscard]] bool idle(queued_stream& of);
  /// All streams of a device. No allocation.
  [[nodiscard]] bool idle_on(device_id device);
  [[nodiscard]] bool settled(queued_stream& of);
  [[nodiscard]] bool tells(queued_stream& of) { return of.failures_.reports_errors(); }
  [[nodiscard]] result<wait_outcome> synchronize(queued_stream& of, wait_deadline deadline,
                                                 const std::stop_token& stop);
  [[nodiscard]] bool drain(queued_stream& of, wait_deadline deadline);

  /// Has the driver call when a command has ended; without it the end is seen when somebody looks or waits.
  void watch(command& c) noexcept;

  /// Before the first stream is made.
  void count_from(std::chrono::steady_clock::time_point epoch) { epoch_ = epoch; }
  [[nodiscard]] std::chrono::nanoseconds now() const { return std::chrono::steady_clock::now() - epoch_; }
  [[nodiscard]] bool closed() const noexcept { return failures_.closed(); }
  [[nodiscard]] waiting policy() const noexcept { return policy_; }
  void trace_to(std::shared_ptr<trace_sink> sink);

  /// Whether what has not run on a device will not run any more.
  [[nodiscard]] bool is_over(device_id device) const noexcept { return failures_.is_over(device); }
  /// … and why; null where it will.
  [[nodiscard]] std::shared_ptr<const error> over(device_id device) const { return failures_.over(device); }
  void lose(device_id device, const std::shared_ptr<const error>& cause);
  /// Loses the device; where the driver found the fault, also all parts of its GPU.
  void lose_by_fault(device_id device, const std::shared_ptr<const error>& cause);
  /// What a call on a lost device is told, or null.
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) const { return failures_.lost(device); }
  [[nodiscard]] std::shared_ptr<const error> cause_of_loss(device_id device) const {
    return failures_.cause_of_loss(device);
  }
  void restore(device_id device);

  [[nodiscard]] bool on_worker() const noexcept;
  void close();

 private:
  enum class start_outcome : unsigned char { started, ended, blocked };
  enum class service_state : unsigned char { not_asked_for, runs, not_to_be_had };

  [[nodiscard]] device_id device_at(std::size_t index) const {
    return device_id{first_.value() + static_cast<int>(index)};
  }
  [[nodiscard]] common::track_numbers& tracks_of(device_id id) {
    return tracks_[static_cast<std::size_t>(id.value() - first_.value())];
  }

  void open(queued_stream& s, bool told);
  [[nodiscard]] event_ref end_of(queued_stream& s);
  void finish_queue(queued_stream& s) noexcept;

  [[nodiscard]] start_outcome try_start(queued_stream& s, command& c, std::shared_ptr<const error>& cause);
  [[nodiscard]] bool fly_refused(queued_stream& s, command& c);
  [[nodiscard]] std::shared_ptr<const error> refusal(queued_stream& s, command& c);
  [[nodiscard]] bool driver_can_wait(const queued_stream& s, const event_record& dependency) const;

  void progress(queued_stream& s) noexcept;
  void step(queued_stream& s) noexcept;
  [[nodiscard]] bool reap(queued_stream& s);
  void pump(queued_stream& s);
  // under the stream's lock
  void note_to_arm(queued_stream& s, command& c);
  void arm(queued_stream& s) noexcept;
  void finish(command& c, std::shared_ptr<const error> cause);
  void take_times(command& c);
  [[nodiscard]] std::shared_ptr<const error> outcome_of(command& c, event_state state);
  static void on_end(void* data);

  void post(queued_stream& s, command* until = nullptr) noexcept;
  void look_at(command& c) noexcept;
  void wake_service() noexcept;
  void serve(const std::stop_token& shutdown);
  void take_turn(std::unique_lock<std::mutex>& lock);
  void help();
  void work(queued_stream& s, const std::stop_token& shutdown);

  [[nodiscard]] wait_outcome await(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  [[nodiscard]] command* own(event_record& event) const noexcept;
  void trace(const command& c, bool failed) noexcept;

  static thread_local const scheduler* working_for;  // whose work this thread does

  std::shared_ptr<queue_driver> driver_;
  device_id first_;
  backend* face_;
  waiting policy_;
  std::function<void(const link_path&, std::uint64_t)> moved_;
  std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();
  common::failures failures_;
  std::vector<common::track_numbers> tracks_;  // of each device; with table_mutex_

  mutable std::shared_mutex table_mutex_;
  std::vector<std::unique_ptr<queued_stream>> streams_;  // never shrinks: a stream that went serves again

  std::atomic<bool> tracing_{false};
  std::mutex trace_mutex_;
  std::shared_ptr<trace_sink> trace_;

  std::atomic<std::uint64_t> armed_{0};  // callbacks that the driver owes us, or is about to be asked for
  std::mutex service_mutex_;
  std::condition_variable_any service_work_;
  chain<queued_stream, &queued_stream::next_posted_> posted_;
  chain<command, &command::next_looked_at_> looked_at_;  // one reference each
  int turns_ = 0;                                        // of threads that do what was in the lists
  std::atomic<service_state> service_state_{service_state::not_asked_for};
  std::jthread service_;  // started with the first who is to be told
  bool service_is_over_ = false;
};

template <class F>
void scheduler::for_each_row(F f) const {
  for (std::size_t i = 0;; ++i) {
    queued_stream* row = nullptr;
    {
      const std::shared_lock lock{table_mutex_};
      if (i >= streams_.size()) return;
      row = streams_[i].get();
    }
    f(*row);
  }
}

}  // namespace weft::queued
