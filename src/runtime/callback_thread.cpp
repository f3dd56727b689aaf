// SPDX-License-Identifier: Apache-2.0
#include "runtime/callback_thread.hpp"

#include "weft/backend/backend.hpp"
#include "weft/core/log.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <pthread.h>

namespace weft::detail {

struct callback_thread::desk {
  struct entry {
    event_ref event;
    std::function<void()> f;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<entry> waiting;
  bool ended = false;
  bool gone = false;  // nobody serves any more
  std::thread::id server;

  void serve();
};

callback_thread::callback_thread() : desk_(std::make_shared<desk>()) {
  thread_ = std::thread{[shared = desk_] {
    pthread_setname_np(pthread_self(), "weft-callbacks");
    shared->serve();
  }};
}

callback_thread::~callback_thread() { end(); }

void callback_thread::end() noexcept {
  {
    const std::lock_guard lock{desk_->mutex};
    desk_->ended = true;
    desk_->changed.notify_all();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // called from a callback: the thread ends by itself
  } else {
    thread_.join();
  }
}

void callback_thread::after(const event_ref& given, std::function<void()> f) {
  // a copy: the caller's own may go with the callback, before this call is over
  const event_ref event = given;  // NOLINT(performance-unnecessary-copy-initialization)
  {
    std::unique_lock lock{desk_->mutex};
    if (desk_->gone) {  // the machine is closed, and every event of it has ended
      lock.unlock();
      f();
      return;
    }
    desk_->waiting.push_back({event, std::move(f)});
    desk_->changed.notify_all();
  }
  event->on_complete([shared = desk_] {
    const std::lock_guard lock{shared->mutex};
    shared->changed.notify_all();
  });
}

void callback_thread::soon(std::function<void()> f) {
  {
    const std::lock_guard lock{desk_->mutex};
    if (!desk_->gone) {
      desk_->waiting.push_back({{}, std::move(f)});
      desk_->changed.notify_all();
      return;
    }
  }
  f();
}

bool callback_thread::is_current() const noexcept {
  const std::lock_guard lock{desk_->mutex};
  return desk_->server == std::this_thread::get_id();
}

void callback_thread::desk::serve() {
  // How long to sleep before looking again at events of backends that do not tell; others wake this thread.
  constexpr std::chrono::microseconds look_again{200};
  std::unique_lock lock{mutex};
  server = std::this_thread::get_id();
  for (;;) {
    const auto done =
        std::find_if(waiting.begin(), waiting.end(), [](const entry& w) { return !w.event || w.event->finished(); });
    if (done != waiting.end()) {
      auto f = std::move(done->f);
      waiting.erase(done);
      lock.unlock();
      try {
        f();
      } catch (...) {
        log(log_level::error, "a callback threw; what it threw is lost");
      }
      f = nullptr;
      lock.lock();
      continue;
    }
    if (waiting.empty()) {
      if (ended) {
        gone = true;
        return;
      }
      changed.wait(lock);
      continue;
    }
    const event_ref oldest = waiting.front().event;
    lock.unlock();
    const bool moved = oldest->owner->ready(*oldest);
    lock.lock();
    if (!moved) changed.wait_for(lock, look_again);
  }
}

}  // namespace weft::detail
