// SPDX-License-Identifier: Apache-2.0
// A machine of the virtual CUDA driver that is closed while threads use it.
#include "support/closing.hpp"
#include "support/virtual_gpus.hpp"

namespace gpu_closed_in_use_test {

class gpu_in_use : public samples::virtual_cuda_test {};

TEST_F(gpu_in_use, a_machine_closed_in_use_says_so_and_touches_no_freed_memory) {
  EXPECT_EQ(samples::closed_in_use([] { return weft::machine{samples::virtual_cuda_options()}; }, 150), "");
}

}  // namespace gpu_closed_in_use_test
