// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/schedule.hpp"

#include "collective/algorithms/schedule_builder.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

namespace weft {
namespace {

std::int64_t count_of(const collective_shape& shape, int rank) { return shape.counts[static_cast<std::size_t>(rank)]; }

std::int64_t total_of(const collective_shape& shape) {
  return std::accumulate(shape.counts.begin(), shape.counts.end(), std::int64_t{0});
}

/// Where a rank's block begins.
std::int64_t start_of(const collective_shape& shape, int rank) {
  return std::accumulate(shape.counts.begin(), shape.counts.begin() + rank, std::int64_t{0});
}

std::size_t counts_wanted(const collective_shape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  switch (shape.what) {
    case collective::all_reduce:
    case collective::reduce:
    case collective::broadcast:
      return 1;
    case collective::reduce_scatter:
    case collective::all_gather:
    case collective::scatter:
    case collective::gather:
      return ranks;
    case collective::all_to_all:
      return ranks * ranks;
  }
  return 0;
}

result<void> check(const collective_shape& shape, std::int64_t piece) {
  const std::string name{to_string(shape.what)};
  const auto wrong = [&](const std::string& what) { return make_error(errc::invalid_argument, name + ": " + what); };
  if (shape.ranks < 1) return wrong(std::to_string(shape.ranks) + " ranks");
  if (shape.root < 0 || shape.root >= shape.ranks)
    return wrong("root " + std::to_string(shape.root) + " of " + std::to_string(shape.ranks) + " ranks");
  const std::size_t wanted = counts_wanted(shape);
  if (shape.counts.size() != wanted) {
    return wrong(std::to_string(shape.counts.size()) + " counts for " + std::to_string(shape.ranks) +
                 " ranks: " + std::to_string(wanted) + " are needed");
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < shape.counts.size(); ++i) {
    const std::int64_t count = shape.counts[i];
    if (count < 0) return wrong("count " + std::to_string(i) + " is " + std::to_string(count));
    if (count > std::numeric_limits<std::int64_t>::max() / 4 - total)
      return wrong("more elements together than can be counted");
    total += count;
  }
  if (piece < 0) return wrong("a piece of " + std::to_string(piece) + " elements");
  if (!shape.nodes.empty() && shape.nodes.size() != static_cast<std::size_t>(shape.ranks)) {
    return wrong("the nodes of " + std::to_string(shape.nodes.size()) + " ranks for " + std::to_string(shape.ranks));
  }
  return {};
}

}  // namespace

std::string_view to_string(collective what) {
  switch (what) {
    case collective::all_reduce:
      return "all_reduce";
    case collective::reduce:
      return "reduce";
    case collective::reduce_scatter:
      return "reduce_scatter";
    case collective::all_gather:
      return "all_gather";
    case collective::broadcast:
      return "broadcast";
    case collective::scatter:
      return "scatter";
    case collective::gather:
      return "gather";
    case collective::all_to_all:
      return "all_to_all";
  }
  return "all_reduce";
}

std::string_view to_string(collective_algorithm algorithm) {
  switch (algorithm) {
    case collective_algorithm::automatic:
      return "automatic";
    case collective_algorithm::naive:
      return "naive";
    case collective_algorithm::tree:
      return "tree";
    case collective_algorithm::ring:
      return "ring";
    case collective_algorithm::halving_doubling:
      return "halving_doubling";
    case collective_algorithm::direct:
      return "direct";
    case collective_algorithm::hierarchical:
      return "hierarchical";
    case collective_algorithm::engine:
      return "engine";
  }
  return "automatic";
}

std::int64_t input_elements(const collective_shape& shape, int rank) {
  switch (shape.what) {
    case collective::all_reduce:
    case collective::reduce:
      return count_of(shape, 0);
    case collective::broadcast:
      return rank == shape.root ? count_of(shape, 0) : 0;
    case collective::reduce_scatter:
      return total_of(shape);
    case collective::scatter:
      return rank == shape.root ? total_of(shape) : 0;
    case collective::all_gather:
    case collective::gather:
      return count_of(shape, rank);
    case collective::all_to_all: {
      const auto row = shape.counts.begin() + std::ptrdiff_t{rank} * shape.ranks;
      return std::accumulate(row, row + shape.ranks, std::int64_t{0});
    }
  }
  return 0;
}

std::int64_t output_elements(const collective_shape& shape, int rank) {
  switch (shape.what) {
    case collective::all_reduce:
    case collective::broadcast:
      return count_of(shape, 0);
    case collective::reduce:
      return rank == shape.root ? count_of(shape, 0) : 0;
    case collective::reduce_scatter:
    case collective::scatter:
      return count_of(shape, rank);
    case collective::all_gather:
      return total_of(shape);
    case collective::gather:
      return rank == shape.root ? total_of(shape) : 0;
    case collective::all_to_all: {
      std::int64_t sum = 0;
      for (int from = 0; from < shape.ranks; ++from) sum += count_of(shape, from * shape.ranks + rank);
      return sum;
    }
  }
  return 0;
}

std::optional<std::int64_t> in_place_offset(const collective_shape& shape, int rank) {
  switch (shape.what) {
    case collective::all_reduce:
    case collective::reduce:
    case collective::broadcast:
      return 0;
    case collective::reduce_scatter:
      return -start_of(shape, rank);
    case collective::all_gather:
      return start_of(shape, rank);
    // who has one buffer alone has nothing to put in place
    case collective::scatter:
      return rank == shape.root ? -start_of(shape, rank) : 0;
    case collective::gather:
      return rank == shape.root ? start_of(shape, rank) : 0;
    case collective::all_to_all:
      return std::nullopt;
  }
  return std::nullopt;
}

bool is_on_several_nodes(const collective_shape& shape) {
  return std::adjacent_find(shape.nodes.begin(), shape.nodes.end(), std::not_equal_to<>{}) != shape.nodes.end();
}

schedule_offer offers(collective what, collective_algorithm algorithm) {
  const bool moves_blocks = what == collective::scatter || what == collective::gather;
  switch (algorithm) {
    case collective_algorithm::automatic:
      return {false, "automatic is a wish, not an algorithm"};
    case collective_algorithm::naive:
    case collective_algorithm::direct:
      return {true, {}};
    case collective_algorithm::tree:
      if (what == collective::all_to_all)
        return {false, "every block of every pair would go through the top of the tree"};
      if (what == collective::reduce_scatter || what == collective::all_gather)
        return {false, "whole arrays would go through the top of the tree, of which each rank needs a part"};
      if (moves_blocks)
        return {false,
                "blocks that nobody combines or copies gain nothing on the way; halving_doubling has the rounds"};
      return {true, {}};
    case collective_algorithm::ring:
      if (what == collective::all_to_all)
        return {false, "a block would cross N / 2 links on average, where one is enough"};
      if (moves_blocks) return {false, "the link at the root carries every block whichever way they come"};
      return {true, {}};
    case collective_algorithm::halving_doubling:
      if (what == collective::all_to_all)
        return {false, "each block would be sent log2(N) / 2 times on average, and packed in between"};
      return {true, {}};
    case collective_algorithm::hierarchical:
      if (what == collective::all_to_all || moves_blocks)
        return {false, "blocks that nobody combines or copies gain nothing on the way through another rank"};
      return {true, {}};
    case collective_algorithm::engine:
      return {false, "it is MPI's own collective, for the ranks of a world that MPI carries"};
  }
  return {false, "there is no such algorithm"};
}

result<collective_schedule> make_schedule(const collective_shape& shape, collective_algorithm algorithm,
                                          std::int64_t piece) {
  if (auto checked = check(shape, piece); !checked) return std::move(checked).error();
  const schedule_offer offer = offers(shape.what, algorithm);
  if (!offer.offered) {
    return make_error(errc::unsupported, std::string{to_string(shape.what)} + " by " +
                                             std::string{to_string(algorithm)} + ": " + std::string{offer.why});
  }
  detail::schedule_builder to{shape, algorithm, piece};
  if (shape.ranks == 1) {
    to.move_all(0, detail::schedule_builder::input(0, 0), detail::schedule_builder::output(0, 0),
                input_elements(shape, 0));
    return to.take();
  }
  if (algorithm == collective_algorithm::hierarchical && !is_on_several_nodes(shape)) {
    return make_error(errc::unsupported,
                      std::string{to_string(shape.what)} + " by hierarchical: all ranks are on one node");
  }
  switch (algorithm) {
    case collective_algorithm::automatic:
      break;
    case collective_algorithm::naive:
      detail::schedule_naive(to);
      break;
    case collective_algorithm::tree:
      detail::schedule_tree(to);
      break;
    case collective_algorithm::ring:
      detail::schedule_ring(to);
      break;
    case collective_algorithm::halving_doubling:
      detail::schedule_halving_doubling(to);
      break;
    case collective_algorithm::direct:
      detail::schedule_direct(to);
      break;
    case collective_algorithm::hierarchical:
      detail::schedule_hierarchical(to);
      break;
    case collective_algorithm::engine:
      break;
  }
  return to.take();
}

}  // namespace weft
