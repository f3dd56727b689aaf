// SPDX-License-Identifier: Apache-2.0
// Order among commands: streams, events, failures and what they skip, gates, waits.
//
// A command is handed to the driver as soon as nothing before it in its stream is held back; waits for commands that
// the driver has in the same context are the driver's too. What only the host can tell (a gate, a host function, an
// event of another context, a failure that skips what follows) holds a stream back, until it is known. So nothing is
// ever submitted that may have to be taken back: OpenCL cannot, and user events that nobody completes hang some
// drivers.
//
// The end of a command is seen by whoever looks or waits; the driver is asked to call only where somebody wants to be
// told without waiting, or a stream is held back by what it has in the queue.
#pragma once

#include "backends/opencl/cl_stream.hpp"
#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace weft::opencl {

/// Thread: any.
class scheduler {
 public:
  /// `moved` is told of every command that ended well and has a path.
  scheduler(std::shared_ptr<const api> cl, const discovery& found, device_id first, backend* face, waiting policy,
            std::function<void(const link_path&, std::uint64_t)> moved);
  ~scheduler();
  scheduler(const scheduler&) = delete;
  scheduler& operator=(const scheduler&) = delete;

  [[nodiscard]] result<cl_stream*> create(device_id device, bool told);
  void destroy(stream_handle handle);
  [[nodiscard]] cl_stream* find(stream_handle handle) const noexcept;
  [[nodiscard]] std::vector<cl_stream*> streams_of(device_id device) const;

  /// Takes over the command. Null when the machine is closed.
  [[nodiscard]] event_ref submit(cl_stream& to, std::unique_ptr<command> made);
  /// An event that ends with what the stream holds now.
  [[nodiscard]] event_ref record(cl_stream& of);

  [[nodiscard]] event_ref create_gate();
  void open_gate(event_record& gate, std::shared_ptr<const error> cause);

  [[nodiscard]] wait_outcome wait(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  [[nodiscard]] bool ready(event_record& event);
  [[nodiscard]] bool idle(cl_stream& of);
  [[nodiscard]] bool settled(cl_stream& of);
  [[nodiscard]] result<wait_outcome> synchronize(cl_stream& of, wait_deadline deadline, const std::stop_token& stop);
  [[nodiscard]] bool drain(cl_stream& of, wait_deadline deadline);

  /// Has the driver call when a command has ended; without it the end is seen when somebody looks or waits.
  void watch(command& c) noexcept;

  [[nodiscard]] std::chrono::nanoseconds now() const { return std::chrono::steady_clock::now() - epoch_; }
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  void trace_to(std::shared_ptr<trace_sink> sink);

  void lose(device_id device, const std::shared_ptr<const error>& cause);
  /// What a call on a lost device is told, or null.
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) const;
  [[nodiscard]] std::shared_ptr<const error> cause_of_loss(device_id device) const;
  void restore(device_id device);

  [[nodiscard]] bool on_worker() const noexcept;
  void close();

 private:
  struct device_state {
    cl_device_id id = nullptr;
    cl_context context = nullptr;
    std::size_t context_index = 0;
    std::chrono::nanoseconds offset{0};  // added to times of the device gives those of now()
    bool timed = false;                  // offset is known
    std::vector<bool> tracks;            // numbers of streams that are taken
    std::atomic<bool> lost{false};
    std::shared_ptr<const error> root, told;
  };
  enum class start_outcome : unsigned char { started, ended, blocked };

  [[nodiscard]] device_state& state_of(device_id id) const {
    return *devices_[static_cast<std::size_t>(id.value() - first_.value())];
  }
  [[nodiscard]] result<queue_handle> make_queue(device_state& device) const;
  void calibrate(device_state& device, cl_command_queue queue) const;

  [[nodiscard]] start_outcome try_start(cl_stream& s, command& c, std::shared_ptr<const error>& cause);
  [[nodiscard]] std::shared_ptr<const error> refusal(cl_stream& s, command& c);
  [[nodiscard]] bool driver_can_wait(const cl_stream& s, const event_record& dependency) const;

  void progress(cl_stream& s) noexcept;
  void step(cl_stream& s) noexcept;
  void reap(cl_stream& s);
  void pump(cl_stream& s);
  void note_to_arm(cl_stream& s, command& c);
  void arm(cl_stream& s) noexcept;
  void finish(command& c, std::shared_ptr<const error> cause);
  void take_times(command& c);
  [[nodiscard]] std::shared_ptr<const error> outcome_of(command& c, cl_int status);
  static void CL_CALLBACK on_event(cl_event event, cl_int status, void* data);

  void post(cl_stream& s);
  void serve(const std::stop_token& shutdown);
  void work(cl_stream& s, const std::stop_token& shutdown);
  [[nodiscard]] static std::shared_ptr<const error> run(command& c) noexcept;

  void poison(cl_stream& s, const std::shared_ptr<const error>& cause, std::uint64_t sequence);
  [[nodiscard]] std::shared_ptr<const error> poison_of(cl_stream& s, std::uint64_t sequence);
  void reported(cl_stream& s, const std::shared_ptr<const error>& cause);
  [[nodiscard]] wait_outcome await(event_record& event, wait_deadline deadline, const std::stop_token& stop);
  [[nodiscard]] command* own(event_record& event) const noexcept;
  void trace(const command& c, bool failed) noexcept;

  static thread_local const scheduler* working_for;  // whose work this thread does

  std::shared_ptr<const api> cl_;
  device_id first_;
  backend* face_;
  waiting policy_;
  std::function<void(const link_path&, std::uint64_t)> moved_;
  std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();
  std::atomic<bool> closed_{false};

  std::vector<std::unique_ptr<device_state>> devices_;
  mutable std::mutex device_mutex_;

  mutable std::shared_mutex table_mutex_;
  std::vector<std::unique_ptr<cl_stream>> streams_;  // never shrinks: a stream that went serves again

  std::mutex gates_mutex_;
  std::set<event_record*> gates_;  // open gates hold one reference

  std::atomic<bool> tracing_{false};
  std::mutex trace_mutex_;
  std::shared_ptr<trace_sink> trace_;

  std::atomic<std::uint64_t> armed_{0};  // callbacks that the driver still owes us
  std::mutex service_mutex_;
  std::condition_variable_any service_work_;
  std::vector<cl_stream*> posted_;
  bool service_busy_ = false;
  std::jthread service_;
};

}  // namespace weft::opencl
