// SPDX-License-Identifier: Apache-2.0
// A schedule as operations of streams: which stream does each, and what it must wait for. Pure.
#pragma once

#include "weft/collective/schedule.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace weft::detail {

/// The streams that steps run in: first each rank's home, which is the caller's stream, then of each rank `lanes`
/// streams for what is moved into it and one for what it combines.
struct stream_layout {
  int ranks = 1;
  int lanes = 1;

  /// Lanes where streams cost little.
  [[nodiscard]] static int lanes_for(int ranks) { return ranks < 16 ? ranks : 16; }
  [[nodiscard]] int count() const { return ranks * (lanes + 2); }
  [[nodiscard]] int home(int rank) const { return rank; }
  [[nodiscard]] int lane(int rank, int which) const { return ranks + rank * (lanes + 1) + which % lanes; }
  [[nodiscard]] int folds(int rank) const { return ranks + rank * (lanes + 1) + lanes; }
  [[nodiscard]] int rank_of(int stream) const { return stream < ranks ? stream : (stream - ranks) / (lanes + 1); }
};

struct schedule_step {
  const schedule_move* move = nullptr;  // one of the two
  const schedule_fold* fold = nullptr;
  int round = 0;                    // of the schedule
  int at = 0;                       // the rank that does it
  int stream = 0;                   // of the layout
  std::vector<int> after;           // steps of other streams that must have ended
  std::uint64_t starts = 0;         // of the first 64 ranks, those whose stream must have come to the collective
  bool is_first_of_stream = false;  // in this schedule
};

/// The next step of one thread that does all: a move or a fold.
struct schedule_turn {
  const schedule_move* move = nullptr;
  schedule_fold fold;  // without inputs where there is a move
};

/// The steps of a schedule in an order in which they can be submitted. Whatever reads, writes or overwrites what
/// another step touches is ordered after it: by its stream, by `after`, or by what those have waited for.
class schedule_steps {
 public:
  /// `in_place` has a bit for each of the first 64 ranks whose input lies in its output, or the other way round, where
  /// in_place_offset() says. Steps that have nothing to do are left out. Keeps the schedule.
  /// Errors: invalid_argument for a schedule whose round needs an order that there is not.
  schedule_steps(collective_schedule schedule, std::uint64_t in_place, int lanes);
  schedule_steps(const schedule_steps&) = delete;
  schedule_steps& operator=(const schedule_steps&) = delete;

  [[nodiscard]] const collective_schedule& schedule() const { return schedule_; }
  [[nodiscard]] const stream_layout& layout() const { return layout_; }
  [[nodiscard]] std::span<const schedule_step> all() const { return steps_; }
  /// The same work for one thread that does it all, in this order: short folds that continue each other are one.
  /// Shape: `size` is that of an element; moves are this object's.
  [[nodiscard]] std::vector<schedule_turn> in_turn(std::size_t size) const;
  /// By rank: steps that must have ended before its own stream goes on.
  [[nodiscard]] const std::vector<std::vector<int>>& ends() const { return ends_; }
  /// The last step of every stream that is used.
  [[nodiscard]] std::span<const int> last() const { return last_; }
  [[nodiscard]] bool uses_scratch() const { return uses_scratch_; }
  /// No rank has more than one step: they run in the callers' own streams, without a hand-over.
  [[nodiscard]] bool is_at_home() const { return at_home_; }

 private:
  class order;

  collective_schedule schedule_;
  stream_layout layout_;
  std::vector<schedule_step> steps_;
  std::vector<std::vector<int>> ends_;
  std::vector<int> last_;
  bool uses_scratch_ = false;
  bool at_home_ = false;
};

}  // namespace weft::detail
