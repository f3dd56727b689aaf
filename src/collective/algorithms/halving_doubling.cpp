// SPDX-License-Identifier: Apache-2.0
// Partners at distances of powers of two, in ceil(log2(N)) rounds each way. To scatter, the distance halves: a rank
// hands over the partial results of the blocks that its partner and those behind it are to have. To gather it doubles,
// and the same goes back. Where N is a power of two, partners exchange; else they stand on a circle and each hears from
// one and speaks to another, so that no rank is ever left over. Sources: R. Thakur, R. Rabenseifner, W. Gropp:
// Optimization of collective communication operations in MPICH (2005); circles: J. Bruck and others: Efficient
// algorithms for all-to-all communications (1997); J. L. Träff: Optimal, non-pipelined reduce-scatter and allreduce
// algorithms (2024).
#include "collective/algorithms/schedule_builder.hpp"

#include <algorithm>
#include <bit>

namespace weft::detail {
namespace {

using builder = schedule_builder;

struct block_move {
  schedule_place from, to;
  std::int64_t count = 0;
};

/// What one rank receives and combines with its own.
struct block_fold {
  schedule_place from, own, into;
  std::int64_t count = 0;
};

bool goes_on(const schedule_place& a, std::int64_t count, const schedule_place& b) {
  return a.where == b.where && a.rank == b.rank && a.at + count == b.at;
}

void append(std::vector<block_move>& list, const block_move& more) {
  if (more.count == 0) return;
  if (!list.empty()) {
    block_move& last = list.back();
    if (goes_on(last.from, last.count, more.from) && goes_on(last.to, last.count, more.to)) {
      last.count += more.count;
      return;
    }
  }
  list.push_back(more);
}

void append(std::vector<block_fold>& list, const block_fold& more) {
  if (more.count == 0) return;
  if (!list.empty()) {
    block_fold& last = list.back();
    if (goes_on(last.from, last.count, more.from) && goes_on(last.own, last.count, more.own) &&
        goes_on(last.into, last.count, more.into)) {
      last.count += more.count;
      return;
    }
  }
  list.push_back(more);
}

schedule_place moved(schedule_place place, std::int64_t by) {
  place.at += by;
  return place;
}

/// Goes through what one rank receives, at most a piece of it in a round: visit(index, done, part, round, filled).
template <class List, class Visit>
std::size_t in_pieces(const builder& to, const List& list, const Visit& visit) {
  std::size_t round = 0;
  std::int64_t filled = 0;
  for (const auto& one : list) {
    for (std::int64_t done = 0; done < one.count;) {
      if (to.piece() > 0 && filled == to.piece()) {
        ++round;
        filled = 0;
      }
      const std::int64_t part = to.piece() > 0 ? std::min(one.count - done, to.piece() - filled) : one.count - done;
      visit(one, done, part, round, filled);
      done += part;
      filled += part;
    }
  }
  return round + 1;
}

/// One step without arithmetic. Returns the round after it.
std::size_t ship(builder& to, std::size_t round, const std::vector<std::vector<block_move>>& received) {
  std::size_t rounds = 1;
  for (const auto& list : received) {
    rounds = std::max(rounds, in_pieces(to, list,
                                        [&](const block_move& one, std::int64_t done, std::int64_t part,
                                            std::size_t later, std::int64_t) {
                                          to.move(round + later, moved(one.from, done), moved(one.to, done), part);
                                        }));
  }
  return round + rounds;
}

/// One step of combining. What arrives goes to scratch from `base` on, by turns into two slots if it is double.
std::size_t combine(builder& to, std::size_t round, const std::vector<std::vector<block_fold>>& received,
                    std::int64_t base, bool is_double, bool is_last) {
  std::int64_t slot = 0;
  for (const auto& list : received) {
    std::int64_t all = 0;
    for (const block_fold& one : list) all += one.count;
    slot = std::max(slot, all);
  }
  if (to.piece() > 0) slot = std::min(slot, to.piece());
  std::size_t rounds = 1;
  for (std::size_t r = 0; r < received.size(); ++r) {
    rounds = std::max(
        rounds,
        in_pieces(
            to, received[r],
            [&](const block_fold& one, std::int64_t done, std::int64_t part, std::size_t later, std::int64_t filled) {
              const int rank = one.own.rank;
              const bool is_odd = is_double && (round + later) % 2 == 1;
              const auto landing = builder::scratch(rank, base + (is_odd ? slot : 0) + filled);
              to.move(round + later, moved(one.from, done), landing, part);
              to.combine(round + later, rank, {landing, moved(one.own, done)}, moved(one.into, done), part, is_last);
            }));
  }
  return round + rounds;
}

std::vector<int> distances_up(int ranks) {
  std::vector<int> list;
  list.reserve(16);
  for (int d = 1; d < ranks; d *= 2) list.push_back(d);
  return list;
}

std::vector<int> distances_down(int ranks) {
  std::vector<int> list = distances_up(ranks);
  std::reverse(list.begin(), list.end());
  return list;
}

bool is_power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

/// Whom rank v hears from in a step of halving (forward: of doubling), and which block that begins with.
struct partner {
  int rank, first_block;
};

partner partner_of(const builder& to, int v, int distance, bool is_forward) {
  if (is_power_of_two(to.ranks())) {
    const int other = v ^ distance;
    return {other, (is_forward ? other : v) / distance * distance};
  }
  const int other = to.wrapped(is_forward ? v + distance : v - distance);
  return {other, is_forward ? other : v};
}

/// Where blocks may go to any rank, the first step, which moves the most, is made between neighbours: numbers are read
/// from the other end, where that is possible.
int near_first(const builder& to, int v) {
  if (!is_power_of_two(to.ranks())) return v;
  int turned = 0;
  for (int bit = 1; bit < to.ranks(); bit *= 2) turned = 2 * turned + ((v & bit) != 0 ? 1 : 0);
  return turned;
}

/// A part of every block, no more than a piece together, so that partial results of all of them fit in scratch.
struct block_cut {
  std::vector<element_range> blocks;    // in the array of all blocks
  std::vector<std::int64_t> packed_at;  // one after the other
  std::int64_t total = 0;
};

/// Blocks are numbered from the root on; `starts` and `counts` are theirs.
std::vector<block_cut> cuts_of(const builder& to, const std::vector<element_range>& blocks) {
  std::int64_t all = 0;
  for (const element_range& block : blocks) all += block.count;
  const std::int64_t pieces = to.pieces_of(all);
  std::vector<block_cut> cuts;
  cuts.reserve(static_cast<std::size_t>(pieces));
  for (std::int64_t k = 0; k < pieces; ++k) {
    bool is_new = true;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const element_range part = part_of(blocks[b].count, pieces, k);
      // pieces smaller than the number of ranks do not hold an element of every block
      if (is_new || (to.piece() > 0 && cuts.back().total + part.count > to.piece())) {
        cuts.emplace_back();
        cuts.back().blocks.resize(blocks.size());
        cuts.back().packed_at.resize(blocks.size());
        is_new = false;
      }
      block_cut& cut = cuts.back();
      cut.blocks[b] = {blocks[b].at + part.at, part.count};
      cut.packed_at[b] = cut.total;
      cut.total += part.count;
    }
  }
  return cuts;
}

/// Blocks in the order in which they lie, from one rank's on.
std::vector<element_range> blocks_from(const builder& to, int first) {
  const std::vector<std::int64_t> starts = starts_of(to.shape().counts);
  std::vector<element_range> blocks;
  blocks.reserve(static_cast<std::size_t>(to.ranks()));
  for (int v = 0; v < to.ranks(); ++v) {
    const int r = to.wrapped(first + v);
    blocks.push_back({starts[static_cast<std::size_t>(r)], to.count(r)});
  }
  return blocks;
}

std::vector<element_range> even_blocks(const builder& to) {
  std::vector<element_range> blocks;
  blocks.reserve(static_cast<std::size_t>(to.ranks()));
  for (int v = 0; v < to.ranks(); ++v) blocks.push_back(part_of(to.count(), to.ranks(), v));
  return blocks;
}

/// Reduce-scatter. partial(v, b) is where rank v keeps what it has combined of block b, result(v) where
/// its own block goes at last. Ranks and blocks count from the root.
template <class Own, class Partial, class Result>
std::size_t halve(builder& to, std::size_t round, const std::vector<element_range>& blocks, std::int64_t base,
                  bool is_double, const Own& own, const Partial& partial, const Result& result) {
  const int n = to.ranks();
  const bool exchanges = is_power_of_two(n);
  int combined = 0;  // each rank has combined so many blocks, from its own on: all that the next steps are about
  for (const int distance : distances_down(n)) {
    const int carried = std::min(distance, n - distance);
    std::vector<std::vector<block_fold>> received(static_cast<std::size_t>(n));
    for (int v = 0; v < n; ++v) {
      const partner from = partner_of(to, v, distance, false);
      for (int i = 0; i < carried; ++i) {
        const int b = to.wrapped(from.first_block + i);
        const bool is_sent_on = exchanges ? combined > 0 : distance + i < combined;
        const bool is_mine = exchanges ? combined > 0 : i < combined;
        append(received[static_cast<std::size_t>(v)],
               {is_sent_on ? partial(from.rank, b) : own(from.rank, b), is_mine ? partial(v, b) : own(v, b),
                distance == 1 ? result(v) : partial(v, b), blocks[static_cast<std::size_t>(b)].count});
      }
    }
    combined = carried;
    round = combine(to, round, received, base, is_double, distance == 1);
  }
  return round;
}

/// All-gather: at(v, b) is where rank v has block b in its output, first(v) where it has its own.
template <class At, class First>
std::size_t double_up(builder& to, std::size_t round, const std::vector<element_range>& blocks, const At& at,
                      const First& first, int complete) {
  const int n = to.ranks();
  for (const int distance : distances_up(n)) {
    std::vector<std::vector<block_move>> received(static_cast<std::size_t>(n));
    for (int v = 0; v < n; ++v) {
      if (v == complete) continue;
      const partner from = partner_of(to, v, distance, true);
      for (int i = 0; i < std::min(distance, n - distance); ++i) {
        const int b = to.wrapped(from.first_block + i);
        append(received[static_cast<std::size_t>(v)], {distance == 1 ? first(from.rank) : at(from.rank, b), at(v, b),
                                                       blocks[static_cast<std::size_t>(b)].count});
      }
    }
    round = ship(to, round, received);
  }
  return round;
}

/// The binomial tree: rank v holds the blocks from its own to that of the next rank that is as high as it. Down from
/// the root, or up to it.
template <class Source, class Target>
std::size_t along_binomial(builder& to, std::size_t round, const std::vector<element_range>& blocks, bool is_down,
                           const Source& source, const Target& target) {
  const int n = to.ranks();
  for (const int distance : is_down ? distances_down(n) : distances_up(n)) {
    std::vector<std::vector<block_move>> received(static_cast<std::size_t>(n));
    for (int high = 0; high + distance < n; high += 2 * distance) {
      const int low = high + distance;
      const int from = is_down ? high : low;
      const int into = is_down ? low : high;
      for (int b = low; b < std::min(low + distance, n); ++b)
        append(received[static_cast<std::size_t>(into)],
               {source(from, b), target(into, b), blocks[static_cast<std::size_t>(b)].count});
    }
    round = ship(to, round, received);
  }
  return round;
}

void halving_all_reduce(builder& to) {
  const std::vector<element_range> blocks = even_blocks(to);
  const auto start = [&](int b) { return blocks[static_cast<std::size_t>(b)].at; };
  const auto own = [&](int v, int b) { return builder::input(near_first(to, v), start(b)); };
  const auto made = [&](int v, int b) { return builder::output(near_first(to, v), start(b)); };
  const auto first = [&](int v) { return made(v, v); };
  const std::size_t round = halve(to, 0, blocks, 0, true, own, made, first);
  double_up(to, round, blocks, made, first, -1);
}

void halving_reduce_scatter(builder& to) {
  const std::vector<element_range> whole = blocks_from(to, 0);
  std::size_t round = 0;
  for (const block_cut& cut : cuts_of(to, whole)) {
    const auto at = [&](int b) { return cut.blocks[static_cast<std::size_t>(b)].at; };
    round = halve(
        to, round, cut.blocks, cut.total, false, [&](int v, int b) { return builder::input(v, at(b)); },
        [&](int v, int b) { return builder::scratch(v, cut.packed_at[static_cast<std::size_t>(b)]); },
        [&](int v) { return builder::output(v, at(v) - whole[static_cast<std::size_t>(v)].at); });
  }
}

void halving_reduce(builder& to) {
  std::size_t round = 0;
  const auto rank_of = [&](int v) { return to.wrapped(to.root() + near_first(to, v)); };
  for (const block_cut& cut : cuts_of(to, even_blocks(to))) {
    const auto at = [&](int b) { return cut.blocks[static_cast<std::size_t>(b)].at; };
    const auto packed = [&](int v, int b) {
      return builder::scratch(rank_of(v), cut.packed_at[static_cast<std::size_t>(b)]);
    };
    const auto made = [&](int v, int b) { return v == 0 ? builder::output(to.root(), at(b)) : packed(v, b); };
    round = halve(
        to, round, cut.blocks, cut.total, false, [&](int v, int b) { return builder::input(rank_of(v), at(b)); },
        packed, [&](int v) { return made(v, v); });
    round = along_binomial(to, round, cut.blocks, false, packed, made);
  }
}

void doubling_all_gather(builder& to) {
  const std::vector<element_range> blocks = blocks_from(to, 0);
  const auto made = [&](int v, int b) { return builder::output(v, blocks[static_cast<std::size_t>(b)].at); };
  for (int r = 0; r < to.ranks(); ++r) to.move_all(0, builder::input(r, 0), made(r, r), to.count(r));
  double_up(to, 0, blocks, made, [](int v) { return builder::input(v, 0); }, -1);
}

void halving_broadcast(builder& to) {
  const std::vector<element_range> blocks = even_blocks(to);
  const auto target = [&](int v, int b) {
    return builder::output(to.wrapped(to.root() + near_first(to, v)), blocks[static_cast<std::size_t>(b)].at);
  };
  const auto source = [&](int v, int b) {
    return v == 0 ? builder::input(to.root(), blocks[static_cast<std::size_t>(b)].at) : target(v, b);
  };
  to.move_all(0, builder::input(to.root(), 0), builder::output(to.root(), 0), to.count());
  const std::size_t round = along_binomial(to, 0, blocks, true, source, target);
  const auto at = [&](int v, int b) { return source(v, b); };
  double_up(to, round, blocks, at, [&](int v) { return source(v, v); }, 0);
}

void halving_scatter(builder& to) {
  const std::vector<element_range> whole = blocks_from(to, to.root());
  const auto rank_of = [&](int v) { return to.wrapped(to.root() + v); };
  to.move_all(0, builder::input(to.root(), whole[0].at), builder::output(to.root(), 0), whole[0].count);
  std::size_t round = 0;
  for (const block_cut& cut : cuts_of(to, whole)) {
    const auto packed = [&](int v, int b) {
      return builder::scratch(rank_of(v), cut.packed_at[static_cast<std::size_t>(b)]);
    };
    round = along_binomial(
        to, round, cut.blocks, true,
        [&](int v, int b) {
          return v == 0 ? builder::input(to.root(), cut.blocks[static_cast<std::size_t>(b)].at) : packed(v, b);
        },
        [&](int v, int b) {
          const auto i = static_cast<std::size_t>(b);
          return v == b ? builder::output(rank_of(v), cut.blocks[i].at - whole[i].at) : packed(v, b);
        });
  }
}

void doubling_gather(builder& to) {
  const std::vector<element_range> whole = blocks_from(to, to.root());
  const auto rank_of = [&](int v) { return to.wrapped(to.root() + v); };
  to.move_all(0, builder::input(to.root(), 0), builder::output(to.root(), whole[0].at), whole[0].count);
  std::size_t round = 0;
  for (const block_cut& cut : cuts_of(to, whole)) {
    const auto packed = [&](int v, int b) {
      return builder::scratch(rank_of(v), cut.packed_at[static_cast<std::size_t>(b)]);
    };
    round = along_binomial(
        to, round, cut.blocks, false,
        [&](int v, int b) {
          const auto i = static_cast<std::size_t>(b);
          return v == b ? builder::input(rank_of(v), cut.blocks[i].at - whole[i].at) : packed(v, b);
        },
        [&](int v, int b) {
          return v == 0 ? builder::output(to.root(), cut.blocks[static_cast<std::size_t>(b)].at) : packed(v, b);
        });
  }
}

}  // namespace

void schedule_halving_doubling(schedule_builder& to) {
  switch (to.shape().what) {
    case collective::all_reduce:
      return halving_all_reduce(to);
    case collective::reduce:
      return halving_reduce(to);
    case collective::reduce_scatter:
      return halving_reduce_scatter(to);
    case collective::all_gather:
      return doubling_all_gather(to);
    case collective::broadcast:
      return halving_broadcast(to);
    case collective::scatter:
      return halving_scatter(to);
    case collective::gather:
      return doubling_gather(to);
    case collective::all_to_all:
      return;  // not offered
  }
}

}  // namespace weft::detail
