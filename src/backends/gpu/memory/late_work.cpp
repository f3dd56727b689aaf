// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory/late_work.hpp"

#include <new>
#include <system_error>
#include <utility>

namespace weft::gpu {
namespace {

/// How often what is waited for is asked.
constexpr std::chrono::milliseconds look_at_late_work_every{20};

}  // namespace

late_work::~late_work() {
  if (here_.forked() && thread_.joinable()) thread_.detach();  // it is the parent's
}

void late_work::start() {
  if (!thread_.joinable()) thread_ = std::jthread{[this](const std::stop_token& shutdown) { serve(shutdown); }};
  changed_.notify_all();
}

void late_work::add(std::function<void()> work) noexcept {
  try {
    const std::lock_guard lock{mutex_};
    due_.push_back(std::move(work));
    start();
  } catch (const std::bad_alloc&) {
    // the memory goes back with the context
  } catch (const std::system_error&) {
    // settle() does it
  }
}

bool late_work::add_when(std::function<bool()> may, std::function<void()> work) noexcept {
  try {
    const std::lock_guard lock{mutex_};
    if (has_ended_) return false;
    waiting_.push_back({std::move(may), std::move(work)});
    start();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::system_error&) {
    return true;  // settle() does it
  }
}

/// What is due, and what is waited for no longer. Under the mutex.
void late_work::take_ready(std::vector<std::function<void()>>& into) noexcept {
  into.swap(due_);
  looks_now_ = false;
  try {
    into.reserve(into.size() + waiting_.size());
  } catch (const std::bad_alloc&) {
    return;  // another time
  }
  std::erase_if(waiting_, [&](waiting_work& one) {
    if (!one.may()) return false;
    into.push_back(std::move(one.work));
    return true;
  });
}

void late_work::end() noexcept {
  if (here_.forked()) return;
  std::jthread ends;  // is asked to stop, and joined, where it goes: without the lock
  {
    const std::lock_guard lock{mutex_};
    ends.swap(thread_);
    has_ended_ = true;  // what runs now may put itself off again
    waiting_.clear();
  }
}

void late_work::settle(std::chrono::milliseconds timeout) noexcept {
  std::vector<std::function<void()>> mine;
  {
    std::unique_lock lock{mutex_};
    if (thread_.joinable()) {
      looks_now_ = !waiting_.empty();
      changed_.notify_all();
      changed_.wait_for(lock, timeout, [this] { return due_.empty() && !looks_now_ && !is_busy_; });
      return;
    }
    take_ready(mine);
  }
  for (const auto& work : mine) work();
}

void late_work::serve(const std::stop_token& shutdown) {
  std::unique_lock lock{mutex_};
  const auto is_called = [this] { return !due_.empty() || looks_now_; };
  while (!shutdown.stop_requested() || !due_.empty()) {  // what is due is done before the end
    if (waiting_.empty()) {
      if (!changed_.wait(lock, shutdown, [&] { return is_called() || !waiting_.empty(); })) return;
    } else {
      static_cast<void>(changed_.wait_for(lock, shutdown, look_at_late_work_every, is_called));
    }
    std::vector<std::function<void()>> now;
    take_ready(now);
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
