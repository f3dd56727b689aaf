// SPDX-License-Identifier: Apache-2.0
// The one thread per machine that moves messages nobody's thread moves: through the host in staged mode, out of spills,
// and on behalf of suspended coroutines. It starts with the first such job and sleeps when there is nothing to do.
#pragma once

#include "channel/queue_state.hpp"
#include "os/parking.hpp"

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace weft::detail {

/// Something to be looked at again and again. All calls come from the progress thread, under its lock.
class queue_job {
 public:
  queue_job() = default;
  queue_job(const queue_job&) = delete;
  queue_job& operator=(const queue_job&) = delete;
  virtual ~queue_job() = default;

  enum class step_outcome { idle, moved, finished };
  virtual step_outcome step() = 0;
  /// Asks for a ring of the bell when there is something to do.
  virtual void arm() noexcept = 0;
  virtual void disarm() noexcept = 0;
};

/// Thread: any.
class queue_progress {
 public:
  queue_progress() = default;
  ~queue_progress() { end(); }
  queue_progress(const queue_progress&) = delete;
  queue_progress& operator=(const queue_progress&) = delete;

  /// Errors: false when no thread is to be had.
  [[nodiscard]] bool add(std::shared_ptr<queue_job> job) noexcept;
  /// When this returns the job is not looked at any more.
  void remove(const queue_job* job) noexcept;
  void ring() noexcept {
    // release: what was moved before is seen by whoever hears it
    bell_.store(1, std::memory_order_release);
    parking::wake_all(bell_);
  }
  void end() noexcept;
  /// While there are loans, kernels move messages that ring no bell.
  void count_loan(int more) noexcept {
    loans_.fetch_add(more, std::memory_order_relaxed);
    ring();
  }
  [[nodiscard]] bool is_current() const noexcept {
    return runner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  void run() noexcept;
  bool pass() noexcept;

  std::mutex mutex_;
  std::list<std::shared_ptr<queue_job>> jobs_;
  bool ended_ = false;
  std::atomic<std::uint32_t> bell_{0};
  std::atomic<int> loans_{0};
  std::atomic<std::thread::id> runner_;
  std::thread thread_;
};

/// Of streams that must not wait behind anybody's work: more than any device has.
inline constexpr int aside_priority = 1000;

/// What the channel layer keeps per machine.
class channel_state {
 public:
  explicit channel_state(machine_state& machine);

  [[nodiscard]] queue_progress& progress() { return progress_; }
  /// Stops the queue when the machine is closed, unless it is forgotten before.
  void remember(const std::shared_ptr<queue_state>& queue);
  void forget(const std::shared_ptr<queue_state>& queue) noexcept;

  /// A stream of a device for words that must not wait behind anybody's work: of the highest priority, and there until
  /// the machine goes, so that nobody waits for it. Errors: those of create_stream().
  [[nodiscard]] result<stream_handle> aside(device_id on);

 private:
  void stop_all() noexcept;

  machine_state& machine_;
  const std::shared_ptr<const error> at_the_end_;  // made before memory may be short
  queue_progress progress_;
  std::mutex mutex_;
  std::set<std::weak_ptr<queue_state>, std::owner_less<>> queues_;
  std::size_t crowded_ = 64;
  std::mutex aside_mutex_;
  std::map<device_id, stream_handle> aside_;
};

[[nodiscard]] inline channel_state& channels_of(machine_state& machine) {
  return machine.part_of<channel_state>(part::channel);
}

/// Moves messages of a lane from the ring of its sender to that of its receiver.
[[nodiscard]] std::shared_ptr<queue_job> make_forwarder(queue_state& queue, queue_lane& l);
/// Moves what a lane's sender spilled into its ring.
[[nodiscard]] std::shared_ptr<queue_job> make_spill_drain(queue_state& queue, queue_lane& l);
/// Stops a queue whose other process has died, or whose end of this process is with kernels of a device that is lost:
/// no thread of it waits, and would see that.
[[nodiscard]] std::shared_ptr<queue_job> make_peer_watch(queue_state& queue, const device& with);

}  // namespace weft::detail
