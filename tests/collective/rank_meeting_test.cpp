// SPDX-License-Identifier: Apache-2.0
// What a rank says when its device cannot go on with a call.
#include "collective/ranks/rank_meeting.hpp"

#include "collective/rank_ranks.hpp"
#include "core/errors/make_error.hpp"

#include <array>
#include <barrier>

namespace rank_meeting_test {

using weft::errc;
using weft::error;
using weft::rank;
using weft::rank_communicator;
using weft::detail::control_block;
using weft::detail::control_shape;
using weft::detail::rank_meeting;

using group = std::shared_ptr<weft::process_group>;

/// Two ranks of a block of their own; `then` has each rank's meeting when both are there, and says what was wrong.
testing::AssertionResult two_meet(const std::function<std::string(rank_meeting&, std::barrier<>&)>& then) {
  const auto file = weft::value_or_raise(control_block::make(control_shape::of(2, 2, 4096), 42));
  std::array<control_block, 2> blocks;
  for (auto& one : blocks) one = weft::value_or_raise(control_block::open(file.get(), 2, 2));
  std::barrier both{2};
  return ranks::run(ranks::kind::threads, 2, [&](rank_communicator& c, const group& g) {
    const int self = c.self().value();
    auto& mine = blocks[static_cast<std::size_t>(self)];
    rank_meeting made{g, {rank{0}, rank{1}}, self, std::move(mine), nullptr, weft::waiting::adaptive, nullptr};
    both.arrive_and_wait();
    std::string wrong = then(made, both);
    both.arrive_and_wait();  // while both are there nobody has left
    return wrong;
  });
}

error of_driver() { return weft::make_error(errc::peer_dead, "process 4711, whose memory is open here, has died"); }

TEST(rank_meeting, whose_device_sees_a_death_that_another_rank_has_named_says_that_name) {
  EXPECT_TRUE(two_meet([](rank_meeting& m, std::barrier<>& both) -> std::string {
    if (m.self() == 0) {
      const error said = samples::error_of([&] { m.fail(errc::peer_dead, "rank 7 (pid 4711) has died or left"); });
      both.arrive_and_wait();
      return said.code == errc::peer_dead ? "" : to_string(said);
    }
    both.arrive_and_wait();
    const error said = samples::error_of([&] { m.give_up(of_driver()); });
    return said.code == errc::peer_dead && said.what.find("rank 7 (pid 4711)") != std::string::npos ? ""
                                                                                                    : to_string(said);
  }));
}

TEST(rank_meeting, whose_device_sees_a_death_that_nobody_else_sees_says_so_to_all) {
  EXPECT_TRUE(two_meet([](rank_meeting& m, std::barrier<>& both) -> std::string {
    std::string wrong;
    const std::string expected = m.name_of(1) + " cannot go on: " + of_driver().what;
    if (m.self() == 1) {
      const error said = samples::error_of([&] { m.give_up(of_driver()); });
      if (said.code != errc::peer_dead || said.what != m.name_of(1) + ": " + of_driver().what) wrong = to_string(said);
    }
    both.arrive_and_wait();
    const auto known = m.failure();
    if (!known || known->what != expected) wrong += known ? to_string(*known) : "no failure is known";
    return wrong;
  }));
}

TEST(rank_meeting, whose_device_fails_keeps_its_own_cause_beside_another_one_of_another_rank) {
  for (const error& own : {weft::make_error(errc::out_of_memory, "no memory for an image"), of_driver()}) {
    EXPECT_TRUE(two_meet([&](rank_meeting& m, std::barrier<>& both) -> std::string {
      if (m.self() == 0) {
        static_cast<void>(samples::error_of([&] { m.fail(errc::cancelled, "rank 0 was told to stop"); }));
        both.arrive_and_wait();
        return {};
      }
      both.arrive_and_wait();
      const error said = samples::error_of([&] { m.give_up(own); });
      return said.code == own.code && said.what == m.name_of(1) + ": " + own.what ? "" : to_string(said);
    }));
  }
}

TEST(rank_meeting, whose_device_fails_when_the_others_have_left_does_not_call_them_dead) {
  EXPECT_TRUE(two_meet([](rank_meeting& m, std::barrier<>& both) -> std::string {
    if (m.self() == 0) m.mine().departed.store(1);
    both.arrive_and_wait();
    if (m.self() == 0) return {};
    const error own = weft::make_error(errc::copy_failed, "no way to gpu1");
    const error said = samples::error_of([&] { m.give_up_alone(own); });
    return said.code == own.code && said.what == m.name_of(1) + ": " + own.what ? "" : to_string(said);
  }));
}

}  // namespace rank_meeting_test
