// SPDX-License-Identifier: Apache-2.0
#include "collective/failing_allocations.hpp"
#include "collective/rank_ranks.hpp"

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

}  // namespace failing_allocation_test
