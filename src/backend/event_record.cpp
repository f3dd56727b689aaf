// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/event_record.hpp"

#include "os/parking.hpp"

#include <algorithm>

namespace weft {

void event_record::complete(std::shared_ptr<const error> cause, std::atomic<std::uint32_t>* ending) noexcept {
  cause_ = std::move(cause);
  // release: pairs with the acquire in finished(); a waiter that sees the bit sees the cause, the work and the endings
  std::uint32_t before = word_.load(std::memory_order_acquire);
  for (;;) {
    if ((before & endings_bit) != 0) {
      before = word_.fetch_and(~endings_bit, std::memory_order_acq_rel) & ~endings_bit;
      run_endings();
    } else if (word_.compare_exchange_weak(before, before | finished_bit, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
      break;
    }
  }
  if (ending != nullptr) ending->fetch_sub(1, std::memory_order_release);
  if ((before & parked_bit) != 0) parking::wake_all(word_);
  if ((before & callbacks_bit) != 0) {
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock{callbacks_mutex_};
      callbacks.swap(callbacks_);
    }
    for (auto& f : callbacks) f();
  }
}

void event_record::run_endings() noexcept {
  std::vector<std::function<void(const error*)>> endings;
  {
    const std::lock_guard lock{callbacks_mutex_};
    endings.swap(endings_);
  }
  for (auto& f : endings) f(cause_.get());
}

void event_record::on_ending(std::function<void(const error*)> f) {
  {
    const std::lock_guard lock{callbacks_mutex_};
    const std::uint32_t before = word_.fetch_or(endings_bit, std::memory_order_acq_rel);
    if ((before & finished_bit) == 0) {
      endings_.push_back(std::move(f));
      return;
    }
  }
  f(cause_.get());
}

wait_outcome event_record::wait(std::chrono::steady_clock::time_point until, const std::stop_token& stop,
                                waiting policy) noexcept {
  const auto outcome = [this] { return cause_ ? wait_outcome::failed : wait_outcome::ok; };
  if (finished()) return outcome();
  if (stop.stop_requested()) return wait_outcome::cancelled;

  const bool bounded = until != std::chrono::steady_clock::time_point::max();
  if (policy != waiting::park) {
    parking::spinner spinner{policy};
    while (spinner.spin()) {
      if (finished()) return outcome();
      if (stop.stop_requested()) return wait_outcome::cancelled;
      if (bounded && spinner.time_to_look() && std::chrono::steady_clock::now() >= until)
        return wait_outcome::timed_out;
    }
  }

  // A stop request changes the word, so that a waiter on its way to sleep does not miss it.
  const std::stop_callback nudge_waiters{stop, [this] {
                                           word_.fetch_add(nudge, std::memory_order_release);
                                           parking::wake_all(word_);
                                         }};
  for (;;) {
    const std::uint32_t seen = word_.fetch_or(parked_bit, std::memory_order_acq_rel) | parked_bit;
    if ((seen & finished_bit) != 0) return outcome();
    if (stop.stop_requested()) return wait_outcome::cancelled;
    if (bounded && std::chrono::steady_clock::now() >= until) return wait_outcome::timed_out;
    parking::park(word_, seen, until);
  }
}

void event_record::on_complete(std::function<void()> f) {
  tell();  // before `f` is known: with it may go the last reference
  {
    const std::lock_guard lock{callbacks_mutex_};
    // tell() has left the bit: who ends the record after this look takes the lock, and finds `f`
    if (!finished()) {
      callbacks_.push_back(std::move(f));
      return;
    }
  }
  f();
}

void event_record::tell() noexcept {
  const std::uint32_t before = word_.fetch_or(callbacks_bit, std::memory_order_acq_rel);
  if ((before & (finished_bit | callbacks_bit)) == 0) watched();
}

}  // namespace weft
