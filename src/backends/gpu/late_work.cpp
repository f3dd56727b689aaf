// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/late_work.hpp"

#include <new>
#include <system_error>
#include <utility>

namespace weft::gpu {

late_work::~late_work() {
  if (here_.forked() && thread_.joinable()) thread_.detach();  // it is the parent's
}

void late_work::add(std::function<void()> work) noexcept {
  try {
    const std::lock_guard lock{mutex_};
    due_.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::jthread{[this](const std::stop_token& shutdown) { serve(shutdown); }};
    changed_.notify_all();
  } catch (const std::bad_alloc&) {
    // the memory goes back with the context
  } catch (const std::system_error&) {
    // settle() does it
  }
}

void late_work::settle(std::chrono::milliseconds limit) noexcept {
  std::vector<std::function<void()>> mine;
  {
    std::unique_lock lock{mutex_};
    if (thread_.joinable()) {
      changed_.wait_for(lock, limit, [this] { return due_.empty() && !is_busy_; });
      return;
    }
    mine.swap(due_);
  }
  for (const auto& work : mine) work();
}

void late_work::serve(const std::stop_token& shutdown) {
  std::unique_lock lock{mutex_};
  while (changed_.wait(lock, shutdown, [this] { return !due_.empty(); })) {
    std::vector<std::function<void()>> now;
    now.swap(due_);
    is_busy_ = true;
    lock.unlock();
    for (const auto& work : now) work();
    now.clear();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace weft::gpu
