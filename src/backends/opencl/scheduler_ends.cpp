// SPDX-License-Identifier: Apache-2.0
// The scheduler's threads, what a failure skips, waits, traces and the end.
#include "backends/opencl/scheduler.hpp"

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <utility>

namespace weft::opencl {

thread_local const scheduler* scheduler::working_for = nullptr;

// ---- threads --------------------------------------------------------------------------------------------------------

/// Has the stream taken forward by a thread that may submit.
void scheduler::post(cl_stream& s) {
  const std::lock_guard lock{service_mutex_};
  if (std::find(posted_.begin(), posted_.end(), &s) == posted_.end()) posted_.push_back(&s);
  if (!service_.joinable()) service_ = std::jthread{[this](const std::stop_token& shutdown) { serve(shutdown); }};
  service_work_.notify_one();
}

void scheduler::serve(const std::stop_token& shutdown) {
  working_for = this;
  std::unique_lock lock{service_mutex_};
  for (;;) {
    service_busy_ = false;
    service_work_.notify_all();
    if (!service_work_.wait(lock, shutdown, [this] { return !posted_.empty(); })) return;
    std::vector<cl_stream*> now_posted;
    now_posted.swap(posted_);
    service_busy_ = true;
    lock.unlock();
    for (cl_stream* s : now_posted) progress(*s);
    lock.lock();
  }
}

void scheduler::work(cl_stream& s, const std::stop_token& shutdown) {
  working_for = this;
  for (;;) {
    command* c = nullptr;
    {
      std::unique_lock lock{s.mutex_};
      if (!s.work_.wait(lock, shutdown, [&] { return s.on_host_ != nullptr; })) return;
      c = s.on_host_;
    }
    c->started = now();
    auto cause = run(*c);
    c->ended = now();
    finish(*c, std::move(cause));
    {
      const std::lock_guard lock{s.mutex_};
      s.on_host_ = nullptr;
    }
    progress(s);
  }
}

std::shared_ptr<const error> scheduler::run(command& c) noexcept {
  try {
    return c.run_here();
  } catch (const std::exception& thrown) {
    return share(make_error(errc::kernel_failed,
                            "a host function on " + to_string(c.device) + " threw: " + thrown.what(),
                            error_scope::endpoint));
  } catch (...) {
    return share(
        make_error(errc::kernel_failed, "a host function on " + to_string(c.device) + " threw", error_scope::endpoint));
  }
}

bool scheduler::on_worker() const noexcept { return working_for == this; }

// ---- failures -------------------------------------------------------------------------------------------------------

void scheduler::poison(cl_stream& s, const std::shared_ptr<const error>& cause, std::uint64_t sequence) {
  const std::lock_guard lock{s.failure_mutex_};
  // an older failure that was reported, and skips nothing any more, makes way
  if (s.poison_ && sequence <= s.poison_until_) return;
  s.poison_ = cause;
  s.poison_until_ = ~std::uint64_t{0};
  if (s.told_.load(std::memory_order_relaxed)) s.unreported_ = cause;
  s.poisoned_.store(true, std::memory_order_release);
}

std::shared_ptr<const error> scheduler::poison_of(cl_stream& s, std::uint64_t sequence) {
  if (!s.poisoned_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock{s.failure_mutex_};
  if (s.poison_ && sequence <= s.poison_until_) return s.poison_;
  s.poison_ = nullptr;
  s.poisoned_.store(false, std::memory_order_release);
  return nullptr;
}

void scheduler::reported(cl_stream& s, const std::shared_ptr<const error>& cause) {
  const std::lock_guard lock{s.failure_mutex_};
  if (s.unreported_ == cause) s.unreported_ = nullptr;
  if (s.poison_ == cause && s.poison_until_ == ~std::uint64_t{0})
    s.poison_until_ = s.submitted_.load(std::memory_order_relaxed);
}

void scheduler::lose(device_id device, const std::shared_ptr<const error>& cause) {
  {
    const std::lock_guard lock{device_mutex_};
    device_state& state = state_of(device);
    if (state.root) return;
    state.root = cause;
    state.told =
        share(make_error(errc::device_lost, to_string(device) + " is lost since: " + cause->what, error_scope::device));
    state.lost.store(true, std::memory_order_release);
  }
  // what waits for others on this device waits no more
  for (cl_stream* s : streams_of(device)) post(*s);
}

std::shared_ptr<const error> scheduler::lost(device_id device) const {
  const device_state& state = state_of(device);
  if (!state.lost.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock{device_mutex_};
  return state.told;
}

std::shared_ptr<const error> scheduler::cause_of_loss(device_id device) const {
  const std::lock_guard lock{device_mutex_};
  return state_of(device).root;
}

void scheduler::restore(device_id device) {
  {
    const std::lock_guard lock{device_mutex_};
    device_state& state = state_of(device);
    state.lost.store(false, std::memory_order_release);
    state.root = state.told = nullptr;
  }
  for (cl_stream* s : streams_of(device)) {
    const std::lock_guard lock{s->failure_mutex_};
    s->unreported_ = nullptr;
    if (s->poison_) s->poison_until_ = s->submitted_.load(std::memory_order_relaxed);
  }
}

// ---- waiting --------------------------------------------------------------------------------------------------------

event_ref scheduler::create_gate() {
  auto* const gate = new event_record;
  gate->owner = face_;
  gate->timed = false;
  gate->retain();
  const std::lock_guard lock{gates_mutex_};
  if (closed()) {  // close() has opened the gates it knew, and would not know this one
    gate->drop();
    gate->drop();
    return {};
  }
  gates_.insert(gate);
  return event_ref{gate};
}

void scheduler::open_gate(event_record& gate, std::shared_ptr<const error> cause) {
  {
    const std::lock_guard lock{gates_mutex_};
    if (gates_.erase(&gate) == 0) return;  // open already
  }
  gate.started = gate.ended = now();
  gate.complete(std::move(cause));
  gate.drop();
}

wait_outcome scheduler::await(event_record& event, wait_deadline deadline, const std::stop_token& stop) {
  command* const c = own(event);
  if (c != nullptr && !event.finished()) {
    // who waits without limit waits as a plain OpenCL program does
    const cl_event native = c->native_event();
    if (native != nullptr && deadline == no_deadline && !stop.stop_possible())
      static_cast<void>(cl_->clWaitForEvents(1, &native));  // a failure is seen in the event
    progress(*c->home);
  }
  if (c != nullptr && !event.finished()) watch(*c);
  using time_point = std::chrono::steady_clock::time_point;
  const auto until = deadline >= no_deadline - epoch_.time_since_epoch() ? time_point::max() : epoch_ + deadline;
  return event.wait(until, stop, policy_);
}

wait_outcome scheduler::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) {
  const wait_outcome outcome = await(event, deadline, stop);
  if (outcome == wait_outcome::failed) {
    if (cl_stream* s = find(stream_handle{event.stream})) reported(*s, event.cause());
  }
  return outcome;
}

bool scheduler::ready(event_record& event) {
  if (!event.finished()) {
    if (command* c = own(event)) progress(*c->home);
  }
  return event.finished();
}

bool scheduler::idle(cl_stream& of) {
  if (!of.counted_idle()) progress(of);
  return of.counted_idle();
}

bool scheduler::settled(cl_stream& of) { return idle(of) && !of.poisoned_.load(std::memory_order_acquire); }

bool scheduler::drain(cl_stream& of, wait_deadline deadline) {
  event_ref last;
  {
    const std::lock_guard lock{of.mutex_};
    last = of.last_;
  }
  return !last || await(*last, deadline, {}) != wait_outcome::timed_out;
}

result<wait_outcome> scheduler::synchronize(cl_stream& of, wait_deadline deadline, const std::stop_token& stop) {
  event_ref last;
  {
    const std::lock_guard lock{of.mutex_};
    last = of.last_;
  }
  const wait_outcome outcome = last ? await(*last, deadline, stop) : wait_outcome::ok;
  if (outcome == wait_outcome::timed_out || outcome == wait_outcome::cancelled) return outcome;
  std::shared_ptr<const error> cause;
  {
    const std::lock_guard lock{of.failure_mutex_};
    cause = of.unreported_;
    // a stream that is not told has nothing to tell, but goes on afresh like one that has told
    if (!cause && !of.told_.load(std::memory_order_relaxed) && of.poison_)
      of.poison_until_ = of.submitted_.load(std::memory_order_relaxed);
  }
  if (!cause) return wait_outcome::ok;
  reported(of, cause);
  return error{*cause};
}

// ---- watching -------------------------------------------------------------------------------------------------------

void scheduler::trace_to(std::shared_ptr<trace_sink> sink) {
  const std::lock_guard lock{trace_mutex_};
  trace_.swap(sink);
  tracing_.store(trace_ != nullptr, std::memory_order_release);
}

void scheduler::trace(const command& c, bool failed) noexcept {
  if (c.note.kind == trace_kind::mark) return;
  std::shared_ptr<trace_sink> sink;
  {
    const std::lock_guard lock{trace_mutex_};
    sink = trace_;
  }
  if (sink == nullptr) return;
  trace_record made;
  made.kind = c.note.kind;
  made.device = c.device;
  made.stream = c.home->track();
  made.submitted = c.submitted;
  made.started = c.started;
  made.ended = c.ended;
  made.bytes = c.note.bytes;
  made.items = c.note.items;
  made.launch = c.note.launch;
  made.from = c.note.from;
  made.to = c.note.to;
  made.failed = failed;
  try {
    const auto end = [](device_id id) { return id == device_id{} ? std::string{"host"} : to_string(id); };
    made.name = c.note.kind == trace_kind::copy ? end(c.note.from) + " → " + end(c.note.to) : c.name();
  } catch (const std::bad_alloc&) {
    made.name.clear();  // a trace never fails the work that it watches
  }
  sink->add(std::move(made));
}

// ---- the end --------------------------------------------------------------------------------------------------------

void scheduler::close() {
  if (closed_.exchange(true, std::memory_order_seq_cst)) return;
  std::set<event_record*> gates;
  {
    const std::lock_guard lock{gates_mutex_};
    gates.swap(gates_);
  }
  const auto cause = share(make_error(errc::cancelled, "the machine was closed", error_scope::process));
  for (event_record* gate : gates) {
    gate->complete(cause);
    gate->drop();
  }
  std::vector<cl_stream*> all;
  {
    const std::shared_lock lock{table_mutex_};
    for (const auto& s : streams_) all.push_back(s.get());
  }
  for (cl_stream* s : all) {
    {
      const std::lock_guard lock{s->mutex_};
    }  // who comes after sees that the machine is closed
    // what was not handed over is refused; what the driver has, it ends
    while (!idle(*s)) {
      static_cast<void>(cl_->clFinish(s->queue_.get()));
      std::this_thread::yield();
    }
  }
  {
    std::unique_lock lock{service_mutex_};
    if (service_.joinable()) {
      service_work_.wait(lock, [this] { return posted_.empty() && !service_busy_; });
      service_.request_stop();
    }
  }
  if (service_.joinable()) service_.join();
  while (armed_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  for (cl_stream* s : all) {
    if (s->worker_.joinable()) {
      s->worker_.request_stop();
      s->worker_.join();
    }
    const std::lock_guard lock{s->mutex_};
    s->last_ = {};
  }
}

}  // namespace weft::opencl
