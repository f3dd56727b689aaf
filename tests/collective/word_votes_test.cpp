// SPDX-License-Identifier: Apache-2.0
// Words that are voted for: messages of a pair in order, all pairs in any order, ranks that die at any step.
#include "collective/ranks/survivors/word_votes.hpp"

#include "support/rounds.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace {

using weft::detail::word_kind;
using weft::detail::word_message;
using weft::detail::word_votes;

using sender = std::function<void(int, const word_message&)>;
using votes = word_votes<sender>;

/// Ranks whose messages wait until the test delivers them.
struct ranks_that_vote {
  explicit ranks_that_vote(int count) : lines(static_cast<std::size_t>(count * count)), size(count) {
    for (int r = 0; r < count; ++r) {
      all.push_back(
          std::make_unique<votes>(r, (std::uint64_t{1} << count) - 1, [this, r](int to, const word_message& m) {
            if (!is_dead(r)) line(r, to).push_back(m);
          }));
    }
  }
  std::deque<word_message>& line(int from, int to) { return lines[static_cast<std::size_t>(from * size + to)]; }
  [[nodiscard]] bool is_dead(int r) const { return (dead >> r & 1) != 0; }
  /// False when nothing is on its way to anybody who lives.
  bool deliver_one(std::mt19937& random) {
    std::vector<std::pair<int, int>> ready;
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to)
        if (!line(from, to).empty() && !is_dead(to) && (cut >> from & 1) == (cut >> to & 1))
          ready.emplace_back(from, to);
    if (ready.empty()) return false;
    const auto [from, to] = ready[random() % ready.size()];
    const word_message m = line(from, to).front();
    line(from, to).pop_front();
    all[static_cast<std::size_t>(to)]->hear(from, m);
    return true;
  }
  void kill(int r, std::mt19937& random) {
    dead |= 1U << r;
    for (int to = 0; to < size; ++to) {  // the last of what it sent may be lost
      auto& left = line(r, to);
      if (!left.empty()) left.resize(left.size() - random() % (left.size() + 1));
    }
  }
  [[nodiscard]] std::uint64_t word(int r) const { return all[static_cast<std::size_t>(r)]->word(0); }

  std::vector<std::unique_ptr<votes>> all;
  std::vector<std::deque<word_message>> lines;
  int size;
  unsigned dead = 0;
  unsigned cut = 0;  // ranks behind a cut; nothing goes between the two sides
};

TEST(word_votes, has_one_value_for_all_whatever_the_order_and_whoever_dies) {
  for (unsigned seed = 0; seed < (samples::by_night() ? 20'000 : 4'000); ++seed) {
    std::mt19937 random{seed};
    const int count = 2 + static_cast<int>(random() % 5);
    ranks_that_vote them{count};
    std::uint64_t known = 0;
    const auto agree = [&] {
      for (int r = 0; r < count; ++r) {
        const std::uint64_t word = them.word(r);
        if (word == 0) continue;
        if (known == 0) known = word;
        ASSERT_EQ(word, known) << "rank " << r << ", seed " << seed;
      }
    };
    for (int step = 0; step < 400; ++step) {
      const int r = static_cast<int>(random() % static_cast<unsigned>(count));
      switch (random() % 24) {
        case 0:
          if (!them.is_dead(r)) them.all[static_cast<std::size_t>(r)]->propose(0, 100 + static_cast<unsigned>(r));
          break;
        case 1:
          if (random() % 16 == 0) them.kill(r, random);
          break;
        default:
          them.deliver_one(random);
      }
      agree();
      if (testing::Test::HasFatalFailure()) return;
    }
    // who is left and can decide, comes to a value in the end
    const unsigned left = ~them.dead & ((1U << count) - 1);
    if (!votes::decides(left, (std::uint64_t{1} << count) - 1)) continue;
    for (int tries = 0; tries < 50; ++tries) {
      const int r = std::countr_zero(left);
      if (them.word(r) == 0) them.all[static_cast<std::size_t>(r)]->propose(0, 100 + static_cast<unsigned>(r));
      while (them.deliver_one(random)) agree();
    }
    for (int r = 0; r < count; ++r)
      ASSERT_TRUE(them.is_dead(r) || them.word(r) != 0) << "rank " << r << ", seed " << seed;
    agree();
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(word_votes, a_network_cut_in_two_decides_on_one_side_at_most) {
  for (const int count : {2, 3, 4, 5, 6}) {
    for (unsigned cut = 0; cut < (1U << count); ++cut) {
      std::mt19937 random{cut};
      ranks_that_vote them{count};
      them.cut = cut;
      for (int tries = 0; tries < 20; ++tries) {
        for (int r = 0; r < count; ++r) {
          if (them.word(r) == 0) them.all[static_cast<std::size_t>(r)]->propose(0, 100 + static_cast<unsigned>(r));
          while (them.deliver_one(random)) {
          }
        }
      }
      const std::uint64_t all = (std::uint64_t{1} << count) - 1;
      const int behind = std::popcount(cut);
      for (int r = 0; r < count; ++r) {
        const bool is_behind = (cut >> r & 1) != 0;
        const int here = is_behind ? behind : count - behind;
        const bool has_lowest = is_behind == ((cut & 1) != 0);
        const bool goes_on = 2 * here > count || (2 * here == count && has_lowest);
        EXPECT_EQ(them.word(r) != 0, goes_on) << "rank " << r << " of " << count << ", cut " << cut;
        EXPECT_EQ(votes::decides(is_behind ? cut : ~cut & all, all), goes_on);
      }
    }
  }
}

TEST(word_votes, votes_on_different_positions_are_independent) {
  std::mt19937 random{1};
  ranks_that_vote them{3};
  them.all[0]->propose(0, 5);
  them.all[1]->propose(7, 9);
  while (them.deliver_one(random)) {
  }
  for (const auto& one : them.all) {
    EXPECT_EQ(one->word(0), 5U);
    EXPECT_EQ(one->word(7), 9U);
    EXPECT_EQ(one->word(1), 0U);
  }
}

}  // namespace
