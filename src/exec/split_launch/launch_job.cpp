// SPDX-License-Identifier: Apache-2.0
#include "exec/split_launch/launch_job.hpp"

#include "core/errors/make_error.hpp"
#include "exec/launch_check.hpp"
#include "exec/split_launch/launch_state.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft::detail {
namespace {

std::chrono::nanoseconds begin_of(std::span<const event> events) {
  auto first = std::chrono::nanoseconds::max();
  for (const event& e : events) {
    if (e.record()) first = std::min(first, e.record()->times().started);
  }
  return first == std::chrono::nanoseconds::max() ? std::chrono::nanoseconds{0} : first;
}

std::chrono::nanoseconds end_of(std::span<const event> events) {
  std::chrono::nanoseconds last{0};
  for (const event& e : events) {
    if (e.record()) last = std::max(last, e.record()->times().ended);
  }
  return last;
}

bool finished(const event& e) { return !e.record() || e.record()->finished(); }

double seconds(std::chrono::nanoseconds t) { return std::chrono::duration<double>(t).count(); }

}  // namespace

// ---- beginning ------------------------------------------------------------------------------------------------------

launch_job::launch_job(job_plan plan) : plan_(std::move(plan)) {
  number_ = launches_of(*plan_.state).next_number();
  record_.kernel = plan_.code->name;
  record_.items = plan_.steps();
  record_.simulated = plan_.state->options().clock == clock_kind::virtual_time;
  for (const job_argument& a : plan_.arguments) {
    if (!a.is_temporary || a.array->borrows_device_memory()) continue;
    borrows_host_memory_ = true;
    if (!a.array->is_shared()) record_.holds_borrowed = true;
  }
  for (const job_argument& a : plan_.arguments) {
    if (a.array) arrays_.push_back(a.array.get());
  }
  std::sort(arrays_.begin(), arrays_.end());
  arrays_.erase(std::unique(arrays_.begin(), arrays_.end()), arrays_.end());
  if (!plan_.one_device_because.empty()) record_.notes.push_back("not divided: " + plan_.one_device_because);
  if (plan_.options.model && !record_.simulated) record_.notes.push_back(model_without_virtual_clock(*plan_.code));
}

/// What the user has submitted to the devices without naming a stream comes first. It is noted when the launch is
/// submitted, not when it is decided: what comes in between may wait for this launch.
void launch_job::note_default_streams() {
  for (const device& d : plan_.devices) {
    backend& driver = plan_.state->backend_of(d.id());
    const auto order = plan_.state->default_stream(d.id());
    if (!order || driver.settled(*order)) continue;
    auto recorded = driver.record(*order);
    if (!recorded && recorded.error().code == errc::device_lost) continue;  // told by its pieces, if it gets any
    event last = make<event>(plan_.state, value_or_raise(std::move(recorded), plan_.where));
    if (retries()) last = once_seen(last);  // a lost device does not take the pieces of the others along
    default_streams_.push_back(std::move(last));
  }
}

/// Ends once the host has seen `e` end, and well if `e` ended because its device was lost. No driver is given what
/// waits for it before that.
event launch_job::once_seen(const event& e) const {
  const event_ref gate = value_or_raise(plan_.state->backends().front()->create_gate(), plan_.where);
  plan_.state->deciders().after(e.record(), [state = plan_.state, gate, ended = e.record()] {
    std::shared_ptr<const error> cause = ended->cause();
    if (cause && cause->code == errc::device_lost) cause = nullptr;
    state->backends().front()->open_gate(gate, std::move(cause));
  });
  return make<event>(plan_.state, gate);
}

void launch_job::begin() {
  launch_state& launches = launches_of(*plan_.state);
  const auto self = shared_from_this();
  record_.submitted = plan_.state->now();
  note_default_streams();
  if (plan_.options.stop.stop_possible()) {
    // A thread of the user's: nothing but flags, and what has not begun sees them.
    on_stop_.emplace(plan_.options.stop, [weak = weak_from_this()] {
      if (const auto job = weak.lock()) job->cancel();
    });
  }
  {
    // From here on a later launch that shares an array comes after this one, and this one after those before.
    const array_locks locks{arrays_};
    for (const job_argument& a : plan_.arguments) {
      if (!a.array || a.is_temporary) continue;
      const auto earlier = a.array->last_job.lock();
      if (earlier && earlier != self && !earlier->has_submitted() &&
          std::find(before_.begin(), before_.end(), earlier) == before_.end()) {
        before_.push_back(earlier);
      }
      a.array->last_job = self;
    }
  }
  launches.began(self);
  blockers_ = static_cast<int>(before_.size()) + 1;
  for (const auto& earlier : before_) {
    bool waits = false;
    {
      const std::lock_guard lock{earlier->mutex_};
      waits = !earlier->has_submitted();
      if (waits) earlier->followers_.push_back(self);
    }
    if (!waits) {
      const std::lock_guard lock{mutex_};
      --blockers_;
    }
  }
  decide_first();
  after_decision();
  {
    const std::lock_guard lock{mutex_};
    is_accepted_ = phase_ != phase::settled || !failure_;
  }
  if (!is_accepted_) raise(error{*tell()});
}

/// A decision that cannot be carried out fails the launch, whatever the reason: nobody else would end it.
template <class F>
void launch_job::guarded(F&& decision) {
  try {
    decision();
  } catch (const error_exception& refused) {
    fail(std::make_shared<const error>(refused.cause()));
  } catch (const std::exception& refused) {
    fail(errc::resource_exhausted, std::string{"could not go on: "} + refused.what());
  }
}

/// Once every launch before it has submitted everything, on the thread that sees it.
void launch_job::decide_first() {
  const std::lock_guard lock{mutex_};
  if (--blockers_ != 0) return;
  phase_ = phase::running;
  before_.clear();
  guarded([this] {
    decide();
    pump();
  });
  conclude();
}

void launch_job::after_decision() {
  // One after the other and not one inside the other: there may be thousands.
  std::vector<std::shared_ptr<launch_job>> ready = take_followers();
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const std::shared_ptr<launch_job> next = std::move(ready[i]);
    next->decide_first();
    for (auto& follower : next->take_followers()) ready.push_back(std::move(follower));
  }
}

/// Those who come after this launch, once nothing more will be submitted.
std::vector<std::shared_ptr<launch_job>> launch_job::take_followers() {
  const std::lock_guard lock{mutex_};
  return has_submitted() ? std::exchange(followers_, {}) : std::vector<std::shared_ptr<launch_job>>{};
}

route_wish launch_job::route() const {
  route_wish wish;
  if (!plan_.options.peer_to_peer) wish.path = copy_path::staged;
  return wish;
}

// ---- going on -------------------------------------------------------------------------------------------------------

void launch_job::pump() {
  bool reductions = false;
  for (const job_argument& a : plan_.arguments) reductions = reductions || (a.reduces && workers_.size() > 1);
  while (!failure_ && !stop_.stop_requested()) {
    bool some = false;
    for (worker& w : workers_) {
      if (w.is_lost || w.is_waiting || w.in_flight >= w.depth || stop_.stop_requested()) continue;
      const auto next = balancer_->next(w.way->on().id());
      if (next) {
        submit(*next, w);
        some = true;
      }
    }
    if (!some) break;
  }
  if (cancelled_.load(std::memory_order_acquire) && !failure_) fail(errc::cancelled, "was cancelled");
  const bool all_handed_out = stop_.stop_requested() || balancer_->unassigned() == 0;
  if (!stop_.stop_requested() && flights_.empty() && !balancer_->is_done()) {
    std::string how = "has " + std::to_string(balancer_->unassigned()) + " of " + std::to_string(request_->items) +
                      " steps left, and no device that can take them";
    for (const std::string& note : record_.notes) how += "; " + note;
    fail(balancer_->has_taker() ? errc::out_of_memory : errc::device_lost, how);
  }
  const bool certain = all_handed_out && !reductions && plan_.options.on_failure == failure_policy::fail_fast;
  if (certain) {
    if (stop_.stop_requested()) give_up_the_rest();
    submitted_.store(true, std::memory_order_release);
  }
  if (!certain || gate_) watch_flights();  // somebody has to go on when a piece has ended
}

void launch_job::watch(const event& e) {
  plan_.state->deciders().after(e.record(), [self = shared_from_this()] { self->advance(); });
}

/// The event that a flight ends with next. Where pieces may be done again its kernel counts too: lose() asks how that
/// ended.
const event& launch_job::awaited(const flight& f) const { return retries() && !finished(f.kernel) ? f.kernel : f.last; }

void launch_job::watch_flights() {
  for (flight& f : flights_) {
    if (f.is_watched) continue;
    watch(f.last);
    if (retries() && f.kernel.record()) watch(f.kernel);  // what a piece left behind has none
    f.is_watched = true;
  }
}

launch_request launch_job::request_of(const piece& next) const {
  launch_request request;
  request.kernel = plan_.code;
  request.range = plan_.over;
  request.range.begin[plan_.outer()] = plan_.over.begin[plan_.outer()] + next.first;
  request.range.end[plan_.outer()] = request.range.begin[plan_.outer()] + next.count;
  request.stop = stop_.get_token();
  request.model = plan_.options.model;
  request.block = plan_.options.block;
  request.launch = number_;
  request.where = plan_.where;
  request.arguments.reserve(plan_.arguments.size());
  return request;
}

/// Submits one piece. A device without memory for it gives it back; everything else that is wrong fails the launch.
void launch_job::submit(const piece& next, worker& by) {
  piece_record fresh;
  fresh.what = next;
  fresh.submitted = plan_.state->now();
  fresh.failed = true;  // until it is submitted: an exception may end this
  record_.pieces.push_back(fresh);
  const std::size_t record = record_.pieces.size() - 1;
  flight f;
  f.what = next;
  f.by = static_cast<std::size_t>(&by - workers_.data());
  f.record = record;
  if (retries()) f.before.resize(plan_.arguments.size());
  by.has_begun = true;
  for (int attempt = 0;; ++attempt) {
    try {
      run_piece(f, by);
      record_.pieces[record].failed = false;
      by.has_worked = true;
      by.has_waited = false;
      return;
    } catch (const error_exception& refused) {
      const error& cause = refused.cause();
      leave_behind(by);
      if (cause.code == errc::device_lost && retries()) {
        record_.pieces.pop_back();
        lose(f, std::make_shared<const error>(cause));
        return;
      }
      if (f.kernel.is_recorded()) {  // it may have run: doing it again could add twice
        fail(std::make_shared<const error>(cause));
        return;
      }
      if (cause.code == errc::out_of_memory && attempt == 0) {
        const array_locks locks{arrays_};
        for (const job_argument& a : plan_.arguments) {
          if (a.array) a.array->drop_replicas(next.device);
        }
        launches_of(*plan_.state).trim(next.device);
        continue;
      }
      record_.pieces.pop_back();
      balancer_->give_back(next);
      const auto is_here = [&](const flight& other) { return other.what.device == next.device; };
      if (cause.code == errc::out_of_memory && !by.has_waited && std::ranges::any_of(flights_, is_here)) {
        // The pieces before it have the memory, or what it has itself submitted. That alone is waited for once.
        by.has_waited = by.in_flight == 0;
        by.is_waiting = true;
        by.depth = std::max(1, by.in_flight);
        return;
      }
      by.has_waited = false;
      if (cause.code == errc::out_of_memory) {
        const std::int64_t half = next.count / 2 / request_->granularity * request_->granularity;
        record_.notes.push_back(to_string(next.device) + " had no memory for " + std::to_string(next.count) +
                                " steps; its pieces were made smaller");
        balancer_->limit(next.device, half);
        return;
      }
      fail(std::make_shared<const error>(cause));
      return;
    } catch (...) {
      leave_behind(by);
      throw;
    }
  }
}

/// A piece was submitted in part: the launch does not end before what it submitted has, since that may use memory of
/// the caller's.
void launch_job::leave_behind(const worker& by) {
  for (const stream* used : {&by.way->in(), &by.way->compute(), &by.way->out()}) {
    try {
      if (used->idle()) continue;
      flight rest;
      rest.what.device = by.way->on().id();
      rest.is_leftover = true;
      rest.last = used->record();
      flights_.push_back(std::move(rest));
    } catch (const error_exception&) {
      continue;  // a lost device or a closed machine: nothing there goes on
    }
  }
}

void launch_job::run_piece(flight& f, worker& by) {
  const piece& next = f.what;
  const lane& way = *by.way;
  const interval steps{plan_.over.begin[plan_.outer()] + next.first,
                       plan_.over.begin[plan_.outer()] + next.first + next.count};
  backend& driver = plan_.state->backend_of(next.device);
  const bool alone = workers_.size() == 1;
  const array_locks locks{arrays_};
  launch_request request = request_of(next);
  std::vector<array_instance*> places(plan_.arguments.size(), nullptr);
  std::size_t reduction = 0;
  if (!by.has_worked) {
    f.is_queued = !way.idle();
    // Those of all devices: what one of them does may be to memory that this piece uses.
    for (const event& before : default_streams_) {
      way.in().wait(before);
      way.compute().wait(before);
    }
    f.behind = default_streams_;
  }
  for (std::size_t i = 0; i < plan_.arguments.size(); ++i) {
    const job_argument& a = plan_.arguments[i];
    kernel_argument given = a.plain;
    if (!a.array) {
      request.arguments.push_back(given);
      continue;
    }
    if (a.reduces && !alone) {
      // A result of its own for each device, from the value that changes nothing; combine() makes one of them.
      if (by.partial.size() <= reduction) {
        by.partial.reserve(reduction + 1);
        auto memory = allocate(way.on(), static_cast<std::size_t>(a.array->count()), a.array->element(),
                               memory_kind::device, plan_.where);
        unique_handle<memory_traits> fresh{std::move(memory)};
        fill_request fill = identity_of(a.plain.type, a.access.op);
        fill.count = static_cast<std::uint64_t>(a.array->count());
        memory_ref at{plan_.state.get(), fresh.get().address, fill.count * fill.pattern_size, next.device,
                      memory_kind::device};
        static_cast<void>(fill_in(way.compute(), at, fill, plan_.where));
        by.partial.push_back(std::move(fresh));  // now: a second attempt takes what is here as filled
      }
      given.address = by.partial[reduction++].get().address;
      given.count = a.array->count();
      request.arguments.push_back(given);
      continue;
    }
    const interval range = a.reach(steps);
    if (!by.has_worked) std::ranges::move(a.array->pending(range, !a.writes), std::back_inserter(f.behind));
    if (range.empty()) {
      given.count = 0;
      request.arguments.push_back(given);
      continue;
    }
    f.reads_unwritten = f.reads_unwritten || (a.reads && !a.array->unwritten(range).empty());
    // In passes, for memory is short: what a piece may write beyond its own elements, another one writes.
    const bool in_part = next.count < request_->items && a.writes && a.own(steps) != range;
    if ((a.reads || in_part) && !f.before.empty()) f.before[i] = a.array->before(range);
    const array_need wanted{next.device, range, a.reads, a.writes, in_part};
    array_instance& place = a.array->acquire(wanted, way, route(), f.in);
    places[i] = &place;
    given.address = place.address + static_cast<std::uint64_t>(range.begin - place.range.begin) * a.array->element();
    given.first = range.begin;
    given.count = range.count();
    given.slab = a.slab;
    request.arguments.push_back(given);
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] != nullptr) {
      const job_argument& a = plan_.arguments[i];
      array_body::order(way.compute(), *places[i], a.reach(steps), a.writes);
    }
  }
  const auto kernel =
      make<event>(plan_.state, value_or_raise(driver.launch(way.compute().native(), std::move(request)), plan_.where));
  f.kernel = kernel;
  bool changes_home = false;  // what the piece reads and writes, so that it cannot be done twice: see lose()
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] == nullptr) continue;
    const job_argument& a = plan_.arguments[i];
    const interval own = alone ? interval{} : a.own(steps);
    a.array->commit(*places[i], {next.device, a.reach(steps), a.reads, a.writes, false, own}, kernel);
    changes_home = changes_home || (a.reads && a.writes && (a.is_temporary || leaves_) && !places[i]->is_home);
  }
  if (changes_home && retries() && !finished(kernel)) way.out().wait(once_seen(kernel));
  f.last = kernel;
  for (const job_argument& a : plan_.arguments) {
    if (!a.array || (a.reduces && !alone)) continue;
    if (a.writes && (a.is_temporary || leaves_)) {
      const event home = a.array->bring_home(a.reach(steps), way, route(), f.out);
      if (home.record()) f.last = home;
    }
    // What came for this piece alone makes room for the next one.
    const bool passing = a.is_temporary || leaves_;
    if (passing && a.access.kind != access_kind::whole && a.slab != 0) a.array->drop_replicas(next.device);
  }
  piece_record& account = record_.pieces[f.record];
  account.bytes_in = f.in.bytes;
  account.bytes_out = f.out.bytes;
  ++by.in_flight;
  if (f.last.record() && (workers_.size() > 1 || balancer_->unassigned() > 0)) {
    // Fail fast: nobody has to look for the others not to begin.
    if (plan_.options.on_failure == failure_policy::fail_fast) {
      f.last.record()->on_ending([stop = stop_](const error* cause) mutable {
        if (cause != nullptr) stop.request_stop();
      });
      f.last.record()->tell();
    }
  }
  flights_.push_back(std::move(f));
}

void launch_job::fail(std::shared_ptr<const error> cause) {
  if (!failure_) failure_ = std::move(cause);
  stop_.request_stop();
}

void launch_job::fail(errc code, const std::string& how) {
  error cause = make_error(code, "the launch of '" + plan_.code->name + "' " + how);
  cause.where = plan_.where;
  fail(shared_error(std::move(cause)));
}

/// No launch gets these streams any more.
void launch_job::drop(const std::shared_ptr<lane>& spoiled) {
  spoiled_.push_back(spoiled);
  launches_of(*plan_.state).lanes.drop(spoiled);
}

/// A piece did not happen because a device is gone: its steps go back, and the device gets no more.
void launch_job::lose(const flight& undone, const std::shared_ptr<const error>& cause) {
  const device_id device = undone.what.device;
  // Pieces fail along with a lost device that they needed data of; a device that is there does not fail for ever.
  constexpr int most_again = 1000;
  if (undone.reads_unwritten || ++again_ > most_again) {
    fail(cause);
    return;
  }
  for (worker& w : workers_) {
    const device_id id = w.way->on().id();
    if (w.is_lost || !plan_.state->backend_of(id).lost(id)) continue;
    w.is_lost = true;
    balancer_->drop(id);
    record_.notes.push_back(to_string(id) + " was lost; its steps went to the others");
  }
  balancer_->give_back(undone.what);
  worker& w = workers_[undone.by];
  if (!w.is_lost) {
    drop(w.way);  // it only waited for one that is, and its streams skip what comes behind
    try {
      w.way = launches_of(*plan_.state).lanes.take(w.way->on());
      w.has_worked = false;  // not in these streams
    } catch (const error_exception&) {
      w.is_lost = true;  // by now it is gone as well
      balancer_->drop(device);
    }
  }
  const interval steps{plan_.over.begin[plan_.outer()] + undone.what.first,
                       plan_.over.begin[plan_.outer()] + undone.what.first + undone.what.count};
  const array_locks locks{arrays_};
  // After the fault of another kernel a driver says that this one failed too, though it had ended well and nobody had
  // asked. So what is read and written goes home only once the host has seen that the kernel ended well. If it failed,
  // the home still holds what the piece began with; if not, results may be there, and it must not be done twice.
  const bool has_failed = finished(undone.kernel) && undone.kernel.record() && undone.kernel.record()->cause();
  const bool is_delivered = !undone.out.copies.empty() && !has_failed;
  std::vector<event> own;
  const auto add = [&own](const flight& f) {
    own.insert(own.end(), f.out.copies.begin(), f.out.copies.end());
    own.insert(own.end(), f.in.copies.begin(), f.in.copies.end());
    own.push_back(f.kernel);
  };
  add(undone);
  std::ranges::for_each(ended_, add);
  std::ranges::for_each(flights_, add);
  for (std::size_t i = 0; i < plan_.arguments.size(); ++i) {
    const job_argument& a = plan_.arguments[i];
    if (!a.array) continue;
    // In memory that all devices share the kernel wrote in place.
    const bool is_in_place = undone.kernel.is_recorded() && w.is_lost && a.array->is_shared();
    if (a.reads && a.writes && (is_delivered || is_in_place)) {
      if (!w.is_lost) fail(cause);  // of a device that it needed data of
      fail(errc::device_lost, "lost " + to_string(device) + " when '" + a.name +
                                  "', which it reads and writes, may have changed: it cannot be run again");
      return;
    }
    if (a.reduces || !a.array->abandon(a.reach(steps), a.reads, a.writes, undone.before[i], own)) {
      if (!w.is_lost) fail(cause);  // of another launch, or of a device that it needed data of
      fail(errc::device_lost, "lost " + to_string(device) + ", and with it the " +
                                  (a.reduces ? "partial result"
                                   : a.reads ? "only copy"
                                             : "memory") +
                                  " of '" + a.name + "': it cannot be run elsewhere");
      return;
    }
  }
}

/// When the time of a piece begins: with its submission, or when all that it had to wait for has ended. Behind work in
/// its streams that shares no data with it, with its first operation.
std::chrono::nanoseconds launch_job::began(const flight& done) const {
  const piece_record& account = record_.pieces[done.record];
  const std::chrono::nanoseconds first =
      done.in.copies.empty() ? account.run_begin : std::min(account.run_begin, account.in_begin);
  const std::chrono::nanoseconds latest = std::max(account.submitted, first);
  if (done.is_queued && done.behind.empty()) return latest;
  std::chrono::nanoseconds begin = account.submitted;
  for (const event& e : done.behind) {
    // what has not ended was not waited for: it uses the same elements in another memory
    if (finished(e)) begin = std::max(begin, end_of({&e, 1}));
  }
  return std::min(begin, latest);
}

void launch_job::ended(flight& done) {
  worker& by = workers_[done.by];
  --by.in_flight;
  piece_record& account = record_.pieces[done.record];
  std::shared_ptr<const error> cause = done.last.record() ? done.last.record()->cause() : nullptr;
  if (cause) {
    account.failed = true;
    if (!failure_ && cause->code == errc::device_lost && retries()) {
      lose(done, cause);
    } else if (cause->code == errc::cancelled && stop_.stop_requested()) {
      stopped_ =
          cause;  // by another piece that failed, perhaps one whose end is not seen yet: that is the cause to tell
    } else {
      fail(cause);
    }
    return;
  }
  if (!done.in.copies.empty()) {
    account.in_begin = begin_of(done.in.copies);
    account.in_end = end_of(done.in.copies);
  }
  if (done.kernel.record()) {
    const event_record::span ran = done.kernel.record()->times();
    account.run_begin = ran.started;
    account.run_end = ran.ended;
  }
  if (!done.out.copies.empty()) {
    account.out_begin = begin_of(done.out.copies);
    account.out_end = end_of(done.out.copies);
  }
  const std::chrono::nanoseconds end = std::max({account.in_end, account.run_end, account.out_end});
  // With two pieces on the way, the time of one is from the end of the one before it.
  const bool overlapped = account.submitted < by.last_end;
  const double took = seconds(end - std::max(by.last_end, began(done)));
  by.last_end = end;
  balancer_->finished(done.what, took);
  if (plan_.state->device_count() > 1) {
    launches_of(*plan_.state)
        .history.record({overlapped ? key_ + overlapped_mark : key_, by.way->on().uuid(), resident_, record_.simulated},
                        done.what.count, took);
  }
}

void launch_job::advance() {
  {
    const std::lock_guard lock{mutex_};
    if (phase_ == phase::blocked || phase_ == phase::settled) return;
    guarded([this] {
      ended_.clear();
      ended_.reserve(flights_.size());
      auto kept = flights_.begin();
      for (flight& f : flights_) {
        if (finished(f.last) && (!retries() || finished(f.kernel))) {  // in one look, for they end meanwhile
          ended_.push_back(std::move(f));
        } else if (flight& to = *kept++; &to != &f) {
          to = std::move(f);
        }
      }
      flights_.erase(kept, flights_.end());
      if (!ended_.empty()) {
        for (worker& w : workers_) w.is_waiting = false;
      }
      for (flight& done : ended_) {
        if (done.is_leftover) continue;  // whatever came of it, the launch knows why it is there
        if (phase_ == phase::combining) {
          if (const auto cause = done.last.record() ? done.last.record()->cause() : nullptr) fail(cause);
        } else {
          ended(done);
        }
      }
      ended_.clear();
      if (phase_ == phase::running && !balancer_->is_done()) pump();
    });
    conclude();
  }
  after_decision();
}

/// Where nothing is on its way any more: combines what is to be combined, or ends the launch.
void launch_job::conclude() {
  if (flights_.empty()) {
    if (!failure_ && stopped_) failure_ = stopped_;
    if (phase_ == phase::running && !failure_ && balancer_->is_done()) {
      guarded([this] { combine(); });
      for (const worker& w : workers_)
        if (failure_) guarded([&] { leave_behind(w); });
    }
  }
  if (!flights_.empty()) {
    // those whose submission was broken off too: when they end, later launches may begin
    if (failure_) guarded([this] { watch_flights(); });
  } else if (failure_ || phase_ == phase::combining) {
    settle();
  }
}

/// The partial results of the devices become one: down to the host, combined in the order of the devices, up again to
/// where the result belongs. A lost device has failed the launch, as its partial result is gone with it.
void launch_job::combine() {
  phase_ = phase::combining;
  if (workers_.size() == 1) return;
  const array_locks locks{arrays_};
  std::size_t reduction = 0;
  for (const job_argument& a : plan_.arguments) {
    if (!a.reduces) continue;
    const std::size_t size = static_cast<std::size_t>(a.array->count()) * a.array->element();
    const std::size_t which = reduction++;
    if (size == 0) continue;
    const auto last =
        std::find_if(workers_.rbegin(), workers_.rend(), [&](const worker& w) { return w.partial.size() > which; });
    if (last == workers_.rend()) continue;
    const lane& way = *last->way;
    const device_id target = way.on().id();
    array_moves moves;
    copy_shape shape;
    shape.width = size;
    const auto down = [&](const lane& by, const memory_ref& from) {
      gathered_.emplace_back(size);
      const memory_ref to{nullptr, gathered_.back().data(), size, {}, memory_kind::pinned};
      const event e = copy_in(by.compute(), to, from, shape, {}, plan_.where);
      way.compute().wait(e);
    };
    const std::size_t first = gathered_.size();
    gathered_.reserve(first + workers_.size() + 1);
    // The value that was there takes part, before those of the devices.
    const array_need need{target, a.array->all(), true, true};
    array_instance& place = a.array->acquire(need, way, route(), moves);
    array_body::order(way.compute(), place, need.range, true);
    const memory_ref result{plan_.state.get(),
                            place.address + static_cast<std::uint64_t>(0 - place.range.begin) * a.array->element(),
                            size, target, place.kind};
    down(way, result);
    for (const worker& w : workers_) {
      if (w.partial.size() <= which) continue;
      down(*w.way, {plan_.state.get(), w.partial[which].get().address, size, w.way->on().id(), memory_kind::device});
    }
    // by their bytes, which stay where they are: the list of them grows with the next reduction
    std::vector<std::span<std::byte>> parts(gathered_.begin() + static_cast<std::ptrdiff_t>(first), gathered_.end());
    way.compute().call([self = shared_from_this(), parts = std::move(parts), type = a.plain.type, op = a.access.op] {
      for (std::size_t i = 1; i < parts.size(); ++i) combine_partials(type, op, parts[0], parts[i]);
    });
    const memory_ref sum{nullptr, gathered_[first].data(), size, {}, memory_kind::pinned};
    const event up = copy_in(way.compute(), result, sum, shape, {}, plan_.where);
    a.array->commit(place, need, up);
    flight f;
    f.what.device = target;
    f.last = up;
    if (a.is_temporary || leaves_) {
      const event home = a.array->bring_home(need.range, way, route(), moves);
      if (home.record()) f.last = home;
    }
    watch(f.last);
    f.is_watched = true;
    flights_.push_back(std::move(f));
  }
}

/// Marks what no piece has written or may still write. Before later launches begin: they may write it. A launch that is
/// refused in begin() leaves its arrays as they are.
void launch_job::give_up_the_rest() {
  if (has_submitted() || (!is_accepted_ && flights_.empty() && record_.pieces.empty())) return;
  interval_set left{{0, plan_.steps()}};
  for (const piece_record& p : record_.pieces) {
    if (!p.failed) left.remove({p.what.first, p.what.first + p.what.count});
  }
  const event failed = ending();
  const array_locks locks{arrays_};
  for (const job_argument& a : plan_.arguments) {
    if (!a.array || a.is_temporary || !a.writes) continue;
    if (a.reduces && workers_.size() > 1) a.array->leave_unwritten(a.array->all(), failed);
    for (const interval& run : left.runs()) {
      const std::int64_t begin = plan_.over.begin[plan_.outer()];
      a.array->leave_unwritten(a.reach({begin + run.begin, begin + run.end}), failed);
    }
  }
}

void launch_job::settle() {
  if (failure_) guarded([this] { give_up_the_rest(); });
  phase_ = phase::settled;
  record_.ended = record_.submitted;
  for (const piece_record& p : record_.pieces)
    record_.ended = std::max({record_.ended, p.in_end, p.run_end, p.out_end});
  if (const auto sink = plan_.state->trace()) {
    trace_record whole;
    whole.kind = trace_kind::span;
    whole.name = plan_.code->name;
    whole.submitted = whole.started = record_.submitted;
    whole.ended = record_.ended;
    whole.items = record_.items;
    whole.launch = number_;
    whole.failed = failure_ != nullptr;
    sink->add(std::move(whole));
  }
  if (failure_) {
    for (worker& w : workers_) {
      if (w.has_begun) drop(w.way);
    }
  }
  workers_.clear();
  default_streams_.clear();
  for (job_argument& a : plan_.arguments) {
    if (a.is_temporary) a.array.reset();
  }
  if (gate_) plan_.state->backends().front()->open_gate(gate_, failure_);
  launches_of(*plan_.state).ended(this, failure_ != nullptr);
  submitted_.store(true, std::memory_order_release);
  settled_.store(true, std::memory_order_release);
}

// ---- waiting --------------------------------------------------------------------------------------------------------

std::shared_ptr<launch_job> launch_job::earlier() {
  const std::lock_guard lock{mutex_};
  if (phase_ != phase::blocked || before_.empty()) return nullptr;
  const auto running = std::ranges::find_if(before_, [](const auto& one) { return !one->settled(); });
  return running == before_.end() ? before_.front() : *running;
}

std::shared_ptr<launch_job> launch_job::first_in_line() {
  std::shared_ptr<launch_job> first = earlier();
  while (first) {
    auto before = first->earlier();
    if (!before) break;
    first = std::move(before);
  }
  return first;
}

wait_outcome launch_job::wait_until(wait_deadline deadline) {
  std::vector<std::shared_ptr<launch_job>> line;  // each comes after the next: there may be thousands
  for (;;) {
    while (auto before = (line.empty() ? *this : *line.back()).earlier()) line.push_back(std::move(before));
    if (!line.empty()) {
      if (line.back()->wait_until(deadline) == wait_outcome::timed_out) return wait_outcome::timed_out;
      line.back()->after_decision();
      line.pop_back();
      continue;
    }
    event next;
    {
      const std::lock_guard lock{mutex_};
      if (phase_ == phase::settled) return failure_ ? wait_outcome::failed : wait_outcome::ok;
      if (!flights_.empty()) next = awaited(flights_.front());
    }
    if (next.record()) {
      if (next.record()->owner->wait(*next.record(), deadline, {}) == wait_outcome::timed_out)
        return wait_outcome::timed_out;
    }
    advance();
  }
}

void launch_job::wait_submitted() {
  while (!has_submitted()) static_cast<void>(wait_until(no_deadline));
}

std::shared_ptr<const error> launch_job::failure() const {
  const std::lock_guard lock{mutex_};
  return phase_ == phase::settled ? failure_ : nullptr;
}

std::shared_ptr<const error> launch_job::tell() {
  launches_of(*plan_.state).told(this);
  auto cause = failure();
  if (cause) {
    // synchronize() may have found it, and reported another one
    static_cast<void>(
        plan_.state->take_unreported([&](const auto& one) { return is_same_failure(one.cause, *cause); }));
  }
  return cause;
}

event launch_job::done() {
  const std::lock_guard lock{mutex_};
  return ending();
}

event launch_job::ending() {
  if (!gate_) {
    backend& keeper = *plan_.state->backends().front();
    gate_ = value_or_raise(keeper.create_gate(), plan_.where);
    if (phase_ == phase::settled) keeper.open_gate(gate_, failure_);
    watch_flights();
  }
  return detail::make<event>(plan_.state, gate_);
}

void launch_job::look() {
  if (const auto first = first_in_line()) {
    first->look();
    first->after_decision();
  }
  event next;
  {
    const std::lock_guard lock{mutex_};
    if (!flights_.empty()) next = awaited(flights_.front());
  }
  if (next.record()) static_cast<void>(next.record()->owner->ready(*next.record()));
  advance();
}

void launch_job::cancel() {
  cancelled_.store(true, std::memory_order_release);
  stop_.request_stop();
}

launch_report launch_job::report() const {
  const std::lock_guard lock{mutex_};
  if (phase_ != phase::settled) raise(errc::not_ready, "the report of a launch that has not ended; wait for it first");
  launch_record complete = record_;
  complete.plan = reasons();
  return explain(complete);
}

}  // namespace weft::detail
