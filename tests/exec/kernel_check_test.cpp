// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/kernel_check.hpp"

#include "support/samples.hpp"
#include "weft/backend/registry.hpp"
#include "weft/kernel/define.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kernel_check_test {

using weft::kernel_check;

std::int32_t of_the_host_alone(std::int32_t number) { return number + 1; }
WEFT_KERNEL(check_fine, (WEFT_INOUT(int32_t) numbers), { numbers[i] = numbers[i] * 2; });
WEFT_KERNEL(check_ring, (WEFT_RING out, int64_t polls), {
  uint64_t word = (uint64_t)i;
  weft_ring_send(out, &word, (uint64_t)polls);
});
WEFT_KERNEL(check_sum, (WEFT_IN(float) from, WEFT_INOUT(float, reduce(sum)) to), { to[0] += from[i]; });
WEFT_KERNEL(check_host_call, (WEFT_INOUT(int32_t) numbers), { numbers[i] = of_the_host_alone(numbers[i]); });

TEST(check_kernels, finds_what_only_the_host_can_run_without_any_device) {
  std::size_t tried = 0;
  for (const kernel_check& one : weft::check_kernels<check_fine, check_host_call>()) {
    tried += one.is_tried ? 1U : 0U;
    if (!one.is_tried) {
      EXPECT_FALSE(one.why.empty()) << one.backend << " does not say why it was not tried";
    } else if (one.kernel == "check_fine") {
      EXPECT_EQ(one.why, "") << one.backend;
    } else {
      EXPECT_TRUE(one.failed()) << one.backend;
      EXPECT_NE(one.why.find("of_the_host_alone"), std::string::npos) << one.why;
      EXPECT_NE(one.why.find("kernel_check_test.cpp"), std::string::npos) << one.why;
    }
  }
  if (tried == 0) GTEST_SKIP() << "no compiler for devices on this computer";
}

TEST(check_kernels, reads_opencl_by_clang_where_there_is_no_driver) {
  const auto* const opencl = weft::find_backend("opencl");
  if (!opencl->is_built) GTEST_SKIP() << "this build has no OpenCL backend";
  const auto fine = opencl->compile(*weft::make_kernel_code<check_fine>());
  if (!fine && fine.error().code == weft::errc::unsupported) GTEST_SKIP() << fine.error().what;
  EXPECT_TRUE(fine) << fine.error().what;
  const auto ring = opencl->compile(*weft::make_kernel_code<check_ring>());
  EXPECT_TRUE(ring) << ring.error().what;
  const auto sum = opencl->compile(*weft::make_kernel_code<check_sum>());
  EXPECT_TRUE(sum) << sum.error().what;
  const auto bad = opencl->compile(*weft::make_kernel_code<check_host_call>());
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, weft::errc::incompatible);
  EXPECT_NE(bad.error().what.find("of_the_host_alone"), std::string::npos) << bad.error().what;
  EXPECT_NE(bad.error().what.find("kernel_check_test.cpp"), std::string::npos) << bad.error().what;
}

TEST(check_kernels, registered_kernels_are_checked_and_a_raw_kernel_may_lack_its_text) {
  const weft::machine m = samples::play(samples::wired(1));
  EXPECT_TRUE(weft::check_kernels(m).empty());
  weft::raw_kernel raw;
  raw.name = raw.entry = "of_nothing";
  raw.host = [](const weft::kernel_range&, std::span<const weft::kernel_argument>) {};
  weft::kernels(m).add<check_fine>().add(weft::make_kernel_code(raw));
  std::size_t of_raw = 0;
  for (const kernel_check& one : weft::check_kernels(m)) {
    EXPECT_FALSE(one.failed()) << one.why;
    if (one.kernel != "of_nothing") continue;
    ++of_raw;
    EXPECT_FALSE(one.is_tried) << one.backend;
  }
  EXPECT_EQ(of_raw, 3U) << "CUDA, HIP and OpenCL";
}

TEST(check_kernels, refuses_a_null_kernel) {
  const std::shared_ptr<const weft::kernel_code> none[1];
  EXPECT_EQ(samples::error_of([&] { static_cast<void>(weft::check_kernels(std::span{none})); }).code,
            weft::errc::invalid_argument);
}

TEST(kernel_check_report, ends_with_1_for_a_failure_and_with_77_where_nothing_was_tried) {
  const kernel_check fine{"a", "cuda", true, ""}, bad{"a", "cuda", true, "wrong"}, missing{"a", "cuda", false, "none"};
  using checks = std::vector<kernel_check>;
  EXPECT_EQ(weft::detail::report_kernel_checks(checks{fine, missing}), 0);
  EXPECT_EQ(weft::detail::report_kernel_checks(checks{fine, bad}), 1);
  EXPECT_EQ(weft::detail::report_kernel_checks(checks{missing}), 77);
}

}  // namespace kernel_check_test
