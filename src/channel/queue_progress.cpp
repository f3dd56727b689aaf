// SPDX-License-Identifier: Apache-2.0
#include "channel/queue_progress.hpp"

#include "core/errors/make_error.hpp"

#include <algorithm>
#include <cstring>
#include <pthread.h>
#include <system_error>

namespace weft::detail {

using clock = std::chrono::steady_clock;

// ---- the thread -----------------------------------------------------------------------------------------------------

bool queue_progress::add(std::shared_ptr<queue_job> job) noexcept {
  {
    const std::lock_guard lock{mutex_};
    if (ended_) return false;
    const std::size_t before = jobs_.size();
    try {
      jobs_.push_back(std::move(job));
      if (!thread_.joinable()) {
        thread_ = std::thread{[this] {
          pthread_setname_np(pthread_self(), "weft-queues");
          run();
        }};
      }
    } catch (const std::exception&) {  // no thread or no memory to be had
      if (jobs_.size() != before) jobs_.pop_back();
      return false;
    }
  }
  ring();
  return true;
}

void queue_progress::remove(const queue_job* job) noexcept {
  std::shared_ptr<queue_job> gone;  // let go of outside the lock
  const auto take = [&] {
    const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& j) { return j.get() == job; });
    if (found == jobs_.end()) return;
    gone = std::move(*found);
    jobs_.erase(found);
  };
  if (is_current()) {
    take();  // a job that lets a queue go: the lock is this thread's already
    return;
  }
  const std::lock_guard lock{mutex_};
  take();
}

void queue_progress::end() noexcept {
  {
    const std::lock_guard lock{mutex_};
    ended_ = true;
  }
  ring();
  if (!thread_.joinable()) return;
  if (is_current()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

bool queue_progress::pass() noexcept {
  bool moved = false;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const std::shared_ptr<queue_job> job = *at;
    const auto outcome = job->step();
    moved |= outcome != queue_job::step_outcome::idle;
    const auto next = std::next(at);
    if (outcome == queue_job::step_outcome::finished) {
      // the step may have taken itself out already
      if (std::find(jobs_.begin(), jobs_.end(), job) != jobs_.end()) jobs_.erase(at);
    }
    at = next;
  }
  return moved;
}

void queue_progress::run() noexcept {
  runner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  constexpr std::chrono::microseconds belt{20'000};
  const bool fences = parking::offers_heavy_fence(parking::word_scope::process);
  std::unique_lock lock{mutex_};
  while (!ended_) {
    if (pass()) {
      lock.unlock();  // whoever adds or removes gets a turn
      lock.lock();
      continue;
    }
    // a short patience outside the lock, then asleep with every job armed
    lock.unlock();
    {
      parking::spinner spinner{waiting::adaptive, 1000};
      while (spinner.spin() && bell_.load(std::memory_order_relaxed) == 0) {
      }
    }
    lock.lock();
    bell_.store(0, std::memory_order_relaxed);
    if (ended_) break;
    if (pass()) continue;
    for (const auto& job : jobs_) job->arm();
    if (fences) static_cast<void>(parking::heavy_fence(parking::word_scope::process));
    const bool moved = pass();
    if (!moved && !ended_) {
      lock.unlock();
      const bool unheard = loans_.load(std::memory_order_relaxed) != 0;
      parking::park(bell_, 0, clock::now() + (unheard ? std::chrono::microseconds{100} : belt));
      lock.lock();
    }
    for (const auto& job : jobs_) job->disarm();
  }
  static_cast<void>(pass());  // what was suspended is told of the end
}

// ---- staged queues --------------------------------------------------------------------------------------------------

namespace {

/// Puts a word up for the progress thread. Another sleeper's word is left alone: it wakes by itself.
void arm_word(std::atomic<std::uint32_t>& word) noexcept {
  std::uint32_t expected = nobody;
  word.compare_exchange_strong(expected, the_progress_thread, std::memory_order_acq_rel);
}
void disarm_word(std::atomic<std::uint32_t>& word) noexcept {
  std::uint32_t expected = the_progress_thread;
  word.compare_exchange_strong(expected, nobody, std::memory_order_acq_rel);
}

/// Whether a stopped queue's sender has nothing left beside its ring. Asked before a look into that ring.
bool is_last_look(const queue_state& queue, queue_lane& l) noexcept {
  if (!queue.stopped()) return false;
  const std::lock_guard lock{l.spill_mutex};
  return l.spill.empty();
}

class forwarder final : public queue_job {
 public:
  forwarder(queue_state& queue, queue_lane& l) : q_(queue), l_(l) {}

  step_outcome step() override {
    if (q_.is_over()) return step_outcome::idle;
    const bool is_last = !has_ended_ && is_last_look(q_, l_);
    const std::uint64_t most = std::clamp<std::uint64_t>(
        q_.options.staging_size.value() / std::max<std::uint32_t>(q_.shape.bytes, 1), 1, q_.options.batch_size);
    std::uint64_t moved = 0;
    while (moved < most && (q_.overwrites ? move_over() : move_one())) ++moved;
    if (moved != 0) {
      l_.forwards.add();
      if (q_.fences || l_.forward_out.is_awaited()) q_.wake(*l_.forward_out.other_waits);
      return step_outcome::moved;
    }
    if (is_last) {
      has_ended_ = true;
      q_.end_receiver(l_);
    }
    return step_outcome::idle;
  }
  void arm() noexcept override { arm_word(l_.forwarder_waits); }
  void disarm() noexcept override { disarm_word(l_.forwarder_waits); }

 private:
  // The place in the second ring is free when the message is in the first: the receiver's credit goes to the sender, so
  // both together never hold more than one ring.
  bool move_one() noexcept {
    weft_ring& in = l_.forward_in.ring;
    const void* message = peek_message(in);
    if (message == nullptr) {
      if (l_.sender_closed.load(std::memory_order_relaxed) && !l_.forwarded_fin) finish();
      return false;
    }
    put_message(l_.forward_out.ring, message);
    pass_message(in);
    return true;
  }

  /// The receiver may sleep while everything was moved already: it is told of the end.
  void finish() noexcept {
    const std::uint64_t fin = WEFT_RING_LOAD_64(reinterpret_cast<const std::uint64_t*>(l_.forward_in.ring.fin));
    if (fin != l_.forward_in.ring.position) return;
    l_.forwarded_fin = true;
    if (q_.overwrites) weft_ring_close_writer(&l_.forward_out.ring);
    q_.wake(*l_.forward_out.other_waits);
  }

  bool move_over() noexcept {
    weft_ring& in = l_.forward_in.ring;
    std::uint64_t lost = 0;
    auto* words = reinterpret_cast<std::uint32_t*>(l_.forwarding.data());
    const int came_to = weft_ring_get_over(&in, words, &lost);
    if (lost != 0) WEFT_RING_KEEP_64(&l_.forward_lost, l_.forward_lost + lost);
    if (came_to == WEFT_RING_OK) return weft_ring_put_over(&l_.forward_out.ring, words) == WEFT_RING_OK;
    if (came_to == WEFT_RING_CLOSED && !l_.forwarded_fin) finish();
    return false;
  }

  queue_state& q_;
  queue_lane& l_;
  bool has_ended_ = false;
};

class spill_drain final : public queue_job {
 public:
  spill_drain(queue_state& queue, queue_lane& l) : q_(queue), l_(l), forwards_(!l.jobs.empty()) {}

  step_outcome step() override {
    if (q_.is_over()) return step_outcome::idle;
    if (l_.spill_size.load(std::memory_order_relaxed) != 0)
      return drain_spill(q_, l_) ? step_outcome::moved : step_outcome::idle;
    if (!has_ended_ && !forwards_ && is_last_look(q_, l_)) {
      has_ended_ = true;
      q_.end_receiver(l_);
    }
    return step_outcome::idle;
  }
  void arm() noexcept override {
    if (l_.spill_size.load(std::memory_order_relaxed) != 0) arm_word(*l_.sender_waits);
  }
  void disarm() noexcept override { disarm_word(*l_.sender_waits); }

 private:
  queue_state& q_;
  queue_lane& l_;
  const bool forwards_;  // a forwarder comes after this one, and tells the end
  bool has_ended_ = false;
};

/// When to ask what has become of the other end, which takes locks and system calls: not at the first look.
class seldom {
 public:
  [[nodiscard]] bool is_time(clock::time_point now) noexcept {
    if (now < next_) return false;
    const bool is_first = next_ == clock::time_point{};
    next_ = now + std::chrono::milliseconds{10};  // asleep the thread comes by every 20
    return !is_first;
  }

 private:
  clock::time_point next_;
};

class peer_watch final : public queue_job {
 public:
  peer_watch(queue_state& queue, const device& with) : q_(queue), with_(with) {}

  step_outcome step() override {
    if (!asking_.is_time(clock::now()) || is_hopeless(q_)) return step_outcome::idle;
    if (auto lost = state_of(with_)->backend_of(with_.id()).lost(with_.id())) {
      q_.stop(queue_error(errc::device_lost,
                          to_string(with_.id()) + ", whose kernels have the end of the queue, is lost: " + lost->what));
    }
    return step_outcome::idle;
  }
  void arm() noexcept override {}
  void disarm() noexcept override {}

 private:
  queue_state& q_;
  const device with_;
  seldom asking_;
};

queue_status look(awaited_operation& op) noexcept {
  queue_state& queue = *op.queue;
  return op.sender != nullptr ? put_one(queue, *queue.lanes[op.sender->lane], op.outgoing)
                              : get_one(queue, op.incoming);
}

bool is_to_wait(const awaited_operation& op, queue_status status) noexcept {
  if (op.sender == nullptr) return status == queue_status::empty;
  const backpressure policy = op.queue->options.when_full;
  return status == queue_status::full && (policy == backpressure::block || policy == backpressure::spill);
}

/// Counted here and not at each look: an operation has one outcome.
void settle(awaited_operation& op, queue_status outcome) noexcept {
  op.outcome = outcome;
  if (op.sender != nullptr) {
    count_send(*op.queue->lanes[op.sender->lane], outcome);
  } else {
    count_receive(*op.queue, outcome);
  }
}

class awaiting final : public queue_job {
 public:
  explicit awaiting(awaited_operation& operation) : op_(operation) {}

  step_outcome step() override {
    queue_status status = look(op_);
    if (is_to_wait(op_, status)) status = without_success(status);
    if (is_to_wait(op_, status)) return step_outcome::idle;
    settle(op_, status);
    disarm();
    // the operation lives in the coroutine's frame and may go as soon as it resumes
    op_.queue->machine->callbacks().soon([waiter = op_.waiter] { waiter.resume(); });
    return step_outcome::finished;
  }
  void arm() noexcept override { arm_word(word()); }
  void disarm() noexcept override { disarm_word(word()); }

 private:
  /// The status that ends the wait; `status` itself if nothing does.
  queue_status without_success(queue_status status) noexcept {
    queue_state& queue = *op_.queue;
    const auto now = clock::now();
    // what was sent before the end comes first: the ring tells when that was all
    if (asking_.is_time(now) && is_hopeless(queue)) status = look(op_);
    if (!is_to_wait(op_, status)) return status;
    if (op_.rules.stop.stop_requested()) return queue_status::cancelled;
    if (now >= op_.deadline) return queue_status::timed_out;
    return queue.is_over() ? queue.ending() : status;
  }
  std::atomic<std::uint32_t>& word() noexcept {
    return op_.sender != nullptr ? *op_.queue->lanes[op_.sender->lane]->sender_waits : *op_.queue->receiver_waits;
  }

  awaited_operation& op_;
  seldom asking_;
};

}  // namespace

std::shared_ptr<queue_job> make_forwarder(queue_state& queue, queue_lane& l) {
  return std::make_shared<forwarder>(queue, l);
}
std::shared_ptr<queue_job> make_spill_drain(queue_state& queue, queue_lane& l) {
  return std::make_shared<spill_drain>(queue, l);
}
std::shared_ptr<queue_job> make_peer_watch(queue_state& queue, const device& with) {
  return std::make_shared<peer_watch>(queue, with);
}

bool ends_at_once(awaited_operation& operation) noexcept {
  const queue_status status = look(operation);
  if (is_to_wait(operation, status)) return false;
  settle(operation, status);
  return true;
}

void suspend(awaited_operation& operation) {
  queue_state& queue = *operation.queue;
  operation.deadline = deadline_of(queue, operation.rules);
  const auto is_begun = [&] {
    if (queue.machine == nullptr) {
      queue.note(queue_error(errc::unsupported,
                             "an end of a queue between processes cannot be awaited with co_await: call send or "
                             "receive, which wait on the thread of the caller, or poll with try_send or try_receive",
                             error_scope::call));
      return false;
    }
    try {
      static_cast<void>(queue.machine->callbacks());  // where it goes on: not to be missed when it has ended
      if (channels_of(*queue.machine).progress().add(std::make_shared<awaiting>(operation))) return true;
    } catch (const std::exception&) {
    }
    if (!queue.machine->closed()) queue.note(shared_error(no_thread()));
    return false;
  };
  if (is_begun()) return;
  settle(operation, queue_status::failed);
  operation.waiter.resume();
}

// ---- per machine ----------------------------------------------------------------------------------------------------

channel_state::channel_state(machine_state& machine)
    : machine_(machine), at_the_end_(queue_error(errc::machine_closed, "the machine of the queue was closed")) {
  // the state owns this object, and ends it only after the machine was closed
  machine.before_close([this] { stop_all(); });
}

void channel_state::remember(const std::shared_ptr<queue_state>& queue) {
  const std::lock_guard lock{mutex_};
  // those that have ended are taken out each time the list has doubled: a constant for each queue that is made
  if (queues_.size() >= crowded_) {
    std::erase_if(queues_, [](const auto& known) { return known.expired(); });
    crowded_ = std::max<std::size_t>(64, 2 * queues_.size());
  }
  queues_.insert(queue);
}

void channel_state::forget(const std::shared_ptr<queue_state>& queue) noexcept {
  const std::lock_guard lock{mutex_};
  queues_.erase(queue);
}

result<stream_handle> channel_state::aside(device_id on) {
  const std::lock_guard lock{aside_mutex_};
  backend& driver = machine_.backend_of(on);
  if (const auto found = aside_.find(on); found != aside_.end()) {
    // a failure would skip what comes behind it, of other queues; it was that of its own event
    if (driver.idle(found->second) && !driver.settled(found->second))
      static_cast<void>(driver.synchronize(found->second, no_deadline, {}));
    return found->second;
  }
  auto made = driver.create_stream(on, aside_priority, false);
  if (made) aside_.emplace(on, *made);
  return made;
}

void channel_state::stop_all() noexcept {
  for (;;) {
    std::shared_ptr<queue_state> open;
    {
      const std::lock_guard lock{mutex_};
      while (open == nullptr && !queues_.empty()) {
        open = queues_.begin()->lock();
        queues_.erase(queues_.begin());
      }
    }
    if (open == nullptr) break;
    open->stop(at_the_end_);
  }
  progress_.end();
}

}  // namespace weft::detail
