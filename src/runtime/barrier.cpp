// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/barrier.hpp"

#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "runtime/machine_state.hpp"

#include <algorithm>
#include <mutex>
#include <string>

namespace weft {

struct device_barrier::body {
  std::shared_ptr<detail::machine_state> state;
  std::vector<device_id> participants;
  std::mutex mutex;
  std::uint64_t generation = 0;
  std::vector<device_id> arrived;

  // One filling. It opens when the work of every arrival has ended; each event keeps it alive until then.
  struct filling {
    backend* owner = nullptr;
    event_ref gate;
    std::mutex mutex;
    std::size_t outstanding = 0;
    bool complete = false;  // everybody has arrived
    std::shared_ptr<const error> cause;

    void settle(std::unique_lock<std::mutex>& lock) {
      if (!complete || outstanding != 0) return;
      auto with = cause;
      lock.unlock();
      owner->open_gate(gate, std::move(with));
    }
  };
  std::shared_ptr<filling> current;
  std::shared_ptr<const error> gone;  // for those who have arrived, where no memory is left to say more

  ~body() {
    if (!current || state->closed()) return;
    try {
      cancel("destroyed");
    } catch (const std::bad_alloc&) {
      current->owner->open_gate(current->gate, gone);
    }
  }

  /// Ends the filling: whoever has arrived fails with cancelled.
  void cancel(const char* why) {
    current->owner->open_gate(
        current->gate,
        shared_error(make_error(errc::cancelled,
                                std::string{"the barrier was "} + why + " with " + std::to_string(arrived.size()) +
                                    " of " + std::to_string(participants.size()) + " devices arrived",
                                error_scope::endpoint)));
  }

  [[nodiscard]] std::shared_ptr<filling> make_filling() const {
    auto made = std::make_shared<filling>();
    made->owner = &state->backend_of(participants.front());
    made->gate = value_or_raise(made->owner->create_gate());
    made->gate->device = participants.front();
    return made;
  }
  void begin(std::shared_ptr<filling> next) {
    if (!gone) gone = shared_error(make_error(errc::cancelled, "the barrier was destroyed", error_scope::endpoint));
    current = std::move(next);
    arrived.clear();
  }

  // what the gate waits for, and the event of the opening
  event arrive(const stream& by) {
    const device on = by.on();
    if (detail::state_of(on) != state) raise(errc::wrong_device, "a stream of another machine arrived at a barrier");
    const device_id who = on.id();
    const std::lock_guard lock{mutex};
    if (std::find(participants.begin(), participants.end(), who) == participants.end()) {
      raise(errc::invalid_argument, to_string(who) + " does not take part in this barrier");
    }
    if (std::find(arrived.begin(), arrived.end(), who) != arrived.end()) {
      raise(errc::invalid_argument,
            to_string(who) + " has arrived already in generation " + std::to_string(generation));
    }
    // everything that can fail comes before anything changes
    const event work = by.record();
    const bool is_last = arrived.size() + 1 == participants.size();
    auto next = is_last ? make_filling() : nullptr;
    auto mine = current;
    arrived.reserve(participants.size());
    const bool is_virtual = state->options().clock == clock_kind::virtual_time;
    if (!is_virtual) static_cast<void>(state->callbacks());
    {
      const std::lock_guard inner{mine->mutex};
      ++mine->outstanding;
    }
    arrived.push_back(who);
    const auto opening = detail::make<event>(state, mine->gate);
    if (is_last) {
      const std::lock_guard inner{mine->mutex};
      mine->complete = true;
    }
    const auto arrived_work_ended = [mine, done = work.record()] {
      static_cast<void>(done->owner->ready(*done));  // the gate opens after it: check modes are told by the question
      std::unique_lock inner{mine->mutex};
      --mine->outstanding;
      if (done->cause() && !mine->cause) mine->cause = done->cause();
      mine->settle(inner);
    };
    try {
      if (is_virtual) {
        // In the step that ends the work: a second thread would open the gate at a time of its own.
        work.record()->on_complete(arrived_work_ended);
      } else {
        // Completion is noticed by the machine's callback thread, never by a device's: opening a gate runs other work.
        // The entry keeps the machine: the gate's backend must be there when it runs.
        state->callbacks().after(work.record(), [keep = state, arrived_work_ended] { arrived_work_ended(); });
      }
    } catch (...) {
      const std::lock_guard inner{mine->mutex};
      --mine->outstanding;
      mine->complete = false;
      arrived.pop_back();
      throw;
    }
    if (is_last) {
      ++generation;
      begin(std::move(next));
    }
    return opening;
  }
};

device_barrier::device_barrier(const machine& m, std::vector<device_id> participants, std::source_location where)
    : body_(std::make_unique<body>()) {
  const called_from here{where};
  if (participants.empty()) raise(errc::invalid_argument, "a barrier needs at least one device");
  for (const device_id id : participants) static_cast<void>(m[id]);
  auto sorted = participants;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    raise(errc::invalid_argument, to_string(*twice) + " is named twice in a barrier");
  }
  detail::state_of(m)->require_open();
  body_->state = detail::state_of(m);
  body_->participants = std::move(participants);
  body_->begin(body_->make_filling());
}

device_barrier::~device_barrier() = default;
device_barrier::device_barrier(device_barrier&&) noexcept = default;
device_barrier& device_barrier::operator=(device_barrier&&) noexcept = default;

device_barrier::body& device_barrier::held() const { return *detail::not_moved_from(body_, "barrier"); }

device_barrier::progress device_barrier::status() const {
  body& now = held();
  const std::lock_guard lock{now.mutex};
  return {now.generation, now.arrived.size(), now.participants.size()};
}

event device_barrier::arrive(const stream& by, std::source_location where) {
  const called_from here{where};
  return held().arrive(by);
}

event device_barrier::arrive_and_order(const stream& by, std::source_location where) {
  const called_from here{where};
  event opening = held().arrive(by);
  by.wait(opening);
  return opening;
}

wait_outcome device_barrier::arrive_and_wait(const stream& by, std::chrono::nanoseconds timeout,
                                             std::source_location where) {
  const called_from here{where};
  return held().arrive(by).wait_for(timeout);
}

void device_barrier::reset(std::source_location where) {
  const called_from here{where};
  body& now = held();
  const std::lock_guard lock{now.mutex};
  auto next = now.make_filling();
  now.cancel("reset");
  now.begin(std::move(next));
}

}  // namespace weft
