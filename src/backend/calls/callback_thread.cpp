// SPDX-License-Identifier: Apache-2.0
#include "backend/calls/callback_thread.hpp"

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
    bool holds = false;
    std::uint64_t number = 0;
    bool is_ready = true;  // false while after() still prepares it
  };
  kind what;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<entry> waiting;
  std::uint64_t numbers = 0;
  bool ended = false;
  bool gone = false;  // nobody serves any more
  std::thread::id server;

  void serve();
};

callback_thread::callback_thread(kind what) : desk_(std::make_shared<desk>()) {
  desk_->what = std::move(what);
  thread_ = std::thread{[shared = desk_] {
    pthread_setname_np(pthread_self(), shared->what.name);
    if (shared->what.hold) shared->what.hold->decided_here();
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
  const bool holds = desk_->what.hold != nullptr;
  std::uint64_t number = 0;
  {
    std::unique_lock lock{desk_->mutex};
    if (desk_->gone) {  // the machine is closed, and every event of it has ended
      lock.unlock();
      return f();
    }
    number = ++desk_->numbers;
    desk_->waiting.push_back({event, std::move(f), holds, number, false});
  }
  const auto entry_of = [&] {
    return std::find_if(desk_->waiting.begin(), desk_->waiting.end(),
                        [&](const desk::entry& w) { return w.number == number; });
  };
  try {
    event->on_complete([shared = desk_] {
      const std::lock_guard lock{shared->mutex};
      shared->changed.notify_all();
    });
    // The hold is taken where the clock stands, on the thread that ended the event; and asked for before the thread may
    // take the entry, or it could give back what has not been taken. Last, since it cannot be taken back.
    if (holds) event->on_ending([shared = desk_](const error*) { shared->what.hold->take(); });
  } catch (...) {
    const std::lock_guard lock{desk_->mutex};
    desk_->waiting.erase(entry_of());
    desk_->changed.notify_all();  // the thread may only have waited for this entry to end
    throw;
  }
  const std::lock_guard lock{desk_->mutex};
  entry_of()->is_ready = true;
  desk_->changed.notify_all();
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
    const auto done = std::find_if(waiting.begin(), waiting.end(),
                                   [](const entry& w) { return w.is_ready && (!w.event || w.event->finished()); });
    if (done != waiting.end()) {
      auto f = std::move(done->f);
      event_ref event = std::move(done->event);
      const bool holds = done->holds;
      waiting.erase(done);
      lock.unlock();
      // the callback comes after the event, and so does what it submits: check modes are told by the question
      if (event) static_cast<void>(event->owner->ready(*event));
      event = {};  // before the callback, with which the machine may go
      try {
        f();
      } catch (...) {
        log(log_level::error, "a callback threw; what it threw is lost");
      }
      f = nullptr;
      if (holds) what.hold->give();
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
    if (!what.polls) {
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
