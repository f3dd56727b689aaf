// SPDX-License-Identifier: Apache-2.0
// A machine that is closed while threads use it, on every backend.
#include "support/closing.hpp"
#include "support/opencl_machines.hpp"

namespace opencl_closed_in_use_test {

class opencl_in_use : public samples::opencl_test {};

TEST_P(opencl_in_use, a_machine_closed_in_use_says_so_and_touches_no_freed_memory) {
  EXPECT_EQ(samples::closed_in_use([] { return open(); }, 150), "");
}

INSTANTIATE_TEST_SUITE_P(memories, opencl_in_use, samples::both_memories, samples::name_of_memory);

}  // namespace opencl_closed_in_use_test
