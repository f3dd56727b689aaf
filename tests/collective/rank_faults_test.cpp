// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stop, abort or leave, and the survivors.
#include "collective/rank_ranks.hpp"
#include "support/faults.hpp"
#include "support/rounds.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <mutex>
#include <random>
#include <thread>

namespace rank_faults_test {

using namespace std::chrono_literals;
using ranks::kind;
using ranks::team;
using weft::errc;
using weft::rank;
using weft::rank_communicator;
using weft::reduce_op;

using group = std::shared_ptr<weft::process_group>;
using clock = std::chrono::steady_clock;

/// What ranks and the test tell each other.
struct board {
  std::array<processes::steps, 8> done;              // operations of each rank
  std::array<processes::steps, 8> ended;             // 1: it has its error; 2: it has gone on
  std::array<std::atomic<std::int64_t>, 8> heard{};  // when, on the steady clock, which all processes share
  std::array<std::atomic<std::int64_t>, 8> stood{};  // the longest time for which each had no turn; the test's is last
  processes::steps go;
};

std::int64_t now() { return clock::now().time_since_epoch().count(); }

/// Keeps the longest time for which its process had no turn. Of a process that the machine let stand still for seconds
/// a limit of seconds says nothing.
class turns {
 public:
  explicit turns(std::atomic<std::int64_t>& longest)
      : thread_{[&longest, last = now()](const std::stop_token& over) mutable {
          std::mutex mutex;
          std::condition_variable_any nobody;
          do {
            std::unique_lock lock{mutex};
            nobody.wait_for(lock, over, 20ms, [] { return false; });
            const std::int64_t at = now();
            longest = std::max(longest.load(), at - last);
            last = at;
          } while (!over.stop_requested());
        }} {}

 private:
  std::jthread thread_;
};

/// Operations of several kinds and sizes until one fails.
weft::error work_until_it_fails(rank_communicator& c, board& b, int sort, const weft::collective_options& how = {}) {
  const auto me = c.self().index();
  auto there = c.allocate<float>(100'000);
  std::vector<float> one(4, 1.0F), much(300'000, 1.0F);
  return samples::error_of([&] {
    for (int i = 1;; ++i) {
      if (sort == 0 || i % 7 == 0) c.all_reduce(one, reduce_op::max, how);
      if (sort == 1 || i % 7 == 0) c.all_reduce(there, reduce_op::max, how);
      if (sort == 2 || i % 7 == 0) c.all_reduce(much, reduce_op::max, how);
      if (sort == 3) {
        weft::collective_options ring = how;
        ring.algorithm = weft::collective_algorithm::ring;
        c.all_reduce(much, reduce_op::max, ring);
      }
      b.done[me].say(i);
    }
  });
}

/// The survivors' communicator gives right results.
std::string goes_on(rank_communicator& c, int size) {
  if (c.size() != size) return std::to_string(c.size()) + " survivors, not " + std::to_string(size);
  auto there = c.allocate<std::int32_t>(50'000);
  weft::copy(there.span(), std::vector<std::int32_t>(50'000, c.self().value() + 1));
  c.all_reduce(there, reduce_op::sum);
  std::vector<std::int32_t> got(50'000);
  weft::copy(got, there.span());
  return ranks::same(got, std::vector<std::int32_t>(50'000, size * (size + 1) / 2), "after shrinking");
}

class killed : public testing::TestWithParam<int> {};

TEST_P(killed, all_others_name_the_rank_killed_in_the_middle_shrink_and_go_on) {
  constexpr int n = 4, victim = 2;
  const processes::shared<board> b;
  weft::rank_communicator_options options;
  options.timeout = samples::only_a_hang;
  team all{n,
           [&](rank_communicator& c, const group&) {
             const auto me = c.self().index();
             const weft::error e = work_until_it_fails(c, *b, GetParam());
             b->heard[me] = now();
             if (e.code != errc::peer_dead || e.what.find("rank 2 (pid") == std::string::npos ||
                 e.what.find(") has died or left during call ") == std::string::npos)
               return to_string(e);
             if (!c.failure() || c.failure()->what != e.what) return std::string{"another failure"};
             std::vector<float> again(3);
             const weft::error later = samples::error_of([&] { c.all_reduce(again, reduce_op::sum); });
             if (later.code != errc::peer_dead || later.what != e.what) return "later: " + to_string(later);
             auto left = c.shrink(samples::only_a_hang);
             return goes_on(left, n - 1);
           },
           options};
  ASSERT_TRUE(b->done[victim].hear(20));
  const std::int64_t at = now();
  all[victim].kill(SIGKILL);
  EXPECT_EQ(all[victim].wait(), -SIGKILL);
  for (const int r : {0, 1, 3}) EXPECT_EQ(all[r].wait(), 0) << r;
  for (const int r : {0, 1, 3}) {
    const std::chrono::nanoseconds after{b->heard[static_cast<std::size_t>(r)] - at};
    RecordProperty("rank_" + std::to_string(r) + "_heard_after_us", std::to_string(after.count() / 1000));
    EXPECT_LT(after, options.timeout / 2) << r << " waited for the limit";
  }
}

INSTANTIATE_TEST_SUITE_P(rank, killed, testing::Values(0, 1, 2, 3));

TEST(rank, a_stopped_rank_is_named_at_the_timeout_and_does_no_harm_when_it_goes_on) {
  constexpr int n = 3, victim = 1, enough = 20;
  weft::rank_communicator_options options;
  options.timeout = samples::only_a_hang;
  const auto part = [](rank_communicator& c, board& b) {
    const auto me = c.self().index();
    weft::collective_options how;
    how.timeout = 2s;
    const weft::error e = work_until_it_fails(c, b, 1, how);
    if (me == victim) {
      // it hears what the others have decided about it
      if (e.code != errc::timed_out && e.code != errc::cancelled) return "the victim: " + to_string(e);
      const weft::error out = samples::error_of([&] { static_cast<void>(c.shrink(1s)); });
      return out.code == errc::peer_dead ? std::string{} : "the victim shrinks: " + to_string(out);
    }
    if (e.code != errc::timed_out || e.what.find("rank 1 (pid") == std::string::npos ||
        e.what.find("rank 1") > e.what.find("did not come") || e.what.find("call ") == std::string::npos)
      return to_string(e);
    auto left = c.shrink(2s);
    if (std::string wrong = goes_on(left, n - 1); !wrong.empty()) return wrong;
    b.ended[me].say(1);
    if (!b.go.hear(1)) return std::string{"not told to go on"};
    return goes_on(left, n - 1);
  };
  // Once, unless the machine lets a rank stand still that nobody has stopped.
  const auto until = clock::now() + samples::only_a_hang;
  for (bool right = false; !right;) {
    const processes::shared<board> b;
    team all{n,
             [&](rank_communicator& c, const group&) {
               const auto me = c.self().index();
               const struct farewell {  // whatever comes of it, nobody waits for this rank
                 board& of;
                 std::size_t rank;
                 ~farewell() {
                   of.done[rank].say(enough);
                   of.ended[rank].say(2);
                 }
               } at_the_end{*b, me};
               const turns own{b->stood[me]};
               return part(c, *b);
             },
             options};
    const turns of_the_test{b->stood.back()};
    ASSERT_TRUE(b->done[victim].hear(enough));
    std::int64_t stood = b->stood[victim];  // before it is stopped
    all[victim].kill(SIGSTOP);
    ASSERT_TRUE(b->ended[0].hear(1));
    ASSERT_TRUE(b->ended[2].hear(1));
    all[victim].kill(SIGCONT);
    right = all[victim].wait() == 0;
    b->go.say(1);
    for (const int r : {0, 2}) right = all[r].wait() == 0 && right;
    for (const std::size_t r : {0U, 2U, 7U}) stood = std::max<std::int64_t>(stood, b->stood[r]);
    ASSERT_TRUE(right || std::chrono::nanoseconds{stood} > 500ms) << "and each had its turns";
    ASSERT_TRUE(right || clock::now() < until);
  }
}

TEST(rank, an_abort_ends_the_call_of_all_ranks_with_its_reason) {
  for (const kind how : {kind::processes, kind::threads}) {
    EXPECT_TRUE(ranks::run(how, 3, [](rank_communicator& c, const group&) {
      std::vector<float> some(2000);
      c.all_reduce(some, reduce_op::sum);
      weft::error e;
      if (c.self() == rank{1}) {
        c.abort("the loss is not a number");
        e = samples::error_of([&] { c.all_reduce(some, reduce_op::sum); });
      } else {
        e = samples::error_of([&] {
          for (;;) c.all_reduce(some, reduce_op::sum);
        });
      }
      if (e.code != errc::cancelled || e.what.find("rank 1 (pid") == std::string::npos ||
          e.what.find("the loss is not a number") == std::string::npos)
        return to_string(e);
      if (c.states()[c.self().index()].is_inside) return std::string{"it is still in a call that has ended"};
      c.abort("too late to matter");
      if (c.failure()->what != e.what) return "the cause has changed: " + c.failure()->what;
      auto again = c.shrink(samples::only_a_hang);
      return goes_on(again, 3);
    }));
  }
}

TEST(rank, a_rank_that_drops_its_communicator_is_named_by_the_ranks_that_wait) {
  std::latch heard{2};
  EXPECT_TRUE(ranks::run(kind::threads, 3, [&](rank_communicator& c, const group&) {
    if (c.self() == rank{2}) {
      static_cast<void>(rank_communicator{std::move(c)});
      heard.wait();  // the communicator is gone, and not the rank
      return std::string{};
    }
    const weft::error e = samples::error_of([&] { c.barrier(); });
    heard.count_down();
    return e.code == errc::peer_dead && e.what.find("rank 2 (pid") != std::string::npos &&
                   e.what.find(") has let the communicator go during call ") != std::string::npos &&
                   e.what.find("barrier") != std::string::npos
               ? std::string{}
               : to_string(e);
  }));
}

TEST(rank, a_rank_killed_during_an_allocation_is_named) {
  const processes::shared<board> b;
  team all{3, [&](rank_communicator& c, const group&) {
             c.barrier();
             b->done[c.self().index()].say(1);
             if (c.self() == rank{0}) static_cast<void>(b->go.hear(1));  // killed here
             const weft::error e = samples::error_of([&] { static_cast<void>(c.allocate<float>(100)); });
             return e.code == errc::peer_dead && e.what.find("rank 0 (pid") != std::string::npos ? std::string{}
                                                                                                 : to_string(e);
           }};
  for (const int r : {0, 1, 2}) ASSERT_TRUE(b->done[static_cast<std::size_t>(r)].hear(1));
  all[0].kill(SIGKILL);
  EXPECT_EQ(all[0].wait(), -SIGKILL);
  EXPECT_EQ(all[1].wait(), 0);
  EXPECT_EQ(all[2].wait(), 0);
}

TEST(rank, after_rank_dies_the_survivors_shrink_until_one_is_left) {
  constexpr int n = 5;
  samples::played_faults(n - 1);
  const processes::shared<board> b;
  team all{n, [&](rank_communicator& first, const group&) {
             const int me = first.self().value();
             auto c = std::make_unique<rank_communicator>(std::move(first));
             for (int left = n; left > 1; --left) {
               if (std::string wrong = goes_on(*c, left); !wrong.empty()) return wrong;
               b->done[static_cast<std::size_t>(me)].say(n - left + 1);
               const weft::error e = samples::error_of([&] {
                 for (;;) c->barrier();
               });
               if (e.code != errc::peer_dead) return to_string(e);
               c = std::make_unique<rank_communicator>(c->shrink(samples::only_a_hang));
             }
             return goes_on(*c, 1);
           }};
  for (int round = 0; round < n - 1; ++round) {
    for (int r = round; r < n; ++r) ASSERT_TRUE(b->done[static_cast<std::size_t>(r)].hear(round + 1));
    all[round].kill(SIGKILL);  // always the one that made the memory
    EXPECT_EQ(all[round].wait(), -SIGKILL);
  }
  EXPECT_EQ(all[n - 1].wait(), 0);
}

/// The process group's ranks of a communicator, as bits.
std::int64_t members_of(const rank_communicator& c) {
  std::int64_t made = 0;
  for (int r = 0; r < c.size(); ++r) made |= std::int64_t{1} << c.member(rank{r}).value();
  return made;
}

// The second victim is killed at a random moment of the 3 ms after the first one: before, in or after the shrink.
TEST(rank, killed_while_others_shrink_leaves_all_of_them_with_the_same_communicator) {
  const int rounds = samples::by_night() ? 1000 : 25;
  std::mt19937 random{20261124};
  samples::played_faults(2 * static_cast<std::uint64_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    const int n = 3 + round % 3, first = static_cast<int>(random() % static_cast<unsigned>(n));
    const int second = (first + 1 + static_cast<int>(random() % static_cast<unsigned>(n - 1))) % n;
    const processes::shared<board> b;
    team all{
        n, [&](rank_communicator& c, const group&) {
          const auto me = c.self().index();
          b->done[me].say(1);
          const weft::error e = samples::error_of([&] {
            for (;;) c.barrier();
          });
          if (e.code != errc::peer_dead && e.code != errc::cancelled) return to_string(e);
          auto left = c.shrink(samples::only_a_hang);
          b->heard[me] = members_of(left);
          if (!b->go.hear(1)) return std::string{"not told to go on"};  // now the second victim is dead
          const auto ends_well = [&](rank_communicator& with) {
            if (std::string wrong = goes_on(with, n - 2); !wrong.empty()) return wrong;
            return std::string{processes::open_descriptors("weft-communicator") != 0 ? "an offer is still open" : ""};
          };
          if ((members_of(left) >> second & 1) == 0) return ends_well(left);
          const weft::error again = samples::error_of([&] { left.barrier(); });
          if (again.code != errc::peer_dead && again.code != errc::cancelled) return to_string(again);
          auto last = left.shrink(samples::only_a_hang);
          return ends_well(last);
        }};
    for (int r = 0; r < n; ++r) ASSERT_TRUE(b->done[static_cast<std::size_t>(r)].hear(1));
    all[first].kill(SIGKILL);
    const auto until = clock::now() + std::chrono::microseconds{random() % 3000};
    while (clock::now() < until) std::this_thread::yield();
    all[second].kill(SIGKILL);
    EXPECT_EQ(all[first].wait(), -SIGKILL);
    EXPECT_EQ(all[second].wait(), -SIGKILL);
    b->go.say(1);
    std::int64_t agreed = 0;
    for (int r = 0; r < n; ++r) {
      if (r == first || r == second) continue;
      ASSERT_EQ(all[r].wait(), 0) << "round " << round << ", rank " << r << ": " << first << ", then " << second;
      const std::int64_t members = b->heard[static_cast<std::size_t>(r)];
      ASSERT_TRUE(members == agreed || agreed == 0) << "round " << round << ": " << members << ", " << agreed;
      agreed = members;
    }
  }
}

TEST(rank, a_closed_machine_ends_the_call_of_all_ranks) {
  EXPECT_TRUE(ranks::run(kind::threads, 2, [](rank_communicator& c, const group& g) {
    // the machine is this test's own, so that it can be closed
    weft::machine mine = ranks::a_machine(1);
    auto own = rank_communicator::join(g, mine[0]);
    own.barrier();
    if (c.self() == rank{1}) {
      const weft::error e = samples::error_of([&] {
        for (;;) own.barrier();
      });
      return e.code == errc::cancelled || e.code == errc::peer_dead ? std::string{} : to_string(e);
    }
    mine.close();
    const weft::error e = samples::error_of([&] { own.barrier(); });
    return e.code == errc::machine_closed ? std::string{} : to_string(e);
  }));
}

}  // namespace rank_faults_test
