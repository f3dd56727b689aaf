// SPDX-License-Identifier: Apache-2.0
#include "collective/devices/communicator_body.hpp"
#include "core/errors/called_from.hpp"
#include "runtime/machine_state.hpp"

#include <algorithm>

namespace weft {
namespace {

bool is_over(const event_ref& e) { return !e || e->finished(); }

}  // namespace

wait_outcome collective_run::body::wait_until(wait_deadline until) const {
  if (over) return wait_outcome::ok;
  std::shared_ptr<const error> failure;
  bool in_time = true;
  // All of them, so that every rank's stream counts as told.
  for (const event_ref& e : done) {
    if (!e) continue;
    const wait_outcome outcome = e->owner->wait(*e, until, {});
    if (outcome == wait_outcome::timed_out) in_time = false;
    if (outcome == wait_outcome::failed && !failure) failure = e->cause();
  }
  // where every device is lost, no stream could take what it is broken by
  if (failure || (broken && in_time)) raise(broken ? error{*broken} : named(failure));
  return in_time ? wait_outcome::ok : wait_outcome::timed_out;
}

error collective_run::body::named(const std::shared_ptr<const error>& cause) const {
  const auto count = static_cast<std::size_t>(ranks->size());
  const auto failed_so = [&](const event_ref& e) { return e && e->finished() && e->cause() == cause; };
  std::optional<std::size_t> who;
  bool before = false;
  for (std::size_t r = 0; r < starts.size() && !who; ++r) {
    if (!failed_so(starts[r])) continue;
    who = r;
    before = true;
  }
  // who follows fails with the same cause, and was submitted later
  for (std::size_t i = 0; i < steps.size() && !who; ++i) {
    if (failed_so(steps[i])) who = static_cast<std::size_t>(plan ? plan->steps->all()[i].at : step_ranks[i]);
  }
  if (cause->scope == error_scope::device) {
    for (std::size_t r = 0; r < count; ++r) {
      if (ranks->drivers[r]->lost(ranks->devices[r].id()) == nullptr) continue;
      who = r;
      break;
    }
  }
  for (std::size_t r = 0; r < done.size() && !who; ++r) {
    if (failed_so(done[r])) who = r;
  }
  error told = *cause;
  if (who) {
    told.what = ranks->name(static_cast<int>(*who)) + (before ? ", before the " + std::string{what} : std::string{}) +
                ": " + told.what;
  }
  return told;
}

error collective_run::body::late() const {
  std::vector<int> stuck, waiting;
  const auto add = [](std::vector<int>& list, int rank) {
    if (std::find(list.begin(), list.end(), rank) == list.end()) list.push_back(rank);
  };
  std::vector<int> busy_streams;
  for (std::size_t i = 0; i < steps.size() && plan; ++i) {
    const detail::schedule_step& s = plan->steps->all()[i];
    if (is_over(steps[i])) continue;
    const bool is_next = std::find(busy_streams.begin(), busy_streams.end(), s.stream) == busy_streams.end();
    busy_streams.push_back(s.stream);
    const bool may_run = std::all_of(s.after.begin(), s.after.end(),
                                     [&](int other) { return is_over(steps[static_cast<std::size_t>(other)]); });
    const bool all_started = s.starts == 0 || is_over(gathered);
    const bool started = all_started && std::all_of(starts.begin(), starts.end(), [&](const event_ref& e) {
                           const auto r = static_cast<std::size_t>(&e - starts.data());
                           return (s.starts >> r & 1U) == 0 || is_over(e);
                         });
    if (is_next && may_run && started) add(stuck, s.at);
  }
  bool before = false;
  if (stuck.empty()) {
    for (std::size_t r = 0; r < starts.size(); ++r) {
      if (is_over(starts[r])) continue;
      add(stuck, static_cast<int>(r));
      before = true;
    }
  }
  for (std::size_t r = 0; r < done.size(); ++r) {
    if (!is_over(done[r]) && std::find(stuck.begin(), stuck.end(), static_cast<int>(r)) == stuck.end())
      waiting.push_back(static_cast<int>(r));
  }
  error told;
  told.code = errc::timed_out;
  told.scope = error_scope::endpoint;
  told.what = std::string{what} + " has not ended after " + std::to_string(timeout.count() / 1'000'000) + " ms: ";
  if (!stuck.empty()) {
    told.what += ranks->names(stuck) + (stuck.size() == 1 ? " has" : " have") + " not done " +
                 (stuck.size() == 1 ? "its" : "their") + " part" + (before ? ", or what was in the stream before" : "");
    if (!waiting.empty()) told.what += "; ";
  }
  if (!waiting.empty()) told.what += ranks->names(waiting) + (waiting.size() == 1 ? " waits" : " wait");
  return told;
}

void collective_run::wait(std::source_location where) const {
  const called_from here{where};
  if (!body_ || body_->over) return;
  if (body_->wait_until(deadline_after(body_->submitted, body_->timeout)) == wait_outcome::timed_out)
    raise(body_->late());
}

wait_outcome collective_run::wait_for(std::chrono::nanoseconds timeout, std::source_location where) const {
  const called_from here{where};
  if (!body_ || body_->over) return wait_outcome::ok;
  const wait_deadline last = deadline_after(body_->submitted, body_->timeout);
  const wait_deadline until = deadline_after(body_->ranks->state->now(), timeout);
  const wait_outcome outcome = body_->wait_until(std::min(last, until));
  if (outcome == wait_outcome::timed_out && last <= until) raise(body_->late());
  return outcome;
}

bool collective_run::ready() const {
  if (!body_ || body_->over) return true;
  return std::all_of(body_->done.begin(), body_->done.end(),
                     [](const event_ref& e) { return !e || e->owner->ready(*e); });
}

event collective_run::done(rank of, std::source_location where) const {
  const called_from here{where};
  const int count = body_ ? body_->ranks->size() : 0;
  if (of.value() < 0 || of.value() >= count) {
    raise(errc::invalid_argument,
          "there is no rank " + std::to_string(of.value()) + " in a collective of " + std::to_string(count) + " ranks");
  }
  // a device that is lost could not take what the call is broken by
  if (body_ && body_->broken && !body_->done[of.index()]) raise(error{*body_->broken});
  return detail::make<event>(body_->ranks->state, body_->done.empty() ? event_ref{} : body_->done[of.index()]);
}

collective_algorithm collective_run::algorithm() const {
  return body_ && body_->plan ? body_->plan->choice.algorithm : collective_algorithm::automatic;
}

collective_choice collective_run::choice() const {
  return body_ && body_->plan ? body_->plan->choice : collective_choice{};
}

}  // namespace weft
