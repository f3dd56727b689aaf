// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/stream.hpp"

#include "virtual_driver/driver/machine.hpp"

#include <thread>

namespace weft::virtual_cuda {

void mark::end() {
  when = std::chrono::steady_clock::now();
  ended.store(1, std::memory_order_release);
  ended.notify_all();
}

void mark::wait() const {
  while (ended.load(std::memory_order_acquire) == 0) ended.wait(0, std::memory_order_acquire);
}

std::atomic<own_work_listener>& own_work_listened_to_by() noexcept {
  static std::atomic<own_work_listener> listener{nullptr};
  return listener;
}

bool& inside_host_function() {
  thread_local bool inside = false;
  return inside;
}

std::atomic<unsigned long long>& stream::count() {
  static std::atomic<unsigned long long> all{0};
  return all;
}

void connection::wait_turn(std::uint64_t ticket) const {
  for (auto now = turn_.load(); now != ticket; now = turn_.load()) turn_.wait(now);
}

void connection::next() {
  turn_.fetch_add(1);
  turn_.notify_all();
}

std::atomic<unsigned>& connections_of_contexts() {
  static std::atomic<unsigned> count{0};
  return count;
}

stream::stream(std::shared_ptr<context> home, bool blocking, int priority, multiprocessor_list multiprocessors)
    : home_(std::move(home)),
      blocking_(blocking),
      priority_(priority),
      multiprocessors_(std::move(multiprocessors)),
      number_(home_->shared.streams.fetch_add(1)) {
  count().fetch_add(1);
}

mark_ref stream::submit(operation work) {
  mark_ref done = work.done;
  const std::lock_guard lock{mutex_};
  const connections::list& shared = work.copies ? home_->shared.copies : home_->shared.work;
  if (!shared.empty()) {
    work.through = shared[number_ % shared.size()];
    work.ticket = work.through->ticket();
  }
  last_ = done;
  queue_.push_back(std::move(work));
  if (!started_) {
    started_ = true;
    std::thread([self = shared_from_this()] { self->serve(); }).detach();
  }
  changed_.notify_one();
  return done;
}

mark_ref stream::last() {
  const std::lock_guard lock{mutex_};
  return last_;
}

void stream::close() {
  const std::lock_guard lock{mutex_};
  closed_ = true;
  changed_.notify_one();
}

void stream::serve() {
  const own_work all_of_this_thread;
  worker_.enter();
  for (;;) {
    operation next;
    {
      std::unique_lock lock{mutex_};
      changed_.wait(lock, [&] { return !queue_.empty() || closed_; });
      if (queue_.empty()) break;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    if (next.through != nullptr) next.through->wait_turn(next.ticket);
    for (const mark_ref& before : next.after) before->wait();
    next.after.clear();
    if (next.through != nullptr && !next.waits) next.through->next();
    if (home_->lost.load() == 0 || next.even_when_lost) {
      CUresult code = 0;
      if (next.guarded) {
        guard g;
        CUresult own_code = 0;
        code = run_guarded(g, [&] { own_code = next.run(); });
        if (code == 0) code = own_code;
      } else {
        code = next.run();
      }
      if (code != 0) home_->lose(code);
    }
    if (next.through != nullptr && next.waits) next.through->next();
    next.run = nullptr;  // what it holds goes before anybody sees it ended
    next.done->end();
  }
  worker_.leave();
}

}  // namespace weft::virtual_cuda
