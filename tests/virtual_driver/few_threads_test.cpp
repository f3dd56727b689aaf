// SPDX-License-Identifier: Apache-2.0
// The CUDA backend in a process that can start no thread: less is told, nothing hangs, nothing ends the process.
#include "support/threads.hpp"
#include "virtual_driver/loaded_driver.hpp"
#include "virtual_driver/virtual_machine.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"

#include <cstdint>
#include <vector>

namespace few_threads_test {

WEFT_KERNEL(runs_until_told, (WEFT_INOUT(uint32_t) word), { while (*(volatile uint32_t*)&word[0] == 0U); });

/// What the driver plays has its threads: a stream that works, and one aside from it.
void warm_up(const weft::stream& order, const weft::device& on) {
  const weft::buffer<std::uint32_t> numbers{on, 10};
  weft::fill(order, numbers, 1U).wait();
  std::vector<std::uint32_t> came(10);
  weft::copy(came, numbers);
}

TEST(few_threads, a_machine_closes_whose_device_is_lost_while_somebody_is_to_be_told) {
  virtual_cuda::in_child({}, [] {
    virtual_cuda::be_bounded();
    weft::event running;
    {
      const weft::machine m = virtual_cuda::open_machine();
      const weft::stream order{m[0]};
      warm_up(order, m[0]);
      const weft::pinned_buffer<std::uint32_t> word{m[1], 1};
      word.host()[0] = 0;
      running = weft::launch<runs_until_told>(order, weft::range(1), word);
      const samples::no_new_threads none;
      running.record()->tell();
      virtual_cuda::find<void(int, int)>("weft_virtual_lose")(0, 719);
    }
    EXPECT_TRUE(running.ready());
  });
}

}  // namespace few_threads_test
