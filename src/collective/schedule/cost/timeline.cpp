// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule/cost/timeline.hpp"

#include <algorithm>
#include <functional>

namespace weft::detail {
namespace {

template <class Queue>
void push(Queue& to, const typename Queue::value_type& one) {
  to.push_back(one);
  std::push_heap(to.begin(), to.end(), std::greater<>{});
}

template <class Queue>
typename Queue::value_type pop(Queue& from) {
  std::pop_heap(from.begin(), from.end(), std::greater<>{});
  const auto first = from.back();
  from.pop_back();
  return first;
}

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

timeline::timeline(std::size_t resources) : busy_(resources, 0), waiting_(resources) {}

int timeline::add_stream() {
  last_of_.push_back(-1);
  return static_cast<int>(last_of_.size()) - 1;
}

int timeline::add(int stream, std::chrono::nanoseconds duration, std::span<const int> needs) {
  const auto made = static_cast<int>(operations_.size());
  operations_.push_back({duration, needs});
  int& last = last_of_[at(stream)];
  if (last >= 0) {
    operations_[at(last)].next = made;
    ++operations_.back().missing;
  }
  last = made;
  return made;
}

int timeline::add_wait(int stream, int before) {
  const int made = add(stream, {});
  operation& first = operations_[at(before)];
  operations_.back().next_waiter = first.first_waiter;
  first.first_waiter = made;
  ++operations_.back().missing;
  return made;
}

void timeline::ready(int op) {
  if (--operations_[at(op)].missing == 0) push(fresh_, {now_, op});
}

void timeline::end_of(int op) {
  const operation& over = operations_[at(op)];
  for (const int r : over.needs) busy_[at(r)] = 0;
  freed_ = over.needs;
  if (over.next >= 0) ready(over.next);
  for (int waiter = over.first_waiter; waiter >= 0; waiter = operations_[at(waiter)].next_waiter) ready(waiter);
}

void timeline::try_start(const entry& one) {
  const operation& op = operations_[at(one.second)];
  for (const int r : op.needs) {
    if (busy_[at(r)] == 0) continue;
    push(waiting_[at(r)], one);
    return;
  }
  for (const int r : op.needs) busy_[at(r)] = 1;
  push(running_, {now_ + op.duration, one.second});
}

/// Whatever waits lacks a resource that it waits with: only what was freed just now lets something start.
void timeline::start_what_can() {
  for (;;) {
    queue* first = fresh_.empty() ? nullptr : &fresh_;
    for (const int r : freed_) {
      queue& waits = waiting_[at(r)];
      if (busy_[at(r)] == 0 && !waits.empty() && (first == nullptr || waits.front() < first->front())) first = &waits;
    }
    if (first == nullptr) return;
    try_start(pop(*first));
  }
}

std::chrono::nanoseconds timeline::run() {
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    if (operations_[i].missing == 0) push(fresh_, {now_, static_cast<int>(i)});
  }
  start_what_can();
  while (!running_.empty()) {
    const auto [end, op] = pop(running_);
    now_ = end;
    end_of(op);
    start_what_can();
  }
  return now_;
}

}  // namespace weft::detail
