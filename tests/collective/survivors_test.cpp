// SPDX-License-Identifier: Apache-2.0
// Every order in which ranks take their steps, die and stop while they agree who is left.
#include "collective/ranks/survivors/survivors.hpp"

#include "support/rounds.hpp"
#include "support/samples.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <vector>

namespace survivors_test {

using weft::detail::bit;

constexpr int most_ranks = 5, most_words = most_ranks + 2;

/// What goes wrong in a scenario.
struct scenario {
  int ranks = 3;
  int deaths = 0;                             // ranks that may die, each before any of its steps
  int stops = 0;                              // ranks that may stop for ever without dying
  bool is_late = false;                       // a limit may pass at any time
  bool is_full = false;                       // a rank may have no room for an offer
  bool overwrites = false, is_hasty = false;  // mistakes of a protocol, for the search to find
};

/// What ranks share: the chain and what is on its way.
struct shared_words {
  std::array<std::uint64_t, most_words> words{}, ready{};
  std::array<std::uint64_t, most_words> offered{};  // to whom
  std::array<std::uint32_t, most_ranks> arrived{};  // a position + 1
  std::uint32_t dead = 0, stopped = 0, pad = 0;
};

/// What one rank sees. Of some answers this rank may hear early or late: the search takes both.
struct world {
  const scenario& how;
  shared_words& all;
  int self;
  bool hears_of_deaths = false, is_out_of_time = false;
  bool has_chosen = false;
  int accesses = 0;
  bool matters = false;  // the step's place among the steps of others: it has written, or its answer may change

  template <class T>
  T read(T answer, bool is_final) {
    ++accesses;
    matters = matters || !is_final;
    return answer;
  }
  bool choose(bool answer) {
    has_chosen = true;
    return read(answer, false);
  }
  void wrote() {
    ++accesses;
    matters = true;
  }
  void begin() {}
  void rest() {}
  void arrive(std::uint32_t p) {
    wrote();
    all.arrived[index()] = p + 1;
  }
  bool has_arrived(int r, std::uint32_t p) {
    const bool has = all.arrived[static_cast<std::size_t>(r)] > p;
    return read(has, has);
  }
  std::uint64_t word(std::uint32_t p) { return read(all.words.at(p), all.words.at(p) != 0 && !how.overwrites); }
  void write(std::uint32_t p, std::uint64_t set) {
    wrote();
    if (all.words.at(p) == 0 || how.overwrites) all.words.at(p) = set;
  }
  void say_ready(std::uint32_t p) {
    wrote();
    all.ready.at(p) |= bit(self);
  }
  std::uint64_t ready(std::uint32_t p) {
    const std::uint64_t said = how.is_hasty ? all.words.at(p) : all.ready.at(p);
    return read(said, said == all.words.at(p));
  }
  void make(std::uint64_t) {}
  bool offer(std::uint32_t p, int r) {
    if (how.is_full && is_out_of_time) {
      has_chosen = true;
      return read(false, false);
    }
    has_chosen = has_chosen || how.is_full;
    wrote();
    all.offered.at(p) |= bit(r);
    return true;
  }
  bool take(std::uint32_t p, int, std::uint64_t) {
    const bool is_there = (all.offered.at(p) & bit(self)) != 0;
    return read(is_there, is_there);
  }
  bool is_here(int r) {
    if ((all.dead & bit(r)) != 0) return !choose(hears_of_deaths);
    return read(true, std::popcount(all.dead) == how.deaths);
  }
  bool is_late() { return how.is_late && choose(is_out_of_time); }

  [[nodiscard]] std::size_t index() const { return static_cast<std::size_t>(self); }
};

using part = weft::detail::survivors<world>;

struct state {
  shared_words all;
  std::array<part, most_ranks> parts{part{0, 0, 0}, part{0, 0, 0}, part{0, 0, 0}, part{0, 0, 0}, part{0, 0, 0}};
};
static_assert(std::is_trivially_copyable_v<state> && std::has_unique_object_representations_v<state>);

/// Stands for a state among those seen: two of 10^8 share one with a probability of 0.0003.
std::uint64_t mark_of(const state& s) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&s), sizeof s});
}

class search {
 public:
  explicit search(const scenario& how) : how_(how) {}

  /// What was found wrong, empty when nothing was. All states, or `walks` random ways through them.
  std::string run(int walks = 0) {
    if (walks != 0) return walk(walks);
    std::unordered_set<std::uint64_t> seen;
    std::vector<state> open{first()};
    seen.insert(mark_of(open.front()));
    while (!open.empty() && wrong_.empty()) {
      const state from = open.back();
      open.pop_back();
      check(from);
      if (seen.size() % 16 == 0) check_end(from);
      each_next(from, [&](const state& next) {
        if (seen.insert(mark_of(next)).second) open.push_back(next);
      });
    }
    states_ = seen.size();
    return wrong_;
  }
  [[nodiscard]] std::size_t states() const { return states_; }
  [[nodiscard]] std::size_t ends() const { return ends_; }

 private:
  [[nodiscard]] state first() const {
    state made;
    for (int r = 0; r < how_.ranks; ++r) made.parts[static_cast<std::size_t>(r)] = part{r, bit(how_.ranks) - 1, 0};
    return made;
  }
  [[nodiscard]] bool runs(const state& s, int r) const {
    return ((s.all.dead | s.all.stopped) & bit(r)) == 0 && !s.parts[static_cast<std::size_t>(r)].is_over();
  }

  struct stepped {
    state now;
    bool has_chosen = false, matters = false;
  };
  stepped after(const state& from, int r, bool hears_of_deaths, bool is_out_of_time) const {
    stepped made{from};
    world seen{how_, made.now.all, r, hears_of_deaths, is_out_of_time};
    made.now.parts[static_cast<std::size_t>(r)].step(seen);
    EXPECT_LE(seen.accesses, 1) << "a step is one access, else orders are missed";
    made.has_chosen = seen.has_chosen;
    made.matters = seen.matters;
    return made;
  }

  void each_next(const state& from, const std::function<void(const state&)>& use) const {
    std::array<stepped, most_ranks> steps;
    for (int r = 0; r < how_.ranks; ++r) {
      if (!runs(from, r)) continue;
      auto& step = steps[static_cast<std::size_t>(r)] = after(from, r, false, false);
      // which changes nothing for others, and is changed by none: before all others is one order for all
      if (!step.matters) return use(step.now);
    }
    for (int r = 0; r < how_.ranks; ++r) {
      if (!runs(from, r)) continue;
      const auto& step = steps[static_cast<std::size_t>(r)];
      use(step.now);
      if (step.has_chosen) use(after(from, r, true, true).now);
      if (std::popcount(from.all.dead) < how_.deaths) use(without(from, r, &shared_words::dead));
      if (std::popcount(from.all.stopped) < how_.stops) use(without(from, r, &shared_words::stopped));
    }
  }
  static state without(const state& from, int r, std::uint32_t shared_words::* set) {
    state made = from;
    made.all.*set |= static_cast<std::uint32_t>(bit(r));
    made.parts[static_cast<std::size_t>(r)] = part{r, 0, 0};  // where it was is of no more interest
    return made;
  }

  /// All who have returned, have returned with the same ranks; who was never late is in.
  void check(const state& s) {
    std::uint64_t agreed = 0;
    for (int r = 0; r < how_.ranks; ++r) {
      const part& p = s.parts[static_cast<std::size_t>(r)];
      if (!p.is_over()) continue;
      ++ends_;
      if (!p.is_sound()) wrong_ = "rank " + std::to_string(r) + " finds the chain damaged";
      if (p.is_left_out()) {
        if (!how_.is_late) wrong_ = "rank " + std::to_string(r) + " is alive and left out";
        continue;
      }
      if (agreed != 0 && p.set() != agreed) {
        wrong_ = "rank " + std::to_string(r) + " returns with " + std::to_string(p.set()) + ", another one with " +
                 std::to_string(agreed);
      }
      agreed = p.set();
      if ((s.all.ready.at(p.position() - 2) & agreed) != agreed)
        wrong_ = "rank " + std::to_string(r) + " returns while another one has no memory";
    }
    for (int r = 0; r < how_.ranks && agreed != 0; ++r) {
      const bool is_alive = (s.all.dead & bit(r)) == 0;
      if (is_alive && !how_.is_late && (agreed & bit(r)) == 0) wrong_ = "a rank that is alive is left out";
    }
  }

  /// From here all get to an end when each has its turns, and without a limit unless somebody has stopped.
  void check_end(state s) {
    for (int turn = 0; turn < 400; ++turn) {
      bool all_over = true;
      for (int r = 0; r < how_.ranks; ++r) {
        if (!runs(s, r)) continue;
        all_over = false;
        s = after(s, r, true, s.all.stopped != 0 && turn > 100).now;
      }
      if (all_over) return check(s);
    }
    wrong_ = "ranks wait for ever";
  }

  std::string walk(int walks) {
    std::mt19937_64 random{20261124};
    std::vector<state> nexts;
    for (int i = 0; i < walks && wrong_.empty(); ++i) {
      state s = first();
      for (;;) {
        check(s);
        nexts.clear();
        each_next(s, [&](const state& next) { nexts.push_back(next); });
        if (nexts.empty() || !wrong_.empty()) break;
        s = nexts[random() % nexts.size()];
        ++states_;
      }
    }
    return wrong_;
  }

  const scenario how_;
  std::string wrong_;
  std::size_t states_ = 0, ends_ = 0;
};

void expect_agreement(const scenario& how, int walks = 0) {
  search all{how};
  EXPECT_EQ(all.run(walks), "");
  EXPECT_GT(all.ends(), 0U);
  testing::Test::RecordProperty("states_of_" + std::to_string(how.ranks), std::to_string(all.states()));
}

TEST(survivors, agree_whoever_dies_when) {
  expect_agreement({.ranks = 2, .deaths = 2});
  expect_agreement({.ranks = 3, .deaths = 3});
  expect_agreement({.ranks = 4, .deaths = 3}, samples::by_night() ? 0 : 5'000);
  expect_agreement({.ranks = 5, .deaths = 4}, samples::by_night() ? 1'000'000 : 5'000);
}

TEST(survivors, agree_where_there_is_no_room_for_an_offer) {
  expect_agreement({.ranks = 3, .deaths = 1, .is_full = true});
  expect_agreement({.ranks = 3, .stops = 1, .is_late = true, .is_full = true}, samples::by_night() ? 0 : 5'000);
}

TEST(survivors, agree_whoever_stops_or_is_late) {
  expect_agreement({.ranks = 2, .deaths = 1, .stops = 1, .is_late = true});
  expect_agreement({.ranks = 3, .stops = 1, .is_late = true});
  if (samples::by_night()) expect_agreement({.ranks = 3, .deaths = 2, .stops = 2, .is_late = true});
  expect_agreement({.ranks = 5, .deaths = 2, .stops = 2, .is_late = true}, samples::by_night() ? 1'000'000 : 5'000);
}

// so that the tests above can fail
TEST(survivors, do_not_agree_where_a_word_is_written_twice_or_memory_is_not_waited_for) {
  EXPECT_NE((search{{.ranks = 3, .deaths = 1, .overwrites = true}}.run()), "");
  EXPECT_NE((search{{.ranks = 3, .is_hasty = true}}.run()), "");
}

}  // namespace survivors_test
