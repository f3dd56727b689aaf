// SPDX-License-Identifier: Apache-2.0
// Ranks on several nodes: what can stay inside a node stays there, and each byte goes over the network as seldom as
// possible. Every node has the same number of owners, its first ranks: the owners at one place of all nodes look after
// one slice. A slice is combined inside the node by its owner, goes round the nodes in a ring of owners, and spreads
// inside the node. Pieces follow each other, so that the network and the insides of the nodes work at the same time.
// Source: the scheme of NCCL's and MPI's hierarchical all-reduce: reduce-scatter inside, all-reduce between equal local
// ranks, all-gather inside.
#include "collective/algorithms/schedule_builder.hpp"

#include <algorithm>
#include <map>

namespace weft::detail {
namespace {

using builder = schedule_builder;
using members = std::vector<int>;

class node_schedule {
 public:
  explicit node_schedule(builder& to) : to_(to), place_(static_cast<std::size_t>(to.ranks())) {
    std::map<int, std::size_t> known;
    for (int r = 0; r < to.ranks(); ++r) {
      const int node = to.shape().nodes[static_cast<std::size_t>(r)];
      const std::size_t at = known.try_emplace(node, known.size()).first->second;
      if (at == nodes_.size()) nodes_.emplace_back();
      place_[static_cast<std::size_t>(r)] = {at, nodes_[at].size()};
      nodes_[at].push_back(r);
    }
    owners_ = nodes_.front().size();
    for (const members& node : nodes_) owners_ = std::min(owners_, node.size());
  }

  void all_reduce() {
    const std::int64_t pieces = pieces_of_slices();
    const element_range longest = slice(0, pieces, 0);
    for (std::int64_t k = 0; k < pieces; ++k) {
      const auto first = static_cast<std::size_t>(k);
      for (std::size_t s = 0; s < owners_; ++s) {
        const element_range part = slice(k, pieces, s);
        for (const members& node : nodes_)
          combine_inside(first, node, node[s], part.at, builder::output(node[s], part.at), part.count, longest.count);
        go_round(first + 1, s, part, longest.count);
        for (std::size_t n = 0; n < count(); ++n)
          spread(first + 2 * count() - 1, n, builder::output(nodes_[n][s], part.at), part);
      }
    }
  }

  /// The slices come to the node of the root in a chain, and there to the root.
  void reduce() {
    const std::int64_t pieces = pieces_of_slices();
    const std::int64_t slot = slice(0, pieces, 0).count;
    const std::size_t last = count() - 1;
    for (std::int64_t k = 0; k < pieces; ++k) {
      for (std::size_t s = 0; s < owners_; ++s) {
        const element_range part = slice(k, pieces, s);
        schedule_place carried{};
        for (std::size_t hop = 0; hop < count(); ++hop) {
          const members& node = nodes_[behind_root(hop + 1)];
          const int owner = node[s];
          const std::size_t round = static_cast<std::size_t>(k) + hop;
          // room: the ranks beside it, two partial results in turn, what comes from the node before, what goes on
          const std::int64_t partial_at = (static_cast<std::int64_t>(node.size()) - 1 + k % 2) * slot;
          const std::int64_t landing = (static_cast<std::int64_t>(node.size()) + 1) * slot;
          const schedule_place partial =
              node.size() == 1 ? builder::input(owner, part.at) : builder::scratch(owner, partial_at);
          combine_inside(round == 0 ? 0 : round - (hop == 0 ? 0 : 1), node, owner, part.at, partial, part.count, slot);
          if (hop == 0) {
            carried = partial;
            continue;
          }
          to_.move(round, carried, builder::scratch(owner, landing), part.count);
          const bool is_result = hop == last && owner == to_.root();
          const schedule_place sum =
              is_result ? builder::output(owner, part.at) : builder::scratch(owner, landing + slot);
          to_.combine(round, owner, {builder::scratch(owner, landing), partial}, sum, part.count, hop == last);
          carried = sum;
        }
        if (nodes_[behind_root(0)][s] != to_.root())
          to_.move(static_cast<std::size_t>(k) + count(), carried, builder::output(to_.root(), part.at), part.count);
      }
    }
  }

  /// The slices leave the root for the owners beside it, go from node to node in a chain, and spread in each.
  void broadcast() {
    const std::int64_t pieces = pieces_of_slices();
    const int root = to_.root();
    to_.move_all(0, builder::input(root, 0), builder::output(root, 0), to_.count());
    for (std::int64_t k = 0; k < pieces; ++k) {
      for (std::size_t s = 0; s < owners_; ++s) {
        const element_range part = slice(k, pieces, s);
        const auto round = static_cast<std::size_t>(k);
        const int first = nodes_[behind_root(0)][s];
        schedule_place from = builder::input(root, part.at);
        if (first != root) {
          to_.move(round, from, builder::output(first, part.at), part.count);
          from = builder::output(first, part.at);
        }
        for (std::size_t hop = 0; hop < count(); ++hop) {
          const std::size_t node = behind_root(hop);
          if (hop != 0) {
            const schedule_place next = builder::output(nodes_[node][s], part.at);
            to_.move(round + hop, from, next, part.count);
            from = next;
          }
          spread(round + hop + 1, node, from, part);
        }
      }
    }
  }

  /// In each node the rank at the owner's place combines the node's part of a block, and sends it to the owner.
  void reduce_scatter() {
    const std::vector<std::int64_t> starts = starts_of(to_.shape().counts);
    const std::int64_t longest = *std::max_element(to_.shape().counts.begin(), to_.shape().counts.end());
    const std::int64_t pieces = to_.pieces_of(longest);
    const std::int64_t slot = part_of(longest, pieces, 0).count;
    std::vector<std::int64_t> used(static_cast<std::size_t>(to_.ranks()));  // of each rank's scratch, in slots
    const auto take = [&](int rank, std::int64_t slots) {
      std::int64_t& from = used[static_cast<std::size_t>(rank)];
      return (from += slots) - slots;
    };
    for (int block = 0; block < to_.ranks(); ++block) {
      const auto [home, local] = place_[static_cast<std::size_t>(block)];
      std::vector<std::int64_t> room(count());
      for (std::size_t n = 0; n < count(); ++n)
        room[n] = take(stand_in(n, local), static_cast<std::int64_t>(nodes_[n].size()) + 1);
      const std::int64_t landing = take(block, static_cast<std::int64_t>(count()) - 1);
      for (std::int64_t k = 0; k < pieces; ++k) {
        const auto round = static_cast<std::size_t>(k);
        const element_range part = part_of(to_.count(block), pieces, k);
        const std::int64_t at = starts[static_cast<std::size_t>(block)] + part.at;
        std::vector<schedule_place> inputs;
        std::int64_t came = landing;
        for (std::size_t n = 0; n < count(); ++n) {
          const int by = stand_in(n, local);
          const auto beside = static_cast<std::int64_t>(nodes_[n].size()) - 1;
          // two partial results in turn: one leaves while the next is made
          const schedule_place partial =
              beside == 0 ? builder::input(by, at) : builder::scratch(by, (room[n] + beside + k % 2) * slot);
          combine_inside(round, nodes_[n], by, at, partial, part.count, slot, room[n] * slot);
          inputs.push_back(partial);
          if (n == home) continue;
          inputs.back() = builder::scratch(block, came++ * slot);
          to_.move(round + 1, partial, inputs.back(), part.count);
        }
        to_.combine(round + 1, block, std::move(inputs), builder::output(block, part.at), part.count, true);
      }
    }
  }

  /// Each block goes to the ranks beside its owner and to one rank of every other node, which spreads it there.
  void all_gather() {
    const std::vector<std::int64_t> starts = starts_of(to_.shape().counts);
    const std::int64_t pieces = to_.pieces_of(*std::max_element(to_.shape().counts.begin(), to_.shape().counts.end()));
    for (int block = 0; block < to_.ranks(); ++block) {
      const auto [home, local] = place_[static_cast<std::size_t>(block)];
      const std::int64_t start = starts[static_cast<std::size_t>(block)];
      to_.move_all(0, builder::input(block, 0), builder::output(block, start), to_.count(block));
      for (std::int64_t k = 0; k < pieces; ++k) {
        const auto round = static_cast<std::size_t>(k);
        const element_range part = part_of(to_.count(block), pieces, k);
        const element_range whole{start + part.at, part.count};
        for (std::size_t n = 0; n < count(); ++n) {
          if (n == home) {
            spread(round, n, builder::input(block, part.at), whole);
            continue;
          }
          const schedule_place there = builder::output(stand_in(n, local), whole.at);
          to_.move(round, builder::input(block, part.at), there, part.count);
          spread(round + 1, n, there, whole);
        }
      }
    }
  }

 private:
  struct local_place {
    std::size_t node = 0, local = 0;
  };

  [[nodiscard]] std::size_t count() const { return nodes_.size(); }
  [[nodiscard]] std::size_t behind_root(std::size_t hops) const {
    return (place_[static_cast<std::size_t>(to_.root())].node + hops) % count();
  }
  /// The rank at that place of a node; where a node has fewer ranks, they take turns.
  [[nodiscard]] int stand_in(std::size_t node, std::size_t local) const {
    return nodes_[node][local % nodes_[node].size()];
  }

  /// A piece is of all slices together: its moves are as long as a slice.
  [[nodiscard]] std::int64_t pieces_of_slices() const {
    return to_.pieces_of(part_of(to_.count(), static_cast<std::int64_t>(owners_), 0).count);
  }
  [[nodiscard]] element_range slice(std::int64_t piece, std::int64_t pieces, std::size_t owner) const {
    const element_range whole = part_of(to_.count(), pieces, piece);
    const element_range part =
        part_of(whole.count, static_cast<std::int64_t>(owners_), static_cast<std::int64_t>(owner));
    return {whole.at + part.at, part.count};
  }

  /// Everybody's input of a node comes to one of its ranks, which combines it; one alone has it already.
  void combine_inside(std::size_t round, const members& node, int by, std::int64_t at, const schedule_place& result,
                      std::int64_t elements, std::int64_t slot, std::int64_t room = 0) {
    if (node.size() == 1) return;
    std::vector<schedule_place> inputs;
    inputs.reserve(node.size());
    for (const int r : node) {
      if (r == by) {
        inputs.push_back(builder::input(r, at));
        continue;
      }
      inputs.push_back(builder::scratch(by, room));
      to_.move(round, builder::input(r, at), inputs.back(), elements);
      room += slot;
    }
    to_.combine(round, by, std::move(inputs), result, elements, false);
  }

  /// From one rank of a node, or the root beside it, to all others, at the same place.
  void spread(std::size_t round, std::size_t node, const schedule_place& from, const element_range& part) {
    const bool is_broadcast = to_.shape().what == collective::broadcast;
    for (const int r : nodes_[node]) {
      if (r != from.rank && !(is_broadcast && r == to_.root()))
        to_.move(round, from, builder::output(r, part.at), part.count);
    }
  }

  /// A ring all-reduce of a slice over its owners, one of each node: 2 (nodes − 1) rounds.
  void go_round(std::size_t round, std::size_t owner, const element_range& whole, std::int64_t slot) {
    const auto n = static_cast<std::int64_t>(count());
    const std::int64_t landing_size = part_of(slot, n, 0).count;
    const auto chunk = [&](std::int64_t c) {
      const element_range part = part_of(whole.count, n, (c % n + n) % n);
      return element_range{whole.at + part.at, part.count};
    };
    const auto rank_at = [&](std::int64_t node) { return nodes_[static_cast<std::size_t>((node + n) % n)][owner]; };
    const auto partial = [&](std::int64_t node, std::int64_t at) {
      const bool alone = nodes_[static_cast<std::size_t>((node + n) % n)].size() == 1;
      return alone ? builder::input(rank_at(node), at) : builder::output(rank_at(node), at);
    };
    for (std::int64_t step = 0; step + 1 < n; ++step, ++round) {
      for (std::int64_t node = 0; node < n; ++node) {
        const element_range part = chunk(node - step - 1);
        const int rank = rank_at(node);
        const auto beside = static_cast<std::int64_t>(nodes_[static_cast<std::size_t>(node)].size()) - 1;
        // behind the room for the ranks beside it, one place for each step: a piece is at each
        const schedule_place landing = builder::scratch(rank, beside * slot + step * landing_size);
        to_.move(round, step == 0 ? partial(node - 1, part.at) : builder::output(rank_at(node - 1), part.at), landing,
                 part.count);
        to_.combine(round, rank, {landing, partial(node, part.at)}, builder::output(rank, part.at), part.count,
                    step + 2 == n);
      }
    }
    for (std::int64_t step = 0; step + 1 < n; ++step, ++round) {
      for (std::int64_t node = 0; node < n; ++node) {
        const element_range part = chunk(node - step);
        to_.move(round, builder::output(rank_at(node - 1), part.at), builder::output(rank_at(node), part.at),
                 part.count);
      }
    }
  }

  builder& to_;
  std::vector<members> nodes_;
  std::vector<local_place> place_;  // by rank
  std::size_t owners_ = 1;          // of each node
};

}  // namespace

void schedule_hierarchical(schedule_builder& to) {
  node_schedule nodes{to};
  switch (to.shape().what) {
    case collective::all_reduce:
      return nodes.all_reduce();
    case collective::reduce:
      return nodes.reduce();
    case collective::reduce_scatter:
      return nodes.reduce_scatter();
    case collective::all_gather:
      return nodes.all_gather();
    case collective::broadcast:
      return nodes.broadcast();
    case collective::scatter:
    case collective::gather:
    case collective::all_to_all:
      return;  // not offered
  }
}

}  // namespace weft::detail
