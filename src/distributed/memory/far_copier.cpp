// SPDX-License-Identifier: Apache-2.0
#include "distributed/memory/far_copier.hpp"

#include "channel/rings/crc32c.hpp"
#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "processes/packet.hpp"
#include "weft/core/raise.hpp"
#include "weft/memory/copy.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <pthread.h>
#include <system_error>
#include <utility>

namespace weft::detail {
namespace {

using namespace std::chrono_literals;

constexpr message_tag of_requests{message_tag::most_own - 3, true}, of_answers{message_tag::most_own - 4, true};
constexpr message_tag of_written{message_tag::most_own - 5, true}, of_read{message_tag::most_own - 6, true};
constexpr auto longest_nap = 10ms;
constexpr auto farewell = 10s;  // for a copy that is under way when its memory is withdrawn

memory_ref part_of(const memory_ref& whole, std::uint64_t offset, std::uint64_t size) {
  memory_ref made = whole;
  made.address = static_cast<std::byte*>(whole.address) + offset;
  made.size = size;
  return made;
}

memory_ref host_memory(std::byte* at, std::uint64_t size) { return {nullptr, at, size, {}, memory_kind::pinned}; }

void carry(const memory_ref& to, const memory_ref& from) {
  copy_shape all;
  all.width = from.size;
  static_cast<void>(copy_now(to, from, all, {}, called_from::place()));
}

/// One piece on its way between the network and memory: by memory of its own where the host does not reach that.
struct piece_of {
  transfer on_its_way;
  std::unique_ptr<std::byte[]> staging;
  std::byte* at = nullptr;
  std::uint64_t offset = 0, size = 0;

  piece_of() { on_its_way.at = transfer::stage::done; }
  /// `memory` null: what nobody wants, or has.
  void place(const memory_ref* memory, std::uint64_t from, std::uint64_t whole) {
    offset = from;
    size = std::min<std::uint64_t>(whole - from, far_copier::piece);
    if (memory != nullptr && memory->state == nullptr) {
      at = static_cast<std::byte*>(memory->address) + offset;
      return;
    }
    if (!staging) staging = std::make_unique<std::byte[]>(far_copier::piece);
    at = staging.get();
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {at, size}; }
  [[nodiscard]] bool is_staged() const { return at == staging.get(); }
};

/// Of all pieces of a memory, in their order.
class checksum {
 public:
  void add(const std::byte* at, std::uint64_t size) noexcept { sum_ = sum_ * 0x100000001b3U + crc32c(at, size) + 1; }
  void add(const memory_ref& memory) {
    std::unique_ptr<std::byte[]> room;
    for (std::uint64_t at = 0; at < memory.size; at += far_copier::piece) {
      const std::uint64_t size = std::min<std::uint64_t>(memory.size - at, far_copier::piece);
      const std::byte* from = static_cast<const std::byte*>(memory.address) + at;
      if (memory.state != nullptr) {
        if (!room) room = std::make_unique<std::byte[]>(far_copier::piece);
        carry(host_memory(room.get(), size), part_of(memory, at, size));
        from = room.get();
      }
      add(from, size);
    }
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return sum_; }

 private:
  std::uint64_t sum_ = 0;
};

error error_from(const std::exception& failed) {
  const auto* known = dynamic_cast<const error_exception*>(&failed);
  return known != nullptr ? known->cause() : make_error(errc::out_of_memory, failed.what());
}

}  // namespace

/// Fixed width, fixed order.
struct far_copier::request {
  std::uint32_t is_weft = 0x4d746657;  // "WftM"
  std::int32_t from = 0;
  std::uint32_t writes = 0, verifies = 0;
  std::uint64_t memory = 0, offset = 0, size = 0;
};

struct far_copier::answer {
  std::uint64_t sum = 0;
  std::uint64_t sent = 0;    // bytes of pieces, all or none
  std::uint32_t failed = 0;  // errc + 1
  std::uint32_t letters = 0;
  std::array<char, 240> why{};
};

/// A rank whose memory this one copies to or from.
struct far_copier::host {
  bool is_taken = false;  // by a copy
  std::array<piece_of, 2> pieces;
};

/// A rank that is served.
struct far_copier::guest {
  request asked;
  memory_ref memory;  // the part that was asked for
  bool is_served = false;
  bool holds_offer = false;
  bool is_answered = false;
  std::optional<error> cause;
  std::uint64_t started = 0, done = 0;
  answer says;
  transfer answering;
  std::array<piece_of, 2> pieces;
};

far_copier::far_copier(std::shared_ptr<messenger> by, int self, int ranks)
    : by_(std::move(by)), self_(self), ranks_(ranks) {
  asking_.at = transfer::stage::cancelled;
}

// ---- who copies -----------------------------------------------------------------------------------------------------

far_copier::host& far_copier::host_of(int peer) {
  const std::lock_guard lock{hosts_mutex_};
  auto& known = hosts_[peer];
  if (!known) known = std::make_unique<host>();
  return *known;
}

result<void> far_copier::write(const far_place& to, const memory_ref& from, const far_copy_options& options) {
  return carry_out(true, to, from, options);
}

result<void> far_copier::read(const memory_ref& to, const far_place& from, const far_copy_options& options) {
  return carry_out(false, from, to, options);
}

result<void> far_copier::carry_out(bool writes, const far_place& there, const memory_ref& here,
                                   const far_copy_options& options) {
  const int peer = there.owner;
  const auto until = deadline_after(steady_now(), options.timeout);
  const auto failed = [&](errc code, const std::string& how) {
    return make_error(
        code, "copying " + to_string(bytes{here.size}) + (writes ? " to " : " from ") + by_->name_of(peer) + ": " + how,
        code == errc::peer_dead ? error_scope::process : error_scope::call);
  };
  if (here.size == 0) return {};
  host& that = host_of(peer);
  {
    std::unique_lock lock{hosts_mutex_};
    while (that.is_taken || options.stop.stop_requested()) {
      if (options.stop.stop_requested()) return failed(errc::cancelled, "cancelled");
      if (until != no_deadline && steady_now() >= until)
        return failed(errc::timed_out, "another copy to or from it takes all the time");
      freed_.wait_for(lock, longest_nap);
    }
    that.is_taken = true;
  }
  struct turn_over {
    far_copier& all;
    host& of;
    ~turn_over() {
      const std::lock_guard lock{all.hosts_mutex_};
      of.is_taken = false;
      all.freed_.notify_all();
    }
  };
  const turn_over at_the_end{*this, that};

  request asks;
  asks.from = self_;
  asks.writes = writes ? 1 : 0;
  asks.verifies = options.verify ? 1 : 0;
  asks.memory = there.memory;
  asks.offset = there.offset;
  asks.size = here.size;
  answer heard;
  transfer asking, answering;
  auto& pieces = that.pieces;
  checksum sum;
  std::optional<error> cause;  // of this side
  std::uint64_t started = 0, done = 0;
  const auto place = [&](piece_of& next) {
    next.place(cause ? nullptr : &here, started, here.size);
    if (!writes) return;
    if (next.is_staged()) carry(host_memory(next.at, next.size), part_of(here, started, next.size));
    if (options.verify) sum.add(next.at, next.size);
  };
  // Ends the connection: the other rank goes on with the request, and would send or await pieces of it.
  const auto give_up = [&](errc code, const std::string& how) {
    by_->lose(peer, "a copy was given up");
    for (transfer* one : {&asking, &answering, &pieces[0].on_its_way, &pieces[1].on_its_way})
      if (one->is_under_way()) by_->cancel(*one, peer);
    return failed(code, how);
  };
  // A transfer that could not be begun is not under way.
  const auto begin = [](transfer& t, const auto& start) {
    t.at = transfer::stage::under_way;
    try {
      start();
    } catch (...) {
      t.at = transfer::stage::cancelled;
      throw;
    }
  };
  const auto has_failed = [](const transfer& t) { return !t.is_under_way() && t.at != transfer::stage::done; };

  const messenger::user busy{*by_};
  auto spin_until = steady_now() + messenger::spinning;
  try {
    place(pieces[0]);  // where this fails, nobody has heard of it
    begin(answering,
          [&] { by_->start_receive(answering, peer, of_answers, std::as_writable_bytes(std::span{&heard, 1})); });
    begin(asking, [&] { by_->start_send(asking, peer, of_requests, std::as_bytes(std::span{&asks, 1})); });
  } catch (const std::exception& local) {
    if (answering.is_under_way()) by_->cancel(answering, peer);
    return error_from(local);
  }
  for (;;) {
    bool moved = false;
    const bool is_answered = answering.at == transfer::stage::done;
    const std::uint64_t all = !is_answered || writes || heard.failed == 0 ? here.size : heard.sent;
    if (all != 0 && all != here.size) return give_up(errc::corrupt, "it answers what is no answer");
    if (is_answered && done >= all) break;
    for (; started < all && started < done + pieces.size() * piece; moved = true) {
      piece_of& next = pieces[started / piece % pieces.size()];
      try {
        if (started != 0) place(next);
        begin(next.on_its_way, [&] {
          if (writes) {
            by_->start_send(next.on_its_way, peer, of_written, next.bytes());
          } else {
            by_->start_receive(next.on_its_way, peer, of_read, next.bytes());
          }
        });
      } catch (const std::exception& local) {
        const error why = error_from(local);
        return give_up(why.code, why.what);
      }
      started += next.size;
    }
    for (; done < started; moved = true) {
      const piece_of& next = pieces[done / piece % pieces.size()];
      if (has_failed(next.on_its_way)) {
        const auto gone = by_->failure(peer);
        return gone ? give_up(errc::peer_dead, "that rank died or left (" + *gone + ")")
                    : give_up(errc::corrupt, "it sent other pieces");
      }
      if (next.on_its_way.at != transfer::stage::done) break;
      if (!writes && next.on_its_way.bytes != next.size) return give_up(errc::corrupt, "it sent other pieces");
      if (!writes && !cause && next.is_staged()) {
        try {
          carry(part_of(here, done, next.size), host_memory(next.at, next.size));
        } catch (const std::exception& local) {
          cause = error_from(local);  // the rest is received, and nobody's
        }
      }
      done += next.size;
    }
    if (moved || by_->progress()) {
      spin_until = steady_now() + messenger::spinning;
      continue;
    }
    const auto gone = by_->failure(peer);
    if (gone || has_failed(asking) || has_failed(answering))
      return give_up(errc::peer_dead, "that rank died or left (" + gone.value_or(asking.why + answering.why) + ")");
    if (options.stop.stop_requested()) return give_up(errc::cancelled, "cancelled");
    const auto now = steady_now();
    if (until != no_deadline && now >= until) return give_up(errc::timed_out, "time is up");
    if (now >= spin_until) by_->rest(std::min<wait_deadline>(until, now + longest_nap));
  }
  for (piece_of& one : pieces)  // which do not come
    if (one.on_its_way.is_under_way()) by_->cancel(one.on_its_way, peer);
  if (cause) return std::move(*cause);
  if (heard.failed != 0) {
    const auto code = heard.failed - 1;
    const auto text = std::as_bytes(std::span{heard.why}).first(std::min<std::size_t>(heard.letters, heard.why.size()));
    return failed(code <= static_cast<std::uint32_t>(errc::device_lost) ? static_cast<errc>(code) : errc::corrupt,
                  printable(text));
  }
  if (!options.verify) return {};
  try {
    if (!writes) sum.add(here);
  } catch (const std::exception& local) {
    return error_from(local);
  }
  if (sum.value() == heard.sum) return {};
  return failed(errc::corrupt, "its memory and that of this rank have other checksums");
}

// ---- the owner ------------------------------------------------------------------------------------------------------

far_place far_copier::offer(const memory_ref& memory, bool may_write) {
  const std::lock_guard lock{mutex_};
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread{[this] {
        pthread_setname_np(pthread_self(), "weft-far-memory");
        run();
      }};
    } catch (const std::system_error&) {
      raise(errc::resource_exhausted,
            "no thread could be started for copies between ranks; raise the limit of threads (ulimit -u)");
    }
  }
  const std::uint64_t number = ++last_number_;
  offers_[number] = {memory, may_write};
  return {self_, 0, number, 0, memory.size};
}

void far_copier::withdraw(std::uint64_t memory) noexcept {
  std::unique_lock lock{mutex_};
  const auto known = offers_.find(memory);
  if (known == offers_.end()) return;
  offered& one = known->second;
  one.may_write = false;
  one.memory.address = nullptr;  // nobody else gets it
  const auto is_free = [&] { return one.guests == 0; };
  if (!changed_.wait_for(lock, farewell, is_free)) {
    one.is_cut = true;
    changed_.wait(lock, is_free);
  }
  offers_.erase(known);
}

far_copier::~far_copier() {
  {
    const std::lock_guard lock{mutex_};
    is_over_ = true;
  }
  by_->wake();
  if (thread_.joinable()) thread_.join();
}

void far_copier::await_request() {
  if (!asked_) asked_ = std::make_unique<request>();
  asking_.at = transfer::stage::under_way;
  by_->start_receive_any(asking_, of_requests, std::as_writable_bytes(std::span{asked_.get(), 1}));
}

/// False where the rank that asks has not been told yet of the end of what it asked for before.
bool far_copier::take_request() {
  const request asks = *asked_;
  const bool is_one = asking_.bytes == sizeof asks && asks.is_weft == request{}.is_weft;
  if (!is_one || asks.from < 0 || asks.from >= ranks_ || asks.from == self_) return true;
  auto& place = guests_[asks.from];
  if (!place) {
    place = std::make_unique<guest>();
    place->pieces[0].on_its_way.news = place->pieces[1].on_its_way.news = place->answering.news = &news_;
  }
  guest& g = *place;
  if (g.is_served) return !g.is_answered;  // a rank asks for one thing at a time
  g.asked = asks;
  g.is_served = true;
  g.is_answered = false;
  g.cause.reset();
  g.started = g.done = 0;
  g.says = {};
  g.answering.at = transfer::stage::done;
  const std::lock_guard lock{mutex_};
  const auto known = offers_.find(asks.memory);
  if (known == offers_.end() || known->second.memory.address == nullptr) {
    g.cause = make_error(errc::not_found, "it does not offer that memory, or no more");
  } else if (asks.writes != 0 && !known->second.may_write) {
    g.cause = make_error(errc::unsupported, "it offers that memory for reading");
  } else if (const std::uint64_t all = known->second.memory.size; asks.offset > all || asks.size > all - asks.offset) {
    g.cause =
        make_error(errc::out_of_range, "bytes " + std::to_string(asks.offset) + " to " +
                                           std::to_string(asks.offset + asks.size) + " of " + std::to_string(all));
  } else {
    g.memory = part_of(known->second.memory, asks.offset, asks.size);
    g.holds_offer = true;
    ++known->second.guests;
  }
  return true;
}

void far_copier::let_go(guest& g) noexcept {
  if (!std::exchange(g.holds_offer, false)) return;
  const std::lock_guard lock{mutex_};
  --offers_.at(g.asked.memory).guests;
  changed_.notify_all();
}

bool far_copier::is_cut(const guest& g) {
  if (!g.holds_offer) return false;
  const std::lock_guard lock{mutex_};
  return offers_.at(g.asked.memory).is_cut;
}

/// Pieces arrive whether they can be taken or not: who sends them does not know.
bool far_copier::receive_pieces(guest& g) {
  bool moved = false;
  const memory_ref* const into = g.cause ? nullptr : &g.memory;
  for (; g.started < g.asked.size && g.started < g.done + g.pieces.size() * piece; moved = true) {
    piece_of& next = g.pieces[g.started / piece % g.pieces.size()];
    next.place(into, g.started, g.asked.size);
    next.on_its_way.at = transfer::stage::under_way;
    by_->start_receive(next.on_its_way, g.asked.from, of_written, next.bytes());
    g.started += next.size;
  }
  for (; g.done < g.started; moved = true) {
    const piece_of& next = g.pieces[g.done / piece % g.pieces.size()];
    if (next.on_its_way.at != transfer::stage::done) break;
    if (next.on_its_way.bytes != next.size && !g.cause) g.cause = make_error(errc::corrupt, "it got other pieces");
    if (!g.cause && next.is_staged()) {
      try {
        carry(part_of(g.memory, next.offset, next.size), host_memory(next.at, next.size));
      } catch (const std::exception& failed) {
        g.cause = error_from(failed);
      }
    }
    g.done += next.size;
  }
  return moved;
}

/// Once the first piece has left, all have to: the answer comes behind them.
bool far_copier::send_pieces(guest& g) {
  bool moved = false;
  for (; g.started < g.asked.size && g.started < g.done + g.pieces.size() * piece; moved = true) {
    if (g.cause && g.started == 0) {
      g.started = g.done = g.asked.size;
      return true;
    }
    piece_of& next = g.pieces[g.started / piece % g.pieces.size()];
    next.place(g.cause ? nullptr : &g.memory, g.started, g.asked.size);
    if (!g.cause && next.is_staged()) {
      try {
        carry(host_memory(next.at, next.size), part_of(g.memory, next.offset, next.size));
      } catch (const std::exception& failed) {
        g.cause = error_from(failed);
        continue;
      }
    }
    next.on_its_way.at = transfer::stage::under_way;
    by_->start_send(next.on_its_way, g.asked.from, of_read, next.bytes());
    g.started += next.size;
    g.says.sent = g.asked.size;
  }
  for (; g.done < g.started; moved = true) {
    const piece_of& next = g.pieces[g.done / piece % g.pieces.size()];
    if (next.on_its_way.at != transfer::stage::done) break;
    g.done += next.size;
  }
  return moved;
}

void far_copier::finish(guest& g) {
  if (!g.cause && g.asked.verifies != 0) {
    try {
      checksum sum;
      sum.add(g.memory);
      g.says.sum = sum.value();
    } catch (const std::exception& failed) {
      g.cause = error_from(failed);
    }
  }
  if (g.cause) {
    g.says.failed = static_cast<std::uint32_t>(g.cause->code) + 1;
    g.says.letters = static_cast<std::uint32_t>(std::min(g.cause->what.size(), g.says.why.size()));
    std::copy_n(g.cause->what.begin(), g.says.letters, g.says.why.begin());
  }
  let_go(g);
  g.is_answered = true;
  g.answering.at = transfer::stage::under_way;
  by_->start_send(g.answering, g.asked.from, of_answers, std::as_bytes(std::span{&g.says, 1}));
}

bool far_copier::serve(guest& g) {
  if (!g.is_served) return false;
  if (g.is_answered) {
    if (g.answering.is_under_way()) return false;
    g.is_served = false;
    return true;
  }
  const bool moved = g.asked.writes != 0 ? receive_pieces(g) : send_pieces(g);
  if (g.done < g.asked.size) return moved;
  finish(g);
  return true;
}

/// Forgets guests that nothing reaches any more.
bool far_copier::drop_lost() {
  bool dropped = false;
  for (auto& [rank, g] : guests_) {
    if (!g->is_served) continue;
    const transfer& next = g->pieces[g->done / piece % g->pieces.size()].on_its_way;
    if (g->done < g->started && !next.is_under_way() && next.at != transfer::stage::done)
      by_->lose(rank, "its copy sent other pieces than it said");
    if (is_cut(*g)) by_->lose(rank, "a copy did not end before its memory was withdrawn");
    if (!by_->failure(rank)) continue;
    for (transfer* one : {&g->pieces[0].on_its_way, &g->pieces[1].on_its_way, &g->answering})
      if (one->is_under_way()) by_->cancel(*one, rank);
    let_go(*g);
    g->is_served = false;
    dropped = true;
  }
  return dropped;
}

void far_copier::run() noexcept {
  asking_.news = &news_;
  auto spin_until = steady_now();
  bool is_serving = false;  // others leave the engine to this thread
  for (;;) {
    {
      const std::lock_guard lock{mutex_};
      if (is_over_) break;
    }
    news_ = false;
    bool moved = false;
    try {
      moved = by_->progress(false);
      if (!asking_.is_under_way() && (asking_.at != transfer::stage::done || take_request())) await_request();
      for (auto& [rank, g] : guests_) moved = serve(*g) || moved;
      if (!moved) moved = drop_lost();
    } catch (const std::bad_alloc&) {  // the next turn tries again
    }
    const auto now = steady_now();
    if (moved) {
      spin_until = now + messenger::spinning;
      if (!std::exchange(is_serving, true)) by_->count_user(1);
    } else if (now >= spin_until) {
      if (std::exchange(is_serving, false)) by_->count_user(-1);
      by_->rest_in_background(now + longest_nap, news_, now < spin_until + messenger::turn_of_users);
    }
  }
  if (is_serving) by_->count_user(-1);
  if (asking_.is_under_way()) by_->cancel(asking_, self_);
  for (auto& [rank, g] : guests_) {
    for (transfer* one : {&g->pieces[0].on_its_way, &g->pieces[1].on_its_way, &g->answering})
      if (one->is_under_way()) by_->cancel(*one, rank);
    let_go(*g);
  }
}

}  // namespace weft::detail
