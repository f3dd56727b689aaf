// SPDX-License-Identifier: Apache-2.0
// One binary tree, in order: what hangs on the left of a rank comes before it, what hangs on its right behind it. So
// each partial result is of consecutive ranks, counted from the root, and ranks that are close in number are close
// in the tree. The root has one child. Pieces go up and down at the same time: in the long run an inner rank receives
// two pieces from below and one from above in each round.
// Source: P. Sanders, J. Speck, J. L. Träff: Two-tree algorithms for full bandwidth broadcast (2009); one tree of two.
#include "collective/algorithms/schedule_builder.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

using builder = schedule_builder;

struct tree_node {
  int left = -1, right = -1;  // counted from the root
  int depth = 0;
};

/// Hangs [begin, end) below; the rank in the middle goes on top.
int hang(std::vector<tree_node>& nodes, int begin, int end, int depth) {
  if (begin >= end) return -1;
  const int middle = begin + (end - begin) / 2;
  tree_node& node = nodes[static_cast<std::size_t>(middle)];
  node.depth = depth;
  node.left = hang(nodes, begin, middle, depth + 1);
  node.right = hang(nodes, middle + 1, end, depth + 1);
  return middle;
}

struct tree {
  explicit tree(int ranks) : nodes(static_cast<std::size_t>(ranks)) {
    nodes[0].right = hang(nodes, 1, ranks, 1);
    for (const tree_node& node : nodes) depth = std::max(depth, node.depth);
  }
  std::vector<tree_node> nodes;
  int depth = 0;
};

/// Piece k at depth d goes up in round k + depth − 1 − d, together with those of the ranks beside it.
void go_up(builder& to, const tree& shape) {
  const bool keeps = to.shape().what == collective::all_reduce;  // each rank has room for a result of its own
  const std::int64_t pieces = to.pieces_of(to.count());
  const std::int64_t slot = part_of(to.count(), pieces, 0).count;
  const auto rank_of = [&](int node) { return to.wrapped(to.root() + node); };
  for (std::int64_t k = 0; k < pieces; ++k) {
    const element_range part = part_of(to.count(), pieces, k);
    const std::int64_t left = k % 2 == 0 ? 0 : 2 * slot;  // the piece before is leaving from the others
    const std::int64_t right = left + slot;
    const auto result = [&](int node) {  // of what hangs below it, and its own
      const tree_node& n = shape.nodes[static_cast<std::size_t>(node)];
      if (node == 0 || (keeps && (n.left >= 0 || n.right >= 0))) return builder::output(rank_of(node), part.at);
      if (n.left < 0 && n.right < 0) return builder::input(rank_of(node), part.at);
      return builder::scratch(rank_of(node), n.left >= 0 ? left : right);
    };
    for (int node = 0; node < to.ranks(); ++node) {
      const tree_node& n = shape.nodes[static_cast<std::size_t>(node)];
      if (n.left < 0 && n.right < 0) continue;
      const auto round = static_cast<std::size_t>(k + shape.depth - 1 - n.depth);
      const int rank = rank_of(node);
      std::vector<schedule_place> inputs;
      inputs.reserve(3);
      if (n.left >= 0) {
        to.move(round, result(n.left), builder::scratch(rank, left), part.count);
        inputs.push_back(builder::scratch(rank, left));
      }
      inputs.push_back(builder::input(rank, part.at));
      if (n.right >= 0) {
        to.move(round, result(n.right), builder::scratch(rank, right), part.count);
        inputs.push_back(builder::scratch(rank, right));
      }
      to.combine(round, rank, std::move(inputs), result(node), part.count, node == 0);
    }
  }
}

/// Piece k leaves depth d in round first + k + d.
void go_down(builder& to, const tree& shape, std::int64_t first) {
  const bool is_broadcast = to.shape().what == collective::broadcast;
  const std::int64_t pieces = to.pieces_of(to.count());
  for (std::int64_t k = 0; k < pieces; ++k) {
    const element_range part = part_of(to.count(), pieces, k);
    for (int node = 0; node < to.ranks(); ++node) {
      const tree_node& n = shape.nodes[static_cast<std::size_t>(node)];
      const int rank = to.wrapped(to.root() + node);
      for (const int child : {n.left, n.right}) {
        if (child < 0) continue;
        to.move(static_cast<std::size_t>(first + k + n.depth),
                is_broadcast && node == 0 ? builder::input(rank, part.at) : builder::output(rank, part.at),
                builder::output(to.wrapped(to.root() + child), part.at), part.count);
      }
    }
  }
}

}  // namespace

void schedule_tree(schedule_builder& to) {
  const tree shape{to.ranks()};
  switch (to.shape().what) {
    case collective::all_reduce:
      go_up(to, shape);
      return go_down(to, shape, shape.depth);
    case collective::reduce:
      return go_up(to, shape);
    case collective::broadcast:
      to.move_all(0, builder::input(to.root(), 0), builder::output(to.root(), 0), to.count());
      return go_down(to, shape, 0);
    case collective::reduce_scatter:
    case collective::all_gather:
    case collective::scatter:
    case collective::gather:
    case collective::all_to_all:
      return;  // not offered
  }
}

}  // namespace weft::detail
