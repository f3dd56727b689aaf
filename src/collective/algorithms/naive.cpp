// SPDX-License-Identifier: Apache-2.0
// Everything through one rank, a piece at a time: the yardstick, and the way that keeps the order of ranks without
// mapped memory.
#include "collective/algorithms/schedule_builder.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

using builder = schedule_builder;

/// Everybody's part of [at, at + count) comes to `centre`, which combines them in the order of ranks.
void collect(builder& to, std::size_t round, int centre, std::int64_t at, const schedule_place& result,
             std::int64_t count) {
  std::vector<schedule_place> inputs;
  std::vector<schedule_place> outputs;
  inputs.reserve(static_cast<std::size_t>(to.ranks()));
  outputs.reserve(2);
  // A fold of many inputs, or by a user's operation, works in its first output, which in place would be one that it has
  // still to read; the first contribution is read by then.
  if (centre > 0) outputs.push_back(builder::scratch(centre, 0));
  outputs.push_back(result);
  std::int64_t slot = 0;
  for (int r = 0; r < to.ranks(); ++r) {
    if (r == centre) {
      inputs.push_back(builder::input(r, at));
      continue;
    }
    inputs.push_back(builder::scratch(centre, slot));
    to.move(round, builder::input(r, at), builder::scratch(centre, slot), count);
    slot += count;
  }
  to.fold(round, centre, std::move(inputs), std::move(outputs), count, true);
}

void naive_reduce(builder& to) {
  const bool for_all = to.shape().what == collective::all_reduce;
  const int centre = for_all ? 0 : to.root();
  const std::int64_t pieces = to.pieces_of(to.count());
  std::size_t round = 0;
  for (std::int64_t k = 0; k < pieces; ++k) {
    const element_range part = part_of(to.count(), pieces, k);
    collect(to, round++, centre, part.at, builder::output(centre, part.at), part.count);
    if (!for_all) continue;
    for (int r = 1; r < to.ranks(); ++r)
      to.move(round, builder::output(0, part.at), builder::output(r, part.at), part.count);
    ++round;
  }
}

void naive_reduce_scatter(builder& to) {
  const std::vector<std::int64_t> starts = starts_of(to.shape().counts);
  std::size_t round = 0;
  for (int block = 0; block < to.ranks(); ++block) {
    const std::int64_t pieces = to.pieces_of(to.count(block));
    for (std::int64_t k = 0; k < pieces; ++k) {
      const element_range part = part_of(to.count(block), pieces, k);
      // behind the contributions: rank 0's input belongs to the caller
      const schedule_place result =
          block == 0 ? builder::output(0, part.at) : builder::scratch(0, (to.ranks() - 1) * part.count);
      collect(to, round++, 0, starts[static_cast<std::size_t>(block)] + part.at, result, part.count);
      if (block != 0) to.move(round++, result, builder::output(block, part.at), part.count);
    }
  }
}

void naive_broadcast(builder& to) {
  const std::int64_t pieces = to.pieces_of(to.count());
  to.move_all(0, builder::input(to.root(), 0), builder::output(to.root(), 0), to.count());
  for (std::int64_t k = 0; k < pieces; ++k) {
    const element_range part = part_of(to.count(), pieces, k);
    for (int r = 0; r < to.ranks(); ++r) {
      if (r == to.root()) continue;
      to.move(static_cast<std::size_t>(k), builder::input(to.root(), part.at), builder::output(r, part.at), part.count);
    }
  }
}

/// Blocks between a centre and everybody, a piece of each in a round. The number of rounds that took.
std::size_t blocks_through(builder& to, int centre, bool to_centre) {
  const std::vector<std::int64_t> starts = starts_of(to.shape().counts);
  std::int64_t rounds = 1;
  for (int r = 0; r < to.ranks(); ++r) {
    const std::int64_t start = starts[static_cast<std::size_t>(r)];
    const schedule_place from = to_centre ? builder::input(r, 0) : builder::input(centre, start);
    const schedule_place into = to_centre ? builder::output(centre, start) : builder::output(r, 0);
    if (r == centre) {
      to.move_all(0, from, into, to.count(r));
      continue;
    }
    const std::int64_t pieces = to.pieces_of(to.count(r));
    rounds = std::max(rounds, pieces);
    for (std::int64_t k = 0; k < pieces; ++k) {
      const element_range part = part_of(to.count(r), pieces, k);
      schedule_place a = from;
      schedule_place b = into;
      a.at += part.at;
      b.at += part.at;
      to.move(static_cast<std::size_t>(k), a, b, part.count);
    }
  }
  return static_cast<std::size_t>(rounds);
}

void naive_all_gather(builder& to) {
  std::size_t round = blocks_through(to, 0, true);
  const std::int64_t total = starts_of(to.shape().counts).back();
  const std::int64_t pieces = to.pieces_of(total);
  for (std::int64_t k = 0; k < pieces; ++k, ++round) {
    const element_range part = part_of(total, pieces, k);
    for (int r = 1; r < to.ranks(); ++r)
      to.move(round, builder::output(0, part.at), builder::output(r, part.at), part.count);
  }
}

/// There is nothing to combine, so nothing goes through rank 0: each rank sends to the others, one after another.
void naive_all_to_all(builder& to) {
  const int n = to.ranks();
  const auto count_of = [&](int from, int into) { return to.count(from * n + into); };
  const auto sent_at = [&](int from, int into) {
    std::int64_t at = 0;
    for (int r = 0; r < into; ++r) at += count_of(from, r);
    return at;
  };
  const auto received_at = [&](int from, int into) {
    std::int64_t at = 0;
    for (int r = 0; r < from; ++r) at += count_of(r, into);
    return at;
  };
  for (int r = 0; r < n; ++r)
    to.move_all(0, builder::input(r, sent_at(r, r)), builder::output(r, received_at(r, r)), count_of(r, r));
  std::size_t round = 0;
  for (int distance = 1; distance < n; ++distance) {
    std::int64_t rounds = 1;
    for (int from = 0; from < n; ++from) {
      const int into = to.wrapped(from + distance);
      const std::int64_t count = count_of(from, into);
      const std::int64_t pieces = to.pieces_of(count);
      rounds = std::max(rounds, pieces);
      for (std::int64_t k = 0; k < pieces; ++k) {
        const element_range part = part_of(count, pieces, k);
        to.move(round + static_cast<std::size_t>(k), builder::input(from, sent_at(from, into) + part.at),
                builder::output(into, received_at(from, into) + part.at), part.count);
      }
    }
    round += static_cast<std::size_t>(rounds);
  }
}

}  // namespace

void schedule_naive(schedule_builder& to) {
  switch (to.shape().what) {
    case collective::all_reduce:
    case collective::reduce:
      return naive_reduce(to);
    case collective::reduce_scatter:
      return naive_reduce_scatter(to);
    case collective::all_gather:
      return naive_all_gather(to);
    case collective::broadcast:
      return naive_broadcast(to);
    case collective::scatter:
      blocks_through(to, to.root(), false);
      return;
    case collective::gather:
      blocks_through(to, to.root(), true);
      return;
    case collective::all_to_all:
      return naive_all_to_all(to);
  }
}

}  // namespace weft::detail
