// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/event.hpp"

#include "core/errors/called_from.hpp"
#include "runtime/machine_state.hpp"

#include <exception>

namespace weft {

namespace {

wait_outcome wait_until(const event& e, wait_deadline deadline, const std::stop_token& stop,
                        std::source_location where) {
  if (!e.record()) return wait_outcome::ok;
  event_record& record = *e.record();
  const wait_outcome outcome = record.owner->wait(record, deadline, stop);
  if (outcome != wait_outcome::failed) return outcome;
  const error cause = *record.cause();
  // a wait for its stream among others may have found it, and reported another one
  static_cast<void>(
      detail::state_of(e)->take_unreported([&](const auto& one) { return detail::is_same_failure(one.cause, cause); }));
  detail::raise_failure(cause, where);
}

/// Some drivers know it only when they are asked; a virtual clock would go on by that.
bool has_ended(const event& one, event_record& record) {
  const bool is_virtual = detail::state_of(one)->options().clock == clock_kind::virtual_time;
  return record.finished() || (!is_virtual && record.owner->ready(record));
}

}  // namespace

bool event::ready() const { return !record_ || record_->owner->ready(*record_); }

void event::wait(std::source_location where) const { wait_until(*this, no_deadline, {}, where); }

wait_outcome event::wait(const std::stop_token& stop, std::source_location where) const {
  return wait_until(*this, no_deadline, stop, where);
}

wait_outcome event::wait_for(std::chrono::nanoseconds timeout, std::source_location where) const {
  if (!record_) return wait_outcome::ok;
  return wait_until(*this, deadline_after(record_->owner->now(), timeout), {}, where);
}

std::optional<error> event::failure() const {
  if (!record_ || !has_ended(*this, *record_) || !record_->cause()) return std::nullopt;
  return *record_->cause();
}

void event::on_done(std::function<void()> f) const {
  if (!record_) {
    // ended before anybody could ask; a default-made event has no machine to run callbacks on
    f();
    return;
  }
  // The machine stays until its callback has run, however its handles go; and until this call is over, since the
  // callback may run at once and take this event with it.
  const auto keep = state_;
  state_->callbacks().after(record_, [state = state_, f = std::move(f)] { f(); });
}

std::chrono::nanoseconds elapsed(const event& from, const event& to, std::source_location where) {
  const called_from here{where};
  for (const event* e : {&from, &to}) {
    if (!e->is_recorded() || !e->record())
      raise(errc::invalid_argument, "elapsed() of an event that was never recorded");
    if (!e->record()->timed) raise(errc::invalid_argument, "elapsed() of an event that carries no time");
  }
  if (detail::state_of(from) != detail::state_of(to) || from.record()->device != to.record()->device) {
    raise(errc::wrong_device, "elapsed() between " + to_string(from.record()->device) + " and " +
                                  to_string(to.record()->device) + ": the clocks of two devices do not compare");
  }
  for (const event* e : {&from, &to}) {
    if (!has_ended(*e, *e->record()))
      raise(errc::not_ready, "elapsed() of an event whose work has not ended; wait for it first");
  }
  return to.record()->times().ended - from.record()->times().ended;
}

void wait_all(std::span<const event> events, std::source_location where) {
  std::exception_ptr first;
  for (const event& e : events) {
    try {
      e.wait(where);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace weft
