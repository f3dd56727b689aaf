// SPDX-License-Identifier: Apache-2.0
// What a GPU's streams and events do for the scheduler. Both are objects of ours that outlive a reset of their GPU,
// which destroys the driver's: a queue then gets a new stream, and an event of before has failed.
#pragma once

#include "backends/gpu/devices/contexts.hpp"
#include "backends/gpu/devices/partitions.hpp"
#include "backends/gpu/order/word_waits.hpp"
#include "backends/queued/queue_driver.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

namespace weft::gpu {

class stream_driver;

/// A queue of the scheduler.
struct gpu_queue {
  std::size_t device = 0;  // counted from 0
  int priority = 0;        // as users have it: higher goes first
  bool adopted = false;    // the program made the stream, and destroys it
  CUstream stream = nullptr;
  std::uint64_t generation = 0;  // of the context that the stream is in
  CUdeviceptr scratch = 0;       // the commands of a queue run one after the other, and share it
  std::size_t scratch_size = 0;
};

/// An event of the scheduler, from the pool of its GPU.
struct gpu_event {
  std::size_t gpu = 0;
  CUevent end = nullptr;
  CUevent begin = nullptr;  // only of a timed one
  bool timed = false;       // it knows when the work began, too
  bool begins = false;      // `begin` was recorded
  std::uint64_t generation = 0;
  std::atomic<CUresult> failed{CUDA_SUCCESS};  // what the driver said
};

/// Puts work into a queue: while it lives the context is current. Without finish() nothing is left behind.
class submission {
 public:
  submission(submission&& other) noexcept;
  submission& operator=(submission&&) = delete;
  ~submission();

  [[nodiscard]] CUstream stream() const noexcept { return queue_.stream; }
  /// Memory of the GPU for the commands of this queue, aligned to 256. Nothing stays in it from one to the next.
  /// Cost: none but when a queue needs more than ever before.
  [[nodiscard]] result<CUdeviceptr> scratch(std::size_t size);
  /// An event that ends with what was put into the stream so far.
  [[nodiscard]] result<queued::native_event> finish();

 private:
  friend class stream_driver;
  submission(stream_driver& home, gpu_queue& queue, current_context inside)
      : home_(home), queue_(queue), inside_(std::move(inside)) {}

  stream_driver& home_;
  gpu_queue& queue_;
  current_context inside_;
  gpu_event* event_ = nullptr;
};

class stream_driver final : public queued::queue_driver {
 public:
  stream_driver(std::shared_ptr<contexts> places, device_id first, const discovery& found, waiting policy);
  ~stream_driver() override;

  [[nodiscard]] result<queued::native_queue> create_queue(device_id device, int priority) override;
  [[nodiscard]] result<queued::native_queue> adopt_queue(device_id device, void* theirs,
                                                         queued::native_queue again) override;
  [[nodiscard]] result<void*> name_of(device_id device, queued::native_queue queue) override;
  [[nodiscard]] bool is_empty(device_id device, queued::native_queue queue) noexcept override;
  void give_up(device_id device) noexcept override { words_.give_up(local(device)); }
  void wait_again(device_id device) noexcept override { words_.wait_again(local(device)); }
  [[nodiscard]] bool fall_together(device_id a, device_id b) const noexcept override {
    return places_->gpu_of(local(a)) == places_->gpu_of(local(b));
  }
  void destroy_queue(device_id device, queued::native_queue queue) noexcept override;
  [[nodiscard]] result<queued::native_event> mark(device_id device, queued::native_queue queue,
                                                  queued::native_event after) override;
  /// Events know no borders between GPUs.
  [[nodiscard]] bool can_wait(device_id, device_id) const noexcept override { return true; }
  void flush(device_id, queued::native_queue) noexcept override {}  // the driver begins by itself
  void finish(device_id device, queued::native_queue queue) noexcept override;
  [[nodiscard]] queued::event_state state(device_id device, queued::native_event event) noexcept override;
  [[nodiscard]] error failure(device_id device, queued::native_event event, std::string doing, errc otherwise) override;
  void wait(device_id device, queued::native_event event) noexcept override;
  [[nodiscard]] std::optional<queued::event_times> times(device_id device,
                                                         queued::native_event event) noexcept override;
  void release(device_id device, queued::native_event event) noexcept override;
  [[nodiscard]] bool call_at_end(device_id device, queued::native_event event,
                                 const queued::end_call& call) noexcept override;
  /// CUDA calls where CUDA must not be called.
  [[nodiscard]] bool may_look_when_called() const noexcept override { return false; }

  /// Errors: what the driver says of the context, the stream or the event.
  /// All events know when they ended; with `timed`, or while all are, when the work began too: that takes one more
  /// call.
  [[nodiscard]] result<submission> begin(queued::native_queue queue, bool timed = false);
  /// Runs `work` in a stream of the device that nothing else uses meanwhile, and waits for it. For threads of the host.
  [[nodiscard]] result<void> run_aside(device_id device, const std::string& doing,
                                       const std::function<CUresult(CUstream)>& work);

  /// What streams wait for outside of the driver.
  [[nodiscard]] word_waits& words() noexcept { return words_; }

  /// Whether all work from now on knows when it began: it costs more.
  void time(bool on) noexcept;
  [[nodiscard]] bool is_timed() const noexcept { return timed_.load(std::memory_order_relaxed); }

  /// Nobody calls the driver meanwhile with a stream or an event of this GPU: one that a reset destroyed is no error to
  /// drivers, but a crash. Waits for who does; the work itself must have ended, or be lost.
  [[nodiscard]] std::unique_lock<std::shared_mutex> alone(std::size_t device) {
    return std::unique_lock{place_of(device).calls};
  }
  /// The context of the device's GPU is about to go: what is in it counts as failed.
  void forget(std::size_t device) noexcept;
  /// Destroys all streams and events. Nothing is in them any more; what users still hold of them is empty.
  void close() noexcept;

 private:
  friend class submission;
  using clock = std::chrono::steady_clock;
  /// Of a GPU.
  struct place {
    std::shared_mutex calls;  // before the others: held by who calls the driver with what a reset destroys
    std::mutex mutex;
    std::atomic<std::uint64_t> generation{1};
    std::vector<std::unique_ptr<gpu_event>> events;
    std::array<std::vector<gpu_event*>, 2> free;  // by timed
    std::vector<CUstream> asides;                 // that nobody uses
    std::size_t made_asides = 0;
    std::size_t waiting_asides = 0;  // that wait for an event
    CUdevice id = 0;
    bool pools = false;                // memory in the order of streams
    std::vector<CUdeviceptr> scratch;  // outgrown where there are none; to free one now would wait for all work
    // events that know when they ended are compared with one whose time is known
    std::mutex clock_mutex;  // before the other
    CUevent base = nullptr;
    std::uint64_t base_generation = 0;
    clock::time_point base_time;
  };
  struct end_table;
  struct waiting_end;

  [[nodiscard]] std::size_t local(device_id device) const {
    return static_cast<std::size_t>(device.value() - first_.value());
  }
  void free_scratch(gpu_queue& of) noexcept;
  [[nodiscard]] place& place_of(std::size_t device) const { return *gpus_[places_->gpu_of(device)]; }
  /// False once its context was reset, which destroyed it.
  [[nodiscard]] bool is_there(const gpu_event& event) const {
    return event.generation == gpus_[event.gpu]->generation.load(std::memory_order_acquire);
  }
  [[nodiscard]] CUresult query(std::size_t device, CUevent event) const noexcept;
  [[nodiscard]] CUresult ask(gpu_event& event) const noexcept;
  [[nodiscard]] CUresult wait_for(CUstream stream) const noexcept;
  [[nodiscard]] result<void> ready_stream(gpu_queue& queue);
  void end_partitions(std::size_t gpu) noexcept;
  [[nodiscard]] result<gpu_event*> take_event(std::size_t device, bool timed);
  void put_back(gpu_event* event) noexcept;
  [[nodiscard]] CUresult take_aside(std::size_t device, CUstream* stream);
  [[nodiscard]] bool spare_aside(std::size_t device) noexcept;
  void no_longer_waits(std::size_t device, std::uint64_t generation) noexcept;
  void give_aside(std::size_t device, CUstream stream, std::uint64_t generation) noexcept;
  [[nodiscard]] bool set_base(std::size_t device) noexcept;
  [[nodiscard]] bool replace_base(std::size_t device, CUstream aside, std::chrono::milliseconds patience) noexcept;
  [[nodiscard]] std::optional<clock::time_point> time_of(std::size_t device, CUevent event) noexcept;
  [[nodiscard]] bool is_watching() noexcept;
  static void on_end(void* id);
  void look_for_ends(const std::stop_token& shutdown);

  std::shared_ptr<contexts> places_;
  const driver& cu_;
  partitions parts_;
  device_id first_;
  waiting policy_;
  std::vector<std::unique_ptr<place>> gpus_;
  std::vector<std::size_t> device_of_;  // one of each GPU
  std::mutex queues_mutex_;
  std::vector<std::unique_ptr<gpu_queue>> queues_;
  std::atomic<bool> timed_{false};
  word_waits words_;

  std::mutex watch_mutex_;
  std::condition_variable_any watch_work_;
  bool look_soon_ = false;                                         // at what the driver does not call for
  std::vector<std::pair<std::uint64_t, waiting_end>> looked_for_;  // by that thread
  std::jthread watch_;                                             // started with the first that is to be called
};

}  // namespace weft::gpu
