// SPDX-License-Identifier: Apache-2.0
// Words that ranks without common memory write once: each word is what most of them have voted for.
//
// Single-decree Paxos for each word (L. Lamport, "Paxos Made Simple", 2001): who writes asks all for a promise to
// follow no older ballot, takes over the newest value that an answer names, and asks for votes. A set of ranks that can
// decide holds more than half of them, or half with the lowest one: two such sets share a rank, so that of a network
// which is cut in two at most one side goes on. Who learns of a decision tells all others before anything else, so that
// a rank that leaves afterwards is not needed any more.
#pragma once

#include "collective/schedule/rank_bit.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>

namespace weft::detail {

enum class word_kind : std::uint32_t { arrived = 1, ready, gone, prepare, promise, refuse, accept, accepted, decided };

/// Fixed width, fixed order.
struct word_message {
  word_kind what{};
  std::uint32_t position = 0;
  std::uint64_t value = 0;
  std::uint64_t ballot = 0;
  std::uint64_t before = 0;        // of a promise: the ballot of its value, 0 for none
  std::uint64_t communicator = 0;  // whose ranks these are
};

/// `Send` is void(int to, const word_message&), for ranks but this one. Messages of a rank to a rank arrive in order,
/// or from some moment on not at all. Thread: one at a time.
template <class Send>
class word_votes {
 public:
  word_votes(int self, std::uint64_t members, Send send) : self_(self), members_(members), send_(std::move(send)) {}

  /// Whether these can decide without the others.
  [[nodiscard]] static bool decides(std::uint64_t some, std::uint64_t members) noexcept {
    const int all = std::popcount(members), here = std::popcount(some & members);
    return 2 * here > all || (2 * here == all && (some & members & -members) != 0);
  }

  /// 0 while it is not known to be decided.
  [[nodiscard]] std::uint64_t word(std::uint32_t position) const {
    const auto known = words_.find(position);
    return known == words_.end() ? 0 : known->second.decided;
  }
  /// Whether a newer ballot has ended the last try of this rank.
  [[nodiscard]] bool is_refused(std::uint32_t position) const {
    const auto known = words_.find(position);
    return known != words_.end() && known->second.is_refused;
  }

  /// Tries to write a word: what comes of it is heard.
  void propose(std::uint32_t position, std::uint64_t value) {
    one& w = words_[position];
    if (w.decided != 0) return;
    w.ballot = ((std::max(w.ballot, w.newest) >> 6) + 1) << 6 | static_cast<std::uint64_t>(self_);
    w.newest = w.ballot;
    w.promises = w.votes = w.best = 0;
    w.proposed = value;
    w.is_refused = w.asks_for_votes = false;
    tell_all({word_kind::prepare, position, 0, w.ballot, 0});
  }

  void hear(int from, const word_message& m) {
    one& w = words_[m.position];
    w.newest = std::max(w.newest, m.ballot);
    switch (m.what) {
      case word_kind::prepare:
        if (w.decided != 0) return tell(from, {word_kind::decided, m.position, w.decided, 0, 0});
        if (m.ballot <= w.promised) return tell(from, {word_kind::refuse, m.position, 0, w.promised, 0});
        w.promised = m.ballot;
        return tell(from, {word_kind::promise, m.position, w.voted, m.ballot, w.voted_in});
      case word_kind::promise:
        if (m.ballot != w.ballot || w.asks_for_votes) return;
        w.promises |= bit(from);
        if (m.before > w.best) w.best = m.before, w.proposed = m.value;
        if (!decides(w.promises, members_)) return;
        w.asks_for_votes = true;
        return tell_all({word_kind::accept, m.position, w.proposed, w.ballot, 0});
      case word_kind::refuse:
        w.is_refused = w.is_refused || m.ballot > w.ballot;
        return;
      case word_kind::accept:
        if (m.ballot < w.promised) return tell(from, {word_kind::refuse, m.position, 0, w.promised, 0});
        w.promised = w.voted_in = m.ballot;
        w.voted = m.value;
        return tell(from, {word_kind::accepted, m.position, m.value, m.ballot, 0});
      case word_kind::accepted:
        if (m.ballot != w.ballot) return;
        w.votes |= bit(from);
        if (decides(w.votes, members_)) learn(m.position, w.proposed);
        return;
      case word_kind::decided:
        return learn(m.position, m.value);
      default:
        return;
    }
  }

 private:
  struct one {
    std::uint64_t promised = 0, voted_in = 0, voted = 0;                        // as one of those who vote
    std::uint64_t ballot = 0, promises = 0, votes = 0, best = 0, proposed = 0;  // as the one who writes
    std::uint64_t newest = 0;                                                   // ballot that was heard of
    std::uint64_t decided = 0;
    bool is_refused = false, asks_for_votes = false;
  };

  void learn(std::uint32_t position, std::uint64_t value) {
    one& w = words_[position];
    if (w.decided != 0) return;
    w.decided = value;
    tell_all({word_kind::decided, position, value, 0, 0});
  }
  void tell(int to, const word_message& m) {
    if (to == self_) return hear(self_, m);
    send_(to, m);
  }
  void tell_all(const word_message& m) {
    for (std::uint64_t left = members_; left != 0; left &= left - 1)
      if (const int r = std::countr_zero(left); r != self_) send_(r, m);
    hear(self_, m);  // last: what it answers itself may end this
  }

  int self_;
  std::uint64_t members_;
  Send send_;
  std::map<std::uint32_t, one> words_;
};

}  // namespace weft::detail
