// SPDX-License-Identifier: Apache-2.0
// Collectives over the ranks of several nodes. What the calls give is checked by what checks them on one node.
#include "collective/rank_collectives.hpp"
#include "distributed/meetings.hpp"
#include "support/rounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <csignal>

namespace {

using namespace meetings;
using ranks::home;
using weft::collective_algorithm;
using weft::rank_communicator;

/// What each rank's `work` on a communicator of all finds wrong. `nodes` of each rank, all on this computer.
template <class F>
std::string on_nodes(const std::vector<int>& nodes, const F& work,
                     const std::function<world_options()>& how = with_ucx) {
  const auto port = fresh_port();
  const std::string host = host_of_this_test();
  const auto size = static_cast<int>(nodes.size());
  std::vector<std::unique_ptr<child>> all;
  for (int r = 0; r < size; ++r) {
    all.push_back(std::make_unique<child>([&, r]() -> std::string {
      try {
        world_options options = how();
        options.node = "n" + std::to_string(nodes[static_cast<std::size_t>(r)]);
        auto w = world::join(world_place{rank{r}, size, {}, host, port}, options);
        if (!w) return failure_of(w);
        const weft::machine m = ranks::a_machine(1);
        weft::rank_communicator_options limited;
        limited.timeout = only_a_hang;
        auto c = w->communicator(m[0], limited);
        std::string wrong = work(c, *w);
        return wrong.empty() ? wrong : "rank " + std::to_string(r) + ": " + wrong + "\n";
      } catch (const std::exception& e) {
        return "rank " + std::to_string(r) + ": " + e.what() + "\n";
      }
    }));
  }
  std::string said;
  for (auto& one : all) said += one->said();
  return said;
}

const std::vector<int> two_by_two{0, 0, 1, 1};
const std::vector<int> mixed_up{0, 1, 0, 2, 1};
const std::vector<int> one_each{0, 1, 2};

class far_memories : public testing::TestWithParam<home> {};

TEST_P(far_memories, memory_of_every_kind_serves_every_collective_over_nodes) {
  NEEDS(no_ucx);
  for (const auto& nodes : {two_by_two, mixed_up}) {
    EXPECT_EQ(on_nodes(nodes, [](rank_communicator& c, world&) { return ranks::all_shapes(c, GetParam()); }), "");
  }
}

INSTANTIATE_TEST_SUITE_P(world_communicator, far_memories, testing::Values(home::host, home::device, home::symmetric));

class far_algorithms : public testing::TestWithParam<collective_algorithm> {};

TEST_P(far_algorithms, a_requested_algorithm_is_taken_and_right_over_nodes) {
  NEEDS(no_ucx);
  EXPECT_EQ(on_nodes({0, 1, 0, 1},
                     [](rank_communicator& c, world&) {
                       std::string wrong;
                       for (const home where : {home::host, home::symmetric})
                         if (wrong.empty()) wrong = ranks::all_shapes(c, where, GetParam());
                       if (!wrong.empty()) return wrong;
                       return c.last_algorithm() == GetParam() ? wrong : std::string{"another algorithm was taken"};
                     }),
            "");
}

INSTANTIATE_TEST_SUITE_P(world_communicator, far_algorithms,
                         testing::Values(collective_algorithm::naive, collective_algorithm::tree,
                                         collective_algorithm::ring, collective_algorithm::halving_doubling,
                                         collective_algorithm::hierarchical));

TEST(world_communicator, takes_the_hierarchical_algorithm_by_itself_and_keeps_the_order_of_ranks_where_it_is_asked_to) {
  NEEDS(no_ucx);
  EXPECT_EQ(on_nodes(two_by_two,
                     [](rank_communicator& c, world&) -> std::string {
                       // a sum that depends on the order: only rank after rank gives 1
                       const std::array<float, 4> of{1e8F, -1e8F, 1.0F, 1e-3F};
                       std::vector<float> many(50'000, of[c.self().index()]);
                       weft::collective_options o;
                       o.order = weft::reduction_order::rank;
                       c.all_reduce(many, weft::reduce_op::sum, o);
                       const float expected = ((of[0] + of[1]) + of[2]) + of[3];
                       if (many[49'999] != expected) return "not in the order of ranks: " + std::to_string(many[0]);
                       if (c.last_algorithm() != collective_algorithm::naive) return "not the one that keeps it";
                       c.all_reduce(many, weft::reduce_op::max);
                       if (c.last_algorithm() != collective_algorithm::hierarchical) return "not the one for nodes";
                       const weft::error e = error_of([&] {
                         weft::collective_options direct;
                         direct.algorithm = collective_algorithm::direct;
                         c.all_reduce(many, weft::reduce_op::max, direct);
                       });
                       return says(e.what, "share no memory") ? "" : to_string(e);
                     }),
            "");
}

TEST(world_communicator, exchanges_messages_and_names_calls_that_do_not_match_over_nodes) {
  NEEDS(no_ucx);
  for (const auto& nodes : {two_by_two, std::vector<int>{0, 1, 1, 2}}) {
    EXPECT_EQ(on_nodes(nodes,
                       [](rank_communicator& c, world&) {
                         std::string wrong = ranks::exchanges(c);
                         if (wrong.empty()) wrong = ranks::names_mismatches(c);
                         if (wrong.empty()) wrong = ranks::tells_of_refusals(c);
                         return wrong;
                       }),
              "");
  }
}

TEST(world_communicator, runs_in_streams_over_nodes) {
  NEEDS(no_ucx);
  EXPECT_EQ(on_nodes(two_by_two,
                     [](rank_communicator& c, world&) {
                       std::string wrong = ranks::runs_in_a_stream(c, home::device);
                       if (wrong.empty()) wrong = ranks::keeps_memory_of_streamed_calls(c, home::device);
                       return wrong;
                     }),
            "");
}

TEST(world_communicator, splits_into_communicators_within_and_across_nodes) {
  NEEDS(no_ucx);
  EXPECT_EQ(on_nodes(mixed_up,
                     [](rank_communicator& c, world& w) -> std::string {
                       const int me = c.self().value();
                       for (const int round : {0, 1, 2}) {
                         const int node = w.member(w.self()).node;
                         const int colour = round == 0 ? node : round == 1 ? me % 2 : 0;
                         rank_communicator part = c.split(colour, -me);
                         if (part.member(part.self()) != w.self()) return "it is another member";
                         std::vector<std::int64_t> one(20'000, std::int64_t{1} << me);
                         part.all_reduce(one, weft::reduce_op::sum);
                         std::int64_t expected = 0;
                         for (int r = 0; r < c.size(); ++r) {
                           const int theirs = round == 0 ? w.member(rank{r}).node : round == 1 ? r % 2 : 0;
                           if (theirs == colour) expected += std::int64_t{1} << r;
                         }
                         if (one.back() != expected || one.front() != expected)
                           return "the sum of a part is " + std::to_string(one.front());
                         if (round == 0 && part.last_algorithm() != collective_algorithm::direct)
                           return "ranks of one node do not use its memory";
                       }
                       c.barrier();
                       return "";
                     }),
            "");
}

TEST(world_communicator, names_a_rank_that_was_killed_on_every_node) {
  NEEDS(no_ucx);
  for (const int victim : {0, 1, 2, 3}) {
    const std::string said = on_nodes(two_by_two, [&](rank_communicator& c, world&) -> std::string {
      std::vector<float> some(100'000, 1.0F);
      const weft::error e = error_of([&] {
        c.all_reduce(some, weft::reduce_op::sum);
        if (c.self().value() == victim) ::kill(::getpid(), SIGKILL);
        for (;;) c.all_reduce(some, weft::reduce_op::sum);
      });
      // a leader that dies takes the way to its node with it, and its neighbour may be seen to leave first
      const int leader = victim / 2 * 2;
      const auto names = [&](int r) { return says(e.what, "rank " + std::to_string(r) + " ("); };
      const bool is_named = names(victim) || names(leader) || (victim == leader && names(leader + 1));
      if (e.code != errc::peer_dead || !is_named) return to_string(e);
      const weft::error again = error_of([&] { c.barrier(); });
      return again.code == errc::peer_dead ? "" : "and then: " + to_string(again);
    });
    EXPECT_EQ(said, "ended by signal 9") << victim;
  }
}

/// Calls until a rank has died, and goes on with those that are left.
rank_communicator after_deaths(rank_communicator& c, const std::vector<int>& victims, std::string& wrong) {
  std::vector<float> some(100'000, 1.0F);
  const bool dies = std::ranges::find(victims, c.self().value()) != victims.end();
  const weft::error e = error_of([&] {
    c.all_reduce(some, weft::reduce_op::sum);  // then all have come out of what was before
    if (dies) ::kill(::getpid(), SIGKILL);
    for (;;) c.all_reduce(some, weft::reduce_op::sum);
  });
  if (dies) ::kill(::getpid(), SIGKILL);
  if (e.code != errc::peer_dead && e.code != errc::cancelled) wrong += to_string(e) + "; ";
  return c.shrink(only_a_hang);
}

/// Every rank adds a bit of its own, as what it was at first.
std::string adds_up(rank_communicator& c, int was, std::int64_t bits) {
  std::string wrong;
  for (const std::size_t count : {std::size_t{3}, std::size_t{200'000}}) {
    std::vector<std::int64_t> sum(count, std::int64_t{1} << was);
    c.all_reduce(sum, weft::reduce_op::sum);
    if (sum != std::vector<std::int64_t>(count, bits))
      wrong += std::to_string(count) + " add up to " + std::to_string(sum.front()) + "; ";
  }
  return wrong;
}

TEST(world_communicator, shrinks_to_those_that_are_left_on_several_nodes_and_goes_on) {
  NEEDS(no_ucx);
  struct {
    std::vector<int> nodes, victims;
  } const cases[] = {{two_by_two, {1}},    {two_by_two, {0}},    {two_by_two, {2}},         {two_by_two, {3}},
                     {two_by_two, {2, 3}}, {two_by_two, {1, 3}}, {one_each, {0}},           {one_each, {2}},
                     {mixed_up, {0, 4}},   {mixed_up, {3}},      {{0, 0, 0, 1, 1}, {0, 3}}, {{0, 1}, {1}}};
  for (const auto& [nodes, victims] : cases) {
    std::int64_t bits = 0;
    for (int r = 0; r < static_cast<int>(nodes.size()); ++r)
      if (std::ranges::find(victims, r) == victims.end()) bits |= std::int64_t{1} << r;
    const std::string said = on_nodes(nodes, [&](rank_communicator& c, world&) -> std::string {
      const int was = c.self().value();
      std::string wrong;
      rank_communicator left = after_deaths(c, victims, wrong);
      if (left.size() != std::popcount(static_cast<std::uint64_t>(bits)))
        wrong += "size " + std::to_string(left.size());
      if (left.member(left.self()).value() != was) wrong += "another member; ";
      return wrong + adds_up(left, was, bits);
    });
    std::string expected;
    for (std::size_t n = 0; n < victims.size(); ++n) expected += "ended by signal 9";
    EXPECT_EQ(said, expected) << victims.front() << " of " << nodes.size();
  }
}

TEST(world_communicator, shrinks_again_and_again) {
  NEEDS(no_ucx);
  const std::string said = on_nodes({0, 0, 1, 1, 2}, [&](rank_communicator& c, world&) -> std::string {
    const int was = c.self().value();
    std::string wrong;
    rank_communicator four = after_deaths(c, {1}, wrong);
    wrong += adds_up(four, was, 0b11101);
    rank_communicator three = after_deaths(four, was == 4 ? std::vector<int>{3} : std::vector<int>{}, wrong);
    wrong += adds_up(three, was, 0b01101);
    // and the first one once more, of which three of five are left
    rank_communicator same = c.shrink(only_a_hang);
    return wrong + adds_up(same, was, 0b01101);
  });
  EXPECT_EQ(said, "ended by signal 9ended by signal 9");
}

TEST(world_communicator, agrees_although_a_rank_dies_while_they_agree) {
  NEEDS(no_ucx);
  const bool is_long = samples::by_night();
  for (int round = 0; round < (is_long ? 200 : 12); ++round) {
    const std::string said = on_nodes({0, 0, 1, 1, 2}, [&](rank_communicator& c, world&) -> std::string {
      const int was = c.self().value();
      std::string wrong;
      std::jthread killer;
      if (was == 3 || was == 4) {  // one of the two that come to the shrink dies in it, at any step
        const int victim = round % 2 == 0 ? 3 : 4;
        if (was == victim) {
          killer = std::jthread{[&] {
            while (!c.failure()) std::this_thread::yield();
            for (int n = 0; n < round * 40; ++n) std::this_thread::yield();
            ::kill(::getpid(), SIGKILL);
          }};
        }
      }
      rank_communicator left = after_deaths(c, {1}, wrong);
      const std::int64_t with = 0b11101, without = round % 2 == 0 ? 0b10101 : 0b01101;
      for (;;) {
        std::string sums;
        const weft::error e = error_of([&] {
          for (int n = 0; n < 1000 || left.size() == 4; ++n) {
            sums = adds_up(left, was, left.size() == 4 ? with : without);
            if (!sums.empty() || left.size() == 3) break;
          }
        });
        if (e.code == errc::not_ready) return wrong + sums;  // nothing failed
        if (e.code != errc::peer_dead && e.code != errc::cancelled) return wrong + to_string(e);
        left = left.shrink(only_a_hang);
      }
    });
    EXPECT_EQ(said, "ended by signal 9ended by signal 9") << "round " << round;
  }
}

TEST(world_communicator, does_not_go_on_with_half_of_its_ranks_without_the_lowest) {
  NEEDS(no_ucx);
  const std::string said = on_nodes(two_by_two, [&](rank_communicator& c, world&) -> std::string {
    std::string wrong;
    const weft::error e = error_of([&] { static_cast<void>(after_deaths(c, {0, 1}, wrong)); });
    return e.code == errc::peer_dead && says(e.what, " of the 4 ranks of a communicator are left") ? wrong
                                                                                                   : to_string(e);
  });
  EXPECT_EQ(said, "ended by signal 9ended by signal 9");
}

TEST(world_communicator, behind_a_cut_cable_goes_on_where_the_lowest_rank_is_and_nowhere_else) {
  NEEDS(no_ucx);
  NEEDS(no_namespaces);
  const auto as = [](int r, const auto& cut) -> std::string {
    world_options options = with_ucx();
    options.silence = 500ms;
    world w = weft::value_or_raise(world::join({rank{r}, 2, {}, "10.77.0.1", 29501}, options));
    const weft::machine m = ranks::a_machine(1);
    weft::rank_communicator c = w.communicator(m[0]);
    std::vector<std::int64_t> some(10, 1);
    c.all_reduce(some, weft::reduce_op::sum);
    cut();
    const weft::error e = error_of([&] {
      for (;;) c.barrier();
    });
    if (e.code != errc::peer_dead) return "the cut was " + to_string(e);
    if (r == 1) {
      const weft::error none = error_of([&] { static_cast<void>(c.shrink(only_a_hang)); });
      return none.code == errc::peer_dead && says(none.what, "1 of the 2 ranks") ? "" : to_string(none);
    }
    rank_communicator alone = c.shrink(only_a_hang);
    return alone.size() == 1 ? adds_up(alone, 0, 1) : "size " + std::to_string(alone.size());
  };
  EXPECT_EQ(on_two_nodes([&] { return as(0, [] { run("PATH=$PATH:/usr/sbin:/sbin; ip link set weft0 down"); }); },
                         [&] { return as(1, [] {}); }),
            "");
}

// Again and again, for all leave while they connect: UCX must not meet a half-made connection whose other end has gone.
TEST(world_communicator, ends_everywhere_when_one_rank_aborts) {
  NEEDS(no_ucx);
  for (int turn = 0; turn < 20; ++turn)
    ASSERT_EQ(on_nodes(two_by_two,
                       [&](rank_communicator& c, world&) -> std::string {
                         const weft::error e = error_of([&] {
                           c.barrier();
                           if (c.self() == rank{turn % 4}) c.abort("enough");
                           for (;;) c.barrier();
                         });
                         return e.code == errc::cancelled && says(e.what, "enough") ? "" : to_string(e);
                       }),
              "")
        << "turn " << turn;
}

TEST(world_communicator, needs_an_engine_where_there_is_more_than_one_node) {
  EXPECT_EQ(
      on_nodes(
          {0, 1}, [](rank_communicator&, world&) { return std::string{"made"}; }, [] { return within(only_a_hang); })
          .find("made"),
      std::string::npos);
  EXPECT_EQ(on_nodes(
                {0, 0},
                [](rank_communicator& c, world&) -> std::string {
                  std::vector<int> one{1};
                  c.all_reduce(one, weft::reduce_op::sum);
                  return one[0] == 2 ? "" : "wrong";
                },
                [] { return within(only_a_hang); }),
            "");
}

}  // namespace
