// SPDX-License-Identifier: Apache-2.0
#include "backends/host/order/host_stream.hpp"

#include "backends/host/order/scheduler.hpp"
#include "os/parking.hpp"

#include <new>
#include <pthread.h>
#include <string>
#include <unistd.h>
#include <utility>

namespace weft::host {

host_stream::~host_stream() {
  end();
  for (free_node* list : {free_, returned_.load(std::memory_order_acquire)}) {
    while (list != nullptr)
      ::operator delete(std::exchange(list, list->next), sizeof(operation), std::align_val_t{alignof(operation)});
  }
}

void* host_stream::take_memory() {
  while (take_lock_.test_and_set(std::memory_order_acquire)) parking::pause();
  if (free_ == nullptr) free_ = returned_.exchange(nullptr, std::memory_order_acquire);  // pairs with give_memory
  free_node* node = free_;
  if (node != nullptr) free_ = node->next;
  take_lock_.clear(std::memory_order_release);
  return node != nullptr ? node : ::operator new(sizeof(operation), std::align_val_t{alignof(operation)});
}

void host_stream::give_memory(void* memory) noexcept {
  auto* node = ::new (memory) free_node{returned_.load(std::memory_order_relaxed)};
  // release: whoever takes it sees what was written by then
  while (!returned_.compare_exchange_weak(node->next, node, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void operation::operator delete(operation* op, std::destroying_delete_t) {
  host_stream* home = op->home;
  op->~operation();
  home->give_memory(op);
}

bool host_stream::start() noexcept {
  const std::lock_guard lock{worker_mutex_};
  if (serving_.load(std::memory_order_relaxed)) return true;
  try {
    worker_ = std::jthread{[this](const std::stop_token& ended) {
      const std::string name = "weft-" + to_string(device());
      pthread_setname_np(pthread_self(), name.c_str());
      worker_thread_.store(gettid(), std::memory_order_relaxed);
      serve(ended);
      worker_thread_.store(0, std::memory_order_relaxed);
    }};
  } catch (const std::exception&) {
    return false;  // no thread to be had, or no memory for one
  }
  serving_.store(true, std::memory_order_seq_cst);
  return true;
}

void host_stream::end() {
  {
    const std::lock_guard lock{worker_mutex_};
    if (!worker_.joinable()) return;
    worker_.request_stop();
    doorbell_.store(0, std::memory_order_release);
    parking::wake_all(doorbell_);
    worker_.join();
    serving_.store(false, std::memory_order_seq_cst);
  }
  // Pushed after the worker's last look, by somebody who still saw it serving: it must not be lost.
  if (arrivals_.load(std::memory_order_seq_cst) != nullptr) start();
}

void host_stream::push(operation* op) {
  operation* newest = arrivals_.load(std::memory_order_relaxed);
  do {
    op->next = newest;
    // seq_cst with the load of the doorbell below: either the worker sees the operation, or we see it asleep
  } while (!arrivals_.compare_exchange_weak(newest, op, std::memory_order_seq_cst, std::memory_order_relaxed));
  if (doorbell_.load(std::memory_order_seq_cst) != 0 && doorbell_.exchange(0, std::memory_order_acq_rel) != 0) {
    parking::wake_all(doorbell_);
  }
  // after the push: a worker that ended meanwhile left the operation, and a new one finds it
  if (!serving_.load(std::memory_order_seq_cst)) start();
}

void host_stream::serve(const std::stop_token& ended) {
  bool has_work = false;
  const auto count = [&](bool now) {
    if (std::exchange(has_work, now) != now) parking::count_at_work(now ? 1 : -1);
  };
  for (;;) {
    operation* batch = arrivals_.exchange(nullptr, std::memory_order_acquire);  // pairs with the push
    if (batch == nullptr) {
      last_ended_ = {};
      count(false);
      if (ended.stop_requested()) return;
      if (const waiting policy = owner_.policy_now(); policy != waiting::park) {
        parking::spinner spinner{policy};
        bool found = false;
        while (!found && spinner.spin()) {
          found = arrivals_.load(std::memory_order_relaxed) != nullptr ||
                  (spinner.time_to_look() && ended.stop_requested());
        }
        if (found) continue;
      }
      doorbell_.store(1, std::memory_order_seq_cst);
      if (arrivals_.load(std::memory_order_seq_cst) != nullptr || ended.stop_requested()) {
        doorbell_.store(0, std::memory_order_relaxed);
        continue;
      }
      parking::park(doorbell_, 1, std::chrono::steady_clock::time_point::max());
      continue;
    }
    count(true);
    // A synchronous copy may still run on its caller's thread: it came first, and ends by itself. None can start while
    // anything of this batch is unfinished.
    while ((submitted_.load(std::memory_order_seq_cst) & inline_bit) != 0) std::this_thread::yield();
    operation* in_order = nullptr;
    while (batch != nullptr) {
      operation* rest = batch->next;
      batch->next = in_order;
      in_order = batch;
      batch = rest;
    }
    while (in_order != nullptr) {
      operation* op = in_order;
      in_order = op->next;
      owner_.execute(*op, in_order);
    }
  }
}

}  // namespace weft::host
