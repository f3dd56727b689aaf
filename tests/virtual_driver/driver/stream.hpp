// SPDX-License-Identifier: Apache-2.0
// Streams: a queue and a thread each. What a stream waits for is a mark of another one.
#pragma once

#include "virtual_driver/driver/guard.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::virtual_cuda {

using gpu::CUcontext;
using gpu::CUresult;

struct context;

/// One piece of submitted work: whether it has ended.
struct mark {
  std::atomic<int> ended{0};
  std::chrono::steady_clock::time_point when{};  // valid once ended

  void end();
  void wait() const;
  [[nodiscard]] bool is_ended() const { return ended.load(std::memory_order_acquire) != 0; }
};
using mark_ref = std::shared_ptr<mark>;

/// A queue of the hardware that streams share: what is at its head holds up all behind it. A wait is at the head until
/// it has ended, other work until it has begun.
class connection {
 public:
  [[nodiscard]] std::uint64_t ticket() { return given_.fetch_add(1); }
  void wait_turn(std::uint64_t ticket) const;
  void next();

 private:
  std::atomic<std::uint64_t> given_{0}, turn_{0};
};

/// Those of a context, for work and for copies: streams take one after the other. None where streams share nothing.
struct connections {
  using list = std::vector<std::shared_ptr<connection>>;
  list work, copies;
  std::atomic<std::size_t> streams{0};
};
/// How many a context that is made from now on has of each; 0: each stream its own.
[[nodiscard]] std::atomic<unsigned>& connections_of_contexts();

struct operation {
  std::function<CUresult()> run;  // not 0: the context is lost
  std::vector<mark_ref> after{};
  bool waits = false;           // it is at the head of its connection until it has ended
  bool copies = false;          // it goes to a connection for copies
  bool guarded = true;          // false: does not touch device memory, or guards itself
  bool even_when_lost = false;  // bookkeeping that must happen
  mark_ref done = std::make_shared<mark>();
  std::shared_ptr<connection> through{};
  std::uint64_t ticket = 0;
};

class stream : public std::enable_shared_from_this<stream> {
 public:
  /// Of a green context: kernels run on its multiprocessors.
  using multiprocessor_list = std::shared_ptr<const std::vector<unsigned>>;
  stream(std::shared_ptr<context> home, bool blocking, int priority, multiprocessor_list multiprocessors = nullptr);
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream() { count().fetch_sub(1); }
  [[nodiscard]] static unsigned long long alive() { return count().load(); }

  mark_ref submit(operation work);
  /// The newest submitted work; null when there was none yet.
  [[nodiscard]] mark_ref last();
  [[nodiscard]] const std::shared_ptr<context>& home() const { return home_; }
  [[nodiscard]] bool blocking() const { return blocking_; }
  [[nodiscard]] int priority() const { return priority_; }
  /// Null: all of the device's.
  [[nodiscard]] const multiprocessor_list& multiprocessors() const { return multiprocessors_; }
  /// The context that its green context was converted into; null: none.
  CUcontext converted = nullptr;
  /// Its green context is gone: every call with it says so.
  [[nodiscard]] std::atomic<bool>& orphaned() { return orphaned_; }
  /// The thread ends when what is queued has ended.
  void close();
  [[nodiscard]] worker_thread& worker() { return worker_; }

 private:
  void serve();
  [[nodiscard]] static std::atomic<unsigned long long>& count();

  std::shared_ptr<context> home_;
  bool blocking_;
  int priority_;
  multiprocessor_list multiprocessors_;
  std::size_t number_ = 0;  // of its context
  std::atomic<bool> orphaned_{false};
  worker_thread worker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<operation> queue_;
  mark_ref last_;
  bool started_ = false;
  bool closed_ = false;
};
using stream_ref = std::shared_ptr<stream>;

/// Whether this thread runs a function of the program at the moment, which may call nothing of the driver.
[[nodiscard]] bool& inside_host_function();

/// Told of each thread's own work of the driver: +1 where it begins, -1 where it ends or calls the program.
using own_work_listener = void (*)(int);
[[nodiscard]] std::atomic<own_work_listener>& own_work_listened_to_by() noexcept;
class own_work {
 public:
  explicit own_work(int step = 1) noexcept : step_(step), listener_(own_work_listened_to_by().load()) { tell(step_); }
  own_work(const own_work&) = delete;
  own_work& operator=(const own_work&) = delete;
  ~own_work() { tell(-step_); }

 private:
  void tell(int step) const noexcept {
    if (listener_ != nullptr) listener_(step);
  }
  int step_;
  own_work_listener listener_;
};

}  // namespace weft::virtual_cuda
