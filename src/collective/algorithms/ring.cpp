// SPDX-License-Identifier: Apache-2.0
// Rings: each rank hears only from the one before it and speaks only to the one behind it. What goes round is one
// chunk's partial result, never the whole accumulated buffer, or contributions would be counted several times.
// Source: P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations (2009).
#include "collective/algorithms/schedule_builder.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

using builder = schedule_builder;

/// Chunk c begins at the rank behind c … and goes round; then the finished chunks go round once more.
void ring_all_reduce(builder& to) {
  const int n = to.ranks();
  const std::int64_t pieces = to.pieces_of(part_of(to.count(), n, 0).count);
  const std::int64_t slot = part_of(part_of(to.count(), n, 0).count, pieces, 0).count;
  const auto piece_of_chunk = [&](int chunk, std::int64_t k) {
    const element_range whole = part_of(to.count(), n, to.wrapped(chunk));
    const element_range part = part_of(whole.count, pieces, k);
    return element_range{whole.at + part.at, part.count};
  };
  std::size_t round = 0;
  for (int step = 0; step + 1 < n; ++step) {
    for (std::int64_t k = 0; k < pieces; ++k, ++round) {
      const std::int64_t landing = round % 2 == 0 ? 0 : slot;  // the other one is still being combined
      for (int r = 0; r < n; ++r) {
        const int before = to.wrapped(r - 1);
        const element_range part = piece_of_chunk(r - step - 1, k);
        to.move(round, step == 0 ? builder::input(before, part.at) : builder::output(before, part.at),
                builder::scratch(r, landing), part.count);
        to.combine(round, r, {builder::scratch(r, landing), builder::input(r, part.at)}, builder::output(r, part.at),
                   part.count, step + 2 == n);
      }
    }
  }
  for (int step = 0; step + 1 < n; ++step) {
    for (std::int64_t k = 0; k < pieces; ++k, ++round) {
      for (int r = 0; r < n; ++r) {
        const element_range part = piece_of_chunk(r - step, k);
        to.move(round, builder::output(to.wrapped(r - 1), part.at), builder::output(r, part.at), part.count);
      }
    }
  }
}

/// Block b begins at the rank behind b and ends at b. Partial results live in two slots of scratch, so one piece of
/// every block goes all the way round before the next begins.
void ring_reduce_scatter(builder& to) {
  const int n = to.ranks();
  const std::vector<std::int64_t> starts = starts_of(to.shape().counts);
  const std::int64_t longest = *std::max_element(to.shape().counts.begin(), to.shape().counts.end());
  const std::int64_t pieces = to.pieces_of(longest);
  const std::int64_t slot = part_of(longest, pieces, 0).count;
  std::size_t round = 0;
  for (std::int64_t k = 0; k < pieces; ++k) {
    for (int step = 0; step + 1 < n; ++step, ++round) {
      const std::int64_t landing = step % 2 == 0 ? 0 : slot;
      const std::int64_t leaving = step % 2 == 0 ? slot : 0;
      for (int r = 0; r < n; ++r) {
        const int before = to.wrapped(r - 1);
        const int block = to.wrapped(r - step - 2);
        const element_range part = part_of(to.count(block), pieces, k);
        const std::int64_t at = starts[static_cast<std::size_t>(block)] + part.at;
        const bool is_last = step + 2 == n;
        to.move(round, step == 0 ? builder::input(before, at) : builder::scratch(before, leaving),
                builder::scratch(r, landing), part.count);
        to.combine(round, r, {builder::scratch(r, landing), builder::input(r, at)},
                   is_last ? builder::output(r, part.at) : builder::scratch(r, landing), part.count, is_last);
      }
    }
  }
}

void ring_all_gather(builder& to) {
  const int n = to.ranks();
  const std::vector<std::int64_t> starts = starts_of(to.shape().counts);
  const std::int64_t pieces = to.pieces_of(*std::max_element(to.shape().counts.begin(), to.shape().counts.end()));
  for (int r = 0; r < n; ++r)
    to.move_all(0, builder::input(r, 0), builder::output(r, starts[static_cast<std::size_t>(r)]), to.count(r));
  std::size_t round = 0;
  for (int step = 0; step + 1 < n; ++step) {
    for (std::int64_t k = 0; k < pieces; ++k, ++round) {
      for (int r = 0; r < n; ++r) {
        const int before = to.wrapped(r - 1);
        const int block = to.wrapped(before - step);
        const element_range part = part_of(to.count(block), pieces, k);
        const std::int64_t at = starts[static_cast<std::size_t>(block)] + part.at;
        to.move(round, step == 0 ? builder::input(before, part.at) : builder::output(before, at),
                builder::output(r, at), part.count);
      }
    }
  }
}

/// A chain from the root on, with a piece on each of its links.
void chain_broadcast(builder& to) {
  const int n = to.ranks();
  const std::int64_t pieces = to.pieces_of(to.count());
  to.move_all(0, builder::input(to.root(), 0), builder::output(to.root(), 0), to.count());
  for (std::int64_t k = 0; k < pieces; ++k) {
    const element_range part = part_of(to.count(), pieces, k);
    for (int hop = 0; hop + 1 < n; ++hop) {
      const int from = to.wrapped(to.root() + hop);
      to.move(static_cast<std::size_t>(k + hop),
              hop == 0 ? builder::input(from, part.at) : builder::output(from, part.at),
              builder::output(to.wrapped(from + 1), part.at), part.count);
    }
  }
}

/// A chain that ends at the root: each link carries the array once, and each rank adds its own on the way.
void chain_reduce(builder& to) {
  const int n = to.ranks();
  const std::int64_t pieces = to.pieces_of(to.count());
  const std::int64_t slot = part_of(to.count(), pieces, 0).count;
  for (std::int64_t k = 0; k < pieces; ++k) {
    const element_range part = part_of(to.count(), pieces, k);
    const std::int64_t landing = k % 2 == 0 ? 0 : slot;  // the piece before is leaving from the other
    for (int hop = 0; hop + 1 < n; ++hop) {
      const auto round = static_cast<std::size_t>(k + hop);
      const int from = to.wrapped(to.root() + 1 + hop);
      const int at = to.wrapped(from + 1);
      const bool is_last = hop + 2 == n;
      to.move(round, hop == 0 ? builder::input(from, part.at) : builder::scratch(from, landing),
              builder::scratch(at, landing), part.count);
      to.combine(round, at, {builder::scratch(at, landing), builder::input(at, part.at)},
                 is_last ? builder::output(at, part.at) : builder::scratch(at, landing), part.count, is_last);
    }
  }
}

}  // namespace

void schedule_ring(schedule_builder& to) {
  switch (to.shape().what) {
    case collective::all_reduce:
      return ring_all_reduce(to);
    case collective::reduce:
      return chain_reduce(to);
    case collective::reduce_scatter:
      return ring_reduce_scatter(to);
    case collective::all_gather:
      return ring_all_gather(to);
    case collective::broadcast:
      return chain_broadcast(to);
    case collective::scatter:
    case collective::gather:
    case collective::all_to_all:
      return;  // not offered
  }
}

}  // namespace weft::detail
