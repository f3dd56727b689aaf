// SPDX-License-Identifier: Apache-2.0
#include "exec/pipeline/pipeline_body.hpp"

#include "core/errors/make_error.hpp"
#include "weft/memory/copy.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

using std::chrono::nanoseconds;

std::shared_ptr<const error> shared(errc code, error_scope scope, std::string what) {
  return shared_error(make_error(code, std::move(what), scope));
}

bool succeeded(const event_ref& mark) { return mark && mark->finished() && !mark->cause(); }

}  // namespace

pipeline_body::pipeline_body(std::shared_ptr<machine_state> state, std::size_t in_element,
                             std::vector<untyped_stage> stages, pipeline_options options)
    : state_(std::move(state)),
      in_element_(in_element),
      stages_(std::move(stages)),
      options_(std::move(options)),
      no_memory_(shared(errc::out_of_memory, error_scope::process, "a pipeline had no memory to say what went wrong")) {
}

pipeline_body::~pipeline_body() {
  if (state_->closed() || tracks_.empty()) return;
  // one after the other, which takes no memory
  for (const track& t : tracks_) {
    state_->off_workers([keep = state_, owner = t.owner, handle = t.handle] { owner->destroy_stream(handle); });
  }
}

// ---- a batch goes through -------------------------------------------------------------------------------------------

std::string pipeline_body::name_of(const step& s) const {
  switch (s.what) {
    case action::take_in:
      return "the copy to stage '" + stages_[s.stage].name + "' on " + to_string(s.to);
    case action::stage:
      return "stage '" + stages_[s.stage].name + "' on " + to_string(s.to);
    case action::hop:
      return "the copy from stage '" + stages_[s.stage].name + "' on " + to_string(s.from) + " to " + to_string(s.to);
    case action::give_out:
      return "the copy of the result of stage '" + stages_[s.stage].name + "' from " + to_string(s.from);
  }
  return {};
}

memory_ref pipeline_body::slot_of(std::size_t at, const batch& b) const {
  const place& p = places_[at];
  const auto span = p.slots[b.number % p.slots.size()].span().first(b.counts[p.boundary] * p.element);
  return untyped(span);
}

void pipeline_body::run(const step& s, std::size_t index, const batch& b) {
  const stream& order = tracks_[s.track].order;
  copy_options copying;
  copying.stop = options_.stop;
  const auto bytes_of = [](const memory_ref& memory) { return typed<std::byte>(memory, memory.size); };
  switch (s.what) {
    case action::take_in:
      copy(order, bytes_of(slot_of(index, b)), b.in, copying);
      return;
    case action::hop:
      copy(order, bytes_of(slot_of(index, b)), bytes_of(slot_of(index - 1, b)), copying);
      return;
    case action::give_out:
      copy(order, b.out, bytes_of(slot_of(index - 1, b)), copying);
      return;
    case action::stage:
      stages_[s.stage].work(order, slot_of(index - 1, b), b.counts[s.stage], slot_of(index, b), b.counts[s.stage + 1]);
  }
}

/// Under submitting_. What ends when all of it has; null when nothing could be submitted.
event_ref pipeline_body::submit(batch& b, std::size_t first) {
  event_ref last;
  for (std::size_t i = first; i < steps_.size() && !b.refused; ++i) {
    const step& s = steps_[i];
    const track& t = tracks_[s.track];
    batch::marks& mark = b.steps[i];
    mark = {};
    try {
      if (i > first && steps_[i - 1].track != s.track)
        value_or_raise(t.owner->wait_event(t.handle, b.steps[i - 1].after));
      if (i < places_.size() && steps_[i + 1].track != s.track) {
        const place& p = places_[i];
        value_or_raise(t.owner->wait_event(t.handle, p.last[b.number % p.last.size()]));
      }
      mark.before = value_or_raise(t.owner->record(t.handle));
      run(s, i, b);
    } catch (const error_exception& e) {
      b.thrown = std::current_exception();
      b.refused = made_or_no_memory([&] { return std::make_shared<const error>(e.cause()); });
    } catch (const std::exception& e) {
      b.thrown = std::current_exception();
      b.refused = made_or_no_memory([&] {
        return shared(errc::kernel_failed, error_scope::call, name_of(s) + " threw while it submitted: " + e.what());
      });
    } catch (...) {
      b.thrown = std::current_exception();
      b.refused = made_or_no_memory(
          [&] { return shared(errc::kernel_failed, error_scope::call, name_of(s) + " threw while it submitted"); });
    }
    // Also behind a step that was submitted in part: its buffers are free when that part has ended.
    if (auto after = t.owner->record(t.handle)) {
      mark.after = std::move(*after);
    } else if (!b.refused) {
      b.refused = made_or_no_memory([&] { return std::make_shared<const error>(after.error()); });
    }
    if (!mark.after) mark.after = mark.before;
    if (mark.after) {
      const std::lock_guard lock{mutex_};
      for (const std::size_t at : {i - 1, i}) {  // i − 1 wraps around for the first step
        if (at < places_.size()) places_[at].last[b.number % places_[at].last.size()] = mark.after;
      }
      last = mark.after;
    }
  }
  return last;
}

/// Not under a lock: what has ended already is told at once.
void pipeline_body::watch(const batch_ref& b, const event_ref& last) {
  if (last) {
    try {
      last->on_complete([self = shared_from_this(), b] { self->ended(b); });
      return;
    } catch (const std::bad_alloc&) {  // what cannot be told is waited for
      static_cast<void>(last->owner->wait(*last, no_deadline, {}));
    }
  }
  ended(b);
}

/// Before a push throws: its caller may free the memory then, which copies on their way still use.
void pipeline_body::end_copies(const batch& b) {
  for (const batch::marks* mark : {&b.steps.front(), &b.steps.back()}) {
    if (!mark->after) continue;
    const event_ref& copied = mark->after;
    if (copied->owner->wait(*copied, no_deadline, {}) != wait_outcome::failed) continue;
    const std::lock_guard lock{mutex_};
    broken_ = true;  // the wait lets the stream go on: nothing may go in until it is clear
  }
}

std::optional<event> pipeline_body::push(std::span<const std::byte> in, std::size_t items, std::span<std::byte> out,
                                         std::size_t results, std::optional<nanoseconds> timeout,
                                         std::source_location where) {
  state_->require_open(where);
  auto counts = counts_of(items, where);
  if (counts.back() != results) {
    raise(errc::incompatible,
          "the result of a batch of " + std::to_string(items) + " elements has " + std::to_string(counts.back()) +
              ", and room was given for " + std::to_string(results),
          where);
  }
  backend& clock = *state_->backends().front();
  const wait_deadline deadline = timeout ? deadline_after(clock.now(), *timeout) : no_deadline;
  const auto b = std::make_shared<batch>();
  b->in = in;
  b->out = out;
  b->counts = std::move(counts);
  b->steps.resize(steps_.size());
  std::shared_ptr<const error> refused;
  std::exception_ptr thrown;
  while (!b->gate) {
    event_ref full, last;
    bool quiet = false;
    {
      const std::lock_guard turn{submitting_};
      std::unique_lock lock{mutex_};
      if (!end_) look_for_end();
      if (end_) {
        error cause = *end_;
        lock.unlock();
        cause.where = where;
        raise(std::move(cause));
      }
      const event_ref& slot = places_.front().last[pushed_ % places_.front().last.size()];
      if (slot && slot->finished() && slot->cause() && !broken_) {  // before the batch's own end has told
        broken_ = true;
        quiet = submitted_ == 0;
      }
      if (broken_) {
        if (!cleared_) cleared_ = value_or_raise(clock.create_gate(), where);
        full = cleared_;
      } else if (slot && !slot->finished()) {
        full = slot;
      } else {
        b->gate = value_or_raise(clock.create_gate(), where);
        under_way_.push_back(b);
        b->number = pushed_++;
        b->pushed = clock.now();
        ++submitted_;
        lock.unlock();
        last = submit(*b, 0);
        refused = b->refused;
        thrown = b->thrown;
      }
    }
    if (b->gate) {
      if (refused) end_copies(*b);
      watch(b, last);
      break;
    }
    if (quiet) clear_soon();
    if (timeout && timeout->count() <= 0) {
      if (!full->owner->ready(*full)) return std::nullopt;
      continue;
    }
    const wait_outcome outcome = full->owner->wait(*full, deadline, options_.stop);
    if (outcome == wait_outcome::timed_out) return std::nullopt;
  }
  if (thrown) std::rethrow_exception(thrown);
  if (refused) raise(*refused);
  return detail::make<event>(state_, b->gate);
}

/// The last mark of a batch has ended. On the thread that ended it.
void pipeline_body::ended(const batch_ref& b) noexcept {
  const bool clean = std::all_of(b->steps.begin(), b->steps.end(),
                                 [](const batch::marks& m) { return !m.after || succeeded(m.after); });
  if (clean) complete(b, b->refused);
  bool quiet = false;
  {
    const std::lock_guard lock{mutex_};
    if (!clean) broken_ = true;
    quiet = --submitted_ == 0 && broken_;
  }
  if (quiet) clear_soon();
}

/// Takes a batch off the line and tells its event.
void pipeline_body::complete(const batch_ref& b, const std::shared_ptr<const error>& cause) noexcept {
  backend& clock = *state_->backends().front();
  {
    const std::lock_guard lock{mutex_};
    ++finished_;
    if (cause) {
      ++failed_;
      if (!failure_ && (!b->refused || b->taken_up)) failure_ = cause;
    }
    try {
      keep(*b, cause == nullptr, clock.now());
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the report lacks a batch
    }
  }
  if (b->gate) clock.open_gate(b->gate, cause);
  const std::lock_guard lock{mutex_};
  std::erase(under_way_, b);
}

/// Under mutex_. Notes a batch for the report.
void pipeline_body::keep(const batch& b, bool is_well, nanoseconds now) {
  entry made;
  made.number = b.number;
  made.items = b.counts.front();
  made.pushed = b.pushed;
  made.finished = now;
  if (is_well) {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      made.steps.push_back({b.steps[i].before->times().ended, b.steps[i].after->times().ended});
      busy_[i] += made.steps.back().end - made.steps.back().begin;
    }
    made.finished = made.steps.back().end;
    if (!first_ || made.number < first_->number) first_ = made;
    if (!last_ || made.number > last_->number) last_ = made;
  }
  history_.push_back(std::move(made));
  if (history_.size() > options_.keep_batches) history_.pop_front();
}

// ---- failures -------------------------------------------------------------------------------------------------------

/// Nothing moves any more: has the streams cleared where submitting is allowed, while a virtual clock stands still.
void pipeline_body::clear_soon() noexcept {
  backend& clock = *state_->backends().front();
  try {
    if (auto now = clock.create_gate()) {
      // A clock waits from the end of an event until what was to be done after it is done: this event ends here.
      state_->deciders().after(*now, [self = shared_from_this()] { self->clear(); });
      clock.open_gate(*now, nullptr);
      return;
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no thread to be had
  }
  clear();  // closed meanwhile: nothing will be submitted, and the batches only have to be told
}

/// Under mutex_. Why nothing may go in any more, if so.
void pipeline_body::look_for_end() {
  if (state_->closed()) {
    end_ = shared(errc::machine_closed, error_scope::process, "the pipeline has ended: its machine was closed");
    return;
  }
  for (const step& s : steps_) {
    const track& t = tracks_[s.track];
    if (const auto cause = t.owner->lost(t.on)) {
      end_ = shared(errc::device_lost, error_scope::device,
                    "the pipeline has ended: " + to_string(t.on) + ", which has " + name_of(s) +
                        ", is lost since: " + cause->what);
      return;
    }
  }
  if (options_.stop.stop_requested())
    end_ = shared(errc::cancelled, error_scope::endpoint, "the pipeline was cancelled");
}

/// Under mutex_, once nothing moves. The error that ends a batch; null where it is to be taken up again, from `b.from`.
std::shared_ptr<const error> pipeline_body::verdict_of(batch& b, std::shared_ptr<const error>& skipped_by) noexcept {
  std::size_t i = 0;
  while (i < steps_.size() && succeeded(b.steps[i].after)) ++i;
  const auto* mark = i < steps_.size() ? &b.steps[i] : nullptr;
  const auto cause = mark != nullptr && mark->after && mark->after->finished() ? mark->after->cause() : nullptr;
  if (b.refused) return b.refused;
  if (cause && succeeded(mark->before)) {  // begun, and failed itself
    return made_or_no_memory([&] {
      error named = *cause;
      named.what = "batch " + std::to_string(b.number) + " of a pipeline, " + name_of(steps_[i]) + ": " + cause->what;
      return std::make_shared<const error>(std::move(named));
    });
  }
  if (end_) {
    return made_or_no_memory([&] {
      error named = *end_;
      named.what +=
          "; batch " + std::to_string(b.number) + " had not passed " + name_of(steps_[std::min(i, steps_.size() - 1)]);
      return std::make_shared<const error>(std::move(named));
    });
  }
  if (!skipped_by) skipped_by = cause;
  b.taken_up = true;
  b.from = i;
  return nullptr;
}

/// Takes no memory that it cannot do without: a batch may have failed for want of it.
void pipeline_body::clear() noexcept {
  event_ref opened;
  {
    const std::lock_guard turn{submitting_};
    {
      const std::lock_guard lock{mutex_};
      if (submitted_ != 0 || !broken_) return;
      try {
        if (!end_) look_for_end();
      } catch (const std::bad_alloc&) {
        end_ = no_memory_;
      }
      if (!end_) {
        for (const track& t : tracks_) {
          // every batch has ended, so the streams are idle: this only makes them forget
          static_cast<void>(t.owner->synchronize(t.handle, no_deadline, {}));
        }
      }
      bool found = false;
      std::shared_ptr<const error> any;
      batch* first = nullptr;  // of those that are taken up
      for (const batch_ref& b : under_way_) {
        if (b->over) continue;  // an earlier clearing is about to tell it
        b->over = verdict_of(*b, any);
        if (b->over) {
          found = true;
        } else {
          ++submitted_;
          if (first == nullptr) first = b.get();
        }
      }
      // What skipped them came from none of them. Somebody has to have it, or they would be skipped for ever.
      if (!found && first != nullptr) {
        first->over =
            any ? any : made_or_no_memory([] { return shared(errc::cancelled, error_scope::endpoint, "skipped"); });
        --submitted_;
      }
      for (place& p : places_) std::fill(p.last.begin(), p.last.end(), event_ref{});
      broken_ = false;
      opened = std::exchange(cleared_, {});
    }
    // none is pushed meanwhile: a push submits too
    const auto goes_on = [](const batch& b) { return !b.over; };
    for (batch_ref b = on_line(0, goes_on); b; b = on_line(b->number + 1, goes_on)) {
      event_ref last = submit(*b, b->from);
      const std::lock_guard lock{mutex_};
      b->last = std::move(last);
      b->is_unwatched = true;
    }
  }
  // Each batch is taken by one clearing: what is watched may fail at once, and the next clearing begins.
  const auto take_unwatched = [](batch& b) { return std::exchange(b.is_unwatched, false); };
  for (batch_ref b = on_line(0, take_unwatched); b; b = on_line(b->number + 1, take_unwatched)) {
    watch(b, std::exchange(b->last, {}));
  }
  const auto take_over = [](batch& b) { return b.over && !std::exchange(b.is_told, true); };
  for (batch_ref b = on_line(0, take_over); b; b = on_line(b->number + 1, take_over)) complete(b, b->over);
  if (opened) state_->backends().front()->open_gate(opened, nullptr);
}

// ---- waiting --------------------------------------------------------------------------------------------

/// Takes no memory: a pipeline also ends where there is none.
wait_outcome pipeline_body::wait_for_gates(wait_deadline deadline) const noexcept {
  const std::uint64_t end = [&] {
    const std::lock_guard lock{mutex_};
    return pushed_;
  }();
  const auto any = [](const batch&) { return true; };
  for (batch_ref b = on_line(0, any); b && b->number < end; b = on_line(b->number + 1, any)) {
    if (b->gate->owner->wait(*b->gate, deadline, {}) == wait_outcome::timed_out) return wait_outcome::timed_out;
  }
  return wait_outcome::ok;
}

wait_outcome pipeline_body::drain(std::optional<nanoseconds> timeout) {
  backend& clock = *state_->backends().front();
  const wait_deadline deadline = timeout ? deadline_after(clock.now(), *timeout) : no_deadline;
  if (wait_for_gates(deadline) == wait_outcome::timed_out) return wait_outcome::timed_out;
  std::unique_lock lock{mutex_};
  if (const auto cause = std::exchange(failure_, nullptr)) {
    lock.unlock();
    raise(*cause);
  }
  return wait_outcome::ok;
}

void pipeline_body::finish() noexcept {
  // inside its own work nothing may wait for that work: the body stays until it is done
  if (state_->backends().front()->on_worker()) return;
  static_cast<void>(wait_for_gates(no_deadline));
}

}  // namespace weft::detail
