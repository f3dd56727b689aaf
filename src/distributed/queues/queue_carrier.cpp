// SPDX-License-Identifier: Apache-2.0
#include "distributed/queues/queue_carrier.hpp"

#include "core/errors/make_error.hpp"
#include "processes/packet.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <pthread.h>
#include <system_error>

namespace weft::detail {
namespace {

using namespace std::chrono_literals;

// communicators have the tags below
constexpr message_tag tag{message_tag::most_own, true};
constexpr std::size_t frames_ahead = 2;  // to receive into, for each peer
constexpr std::size_t most_leaving = 8;
constexpr std::size_t most_offers = 1024;
constexpr std::size_t longest_header = 1024;  // bytes
constexpr auto owed_for = 50us;               // credit that no message takes along, where the sender has plenty
constexpr auto longest_rest = 20ms;

enum class kind : std::uint32_t { offer = 1, answer, messages, credit, fin, broken, withdrawal };

bool is_closed(const far_end& end) noexcept {
  return (WEFT_RING_LOAD_64(&end.words->credit) & WEFT_RING_CLOSED_BIT) != 0;
}

/// By its user, of an end that receives.
void close_receiving(far_end& end) noexcept {
  WEFT_RING_STORE_64(&end.words->credit, WEFT_RING_LOAD_64(&end.words->credit) | WEFT_RING_CLOSED_BIT);
}

void wake(std::atomic<std::uint32_t>& word) noexcept {
  if (word.exchange(nobody, std::memory_order_acq_rel) != nobody) parking::wake_all(word);
}

}  // namespace

/// Fixed width, fixed order; its bytes follow.
struct queue_carrier::record {
  kind what{};
  std::uint32_t queue = 0;  // number of the end that it is for; of the one that offers
  std::uint64_t value = 0;  // channel, first message, credit, messages until the end, a ring_end_state
  std::uint32_t count = 0;  // messages; in an answer the sender's number, 0 where it refuses
  std::uint32_t size = 0;   // bytes that follow
};

// ---- frames ---------------------------------------------------------------------------------------------------------

queue_carrier::line& queue_carrier::line_to(int peer) {
  if (const auto found = lines_.find(peer); found != lines_.end()) return *found->second;
  // first, because it is what takes receives back at the end
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread{[this] {
        pthread_setname_np(pthread_self(), "weft-far-queues");
        run();
      }};
    } catch (const std::system_error&) {
      raise(errc::resource_exhausted,
            "no thread could be started for queues between nodes; raise the limit of threads (ulimit -u)");
    }
  }
  line& made = *lines_.emplace(peer, std::make_unique<line>()).first->second;
  made.peer = peer;
  for (std::size_t n = 0; n < frames_ahead; ++n) receive_next(made, std::make_unique<frame>());
  return made;
}

/// Whether the frame that is being filled takes so many bytes more; false where too much is on its way.
bool queue_carrier::has_room(line& l, std::size_t size, bool always) {
  if (l.open && l.open->size + size <= frame::room) return true;
  flush(l);
  take_back(l);
  if (l.leaving.size() >= most_leaving && !always) {
    l.was_full = true;
    return false;
  }
  if (l.spare.empty()) {
    l.open = std::make_unique<frame>();
  } else {
    l.open = std::move(l.spare.back());
    l.spare.pop_back();
  }
  l.open->size = 0;
  return true;
}

/// The memory of messages that have left.
void queue_carrier::take_back(line& l) {
  const auto has_left = [&](const transfer& t) {
    if (t.at == transfer::stage::failed) lose_line(l, t.why);
    return !t.is_under_way();
  };
  for (; !l.leaving.empty() && has_left(l.leaving.front()->on_its_way); l.leaving.pop_front())
    l.spare.push_back(std::move(l.leaving.front()));
}

/// Into the frame that is being filled, which has room.
void queue_carrier::append(line& l, const record& r, std::span<const std::byte> bytes) {
  std::memcpy(l.open->bytes.get() + l.open->size, &r, sizeof r);
  if (!bytes.empty()) std::memcpy(l.open->bytes.get() + l.open->size + sizeof r, bytes.data(), bytes.size());
  l.open->size += sizeof r + bytes.size();
}

/// For users who connect: at once, and whatever is on its way.
void queue_carrier::say(line& l, record r, std::span<const std::byte> bytes) {
  r.size = static_cast<std::uint32_t>(bytes.size());
  static_cast<void>(has_room(l, sizeof r + bytes.size(), true));
  append(l, r, bytes);
  flush(l);
}

/// To another rank, with the next frame. False where it asks more than it takes answers.
bool queue_carrier::reply(line& l, record r, std::span<const std::byte> bytes) {
  r.size = static_cast<std::uint32_t>(bytes.size());
  if (!has_room(l, sizeof r + bytes.size())) return false;
  append(l, r, bytes);
  return true;
}

void queue_carrier::flush(line& l) {
  if (!l.open || l.open->size == 0) return;
  tell_owed(l);
  frame& leaving = *l.leaving.emplace_back(std::move(l.open));
  leaving.on_its_way.at = transfer::stage::under_way;
  leaving.on_its_way.news = &news_;
  by_->start_send(leaving.on_its_way, l.peer, tag, {leaving.bytes.get(), leaving.size});
}

void queue_carrier::receive_next(line& l, std::unique_ptr<frame> room) {
  frame& next = *l.arriving.emplace_back(std::move(room));
  next.on_its_way.at = transfer::stage::under_way;
  next.on_its_way.news = &news_;
  by_->start_receive(next.on_its_way, l.peer, tag, {next.bytes.get(), frame::room});
}

// ---- from this process ----------------------------------------------------------------------------------------------

bool queue_carrier::send_messages(line& l, far_end& end) {
  weft_ring& ring = end.ring.ring;
  bool moved = false;
  for (;;) {
    if (end.overwrites) {
      if (!has_room(l, sizeof(record) + ring.bytes)) return moved;
      std::uint64_t lost = 0;
      auto* const words = reinterpret_cast<std::uint32_t*>(end.message.data());
      if (weft_ring_get_over(&ring, words, &lost) != WEFT_RING_OK) return moved;
      append(l, {kind::messages, end.their, ring.position - 1, 1, ring.bytes}, {end.message.data(), ring.bytes});
    } else {
      // looked at first, so that a ring with nothing in it opens no frame
      const bool is_there = ring.stride == 0 ? weft_ring_peek_packed(&ring, ring.bytes) != nullptr
                                             : weft_ring_peek_slot(&ring, ring.stride) != nullptr;
      if (!is_there || !has_room(l, sizeof(record) + ring.bytes)) return moved;
      frame& into = *l.open;
      const std::size_t most = (frame::room - into.size - sizeof(record)) / ring.bytes;
      record r{kind::messages, end.their, ring.position, 0, 0};
      std::byte* const to = into.bytes.get() + into.size + sizeof r;
      r.count =
          static_cast<std::uint32_t>(ring.stride == 0 ? weft_ring_get_lines(&ring, to, most, ring.bytes, ring.per_line)
                                                      : weft_ring_get_slots(&ring, to, most, ring.bytes, ring.stride));
      r.size = r.count * ring.bytes;
      std::memcpy(to - sizeof r, &r, sizeof r);
      into.size += sizeof r + r.size;
    }
    moved = true;
  }
}

bool queue_carrier::tell_credit(line& l, const std::shared_ptr<far_end>& end) {
  const std::uint64_t credit = WEFT_RING_LOAD_64(&end->words->credit);
  if (credit == end->told) return false;
  const bool ends = (credit & WEFT_RING_CLOSED_BIT) != 0;
  if (!ends && credit - end->told < end->ring.ring.capacity / 4) {
    if (!end->is_owed) {
      end->is_owed = true;
      if (l.owed.empty()) l.owed_since = steady_now();
      l.owed.push_back(end);
    }
    return false;
  }
  if (!has_room(l, sizeof(record))) return false;
  append(l, {kind::credit, end->their, credit, 0, 0});
  end->told = credit;
  end->has_ended = ends;
  return true;
}

/// With a frame that goes anyway, or by itself where the time has come.
void queue_carrier::tell_owed(line& l) {
  while (!l.owed.empty() && l.open && l.open->size + sizeof(record) <= frame::room) {
    far_end& end = *l.owed.back();
    end.is_owed = false;
    const std::uint64_t credit = WEFT_RING_LOAD_64(&end.words->credit);
    if (credit != end.told && !end.has_ended && (credit & WEFT_RING_CLOSED_BIT) == 0) {
      append(l, {kind::credit, end.their, credit, 0, 0});
      end.told = credit;
    }
    l.owed.pop_back();
  }
}

bool queue_carrier::tell_end(line& l, far_end& end) {
  record r{kind::broken, end.their, 0, 0, 0};
  r.value = WEFT_RING_LOAD_32(end.sends ? &end.words->sender_broken : &end.words->receiver_broken);
  if (r.value == end_in_use) {
    const std::uint64_t fin = WEFT_RING_LOAD_64(&end.words->fin);
    if (!end.sends || fin == WEFT_RING_OPEN || end.ring.ring.position != fin) return false;
    r.what = kind::fin;
    r.value = fin;
  }
  if (!has_room(l, sizeof r)) return false;
  append(l, r);
  end.has_ended = true;
  return true;
}

/// Moves on what one end has moved. True when that was anything.
bool queue_carrier::move(const std::shared_ptr<far_end>& end) {
  if (end->their == 0 || end->has_ended || end->cause) return false;
  line& l = *lines_.at(end->peer);
  l.was_full = false;
  bool moved = end->sends ? send_messages(l, *end) : tell_credit(l, end);
  moved = (!end->has_ended && tell_end(l, *end)) || moved;
  if (l.was_full && !end->is_stuck) {  // it may have room again: what was left here is to be moved all the same
    end->is_stuck = true;
    l.stuck.push_back(end);
  }
  const auto* const lent = end->sends ? &end->words->sender_lent : &end->words->receiver_lent;
  if (WEFT_RING_LOAD_32(lent) != 0) {
    if (!end->is_lent) lent_.insert(end);
    end->is_lent = true;
  } else if (end->is_lent) {
    lent_.erase(end);
    end->is_lent = false;
  }
  return moved;
}

// ---- from other nodes -----------------------------------------------------------------------------------------------

bool queue_carrier::end_line(line& l, errc code, std::string why) {
  if (l.cause) return false;
  l.cause = queue_error(code, std::move(why), error_scope::process);
  for (const auto& [number, end] : ends_) {
    if (end->peer != l.peer || end->cause) continue;
    end->cause = l.cause;
    if (auto queue = end->queue.lock()) to_end_.emplace_back(std::move(queue), l.cause);
  }
  // nobody will ask for what their users have left
  std::erase_if(ends_, [](const auto& known) { return known.second->is_left && known.second->cause; });
  changed_.notify_all();
  return false;
}

bool queue_carrier::lose_line(line& l, const std::string& why) {
  return end_line(l, errc::peer_dead,
                  by_->name_of(l.peer) + ", the other end of the queue, died or left (" + why + ")");
}

bool queue_carrier::put(far_end& end, const record& r, std::span<const std::byte> bytes) {
  weft_ring& ring = end.ring.ring;
  const std::byte* from = bytes.data();
  if (end.sends || bytes.size() != std::uint64_t{r.count} * ring.bytes) return false;
  if (end.overwrites) {
    if (r.value < end.passed || r.count != 1) return false;
    const std::uint64_t lost = r.value - end.passed;
    end.passed = r.value + 1;
    if (auto queue = lost != 0 ? end.queue.lock() : nullptr) {
      std::uint64_t& count = queue->lanes.front()->forward_lost;
      WEFT_RING_KEEP_64(&count, count + lost);
      to_end_.emplace_back(std::move(queue), nullptr);
    }
    std::memcpy(end.message.data(), from, ring.bytes);
    static_cast<void>(weft_ring_put_over(&ring, reinterpret_cast<const std::uint32_t*>(end.message.data())));
  } else {
    if (r.value != ring.position) return is_closed(end);
    int why = WEFT_RING_OK;
    const std::uint64_t came = ring.stride == 0
                                   ? weft_ring_put_lines(&ring, from, r.count, ring.bytes, ring.per_line, &why)
                                   : weft_ring_put_slots(&ring, from, r.count, ring.bytes, ring.stride, &why);
    // what comes behind the close of the receiver, or its end, is nobody's
    if (came != r.count && why != WEFT_RING_CLOSED && why != WEFT_RING_STOPPED) return false;
  }
  wake(end.words->receiver_waits);
  return true;
}

/// False where it cannot be.
bool queue_carrier::handle_record(line& l, const record& r, std::span<const std::byte> bytes) {
  if (r.queue == 0) return false;
  if (r.what == kind::offer) {
    if (bytes.size() > longest_header) return false;
    if (l.offers_here >= most_offers) {
      const std::string why = "more than " + std::to_string(most_offers) + " offered queues wait for a sender";
      return reply(l, {kind::answer, r.queue, 0, 0, 0}, std::as_bytes(std::span{why}));
    }
    ++l.offers_here;
    l.offers[r.value].push_back({r.queue, {bytes.begin(), bytes.end()}});
    changed_.notify_all();
    return true;
  }
  if (r.what == kind::withdrawal) {
    const auto here = l.offers.find(r.value);
    if (here == l.offers.end()) return true;  // taken: the answer finds nobody
    l.offers_here -= std::erase_if(here->second, [&](const far_offer& one) { return one.number == r.queue; });
    if (here->second.empty()) l.offers.erase(here);
    return true;
  }
  const auto found = ends_.find(r.queue);
  if (found == ends_.end() || found->second->peer != l.peer) {
    // an end that has gone; a sender that has found one is told
    if (r.what == kind::answer && r.count != 0 && !reply(l, {kind::credit, r.count, WEFT_RING_CLOSED_BIT, 0, 0}, {}))
      return false;
    return r.queue <= last_number_ && found == ends_.end();
  }
  far_end& end = *found->second;
  switch (r.what) {
    case kind::answer:
      if (end.sends || end.is_answered) return false;
      end.is_answered = true;
      end.their = r.count;
      if (r.count == 0) end.refusal.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      if (r.count != 0) {
        end.told = WEFT_RING_LOAD_64(&end.words->credit);
        end.has_ended = is_closed(end);
        say(l, {kind::credit, r.count, end.told, 0, 0}, {});
      }
      changed_.notify_all();
      return true;
    case kind::messages:
      return put(end, r, bytes);
    case kind::credit:
      if (!end.sends) return false;
      if (!std::exchange(end.is_answered, true)) {
        if ((r.value & WEFT_RING_CLOSED_BIT) != 0) end.their = 0;  // closed before it heard of this sender
        changed_.notify_all();
      }
      WEFT_RING_STORE_64(&end.words->credit, r.value);  // the sender looks whether it can be
      wake(end.words->sender_waits);
      return true;
    case kind::fin:
      if (end.sends || (r.value != (end.overwrites ? end.passed : end.ring.ring.position) && !is_closed(end)))
        return false;
      WEFT_RING_STORE_64(&end.words->fin, end.ring.ring.position);
      wake(end.words->receiver_waits);
      return true;
    case kind::broken: {
      const bool is_damaged = r.value == end_found_damage;
      WEFT_RING_STORE_32(end.sends ? &end.words->receiver_broken : &end.words->sender_broken,
                         static_cast<std::uint32_t>(is_damaged ? end_found_damage : end_lost_kernels));
      wake(end.words->receiver_waits);
      wake(end.words->sender_waits);
      return true;
    }
    default:
      return false;
  }
}

bool queue_carrier::handle(line& l, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    record r;
    if (bytes.size() < sizeof r) return false;
    std::memcpy(&r, bytes.data(), sizeof r);
    bytes = bytes.subspan(sizeof r);
    if (r.size > bytes.size() || !handle_record(l, r, bytes.first(r.size))) return false;
    bytes = bytes.subspan(r.size);
  }
  return true;
}

bool queue_carrier::handle_arrivals(line& l) {
  bool moved = false;
  while (!l.cause && !l.arriving.empty() && !l.arriving.front()->on_its_way.is_under_way()) {
    std::unique_ptr<frame> came = std::move(l.arriving.front());
    l.arriving.pop_front();
    const transfer& t = came->on_its_way;
    if (t.at != transfer::stage::done) return lose_line(l, t.why);
    try {
      if (!handle(l, {came->bytes.get(), t.bytes}))
        return end_line(l, errc::corrupt, by_->name_of(l.peer) + " sent what no queue sends");
    } catch (const std::bad_alloc&) {  // the rest of the frame is lost
      return end_line(l, errc::out_of_memory, "there was no memory for what " + by_->name_of(l.peer) + " sent");
    }
    receive_next(l, std::move(came));
    moved = true;
  }
  return moved;
}

// ---- progress -------------------------------------------------------------------------------------------------------

bool queue_carrier::pump(bool is_user) {
  bool moved = by_->progress(is_user);
  for (const auto& [peer, l] : lines_) {
    moved = handle_arrivals(*l) || moved;
    take_back(*l);
    if (!l->stuck.empty() && has_room(*l, frame::room / 2)) {
      const auto stuck = std::exchange(l->stuck, {});
      for (const auto& end : stuck) {
        end->is_stuck = false;
        moved = move(end) || moved;
        forget_if_done(*end);
      }
    }
    if (!l->owed.empty() && steady_now() - l->owed_since > owed_for && has_room(*l, sizeof(record))) tell_owed(*l);
    flush(*l);
  }
  return moved;
}

bool queue_carrier::is_anything_leaving(const line& l) {
  return std::ranges::any_of(l.leaving, [](const auto& one) { return one->on_its_way.is_under_way(); });
}

bool queue_carrier::bring(far_end& end) noexcept {
  looks_.fetch_add(1, std::memory_order_relaxed);
  bool moved = false;
  try {
    std::unique_lock lock{mutex_};
    const auto found = ends_.find(end.own);
    // a copy: a line that ends lets go of ends
    if (const auto known = found != ends_.end() ? found->second : nullptr) moved = move(known);
    if (moved) flush(*lines_.at(end.peer));
    // a sender whose messages leave at once asks the network seldom: what it may get is credit
    const bool looks = !moved || !end.sends || is_anything_leaving(*lines_.at(end.peer)) || ++end.calls % 16 == 0;
    moved = (looks && pump(true)) || moved;
    tell_ended(lock);
  } catch (const std::bad_alloc&) {
    return false;  // a later look tries again
  }
  return moved;
}

void queue_carrier::tell_ended(std::unique_lock<std::mutex>& lock) noexcept {
  if (to_end_.empty()) return;
  const ended_queues ended = std::exchange(to_end_, {});
  lock.unlock();
  for (const auto& [queue, cause] : ended)
    if (cause) queue->stop(cause);
}

std::shared_ptr<const error> queue_carrier::trouble(far_end& end) noexcept {
  if (!is_handed_over_.exchange(true)) changed_.notify_all();
  const std::lock_guard lock{mutex_};
  return end.cause;
}

void queue_carrier::forget_if_done(far_end& end) {
  if (!end.is_left || (!end.has_ended && !end.cause && end.their != 0)) return;
  if (const auto found = ends_.find(end.own); found != ends_.end()) {
    lent_.erase(found->second);
    ends_.erase(found);
  }
}

void queue_carrier::leave(far_end& end) noexcept {
  if (!end.sends) close_receiving(end);  // where it was not closed
  static_cast<void>(bring(end));
  const std::lock_guard lock{mutex_};
  end.is_left = true;
  try {
    if (!end.sends && !end.is_answered && !end.cause)
      say(*lines_.at(end.peer), {kind::withdrawal, end.own, end.channel, 0, 0}, {});
  } catch (const std::bad_alloc&) {  // its sender hears that it is closed
  }
  forget_if_done(end);
}

void queue_carrier::look_for_failures() {
  for (const auto& [peer, l] : lines_) {
    if (l->cause) continue;
    if (auto why = by_->failure(peer)) {
      while (handle_arrivals(*l)) {  // what it sent before
      }
      lose_line(*l, *why);
    }
  }
}

bool queue_carrier::is_drained() const {
  for (const auto& [peer, l] : lines_) {
    if (l->cause) continue;
    if ((l->open && l->open->size != 0) || !l->stuck.empty() || is_anything_leaving(*l)) return false;
  }
  return true;
}

void queue_carrier::run() noexcept {
  std::uint64_t seen = 0;
  bool users_sleep = false;
  wait_deadline until = no_deadline;
  std::unique_lock lock{mutex_};
  for (;;) {
    if (is_over_ && until == no_deadline) until = steady_now() + 1s;
    bool moved = false;
    news_ = false;
    try {
      moved = pump(false);
      const auto lent = lent_;
      for (const auto& end : lent) moved = move(end) || moved;
      if (!moved) look_for_failures();
    } catch (const std::bad_alloc&) {  // the next look tries again
    }
    if (!to_end_.empty()) {
      tell_ended(lock);
      lock.lock();
      continue;
    }
    if (is_over_ && (is_drained() || steady_now() > until)) break;
    if (moved || is_over_) {
      lock.unlock();  // users get a turn
      std::this_thread::yield();
      lock.lock();
      continue;
    }
    const std::uint64_t looks = looks_.load(std::memory_order_relaxed);
    const bool is_in_use = std::exchange(seen, looks) != looks;
    if (is_handed_over_.exchange(false)) {
      users_sleep = true;
    } else if (is_in_use) {
      users_sleep = false;
      changed_.wait_for(lock, messenger::turn_of_users, [&] { return is_over_ || is_handed_over_; });
      continue;
    }
    const auto rest = !lent_.empty() ? std::chrono::nanoseconds{100us} : std::chrono::nanoseconds{longest_rest};
    bool owes = false;
    for (const auto& [peer, l] : lines_) owes = owes || !l->owed.empty();
    lock.unlock();
    by_->rest_in_background(steady_now() + (owes ? std::chrono::nanoseconds{owed_for} : rest), news_, users_sleep);
    lock.lock();
  }
}

void queue_carrier::end() noexcept {
  {
    const std::lock_guard lock{mutex_};
    is_over_ = true;
  }
  changed_.notify_all();
  by_->wake();
  if (!thread_.joinable()) return;
  thread_.join();
  for (const auto& [peer, l] : lines_) {
    for (const auto& one : l->arriving) by_->cancel(one->on_its_way, peer);
    for (const auto& one : l->leaving) by_->cancel(one->on_its_way, peer);
  }
}

// ---- how two ends find each other -----------------------------------------------------------------------------------

template <class Done>
result<void> queue_carrier::wait(std::unique_lock<std::mutex>& lock, line& l, const char* doing, wait_deadline until,
                                 const std::stop_token& stop, const Done& done) {
  for (;;) {
    static_cast<void>(pump(true));
    if (done()) return {};
    const std::string who = std::string{doing} + by_->name_of(l.peer) + ": ";
    if (l.cause) return make_error(l.cause->code, who + l.cause->what, error_scope::process);
    if (stop.stop_requested()) return make_error(errc::cancelled, who + "cancelled");
    if (until != no_deadline && steady_now() >= until) return make_error(errc::timed_out, who + "time is up");
    is_handed_over_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, 10ms);
  }
}

result<void> queue_carrier::offer(const std::shared_ptr<far_end>& end, std::uint64_t channel,
                                  const region_header& header) {
  const std::lock_guard lock{mutex_};
  line& l = line_to(end->peer);
  if (l.cause) return error{*l.cause};
  end->own = ++last_number_;
  end->channel = channel;
  ends_.emplace(end->own, end);
  say(l, {kind::offer, end->own, channel, 0, 0}, std::as_bytes(std::span{&header, 1}));
  return {};
}

result<void> queue_carrier::await_answer(far_end& end, wait_deadline until, const std::stop_token& stop) {
  std::unique_lock lock{mutex_};
  auto answered = wait(lock, line_to(end.peer), "a queue offered to ", until, stop, [&] { return end.is_answered; });
  if (!answered) close_receiving(end);  // for a sender that comes from now on
  if (answered && end.their == 0) {
    return make_error(errc::incompatible, by_->name_of(end.peer) + " refused the queue: " +
                                              printable(std::as_bytes(std::span{end.refusal})));
  }
  return answered;
}

result<far_offer> queue_carrier::await_offer(int peer, std::uint64_t channel, wait_deadline until,
                                             const std::stop_token& stop) {
  std::unique_lock lock{mutex_};
  line& l = line_to(peer);
  auto came = wait(lock, l, "a queue to ", until, stop, [&] { return l.offers.contains(channel); });
  if (!came) return std::move(came).error();
  const auto here = l.offers.find(channel);
  far_offer first = std::move(here->second.front());
  here->second.pop_front();
  --l.offers_here;
  if (here->second.empty()) l.offers.erase(here);
  return first;
}

void queue_carrier::take(const std::shared_ptr<far_end>& end, const far_offer& offered) {
  const std::lock_guard lock{mutex_};
  line& l = line_to(end->peer);
  end->own = ++last_number_;
  end->their = offered.number;
  end->cause = l.cause;
  ends_.emplace(end->own, end);
  say(l, {kind::answer, offered.number, 0, end->own, 0}, {});
}

result<bool> queue_carrier::await_receiver(far_end& end, wait_deadline until, const std::stop_token& stop) {
  std::unique_lock lock{mutex_};
  auto heard = wait(lock, line_to(end.peer), "a queue to ", until, stop, [&] { return end.is_answered; });
  if (!heard) return std::move(heard).error();
  return end.their != 0;
}

void queue_carrier::refuse(int peer, const far_offer& offered, const std::string& why) {
  const std::lock_guard lock{mutex_};
  const auto text = std::as_bytes(std::span{why});
  say(line_to(peer), {kind::answer, offered.number, 0, 0, 0}, text.first(std::min<std::size_t>(text.size(), 1000)));
}

std::shared_ptr<queue_carrier> queue_carrier::open(std::shared_ptr<messenger> by) {
  auto made = std::make_shared<queue_carrier>(std::move(by));
  queue_carrier* const all = made.get();
  // The last user may be the carrier's own thread, which lets go of queues that it told of their end: another one
  // waits.
  return {all, [made = std::move(made)](queue_carrier*) mutable {
            if (made->thread_.get_id() != std::this_thread::get_id()) return made->end();
            std::thread{[last = std::move(made)] { last->end(); }}.detach();
          }};
}

}  // namespace weft::detail
