// SPDX-License-Identifier: Apache-2.0
// How those who are left agree who they are.
//
// Each says whom it believes gone and takes over what the others say; who finds that all whom it counts on say the same
// decides it, and what is decided once is taken over by whoever sees it. Two ranks never decide differently: a rank's
// belief only grows, stops growing when it decides, and a decision needs the same belief of all whom it counts on.
#include "collective/rank_bit.hpp"
#include "collective/rank_communicator_body.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <string>
#include <thread>

namespace weft::detail {
namespace {

using clock = std::chrono::steady_clock;

/// Who is gone, as all survivors have it. Errors: timed_out.
class agreement {
 public:
  agreement(rank_meeting& meeting, std::uint64_t attempt, clock::time_point until)
      : m_(meeting),
        attempt_(attempt),
        until_(until),
        all_(meeting.size() == 64 ? ~std::uint64_t{0} : bit(meeting.size()) - 1) {}

  std::uint64_t reach() {
    publish();
    for (int turn = 0;; ++turn) {
      if (const auto seen = decided()) return *seen;
      look();
      publish();
      // once more after looking: who has died since may have decided before
      if (const auto seen = decided()) return *seen;
      if (agreed()) {
        rank_area& own = m_.mine();
        own.decided.store(gone_, std::memory_order_relaxed);
        own.decided_attempt.store(attempt_, std::memory_order_seq_cst);  // pairs with acquire in decided
        m_.ring();
        return gone_;
      }
      const auto now = clock::now();
      if (now > until_ + std::chrono::seconds{2}) {
        raise(errc::timed_out, "the survivors of a communicator did not agree who they are");
      }
      nap(turn);
    }
  }

  [[nodiscard]] std::uint64_t attempt() const { return attempt_; }

 private:
  void publish() {
    rank_area& own = m_.mine();
    if (published_ && said_ == gone_ && said_attempt_ == attempt_) return;
    own.gone.store(gone_, std::memory_order_relaxed);
    own.attempt.store(attempt_, std::memory_order_seq_cst);  // pairs with acquire in look
    said_ = gone_;
    said_attempt_ = attempt_;
    published_ = true;
    m_.ring();
  }

  [[nodiscard]] std::optional<std::uint64_t> decided() const {
    for (int r = 0; r < m_.size(); ++r) {
      const rank_area& area = m_.area(r);
      if (area.decided_attempt.load(std::memory_order_acquire) != attempt_) continue;
      return area.decided.load(std::memory_order_relaxed) & all_;
    }
    return std::nullopt;
  }

  void look() {
    const bool is_late = clock::now() > until_;
    for (int r = 0; r < m_.size(); ++r) {
      if (r == m_.self() || (gone_ & bit(r)) != 0) continue;
      const std::uint64_t theirs = m_.area(r).attempt.load(std::memory_order_acquire);
      // another one has seen this attempt fail: both mean the same meeting
      if (theirs > attempt_ && theirs < attempt_ + 1000) attempt_ = theirs;
      if (theirs == attempt_) gone_ |= m_.area(r).gone.load(std::memory_order_relaxed) & all_;
      if (!m_.is_here(r) || (is_late && theirs < attempt_)) gone_ |= bit(r);
    }
    if ((gone_ & bit(m_.self())) != 0) {
      // the others may go on without this one: so it stays out, whatever they decide
      raise(errc::peer_dead, m_.name_of(m_.self()) + " came too late: the others go on without it");
    }
  }

  [[nodiscard]] bool agreed() const {
    for (int r = 0; r < m_.size(); ++r) {
      if (r == m_.self() || (gone_ & bit(r)) != 0) continue;
      const rank_area& area = m_.area(r);
      if (area.attempt.load(std::memory_order_acquire) != attempt_) return false;
      if ((area.gone.load(std::memory_order_relaxed) & all_) != gone_) return false;
    }
    return true;
  }

  void nap(int turn) {
    if (turn < 100) return std::this_thread::yield();
    group_words& words = m_.block().words();
    words.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t heard = words.bell.load(std::memory_order_seq_cst);
    // what was said since the last look is found a millisecond later at most
    parking::park(words.bell, heard, clock::now() + std::chrono::milliseconds{1}, parking::word_scope::shared);
    words.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  rank_meeting& m_;
  std::uint64_t attempt_;
  clock::time_point until_;
  std::uint64_t all_;
  std::uint64_t gone_ = 0, said_ = 0, said_attempt_ = 0;
  bool published_ = false;
};

}  // namespace

std::unique_ptr<rank_communicator_body> rank_communicator_body::shrink(std::chrono::nanoseconds limit) {
  on.state()->require_open();
  const auto until = clock::now() + limit;
  // ranks that are still in a call end it: they are to come here too
  meeting.end(errc::cancelled, meeting.name_of(self()) + " shrinks the communicator");
  finish_streamed();
  for (;;) {
    agreement among{meeting, ++attempts_, until};
    const std::uint64_t gone = among.reach();
    attempts_ = among.attempt();
    if ((gone & bit(self())) != 0) {
      raise(errc::peer_dead, meeting.name_of(self()) + " came too late: the others go on without it");
    }
    std::vector<rank> members;
    members.reserve(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      if ((gone & bit(r)) == 0) members.push_back(meeting.members()[static_cast<std::size_t>(r)]);
    }
    try {
      const auto left = std::max<std::chrono::nanoseconds>(until - clock::now(), std::chrono::seconds{1});
      return meet(meeting.shared_group(), std::move(members),
                  collective_tag(meeting.block().id(), static_cast<std::uint16_t>(0x100 + (attempts_ & 0xfff))), on,
                  options, left);
    } catch (const error_exception& e) {
      // one of those who agreed has died since
      if (e.code() != errc::peer_dead && e.code() != errc::closed) raise(e.cause());
      if (clock::now() > until) raise(e.cause());
    }
  }
}

}  // namespace weft::detail
