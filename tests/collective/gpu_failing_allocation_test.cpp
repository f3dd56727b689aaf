// SPDX-License-Identifier: Apache-2.0
// The allocations of the virtual driver are not the library's, and do not fail: what a driver's failing calls come to
// is tested in tests/virtual_driver.
#include "collective/failing_allocations.hpp"
#include "support/virtual_gpus.hpp"

namespace gpu_failing_allocation_test {

using namespace failing_allocations;

machine of_cuda() {
  const samples::virtual_cuda driver;
  driver.listen_to_own_work([](int step) { allocations::for_a_driver += step; });
  return machine{samples::virtual_cuda_options()};
}

class gpu_failing_allocation : public samples::virtual_cuda_test {};

TEST_F(gpu_failing_allocation, a_failure_in_memory_streams_or_copies_ends_no_process) {
  expect_told_everywhere(use_memory, of_cuda, 31);
}
TEST_F(gpu_failing_allocation, a_failure_in_launches_arrays_or_pipelines_ends_no_process) {
  expect_told_everywhere(use_launches, of_cuda, 97);
}
TEST_F(gpu_failing_allocation, a_failure_in_sharing_ends_no_process) {
  expect_told_everywhere(use_sharing, of_cuda, 31);
}
TEST_F(gpu_failing_allocation, a_failure_in_opening_shared_memory_ends_neither_process) {
  expect_told_where_opened(of_cuda, 31);
}
TEST_F(gpu_failing_allocation, a_failure_in_multicast_ends_no_process) {
  expect_told_everywhere(use_multicast, of_cuda, 31);
}
TEST_F(gpu_failing_allocation, a_failure_in_requests_ends_no_process) {
  expect_told_everywhere(use_requests, of_cuda, 17);
}
TEST_F(gpu_failing_allocation, a_failure_in_reductions_ends_no_process) {
  expect_told_everywhere(use_reductions, of_cuda, 97);
}
TEST_F(gpu_failing_allocation, a_failure_in_messages_ends_no_process) {
  expect_told_everywhere(use_queues, of_cuda, 7);
}
TEST_F(gpu_failing_allocation, a_failure_in_collectives_ends_no_process) {
  expect_told_everywhere(use_collectives, of_cuda, 97);
}

}  // namespace gpu_failing_allocation_test
