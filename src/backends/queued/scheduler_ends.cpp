// SPDX-License-Identifier: Apache-2.0
// The scheduler's threads, what a failure skips, waits, traces and the end.
#include "backends/queued/scheduler.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace weft::queued {

namespace {

/// How often the ends that the driver will not tell of are looked for, and what a thread would do that is not to be
/// had.
constexpr std::chrono::milliseconds look_every{1};

}  // namespace

thread_local const scheduler* scheduler::working_for = nullptr;

// ---- threads --------------------------------------------------------------------------------------------------------

/// Has the stream taken forward by a thread that may submit: at once, and then again and again until a command of it
/// has ended, if there is one. Takes over one reference of that.
void scheduler::post(queued_stream& s, command* until) noexcept {
  {
    const std::lock_guard lock{service_mutex_};
    if (!std::exchange(s.is_posted_, true)) posted_.push_back(&s);
    if (until == nullptr) return wake_service();
  }
  look_at(*until);
}

/// Has that thread see the end of what the driver will not tell of. Takes over one reference.
void scheduler::look_at(command& c) noexcept {
  const std::lock_guard lock{service_mutex_};
  if (std::exchange(c.is_looked_at_, true)) {
    c.drop();  // the line has one of its own
  } else {
    looked_at_.push_back(&c);
  }
  wake_service();
}

/// Under service_mutex_. Where no thread is to be had, who looks does what it would: the next call tries again. After
/// close() there is nothing for a thread to do.
void scheduler::wake_service() noexcept {
  if (service_is_over_) return;
  try {
    if (!service_.joinable()) service_ = std::jthread{[this](const std::stop_token& shutdown) { serve(shutdown); }};
    service_state_.store(service_state::runs, std::memory_order_release);
  } catch (const std::exception&) {  // no thread, or no memory for one
    service_state_.store(service_state::not_to_be_had, std::memory_order_release);
  }
  service_work_.notify_all();
}

void scheduler::serve(const std::stop_token& shutdown) {
  working_for = this;
  std::unique_lock lock{service_mutex_};
  for (;;) {
    const auto is_called = [this] { return !posted_.empty(); };
    if (looked_at_.empty()) {
      service_work_.wait(lock, shutdown, [&] { return is_called() || !looked_at_.empty(); });
    } else {
      service_work_.wait_for(lock, shutdown, look_every, is_called);
    }
    if (shutdown.stop_requested()) return;
    take_turn(lock);
  }
}

/// Does what is there to do now, without the lock.
void scheduler::take_turn(std::unique_lock<std::mutex>& lock) {
  ++turns_;
  for (std::size_t left = posted_.size(); left > 0 && !posted_.empty(); --left) {
    queued_stream& s = *posted_.pop_front();
    s.is_posted_ = false;
    lock.unlock();
    progress(s);
    lock.lock();
  }
  for (std::size_t left = looked_at_.size(); left > 0 && !looked_at_.empty(); --left) {
    command& c = *looked_at_.pop_front();
    lock.unlock();
    if (!c.finished()) progress(*c.home_);
    const bool is_over = c.finished();
    lock.lock();
    if (!is_over) {
      looked_at_.push_back(&c);
      continue;
    }
    c.is_looked_at_ = false;
    lock.unlock();
    c.drop();
    lock.lock();
  }
  --turns_;
  service_work_.notify_all();
}

/// For who looks or waits, where nothing may be submitted by the driver's threads and no other is to be had.
void scheduler::help() {
  if (service_state_.load(std::memory_order_acquire) != service_state::not_to_be_had) return;
  std::unique_lock lock{service_mutex_};
  if (!posted_.empty() || !looked_at_.empty()) take_turn(lock);
}

void scheduler::work(queued_stream& s, const std::stop_token& shutdown) {
  working_for = this;
  for (;;) {
    command* c = nullptr;
    {
      std::unique_lock lock{s.mutex_};
      if (!s.work_.wait(lock, shutdown, [&] { return s.on_host_ != nullptr; })) return;
      c = s.on_host_;
    }
    c->started = now();
    auto cause = common::outcome_of_host_function(c->device, [&] { return c->run_here(); });
    c->failed_here_ = cause != nullptr;
    c->ended = now();
    finish(*c, std::move(cause));
    {
      const std::lock_guard lock{s.mutex_};
      s.on_host_ = nullptr;
    }
    progress(s);
  }
}

bool scheduler::on_worker() const noexcept { return working_for == this; }

// ---- failures -------------------------------------------------------------------------------------------------------

void scheduler::lose(device_id device, const std::shared_ptr<const error>& cause) {
  if (!failures_.lose(device, cause)) return;
  // what waits for others on this device waits no more
  driver_->give_up(device);
  for_each_row([&](queued_stream& s) {
    if (s.device_ == device) post(s);
  });
}

void scheduler::lose_by_fault(device_id device, const std::shared_ptr<const error>& cause) {
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    const device_id one = device_at(i);
    // an access that the library itself refused has no code of the driver's, and took nothing of the others
    if (one == device || (cause->native_code != 0 && driver_->fall_together(device, one))) lose(one, cause);
  }
}

void scheduler::restore(device_id device) {
  driver_->wait_again(device);  // first: what comes once the device is not lost any more is waited for
  failures_.restore(device);
  for_each_row([&](queued_stream& s) {
    if (s.device_ == device) s.failures_.forgive(s.submitted_.load(std::memory_order_relaxed));
  });
}

// ---- waiting --------------------------------------------------------------------------------------------------------

void scheduler::open_gate(event_record& gate, std::shared_ptr<const error> cause) {
  if (!failures_.take_gate(gate)) return;  // open already
  gate.started = gate.ended = now();
  gate.complete(std::move(cause));
  gate.drop();
}

wait_outcome scheduler::await(event_record& event, wait_deadline deadline, const std::stop_token& stop) {
  command* const c = own(event);
  if (c != nullptr && !event.finished()) {
    // who waits without limit waits as a program without weft does
    if (const native_event native = c->native(); native != nullptr && deadline == no_deadline && !stop.stop_possible())
      driver_->wait(c->device, native);
    progress(*c->home_);
  }
  if (c != nullptr && !event.finished()) watch(*c);
  using time_point = std::chrono::steady_clock::time_point;
  const auto until = deadline >= no_deadline - epoch_.time_since_epoch() ? time_point::max() : epoch_ + deadline;
  while (service_state_.load(std::memory_order_acquire) == service_state::not_to_be_had) {
    const auto next = std::min(until, std::chrono::steady_clock::now() + look_every);
    const wait_outcome outcome = event.wait(next, stop, policy_);
    if (outcome != wait_outcome::timed_out || next == until) return outcome;
    if (c != nullptr) progress(*c->home_);
    help();
  }
  return event.wait(until, stop, policy_);
}

wait_outcome scheduler::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) {
  const wait_outcome outcome = await(event, deadline, stop);
  if (outcome == wait_outcome::failed) {
    if (queued_stream* s = find(stream_handle{event.stream}))
      s->failures_.reported(event.cause(), s->submitted_.load(std::memory_order_relaxed));
  }
  return outcome;
}

bool scheduler::ready(event_record& event) {
  if (!event.finished()) {
    if (command* c = own(event)) progress(*c->home_);
    help();
  }
  return event.finished();
}

bool scheduler::idle(queued_stream& of) {
  if (!of.counted_idle()) {
    progress(of);
    help();
  }
  if (!of.counted_idle()) return false;
  if (!of.shared_.load(std::memory_order_acquire) || lost(of.device_)) return true;
  const std::lock_guard lock{of.mutex_};
  return driver_->is_empty(of.device_, of.queue_);
}

bool scheduler::idle_on(device_id device) {
  bool is_idle = true;
  for_each_row([&](queued_stream& s) {
    const bool is_there = s.device_ == device && s.handle_.load(std::memory_order_acquire) != 0;
    is_idle = is_idle && (!is_there || idle(s));
  });
  return is_idle;
}

bool scheduler::settled(queued_stream& of) { return idle(of) && of.failures_.is_clear(); }

bool scheduler::drain(queued_stream& of, wait_deadline deadline) {
  const event_ref last = end_of(of);
  return !last || await(*last, deadline, {}) != wait_outcome::timed_out;
}

result<wait_outcome> scheduler::synchronize(queued_stream& of, wait_deadline deadline, const std::stop_token& stop) {
  const event_ref last = end_of(of);
  const wait_outcome outcome = last ? await(*last, deadline, stop) : wait_outcome::ok;
  if (outcome == wait_outcome::timed_out || outcome == wait_outcome::cancelled) return outcome;
  const auto cause = of.failures_.report(of.submitted_.load(std::memory_order_relaxed));
  if (!cause) return wait_outcome::ok;
  return error{*cause};
}

// ---- watching -------------------------------------------------------------------------------------------------------

void scheduler::trace_to(std::shared_ptr<trace_sink> sink) {
  const std::lock_guard lock{trace_mutex_};
  trace_.swap(sink);
  tracing_.store(trace_ != nullptr, std::memory_order_release);
}

void scheduler::trace(const command& c, bool failed) noexcept {
  trace_record made;
  made.kind = c.note.kind;
  made.started = c.started;
  made.ended = c.ended;
  if (c.note.kind == trace_kind::mark) {
    if (!c.dependency || !c.has_times_) return;
    made.kind = trace_kind::wait;
    made.started = c.turn_;
    // an event that carries no time held the stream up only if the stream was taken forward by its end
    if (c.dependency->timed) made.ended = c.dependency->ended;
    if (made.started >= made.ended || !(c.dependency->timed || c.follows_dependency_)) return;
  }
  std::shared_ptr<trace_sink> sink;
  {
    const std::lock_guard lock{trace_mutex_};
    sink = trace_;
  }
  if (sink == nullptr) return;
  made.device = c.device;
  made.stream = c.home_->track();
  made.submitted = c.submitted_;
  made.bytes = c.note.bytes;
  made.items = c.note.items;
  made.launch = c.note.launch;
  made.from = c.note.from;
  made.to = c.note.to;
  made.failed = failed;
  try {
    const auto end = [](device_id id) { return id == device_id{} ? std::string{"host"} : to_string(id); };
    made.name = c.note.kind == trace_kind::copy   ? end(c.note.from) + " → " + end(c.note.to)
                : c.note.kind == trace_kind::mark ? "waits for " + end(c.dependency->device)
                                                  : c.name();
  } catch (const std::bad_alloc&) {
    made.name.clear();  // a trace never fails the work that it watches
  }
  sink->add(std::move(made));
}

// ---- the end --------------------------------------------------------------------------------------------------------

/// Waits for what the driver has of a stream, and not for what the program put behind it.
void scheduler::finish_queue(queued_stream& s) noexcept {
  if (!s.shared_.load(std::memory_order_acquire)) return driver_->finish(s.device_, s.queue_);
  event_ref last;
  {
    const std::lock_guard lock{s.mutex_};
    if (s.flying_.empty()) return;
    s.flying_.back()->retain();
    last = event_ref{s.flying_.back()};
  }
  driver_->wait(s.device_, static_cast<const command&>(*last).native());
}

void scheduler::close() {
  if (!failures_.close()) return;
  for (std::size_t i = 0; i < tracks_.size(); ++i) driver_->give_up(device_at(i));
  for_each_row([this](queued_stream& s) {
    {
      const std::lock_guard lock{s.mutex_};
    }  // who comes after sees that the machine is closed
    // what was not handed over is refused; what the driver has, it ends
    for (progress(s); !s.counted_idle(); progress(s)) {
      finish_queue(s);
      std::this_thread::yield();
    }
  });
  // Before the service ends: what the driver calls may post.
  while (armed_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  {
    std::unique_lock lock{service_mutex_};
    const auto has_ended = [this] { return posted_.empty() && looked_at_.empty() && turns_ == 0; };
    while (!service_.joinable() && !has_ended()) {  // no thread was to be had: then it is this one's work
      if (posted_.empty() && looked_at_.empty()) {
        service_work_.wait(lock);
      } else {
        take_turn(lock);
      }
    }
    if (service_.joinable()) {
      service_work_.wait(lock, has_ended);
      service_.request_stop();
    }
    service_is_over_ = true;  // who asked to be told before it saw the machine closed starts none any more
  }
  if (service_.joinable()) service_.join();
  for_each_row([](queued_stream& s) {
    if (s.worker_.joinable()) {
      s.worker_.request_stop();
      s.worker_.join();
    }
    const std::lock_guard lock{s.mutex_};
    s.last_ = {};
  });
}

}  // namespace weft::queued
