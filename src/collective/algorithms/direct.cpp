// SPDX-License-Identifier: Apache-2.0
// Everybody works on everybody's mapped memory, in one round: each rank combines its slice of all inputs, in the order
// of ranks, and puts it where it is wanted; or pulls what it is to have.
#include "collective/algorithms/schedule_builder.hpp"
#include "collective/fold/fold.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

using builder = schedule_builder;

/// Rank r makes slices[r], which everybody has at the same place of its input, and stores it into `outputs`. A fold of
/// more inputs than it takes at once keeps what it has in its first output: that is one of its own, and not one that it
/// still has to read, or a place in scratch. Only with scratch are long slices cut.
template <class Outputs>
void fold_slices(builder& to, const std::vector<element_range>& slices, const Outputs& outputs) {
  const int n = to.ranks();
  for (int r = 0; r < n; ++r) {
    const element_range slice = slices[static_cast<std::size_t>(r)];
    std::vector<schedule_place> wanted = outputs(r);
    const bool is_mine = wanted.front().rank == r && static_cast<std::size_t>(r) < fold_width;
    const bool aside = static_cast<std::size_t>(n) > fold_width && !is_mine;
    const std::int64_t pieces = aside ? to.pieces_of(slice.count) : 1;
    for (std::int64_t k = 0; k < pieces; ++k) {
      const element_range part = part_of(slice.count, pieces, k);
      std::vector<schedule_place> inputs;
      std::vector<schedule_place> made;
      inputs.reserve(static_cast<std::size_t>(n));
      made.reserve(wanted.size() + 1);
      for (int i = 0; i < n; ++i) inputs.push_back(builder::input(i, slice.at + part.at));
      if (aside) made.push_back(builder::scratch(r, 0));
      for (schedule_place place : wanted) {
        place.at += part.at;
        made.push_back(place);
      }
      to.fold(static_cast<std::size_t>(k), r, std::move(inputs), std::move(made), part.count, true);
    }
  }
}

void direct_reduce(builder& to) {
  const int n = to.ranks();
  std::vector<element_range> slices;
  slices.reserve(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r) slices.push_back(part_of(to.count(), n, r));
  fold_slices(to, slices, [&](int r) {
    const std::int64_t at = slices[static_cast<std::size_t>(r)].at;
    if (to.shape().what == collective::reduce) return std::vector{builder::output(to.root(), at)};
    std::vector<schedule_place> all;
    all.reserve(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) all.push_back(builder::output(to.wrapped(r + i), at));  // its own first
    return all;
  });
}

void direct_reduce_scatter(builder& to) {
  const std::vector<std::int64_t> starts = starts_of(to.shape().counts);
  std::vector<element_range> slices;
  slices.reserve(static_cast<std::size_t>(to.ranks()));
  for (int r = 0; r < to.ranks(); ++r) slices.push_back({starts[static_cast<std::size_t>(r)], to.count(r)});
  fold_slices(to, slices, [](int r) { return std::vector{builder::output(r, 0)}; });
}

/// All moves at once. Partners are taken in turns, so that links work side by side however they are served.
void direct_moves(builder& to) {
  const int n = to.ranks();
  const collective what = to.shape().what;
  const std::vector<std::int64_t> starts = starts_of(to.shape().counts);
  const auto start = [&](int r) { return starts[static_cast<std::size_t>(r)]; };
  for (int distance = 0; distance < n; ++distance) {
    for (int r = 0; r < n; ++r) {  // receives
      const int from = to.wrapped(r + distance);
      if (what == collective::broadcast && from == to.root()) {
        to.move_all(0, builder::input(from, 0), builder::output(r, 0), to.count());
      } else if (what == collective::scatter && from == to.root()) {
        to.move_all(0, builder::input(from, start(r)), builder::output(r, 0), to.count(r));
      } else if (what == collective::all_gather || (what == collective::gather && r == to.root())) {
        to.move_all(0, builder::input(from, 0), builder::output(r, start(from)), to.count(from));
      } else if (what == collective::all_to_all) {
        std::int64_t received_at = 0;
        for (int other = 0; other < from; ++other) received_at += to.count(other * n + r);
        to.move_all(0, builder::input(from, start(from * n + r) - start(from * n)), builder::output(r, received_at),
                    to.count(from * n + r));
      }
    }
  }
}

}  // namespace

void schedule_direct(schedule_builder& to) {
  switch (to.shape().what) {
    case collective::all_reduce:
    case collective::reduce:
      return direct_reduce(to);
    case collective::reduce_scatter:
      return direct_reduce_scatter(to);
    case collective::all_gather:
    case collective::broadcast:
    case collective::scatter:
    case collective::gather:
    case collective::all_to_all:
      return direct_moves(to);
  }
}

}  // namespace weft::detail
