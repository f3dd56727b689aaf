// SPDX-License-Identifier: Apache-2.0
// How many calls of the driver an operation takes, on the virtual driver.
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/reduce.hpp"
#include "weft/runtime/device_scope.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

namespace gpu_calls_test {

using samples::error_of;
using weft::errc;

WEFT_KERNEL(counts_up, (WEFT_INOUT(uint32_t) numbers), { numbers[i] = numbers[i] + 1U; });

struct played {
  weft::machine m{samples::virtual_cuda_options()};
  weft::stream order{m[0]};
  weft::buffer<std::uint32_t> from{m[0], 64}, to{m[0], 64};
};

class gpu_calls : public samples::virtual_cuda_test {
 protected:
  void SetUp() override {
    samples::virtual_cuda_test::SetUp();
    if (!IsSkipped()) played_.emplace();
  }
  void TearDown() override {
    last_ = {};
    played_.reset();
    samples::virtual_cuda_test::TearDown();
  }

  void launch() { last_ = weft::launch<counts_up>(played_->order, weft::range(64), played_->to); }
  void copy() { last_ = weft::copy(played_->order, played_->to, played_->from); }

  /// Calls that `work` makes each time once it has been done before; what nobody waits for has ended.
  template <class F>
  unsigned long long calls_of(F&& work) {
    constexpr unsigned long long times = 8;
    unsigned long long sum = 0;
    for (unsigned long long n = 0; n < 2 + times; ++n) {
      const unsigned long long before = driver.calls("*");
      work();
      if (n >= 2) sum += driver.calls("*") - before;
      last_.wait();
    }
    return sum / times + (sum % times != 0 ? 1 : 0);
  }

  std::optional<played> played_;
  weft::event last_;
};

TEST_F(gpu_calls, are_two_for_a_launch_and_for_a_copy_of_a_thread_that_is_at_the_device) {
  const weft::device_scope here{played_->m[0]};
  EXPECT_EQ(calls_of([&] { launch(); }), 2U) << "the kernel, and its event";
  EXPECT_EQ(calls_of([&] { copy(); }), 2U) << "the copy, and its event";
  EXPECT_EQ(calls_of([&] { last_ = played_->order.record(); }), 1U);
  EXPECT_EQ(calls_of([&] {
              launch();
              last_ = played_->order.record();
            }),
            2U)
      << "the event of what was submitted last is there";
}

TEST_F(gpu_calls, are_as_many_more_as_a_thread_is_elsewhere) {
  EXPECT_EQ(calls_of([&] { launch(); }), 5U) << "no context is current";
  std::thread{[&] {
    const weft::device_scope other{played_->m[1]};
    EXPECT_EQ(calls_of([&] { launch(); }), 4U) << "another one is, and is put back";
    const weft::device_scope here{played_->m[0]};
    EXPECT_EQ(calls_of([&] { launch(); }), 2U);
  }}.join();
}

TEST_F(gpu_calls, the_first_sum_alone_on_a_device_asks_for_its_free_memory) {
  const std::vector<float> ones(5000, 1.0F);
  weft::spread_options there;
  there.devices.ids = {samples::gpu0};
  const auto asked = [&] {
    const auto before = driver.calls("cuMemGetInfo");
    EXPECT_EQ(weft::reduce(played_->m, there, ones, weft::reduce_op::sum), 5000.0);
    return driver.calls("cuMemGetInfo") - before;
  };
  EXPECT_GT(asked(), 0u);
  EXPECT_EQ(asked(), 0u);
  EXPECT_EQ(asked(), 0u);
}

TEST_F(gpu_calls, a_device_scope_leaves_the_thread_as_it_found_it) {
  {
    const weft::device_scope here{played_->m[0]};
  }
  EXPECT_EQ(calls_of([&] { launch(); }), 5U);
  const weft::machine_options host = [] {
    weft::machine_options made;
    made.backend = "host";
    return made;
  }();
  const weft::machine plain{host};
  const weft::device_scope nothing{plain[0]};  // no contexts
  played_->m.close();
  EXPECT_EQ(error_of([&] { const weft::device_scope late{played_->m[0]}; }).code, errc::machine_closed);
}

}  // namespace gpu_calls_test
