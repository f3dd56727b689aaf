// SPDX-License-Identifier: Apache-2.0
#include "backends/host/order/virtual_clock.hpp"

#include "backends/host/order/scheduler.hpp"
#include "core/modelled_time.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <unistd.h>
#include <utility>

namespace weft::host {
namespace {

using std::chrono::nanoseconds;

/// splitmix64 of several numbers: what is drawn depends on these alone, never on who drew before.
template <class... Numbers>
std::uint64_t hash(Numbers... numbers) {
  std::uint64_t h = 0;
  const auto mix = [&h](std::uint64_t number) {
    h += number + 0x9e3779b97f4a7c15;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
    h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
    h ^= h >> 31;
  };
  (mix(static_cast<std::uint64_t>(numbers)), ...);
  return h;
}

/// In (0, 1].
double uniform(std::uint64_t h) { return static_cast<double>((h >> 11) + 1) * 0x1p-53; }

/// Box and Muller's transform of two uniform numbers.
double standard_normal(std::uint64_t h) {
  return std::sqrt(-2 * std::log(uniform(hash(h, 1)))) * std::cos(2 * std::numbers::pi * uniform(hash(h, 2)));
}

}  // namespace

virtual_clock::virtual_clock(const topology& machine, device_id first, scheduler& owner, stream_table& streams,
                             fault_plan& faults, virtual_clock_options options)
    : machine_(machine),
      first_(first),
      owner_(owner),
      streams_(streams),
      faults_(faults),
      options_(std::move(options)),
      device_busy_(machine.devices.size()),
      engine_busy_(machine.devices.size()),
      kernels_begun_(machine.devices.size()) {
  int wires = 0;
  for (const topology_link& l : machine.links) wires = std::max(wires, l.wire + 1);
  wire_busy_.resize(static_cast<std::size_t>(wires));
}

bool virtual_clock::admit(operation& op) {
  const std::lock_guard lock{mutex_};
  // again, now that close() cannot go past what is queued
  if (owner_.closed()) return false;
  const bool is_first = op.home->queue_.empty();
  if (is_first) make_room();
  op.home->queue_.push_back(&op);
  op.order = ++admitted_;
  if (is_first) ++with_work_;
  progress_.notify_all();
  return true;
}

/// One operation of each stream at most is ready or runs. Room for it is made where the submission can still fail, and
/// not by whoever waits.
void virtual_clock::make_room() {
  const std::size_t needed = with_work_ + 1;
  if (ready_.capacity() < needed) ready_.reserve(2 * needed);
  if (running_.capacity() < needed) running_.reserve(2 * needed);
}

void virtual_clock::complete(event_record& event, std::shared_ptr<const error> cause) {
  const std::lock_guard lock{mutex_};
  event.complete(std::move(cause));
  progress_.notify_all();
}

std::uint64_t virtual_clock::rank_of(const operation& op) const {
  return options_.model.shuffle == 0 ? op.order : hash(options_.model.shuffle, op.order);
}

nanoseconds virtual_clock::delay_of(const operation& op) const {
  if (options_.model.shuffle == 0 || options_.model.delay.count() <= 0 || owner_.closed()) return nanoseconds{0};
  const auto choices = static_cast<std::uint64_t>(options_.model.delay.count()) + 1;
  return nanoseconds{static_cast<std::int64_t>(hash(options_.model.shuffle, op.order, 1) % choices)};
}

nanoseconds virtual_clock::duration_of(const operation& op) {
  const cost& price = op.price;
  if (price.computes) {
    const nanoseconds modelled = options_.model.launch_latency + detail::modelled_time(price.seconds);
    const std::uint64_t number = ++kernels_begun_[index(op.device)];
    if (options_.model.noise == 0) return modelled;
    const double draw = standard_normal(hash(options_.model.seed, index(op.device), number));
    const double factor = std::max(0.1, 1 + options_.model.noise * draw);
    return detail::modelled_time(static_cast<double>(modelled.count()) * 1e-9 * factor);
  }
  if (price.path == nullptr) return detail::time_in_memory(price.local_rate, price.bytes);
  return detail::time_over(*price.path, price.bytes);
}

bool virtual_clock::is_ready(operation& op) {
  const nanoseconds time = now();
  if (!op.ready_at) {
    const bool is_held =
        (op.dependency && !op.dependency->finished()) || (op.until && !owner_.refusal(op) && !op.until());
    if (is_held && !owner_.closed() && !owner_.failures_.is_lost(op.device)) {
      if (!op.stood_from) op.stood_from = time;
      return false;
    }
    if (op.stood_from) op.stood_until = time;
    op.ready_at = time + delay_of(op);
  }
  if (*op.ready_at <= time || owner_.closed()) return true;
  next_ready_ = next_ready_ ? std::min(*next_ready_, *op.ready_at) : *op.ready_at;
  return false;
}

bool virtual_clock::has_resources(const operation& op) const {
  const std::size_t device = index(op.device);
  if (options_.max_in_flight > 0 && device_busy_[device] >= options_.max_in_flight) return false;
  if (op.price.computes && engine_busy_[device]) return false;
  if (op.price.path == nullptr) return true;
  const std::vector<int>& links = op.price.path->links;
  return std::none_of(links.begin(), links.end(), [this](int l) { return wire_busy_[wire(l)]; });
}

void virtual_clock::occupy(const operation& op, bool busy) {
  const std::size_t device = index(op.device);
  if (op.price.path != nullptr) {
    for (const int l : op.price.path->links) wire_busy_[wire(l)] = busy;
  }
  if (op.price.computes) engine_busy_[device] = busy;
  device_busy_[device] += busy ? 1 : -1;
  op.home->busy_ = busy;
}

void virtual_clock::grant() {
  std::vector<operation*>& ready = ready_;
  ready.clear();
  next_ready_.reset();
  streams_.for_each_made([&](const host_stream& stream) {
    if (!stream.busy_ && !stream.queue_.empty() && is_ready(*stream.queue_.front()))
      ready.push_back(stream.queue_.front());
  });
  std::sort(ready.begin(), ready.end(), [this](const operation* a, const operation* b) {
    if (a->home->priority() != b->home->priority()) return a->home->priority() > b->home->priority();
    if (*a->ready_at != *b->ready_at) return *a->ready_at < *b->ready_at;
    const std::uint64_t first = rank_of(*a), second = rank_of(*b);
    return first != second ? first < second : a->order < b->order;
  });
  for (operation* op : ready) {
    if (has_resources(*op)) start(*op);
  }
}

void virtual_clock::start(operation& op) {
  auto cause = owner_.refusal(op);
  nanoseconds duration{0};
  if (!cause) {
    duration = duration_of(op);
    if (!faults_.empty()) {
      const auto verdict = faults_.on_operation(op.device);
      duration += verdict.stall;
      if (verdict.lost) cause = owner_.lose_by_fault(op.device);
    }
  }
  occupy(op, true);
  op.started = now();
  running one{op.started + duration, rank_of(op), op.order, &op, std::move(cause)};
  // the first to end stands last
  const auto at =
      std::lower_bound(running_.begin(), running_.end(), one, [](const running& a, const running& b) { return b < a; });
  running_.insert(at, std::move(one));
}

std::optional<nanoseconds> virtual_clock::next() const {
  if (running_.empty()) return next_ready_;
  return next_ready_ ? std::min(*next_ready_, running_.back().end) : running_.back().end;
}

void virtual_clock::advance(nanoseconds to) {
  now_.store(std::max(now_.load(std::memory_order_relaxed), static_cast<std::int64_t>(to.count())),
             std::memory_order_release);
}

void virtual_clock::step(std::unique_lock<std::mutex>& lock) {
  if (running_.empty() || (next_ready_ && *next_ready_ < running_.back().end)) {
    advance(*next_ready_);  // what was delayed until then is a candidate now
    return;
  }
  running first = std::move(running_.back());
  running_.pop_back();
  advance(first.end);
  operation& op = *first.op;
  driving_ = true;
  driver_.store(gettid(), std::memory_order_relaxed);
  lock.unlock();
  if (!first.cause) first.cause = scheduler::run_body(op);
  lock.lock();
  occupy(op, false);
  op.home->queue_.pop_front();
  if (op.home->queue_.empty()) --with_work_;
  lock.unlock();
  owner_.finish(op, std::move(first.cause));
  lock.lock();
  driver_.store(0, std::memory_order_relaxed);
  driving_ = false;
  progress_.notify_all();
}

bool virtual_clock::wait_for_hold(std::unique_lock<std::mutex>& lock) {
  if (options_.hold == nullptr || !options_.hold->stops_caller()) return false;
  lock.unlock();
  options_.hold->wait();
  lock.lock();
  return true;
}

void virtual_clock::poll() {
  std::unique_lock lock{mutex_};
  // before anything is granted: what the decider submits competes for it
  while (!driving_ && wait_for_hold(lock)) {
  }
  if (driving_) return;
  grant();
  if (next()) step(lock);
}

wait_outcome virtual_clock::drive(event_record& event, wait_deadline deadline, const std::stop_token& stop) {
  // how long to sleep when only another thread can make something happen; a stop request is seen within that time
  constexpr std::chrono::milliseconds look_again{1};
  std::unique_lock lock{mutex_};
  while (!event.finished()) {
    if (stop.stop_requested()) return wait_outcome::cancelled;
    if (driving_) {
      progress_.wait_for(lock, look_again);
      continue;
    }
    // before anything is granted: what the decider submits competes for it
    if (wait_for_hold(lock)) continue;
    grant();
    const bool bounded = deadline != no_deadline;
    const auto upcoming = next();
    if (!upcoming || (bounded && *upcoming > deadline)) {
      if (bounded) {
        advance(deadline);
        return wait_outcome::timed_out;
      }
      progress_.wait_for(lock, look_again);
      continue;
    }
    step(lock);
  }
  // What follows the same end is decided before the caller goes on: its submissions come second, always.
  static_cast<void>(wait_for_hold(lock));
  return event.cause() ? wait_outcome::failed : wait_outcome::ok;
}

void virtual_clock::end() {
  std::unique_lock lock{mutex_};
  progress_.wait(lock, [this] { return !driving_; });
  for (;;) {
    grant();
    if (running_.empty()) break;
    step(lock);
  }
  progress_.notify_all();
}

}  // namespace weft::host
