// SPDX-License-Identifier: Apache-2.0
// A small lazy coroutine: it starts when awaited, and hands its value or exception to the one who awaits it.
#pragma once

#include <condition_variable>
#include <coroutine>
#include <exception>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace weft {

template <class T>
class task;

namespace detail {

struct task_promise_base {
  std::coroutine_handle<> continuation = std::noop_coroutine();

  struct final_awaiter {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> finished) const noexcept {
      return finished.promise().continuation;
    }
    void await_resume() const noexcept {}
  };
  [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
  [[nodiscard]] final_awaiter final_suspend() const noexcept { return {}; }
};

template <class T>
struct task_promise : task_promise_base {
  std::variant<std::monostate, T, std::exception_ptr> outcome;

  task<T> get_return_object();
  template <class U>
  void return_value(U&& value) {
    outcome.template emplace<1>(std::forward<U>(value));
  }
  void unhandled_exception() { outcome.template emplace<2>(std::current_exception()); }
  T take() {
    if (outcome.index() == 2) std::rethrow_exception(std::get<2>(outcome));
    return std::move(std::get<1>(outcome));
  }
};

template <>
struct task_promise<void> : task_promise_base {
  std::exception_ptr failure;

  task<void> get_return_object();
  void return_void() const noexcept {}
  void unhandled_exception() { failure = std::current_exception(); }
  void take() const {
    if (failure) std::rethrow_exception(failure);
  }
};

}  // namespace detail

/// A coroutine that will give a T. Owns its frame; await it once, or hand it to sync_wait().
/// Thread: one at a time.
template <class T = void>
class [[nodiscard]] task {
 public:
  using promise_type = detail::task_promise<T>;

  explicit task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  task(task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  task& operator=(task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  task(const task&) = delete;
  task& operator=(const task&) = delete;
  ~task() {
    if (handle_) handle_.destroy();
  }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiter) noexcept {
    handle_.promise().continuation = waiter;
    return handle_;
  }
  T await_resume() { return handle_.promise().take(); }

 private:
  std::coroutine_handle<promise_type> handle_;
};

namespace detail {

template <class T>
task<T> task_promise<T>::get_return_object() {
  return task<T>{std::coroutine_handle<task_promise<T>>::from_promise(*this)};
}
inline task<void> task_promise<void>::get_return_object() {
  return task<void>{std::coroutine_handle<task_promise<void>>::from_promise(*this)};
}

/// Lets a plain thread wait for a coroutine.
class sync_latch {
 public:
  void open() {
    const std::lock_guard lock{mutex_};
    open_ = true;
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock{mutex_};
    opened_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

struct sync_driver {
  struct promise_type {
    sync_latch* latch = nullptr;
    sync_driver get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
    [[nodiscard]] auto final_suspend() const noexcept {
      struct opener {
        [[nodiscard]] bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<promise_type> h) const noexcept { h.promise().latch->open(); }
        void await_resume() const noexcept {}
      };
      return opener{};
    }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept {}  // the driven body catches everything itself
  };
  std::coroutine_handle<promise_type> handle;
};

}  // namespace detail

/// Runs a task to its end on this thread and the machine's callback thread; gives its value or rethrows.
template <class T>
T sync_wait(task<T> work) {
  std::exception_ptr failure;
  if constexpr (std::is_void_v<T>) {
    auto drive = [](task<void>& inner, std::exception_ptr& caught) -> detail::sync_driver {
      try {
        co_await inner;
      } catch (...) {
        caught = std::current_exception();
      }
    };
    detail::sync_latch latch;
    auto driver = drive(work, failure);
    driver.handle.promise().latch = &latch;
    driver.handle.resume();
    latch.wait();
    driver.handle.destroy();
    if (failure) std::rethrow_exception(failure);
  } else {
    std::optional<T> value;
    auto drive = [](task<T>& inner, std::optional<T>& out, std::exception_ptr& caught) -> detail::sync_driver {
      try {
        out.emplace(co_await inner);
      } catch (...) {
        caught = std::current_exception();
      }
    };
    detail::sync_latch latch;
    auto driver = drive(work, value, failure);
    driver.handle.promise().latch = &latch;
    driver.handle.resume();
    latch.wait();
    driver.handle.destroy();
    if (failure) std::rethrow_exception(failure);
    return std::move(*value);
  }
}

}  // namespace weft
