// SPDX-License-Identifier: Apache-2.0
#include "backend/calls/call_gate.hpp"

#include "backend/address.hpp"

#include <algorithm>
#include <chrono>
#include <pthread.h>
#include <string>
#include <thread>
#include <unistd.h>

namespace weft::detail {
namespace {

std::uintptr_t this_thread() noexcept { return static_cast<std::uintptr_t>(pthread_self()); }

/// Threads lie a stack apart, or as their allocator has them: neither differs in the low bits.
std::size_t spread(std::uintptr_t thread) noexcept { return (thread * 0x9e3779b97f4a7c15U) >> 40; }

}  // namespace

// A thread writes its place and then reads is_shut_, who closes writes is_shut_ and then reads the places: both in one
// order of all (seq_cst), so that one of the two sees the other.
call_gate::pass::pass(call_gate& gate) noexcept : gate_(gate), thread_(this_thread()) {
  if (gate.forked()) return;
  const std::size_t begin = spread(thread_);
  for (std::size_t i = 0; i < tries; ++i) {
    place& here = gate.places_[(begin + i) % places];
    std::uintptr_t owner = here.thread.load(std::memory_order_relaxed);
    if (owner == thread_) {
      if (gate.is_shut_.load(std::memory_order_relaxed)) return;
      ++here.depth;
      place_ = &here;
      is_inside_ = true;
      return;
    }
    if (owner != 0 || !here.thread.compare_exchange_strong(owner, thread_, std::memory_order_seq_cst)) continue;
    if (gate.is_shut_.load(std::memory_order_seq_cst)) {
      here.thread.store(0, std::memory_order_release);
      return;
    }
    here.depth = 1;
    place_ = &here;
    is_inside_ = true;
    return;
  }
  const std::lock_guard lock{gate.list_mutex_};
  if (gate.is_shut_.load(std::memory_order_seq_cst)) return;
  next_ = gate.list_;
  if (next_ != nullptr) next_->previous_ = this;
  gate.list_ = this;
  is_inside_ = true;
}

call_gate::pass::~pass() {
  if (!is_inside_) return;
  if (place_ != nullptr) {
    if (--place_->depth == 0) place_->thread.store(0, std::memory_order_release);  // pairs with others_inside
    return;
  }
  const std::lock_guard lock{gate_.list_mutex_};
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : gate_.list_) = next_;
}

bool call_gate::is_inside() noexcept {
  const std::uintptr_t self = this_thread();
  const std::size_t begin = spread(self);
  for (std::size_t i = 0; i < tries; ++i) {
    if (places_[(begin + i) % places].thread.load(std::memory_order_relaxed) == self) return true;
  }
  const std::lock_guard lock{list_mutex_};
  for (const pass* one = list_; one != nullptr; one = one->next_) {
    if (one->thread_ == self) return true;
  }
  return false;
}

bool call_gate::others_inside() noexcept {
  const std::uintptr_t self = this_thread();
  for (const place& one : places_) {
    const std::uintptr_t owner = one.thread.load(std::memory_order_seq_cst);
    if (owner != 0 && owner != self) return true;
  }
  const std::lock_guard lock{list_mutex_};
  for (const pass* one = list_; one != nullptr; one = one->next_) {
    if (one->thread_ != self) return true;
  }
  return false;
}

// Nobody wakes who closes: that would cost every call a fence. The work has ended, so calls come back by themselves.
void call_gate::wait_until_empty() noexcept {
  auto pause = std::chrono::microseconds{1};
  for (int looks = 0; others_inside(); ++looks) {
    if (looks < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds{1000});
    }
  }
}

error call_gate::refusal() const {
  if (!forked()) return closed_machine();
  return make_error(errc::closed,
                    "this machine belongs to process " + std::to_string(::getppid()) +
                        ", and this is the child of a fork, which has neither its threads nor its driver. "
                        "Fork before there is a machine, and make one in the child");
}

}  // namespace weft::detail
