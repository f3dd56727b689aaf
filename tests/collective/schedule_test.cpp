// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/schedule.hpp"

#include "collective/schedule/schedule_steps.hpp"
#include "collective/schedule/shared_moves.hpp"
#include "symbolic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace weft {
namespace schedule_test {

using memory = schedule_place::memory;

constexpr std::array all_algorithms{collective_algorithm::naive,  collective_algorithm::tree,
                                    collective_algorithm::ring,   collective_algorithm::halving_doubling,
                                    collective_algorithm::direct, collective_algorithm::hierarchical};

/// Ways to spread so many ranks over nodes: in blocks, round about, unevenly, and one rank on each.
std::vector<std::vector<int>> nodes_for(collective_algorithm algorithm, int n) {
  if (algorithm != collective_algorithm::hierarchical) return {{}};
  std::vector<std::vector<int>> list;
  const auto spread = [&](auto&& node_of) {
    std::vector<int> nodes;
    for (int r = 0; r < n; ++r) nodes.push_back(node_of(r));
    if (std::adjacent_find(nodes.begin(), nodes.end(), std::not_equal_to<>{}) != nodes.end()) list.push_back(nodes);
  };
  spread([&](int r) { return 2 * r / n; });
  spread([](int r) { return r % 2; });
  spread([](int r) { return r % 3; });
  spread([](int r) { return r == 1 ? 7 : 0; });
  spread([](int r) { return r < 3 ? 5 : r / 4; });
  if (n <= 9) spread([](int r) { return r; });
  return list;
}

bool has_blocks(collective what) {
  return what == collective::reduce_scatter || what == collective::all_gather || what == collective::scatter ||
         what == collective::gather;
}

bool has_root(collective what) {
  return what == collective::reduce || what == collective::broadcast || what == collective::scatter ||
         what == collective::gather;
}

/// Counts that divide, do not, are zero, and blocks of odd sizes with empty ones among them.
std::vector<std::vector<std::int64_t>> counts_for(collective what, int n) {
  std::vector<std::vector<std::int64_t>> list;
  if (!has_blocks(what) && what != collective::all_to_all) {
    for (const int c : {0, 1, n - 1, n, n + 1, 7 * n + 3}) list.push_back({c});
    return list;
  }
  const auto size = static_cast<std::size_t>(what == collective::all_to_all ? n * n : n);
  for (const int c : {0, 1, 3}) list.emplace_back(size, c);
  std::vector<std::int64_t> odd(size);
  for (std::size_t i = 0; i < size; ++i) odd[i] = i % 3 == 1 ? 0 : static_cast<std::int64_t>((i * 7 + 2) % 5);
  list.push_back(odd);
  std::vector<std::int64_t> alone(size);
  alone[size / 2] = 11;
  list.push_back(alone);
  return list;
}

std::string text(const collective_shape& shape, collective_algorithm algorithm, std::int64_t piece, bool in_place) {
  std::string made = std::string{to_string(shape.what)} + " by " + std::string{to_string(algorithm)} + ", " +
                     std::to_string(shape.ranks) + " ranks, root " + std::to_string(shape.root) + ", counts";
  for (const std::int64_t c : shape.counts) made += " " + std::to_string(c);
  if (!shape.nodes.empty()) made += ", nodes";
  for (const int node : shape.nodes) made += " " + std::to_string(node);
  return made + ", pieces of " + std::to_string(piece) + (in_place ? ", in place" : ", out of place");
}

std::int64_t scratch_pieces(const collective_schedule& made) {
  const auto [algorithm, n] = std::pair{made.algorithm, made.shape.ranks};
  if (algorithm == collective_algorithm::hierarchical)
    return made.shape.what == collective::reduce_scatter ? n * (n + 2) : n + 4;
  if (algorithm == collective_algorithm::naive) return 2 * (n - 1);
  return algorithm == collective_algorithm::tree ? 4 : 2;
}

/// Everything about one schedule that does not need to be run.
std::string bounds_fault(const collective_schedule& made, std::int64_t piece) {
  if (piece == 0) return {};
  for (const schedule_round& round : made.rounds) {
    for (const schedule_move& m : round.moves)
      if (m.count > piece) return "a move of " + std::to_string(m.count) + " elements";
  }
  const std::int64_t limit = scratch_pieces(made) * piece;
  for (const std::int64_t elements : made.scratch)
    if (elements > limit) return std::to_string(elements) + " elements of scratch, limit " + std::to_string(limit);
  return {};
}

/// The schedule as ranks do it that see each other's memory: their folds read what was to be moved where it is.
collective_schedule without_moves(const collective_schedule& made) {
  collective_schedule shared = made;
  for (std::size_t i = 0; i < made.rounds.size(); ++i) {
    schedule_round& round = shared.rounds[i];
    round.moves.clear();
    for (const schedule_move& m : made.rounds[i].moves) {
      const bool is_read_there = m.from.rank != m.to.rank && m.from.where != memory::scratch &&
                                 detail::is_late(made, i, m) && detail::is_folded(made, i, m);
      if (!is_read_there) {
        round.moves.push_back(m);
        continue;
      }
      for (schedule_fold& f : round.folds) std::replace(f.inputs.begin(), f.inputs.end(), m.to, m.from);
    }
  }
  return shared;
}

/// The schedule as one thread does it that may use all memory.
collective_schedule in_turn(const collective_schedule& made, bool in_place) {
  std::uint64_t mask = 0;
  for (int r = 0; in_place && r < made.shape.ranks; ++r) mask |= std::uint64_t{1} << r;
  collective_schedule turns = made;
  turns.rounds.clear();
  const detail::schedule_steps steps{made, mask, 1};
  for (const detail::schedule_turn& turn : steps.in_turn(sizeof(float))) {
    schedule_round& round = turns.rounds.emplace_back();
    if (turn.move != nullptr) round.moves.push_back(*turn.move);
    if (turn.move == nullptr) round.folds.push_back(turn.fold);
  }
  return turns;
}

/// Every algorithm of a collective, for that many ranks. The number of schedules that were run.
int prove(collective what, int n) {
  int proven = 0;
  std::vector<int> roots{0};
  if (has_root(what) && n > 1) roots.push_back(n - 1);
  if (has_root(what) && n > 3) roots.push_back(n / 2);
  auto all_counts = counts_for(what, n);
  std::vector<std::int64_t> pieces{0, 1, 3, 5};
  if (n > 17) {  // to keep this short, only what is odd
    all_counts = {has_blocks(what) || what == collective::all_to_all ? all_counts[3] : all_counts[4]};
    pieces = {5};
  }
  for (const collective_algorithm algorithm : all_algorithms) {
    if (!offers(what, algorithm).offered) continue;
    for (const auto& nodes : nodes_for(algorithm, n))
      for (const auto& counts : all_counts) {
        for (const int root : roots) {
          for (const std::int64_t piece : pieces) {
            if (!nodes.empty() && piece % 2 != 0 && piece != 3) continue;  // there are many ways to spread
            const collective_shape shape{what, n, root, counts, nodes};
            const auto made = make_schedule(shape, algorithm, piece);
            if (!made) {
              ADD_FAILURE() << text(shape, algorithm, piece, false) << ": " << made.error().what;
              return proven;
            }
            const std::string bounds = bounds_fault(*made, piece);
            if (!bounds.empty()) {
              ADD_FAILURE() << text(shape, algorithm, piece, false) << ": " << bounds;
              return proven;
            }
            for (const bool in_place : {false, true}) {
              if (in_place && !in_place_offset(shape, 0)) continue;
              const std::string fault = symbolic::fault_of(*made, in_place);
              if (!fault.empty()) {
                ADD_FAILURE() << text(shape, algorithm, piece, in_place) << ": " << fault;
                return proven;
              }
              ++proven;
              if (piece == 5) {
                const std::string turns_fault = symbolic::fault_of(in_turn(*made, in_place), in_place);
                if (!turns_fault.empty()) {
                  ADD_FAILURE() << text(shape, algorithm, piece, in_place) << ", by one thread: " << turns_fault;
                  return proven;
                }
              }
              if (piece != 3) continue;
              const std::string shared_fault = symbolic::fault_of(without_moves(*made), in_place, true);
              if (!shared_fault.empty()) {
                ADD_FAILURE() << text(shape, algorithm, piece, in_place) << ", in shared memory: " << shared_fault;
                return proven;
              }
            }
          }
        }
      }
  }
  return proven;
}

class every_schedule : public testing::TestWithParam<collective> {};

TEST_P(every_schedule, is_right_for_every_number_of_ranks) {
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 64}) EXPECT_GT(prove(GetParam(), n), 0) << n << " ranks";
}

INSTANTIATE_TEST_SUITE_P(schedules, every_schedule,
                         testing::Values(collective::all_reduce, collective::reduce, collective::reduce_scatter,
                                         collective::all_gather, collective::broadcast, collective::scatter,
                                         collective::gather, collective::all_to_all),
                         [](const auto& which) { return std::string{to_string(which.param)}; });

TEST(schedule, a_ring_of_accumulated_buffers_is_found_to_count_twice) {
  // the ring of the specification: N - 1 times, everybody sends all it has to the next one, who adds it
  const int n = 3;
  collective_schedule made{{collective::all_reduce, n, 0, {2}}, collective_algorithm::ring, {2, 2, 2}, {}};
  for (int step = 0; step + 1 < n; ++step) {
    schedule_round round;
    for (int r = 0; r < n; ++r) {
      const int before = (r + n - 1) % n;
      round.moves.push_back({{memory::output, before, 0}, {memory::scratch, r, 0}, 2});
      round.folds.push_back(
          {r, {{memory::output, r, 0}, {memory::scratch, r, 0}}, {{memory::output, r, 0}}, 2, step == 1});
    }
    made.rounds.push_back(round);
  }
  const std::string fault = symbolic::fault_of(made, true);
  EXPECT_NE(fault.find("already"), std::string::npos) << fault;
}

TEST(schedule, a_broken_rule_of_rounds_is_found) {
  const collective_shape shape{collective::broadcast, 3, 0, {2}};
  const schedule_move own{{memory::input, 0, 0}, {memory::output, 0, 0}, 2};
  const schedule_move first{{memory::input, 0, 0}, {memory::output, 1, 0}, 2};
  const schedule_move second{{memory::output, 1, 0}, {memory::output, 2, 0}, 2};
  const auto fault = [&](std::vector<schedule_round> rounds) {
    return symbolic::fault_of({shape, collective_algorithm::ring, {0, 0, 0}, std::move(rounds)}, false);
  };
  EXPECT_EQ(fault({{{own, first}, {}}, {{second}, {}}}), "");
  EXPECT_NE(fault({{{own, first, second}, {}}}).find("never written"), std::string::npos);
  EXPECT_NE(fault({{{own, first}, {}}, {{second, first}, {}}}).find("another one reads"), std::string::npos);
  EXPECT_NE(fault({{{own, first, first}, {}}, {{second}, {}}}).find("written twice"), std::string::npos);
  EXPECT_NE(fault({{{own, first}, {}}}).find("expected element 0 of ranks {0}, got nothing"), std::string::npos);
  EXPECT_NE(fault({{{own, {{memory::input, 0, 1}, {memory::output, 1, 1}, 2}}, {}}}).find("2 elements of 2"),
            std::string::npos);
}

TEST(schedule, naive_and_direct_combine_in_the_order_of_ranks) {
  for (const collective what : {collective::all_reduce, collective::reduce, collective::reduce_scatter}) {
    for (const auto algorithm : {collective_algorithm::naive, collective_algorithm::direct}) {
      const int n = 11;
      const collective_shape shape{what, n, what == collective::reduce ? 4 : 0,
                                   std::vector<std::int64_t>(what == collective::reduce_scatter ? n : 1, 25)};
      const auto made = make_schedule(shape, algorithm, 6);
      ASSERT_TRUE(made);
      for (const schedule_round& round : made->rounds) {
        for (const schedule_fold& f : round.folds) {
          ASSERT_EQ(f.inputs.size(), static_cast<std::size_t>(n));  // all at once: no grouping depends on the schedule
          for (int r = 0, slot = 0; r < n; ++r) {
            const schedule_place& from = f.inputs[static_cast<std::size_t>(r)];
            if (from.where == memory::input) {
              EXPECT_EQ(from.rank, r);
            } else {
              EXPECT_EQ(from.at, slot++ * f.count);
            }
          }
        }
      }
    }
  }
}

TEST(schedule, a_tree_combines_neighbours_only) {
  for (int n = 2; n <= 17; ++n) {
    const auto made = make_schedule({collective::reduce, n, n / 2, {7}}, collective_algorithm::tree, 3);
    ASSERT_TRUE(made);
    symbolic::interpreter run{*made, false};
    ASSERT_EQ(run.run(), "");
    EXPECT_TRUE(run.in_order()) << n << " ranks";
  }
}

TEST(schedule, halving_doubling_takes_logarithmically_many_rounds) {
  for (int n = 2; n <= 33; ++n) {
    std::size_t rounds = 0;
    while (1 << rounds < n) ++rounds;
    const auto made = make_schedule({collective::all_reduce, n, 0, {100}}, collective_algorithm::halving_doubling, 0);
    ASSERT_TRUE(made);
    EXPECT_EQ(made->rounds.size(), 2 * rounds) << n << " ranks";
  }
}

TEST(schedule, direct_takes_one_round) {
  for (int what = 0; what < collective_count; ++what) {
    for (const int n : {2, 5, 8}) {
      const auto kind = static_cast<collective>(what);
      std::vector<std::int64_t> counts(1, 40);
      if (has_blocks(kind)) counts.assign(static_cast<std::size_t>(n), 40);
      if (kind == collective::all_to_all) counts.assign(static_cast<std::size_t>(n * n), 40);
      const auto made = make_schedule({kind, n, 0, counts}, collective_algorithm::direct, 6);
      ASSERT_TRUE(made);
      EXPECT_EQ(made->rounds.size(), 1U) << to_string(kind);
      EXPECT_EQ(*std::max_element(made->scratch.begin(), made->scratch.end()), 0) << to_string(kind);
    }
  }
}

TEST(schedule, of_more_ranks_than_a_word_has_bits_waits_for_the_streams_of_no_others_than_it_touches) {
  constexpr int n = 130;
  const detail::schedule_steps steps{
      value_or_raise(make_schedule({collective::all_reduce, n, 0, {1000}}, collective_algorithm::ring, 1000)), 0, 1};
  const auto set_of = [](int r) { return r < 64 ? std::uint64_t{1} << r : 0; };
  for (const detail::schedule_step& s : steps.all()) {
    if (s.move == nullptr) continue;
    const std::uint64_t touched = set_of(s.move->from.rank) | set_of(s.move->to.rank);
    EXPECT_EQ(s.starts & ~touched, 0U) << "from " << s.move->from.rank << " to " << s.move->to.rank;
  }
}

TEST(schedule, direct_is_one_short_fold_for_one_thread_and_any_number_of_ranks) {
  const auto folds_of = [](int n, std::int64_t count) {
    const auto made = make_schedule({collective::all_reduce, n, 0, {count}}, collective_algorithm::direct, 0);
    return in_turn(value_or_raise(made), true).rounds.size();
  };
  for (const int n : {2, 8, 9, 64}) {
    EXPECT_EQ(folds_of(n, 1000), 1U) << n;
    EXPECT_EQ(folds_of(n, 1'000'000), static_cast<std::size_t>(n)) << "long folds stay apart";
  }
}

TEST(schedule, that_moves_everything_at_once_has_no_room_for_a_piece_behind_it) {
  for (const auto& [algorithm, arrays] : {std::pair{collective_algorithm::tree, 2}, {collective_algorithm::naive, 4}}) {
    const auto made = value_or_raise(make_schedule({collective::all_reduce, 5, 0, {100}}, algorithm, 0));
    EXPECT_EQ(*std::max_element(made.scratch.begin(), made.scratch.end()), arrays * 100) << to_string(algorithm);
  }
}

TEST(schedule, one_rank_copies_to_its_output) {
  for (const collective_algorithm algorithm : all_algorithms) {
    const auto made = make_schedule({collective::all_reduce, 1, 0, {5}}, algorithm, 0);
    ASSERT_TRUE(made);
    ASSERT_EQ(made->rounds.size(), 1U);
    EXPECT_EQ(made->rounds[0].moves.size(), 1U);
    EXPECT_TRUE(made->rounds[0].folds.empty());
  }
}

TEST(schedule, an_empty_collective_has_no_rounds) {
  for (const collective_algorithm algorithm : all_algorithms) {
    const auto made = make_schedule({collective::all_reduce, 4, 0, {0}, {0, 0, 1, 1}}, algorithm, 0);
    ASSERT_TRUE(made);
    EXPECT_TRUE(made->rounds.empty()) << to_string(algorithm);
  }
}

TEST(schedule, an_impossible_shape_is_refused_with_the_reason) {
  const auto refusal = [](const collective_shape& shape, std::int64_t piece = 0) {
    const auto made = make_schedule(shape, collective_algorithm::ring, piece);
    return made ? std::string{"made"} : std::string{to_string(made.error().code)} + ": " + made.error().what;
  };
  EXPECT_EQ(refusal({collective::all_reduce, 0, 0, {1}}), "invalid_argument: all_reduce: 0 ranks");
  EXPECT_EQ(refusal({collective::reduce, 4, 4, {1}}), "invalid_argument: reduce: root 4 of 4 ranks");
  EXPECT_EQ(refusal({collective::reduce, 4, -1, {1}}), "invalid_argument: reduce: root -1 of 4 ranks");
  EXPECT_EQ(refusal({collective::all_gather, 4, 0, {1}}),
            "invalid_argument: all_gather: 1 counts for 4 ranks: 4 are needed");
  EXPECT_EQ(refusal({collective::all_gather, 2, 0, {1, -1}}), "invalid_argument: all_gather: count 1 is -1");
  EXPECT_EQ(refusal({collective::all_reduce, 2, 0, {1}}, -3), "invalid_argument: all_reduce: a piece of -3 elements");
  EXPECT_EQ(refusal({collective::all_gather, 2, 0, {INT64_MAX / 2, INT64_MAX / 2}}),
            "invalid_argument: all_gather: more elements together than can be counted");
  EXPECT_EQ(refusal({collective::all_reduce, 4, 0, {1}, {0, 1}}),
            "invalid_argument: all_reduce: the nodes of 2 ranks for 4");
}

TEST(schedule, a_move_of_shared_memory_is_needed_where_a_fold_writes_or_a_later_round_reads) {
  const schedule_move brought{{memory::output, 0, 0}, {memory::scratch, 1, 0}, 2};
  const schedule_fold read{1, {{memory::scratch, 1, 0}, {memory::input, 1, 0}}, {{memory::output, 1, 0}}, 2, true};
  const schedule_fold writes{0, {{memory::input, 0, 0}}, {{memory::output, 0, 1}}, 1, true};
  collective_schedule made{{collective::all_reduce, 2, 0, {4}}, collective_algorithm::ring, {0, 2}, {}};
  made.rounds = {{{brought}, {read}}, {}};
  EXPECT_TRUE(detail::is_late(made, 0, brought));
  EXPECT_TRUE(detail::is_folded(made, 0, brought));
  made.rounds[0].folds.push_back(writes);
  EXPECT_FALSE(detail::is_late(made, 0, brought));
  // in place, an input is what a fold writes at its place in the output
  made.rounds[0].folds.back().outputs = {{memory::output, 0, 3}};
  EXPECT_TRUE(detail::is_late(made, 0, brought));
  EXPECT_FALSE(detail::is_late(made, 0, {{memory::input, 0, 3}, {memory::scratch, 1, 0}, 1}));
  made.rounds[1].folds = {read};
  EXPECT_FALSE(detail::is_folded(made, 0, brought));
  made.rounds[1].moves = {brought};  // written again before
  EXPECT_TRUE(detail::is_folded(made, 0, brought));
  EXPECT_FALSE(detail::is_folded(made, 0, {{memory::input, 0, 0}, {memory::output, 1, 0}, 2}));
}

TEST(schedule, hierarchical_needs_ranks_on_several_nodes) {
  for (const std::vector<int>& nodes : {std::vector<int>{}, std::vector<int>{3, 3}}) {
    const auto made = make_schedule({collective::all_reduce, 2, 0, {4}, nodes}, collective_algorithm::hierarchical, 0);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, errc::unsupported);
    EXPECT_EQ(made.error().what, "all_reduce by hierarchical: all ranks are on one node");
  }
}

TEST(schedule, hierarchical_sends_no_more_between_nodes_than_one_rank_of_each_would) {
  const int n = 8;
  const std::int64_t count = 64;
  const std::vector<int> nodes{0, 0, 0, 0, 1, 1, 1, 1};
  const std::vector<std::int64_t> blocks(n, count / n);
  const auto crossing = [&](collective what, collective_algorithm algorithm) {
    const bool is_whole = what == collective::all_reduce || what == collective::reduce || what == collective::broadcast;
    const auto made = make_schedule({what, n, 0, is_whole ? std::vector{count} : blocks, nodes}, algorithm, 0);
    std::int64_t sum = 0;
    for (const schedule_round& round : made->rounds) {
      for (const schedule_move& m : round.moves) {
        const auto node = [&](const schedule_place& p) { return nodes[static_cast<std::size_t>(p.rank)]; };
        if (node(m.from) != node(m.to)) sum += m.count;
      }
    }
    return sum;
  };
  EXPECT_EQ(crossing(collective::all_reduce, collective_algorithm::hierarchical), 2 * count);
  EXPECT_EQ(crossing(collective::reduce, collective_algorithm::hierarchical), count);
  EXPECT_EQ(crossing(collective::broadcast, collective_algorithm::hierarchical), count);
  EXPECT_EQ(crossing(collective::reduce_scatter, collective_algorithm::hierarchical), count);
  EXPECT_EQ(crossing(collective::all_gather, collective_algorithm::hierarchical), count);
  EXPECT_EQ(crossing(collective::all_reduce, collective_algorithm::naive), 8 * count);  // there and back for each
}

TEST(schedule, an_algorithm_that_is_not_offered_is_refused_with_the_reason) {
  int refused = 0;
  for (int what = 0; what < collective_count; ++what) {
    for (int a = 0; a < collective_algorithm_count; ++a) {
      const auto kind = static_cast<collective>(what);
      const auto algorithm = static_cast<collective_algorithm>(a);
      const schedule_offer offer = offers(kind, algorithm);
      EXPECT_EQ(offer.offered, offer.why.empty()) << to_string(kind) << " by " << to_string(algorithm);
      if (offer.offered) continue;
      const std::vector<std::int64_t> counts(kind == collective::all_to_all ? 4 : has_blocks(kind) ? 2 : 1, 3);
      const auto made = make_schedule({kind, 2, 0, counts}, algorithm, 0);
      ASSERT_FALSE(made);
      EXPECT_EQ(made.error().code, errc::unsupported);
      EXPECT_NE(made.error().what.find(offer.why), std::string::npos);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 8 + 5 + 3 + 1 + 3 + 8);  // automatic, tree, ring, halving_doubling, hierarchical, engine
}

TEST(collective_shape, says_what_each_rank_hands_in_and_takes_out) {
  const collective_shape scattered{collective::reduce_scatter, 3, 0, {2, 0, 5}};
  EXPECT_EQ(input_elements(scattered, 1), 7);
  EXPECT_EQ(output_elements(scattered, 2), 5);
  EXPECT_EQ(in_place_offset(scattered, 2), -2);
  const collective_shape gathered{collective::gather, 3, 1, {2, 4, 5}};
  EXPECT_EQ(input_elements(gathered, 2), 5);
  EXPECT_EQ(output_elements(gathered, 1), 11);
  EXPECT_EQ(output_elements(gathered, 0), 0);
  EXPECT_EQ(in_place_offset(gathered, 1), 2);
  const collective_shape exchanged{collective::all_to_all, 2, 0, {1, 2, 3, 4}};
  EXPECT_EQ(input_elements(exchanged, 0), 3);
  EXPECT_EQ(output_elements(exchanged, 0), 4);
  EXPECT_FALSE(in_place_offset(exchanged, 0));
}

}  // namespace schedule_test
}  // namespace weft
