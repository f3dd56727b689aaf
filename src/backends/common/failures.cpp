// SPDX-License-Identifier: Apache-2.0
#include "backends/common/failures.hpp"

#include "core/errors/make_error.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::common {

const shared_cause& without_memory() {
  static const auto* const kept = new shared_cause{shared_error(no_host_memory())};  // for ever
  return *kept;
}

shared_cause host_function_threw(device_id of, const char* words) noexcept {
  return cause_of([&] {
    return make_error(errc::kernel_failed,
                      "a host function on " + to_string(of) + " threw" +
                          (words == nullptr ? std::string{} : std::string{": "} + words),
                      error_scope::endpoint);
  });
}

// ---- streams --------------------------------------------------------------------------------------------------------

void failure_ledger::open(bool reports_errors) {
  const std::lock_guard lock{mutex_};
  reports_errors_ = reports_errors;
  failure_ = unreported_ = nullptr;
  has_failed_.store(false, std::memory_order_release);
}

void failure_ledger::add(const shared_cause& cause, std::uint64_t sequence) {
  const std::lock_guard lock{mutex_};
  if (failure_ && from_ <= sequence && sequence <= until_) return;
  failure_ = cause;
  from_ = sequence;
  until_ = no_end;
  if (reports_errors_) unreported_ = cause;
  has_failed_.store(true, std::memory_order_release);
}

shared_cause failure_ledger::skips(std::uint64_t sequence) {
  if (is_clear()) return nullptr;
  const std::lock_guard lock{mutex_};
  if (failure_ && sequence < from_) return nullptr;  // it was handed over before the other failed
  return failure_ && sequence <= until_ ? failure_ : nullptr;
}

void failure_ledger::ended(std::uint64_t sequence) {
  if (is_clear()) return;
  const std::lock_guard lock{mutex_};
  if (failure_ && sequence <= until_) return;
  failure_ = nullptr;
  has_failed_.store(false, std::memory_order_release);
}

void failure_ledger::reported(const shared_cause& cause, std::uint64_t submitted) {
  const std::lock_guard lock{mutex_};
  if (unreported_ == cause) unreported_ = nullptr;
  if (failure_ == cause && until_ == no_end) until_ = submitted;
}

shared_cause failure_ledger::report(std::uint64_t submitted) {
  const std::lock_guard lock{mutex_};
  shared_cause cause = std::exchange(unreported_, nullptr);
  // a stream that reports no errors goes on afresh like one that has reported
  const bool goes_on = cause ? failure_ == cause : !reports_errors_;
  if (goes_on && until_ == no_end) until_ = submitted;  // what came between two reports was told of
  return cause;
}

void failure_ledger::forgive(std::uint64_t submitted) {
  const std::lock_guard lock{mutex_};
  unreported_ = nullptr;
  if (failure_) until_ = submitted;
}

// ---- machine and devices --------------------------------------------------------------------------------------------

failures::failures(device_id first, std::size_t devices, backend* face)
    : first_(first),
      face_(face),
      at_the_end_(shared_error(make_error(errc::cancelled, "the machine was closed", error_scope::process))),
      devices_(devices) {
  static_cast<void>(without_memory());
}

bool failures::close() {
  if (closed_.exchange(true, std::memory_order_seq_cst)) return false;
  std::set<event_record*> gates;
  {
    const std::lock_guard lock{gates_mutex_};
    gates.swap(gates_);
  }
  for (event_record* gate : gates) {
    gate->complete(at_the_end_);
    gate->drop();
  }
  return true;
}

bool failures::lose(device_id device, const shared_cause& cause) {
  const std::lock_guard lock{mutex_};
  device_state& state = at(device);
  if (state.root) return false;
  state.root = cause;
  state.reported = cause_of([&] {
    return make_error(errc::device_lost, to_string(device) + " is lost since: " + cause->what, error_scope::device,
                      cause->native_code);
  });
  state.lost.store(true, std::memory_order_release);
  return true;
}

shared_cause failures::lost(device_id device) const {
  if (!is_lost(device)) return nullptr;
  const std::lock_guard lock{mutex_};
  return at(device).reported;
}

shared_cause failures::cause_of_loss(device_id device) const {
  const std::lock_guard lock{mutex_};
  return at(device).root;
}

void failures::restore(device_id device) {
  const std::lock_guard lock{mutex_};
  device_state& state = at(device);
  state.lost.store(false, std::memory_order_release);
  state.root = state.reported = nullptr;
}

shared_cause failures::over(device_id device) const {
  if (!closed()) return lost(device);
  return cause_of([&] {
    return make_error(errc::cancelled,
                      "the machine was closed before the operation on " + to_string(device) + " started",
                      error_scope::endpoint);
  });
}

shared_cause failures::refusal(device_id device, failure_ledger& stream, std::uint64_t sequence,
                               const event_ref& dependency, const std::stop_token& stop) const {
  if (is_over(device)) {
    if (shared_cause cause = over(device)) return cause;  // null: restored since
  }
  if (dependency && dependency->finished() && dependency->cause()) return dependency->cause();
  if (shared_cause cause = stream.skips(sequence)) return cause;
  if (!stop.stop_requested()) return nullptr;
  return cause_of([&] { return make_error(errc::cancelled, "cancelled before it started on " + to_string(device)); });
}

// ---- gates ----------------------------------------------------------------------------------------------------------

event_ref failures::create_gate() {
  event_ref gate{new event_record};
  gate->owner = face_;
  gate->timed = false;
  const std::lock_guard lock{gates_mutex_};
  if (closed()) return {};  // close() has opened the gates it knew, and would not know this one
  gates_.insert(gate.get());
  gate->retain();
  return gate;
}

bool failures::take_gate(event_record& gate) {
  const std::lock_guard lock{gates_mutex_};
  return gates_.erase(&gate) != 0;
}

std::uint64_t track_numbers::take() {
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  const auto number = static_cast<std::uint64_t>(free - taken_.begin());
  if (free == taken_.end()) {
    taken_.push_back(true);
  } else {
    *free = true;
  }
  return number;
}

}  // namespace weft::common
