// SPDX-License-Identifier: Apache-2.0
// A thread for what may wait long in the driver and must hold nobody up: giving memory back waits for all work of a
// GPU, and what other processes use waits for them.
#pragma once

#include "os/fork_watch.hpp"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::gpu {

/// Thread: any.
class late_work {
 public:
  late_work() = default;
  late_work(const late_work&) = delete;
  late_work& operator=(const late_work&) = delete;
  ~late_work();

  /// Has it done soon. Where no thread can be started, by the next settle().
  void add(std::function<void()> work) noexcept;
  /// Has it done once `may` says so, which is asked now and then, and by settle(). What is still waited for at the end
  /// is not done, nor what is to be waited for after it. False: there was no memory for it, or the end has come.
  bool add_when(std::function<bool()> may, std::function<void()> work) noexcept;
  /// What is still waited for is not done, and nothing runs any more until more is added.
  void end() noexcept;
  /// Waits until all of it is done, though not longer than this: who asks may be who lets the GPU come to its end.
  void settle(std::chrono::milliseconds timeout) noexcept;

 private:
  struct waiting_work {
    std::function<bool()> may;
    std::function<void()> work;
  };
  void start();
  void serve(const std::stop_token& shutdown);
  void take_ready(std::vector<std::function<void()>>& into) noexcept;

  detail::fork_watch here_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::function<void()>> due_;
  std::vector<waiting_work> waiting_;
  bool looks_now_ = false;
  bool is_busy_ = false;
  bool has_ended_ = false;
  std::jthread thread_;  // started with the first
};

}  // namespace weft::gpu
