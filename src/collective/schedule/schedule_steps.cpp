// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule/schedule_steps.hpp"

#include "collective/schedule/rank_bit.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <string>

namespace weft::detail {
namespace {

using memory = schedule_place::memory;

/// Elements of one memory: input and output are one where the collective is done in place.
struct extent {
  std::size_t space = 0;
  std::int64_t begin = 0, end = 0;
};

/// Who touched which elements of one memory last.
class access_history {
 public:
  /// Adds the steps that `step` must come after.
  void read(const extent& part, int step, std::vector<int>& after) {
    over(part, [&](segment& s) {
      if (s.writer >= 0) after.push_back(s.writer);
      s.readers.push_back(step);
    });
  }
  void write(const extent& part, int step, std::vector<int>& after) {
    over(part, [&](segment& s) {
      if (s.writer >= 0) after.push_back(s.writer);
      after.insert(after.end(), s.readers.begin(), s.readers.end());
      s.writer = step;
      s.readers.clear();
    });
  }

 private:
  struct segment {
    std::int64_t end = 0;
    int writer = -1;
    std::vector<int> readers;  // since then
  };

  void cut(std::int64_t at) {
    auto it = segments_.upper_bound(at);
    if (it == segments_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    segment tail = it->second;
    it->second.end = at;
    segments_.emplace(at, std::move(tail));
  }
  template <class F>
  void over(const extent& part, F&& f) {
    if (part.begin == part.end) return;
    cut(part.begin);
    cut(part.end);
    std::int64_t at = part.begin;
    auto it = segments_.lower_bound(at);
    while (at < part.end) {
      if (it == segments_.end() || it->first > at) {
        const std::int64_t until = it == segments_.end() ? part.end : std::min(it->first, part.end);
        it = segments_.emplace_hint(it, at, segment{until, -1, {}});
      }
      f(it->second);
      at = it->second.end;
      ++it;
    }
  }

  std::map<std::int64_t, segment> segments_;  // by their first element, without overlap
};

}  // namespace

/// Finds what each step must wait for, and leaves out what somebody else has waited for already.
class schedule_steps::order {
 public:
  order(schedule_steps& to, std::uint64_t in_place)
      : to_(to), history_(static_cast<std::size_t>(to.layout_.ranks) * 3), offset_(history_.size()) {
    const collective_shape& shape = to.schedule_.shape;
    for (int r = 0; r < shape.ranks; ++r) {
      if ((in_place & bit(r)) == 0) continue;
      in_place_ |= bit(r);
      offset_[static_cast<std::size_t>(r)] = in_place_offset(shape, r).value_or(0);
    }
  }

  void add_rounds() {
    for (std::size_t number = 0; number < to_.schedule_.rounds.size(); ++number) {
      const schedule_round& round = to_.schedule_.rounds[number];
      std::vector<draft> moves, folds;
      moves.reserve(round.moves.size());
      folds.reserve(round.folds.size());
      for (const schedule_move& m : round.moves) {
        if (m.count == 0 || same(m.from, m.to)) continue;
        draft made;
        made.step.move = &m;
        made.step.round = static_cast<int>(number);
        made.step.at = m.to.rank;
        made.reads.push_back(part(m.from, m.count));
        made.writes.push_back(part(m.to, m.count));
        moves.push_back(std::move(made));
      }
      add(std::move(moves));
      for (const schedule_fold& f : round.folds) {
        if (f.count == 0) continue;
        draft made;
        made.step.fold = &f;
        made.step.round = static_cast<int>(number);
        made.step.at = f.at;
        for (const schedule_place& p : f.inputs) made.reads.push_back(part(p, f.count));
        for (const schedule_place& p : f.outputs) made.writes.push_back(part(p, f.count));
        folds.push_back(std::move(made));
      }
      add(std::move(folds));
    }
  }

  void assign_streams() {
    const auto ranks = static_cast<std::size_t>(to_.layout_.ranks);
    std::vector<int> steps_of(ranks);
    for (const draft& d : drafts_) ++steps_of[static_cast<std::size_t>(d.step.at)];
    to_.at_home_ = std::all_of(steps_of.begin(), steps_of.end(), [](int n) { return n <= 1; });
    std::vector<int> moves_into(ranks);
    std::size_t group = 0;
    for (draft& d : drafts_) {
      if (d.group != group) std::fill(moves_into.begin(), moves_into.end(), 0);
      group = d.group;
      schedule_step& s = d.step;
      if (to_.at_home_) {
        s.stream = to_.layout_.home(s.at);
      } else if (s.fold != nullptr) {
        s.stream = to_.layout_.folds(s.at);
      } else {
        // what arrives at the same time may come over different wires
        s.stream = to_.layout_.lane(s.at, moves_into[static_cast<std::size_t>(s.at)]++);
      }
    }
    number_streams();
  }

  void reduce() {
    const std::size_t streams = used_.size();
    const bool waits = std::any_of(drafts_.begin(), drafts_.end(), [](const draft& d) { return !d.after.empty(); });
    // clock[s][t]: the last step of stream t that stream s is known to come after; nobody asks where nothing waits
    std::vector<int> clock(waits ? streams * streams : 0, -1);
    std::vector<std::uint64_t> started(streams, 0);
    std::vector<std::uint64_t> started_at(drafts_.size(), 0);
    const bool keeps = waits && drafts_.size() * streams <= most_snapshots;
    std::vector<int> snapshot(keeps ? drafts_.size() * streams : 0);
    std::vector<int> last_of(streams, -1);
    for (std::size_t s = 0; s < streams; ++s) {
      const int rank = to_.layout_.rank_of(used_[s]);
      if (used_[s] == to_.layout_.home(rank)) started[s] = bit(rank);
    }
    to_.steps_.reserve(drafts_.size());
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      draft& d = drafts_[i];
      const std::size_t s = d.stream;
      int* mine = clock.data() + (waits ? s * streams : 0);
      std::sort(d.after.begin(), d.after.end(), std::greater<>{});  // a later one may have waited for an earlier one
      for (const int before : d.after) {
        const std::size_t other = drafts_[static_cast<std::size_t>(before)].stream;
        if (other == s || mine[other] >= before) continue;
        d.step.after.push_back(before);
        mine[other] = before;
        started[s] |= started_at[static_cast<std::size_t>(before)];
        if (!keeps) continue;
        const int* theirs = &snapshot[static_cast<std::size_t>(before) * streams];
        for (std::size_t t = 0; t < streams; ++t) mine[t] = std::max(mine[t], theirs[t]);
      }
      d.step.starts = touched(d) & ~started[s];
      started[s] |= d.step.starts;
      started_at[i] = started[s];
      d.step.is_first_of_stream = last_of[s] < 0;
      last_of[s] = static_cast<int>(i);
      if (waits) mine[s] = static_cast<int>(i);
      if (keeps) std::copy(mine, mine + streams, &snapshot[i * streams]);
      to_.steps_.push_back(d.step);
    }
    for (const int last : last_of) {
      if (last >= 0) to_.last_.push_back(last);
    }
    std::sort(to_.last_.begin(), to_.last_.end());
    end(snapshot);
  }

 private:
  struct draft {
    schedule_step step;
    std::vector<extent> reads, writes;
    std::vector<int> after;
    std::size_t group = 0;
    std::size_t stream = 0;  // of used_
  };

  static constexpr std::size_t most_snapshots = std::size_t{1} << 23;  // 32 MiB

  [[nodiscard]] extent part(const schedule_place& p, std::int64_t count) {
    const auto rank = static_cast<std::size_t>(p.rank);
    if (p.where == memory::scratch) {
      to_.uses_scratch_ = true;
      return {rank * 3 + 2, p.at, p.at + count};
    }
    if (p.where == memory::output || (in_place_ & bit(p.rank)) != 0) {
      const std::int64_t at = p.where == memory::output ? p.at : p.at + offset_[rank];
      return {rank * 3 + 1, at, at + count};
    }
    return {rank * 3, p.at, p.at + count};
  }
  [[nodiscard]] bool same(const schedule_place& a, const schedule_place& b) {
    const extent x = part(a, 0), y = part(b, 0);
    return x.space == y.space && x.begin == y.begin;
  }
  /// Ranks whose own memory a step touches.
  [[nodiscard]] static std::uint64_t touched(const draft& d) {
    std::uint64_t ranks = 0;
    for (const auto* list : {&d.reads, &d.writes}) {
      for (const extent& e : *list) {
        if (e.space % 3 != 2) ranks |= bit(static_cast<int>(e.space / 3));
      }
    }
    return ranks;
  }

  /// Most schedules use few of the streams that there are.
  void number_streams() {
    std::vector<int> number(static_cast<std::size_t>(to_.layout_.count()), -1);
    for (const draft& d : drafts_) number[static_cast<std::size_t>(d.step.stream)] = 0;
    for (std::size_t s = 0; s < number.size(); ++s) {
      if (number[s] < 0) continue;
      number[s] = static_cast<int>(used_.size());
      used_.push_back(static_cast<int>(s));
    }
    for (draft& d : drafts_) d.stream = static_cast<std::size_t>(number[static_cast<std::size_t>(d.step.stream)]);
  }

  /// Steps that all read before any of them writes. One that writes what another reads comes behind it.
  void add(std::vector<draft> group) {
    const auto first = static_cast<int>(drafts_.size());
    const std::size_t number = ++groups_;
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (const extent& e : group[i].reads) {
        history_[e.space].read(e, first + static_cast<int>(i), group[i].after);
      }
    }
    bool in_order = true;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const int self = first + static_cast<int>(i);
      draft& d = group[i];
      d.group = number;
      for (const extent& e : d.writes) history_[e.space].write(e, self, d.after);
      std::sort(d.after.begin(), d.after.end());
      d.after.erase(std::unique(d.after.begin(), d.after.end()), d.after.end());
      d.after.erase(std::remove(d.after.begin(), d.after.end(), self), d.after.end());
      in_order = in_order && (d.after.empty() || d.after.back() < self);
    }
    if (!in_order) {
      raise(errc::invalid_argument, "round " + std::to_string(number) + " of the " +
                                        std::string{to_string(to_.schedule_.algorithm)} + " schedule of " +
                                        std::string{to_string(to_.schedule_.shape.what)} +
                                        " lists a step that overwrites what a later one of the round reads");
    }
    drafts_.insert(drafts_.end(), std::make_move_iterator(group.begin()), std::make_move_iterator(group.end()));
  }

  void end(const std::vector<int>& snapshot) {
    const std::size_t streams = used_.size();
    const auto ranks = static_cast<std::size_t>(to_.layout_.ranks);
    std::vector<int> last_touch(ranks * streams, -1);
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      for (std::uint64_t left = touched(drafts_[i]); left != 0; left &= left - 1)
        last_touch[static_cast<std::size_t>(std::countr_zero(left)) * streams + drafts_[i].stream] =
            static_cast<int>(i);
    }
    to_.ends_.resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      std::vector<int> wanted;
      for (std::size_t s = 0; s < streams; ++s) {
        const int step = last_touch[r * streams + s];
        if (step >= 0 && used_[s] != to_.layout_.home(static_cast<int>(r))) wanted.push_back(step);
      }
      const auto is_implied = [&](int step) {
        if (snapshot.empty()) return false;
        const std::size_t stream = drafts_[static_cast<std::size_t>(step)].stream;
        return std::any_of(wanted.begin(), wanted.end(), [&](int other) {
          return other != step && snapshot[static_cast<std::size_t>(other) * streams + stream] >= step;
        });
      };
      for (const int step : wanted) {
        if (!is_implied(step)) to_.ends_[r].push_back(step);
      }
    }
  }

  schedule_steps& to_;
  std::vector<access_history> history_;  // [rank * 3 + memory]
  std::vector<std::int64_t> offset_;
  std::uint64_t in_place_ = 0;
  std::vector<draft> drafts_;
  std::vector<int> used_;  // streams of the layout that steps run in
  std::size_t groups_ = 0;
};

namespace {

/// Longer ones would leave the nearest cache between the passes that more than eight places take.
constexpr std::size_t joined_bytes = std::size_t{16} << 10;

bool continues(const schedule_place& more, const schedule_place& place, std::int64_t by) {
  return more.where == place.where && more.rank == place.rank && more.at == place.at + by;
}

/// Outputs are in no order. What a rank keeps aside on the way, the fold that goes on keeps where it kept it.
bool is_continued(const schedule_fold& last, const schedule_fold& more) {
  const auto by = last.count;
  if (last.is_last != more.is_last || last.inputs.size() != more.inputs.size()) return false;
  for (std::size_t n = 0; n < last.inputs.size(); ++n)
    if (!continues(more.inputs[n], last.inputs[n], by)) return false;
  std::size_t found = 0;
  for (const schedule_place& place : more.outputs) {
    if (place.where == memory::scratch) continue;
    // ranks begin with themselves, and go on in turn
    const auto at = static_cast<std::size_t>(place.rank);
    const bool is_there = (at < last.outputs.size() && continues(place, last.outputs[at], by)) ||
                          std::any_of(last.outputs.begin(), last.outputs.end(),
                                      [&](const schedule_place& p) { return continues(place, p, by); });
    if (!is_there) return false;
    ++found;
  }
  return found == last.outputs.size();
}

}  // namespace

std::vector<schedule_turn> schedule_steps::in_turn(std::size_t size) const {
  std::vector<schedule_turn> made;
  int round = -1;
  for (const schedule_step& step : steps_) {
    if (step.move != nullptr) {
      made.push_back({step.move, {}});
      continue;
    }
    const schedule_fold& f = *step.fold;
    // folds of a round do not read what others of it write
    if (!made.empty() && made.back().move == nullptr && round == step.round) {
      schedule_fold& last = made.back().fold;
      if (static_cast<std::size_t>(last.count + f.count) * size <= joined_bytes && is_continued(last, f)) {
        last.count += f.count;
        continue;
      }
    }
    round = step.round;
    made.push_back({nullptr, f});
  }
  return made;
}

schedule_steps::schedule_steps(collective_schedule schedule, std::uint64_t in_place, int lanes)
    : schedule_(std::move(schedule)), layout_{schedule_.shape.ranks, lanes} {
  order made{*this, in_place};
  made.add_rounds();
  made.assign_streams();
  made.reduce();
}

}  // namespace weft::detail
