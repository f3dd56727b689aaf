// SPDX-License-Identifier: Apache-2.0
// The slow side of a queue: everything that is not "there is space" or "a message is there".
#include "channel/queue_progress.hpp"
#include "channel/queue_state.hpp"
#include "channel/rings/crc32c.hpp"
#include "channel/rings/device_ring.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace weft::detail {

std::chrono::steady_clock::time_point deadline_of(const queue_state& queue, const wait_rules& rules) noexcept {
  return end_of(rules.timeout.value_or(queue.options.timeout));
}

bool is_hopeless(queue_state& queue) noexcept {
  if (queue.stopped()) return true;
  if (!queue.trouble) return false;
  auto cause = queue.trouble();
  if (!cause) return false;
  queue.stop(std::move(cause));
  return true;
}

namespace {

using clock = std::chrono::steady_clock;

queue_lane& lane_of(queue_state& queue, const queue_end& end) { return *queue.lanes[end.lane]; }

void look_for_sleepers(queue_state& queue, queue_end& end) noexcept {
  if (queue.fences) {
    // No heavy fence: this exchange orders what was published before it with the sleeper's own exchange of the word.
    if (end.other_waits->fetch_add(0, std::memory_order_acq_rel) != nobody) queue.wake(*end.other_waits);
  } else if (end.is_awaited()) {
    queue.wake(*end.other_waits);
  }
}

/// True for one look in 1024 that found an end's ring full or empty. A distance: one call counts up to three of them.
bool is_time_to_ask(queue_end& end) noexcept {
  if (end.ring.waits - end.asked_at < 1024) return false;
  end.asked_at = end.ring.waits;
  return true;
}

queue_status corrupt(queue_state& queue, const std::string& what) noexcept {
  queue.stop(queue_error(errc::corrupt, what + " of the queue from " + to_string(queue.facts.source) + " to " +
                                            to_string(queue.facts.destination)));
  return queue_status::failed;
}

// ---- one attempt ----------------------------------------------------------------------------------------------------

/// The message with what goes with it, where it can be copied into the ring from.
const void* dressed(queue_state& queue, queue_lane& l, const void* message) noexcept {
  if (!queue.options.validate && !queue.overwrites) return message;
  std::memcpy(l.sending.data(), message, queue.size);
  if (queue.options.validate) {
    const std::size_t at = round_up(queue.size, 4);
    std::memset(l.sending.data() + queue.size, 0, at - queue.size);
    const std::uint32_t sum = crc32c(l.sending.data(), at);
    std::memcpy(l.sending.data() + at, &sum, sizeof sum);
  }
  return l.sending.data();
}

queue_status sent_as(queue_state& queue, queue_end& end, int came_to) noexcept {
  switch (came_to) {
    case WEFT_RING_OK:
      look_for_sleepers(queue, end);
      return queue_status::ok;
    case WEFT_RING_FULL:
      // whoever closed the machine did not wait for us to be short of space
      if (is_time_to_ask(end) && is_hopeless(queue)) return queue.ending();
      look_for_sleepers(queue, end);  // between nodes credit comes while somebody asks the network for it
      return queue_status::full;
    case WEFT_RING_CLOSED:
      return queue_status::closed;
    case WEFT_RING_STOPPED:
      return queue.ending();
    default:
      return corrupt(queue, "the credit");
  }
}

bool is_closed_by_reader(const weft_ring& ring) noexcept {
  return (WEFT_RING_LOAD_64(reinterpret_cast<const std::uint64_t*>(ring.credit)) & WEFT_RING_CLOSED_BIT) != 0;
}

/// An overwriting sender is never short of space, so it asks here what has become of the receiver. A good end comes
/// first, whatever happened to the receiver afterwards. Between nodes the carrier stops the queue unasked, and a
/// question would have its thread compete with the sender.
int put_over(queue_state& queue, weft_ring& ring, const void* message) noexcept {
  if ((ring.position & (ring.mask | 1023)) == 0 && queue.facts.mode != transfer_mode::network) {
    if (is_closed_by_reader(ring)) return WEFT_RING_CLOSED;
    if (is_hopeless(queue)) return is_closed_by_reader(ring) ? WEFT_RING_CLOSED : WEFT_RING_STOPPED;
  }
  return weft_ring_put_over(&ring, static_cast<const std::uint32_t*>(message));
}

queue_status put_ring(queue_state& queue, queue_lane& l, const void* message) noexcept {
  weft_ring& ring = l.sender.ring;
  const void* whole = dressed(queue, l, message);
  return sent_as(queue, l.sender, queue.overwrites ? put_over(queue, ring, whole) : weft_ring_try_send(&ring, whole));
}

/// Under spill_mutex: moves the oldest spilled messages into the ring. True when none is left.
bool unspill(queue_state& queue, queue_lane& l, queue_status& why) noexcept {
  while (!l.spill.empty()) {
    why = put_ring(queue, l, l.spill.front().data());
    if (why != queue_status::ok) return false;
    l.spill.pop_front();
    l.spill_size.store(l.spill.size(), std::memory_order_relaxed);
  }
  return true;
}

queue_status put_or_spill(queue_state& queue, queue_lane& l, const void* message) noexcept {
  const std::lock_guard lock{l.spill_mutex};
  queue_status why = queue_status::ok;
  if (unspill(queue, l, why)) {
    why = put_ring(queue, l, message);
  }
  if (why != queue_status::full) return why;
  if ((l.spill.size() + 1) * queue.size > queue.options.spill_limit.value()) return queue_status::full;
  try {
    const auto* from = static_cast<const std::byte*>(message);
    l.spill.emplace_back(from, from + queue.size);
  } catch (const std::bad_alloc&) {
    return queue_status::full;  // as good as the limit
  }
  l.spill_size.store(l.spill.size(), std::memory_order_relaxed);
  l.spilled.add();
  // asleep since there was nothing spilled: nobody else tells it
  if (l.spill.size() == 1) channels_of(*queue.machine).progress().ring();
  l.spilled_high_water.at_least(l.spill.size());
  return queue_status::ok;
}

}  // namespace

bool drain_spill(queue_state& queue, queue_lane& l) noexcept {
  const std::lock_guard lock{l.spill_mutex};
  const std::size_t before = l.spill.size();
  queue_status why = queue_status::ok;
  if (unspill(queue, l, why) && before != 0 && l.sender_closed.load(std::memory_order_acquire)) {
    weft_ring_close_writer(&l.sender.ring);
    queue.wake(*l.sender.other_waits);
  }
  return l.spill.size() != before;
}

namespace {

bool is_sampled(const queue_state& queue, std::uint64_t position) noexcept {
  return queue.options.sample_every != 0 &&
         (position & static_cast<std::uint64_t>(queue.options.sample_every - 1)) == 0;
}

sample_board::entry& sample_of(const queue_state& queue, queue_lane& l, std::uint64_t position) noexcept {
  return l.samples
      .entries[position / static_cast<std::uint64_t>(queue.options.sample_every) % l.samples.entries.size()];
}

void note_received_sample(queue_state& queue, queue_lane& l, std::uint64_t position,
                          clock::time_point started) noexcept {
  const auto now = clock::now();
  queue.receive_call.add(now - started);
  const sample_board::entry& entry = sample_of(queue, l, position);
  // Once a forwarder has lost messages, the two rings number them differently. Acquire: pairs with the release of the
  // sender; an entry that was overwritten since is skipped.
  if (WEFT_RING_LOAD_64(&l.forward_lost) == 0 && entry.position.load(std::memory_order_acquire) == position + 1) {
    const auto sent = std::chrono::nanoseconds{entry.sent_ns.load(std::memory_order_relaxed)};
    queue.queueing.add(std::max(now.time_since_epoch() - sent, std::chrono::nanoseconds{0}));
  }
  std::uint64_t received = 0;  // by this thread, of all lanes
  for (const auto& each : queue.lanes) received += each->receiver.ring.position - WEFT_RING_LOAD_64(&each->lost);
  if (queue.last_sample_at != clock::time_point{} && received > queue.last_sample_count) {
    const double seconds = std::chrono::duration<double>(now - queue.last_sample_at).count();
    const double rate = static_cast<double>(received - queue.last_sample_count) / std::max(seconds, 1e-9);
    if (rate > queue.peak.load(std::memory_order_relaxed)) queue.peak.store(rate, std::memory_order_relaxed);
  }
  queue.last_sample_at = now;
  queue.last_sample_count = received;
}

queue_status got_as(queue_state& queue, queue_lane& l, int came_to) noexcept {
  switch (came_to) {
    case WEFT_RING_OK:
      if (l.receiver.ring.credit_seen == l.receiver.ring.position) look_for_sleepers(queue, l.receiver);
      return queue_status::ok;
    case WEFT_RING_EMPTY:
      look_for_sleepers(queue, l.receiver);  // the credit was given
      // What was sent before the end is delivered first: the next look tells, now that nothing can follow.
      if (is_time_to_ask(l.receiver)) static_cast<void>(is_hopeless(queue));
      return queue_status::empty;
    case WEFT_RING_CLOSED:
      return queue_status::closed;
    case WEFT_RING_STOPPED:
      return queue_status::closed;  // this lane is at its end; end_of_lanes() has the word for the queue
    default:
      return corrupt(queue, "a stamp");
  }
}

/// The receiver's status when all lanes have ended.
queue_status end_of_lanes(queue_state& queue) noexcept {
  const bool are_good = std::all_of(queue.lanes.begin(), queue.lanes.end(), [](const auto& l) {
    return weft_ring_nothing(&l->receiver.ring) == WEFT_RING_CLOSED;
  });
  return are_good ? queue_status::closed : queue.ending();
}

/// The next message of one lane, checksum still on it.
queue_status take(queue_state& queue, queue_lane& l, std::byte* into) noexcept {
  weft_ring& ring = l.receiver.ring;
  if (!queue.overwrites) return got_as(queue, l, weft_ring_try_receive(&ring, into));
  std::uint64_t lost = 0;
  auto* const words = reinterpret_cast<std::uint32_t*>(into);
  int came_to = weft_ring_get_over(&ring, words, &lost);
  // what came between the look for a message and that for the end
  if (came_to == WEFT_RING_STOPPED) came_to = weft_ring_get_over(&ring, words, &lost);
  if (lost != 0) WEFT_RING_KEEP_64(&l.lost, l.lost + lost);
  return got_as(queue, l, came_to);
}

queue_status take_checked(queue_state& queue, queue_lane& l, void* message) noexcept {
  const bool direct = !queue.options.validate && !queue.overwrites;
  auto* into = direct ? static_cast<std::byte*>(message) : queue.receiving.data();
  const bool samples = queue.options.sample_every != 0;
  const auto started = samples ? clock::now() : clock::time_point{};
  const queue_status status = take(queue, l, into);
  if (status != queue_status::ok) return status;
  if (samples && is_sampled(queue, l.receiver.ring.position - 1)) {
    note_received_sample(queue, l, l.receiver.ring.position - 1, started);
  }
  if (direct) return status;
  if (queue.options.validate) {
    const std::size_t at = round_up(queue.size, 4);
    std::uint32_t sum = 0;
    std::memcpy(&sum, into + at, sizeof sum);
    if (sum != crc32c(into, at)) {
      queue.corrupted.add();
      queue.note(queue_error(errc::corrupt,
                             "message " + std::to_string(l.receiver.ring.position - 1) + " of the queue from " +
                                 to_string(queue.facts.source) + " to " + to_string(queue.facts.destination) +
                                 " does not have its checksum",
                             error_scope::call));
      return queue_status::failed;
    }
  }
  std::memcpy(message, into, queue.size);
  return status;
}

// ---- waiting --------------------------------------------------------------------------------------------------------

/// Attempts until `attempt` gives a status, the time is over, or a stop is requested: spins, then sleeps on `word`. The
/// sleeper pays for the order of its word against the other end's publication, by a fence on every running thread.
template <class Attempt>
queue_status wait_on(queue_state& queue, std::atomic<std::uint32_t>& word, const wait_rules& rules, tally& parks,
                     Attempt&& attempt) noexcept {
  constexpr std::uint32_t patience = 4000;  // pauses, some 50 us: what a sleep and a wake-up cost
  // How long to sleep before looking whether the other end still lives: short at first, when it may just have died.
  std::chrono::microseconds belt{1000};
  constexpr std::chrono::microseconds longest{20'000};
  const waiting policy = queue.options.wait_policy;
  const auto deadline = deadline_of(queue, rules);
  const auto give_up = [&]() -> std::optional<queue_status> {
    if (rules.stop.stop_requested()) return queue_status::cancelled;
    if (clock::now() >= deadline) return queue_status::timed_out;
    return std::nullopt;
  };
  if (policy != waiting::park) {
    parking::spinner spinner{policy, patience};
    while (spinner.spin()) {
      if (const std::optional<queue_status> done = attempt()) return *done;
      if (spinner.time_to_look()) {
        if (const auto over = give_up()) return *over;
        if (policy == waiting::spin && is_hopeless(queue)) break;
      }
    }
  }
  const std::stop_callback hurry{rules.stop, [&queue, &word] { queue.wake(word); }};
  for (;;) {
    // acq_rel with who wakes; the fence orders it before the attempt below as well
    word.exchange(a_thread, std::memory_order_acq_rel);
    if (!queue.fences) static_cast<void>(parking::heavy_fence(queue.scope));
    std::optional<queue_status> done = attempt();
    if (!done) done = give_up();
    // what was sent before the end comes first, be it by the progress thread: the ring tells when that was all
    if (!done && is_hopeless(queue)) done = attempt();
    if (done) {
      word.store(nobody, std::memory_order_relaxed);
      return *done;
    }
    parks.add();
    const bool unheard = queue.hears_kernels();
    const auto until = std::min(deadline, clock::now() + (unheard ? std::chrono::microseconds{100} : belt));
    belt = std::min(belt * 2, longest);
    parking::park(word, a_thread, until, queue.scope);
  }
}

/// Messages that are there for a reader whose writer lives elsewhere: a walk over their stamps. The ring's own fields
/// are read as they are: statistics of this side are asked for by the thread that receives, or at rest.
std::uint64_t arrived(const weft_ring& ring) noexcept {
  weft_ring look = ring;
  std::uint64_t count = 0;
  for (; count < ring.capacity && peek_message(look) != nullptr; ++count) pass_message(look);
  return count;
}

/// True when threads may not use this end now.
bool is_lent(const queue_state& queue, const queue_end& end) noexcept { return end.lent || queue.options.for_kernels; }

queue_status refuse_lent(queue_state& queue) noexcept {
  queue.note(
      queue.options.for_kernels
          ? queue_error(errc::unsupported,
                        "this queue is for kernels (queue_options::for_kernels): lend the end to one (kernel_end)",
                        error_scope::call)
          : queue_error(errc::not_ready, "this end of the queue is lent to a kernel: end the loan first",
                        error_scope::call));
  return queue_status::failed;
}

}  // namespace

queue_status put_one(queue_state& queue, queue_lane& l, const void* message) noexcept {
  if (l.sender.closed) return queue_status::closed;
  if (queue.is_over()) return queue.ending();
  if (is_lent(queue, l.sender)) return refuse_lent(queue);
  // a spilling sender shares its ring with the progress thread, so that positions mean nothing to it
  const bool spills = queue.options.when_full == backpressure::spill;
  const std::uint64_t position = spills ? 0 : l.sender.ring.position;
  const bool sampled = !spills && is_sampled(queue, position);
  const auto started = sampled ? clock::now() : clock::time_point{};
  if (sampled) {
    sample_board::entry& entry = sample_of(queue, l, position);
    entry.sent_ns.store(started.time_since_epoch().count(), std::memory_order_relaxed);
    entry.position.store(position + 1, std::memory_order_release);  // pairs with the receiver's acquire
  }
  const queue_status status = spills ? put_or_spill(queue, l, message) : put_ring(queue, l, message);
  if (sampled && status == queue_status::ok) queue.send_call.add(clock::now() - started);
  if (status == queue_status::full && queue.options.when_full == backpressure::drop_newest) {
    l.dropped.add();
    return queue_status::ok;
  }
  return status;
}

queue_status get_one(queue_state& queue, void* message) noexcept {
  if (queue.receiver_closed.load(std::memory_order_relaxed)) return queue_status::closed;
  if (queue.is_over()) return queue.ending();
  if (queue.holds) {
    std::memcpy(message, queue.held.data(), queue.size);
    queue.holds = false;
    return queue_status::ok;
  }
  const std::size_t count = queue.lanes.size();
  std::size_t closed = 0;
  for (std::size_t tried = 0; tried < count; ++tried) {
    const std::size_t at = queue.next_lane;
    queue.next_lane = at + 1 == count ? 0 : at + 1;
    queue_lane& l = *queue.lanes[at];
    if (is_lent(queue, l.receiver)) return refuse_lent(queue);
    const queue_status status = take_checked(queue, l, message);
    if (status == queue_status::closed) {
      ++closed;
    } else if (status != queue_status::empty) {
      return status;
    }
  }
  return closed == count ? end_of_lanes(queue) : queue_status::empty;
}

void count_send(queue_lane& l, queue_status outcome) noexcept {
  if (outcome == queue_status::ok) return;
  l.failed_sends.add();
  if (outcome == queue_status::timed_out) l.timeouts.add();
  if (outcome == queue_status::cancelled) l.cancellations.add();
}

void count_receive(queue_state& queue, queue_status outcome) noexcept {
  if (outcome == queue_status::timed_out) queue.receive_timeouts.add();
  if (outcome == queue_status::cancelled) queue.receive_cancellations.add();
}

namespace {

/// As much of a batch as there is room for, where nothing but room is to be asked for. Together, and the other end is
/// told once: message by message a queue between nodes would send each in a packet of its own.
std::size_t put_some(queue_state& queue, queue_end& end, const std::byte* messages, std::size_t count) noexcept {
  weft_ring& ring = end.ring;
  std::size_t sent = 0;
  if (end.is_plain()) {
    int why = WEFT_RING_OK;
    const auto size = static_cast<std::uint32_t>(queue.size);
    sent = ring.stride == 0 ? weft_ring_put_lines(&ring, messages, count, size, ring.per_line, &why)
                            : weft_ring_put_slots(&ring, messages, count, size, ring.stride, &why);
  } else if (queue.shape.pieces != 0 && !end.closed && !queue.is_over() && !is_lent(queue, end)) {
    while (sent < count && weft_ring_space(&ring) == WEFT_RING_OK)
      weft_ring_put_pieces(&ring, messages + queue.size * sent++);
  }
  if (sent != 0) look_for_sleepers(queue, end);
  return sent;
}

/// As put_some. With several producers the lanes take turns, a message each.
std::size_t take_some(queue_state& queue, std::byte* messages, std::size_t count) noexcept {
  queue_end& end = queue.lanes.front()->receiver;
  if (queue.lanes.size() != 1 || queue.holds || queue.receiver_closed.load(std::memory_order_relaxed)) return 0;
  weft_ring& ring = end.ring;
  const std::uint64_t credit = ring.credit_seen;
  std::size_t got = 0;
  if (end.is_plain()) {
    const auto size = static_cast<std::uint32_t>(queue.size);
    got = ring.stride == 0 ? weft_ring_get_lines(&ring, messages, count, size, ring.per_line)
                           : weft_ring_get_slots(&ring, messages, count, size, ring.stride);
  } else if (queue.shape.pieces != 0 && !queue.is_over() && !is_lent(queue, end)) {
    while (got < count && weft_ring_get_pieces(&ring, messages + queue.size * got) != 0) ++got;
  }
  if (ring.credit_seen != credit) look_for_sleepers(queue, end);
  return got;
}

/// Whether a message does not lie in the ring as its user knows it, or is looked at as it is taken out.
bool copies_front(const queue_state& queue) noexcept {
  return queue.options.validate || queue.overwrites || queue.options.sample_every != 0 || queue.shape.pieces != 0 ||
         queue.fences;
}

}  // namespace

queue_status send_slowly(queue_state& queue, queue_end& end, const void* message, const wait_rules& rules) noexcept {
  queue_lane& l = lane_of(queue, end);
  queue_status status = put_one(queue, l, message);
  const backpressure policy = queue.options.when_full;
  if (status == queue_status::full && rules.may_wait &&
      (policy == backpressure::block || policy == backpressure::spill)) {
    status = wait_on(queue, *l.sender_waits, rules, l.parks, [&]() -> std::optional<queue_status> {
      const queue_status now = put_one(queue, l, message);
      return now == queue_status::full ? std::nullopt : std::optional{now};
    });
    // this thread slept on the word that the drain of the spill would have slept on
    if (l.spill_size.load(std::memory_order_relaxed) != 0) channels_of(*queue.machine).progress().ring();
  }
  count_send(l, status);
  return status;
}

batch_result send_batch_slowly(queue_state& queue, queue_end& end, const void* messages, std::size_t count,
                               const wait_rules& rules) noexcept {
  const auto* from = static_cast<const std::byte*>(messages);
  wait_rules rest = rules;
  const auto deadline = deadline_of(queue, rules);
  for (std::size_t done = 0;; ++done) {
    done += put_some(queue, end, from + done * queue.size, count - done);
    if (done == count) break;
    if (rules.may_wait) rest.timeout = std::max(deadline - clock::now(), clock::duration{0});
    const queue_status status = send_slowly(queue, end, from + done * queue.size, rest);
    if (status != queue_status::ok) return {done == 0 ? status : queue_status::partial, done};
  }
  if (!end.is_plain()) end.count_batch();
  return {queue_status::ok, count};
}

queue_status receive_slowly(queue_state& queue, void* message, const wait_rules& rules) noexcept {
  queue_status status = get_one(queue, message);
  if (status == queue_status::empty && rules.may_wait) {
    status = wait_on(queue, *queue.receiver_waits, rules, queue.receiver_parks, [&]() -> std::optional<queue_status> {
      const queue_status now = get_one(queue, message);
      return now == queue_status::empty ? std::nullopt : std::optional{now};
    });
    count_receive(queue, status);
  }
  return status;
}

batch_result receive_batch_slowly(queue_state& queue, void* messages, std::size_t count, std::size_t at_least,
                                  const wait_rules& rules) noexcept {
  auto* to = static_cast<std::byte*>(messages);
  wait_rules rest = rules;
  const auto deadline = deadline_of(queue, rules);
  batch_result got;
  for (;;) {
    got.count += take_some(queue, to + got.count * queue.size, count - got.count);
    if (got.count == count) break;
    const bool enough = got.count >= at_least;
    rest.may_wait = rules.may_wait && !enough;
    if (rest.may_wait) rest.timeout = std::max(deadline - clock::now(), clock::duration{0});
    const queue_status status = receive_slowly(queue, to + got.count * queue.size, rest);
    if (status == queue_status::ok) {
      ++got.count;
      continue;
    }
    // a message that is damaged is told once, and now; so is the end, if nothing else is to be told
    const bool is_end = got.count == 0 && status != queue_status::empty;
    if (!enough || is_end || status == queue_status::failed) got.status = status;
    break;
  }
  if (got.count != 0) {
    queue.received_batches.add();
    if (got.status != queue_status::ok) got.status = queue_status::partial;
  }
  return got;
}

const void* peek_slowly(queue_state& queue, queue_status& why) noexcept {
  why = queue_status::closed;
  if (queue.receiver_closed.load(std::memory_order_relaxed)) return nullptr;
  if (queue.is_over()) {
    why = queue.ending();
    return nullptr;
  }
  why = queue_status::ok;
  if (queue.holds) return queue.held.data();
  if (copies_front(queue)) {
    why = get_one(queue, queue.held.data());
    queue.holds = why == queue_status::ok;
    return queue.holds ? queue.held.data() : nullptr;
  }
  // where it lies: the lane whose turn it is, and that has something
  const std::size_t count = queue.lanes.size();
  std::size_t closed = 0;
  for (std::size_t tried = 0; tried < count; ++tried) {
    const std::size_t at = (queue.next_lane + tried) % count;
    queue_lane& l = *queue.lanes[at];
    weft_ring& ring = l.receiver.ring;
    if (is_lent(queue, l.receiver)) {
      why = refuse_lent(queue);
      return nullptr;
    }
    int came_to = WEFT_RING_OK;
    const void* found = peek_message(ring);
    if (found == nullptr) {
      const bool torn = (ring.stride == 0 ? weft_ring_is_torn_packed(&ring, ring.per_line)
                                          : weft_ring_is_torn_slot(&ring, ring.stride)) != 0;
      came_to = torn ? WEFT_RING_CORRUPT : weft_ring_nothing(&ring);
      // what came between the two looks
      if (came_to == WEFT_RING_STOPPED) found = peek_message(ring);
    }
    if (found != nullptr) {
      queue.peeked_lane = queue.next_lane = at;  // what is received next is what was seen
      return found;
    }
    why = got_as(queue, l, came_to);
    if (why == queue_status::closed) {
      ++closed;
    } else if (why != queue_status::empty) {
      return nullptr;
    }
  }
  why = closed == count ? end_of_lanes(queue) : queue_status::empty;
  return nullptr;
}

void pop_slowly(queue_state& queue) noexcept {
  if (queue.holds) {
    queue.holds = false;
    return;
  }
  if (copies_front(queue)) return;
  queue_lane& l = *queue.lanes[queue.peeked_lane];
  if (is_lent(queue, l.receiver)) {
    static_cast<void>(refuse_lent(queue));
    return;
  }
  weft_ring& ring = l.receiver.ring;
  if (ring.stride == 0) {
    weft_ring_pop_packed(&ring, ring.per_line);
  } else {
    weft_ring_pop_slot(&ring);
  }
  queue.next_lane = (queue.peeked_lane + 1) % queue.lanes.size();
  if (ring.credit_seen == ring.position) look_for_sleepers(queue, l.receiver);
}

void wake_other(queue_state& queue, queue_end& end) noexcept { queue.wake(*end.other_waits); }

queue_status why_not_plain(queue_state& queue, const queue_end& end) noexcept {
  if (end.closed) return queue_status::closed;
  if (queue.is_over()) return queue.ending();
  if (is_lent(queue, end)) return refuse_lent(queue);
  queue.note(queue_error(errc::unsupported,
                         "no places can be reserved in a queue with checksums, overwriting, spill, samples or flagged "
                         "packets, nor on a Linux without membarrier: send the message instead (send, try_send)",
                         error_scope::call));
  return queue_status::failed;
}

queue_status no_space(queue_state& queue, queue_end& end, int why) noexcept { return sent_as(queue, end, why); }

std::size_t clear(queue_state& queue) noexcept {
  if (queue.receiver_closed.load(std::memory_order_relaxed)) return 0;
  std::size_t dropped = 0, spilled = 0;
  if (queue.holds) {
    queue.holds = false;
    ++dropped;
  }
  const auto deadline = clock::now() + std::chrono::seconds{10};
  for (const auto& each : queue.lanes) {
    queue_lane& l = *each;
    if (queue.options.when_full == backpressure::spill) {
      const std::lock_guard lock{l.spill_mutex};
      const std::size_t waited = l.spill.size();
      l.spill_cleared.fetch_add(waited, std::memory_order_relaxed);
      spilled += waited;
      l.spill.clear();
      l.spill_size.store(0, std::memory_order_relaxed);
      // the drain was to tell the end after the last of them, and has nothing to drain any more
      if (waited != 0 && l.sender_closed.load(std::memory_order_acquire)) {
        weft_ring_close_writer(&l.sender.ring);
        queue.wake(*l.sender.other_waits);
      }
    }
    // Within a process everything sent by now; what a forwarder still carries arrives without our doing. Across
    // processes the sender's count is its own, and what has arrived is dropped.
    const std::uint64_t lost_before = l.lost;
    const std::uint64_t first = l.receiver.ring.position;
    // Nor does a thread know how far a kernel is that sends.
    const bool is_counted = queue.side == queue_side::both && !queue.hears_kernels() && !queue.options.for_kernels;
    const std::uint64_t until =
        is_counted ? WEFT_RING_LOAD_64(&l.sender.ring.position) : first + l.receiver.ring.capacity;
    while (l.receiver.ring.position + WEFT_RING_LOAD_64(&l.forward_lost) < until && !is_lent(queue, l.receiver)) {
      const queue_status status = take(queue, l, queue.receiving.data());
      if (status == queue_status::ok) continue;
      if (status != queue_status::empty || !is_counted || clock::now() > deadline) break;
      std::this_thread::yield();
    }
    dropped += l.receiver.ring.position - first - (l.lost - lost_before);
  }
  queue.cleared.add(dropped);
  return dropped + spilled;
}

std::uint64_t unread(const queue_state& queue, const queue_lane& l) noexcept {
  if (queue.side == queue_side::sending) {
    const weft_ring& ring = l.sender.ring;
    const std::uint64_t sent = WEFT_RING_LOAD_64(&ring.position);
    const std::uint64_t read =
        WEFT_RING_LOAD_64(reinterpret_cast<const std::uint64_t*>(ring.credit)) & ~WEFT_RING_CLOSED_BIT;
    return sent - std::min(read, sent);
  }
  if (queue.side == queue_side::receiving) return arrived(l.receiver.ring);
  const std::uint64_t read = WEFT_RING_LOAD_64(&l.receiver.ring.position) + WEFT_RING_LOAD_64(&l.forward_lost);
  const std::uint64_t sent = WEFT_RING_LOAD_64(&l.sender.ring.position) + l.spill_size.load(std::memory_order_relaxed);
  return sent > read ? sent - read : 0;
}

std::size_t size_of(const queue_state& queue) noexcept {
  const auto ahead = [&](std::uint64_t writer, std::uint64_t reader) {
    return std::min<std::uint64_t>(writer > reader ? writer - reader : 0, queue.shape.capacity);
  };
  std::uint64_t sum = queue.holds ? 1 : 0;
  for (const auto& l : queue.lanes) {
    if (!queue.overwrites) {
      sum += unread(queue, *l);
    } else if (l->forwarding.empty()) {
      // what was overwritten is there until the receiver finds out, but never more than can be there
      sum += ahead(unread(queue, *l), 0);
    } else {
      // two rings; the second does not number what the forwarder lost. What runs behind is read before what it follows.
      const std::uint64_t received = WEFT_RING_LOAD_64(&l->receiver.ring.position);
      const std::uint64_t lost = WEFT_RING_LOAD_64(&l->forward_lost);
      const std::uint64_t forwarded = WEFT_RING_LOAD_64(&l->forward_in.ring.position);
      sum += ahead(forwarded, received + lost) + ahead(WEFT_RING_LOAD_64(&l->sender.ring.position), forwarded);
    }
  }
  return sum;
}

void close_writer(queue_lane& l) noexcept {
  if (l.with_devices) {
    l.with_devices->close_writer(l.sender.ring.position);
  } else {
    weft_ring_close_writer(&l.sender.ring);
  }
}

void close_reader(queue_lane& l) noexcept {
  if (l.with_devices) {
    l.with_devices->close_reader(l.receiver.ring.position);
  } else {
    weft_ring_close_reader(&l.receiver.ring);
  }
}

void close_sender(queue_state& queue, queue_end& end) noexcept {
  queue_lane& l = lane_of(queue, end);
  end.closed = true;
  end.plain = false;
  l.sender_closed.store(true, std::memory_order_release);
  if (queue.is_of_parent()) return;
  if (end.lent) return;  // how much was sent is known when it comes back
  if (queue.options.when_full == backpressure::spill) {
    const std::lock_guard lock{l.spill_mutex};
    // what is left goes out before the end is told: by the progress thread
    if (!l.spill.empty()) {
      channels_of(*queue.machine).progress().ring();
      return;
    }
  }
  close_writer(l);
  queue.wake(*end.other_waits);
}

void close_receiver(queue_state& queue) noexcept {
  queue.receiver_closed.store(true, std::memory_order_release);
  if (queue.is_of_parent()) return;
  for (const auto& l : queue.lanes) {
    if (l->receiver.lent) continue;
    close_reader(*l);
    queue.wake(*l->sender_waits);
  }
}

void close_if_meant(queue_state& queue, queue_end& end) noexcept {
  queue_lane& l = lane_of(queue, end);
  if (&end == &l.sender) {
    if (end.closed) close_writer(l);
  } else if (queue.receiver_closed.load(std::memory_order_acquire)) {
    close_reader(l);
  }
}

queue_statistics statistics_of(const queue_state& queue) noexcept {
  queue_statistics s;
  const bool closed = queue.receiver_closed.load(std::memory_order_acquire) || queue.is_over();
  const auto add = [&](moved& to, std::uint64_t operations, std::uint64_t messages) {
    to.operations += operations;
    to.messages += messages;
    to.bytes += messages * queue.shape.bytes;
  };
  for (const auto& each : queue.lanes) {
    const queue_lane& l = *each;
    const std::uint64_t put = WEFT_RING_LOAD_64(&l.sender.ring.position);
    const std::uint64_t taken = WEFT_RING_LOAD_64(&l.receiver.ring.position);
    const std::uint64_t lost = WEFT_RING_LOAD_64(&l.lost) + WEFT_RING_LOAD_64(&l.forward_lost);
    s.sent += put + l.spill_size.load(std::memory_order_relaxed) + l.spill_cleared.load(std::memory_order_relaxed);
    s.received += taken - WEFT_RING_LOAD_64(&l.lost);
    s.lost += lost;
    s.sent_batches += WEFT_RING_LOAD_64(&l.sender.batches);
    s.received_batches += WEFT_RING_LOAD_64(&l.receiver.batches);
    s.full += WEFT_RING_LOAD_64(&l.sender.ring.waits);
    s.empty += WEFT_RING_LOAD_64(&l.receiver.ring.waits);
    s.dropped += l.dropped.get();
    s.spilled += l.spilled.get();
    s.spilled_high_water += l.spilled_high_water.get();
    s.failed_sends += l.failed_sends.get();
    s.send_timeouts += l.timeouts.get();
    s.send_cancellations += l.cancellations.get();
    s.sender_parks += l.parks.get();
    if (queue.facts.mode == transfer_mode::direct) {
      add(s.direct, put, put);
    } else if (queue.lies_in_host_memory) {
      add(s.staged, put, put);
    } else {
      // the forwarder counts after it has published: what has been received was forwarded, whatever it says
      const std::uint64_t forwarded = std::max(taken, std::uint64_t{WEFT_RING_LOAD_64(&l.forward_out.ring.position)});
      add(s.staged, l.forwards.get(), forwarded);
    }
    add(s.fed_by_stores, l.fed_by_stores.operations.get(), l.fed_by_stores.messages.get());
    add(s.fed_by_copies, l.fed_by_copies.operations.get(), l.fed_by_copies.messages.get());
    (closed ? s.discarded : s.in_flight) += unread(queue, l);
  }
  // what a peek took out of its ring is not received yet
  const std::uint64_t held = queue.holds ? 1 : 0;
  s.received -= std::min(s.received, queue.cleared.get() + held);
  (closed ? s.discarded : s.in_flight) += held;
  s.cleared = queue.cleared.get();
  for (const auto& l : queue.lanes) s.cleared += l->spill_cleared.load(std::memory_order_relaxed);
  s.corrupted = queue.corrupted.get();
  s.received_batches += queue.received_batches.get();
  s.receive_timeouts = queue.receive_timeouts.get();
  s.receive_cancellations = queue.receive_cancellations.get();
  s.receiver_parks = queue.receiver_parks.get();
  s.bytes = s.received * queue.size;
  s.at = clock::now().time_since_epoch();
  s.send_call = queue.send_call.read();
  s.queueing = queue.queueing.read();
  s.receive_call = queue.receive_call.read();
  s.peak_messages_per_second = queue.peak.load(std::memory_order_relaxed);
  return s;
}

}  // namespace weft::detail
