// SPDX-License-Identifier: Apache-2.0
// One rank's part of a schedule, and messages between two ranks: bytes over wires. What a wire is made of is not known
// here.
#include "collective/ranks/rank_communicator_body.hpp"
#include "collective/ranks/survivors/rank_far_survivors.hpp"
#include "collective/schedule/rank_bit.hpp"
#include "collective/schedule/shared_moves.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>

namespace weft::detail {
namespace {

constexpr std::chrono::seconds time_to_take_back{1};
constexpr std::uint64_t header_bytes = 16;
constexpr std::uint64_t message_mark = 0x6d65'7373'6167'6500;
// Small enough that the parts of a tree or a ring overlap, large enough that their rounds do not cost.
constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;

std::uint64_t mark_of(std::uint64_t call, std::size_t round) { return call << 24 ^ (round + 1); }

}  // namespace

struct rank_communicator_body::kept_schedule {
  std::uint64_t key = 0;
  collective_schedule plan;
  std::vector<std::vector<bool>> late;    // by round and move: its source is not written by the folds of the round
  std::vector<std::vector<bool>> folded;  // and what it brings is read by the folds of the round alone
  std::vector<std::byte> scratch;
};

/// The algorithm that is asked for, or the one for the place of the ranks.
collective_algorithm rank_communicator_body::algorithm_of(const rank_call& call) const {
  const call_terms& t = call.terms;
  if (t.algorithm != collective_algorithm::automatic) return t.algorithm;
  if (!is_on_several_nodes()) return collective_algorithm::direct;
  const bool is_offered = t.what != call_terms::barrier &&
                          offers(static_cast<collective>(t.what), collective_algorithm::hierarchical).offered;
  return is_offered && !t.by_rank_order ? collective_algorithm::hierarchical : collective_algorithm::naive;
}

bool rank_communicator_body::wire_move::is_over() const {
  const bool knows = is_send || done >= header_bytes;
  return knows && done == header_bytes + (is_send ? size : said);
}

transfer& rank_communicator_body::next_transfer() {
  if (transfers_used_ == transfers_.size()) transfers_.emplace_back();
  transfer& t = transfers_[transfers_used_++];
  t.at = transfer::stage::under_way;
  return t;
}

/// A move with a rank on another node: its bytes are a message. Where sizes may differ, its header is one before it.
bool rank_communicator_body::move_far(wire_move& m) {
  using purpose = rank_carrier::purpose;
  rank_carrier& by = meeting.far()->carrier();
  const bool may_differ = m.header[0] == message_mark;
  const purpose what = may_differ ? purpose::exchange : purpose::move;
  // one that does not fit is taken off for what follows, into memory that is there: however long it is, it ends cut
  const auto is_cut = [&] {
    return !m.is_send && m.done >= header_bytes && m.said > scratch_.size() && m.said != m.size;
  };
  const auto has_ended = [&](const transfer& t) {
    const auto at = t.at.load(std::memory_order_acquire);
    if (at == transfer::stage::under_way) return false;
    if (at == transfer::stage::done || (is_cut() && !by.failure(m.other))) return true;
    if (const auto lost = by.failure(m.other))
      meeting.fail(errc::peer_dead, meeting.name_of(m.other) + " has died or left (" + *lost + ")");
    meeting.fail(errc::corrupt, "a message between " + meeting.name_of(m.other) + " and " + meeting.name_of(self()) +
                                    " was lost: " + t.why);
  };
  const auto start = [&](transfer*& which, std::byte* at, std::uint64_t size) {
    which = &next_transfer();
    if (m.is_send) {
      by.send(*which, m.other, what, {at, size});
    } else {
      by.receive(*which, m.other, what, {at, size});
    }
  };
  if (m.done < header_bytes) {
    if (!may_differ) {
      m.got = m.header;
    } else {
      if (m.header_on == nullptr)
        start(m.header_on, reinterpret_cast<std::byte*>(m.is_send ? m.header.data() : m.got.data()), header_bytes);
      if (!has_ended(*m.header_on)) return false;
      if (!m.is_send && (m.header_on->bytes != header_bytes || m.got[0] != message_mark))
        meeting.fail(errc::corrupt, meeting.name_of(m.other) + " sends what is no message of an exchange");
    }
    m.done = header_bytes;
    m.said = m.got[1];
    if (m.is_over()) return true;  // nothing follows
  }
  if (m.on == nullptr) {
    if (!m.is_send && m.said != m.size) {
      start(m.on, scratch_.data(), std::min<std::uint64_t>(m.said, scratch_.size()));
    } else {
      start(m.on, m.at, m.size);
    }
  }
  if (!has_ended(*m.on)) return false;
  const std::uint64_t expected = m.is_send ? m.size : m.said;
  if (!m.is_send && m.on->bytes != expected && !is_cut()) {
    meeting.fail(errc::corrupt, meeting.name_of(m.other) + " sends " + std::to_string(m.on->bytes) + " bytes, not " +
                                    std::to_string(expected));
  }
  m.done += expected;
  return true;
}

const std::byte* rank_communicator_body::seen_at(const schedule_move& m, const rank_call& call) {
  if (!meeting.is_near(m.from.rank) || !meeting.is_near(m.to.rank)) return nullptr;
  if (m.from.where == schedule_place::memory::scratch) return nullptr;
  const auto said = [&](int r) { return r == self() ? own_places(call) : places_of(r); };
  const place_words theirs = said(m.from.rank), mine = said(m.to.rank);
  const bool is_input = m.from.where == schedule_place::memory::input;
  const std::uint64_t number = is_input ? theirs.in_block : theirs.out_block;
  if (number == 0 || (number != mine.in_block && number != mine.out_block)) return nullptr;
  const symmetric_block* const one = is_input ? call.in.block : call.out.block;
  const symmetric_block* const other = is_input ? call.out.block : call.in.block;
  const symmetric_block& block = one != nullptr && one->number() == number ? *one : *other;
  const std::uint64_t offset =
      (is_input ? theirs.in_offset : theirs.out_offset) + static_cast<std::uint64_t>(m.from.at) * call.element();
  return checked(block, m.from.rank, offset, m.count, call);
}

/// One of this rank's moves of a round, from or to its memory at `at`.
void rank_communicator_body::add_move(const rank_call& call, std::size_t round, std::size_t index, std::byte* at) {
  const schedule_move& m = schedule_->plan.rounds[round].moves[index];
  wire_move one;
  one.is_send = m.from.rank == self();
  one.other = one.is_send ? m.to.rank : m.from.rank;
  one.at = at;
  one.size = static_cast<std::uint64_t>(m.count) * call.element();
  one.header = {mark_of(meeting.number(), round), one.size};
  one.there = seen_at(m, call);
  if (one.there != nullptr) {
    rank_wire& wire = one.is_send ? wires_of(one.other).out : wires_of(one.other).in;
    one.ticket = ++wire.offers;
    one.is_late = schedule_->late[round][index];
    // offers are taken in their order: one of a pair that cannot be late makes none late
    for (wire_move& before : moves_) {
      if (before.ticket == 0 || before.other != one.other || before.is_send != one.is_send) continue;
      one.is_late = one.is_late && before.is_late;
      before.is_late = one.is_late;
    }
  }
  moves_.push_back(one);
}

/// A move in memory that both see: the receiver copies it, or leaves it to the folds.
bool rank_communicator_body::move_seen(wire_move& m) {
  rank_wire& wire = m.is_send ? wires_of(m.other).out : wires_of(m.other).in;
  if (m.is_send ? !m.is_late && !wire.is_taken(m.ticket) : !wire.is_offered(m.ticket)) return false;
  if (!m.is_send) {
    if (m.at != nullptr && m.there != m.at) std::memcpy(m.at, m.there, m.size);
    if (!m.is_late) wire.take(m.ticket);
    m.said = m.size;
  }
  m.done = header_bytes + m.size;
  return true;
}

/// After the folds: what others offered is theirs again, and what they took is this rank's.
void rank_communicator_body::end_late_moves() {
  bool is_any = false;
  for (const wire_move& m : moves_) {
    if (m.ticket == 0 || !m.is_late) continue;
    is_any = true;
    if (!m.is_send) wires_of(m.other).in.take(m.ticket);
  }
  if (!is_any) return;
  meeting.ring();
  const auto open = [&] {
    std::uint64_t whom = 0;
    for (const wire_move& m : moves_) {
      if (m.ticket != 0 && m.is_late && m.is_send && !wires_of(m.other).out.is_taken(m.ticket)) whom |= bit(m.other);
    }
    return whom;
  };
  if (is_on_several_nodes()) meeting.far()->set_waiting(false);
  meeting.wait([&] { return open() == 0; }, open);
}

/// A message that was sent is received by its rank, although the call has failed there too, and one that is coming
/// already comes. A message that takes longer than the time for it ends the connection.
void rank_communicator_body::end_far_moves() noexcept {
  if (!is_on_several_nodes()) return;
  rank_carrier& by = meeting.far()->carrier();
  const auto each = [&](const auto& what) {
    for (const wire_move& m : moves_)
      for (transfer* t : {m.header_on, m.on})
        if (t != nullptr && t->is_under_way()) what(m, *t);
  };
  each([&](const wire_move& m, transfer& t) {
    if (!m.is_send) by.withdraw(t);
  });
  const auto until = std::chrono::steady_clock::now() + time_to_take_back;
  for (bool is_open = true; is_open && std::chrono::steady_clock::now() < until;) {
    is_open = false;
    each([&](const wire_move& m, const transfer&) { is_open = is_open || !by.failure(m.other); });
    try {
      far_survivors_->drain();
    } catch (const std::exception&) {
      break;
    }
    if (is_open && !by.progress()) by.rest(std::chrono::steady_clock::now() + std::chrono::milliseconds{1});
  }
  each([&](const wire_move& m, transfer& t) { by.cancel(t, m.other); });
}

/// Moves what can be moved now. True when anything was.
bool rank_communicator_body::move_some() {
  std::uint64_t sending = 0, receiving = 0;  // whom an earlier move has not ended with: they go in order
  bool moved = false, all_far = true;
  if (is_on_several_nodes()) meeting.far()->carrier().progress();
  for (wire_move& m : moves_) {
    if (m.is_over()) continue;
    if (m.ticket != 0) {
      all_far = false;
      if (move_seen(m)) moved = true;
      continue;
    }
    if (!meeting.is_near(m.other)) {
      std::uint64_t& before = m.is_send ? sending : receiving;
      // whole messages keep their order by themselves; those with a header wait for the one before
      if ((before & bit(m.other)) != 0 && m.header[0] == message_mark) continue;
      if (move_far(m)) moved = true;
      if (!m.is_over()) before |= bit(m.other);
      continue;
    }
    all_far = false;
    std::uint64_t& busy = m.is_send ? sending : receiving;
    if ((busy & bit(m.other)) != 0) continue;
    busy |= bit(m.other);
    rank_wire& wire = m.is_send ? wires_of(m.other).out : wires_of(m.other).in;
    for (;;) {
      std::size_t some = 0;
      if (m.done < header_bytes) {
        auto raw = std::as_writable_bytes(std::span{m.header}).subspan(m.done);
        if (m.is_send) {
          some = wire.try_send(raw);
        } else {
          std::array<std::byte, header_bytes> got{};
          some = wire.try_receive(std::span{got}.first(raw.size()));
          // kept behind the one that is expected, to compare when it is whole
          std::memcpy(reinterpret_cast<std::byte*>(m.got.data()) + m.done, got.data(), some);
        }
      } else if (m.is_send) {
        const std::uint64_t at = m.done - header_bytes;
        some = wire.try_send({m.at + at, m.size - at});
      } else {
        const std::uint64_t at = m.done - header_bytes;
        if (m.said == m.size) {
          some = wire.try_receive({m.at + at, m.size - at});
        } else {  // does not fit: taken off the wire, for what follows
          some = wire.try_receive(std::span{scratch_}.first(std::min<std::uint64_t>(scratch_.size(), m.said - at)));
        }
      }
      if (wire.is_broken()) meeting.fail(errc::corrupt, "the wire with " + meeting.name_of(m.other) + " is damaged");
      if (some == 0) break;
      moved = true;
      const bool was_header = m.done < header_bytes;
      m.done += some;
      if (was_header && m.done == header_bytes && !m.is_send) {
        m.said = m.got[1];
        const bool may_differ = m.header[0] == message_mark;
        if (m.got[0] != m.header[0] || (!may_differ && m.said != m.size)) {
          meeting.fail(errc::incompatible, meeting.name_of(m.other) + " sends " + meeting.name_of(self()) +
                                               " what belongs to another call: sends and receives do not match");
        }
      }
      if (m.is_over()) {
        busy &= ~bit(m.other);
        break;
      }
    }
  }
  if (moved) meeting.ring();
  if (is_on_several_nodes()) meeting.far()->set_waiting(all_far);
  return moved;
}

void rank_communicator_body::move_all() {
  const auto open = [&] {
    std::uint64_t whom = 0;
    for (const wire_move& m : moves_) {
      if (!m.is_over()) whom |= bit(m.other);
    }
    return whom;
  };
  // Every move that gets further is a new beginning for whoever waits. wait() asks more than once, and what it asks
  // moves: so that something has moved is kept.
  transfers_used_ = 0;
  try {
    while (open() != 0) {
      bool moved = false;
      meeting.wait([&] { return moved = move_some() || moved; }, open);
    }
  } catch (...) {
    end_far_moves();
    throw;
  }
  if (far_ranks* far = meeting.far()) far->set_waiting(false);
}

void rank_communicator_body::run_schedule(rank_call& call) {
  const std::uint64_t key = call.terms.fingerprint();
  const std::uint64_t e = call.element();
  if (!schedule_ || schedule_->key != key) {
    collective_shape shape;
    shape.what = static_cast<collective>(call.terms.what);
    shape.ranks = size();
    shape.root = call.terms.root;
    if (const far_ranks* far = meeting.far()) shape.nodes = far->nodes();
    shape.counts = counts_of(call);
    auto made = std::make_shared<kept_schedule>();
    made->key = key;
    made->plan = value_or_raise(make_schedule(shape, algorithm_of(call), static_cast<std::int64_t>(piece_bytes / e)));
    made->scratch.resize(static_cast<std::uint64_t>(made->plan.scratch[static_cast<std::size_t>(self())]) * e);
    std::size_t widest = 0;
    for (const schedule_round& round : made->plan.rounds) {
      for (const schedule_fold& f : round.folds) widest = std::max({widest, f.inputs.size(), f.outputs.size()});
    }
    for (std::size_t i = 0; i < made->plan.rounds.size(); ++i) {
      auto& late = made->late.emplace_back();
      auto& folded = made->folded.emplace_back();
      for (const schedule_move& m : made->plan.rounds[i].moves) {
        // of others' moves nobody asks, and of those to another node neither
        const bool is_own = m.from.rank == self() || m.to.rank == self();
        const bool may_be_seen = is_own && meeting.is_near(m.from.rank) && meeting.is_near(m.to.rank);
        late.push_back(may_be_seen && is_late(made->plan, i, m));
        folded.push_back(may_be_seen && is_folded(made->plan, i, m));
      }
    }
    inputs_.resize(std::max(inputs_.size(), widest));
    outputs_.resize(std::max(outputs_.size(), widest));
    schedule_ = std::move(made);
  }
  const kept_schedule& kept = *schedule_;
  const auto address = [&](const schedule_place& place) {
    std::byte* base = place.where == schedule_place::memory::input    ? call.in.at
                      : place.where == schedule_place::memory::output ? call.out.at
                                                                      : schedule_->scratch.data();
    return base + static_cast<std::uint64_t>(place.at) * e;
  };
  for (std::size_t i = 0; i < kept.plan.rounds.size(); ++i) {
    const schedule_round& round = kept.plan.rounds[i];
    moves_.clear();
    seen_.clear();
    for (std::size_t k = 0; k < round.moves.size(); ++k) {
      const schedule_move& m = round.moves[k];
      const bool sends = m.from.rank == self(), receives = m.to.rank == self();
      if (m.count == 0 || (!sends && !receives)) continue;
      if (sends && receives) {
        if (address(m.from) != address(m.to))
          std::memmove(address(m.to), address(m.from), static_cast<std::uint64_t>(m.count) * e);
        continue;
      }
      add_move(call, i, k, address(sends ? m.from : m.to));
      if (receives && kept.folded[i][k]) seen_.emplace_back(m.to.at, moves_.size() - 1);
    }
    for (wire_move& m : moves_)
      if (m.ticket != 0 && m.is_send) wires_of(m.other).out.offer(m.ticket);
    // what the folds read where it is, nobody copies
    std::erase_if(seen_, [&](const auto& s) { return moves_[s.second].ticket == 0 || !moves_[s.second].is_late; });
    for (const auto& s : seen_) moves_[s.second].at = nullptr;
    if (!moves_.empty()) meeting.ring();
    move_all();
    const auto read_at = [&](const schedule_place& place) -> void* {
      if (place.where == schedule_place::memory::scratch) {
        for (const auto& [at, move] : seen_)
          if (at == place.at) return const_cast<std::byte*>(moves_[move].there);  // folds only read it
      }
      return address(place);
    };
    for (const schedule_fold& f : round.folds) {
      if (f.at != self()) continue;
      for (std::size_t k = 0; k < f.inputs.size(); ++k) inputs_[k] = read_at(f.inputs[k]);
      for (std::size_t k = 0; k < f.outputs.size(); ++k) outputs_[k] = address(f.outputs[k]);
      const bool divides = f.is_last && call.terms.op == reduction_op::kind::average;
      fold(call, f.count, std::span{inputs_}.first(f.inputs.size()), std::span{outputs_}.first(f.outputs.size()),
           divides ? size() : 1);
    }
    end_late_moves();
  }
}

void rank_communicator_body::exchange(std::span<const rank_communicator::exchange::part> parts,
                                      const collective_options& o) {
  state_of(on)->require_open();
  finish_streamed();
  if (!o.streams.empty()) {
    raise(errc::unsupported, "sends and receives between ranks run at once: wait for the stream, then call them");
  }
  std::vector<call_memory> kept;
  kept.reserve(parts.size());
  for (const auto& part : parts) {
    if (part.other.value() < 0 || part.other.value() >= size()) {
      raise(errc::invalid_argument, "a message with " + to_string(part.other) + " of " + std::to_string(size()));
    }
    kept.push_back(reach(part.memory, true));
    finish_default(part.memory.memory, {});
  }
  // what the host does not reach has its place in the image: what is sent is there before, what has come goes
  // afterwards
  std::uint64_t room = 0;
  const auto each_of_device = [&](auto&& f) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (kept[i].device.address != nullptr && kept[i].size != 0) f(i);
    }
  };
  each_of_device([&](std::size_t i) { room += (kept[i].size + 63) / 64 * 64; });
  std::byte* image = room != 0 ? image_of(room) : nullptr;
  each_of_device([&](std::size_t i) {
    if (parts[i].is_send) read(image, kept[i], 0, kept[i].size);
    kept[i].at = std::exchange(image, image + (kept[i].size + 63) / 64 * 64);
  });
  std::vector<std::size_t> come;  // receives that have what was sent
  come.reserve(parts.size());
  meeting.resume(o.timeout.value_or(options.timeout), "an exchange of messages");
  moves_.clear();
  std::string wrong;
  const auto differ = [&](int from, std::uint64_t sent, std::uint64_t taken) {
    if (wrong.empty()) {
      wrong = meeting.name_of(from) + " sends " + std::to_string(sent) + " bytes, " + meeting.name_of(self()) +
              " receives " + std::to_string(taken);
    }
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].other.value() == self()) continue;
    wire_move one;
    one.is_send = parts[i].is_send;
    one.other = parts[i].other.value();
    one.at = kept[i].at;
    one.size = kept[i].size;
    one.header = {message_mark, one.size};
    moves_.push_back(one);
  }
  // to itself: the sends and the receives in their order
  for (std::size_t s = 0, r = 0;; ++s, ++r) {
    const auto next = [&](std::size_t at, bool is_send) {
      while (at < parts.size() && (parts[at].other.value() != self() || parts[at].is_send != is_send)) ++at;
      return at;
    };
    s = next(s, true);
    r = next(r, false);
    if (s == parts.size() && r == parts.size()) break;
    if (s == parts.size() || r == parts.size()) {
      raise(errc::invalid_argument, "a message of " + meeting.name_of(self()) + " to itself without its other half");
    }
    if (kept[s].size != kept[r].size) {
      differ(self(), kept[s].size, kept[r].size);
    } else if (kept[s].size != 0) {
      std::memmove(kept[r].at, kept[s].at, kept[s].size);
      come.push_back(r);
    }
  }
  move_all();
  std::size_t i = 0;
  for (const wire_move& m : moves_) {
    while (parts[i].other.value() == self()) ++i;
    if (!m.is_send && m.said != m.size) differ(m.other, m.said, m.size);
    if (!m.is_send && m.said == m.size) come.push_back(i);
    ++i;
  }
  for (const std::size_t r : come) {
    if (kept[r].is_image()) carry(kept[r].device, {nullptr, kept[r].at, kept[r].size, {}, memory_kind::pinned});
  }
  meeting.resume({}, {});
  if (!wrong.empty()) raise(errc::incompatible, wrong);
}

}  // namespace weft::detail
