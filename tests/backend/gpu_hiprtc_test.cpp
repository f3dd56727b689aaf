// SPDX-License-Identifier: Apache-2.0
// HIP's run-time compiler as it is installed, without a GPU: every kernel of weft's becomes code of AMD's GPUs, and a
// text that is wrong is told where. By day one architecture, by night all that the compiler serves.
#include "backends/gpu/hip/hip.hpp"
#include "backends/gpu/hip/hiprtc.hpp"
#include "support/device_kernels.hpp"
#include "support/rounds.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <set>

namespace gpu_hiprtc_test {

namespace amd = weft::gpu::amd;
using weft::errc;

std::int32_t known_to_the_host_alone(std::int32_t number) { return number + 1; }

WEFT_KERNEL(names_what_is_not_there, (WEFT_INOUT(int32_t) numbers),
            { numbers[i] = known_to_the_host_alone(numbers[i]); });

std::vector<int> architectures() {
  std::vector<int> all{0x90a};
  if (samples::by_night()) all = {0x906, 0x908, 0x90a, 0x942, 0x1030, 0x1100};
  return all;
}

class gpu_hiprtc : public testing::Test {
 protected:
  void SetUp() override {
    auto made = amd::load_hiprtc("", 0);
    if (!made) GTEST_SKIP() << made.error().what;
    compiler = *made;
  }

  std::shared_ptr<const amd::hiprtc> compiler;
};

class gpu_hiprtc_for : public gpu_hiprtc, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    gpu_hiprtc::SetUp();
    if (compiler && !compiler->knows(GetParam()))
      GTEST_SKIP() << amd::gfx_name(GetParam()) << " is not served by " << compiler->library();
  }

  void compiles(const samples::kernel_list& all) const {
    std::set<std::uint64_t> seen;
    for (const auto& code : all) {
      if (!seen.insert(code->hash).second) continue;
      const auto made = compiler->compile(*code, GetParam());
      ASSERT_TRUE(made) << made.error().what;
      const std::string head = made->bytes.substr(0, 24);
      EXPECT_TRUE(head.substr(1, 3) == "ELF" || head == "__CLANG_OFFLOAD_BUNDLE__") << code->name;
      EXPECT_EQ(made->log.find("warning"), std::string::npos) << made->log;
    }
    std::cout << seen.size() << " kernels for " << amd::gfx_name(GetParam()) << " by " << compiler->library() << "\n";
  }
};

TEST_P(gpu_hiprtc_for, compiles_every_kernel_of_the_library) { compiles(samples::library_kernels()); }
TEST_P(gpu_hiprtc_for, compiles_every_kernel_of_queues_the_tool_and_the_examples) {
  compiles(samples::program_kernels());
}
TEST_P(gpu_hiprtc_for, compiles_portable_kernels_reductions_and_rings) { compiles(samples::portable_kernels()); }

INSTANTIATE_TEST_SUITE_P(architectures, gpu_hiprtc_for, testing::ValuesIn(architectures()),
                         [](const auto& one) { return amd::gfx_name(one.param); });

TEST_F(gpu_hiprtc, begins_an_error_with_the_file_and_line_of_the_kernel) {
  const auto made = compiler->compile(*weft::make_kernel_code<names_what_is_not_there>(), 0x90a);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, errc::incompatible);
  EXPECT_NE(made.error().what.find("gpu_hiprtc_test.cpp"), std::string::npos) << made.error().what;
  EXPECT_NE(made.error().what.find("known_to_the_host_alone"), std::string::npos) << made.error().what;
}

TEST_F(gpu_hiprtc, has_nothing_to_compile_of_a_raw_kernel_without_a_source) {
  weft::raw_kernel raw;
  raw.name = raw.entry = "elsewhere";
  raw.cuda_source = "extern \"C\" __global__ void elsewhere() {}";
  const auto made = compiler->compile(*weft::make_kernel_code(raw), 0x90a);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, errc::unsupported);
  EXPECT_NE(made.error().what.find("no source for HIP"), std::string::npos) << made.error().what;
}

}  // namespace gpu_hiprtc_test
