// SPDX-License-Identifier: Apache-2.0
#include "backends/host/order/scheduler.hpp"

#include "backend/word_watch.hpp"
#include "core/errors/make_error.hpp"
#include "os/parking.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

namespace weft::host {
scheduler::scheduler(const topology& machine, device_id first, backend* face, const scheduler_options& options,
                     fault_plan& faults)
    : first_(first),
      face_(face),
      options_(options),
      faults_(faults),
      epoch_(options.epoch.value_or(std::chrono::steady_clock::now())),
      failures_(first, machine.devices.size(), face),
      tracks_(machine.devices.size()),
      clock_(machine, first, *this, streams_, faults, {options.max_in_flight, options.model, options.hold}) {
  for (std::size_t i = 0; i < machine.devices.size(); ++i) devices_.push_back(std::make_unique<device_state>());
}

scheduler::~scheduler() { close(); }

std::chrono::nanoseconds scheduler::now() const {
  return options_.clock == clock_kind::virtual_time ? clock_.now() : std::chrono::steady_clock::now() - epoch_;
}

host_stream* scheduler::create(device_id device, int priority, bool told) {
  if (options_.max_in_flight > 0) {
    device_state& on = state_of(device);
    const std::lock_guard lock{on.mutex};
    on.waiting.try_emplace(priority, 0);
  }
  host_stream* made = streams_.add([this] { return std::make_unique<host_stream>(*this); });
  if (made == nullptr) return nullptr;
  made->device_.store(device.value(), std::memory_order_relaxed);
  made->priority_.store(priority, std::memory_order_relaxed);
  made->failures_.open(told);
  const std::lock_guard lock{tracks_mutex_};
  made->track_.store(tracks_[static_cast<std::size_t>(device.value() - first_.value())].take(),
                     std::memory_order_relaxed);
  return made;
}

void scheduler::destroy(stream_handle handle) {
  host_stream* gone = find(handle);
  if (gone == nullptr) return;
  if (!closed()) {
    // a failure that nobody waited for goes with the stream; device and machine synchronisation would have told
    static_cast<void>(synchronize(*gone, no_deadline, {}));
  }
  gone->end();
  {
    const std::lock_guard lock{tracks_mutex_};
    tracks_[static_cast<std::size_t>(gone->device().value() - first_.value())].give_back(gone->track());
  }
  streams_.remove(*gone);
}

std::vector<stream_handle> scheduler::streams_of(device_id device) {
  std::vector<stream_handle> found;
  streams_.for_each([&](const host_stream& s) {
    if (s.device() == device) found.push_back(s.handle());
  });
  std::sort(found.begin(), found.end());
  return found;
}

std::uint64_t scheduler::take_turn(host_stream& stream) noexcept {
  if (options_.clock != clock_kind::wall || options_.max_in_flight != 0 || !faults_.empty()) return 0;
  std::uint64_t seen = stream.submitted_.load(std::memory_order_relaxed);
  // acquire: pairs with the release of the operation that ended last in this stream
  if (seen != stream.finished_.load(std::memory_order_acquire)) return 0;
  if (!stream.failures_.is_clear() || failures_.is_lost(stream.device())) return 0;
  // Nobody submitted since: the turn is ours, and the worker sees the bit before it starts anything that comes later.
  const bool is_ours =
      stream.submitted_.compare_exchange_strong(seen, (seen + 1) | host_stream::inline_bit, std::memory_order_seq_cst);
  return is_ours ? seen + 1 : 0;
}

void scheduler::belong(host_stream& stream, operation& op) const noexcept {
  op.owner = face_;
  op.device = stream.device();
  op.stream = static_cast<std::uint64_t>(stream.handle());
}

event_ref scheduler::run_here(host_stream& stream, operation* op, std::uint64_t turn) {
  belong(stream, *op);
  op->sequence = turn;
  op->is_here = true;
  if (closed()) {
    stream.finished_.fetch_add(1, std::memory_order_release);
    op->drop();
    give_turn(stream);
    return {};
  }
  op->retain();
  event_ref handle{op};
  op->started = now();
  if (trace_.on()) op->submitted_at = op->started;
  auto cause = refusal(*op);
  if (!cause) cause = run_body(*op);
  finish(*op, std::move(cause));
  give_turn(stream);  // last: until now the stream is not idle, and what comes later has not begun
  return handle;
}

event_ref scheduler::admit(host_stream& stream, operation* op) {
  belong(stream, *op);
  // Counted before the look at closed(): close() either is seen here, or sees this operation and waits for it.
  op->sequence = (stream.submitted_.fetch_add(1, std::memory_order_seq_cst) & ~host_stream::inline_bit) + 1;
  if (closed()) {
    stream.finished_.fetch_add(1, std::memory_order_release);
    op->drop();
    return {};
  }
  if (options_.clock == clock_kind::wall && !stream.serving_.load(std::memory_order_acquire) && !stream.start()) {
    stream.finished_.fetch_add(1, std::memory_order_release);
    op->drop();
    return {};
  }
  if (trace_.on()) op->submitted_at = now();
  op->retain();
  event_ref handle{op};
  if (options_.clock == clock_kind::wall) {
    if (options_.max_in_flight > 0 && !op->stands_still() &&
        stream.finished_.load(std::memory_order_acquire) + 1 == op->sequence) {
      queue_for_slot(*op);  // first of its stream: a candidate from now on, whenever its worker gets to it
    }
    stream.push(op);
  } else {
    bool is_in = false;
    try {
      is_in = clock_.admit(*op);
    } catch (const std::bad_alloc&) {
      stream.finished_.fetch_add(1, std::memory_order_release);
      op->drop();
      throw;
    }
    if (!is_in) {
      stream.finished_.fetch_add(1, std::memory_order_release);
      op->drop();
      return {};
    }
  }
  return handle;
}

std::shared_ptr<const error> scheduler::refusal(operation& op) {
  return failures_.refusal(op.home->device(), op.home->failures_, op.sequence, op.dependency, op.stop);
}

std::shared_ptr<const error> scheduler::run_body(operation& op) noexcept {
  return common::outcome_of_host_function(op.device, op.body);
}

std::stop_token scheduler::end_of(device_id device) {
  const std::lock_guard lock{device_mutex_};
  return state_of(device).end.get_token();
}

void scheduler::stall(std::chrono::nanoseconds duration) {
  std::mutex mutex;
  std::condition_variable_any ended;
  std::unique_lock lock{mutex};
  ended.wait_for(lock, shutdown_.get_token(), duration, [] { return false; });
}

void scheduler::queue_for_slot(operation& op) {
  if (op.queued_for_slot) return;
  op.queued_for_slot = true;
  if (op.home->slot_reserved_.exchange(false, std::memory_order_acq_rel))
    return;  // the place of this stream is kept already
  device_state& device = state_of(op.device);
  const std::lock_guard lock{device.mutex};
  ++device.waiting[op.home->priority()];
}

waiting scheduler::policy_now() const noexcept {
  return options_.wait_policy == waiting::adaptive && parking::is_crowded() ? waiting::park : options_.wait_policy;
}

void scheduler::stand_still(operation& op, bool traced) {
  if (op.home->slot_reserved_.exchange(
          false, std::memory_order_acq_rel)) {  // what waits for another must not keep others waiting
    device_state& waiting_on = state_of(op.device);
    const std::lock_guard lock{waiting_on.mutex};
    --waiting_on.waiting[op.home->priority()];
    waiting_on.freed.notify_all();
  }
  const std::stop_token end = end_of(op.device);
  if (op.dependency) {
    if (traced && !op.dependency->finished()) op.stood_from = now();
    if (policy_now() == waiting::adaptive) {
      // One stage of a pipeline waits for a chunk of the other, some hundred microseconds. Who parks here is woken on
      // the core of the one that works, and the stages then take turns instead of overlapping.
      constexpr std::uint32_t as_long_as_a_chunk = 8000;
      parking::spinner patient{waiting::adaptive, as_long_as_a_chunk};
      while (!op.dependency->finished() && patient.spin()) {
        if (patient.time_to_look() && policy_now() != waiting::adaptive) break;
      }
    }
    op.dependency->wait(std::chrono::steady_clock::time_point::max(), end, policy_now());
  }
  if (op.until && !refusal(op)) {  // what will not run waits for nothing
    if (traced) op.stood_from = now();
    parking::count_at_work(-1);  // the word is written from outside, perhaps much later
    detail::watch_word(op.until, end, options_.wait_policy);
    parking::count_at_work(1);
  }
  op.home->last_ended_ = {};
  if (op.stood_from) op.stood_until = now();
}

void scheduler::execute(operation& op, operation* next) {
  const bool traced = trace_.on();
  if (op.stands_still()) stand_still(op, traced);
  device_state& device = state_of(op.device);
  const bool limited = options_.max_in_flight > 0;
  // what starts right behind another operation starts when that one ended: one look at the clock for both
  op.started = op.home->last_ended_.count() != 0 ? op.home->last_ended_ : now();
  if (limited) {
    queue_for_slot(op);
    std::unique_lock lock{device.mutex};
    device.freed.wait(lock, [&] {
      return closed() || (device.in_flight < options_.max_in_flight && device.first_priority() == op.home->priority());
    });
    --device.waiting[op.home->priority()];
    ++device.in_flight;
    device.freed.notify_all();
    op.started = now();
  }
  auto cause = refusal(op);
  if (!cause && !faults_.empty()) {
    const auto verdict = faults_.on_operation(op.device);
    if (verdict.stall.count() > 0) stall(verdict.stall);
    if (verdict.lost) cause = lose_by_fault(op.device);
  }
  if (traced) op.started = now();  // the body's own, not the end of the one before
  if (!cause) cause = run_body(op);
  if (limited) {
    // before the place is free: the next of this stream is a candidate for it
    if (next != nullptr && !next->stands_still()) queue_for_slot(*next);
    const bool more = next == nullptr && op.home->arrivals_.load(std::memory_order_acquire) != nullptr;
    const std::lock_guard lock{device.mutex};
    if (more) {
      ++device.waiting[op.home->priority()];
      op.home->slot_reserved_.store(true, std::memory_order_release);
    }
    --device.in_flight;
    device.freed.notify_all();
  }
  finish(op, std::move(cause));
}

void scheduler::finish(operation& op, std::shared_ptr<const error> cause) {
  op.ended = now();
  // before anybody can see the operation ended, and while its body holds the names
  if (trace_.on()) trace_.add(op, cause != nullptr);
  op.body.clear();  // lets go of memory before anybody can see the operation ended
  op.dependency = {};
  op.until = nullptr;
  host_stream& stream = *op.home;
  if (!op.is_here) stream.last_ended_ = op.ended;
  if (cause) {
    if (cause->code == errc::illegal_access && cause->scope == error_scope::device) lose(op.device, cause);
    stream.failures_.add(cause, op.sequence);
  }
  stream.failures_.ended(op.sequence);
  stream.ending_.fetch_add(1, std::memory_order_relaxed);  // before the count: who sees that sees this
  // release: pairs with the acquire of a caller that finds the stream idle and runs inline
  stream.finished_.fetch_add(1, std::memory_order_release);
  op.complete(std::move(cause), &stream.ending_);
  op.drop();
}

void scheduler::open_gate(event_record& gate, std::shared_ptr<const error> cause) {
  if (!failures_.take_gate(gate)) return;  // open already
  gate.started = gate.ended = now();
  if (options_.clock == clock_kind::wall) {
    gate.complete(std::move(cause));
  } else {
    clock_.complete(gate, std::move(cause));
  }
  gate.drop();
}

wait_outcome scheduler::await(event_record& event, wait_deadline deadline, const std::stop_token& stop) {
  if (options_.clock == clock_kind::virtual_time) return clock_.drive(event, deadline, stop);
  using time_point = std::chrono::steady_clock::time_point;
  const auto until = deadline >= no_deadline - epoch_.time_since_epoch() ? time_point::max() : epoch_ + deadline;
  return event.wait(until, stop, policy_now());
}

wait_outcome scheduler::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) {
  const wait_outcome outcome = await(event, deadline, stop);
  if (outcome == wait_outcome::failed) {
    if (host_stream* stream = find(stream_handle{event.stream}))
      stream->failures_.reported(event.cause(), stream->last_sequence());
  }
  return outcome;
}

bool scheduler::drain(host_stream& stream, wait_deadline deadline) {
  if (stream.idle()) return true;
  event_ref marker;
  try {
    marker = submit(stream, [] { return work::outcome{}; });
  } catch (const std::bad_alloc&) {  // without a marker: a look again and again
    while (!stream.idle() && now() < deadline) {
      if (options_.clock == clock_kind::virtual_time) clock_.poll();
      std::this_thread::yield();
    }
    return stream.idle();
  }
  return !marker || await(*marker, deadline, {}) != wait_outcome::timed_out;
}

bool scheduler::ready(event_record& event) {
  if (event.finished() || options_.clock == clock_kind::wall) return event.finished();
  // on the virtual clock nothing happens unless somebody lets it: a poll lets one thing happen
  clock_.poll();
  return event.finished();
}

result<wait_outcome> scheduler::synchronize(host_stream& stream, wait_deadline deadline, const std::stop_token& stop) {
  wait_outcome outcome = wait_outcome::ok;
  if (!stream.idle()) {
    const event_ref marker = submit(stream, [] { return work::outcome{}; });
    if (!marker) return closed_machine();
    outcome = await(*marker, deadline, stop);  // the failure is reported below, not by the marker that it skipped
  }
  if (outcome == wait_outcome::timed_out || outcome == wait_outcome::cancelled) return outcome;
  const auto cause = stream.failures_.report(stream.last_sequence());
  if (!cause) return wait_outcome::ok;
  return error{*cause};
}

void scheduler::lose(device_id device, const std::shared_ptr<const error>& cause) {
  std::stop_source end;
  {
    const std::lock_guard lock{device_mutex_};  // also around restore(), which makes a new end
    if (!failures_.lose(device, cause)) return;
    end = state_of(device).end;
  }
  end.request_stop();  // what waits for others on this device waits no more
}

std::shared_ptr<const error> scheduler::lose_by_fault(device_id device) {
  auto cause = shared_error(
      make_error(errc::device_lost, "injected fault: " + to_string(device) + " is lost", error_scope::device));
  lose(device, cause);
  return cause;
}

void scheduler::restore(device_id device) {
  {
    const std::lock_guard lock{device_mutex_};
    failures_.restore(device);
    state_of(device).end = std::stop_source{};
  }
  for_each_stream(device, [](host_stream& stream) { stream.failures_.forgive(stream.last_sequence()); });
}

bool scheduler::on_worker() const noexcept {
  const pid_t self = gettid();
  if (clock_.driven_by(self)) return true;
  bool found = false;
  streams_.for_each_made(
      [&](const host_stream& s) { found = found || s.worker_thread_.load(std::memory_order_relaxed) == self; });
  return found;
}

void scheduler::close() {
  if (!failures_.close()) return;
  shutdown_.request_stop();
  for (auto& state : devices_) {
    {
      const std::lock_guard lock{state->mutex};
      state->freed.notify_all();
    }
    std::unique_lock lock{device_mutex_};
    auto end = state->end;
    lock.unlock();
    end.request_stop();
  }
  if (options_.clock == clock_kind::virtual_time) {
    clock_.end();  // everything that has not run yet is refused, in order
  } else {
    streams_.for_each_made([](host_stream& stream) {
      while (!stream.idle()) std::this_thread::yield();  // all of it is refused; what runs ends by itself
      stream.end();
    });
  }
}

}  // namespace weft::host
