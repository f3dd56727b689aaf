// SPDX-License-Identifier: Apache-2.0
// A collective as plain data: who moves what where, and who combines what, round by round. Pure functions of the number
// of ranks and of counts, so that each schedule is proven for every N before anything runs, priced for machines that
// nobody here owns, and run over devices or processes by code that knows no algorithm.
#pragma once

#include "weft/core/result.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace weft {

enum class collective : std::uint8_t {
  all_reduce,
  reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  scatter,
  gather,
  all_to_all,
};
inline constexpr int collective_count = 8;
[[nodiscard]] std::string_view to_string(collective what);

/// Ways to do a collective. Not every one exists for each: offers() tells.
///
/// naive: through the root, or rank 0: everybody sends to it, it combines in the order of ranks, and sends to
/// everybody. tree: one binary tree over all ranks, in pieces, so that its levels work at the same time; up and down
/// overlap. ring: each rank receives from the one before it and sends to the one behind it. halving_doubling: partners
/// at distances of powers of two, in log2(N) rounds (Thakur, Rabenseifner, Gropp, 2005). direct: each rank combines its
/// slice of everybody's memory in place, in the order of ranks; needs mapped memory. hierarchical: for ranks on several
/// nodes: combines inside each node, sends slices between ranks that have the same place on their nodes, and spreads
/// inside again. engine: no schedule, but MPI's own collective, for all ranks of a world that MPI carries; never chosen
/// unless it is asked for.
enum class collective_algorithm : std::uint8_t {
  automatic,
  naive,
  tree,
  ring,
  halving_doubling,
  direct,
  hierarchical,
  engine,
};
inline constexpr int collective_algorithm_count = 8;
[[nodiscard]] std::string_view to_string(collective_algorithm algorithm);

/// What is wanted, in elements. `counts` holds
///   all_reduce, reduce, broadcast: one count;
///   reduce_scatter, all_gather, scatter, gather: each rank's; blocks lie in the order of ranks, without gaps;
///   all_to_all: [from * ranks + to]; blocks lie in the order of their partners, without gaps.
struct collective_shape {
  collective what = collective::all_reduce;
  int ranks = 1;
  int root = 0;
  std::vector<std::int64_t> counts;
  std::vector<int> nodes{};  // of each rank; empty: all are on one
  friend bool operator==(const collective_shape&, const collective_shape&) = default;
};

/// Elements that a rank hands in and takes out; 0 for who has no such buffer (all but the root of a gather, say).
[[nodiscard]] std::int64_t input_elements(const collective_shape& shape, int rank);
[[nodiscard]] std::int64_t output_elements(const collective_shape& shape, int rank);
/// Where the rank's input begins in its output when the collective is done in place (reduce_scatter and scatter: where
/// the output begins in the input, negative). Empty where it cannot be done in place: all_to_all.
[[nodiscard]] std::optional<std::int64_t> in_place_offset(const collective_shape& shape, int rank);

/// Elements of one rank's memory. `scratch` is memory of the library's own.
struct schedule_place {
  enum class memory : std::uint8_t { input, output, scratch };
  memory where = memory::input;
  int rank = 0;
  std::int64_t at = 0;
  friend bool operator==(const schedule_place&, const schedule_place&) = default;
};

/// Elements that go from one rank's memory to another's, or to another place of the same rank's.
struct schedule_move {
  schedule_place from, to;
  std::int64_t count = 0;
};

/// One rank combines `inputs`, in their order, element by element, into all of `outputs`. An output may be the same
/// place as an input, but the first one is none of the inputs from the ninth on, in place neither. But for direct, the
/// first input is an output or an output is no input, so that a user's operation can work in it; direct's reduce and
/// reduce_scatter in place need memory of the executor's for that, on ranks behind 0.
/// Places of other ranks need mapped memory: only direct has them.
struct schedule_fold {
  int at = 0;
  std::vector<schedule_place> inputs, outputs;
  std::int64_t count = 0;
  bool is_last = false;  // every rank's contribution is in it now: an average is divided here
};

/// What does not depend on each other: first all moves, each reading what was there before the round, then all folds,
/// each reading what was there after the moves.
struct schedule_round {
  std::vector<schedule_move> moves;
  std::vector<schedule_fold> folds;
};

struct collective_schedule {
  collective_shape shape;
  collective_algorithm algorithm = collective_algorithm::naive;
  std::vector<std::int64_t> scratch;  // elements that each rank needs beside its buffers
  std::vector<schedule_round> rounds;
};

[[nodiscard]] bool is_on_several_nodes(const collective_shape& shape);

/// Whether there is such an algorithm for the collective; if not, the reason.
struct schedule_offer {
  bool offered = false;
  std::string_view why;
};
[[nodiscard]] schedule_offer offers(collective what, collective_algorithm algorithm);

/// The schedule. It is right in place and out of place, for every number of ranks and all counts, zero included.
/// `piece` is the largest number of elements in one move, and bounds the scratch of a rank: 2 pieces, 2 (N - 1) for
/// naive, 4 for tree, N + 4 for hierarchical and N (N + 2) for its reduce_scatter; 0 is no limit.
/// Errors: invalid_argument (ranks, root, counts, nodes); unsupported with the reason of offers(), and for hierarchical
///   where all ranks are on one node.
[[nodiscard]] result<collective_schedule> make_schedule(const collective_shape& shape, collective_algorithm algorithm,
                                                        std::int64_t piece);

}  // namespace weft
