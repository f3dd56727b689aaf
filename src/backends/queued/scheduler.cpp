// SPDX-License-Identifier: Apache-2.0
#include "backends/queued/scheduler.hpp"

#include "core/errors/make_error.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::queued {

namespace {

// Whether it is the driver that called, on a thread of its own: there nothing may be submitted.
thread_local bool called_by_driver = false;

/// A place in a stream's queue.
class mark_command final : public command {
 public:
  explicit mark_command(queue_driver& driver) : command(place::driver), driver_(driver) {}

  [[nodiscard]] result<void> hand_over(native_queue queue, native_event* last) override {
    // The scheduler hands it over only if the driver has what it depends on.
    const bool waits = dependency && !dependency->finished();
    auto made = driver_.mark(device, queue, waits ? static_cast<const command&>(*dependency).native() : nullptr);
    if (!made) return std::move(made).error();
    *last = *made;
    return {};
  }
  void let_go() noexcept override {}

 private:
  queue_driver& driver_;
};

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

scheduler::scheduler(std::shared_ptr<queue_driver> driver, device_id first, std::size_t count, backend* face,
                     waiting policy, std::function<void(const link_path&, std::uint64_t)> moved)
    : driver_(std::move(driver)),
      first_(first),
      face_(face),
      policy_(policy),
      moved_(std::move(moved)),
      failures_(first, count, face),
      tracks_(count) {}

scheduler::~scheduler() {
  close();
  for (const auto& s : streams_) driver_->destroy_queue(s->device_, s->queue_);
}

// ---- streams --------------------------------------------------------------------------------------------------------

result<queued_stream*> scheduler::create(device_id device, int priority, bool told) {
  {
    const std::unique_lock lock{table_mutex_};
    for (const auto& s : streams_) {
      if (s->handle_.load(std::memory_order_relaxed) != 0 || s->device_ != device || s->priority_ != priority ||
          s->adopted_)
        continue;
      open(*s, told);
      return s.get();
    }
  }
  // Without the lock: the first queue of a device may take the driver long, and every call for a stream looks it up.
  auto queue = driver_->create_queue(device, priority);
  if (!queue) return std::move(queue).error();
  const std::unique_lock lock{table_mutex_};
  try {
    streams_.push_back(std::make_unique<queued_stream>(*this, device, priority, *queue, false));
  } catch (...) {
    driver_->destroy_queue(device, *queue);  // which belongs to no row of the table
    throw;
  }
  streams_.back()->place_ = streams_.size();
  open(*streams_.back(), told);
  return streams_.back().get();
}

result<queued_stream*> scheduler::adopt(device_id device, void* driver_queue) {
  const std::unique_lock lock{table_mutex_};
  queued_stream* made = nullptr;
  for (const auto& s : streams_) {
    if (s->handle_.load(std::memory_order_relaxed) == 0 && s->device_ == device && s->adopted_) made = s.get();
  }
  auto queue = driver_->adopt_queue(device, driver_queue, made == nullptr ? nullptr : made->queue_);
  if (!queue) return std::move(queue).error();
  if (made == nullptr) {
    streams_.push_back(std::make_unique<queued_stream>(*this, device, 0, *queue, true));
    made = streams_.back().get();
    made->place_ = streams_.size();
  }
  open(*made, true);
  return made;
}

/// A row of the table becomes a stream. Under the table's lock.
void scheduler::open(queued_stream& s, bool told) {
  s.track_.store(tracks_of(s.device_).take(), std::memory_order_relaxed);
  s.shared_.store(s.adopted_, std::memory_order_relaxed);
  s.failures_.open(told);
  constexpr int place_bits = 24;
  s.handle_.store(++s.generation_ << place_bits | s.place_, std::memory_order_release);
}

result<void*> scheduler::share_queue(queued_stream& s) {
  const std::lock_guard lock{s.mutex_};  // whose first work makes the driver's stream
  s.shared_.store(true, std::memory_order_release);
  return driver_->name_of(s.device_, s.queue_);
}

queued_stream* scheduler::find(stream_handle handle) const noexcept {
  constexpr std::uint64_t place_mask = (std::uint64_t{1} << 24) - 1;
  const std::uint64_t place = static_cast<std::uint64_t>(handle) & place_mask;
  const std::shared_lock lock{table_mutex_};
  if (place == 0 || place > streams_.size()) return nullptr;
  queued_stream* const found = streams_[place - 1].get();
  return found->handle() == handle ? found : nullptr;
}

std::vector<queued_stream*> scheduler::streams_of(device_id device) const {
  const std::shared_lock lock{table_mutex_};
  std::vector<queued_stream*> found;
  for (const auto& s : streams_) {
    if (s->device_ == device && s->handle_.load(std::memory_order_acquire) != 0) found.push_back(s.get());
  }
  return found;
}

void scheduler::destroy(stream_handle handle) {
  queued_stream* const gone = find(handle);
  if (gone == nullptr) return;
  // a failure that nobody waited for goes with the stream; device and machine synchronisation would have told
  if (!closed()) static_cast<void>(synchronize(*gone, no_deadline, {}));
  const std::unique_lock lock{table_mutex_};
  tracks_of(gone->device_).give_back(gone->track());
  gone->handle_.store(0, std::memory_order_release);
}

// ---- submission -----------------------------------------------------------------------------------------------------

command* scheduler::own(event_record& event) const noexcept {
  return event.owner == face_ && event.stream != 0 ? static_cast<command*>(&event) : nullptr;
}

event_ref scheduler::submit(queued_stream& to, std::unique_ptr<command> made) {
  // a thread of the host does not see what the program has put into the queue
  if (!made->is_for_driver() && to.shared_.load(std::memory_order_acquire))
    static_cast<void>(submit(to, std::make_unique<mark_command>(*driver_)));
  command* const c = made.get();
  c->home_ = &to;
  c->owner = face_;
  c->device = to.device_;
  c->stream = static_cast<std::uint64_t>(to.handle());
  c->epoch_ = epoch_;
  c->submitted_ = now();
  constexpr std::size_t many = 64;  // commands in the queue that nobody has looked at
  bool is_next = false;
  bool is_started = false;
  bool look = false;
  event_ref end;
  {
    const std::lock_guard lock{to.mutex_};
    if (closed()) return end;
    end = event_ref{made.release()};  // the caller's reference
    c->retain();                      // the stream's
    c->sequence_ = to.submitted_.fetch_add(1, std::memory_order_seq_cst) + 1;
    to.last_ = end;
    is_next = to.waiting_.empty() && to.on_host_ == nullptr;
    std::shared_ptr<const error> cause;
    is_started = is_next && c->is_for_driver() && try_start(to, *c, cause) == start_outcome::started;
    if (!is_started) to.waiting_.push_back(c);
    look = to.flying_.size() % many == many - 1 || c->refused_ != nullptr;
  }
  if ((is_next && !is_started) || look) progress(to);
  return end;
}

event_ref scheduler::record(queued_stream& of) {
  {
    const std::lock_guard lock{of.mutex_};
    // what was submitted last ends when everything before it has, where nobody else submits
    if (!of.shared_.load(std::memory_order_acquire) && of.last_ && !of.last_->finished() && !closed()) return of.last_;
  }
  return submit(of, std::make_unique<mark_command>(*driver_));
}

/// What ends when all that is in the stream now has; null where nothing is.
event_ref scheduler::end_of(queued_stream& s) {
  if (s.shared_.load(std::memory_order_acquire) && !lost(s.device_)) {
    if (event_ref mark = submit(s, std::make_unique<mark_command>(*driver_))) return mark;
  }
  const std::lock_guard lock{s.mutex_};
  return s.last_;
}

bool scheduler::wait_for(queued_stream& in, const event_ref& before) {
  auto made = std::make_unique<mark_command>(*driver_);
  made->dependency = before;
  return static_cast<bool>(submit(in, std::move(made)));
}

std::shared_ptr<const error> scheduler::refusal(queued_stream& s, command& c) {
  return failures_.refusal(s.device_, s.failures_, c.sequence_, c.dependency, c.stop);
}

bool scheduler::driver_can_wait(const queued_stream& s, const event_record& dependency) const {
  if (dependency.owner != face_ || dependency.stream == 0) return false;
  const auto& other = static_cast<const command&>(dependency);
  // of one that was refused it would see the mark behind it end well; native() was set after that was known
  return other.native() != nullptr && other.refused_ == nullptr && !other.delivers() &&
         driver_->can_wait(s.device_, other.device);
}

// Under the stream's lock.
scheduler::start_outcome scheduler::try_start(queued_stream& s, command& c, std::shared_ptr<const error>& cause) {
  // Looked at before its cause is: one that ends in between, and badly, must not look like one that ended well.
  const bool is_pending = c.dependency && !c.dependency->finished();
  cause = c.refused_ ? c.refused_ : refusal(s, c);
  if (!cause && is_pending) {
    if (!c.is_for_driver() || !driver_can_wait(s, *c.dependency)) return start_outcome::blocked;
  }
  // A driver whose own line is full makes who submits wait, here with the stream's lock.
  constexpr std::size_t most_flying = 256;
  if (!cause && c.is_for_driver() && s.flying_.size() >= most_flying) {
    command& half_way = *s.flying_.at(most_flying / 2);
    half_way.is_watched_ = true;
    note_to_arm(s, half_way);
    return start_outcome::blocked;
  }
  // A word or message that the device writes behind a delivery could tell the host of it too early.
  const bool is_early = !s.flying_.empty() && s.flying_.back()->delivers() && !c.delivers();
  if (!cause && c.is_for_driver() && !is_early) {
    native_event last = nullptr;
    auto done = guarded([&] { return c.hand_over(s.queue_, &last); });
    if (done) {
      c.keep(driver_, last);
      s.flying_.push_back(&c);
      driver_->flush(s.device_, s.queue_);
      if (c.is_watched_) note_to_arm(s, c);
      return start_outcome::started;
    }
    cause = c.refused_ = common::cause_of([&] { return std::move(done).error(); });
    c.failed_here_ = true;
    // on a device that is lost by it nothing runs any more
    if (cause->scope != error_scope::device && fly_refused(s, c)) return start_outcome::started;
  }
  // what is not the driver's comes after all that is
  if (!s.flying_.empty()) {
    s.flying_.back()->is_watched_ = true;
    note_to_arm(s, *s.flying_.back());
    return start_outcome::blocked;
  }
  if (cause) return start_outcome::ended;
  if (!s.worker_.joinable()) {
    auto started = guarded([&]() -> result<void> {
      s.worker_ = std::jthread{[this, &s](const std::stop_token& shutdown) { work(s, shutdown); }};
      return {};
    });
    if (!started) {
      cause = common::cause_of([&] { return std::move(started).error(); });
      return start_outcome::ended;
    }
  }
  s.on_host_ = &c;
  s.work_.notify_one();
  return start_outcome::started;
}

/// What a command of several parts left in the queue uses its memory: the command ends with that. Nobody waits for it
/// here, as what the queue holds may wait for whoever submits. False: nothing of it is there. Under the stream's lock.
bool scheduler::fly_refused(queued_stream& s, command& c) {
  auto rest = guarded([&] { return driver_->mark(s.device_, s.queue_, nullptr); });
  if (!rest) {
    driver_->finish(s.device_, s.queue_);
    return false;
  }
  c.keep(driver_, *rest);
  s.flying_.push_back(&c);
  driver_->flush(s.device_, s.queue_);
  s.failures_.add(c.refused_, c.sequence_);  // at once, for what comes next
  if (c.is_watched_) note_to_arm(s, c);
  return true;
}

// ---- going forward --------------------------------------------------------------------------------------------------

void scheduler::progress(queued_stream& s) noexcept {
  s.again_.store(true, std::memory_order_seq_cst);
  while (s.again_.load(std::memory_order_seq_cst)) {
    if (s.held_.test_and_set(std::memory_order_seq_cst)) return;  // who holds it sees the note
    while (s.again_.exchange(false, std::memory_order_seq_cst)) step(s);
    s.held_.clear(std::memory_order_seq_cst);
  }
}

void scheduler::step(queued_stream& s) noexcept {
  if (!reap(s)) return;
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
  arm(s);
}

/// Ends what the driver has ended. True if something waits behind that; what comes later has the stream taken forward
/// by who brings it.
bool scheduler::reap(queued_stream& s) {
  command* c = nullptr;
  bool more = false;
  const auto look = [&] {
    c = s.flying_.empty() ? nullptr : s.flying_.front();
    more = !s.waiting_.empty();
  };
  {
    const std::lock_guard lock{s.mutex_};
    look();
  }
  while (c != nullptr) {
    command& ended = *c;
    const event_state state = driver_->state(s.device_, ended.native());
    if (state == event_state::running) return more;
    if (ended.dependency && !ended.dependency->finished()) {
      // The driver has seen it end, and its stream not yet: that knows whether it ended well.
      progress(*own(*ended.dependency)->home_);
      if (!ended.dependency->finished() && state == event_state::ended) {
        post(s);
        return more;
      }
    }
    auto cause = outcome_of(ended, state);
    if (!cause) cause = s.failures_.skips(ended.sequence_);
    // both before it goes, for what comes next
    if (!cause) ended.deliver();
    {
      const std::lock_guard lock{s.mutex_};
      if (cause) s.failures_.add(cause, ended.sequence_);
      s.flying_.pop_front();
      look();
    }
    finish(ended, std::move(cause));
  }
  return more;
}

/// Hands over what is not held back any more.
void scheduler::pump(queued_stream& s) {
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
        // also where it has ended since try_start() looked: then it calls at once, and nobody else would
        if (c->dependency && !c->follows_dependency_) {
          c->follows_dependency_ = true;
          dependency = c->dependency;
        }
      } else {
        if (cause) s.failures_.add(cause, c->sequence_);  // before it goes, for what comes next
        s.waiting_.pop_front();
      }
      if (outcome == start_outcome::started) continue;
      if (outcome == start_outcome::blocked) c = nullptr;
    }
    if (c == nullptr) {
      if (!dependency) return;
      try {
        dependency->on_complete([this, &s] {
          if (called_by_driver) {
            post(s);
          } else {
            progress(s);
          }
        });
      } catch (const std::bad_alloc&) {
        const std::lock_guard lock{s.mutex_};
        if (s.waiting_.empty()) continue;
        s.waiting_.front()->retain();
        look_at(*s.waiting_.front());  // again and again, until it has ended
      }
      continue;  // it may have ended meanwhile
    }
    finish(*c, std::move(cause));
  }
}

void scheduler::watch(command& c) noexcept {
  queued_stream& s = *c.home_;
  // The thread that may have to tell: who then sleeps must know whether there is one.
  if (service_state_.load(std::memory_order_acquire) != service_state::runs && !closed()) {
    const std::lock_guard lock{service_mutex_};
    wake_service();
  }
  {
    const std::lock_guard lock{s.mutex_};
    if (closed()) return;  // which ends everything
    c.is_watched_ = true;
    if (c.native() == nullptr) return;  // it is armed when it is handed over
    note_to_arm(s, c);
  }
  arm(s);
}

void scheduler::note_to_arm(queued_stream& s, command& c) {
  if (c.is_armed_ || closed()) return;
  c.is_armed_ = true;
  c.retain();
  armed_.fetch_add(1, std::memory_order_relaxed);  // here, where close() cannot have passed this stream
  s.to_arm_.push_back(&c);
}

/// Tells the driver of what was noted: not under the lock, since it may call at once.
void scheduler::arm(queued_stream& s) noexcept {
  for (;;) {
    command* c = nullptr;
    {
      const std::lock_guard lock{s.mutex_};
      c = s.to_arm_.pop_front();
    }
    if (c == nullptr) return;
    c->at_end_ = {&scheduler::on_end, c};
    if (driver_->call_at_end(c->device, c->native(), c->at_end_)) continue;
    look_at(*c);
    armed_.fetch_sub(1, std::memory_order_release);
  }
}

void scheduler::on_end(void* data) {
  auto* const c = static_cast<command*>(data);
  queued_stream& s = *c->home_;
  scheduler& self = s.owner_;
  {
    const set_for_scope driver{called_by_driver, true};
    const set_for_scope<const scheduler*> worker{working_for, &self};
    if (self.driver_->may_look_when_called()) self.progress(s);
    // a driver may call too early: when it was asked and did not know, or for what others in the queue hold up
    if (c->finished()) {
      c->drop();
    } else {
      self.post(s, c);
    }
  }
  self.armed_.fetch_sub(1, std::memory_order_release);  // the last touch: close() waits for it
}

std::shared_ptr<const error> scheduler::outcome_of(command& c, event_state state) {
  const bool is_given_up = state == event_state::ended && c.was_given_up();
  if (c.refused_) return c.refused_;
  if (c.dependency && c.dependency->finished() && c.dependency->cause()) return c.dependency->cause();
  if (state == event_state::ended) return is_given_up ? over(c.device) : nullptr;
  // After one failure a driver may fail everything: the first is the cause.
  if (auto cause = c.home_->failures_.skips(c.sequence_)) return cause;
  if (auto cause = lost(c.device)) return cause;
  c.failed_here_ = true;
  return common::cause_of([&] {
    const std::string what = c.note.kind == trace_kind::kernel ? "the kernel '" + c.name() + "'"
                             : c.note.kind == trace_kind::copy ? std::string{"a copy"}
                                                               : "an operation";
    return driver_->failure(c.device, c.native(), what + " on " + to_string(c.device) + " failed",
                            c.note.kind == trace_kind::kernel ? errc::kernel_failed : errc::copy_failed);
  });
}

void scheduler::take_times(command& c) {
  queued_stream& s = *c.home_;
  c.started = c.ended = now();
  // Without a trace the driver is asked by who wants to know: that costs as much as a launch.
  c.has_times_ = tracing_.load(std::memory_order_acquire);
  if (!c.has_times_) {
    c.submitted_ = std::max(c.submitted_, s.last_ended_);  // not before a function of the host, whose end is known
    return;
  }
  // Where devices' clocks begin is known to some microseconds only. What comes after something does so in times as
  // well: a later command of a stream, and one that waited for another stream.
  c.turn_ = std::max(s.last_ended_, c.submitted_);
  if (c.dependency && c.dependency->timed) s.last_ended_ = std::max(s.last_ended_, c.dependency->ended);
  const auto earliest = std::max(s.last_ended_, c.submitted_);
  const auto latest = std::max(c.ended, earliest);
  c.started = c.ended = latest;
  if (const native_event event = c.native(); event != nullptr) {
    if (const auto ran = driver_->times(c.device, event)) {
      c.ended = ran->ended - epoch_;
      c.started = ran->started ? *ran->started - epoch_ : earliest;
    }
  }
  c.ended = std::clamp(c.ended, earliest, latest);
  c.started = std::clamp(c.started, earliest, c.ended);
  s.last_ended_ = c.ended;
}

void scheduler::finish(command& c, std::shared_ptr<const error> cause) {
  queued_stream& s = *c.home_;
  if (!cause) cause = s.failures_.skips(c.sequence_);
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
    // a failure that came by a dependency is perhaps another device's
    if (cause->scope == error_scope::device && c.failed_here_ && !lost(c.device)) lose_by_fault(c.device, cause);
    s.failures_.add(cause, c.sequence_);
  }
  s.failures_.ended(c.sequence_);
  s.ending_.fetch_add(1, std::memory_order_relaxed);  // before the count: who sees that sees this
  s.finished_.fetch_add(1, std::memory_order_release);
  c.complete(std::move(cause), &s.ending_);
  c.drop();
}

}  // namespace weft::queued
