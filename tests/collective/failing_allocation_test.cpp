// SPDX-License-Identifier: Apache-2.0
#include "collective/failing_allocations.hpp"
#include "collective/rank_ranks.hpp"
#include "processes/groups.hpp"
#include "processes/process_group_body.hpp"
#include "support/rounds.hpp"
#include "support/scripted_part.hpp"

namespace failing_allocation_test {

using namespace failing_allocations;

machine on_the_wall_clock() { return samples::play(samples::wired(3), clock_kind::wall); }
machine with_one_operation_at_a_time() {
  weft::machine_options options;
  options.machine = samples::wired(3);
  options.max_in_flight = 1;
  return machine{options};
}
machine in_virtual_time() { return samples::play(samples::wired(3), clock_kind::virtual_time); }

TEST(failing_allocation, a_failure_in_memory_streams_or_copies_ends_no_process) {
  expect_told_everywhere(use_memory, on_the_wall_clock, 3);
  expect_told_everywhere(use_memory, with_one_operation_at_a_time, 3);
  expect_told_everywhere(use_memory, in_virtual_time, 3);
}
// On the wall clock places differ from run to run: all of them, and by night only.
TEST(failing_allocation, a_failure_in_launches_arrays_or_pipelines_ends_no_process) {
  if (samples::by_night()) expect_told_everywhere(use_launches, on_the_wall_clock, 1);
  expect_told_everywhere(use_launches, in_virtual_time, 17);
}
TEST(failing_allocation, a_failure_in_a_launch_fails_the_readers_of_its_results) {
  expect_told_everywhere(use_failing_launches, in_virtual_time, 3);
}
TEST(failing_allocation, behind_a_stage_that_failed_ends_no_process) {
  expect_told_everywhere(use_failing_pipelines, in_virtual_time, 1);
}
TEST(failing_allocation, a_failure_in_messages_ends_no_process) {
  expect_told_everywhere(use_queues, on_the_wall_clock, 3);
  expect_told_everywhere(use_queues, in_virtual_time, 3);
}
TEST(failing_allocation, a_failure_in_collectives_ends_no_process) {
  expect_told_everywhere(use_collectives, on_the_wall_clock, 11);
  expect_told_everywhere(use_collectives, in_virtual_time, 11);
}

TEST(failing_allocation, a_failure_in_sharing_ends_no_process) {
  expect_told_everywhere(use_sharing, on_the_wall_clock, 3);
  expect_told_everywhere(use_sharing, in_virtual_time, 3);
}

TEST(failing_allocation, a_failure_in_requests_ends_no_process) {
  expect_told_everywhere(use_requests, on_the_wall_clock, 3);
  expect_told_everywhere(use_requests, in_virtual_time, 3);
}
TEST(failing_allocation, a_failure_in_reductions_ends_no_process) {
  if (samples::by_night()) expect_told_everywhere(use_reductions, on_the_wall_clock, 1);
  expect_told_everywhere(use_reductions, in_virtual_time, 17);
}
TEST(failing_allocation, a_failure_in_multicast_ends_no_process) {
  expect_told_everywhere(use_multicast, on_the_wall_clock, 3);
  expect_told_everywhere(use_multicast, in_virtual_time, 3);
}
TEST(failing_allocation, a_failure_in_opening_shared_memory_ends_neither_process) {
  expect_told_where_opened(on_the_wall_clock, 7);
}

/// Two ranks in processes of their own, in one of which a place fails: that one is told, and the other one too, or it
/// goes on. What the first came to, or what went wrong in the second.
int between_processes(long place) {
  auto places = weft::rendezvous::connected(2);
  const auto rank = [&](std::size_t r) {
    weft::rendezvous mine = std::move(places[r]);
    places.clear();
    const machine m = ranks::a_machine(1);
    auto group = std::make_shared<weft::process_group>(weft::value_or_raise(std::move(mine).join()));
    weft::rank_communicator_options options;
    options.timeout = samples::only_a_hang;
    auto all = weft::rank_communicator::join(group, m[0], options);
    const auto symmetric = all.allocate<float>(5000);
    std::vector<float> host(5000, 1);
    all.all_reduce(symmetric, weft::reduce_op::sum);
    all.all_reduce(std::span<float>{host}, weft::reduce_op::sum);
    all.barrier();
  };
  processes::child first{[&] { return run([&] { rank(0); }, place); }};
  processes::child second{[&] { return run([&] { rank(1); }, -1); }};
  places.clear();
  const int of_first = first.wait(), of_second = second.wait();
  return of_second == well || of_second == told ? of_first : of_second;
}

TEST(failing_allocation, a_failure_between_ranks_in_processes_ends_neither) { expect_told_at(between_processes, 23); }

/// Whether `call` ends for want of memory, with that place failing.
template <class F>
bool has_no_memory(long place, F call) {
  bool is_told = false;
  allocations::until_failure = place;
  try {
    call();
  } catch (const std::bad_alloc&) {
    is_told = true;
  }
  allocations::until_failure = -1;
  return is_told;
}

TEST(failing_allocation, what_a_receiver_without_memory_did_not_get_comes_with_its_next_call) {
  using namespace groups;
  auto all = together(2);
  const descriptor memory = memory_with(pattern(10, 1));
  const std::array<int, 1> with{memory.get()};
  bool failed = true;
  long place = 0;
  for (; failed; ++place) {
    SCOPED_TRACE("allocation " + std::to_string(place));
    const samples::data sent = pattern(1000, static_cast<std::uint64_t>(place));
    ASSERT_TRUE(all[1].send(rank{0}, 1, view(sent), with, soon));
    weft::result<peer_message> got{weft::error{}};
    const auto receive = [&] { got = all[0].receive(rank{1}, 1, 0ns); };
    failed = has_no_memory(place, receive);
    if (failed) receive();
    ASSERT_TRUE(got) << failure_of(got);
    EXPECT_EQ(data_of(got->payload), sent);
    EXPECT_EQ(got->descriptors.size(), 1U);

    ASSERT_EQ(code_of(all[1].all_gather(view(sent), 0ns)), errc::timed_out) << "it has arrived";
    weft::result<std::vector<std::vector<std::byte>>> met{weft::error{}};
    const auto meet = [&] { met = all[0].all_gather({}, 0ns); };
    const bool met_none = has_no_memory(place, meet);
    if (met_none) meet();
    ASSERT_TRUE(met) << failure_of(met);
    EXPECT_EQ(data_of((*met)[1]), sent);
    EXPECT_TRUE(all[1].all_gather(view(sent), 0ns));
    failed = failed || met_none;
  }
  samples::played_faults(static_cast<std::uint64_t>(2 * place));
}

TEST(failing_allocation, whoever_waits_for_what_was_read_wakes_though_memory_ran_out_for_what_came_next) {
  using namespace groups;
  using body = process_group::body;
  bool failed = true;
  for (long place = 0; failed; ++place) {
    std::vector<body::member> members(3);
    std::vector<descriptor> far;
    for (const int r : {1, 2}) {
      auto& m = members[static_cast<std::size_t>(r)];
      auto ends = weft::value_or_raise(wire::connected_sockets(wire::max_packet_bytes));
      m.info.rank = rank{r};
      m.process = weft::value_or_raise(wire::watch_process(::getpid(), 0));
      m.link = std::move(ends.first);
      far.push_back(std::move(ends.second));
    }
    auto on = weft::value_or_raise(body::watchers::of(members));
    body group{rank{0}, std::move(members), std::move(on), 0};
    for (const int r : {1, 2}) {
      packet p;
      p.rank = static_cast<std::uint32_t>(r);
      p.size = 3;
      ASSERT_TRUE(wire::write_packet(far[static_cast<std::size_t>(r - 1)].get(), p));
    }
    group.watched = true;  // by a thread that sleeps until something is read or another reads it
    failed = has_no_memory(place, [&] {
      const std::lock_guard lock{group.mutex};
      group.look();
    });
    const auto& who = group.members;
    EXPECT_TRUE(wire::is_readable(group.nudge.file()) || (who[1].unread.empty() && who[2].unread.empty()))
        << "allocation " << place;
  }
}

TEST(failing_allocation, a_failure_in_an_adoption_on_a_mixed_machine_leaves_nothing_adopted) {
  const samples::scripted_pair two;
  std::array<std::byte, 64> own{};
  long left = -1;  // allocations before the one that would have failed
  for (long place = 0; left < 0; ++place) {
    allocations::until_failure = place;
    const auto done = two.joined->adopt(weft::device_id{0}, own.data(), weft::bytes{64});
    left = allocations::until_failure.exchange(-1);
    EXPECT_EQ(two.first->memory.contains(own.data()), static_cast<bool>(done)) << "allocation " << place;
    EXPECT_TRUE(!done || two.joined->release(own.data()));
  }
}

}  // namespace failing_allocation_test
