// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/scheduler.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

namespace weft::opencl {

void command::watched() noexcept { home->owner().watch(*this); }

namespace {

/// One more reference.
event_ref handle_of(event_record& record) {
  record.retain();
  return event_ref{&record};
}

// Whether it is the driver that called, on a thread of its own: there nothing may be submitted.
thread_local bool called_by_driver = false;

template <class T>
class set_for_scope {
 public:
  set_for_scope(T& place, T value) : place_(place), before_(std::exchange(place, value)) {}
  ~set_for_scope() { place_ = before_; }
  set_for_scope(const set_for_scope&) = delete;
  set_for_scope& operator=(const set_for_scope&) = delete;

 private:
  T& place_;
  T before_;
};

}  // namespace

scheduler::scheduler(std::shared_ptr<const api> cl, const discovery& found, device_id first, backend* face,
                     waiting policy, std::function<void(const link_path&, std::uint64_t)> moved)
    : cl_(std::move(cl)), first_(first), face_(face), policy_(policy), moved_(std::move(moved)) {
  for (const device_place& one : found.devices) {
    auto made = std::make_unique<device_state>();
    made->id = one.id;
    made->context = found.contexts[one.context].context.get();
    made->context_index = one.context;
    devices_.push_back(std::move(made));
  }
}

scheduler::~scheduler() { close(); }

// ---- streams --------------------------------------------------------------------------------------------------------

result<queue_handle> scheduler::make_queue(device_state& device) const {
  cl_int status = CL_SUCCESS;
  cl_command_queue made = nullptr;
  if (cl_->clCreateCommandQueueWithProperties != nullptr) {
    const std::array<cl_queue_properties, 3> properties{CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
    made = cl_->clCreateCommandQueueWithProperties(device.context, device.id, properties.data(), &status);
  }
  if (made == nullptr)  // a loader or a platform before 2.0
    made = cl_->clCreateCommandQueue(device.context, device.id, CL_QUEUE_PROFILING_ENABLE, &status);
  if (made == nullptr) return cl_error(status, "a command queue");
  return queue_handle{cl_, made};
}

// Device times count from where the driver likes. A few markers say where that is on our clock, to some microseconds.
void scheduler::calibrate(device_state& device, cl_command_queue queue) const {
  auto shortest = std::chrono::nanoseconds::max();
  for (int i = 0; i < 5; ++i) {
    cl_event raw = nullptr;
    const auto before = now();
    if (cl_->clEnqueueMarkerWithWaitList(queue, 0, nullptr, &raw) != CL_SUCCESS) return;
    const event_handle marker{cl_, raw};
    if (cl_->clWaitForEvents(1, &raw) != CL_SUCCESS) return;
    const auto after = now();
    cl_ulong ended = 0;
    if (cl_->clGetEventProfilingInfo(raw, CL_PROFILING_COMMAND_END, sizeof ended, &ended, nullptr) != CL_SUCCESS)
      return;
    if (after - before >= shortest) continue;
    shortest = after - before;
    device.offset = before + (after - before) / 2 - std::chrono::nanoseconds{static_cast<std::int64_t>(ended)};
    device.timed = true;
  }
}

result<cl_stream*> scheduler::create(device_id device, bool told) {
  device_state& state = state_of(device);
  const std::unique_lock lock{table_mutex_};
  cl_stream* made = nullptr;
  for (const auto& s : streams_) {
    if (s->handle_.load(std::memory_order_relaxed) == 0 && s->device_ == device) made = s.get();
  }
  if (made == nullptr) {
    auto queue = make_queue(state);
    if (!queue) return std::move(queue).error();
    const bool first =
        std::none_of(streams_.begin(), streams_.end(), [&](const auto& s) { return s->device_ == device; });
    if (first) calibrate(state, queue->get());
    streams_.push_back(std::make_unique<cl_stream>(*this, device, std::move(*queue)));
    made = streams_.back().get();
    made->place_ = streams_.size();
  }
  const auto free = std::find(state.tracks.begin(), state.tracks.end(), false);
  made->track_.store(static_cast<std::uint64_t>(free - state.tracks.begin()), std::memory_order_relaxed);
  if (free == state.tracks.end()) {
    state.tracks.push_back(true);
  } else {
    *free = true;
  }
  made->told_.store(told, std::memory_order_relaxed);
  {
    const std::lock_guard failure{made->failure_mutex_};
    made->unreported_ = nullptr;
    made->poison_ = nullptr;
    made->poisoned_.store(false, std::memory_order_release);
  }
  constexpr int place_bits = 24;
  made->handle_.store(++made->generation_ << place_bits | made->place_, std::memory_order_release);
  return made;
}

cl_stream* scheduler::find(stream_handle handle) const noexcept {
  constexpr std::uint64_t place_mask = (std::uint64_t{1} << 24) - 1;
  const std::uint64_t place = static_cast<std::uint64_t>(handle) & place_mask;
  const std::shared_lock lock{table_mutex_};
  if (place == 0 || place > streams_.size()) return nullptr;
  cl_stream* const found = streams_[place - 1].get();
  return found->handle() == handle ? found : nullptr;
}

std::vector<cl_stream*> scheduler::streams_of(device_id device) const {
  const std::shared_lock lock{table_mutex_};
  std::vector<cl_stream*> found;
  for (const auto& s : streams_) {
    if (s->device_ == device && s->handle_.load(std::memory_order_acquire) != 0) found.push_back(s.get());
  }
  return found;
}

void scheduler::destroy(stream_handle handle) {
  cl_stream* const gone = find(handle);
  if (gone == nullptr) return;
  // a failure that nobody waited for goes with the stream; device and machine synchronisation would have told
  if (!closed()) static_cast<void>(synchronize(*gone, no_deadline, {}));
  const std::unique_lock lock{table_mutex_};
  state_of(gone->device_).tracks[gone->track()] = false;
  gone->handle_.store(0, std::memory_order_release);
}

// ---- submission -----------------------------------------------------------------------------------------------------

command* scheduler::own(event_record& event) const noexcept {
  return event.owner == face_ && event.stream != 0 ? static_cast<command*>(&event) : nullptr;
}

event_ref scheduler::submit(cl_stream& to, std::unique_ptr<command> made) {
  command* const c = made.get();
  c->home = &to;
  c->owner = face_;
  c->device = to.device_;
  c->stream = static_cast<std::uint64_t>(to.handle());
  if (tracing_.load(std::memory_order_acquire)) c->submitted = now();
  constexpr std::size_t many = 64;  // commands in the queue that nobody has looked at
  bool is_next = false;
  bool is_started = false;
  bool look = false;
  {
    const std::lock_guard lock{to.mutex_};
    if (closed_.load(std::memory_order_seq_cst)) return {};
    // NOLINTNEXTLINE(bugprone-unused-return-value): one reference is the stream's, one the caller's
    static_cast<void>(made.release());
    c->retain();
    c->sequence = to.submitted_.fetch_add(1, std::memory_order_seq_cst) + 1;
    to.last_ = handle_of(*c);
    is_next = to.waiting_.empty() && to.on_host_ == nullptr;
    std::shared_ptr<const error> cause;
    is_started = is_next && c->is_for_driver() && try_start(to, *c, cause) == start_outcome::started;
    if (!is_started) to.waiting_.push_back(c);
    look = to.flying_.size() % many == many - 1;
    if (!records_tell && is_started && to.flying_.size() == 1) note_to_arm(to, *c);
  }
  if (!records_tell && is_started) arm(to);
  if ((is_next && !is_started) || look) progress(to);
  return event_ref{c};
}

event_ref scheduler::record(cl_stream& of) {
  {
    const std::lock_guard lock{of.mutex_};
    // what was submitted last ends when everything before it has
    if (of.last_ && !of.last_->finished() && !closed()) return of.last_;
  }
  return submit(
      of, std::make_unique<driver_command>([cl = cl_.get()](cl_command_queue queue, cl_event* ended) -> result<void> {
        const cl_int status = cl->clEnqueueMarkerWithWaitList(queue, 0, nullptr, ended);
        if (status != CL_SUCCESS) return cl_error(status, "a marker");
        return {};
      }));
}

std::shared_ptr<const error> scheduler::refusal(cl_stream& s, command& c) {
  if (closed()) {
    return share(make_error(errc::cancelled,
                            "the machine was closed before the operation on " + to_string(s.device_) + " started",
                            error_scope::endpoint));
  }
  if (auto cause = lost(s.device_)) return cause;
  if (c.dependency && c.dependency->finished() && c.dependency->cause()) return c.dependency->cause();
  if (auto cause = poison_of(s, c.sequence)) return cause;
  if (c.stop.stop_requested())
    return share(make_error(errc::cancelled, "cancelled before it started on " + to_string(s.device_)));
  return nullptr;
}

bool scheduler::driver_can_wait(const cl_stream& s, const event_record& dependency) const {
  if (dependency.owner != face_ || dependency.stream == 0) return false;
  const auto& other = static_cast<const command&>(dependency);
  return other.native_event() != nullptr && state_of(other.device).context_index == state_of(s.device_).context_index;
}

// Under the stream's lock.
scheduler::start_outcome scheduler::try_start(cl_stream& s, command& c, std::shared_ptr<const error>& cause) {
  cause = c.refused ? c.refused : refusal(s, c);
  if (!cause && c.dependency && !c.dependency->finished()) {
    if (!c.is_for_driver() || !driver_can_wait(s, *c.dependency)) return start_outcome::blocked;
  }
  if (!cause && c.is_for_driver()) {
    cl_event last = nullptr;
    auto done = c.hand_over(s.queue_.get(), &last);
    if (done) {
      c.keep(event_handle{cl_, last});
      s.flying_.push_back(&c);
      static_cast<void>(cl_->clFlush(s.queue_.get()));
      if (c.is_watched) note_to_arm(s, c);
      return start_outcome::started;
    }
    static_cast<void>(cl_->clFinish(s.queue_.get()));  // what a command of several parts left there
    cause = c.refused = share(std::move(done).error());
  }
  // what is not the driver's comes after all that is
  if (!s.flying_.empty()) {
    s.flying_.back()->is_watched = true;
    note_to_arm(s, *s.flying_.back());
    return start_outcome::blocked;
  }
  if (cause) return start_outcome::ended;
  if (!s.worker_.joinable()) {
    try {
      s.worker_ = std::jthread{[this, &s](const std::stop_token& shutdown) { work(s, shutdown); }};
    } catch (const std::system_error&) {
      cause = share(make_error(errc::resource_exhausted,
                               "no thread could be started for a stream; raise the limit of threads (ulimit -u) or use "
                               "fewer streams"));
      return start_outcome::ended;
    }
  }
  s.on_host_ = &c;
  s.work_.notify_one();
  return start_outcome::started;
}

// ---- going forward --------------------------------------------------------------------------------------------------

void scheduler::progress(cl_stream& s) noexcept {
  s.again_.store(true, std::memory_order_seq_cst);
  while (s.again_.load(std::memory_order_seq_cst)) {
    if (s.held_.test_and_set(std::memory_order_acquire)) return;  // who holds it sees the note
    while (s.again_.exchange(false, std::memory_order_seq_cst)) step(s);
    s.held_.clear(std::memory_order_seq_cst);
  }
}

void scheduler::step(cl_stream& s) noexcept {
  reap(s);
  if (called_by_driver) {
    bool more = false;
    {
      const std::lock_guard lock{s.mutex_};
      more = !s.waiting_.empty() && s.on_host_ == nullptr;
    }
    if (more) post(s);
  } else {
    pump(s);
  }
  if (!records_tell) {
    const std::lock_guard lock{s.mutex_};
    if (!s.flying_.empty()) note_to_arm(s, *s.flying_.front());
  }
  arm(s);
}

/// Ends what the driver has ended.
void scheduler::reap(cl_stream& s) {
  for (;;) {
    command* c = nullptr;
    {
      const std::lock_guard lock{s.mutex_};
      if (s.flying_.empty()) return;
      c = s.flying_.front();
    }
    cl_int status = CL_COMPLETE;
    const cl_int asked =
        cl_->clGetEventInfo(c->native_event(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
    if (asked != CL_SUCCESS) status = asked;
    if (status > CL_COMPLETE) return;
    if (c->dependency && !c->dependency->finished()) {
      // The driver has seen it end, and its stream not yet: that knows whether it ended well.
      progress(*own(*c->dependency)->home);
      if (!c->dependency->finished()) {
        post(s);
        return;
      }
    }
    auto cause = outcome_of(*c, status);
    {
      const std::lock_guard lock{s.mutex_};
      s.flying_.pop_front();
    }
    finish(*c, std::move(cause));
  }
}

/// Hands over what is not held back any more.
void scheduler::pump(cl_stream& s) {
  for (;;) {
    command* c = nullptr;
    event_ref dependency;
    std::shared_ptr<const error> cause;
    {
      const std::lock_guard lock{s.mutex_};
      if (s.waiting_.empty() || s.on_host_ != nullptr) return;
      c = s.waiting_.front();
      const start_outcome outcome = try_start(s, *c, cause);
      if (outcome == start_outcome::blocked) {
        if (c->dependency && !c->dependency->finished() && !c->follows_dependency) {
          c->follows_dependency = true;
          dependency = c->dependency;
        }
      } else {
        s.waiting_.pop_front();
      }
      if (outcome == start_outcome::started) continue;
      if (outcome == start_outcome::blocked) c = nullptr;
    }
    if (c == nullptr) {
      if (!dependency) return;
      dependency->on_complete([this, &s] {
        if (called_by_driver) {
          post(s);
        } else {
          progress(s);
        }
      });
      continue;  // it may have ended meanwhile
    }
    finish(*c, std::move(cause));
  }
}

void scheduler::watch(command& c) noexcept {
  cl_stream& s = *c.home;
  {
    const std::lock_guard lock{s.mutex_};
    c.is_watched = true;
    if (c.native_event() == nullptr) return;  // it is armed when it is handed over
    note_to_arm(s, c);
  }
  arm(s);
}

// Under the stream's lock.
void scheduler::note_to_arm(cl_stream& s, command& c) {
  if (c.is_armed) return;
  c.is_armed = true;
  c.retain();
  s.to_arm_.push_back(&c);
}

/// Tells the driver of what was noted: not under the lock, since it may call at once.
void scheduler::arm(cl_stream& s) noexcept {
  std::vector<command*> noted;
  {
    const std::lock_guard lock{s.mutex_};
    noted.swap(s.to_arm_);
  }
  for (command* c : noted) {
    armed_.fetch_add(1, std::memory_order_relaxed);
    if (cl_->clSetEventCallback(c->native_event(), CL_COMPLETE, &scheduler::on_event, c) == CL_SUCCESS) continue;
    armed_.fetch_sub(1, std::memory_order_release);
    post(s);  // it is looked at, if not told
    c->drop();
  }
}

void CL_CALLBACK scheduler::on_event(cl_event, cl_int, void* data) {
  auto* const c = static_cast<command*>(data);
  cl_stream& s = *c->home;
  scheduler& self = s.owner_;
  {
    const set_for_scope driver{called_by_driver, true};
    const set_for_scope<const scheduler*> worker{working_for, &self};
    self.progress(s);
    c->drop();
  }
  self.armed_.fetch_sub(1, std::memory_order_release);  // the last touch: close() waits for it
}

std::shared_ptr<const error> scheduler::outcome_of(command& c, cl_int status) {
  if (c.dependency && c.dependency->cause()) return c.dependency->cause();
  if (status == CL_COMPLETE) return nullptr;
  const std::string what = c.note.kind == trace_kind::kernel ? "the kernel '" + c.name() + "'"
                           : c.note.kind == trace_kind::copy ? std::string{"a copy"}
                                                             : "an operation";
  return share(cl_error(status, what + " on " + to_string(c.device) + " failed",
                        c.note.kind == trace_kind::kernel ? errc::kernel_failed : errc::copy_failed));
}

void scheduler::take_times(command& c) {
  cl_stream& s = *c.home;
  // Where devices' clocks begin is known to some microseconds only. What comes after something does so in times as
  // well: a later command of a stream, and one that waited for another stream.
  if (c.dependency && c.dependency->timed) s.last_ended_ = std::max(s.last_ended_, c.dependency->ended);
  const auto earliest = s.last_ended_;
  const auto latest = std::max(now(), earliest);
  c.started = c.ended = latest;
  const device_state& device = state_of(c.device);
  if (const cl_event event = c.native_event(); event != nullptr && device.timed) {
    const auto read = [&](cl_profiling_info what, std::chrono::nanoseconds& into) {
      cl_ulong time = 0;
      if (cl_->clGetEventProfilingInfo(event, what, sizeof time, &time, nullptr) == CL_SUCCESS)
        into = device.offset + std::chrono::nanoseconds{static_cast<std::int64_t>(time)};
    };
    read(CL_PROFILING_COMMAND_START, c.started);
    read(CL_PROFILING_COMMAND_END, c.ended);
  }
  c.ended = std::clamp(c.ended, earliest, latest);
  c.started = std::clamp(c.started, std::min(std::max(earliest, c.submitted), c.ended), c.ended);
  s.last_ended_ = c.ended;
}

void scheduler::finish(command& c, std::shared_ptr<const error> cause) {
  cl_stream& s = *c.home;
  if (!cause && s.poisoned_.load(std::memory_order_acquire)) cause = poison_of(s, c.sequence);
  if (!c.is_for_driver() && !cause) {
    s.last_ended_ = c.ended;
  } else {
    take_times(c);
  }
  if (tracing_.load(std::memory_order_acquire)) trace(c, cause != nullptr);
  if (!cause && c.path != nullptr) moved_(*c.path, c.note.bytes);
  // lets go of memory before anybody can see the command ended
  c.let_go();
  c.dependency = {};
  if (cause) {
    if (cause->scope == error_scope::device &&
        (cause->code == errc::illegal_access || cause->code == errc::device_lost) && !lost(c.device))
      lose(c.device, cause);
    poison(s, cause, c.sequence);
  }
  s.finished_.fetch_add(1, std::memory_order_release);
  c.complete(std::move(cause));
  c.drop();
}

}  // namespace weft::opencl
