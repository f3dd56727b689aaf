// SPDX-License-Identifier: Apache-2.0
// The allocations of the OpenCL driver are not the library's, and do not fail: its threads are not weft's, and its
// functions are called through a table that says when they work.
#include "collective/failing_allocations.hpp"
#include "support/played_opencl.hpp"

namespace opencl_failing_allocation_test {

using namespace failing_allocations;

/// Has the allocations of one function of the driver's set aside.
template <auto Function, class R, class... A>
void set_aside(weft::opencl::api& table, R (*weft::opencl::api::*)(A...)) {
  static R (*real)(A...) = nullptr;
  real = table.*Function;
  if (real == nullptr) return;
  table.*Function = [](A... arguments) -> R {
    ++allocations::for_a_driver;
    const struct at_the_end {
      ~at_the_end() { --allocations::for_a_driver; }
    } here;
    return real(arguments...);
  };
}

machine of_opencl() {
  ++allocations::for_a_driver;  // the driver is loaded, and makes its threads
  weft::opencl::api driver = samples::real_driver();
#define WEFT_SET_ASIDE(name) set_aside<&weft::opencl::api::name>(driver, &weft::opencl::api::name);
  WEFT_CL_REQUIRED(WEFT_SET_ASIDE)
  WEFT_CL_OPTIONAL(WEFT_SET_ASIDE)
#undef WEFT_SET_ASIDE
  const weft::machine_options options = samples::played_options(driver);
  --allocations::for_a_driver;
  return machine{options};
}

/// PoCL compiles kernels on threads of its own, whose allocations count: first once without a failure, which puts the
/// kernels into its cache.
void expect_told_by_opencl(void (*program)(opener), long step) {
  processes::child first{[program] { return run([program] { program(of_opencl); }, -1) == well ? 0 : 1; }};
  ASSERT_EQ(first.wait(), 0);
  expect_told_everywhere(program, of_opencl, step);
}

/// A driver that was loaded before a fork does not work in the child: each child asks for itself.
class opencl_failing_allocation : public testing::Test {
 protected:
  void SetUp() override {
    processes::child asks{[] { return samples::why_no_opencl().empty() ? 0 : 1; }};
    if (asks.wait() != 0) GTEST_SKIP() << "no OpenCL devices: " << samples::why_no_opencl();
  }
};

TEST_F(opencl_failing_allocation, a_failure_in_memory_streams_or_copies_ends_no_process) {
  expect_told_by_opencl(use_memory, 97);
}
TEST_F(opencl_failing_allocation, a_failure_in_launches_arrays_or_pipelines_ends_no_process) {
  expect_told_by_opencl(use_launches, 197);
}
TEST_F(opencl_failing_allocation, a_failure_in_requests_ends_no_process) { expect_told_by_opencl(use_requests, 61); }
TEST_F(opencl_failing_allocation, a_failure_in_reductions_ends_no_process) {
  expect_told_by_opencl(use_reductions, 197);
}
TEST_F(opencl_failing_allocation, a_failure_in_messages_ends_no_process) { expect_told_by_opencl(use_queues, 23); }
TEST_F(opencl_failing_allocation, a_failure_in_collectives_ends_no_process) {
  expect_told_by_opencl(use_collectives, 197);
}

}  // namespace opencl_failing_allocation_test
