// SPDX-License-Identifier: Apache-2.0
// Runs a schedule on symbols instead of numbers. Each element knows which ranks' contributions are in it and which
// element of theirs, so that one run proves a schedule for all data; and it checks what schedule.hpp promises of a
// round.
#pragma once

#include "collective/fold/fold.hpp"
#include "weft/collective/schedule.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft::symbolic {

/// What one element holds. At most 64 ranks.
struct symbol {
  std::uint64_t ranks = 0;  // whose contributions are in it, a bit each; none: never written
  std::int64_t index = 0;   // which element of their inputs
  int first = 0, last = 0;  // the first and last of them, counted from the root
  bool in_order = true;     // what was combined is side by side in the order of ranks from the root
  friend bool operator==(const symbol& a, const symbol& b) { return a.ranks == b.ranks && a.index == b.index; }
};

inline std::string text(const symbol& s) {
  if (s.ranks == 0) return "nothing";
  std::string made = "element " + std::to_string(s.index) + " of ranks {";
  for (int r = 0; r < 64; ++r)
    if (s.ranks >> r & 1) made += (made.back() == '{' ? "" : ", ") + std::to_string(r);
  return made + "}";
}

inline std::string text(const schedule_place& p) {
  constexpr std::array names{"input", "output", "scratch"};
  return std::string{names[static_cast<std::size_t>(p.where)]} + " of rank " + std::to_string(p.rank) + " at " +
         std::to_string(p.at);
}

/// What a rank's output is to hold.
inline symbol expected(const collective_shape& shape, int rank, std::int64_t at) {
  const std::uint64_t all = shape.ranks == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << shape.ranks) - 1;
  const auto bit = [](int r) { return std::uint64_t{1} << r; };
  const auto start = [&](int r) {
    std::int64_t sum = 0;
    for (int i = 0; i < r; ++i) sum += shape.counts[static_cast<std::size_t>(i)];
    return sum;
  };
  switch (shape.what) {
    case collective::all_reduce:
    case collective::reduce:
      return {all, at};
    case collective::reduce_scatter:
      return {all, start(rank) + at};
    case collective::broadcast:
      return {bit(shape.root), at};
    case collective::scatter:
      return {bit(shape.root), start(rank) + at};
    case collective::all_gather:
    case collective::gather: {
      int from = 0;
      while (start(from + 1) <= at) ++from;
      return {bit(from), at - start(from)};
    }
    case collective::all_to_all: {
      int from = 0;
      std::int64_t left = at;
      const auto count = [&](int f, int t) { return shape.counts[static_cast<std::size_t>(f * shape.ranks + t)]; };
      while (left >= count(from, rank)) left -= count(from++, rank);
      for (int to = 0; to < rank; ++to) left += count(from, to);
      return {bit(from), left};
    }
  }
  return {};
}

/// Runs one schedule; what is wrong first, in words, or nothing.
class interpreter {
 public:
  interpreter(const collective_schedule& schedule, bool in_place, bool reads_others = false)
      : schedule_(schedule), in_place_(in_place), reads_others_(reads_others), ranks_(schedule.shape.ranks) {
    for (int r = 0; r < ranks_; ++r) lay_out(r);
  }

  [[nodiscard]] std::string run() {
    for (const schedule_round& round : schedule_.rounds) {
      begin();
      for (const schedule_move& m : round.moves) do_move(m);
      end();
      begin();
      for (const schedule_fold& f : round.folds) do_fold(f);
      end();
      if (!failure_.empty()) return failure_ + " (round " + std::to_string(round_) + ")";
      ++round_;
    }
    for (int r = 0; r < ranks_; ++r) compare(r);
    return failure_;
  }

  /// Whether only neighbours were combined, so that each partial result is of consecutive ranks; after run().
  [[nodiscard]] bool in_order() const {
    return std::all_of(stores_.begin(), stores_.end(), [](const store& s) {
      return std::all_of(s.cells.begin(), s.cells.end(), [](const cell& c) { return c.now.in_order; });
    });
  }

 private:
  struct cell {
    symbol now;
    int read_in = 0, written_in = 0;  // the last phase that did
    int reader = -1;                  // its step, or many
  };
  struct store {
    std::vector<cell> cells;
  };
  struct span_of_cells {
    std::size_t store = 0;
    std::int64_t at = 0;  // of the store
    std::int64_t size = 0;
    std::int64_t base = 0;  // where this memory begins in the store
  };
  static constexpr int many = -2;

  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  span_of_cells& memory(schedule_place::memory where, int rank) {
    return memories_[static_cast<std::size_t>(rank) * 3 + static_cast<std::size_t>(where)];
  }

  std::size_t new_store(std::int64_t size) {
    stores_.push_back({std::vector<cell>(static_cast<std::size_t>(size))});
    return stores_.size() - 1;
  }

  void lay_out(int rank) {
    const collective_shape& shape = schedule_.shape;
    const std::int64_t in = input_elements(shape, rank);
    const std::int64_t out = output_elements(shape, rank);
    const auto offset = in_place_offset(shape, rank);
    span_of_cells input;
    span_of_cells output;
    if (in_place_ && offset && in > 0 && out > 0) {
      const std::int64_t input_at = std::max<std::int64_t>(*offset, 0);
      const std::int64_t output_at = std::max<std::int64_t>(-*offset, 0);
      const std::size_t both = new_store(std::max(input_at + in, output_at + out));
      input = {both, 0, in, input_at};
      output = {both, 0, out, output_at};
    } else {
      input = {new_store(in), 0, in, 0};
      output = {new_store(out), 0, out, 0};
    }
    const std::int64_t scratch = schedule_.scratch[static_cast<std::size_t>(rank)];
    memories_.push_back(input);
    memories_.push_back(output);
    memories_.push_back({new_store(scratch), 0, scratch, 0});
    const int from_root = (rank - shape.root + shape.ranks) % shape.ranks;
    for (std::int64_t i = 0; i < in; ++i) {
      stores_[input.store].cells[static_cast<std::size_t>(input.base + i)].now = {std::uint64_t{1} << rank, i,
                                                                                  from_root, from_root, true};
    }
  }

  /// Where a place is; fails if it reaches past its memory.
  bool find(const schedule_place& place, std::int64_t count, span_of_cells& found) {
    if (place.rank < 0 || place.rank >= ranks_) {
      fail("there is no rank " + std::to_string(place.rank));
      return false;
    }
    found = memory(place.where, place.rank);
    if (place.at < 0 || count <= 0 || place.at + count > found.size) {
      fail(text(place) + ": " + std::to_string(count) + " elements of " + std::to_string(found.size));
      return false;
    }
    found.at = found.base + place.at;
    return true;
  }

  void begin() {
    ++phase_;
    step_ = 0;
    pending_.clear();
  }

  symbol read(const span_of_cells& from, std::int64_t i, const schedule_place& place) {
    cell& c = stores_[from.store].cells[static_cast<std::size_t>(from.at + i)];
    if (c.now.ranks == 0) fail(text(place) + " + " + std::to_string(i) + " is read and was never written");
    c.reader = c.read_in == phase_ && c.reader != step_ ? many : step_;
    c.read_in = phase_;
    return c.now;
  }

  void write(const span_of_cells& to, std::int64_t i, const schedule_place& place, const symbol& value) {
    cell& c = stores_[to.store].cells[static_cast<std::size_t>(to.at + i)];
    if (c.written_in == phase_) fail(text(place) + " + " + std::to_string(i) + " is written twice in a round");
    c.written_in = phase_;
    pending_.push_back({&c, value, step_});
  }

  void end() {
    // only now is every reader of the phase known
    for (const auto& [c, value, step] : pending_) {
      if (c->read_in == phase_ && c->reader != step) fail("what one step writes another one reads: " + text(value));
      c->now = value;
    }
  }

  void do_move(const schedule_move& m) {
    ++step_;
    span_of_cells from;
    span_of_cells to;
    if (!find(m.from, m.count, from) || !find(m.to, m.count, to)) return;
    if (m.to.where == schedule_place::memory::input) return fail("a move writes to the " + text(m.to));
    if (from.store == to.store && from.at == to.at) return;  // in place: it is there
    if (from.store == to.store && from.at < to.at + m.count && to.at < from.at + m.count)
      return fail("a move overlaps itself: " + text(m.from) + " to " + text(m.to));
    for (std::int64_t i = 0; i < m.count; ++i) write(to, i, m.to, read(from, i, m.from));
  }

  void do_fold(const schedule_fold& f) {
    ++step_;
    std::vector<span_of_cells> inputs(f.inputs.size());
    std::vector<span_of_cells> outputs(f.outputs.size());
    const bool is_direct = schedule_.algorithm == collective_algorithm::direct;
    for (std::size_t k = 0; k < f.inputs.size(); ++k) {
      if (!find(f.inputs[k], f.count, inputs[k])) return;
      if (f.inputs[k].rank != f.at && !is_direct && !reads_others_)
        fail("rank " + std::to_string(f.at) + " folds the " + text(f.inputs[k]));
    }
    for (std::size_t k = 0; k < f.outputs.size(); ++k) {
      if (!find(f.outputs[k], f.count, outputs[k])) return;
      if (f.outputs[k].rank != f.at && !is_direct)
        fail("rank " + std::to_string(f.at) + " folds to " + text(f.outputs[k]));
      if (f.outputs[k].where == schedule_place::memory::input) fail("a fold writes to the " + text(f.outputs[k]));
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const bool is_same = inputs[i].store == outputs[k].store;
        const std::int64_t apart = inputs[i].at - outputs[k].at;
        if (is_same && apart != 0 && apart < f.count && -apart < f.count)
          fail("a fold's " + text(f.outputs[k]) + " overlaps its " + text(f.inputs[i]));
        // a fold takes several passes and keeps what it has in its first output
        if (is_same && apart == 0 && k == 0 && i >= detail::fold_width)
          fail("a fold keeps its result in the " + text(f.inputs[i]) + ", which it has still to read");
      }
    }
    if (!is_direct && !can_grow(inputs, outputs))
      fail("a user's operation has no place to grow its result in but one that it has still to read: " +
           text(f.outputs[0]));
    const std::uint64_t all = ranks_ == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << ranks_) - 1;
    for (std::int64_t i = 0; i < f.count; ++i) {
      symbol sum;
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        const symbol more = read(inputs[k], i, f.inputs[k]);
        if (k == 0) {
          sum = more;
          continue;
        }
        if (sum.index != more.index) fail(text(f.inputs[k]) + ": " + text(more) + " is combined with " + text(sum));
        if ((sum.ranks & more.ranks) != 0)
          fail(text(f.inputs[k]) + ": " + text(more) + " is in " + text(sum) + " already");
        sum.in_order = sum.in_order && more.in_order && (sum.last + 1 == more.first || more.last + 1 == sum.first);
        sum.first = std::min(sum.first, more.first);
        sum.last = std::max(sum.last, more.last);
        sum.ranks |= more.ranks;
      }
      if (f.is_last != (sum.ranks == all))
        fail("a fold that is " + std::string{f.is_last ? "" : "not "} + "the last makes " + text(sum));
      for (std::size_t k = 0; k < outputs.size(); ++k) write(outputs[k], i, f.outputs[k], sum);
    }
  }

  /// A user's operation combines two at a time, into the first: that is an output, or there is another one to copy it
  /// to.
  static bool can_grow(const std::vector<span_of_cells>& inputs, const std::vector<span_of_cells>& outputs) {
    const auto same = [](const span_of_cells& a, const span_of_cells& b) { return a.store == b.store && a.at == b.at; };
    return std::any_of(outputs.begin(), outputs.end(), [&](const span_of_cells& out) {
      return same(inputs[0], out) ||
             std::none_of(inputs.begin() + 1, inputs.end(), [&](const span_of_cells& in) { return same(in, out); });
    });
  }

  void compare(int rank) {
    const span_of_cells out = memory(schedule_place::memory::output, rank);
    for (std::int64_t i = 0; i < out.size; ++i) {
      const symbol got = stores_[out.store].cells[static_cast<std::size_t>(out.base + i)].now;
      const symbol wanted = expected(schedule_.shape, rank, i);
      if (!(got == wanted))
        fail("output of rank " + std::to_string(rank) + " at " + std::to_string(i) + ": expected " + text(wanted) +
             ", got " + text(got));
    }
    if (in_place_) return;
    const span_of_cells in = memory(schedule_place::memory::input, rank);
    for (std::int64_t i = 0; i < in.size; ++i) {
      const symbol wanted{std::uint64_t{1} << rank, i};
      if (!(stores_[in.store].cells[static_cast<std::size_t>(i)].now == wanted))
        fail("the input of rank " + std::to_string(rank) + " was changed at " + std::to_string(i));
    }
  }

  struct change {
    cell* where;
    symbol value;
    int step;
  };

  const collective_schedule& schedule_;
  bool in_place_;
  bool reads_others_;
  int ranks_;
  std::vector<store> stores_;
  std::vector<span_of_cells> memories_;
  std::vector<change> pending_;
  int phase_ = 0, step_ = 0, round_ = 0;
  std::string failure_;
};

/// What is wrong with a schedule, run out of place or in place; empty if nothing is. `reads_others`: folds may read
/// other ranks' memory.
[[nodiscard]] inline std::string fault_of(const collective_schedule& schedule, bool in_place,
                                          bool reads_others = false) {
  return interpreter{schedule, in_place, reads_others}.run();
}

}  // namespace weft::symbolic
