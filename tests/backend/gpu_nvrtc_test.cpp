// SPDX-License-Identifier: Apache-2.0
// The run-time compiler as the CUDA backend uses it, which takes no GPU: what it makes for each architecture, the
// registers and spills of the library's own kernels, and what it says of texts that are wrong.
#include "backends/gpu/cuda/nvrtc.hpp"
#include "support/device_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

namespace gpu_nvrtc_test {

using weft::errc;
using weft::gpu::compiled_image;
using weft::gpu::nvrtc;

std::int32_t known_to_the_host_alone(std::int32_t number) { return number + 1; }

constexpr int line_before = __LINE__;
WEFT_KERNEL(calls_the_host, (WEFT_INOUT(int32_t) numbers), { numbers[i] = known_to_the_host_alone(numbers[i]); });
constexpr int line_behind = __LINE__;

constexpr std::array<int, 4> architectures{75, 80, 90, 100};

/// What ptxas says of one kernel.
struct weight {
  int registers = -1;
  int spilled = -1;  // bytes, stored and loaded
};

int number_before(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return -1;
  const std::size_t begin = text.find_last_not_of("0123456789", at - 2);
  return std::atoi(text.substr(begin + 1, at - begin - 2).c_str());
}

/// Of all functions in the log of a verbose compilation the heaviest.
weight weight_of(const std::string& log) {
  weight most;
  for (std::size_t at = 0; (at = log.find("Compiling entry function", at)) != std::string::npos; ++at) {
    const std::string one = log.substr(at, log.find("Compiling entry function", at + 1) - at);
    const int stored = number_before(one, "bytes spill stores");
    const int loaded = number_before(one, "bytes spill loads");
    if (stored >= 0 && loaded >= 0) most.spilled = std::max(most.spilled, stored + loaded);
    most.registers = std::max(most.registers, number_before(one, "registers"));
  }
  return most;
}

class gpu_nvrtc : public testing::Test {
 protected:
  void SetUp() override {
    auto made = weft::gpu::load_nvrtc("", 0);
    if (!made) GTEST_SKIP() << made.error().what;
    compiler = *made;
  }

  std::shared_ptr<const nvrtc> compiler;
};

/// For one architecture each: they take ten seconds of processor time.
class gpu_nvrtc_for : public gpu_nvrtc, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    gpu_nvrtc::SetUp();
    if (compiler && !compiler->knows(GetParam()))
      GTEST_SKIP() << "sm_" << GetParam() << " is not known to " << compiler->library();
  }

  /// Compiles all, and says what each kernel weighs.
  void compiles(const std::vector<std::shared_ptr<const weft::kernel_code>>& all, int most_spilled) const {
    std::set<std::uint64_t> seen;
    for (const auto& code : all) {
      if (!seen.insert(code->hash).second) continue;
      const auto made = compiler->compile(*code, GetParam(), true);
      ASSERT_TRUE(made) << made.error().what;
      EXPECT_FALSE(made->is_ptx);
      EXPECT_EQ(made->bytes.substr(1, 3), "ELF");
      EXPECT_EQ(made->log.find("warning"), std::string::npos) << made->log;
      const weight of = weight_of(made->log);
      EXPECT_GT(of.registers, 0) << made->log;
      EXPECT_LE(of.spilled, most_spilled) << made->log;
      std::cout << "sm_" << GetParam() << " " << code->name << ": " << of.registers << " registers, " << of.spilled
                << " bytes spilled\n";
    }
  }
};

TEST_P(gpu_nvrtc_for, compiles_every_kernel_of_the_library_without_spills) { compiles(samples::library_kernels(), 0); }

TEST_P(gpu_nvrtc_for, compiles_the_stores_and_loads_of_multicast_without_spills) {
  if (GetParam() < 90) GTEST_SKIP() << "multicast begins with compute capability 9.0";
  std::vector<std::shared_ptr<const weft::kernel_code>> all{weft::gpu::own_kernels::multicast_store()};
  for (int type = 0; type <= static_cast<int>(weft::element_type::float64); ++type) {
    for (const auto how :
         {weft::multicast_reduction::sum, weft::multicast_reduction::min, weft::multicast_reduction::max}) {
      if (const auto& code = weft::gpu::own_kernels::multicast_load(static_cast<weft::element_type>(type), how))
        all.push_back(code);
    }
  }
  EXPECT_EQ(all.size(), 15U);
  compiles(all, 0);
}

TEST_P(gpu_nvrtc_for, compiles_every_kernel_of_queues_the_tool_and_the_examples_without_spills) {
  compiles(samples::program_kernels(), 0);
}

TEST_P(gpu_nvrtc_for, compiles_portable_kernels_reductions_and_rings) {
  constexpr int some = 256;  // sin and cos of large numbers keep a table in memory
  compiles(samples::portable_kernels(), some);
}

/// Without blanks and the numbers of lines, which the preprocessor takes from a text and puts there.
std::string dense(const std::string& text) {
  std::istringstream lines{text};
  std::string made;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("#line")) made += line;
  }
  std::erase_if(made, [](unsigned char c) { return std::isspace(c) != 0; });
  return made;
}

TEST(kernels_of_a_source_file, are_read_as_the_compiler_reads_them) {
  const auto read = samples::written_kernels(samples::source_folder() + "/tests/kernel/portable_kernels.hpp");
  std::set<std::string> names;
  const auto is_read = [&](const std::shared_ptr<const weft::kernel_code>& code) {
    const auto same = std::find_if(read.begin(), read.end(), [&](const auto& one) { return one->name == code->name; });
    if (same == read.end()) return;  // of the library, which that file only uses
    names.insert(code->name);
    EXPECT_EQ(dense(weft::kernel_text(**same, weft::dialect::cuda)),
              dense(weft::kernel_text(*code, weft::dialect::cuda)));
  };
  for (const portable::run& one : portable::exact_runs()) is_read(one.code);
  for (const portable::run& one : portable::reduce_runs()) is_read(one.code);
  for (const portable::run& one : {portable::float_division_run(), portable::float_function_run(),
                                   portable::double_function_run(), portable::float_adding_run(1)})
    is_read(one.code);
  EXPECT_EQ(names.size(), read.size());
  EXPECT_GE(names.size(), 10U);

  const auto rings = samples::written_kernels(samples::source_folder() + "/tests/support/device_kernels.hpp");
  const auto sends = std::find_if(rings.begin(), rings.end(), [](const auto& one) { return one->name == "sends_on"; });
  ASSERT_NE(sends, rings.end());
  EXPECT_EQ(dense(weft::kernel_text(**sends, weft::dialect::cuda)),
            dense(weft::kernel_text(*weft::make_kernel_code<samples::sends_on>(), weft::dialect::cuda)));
}

INSTANTIATE_TEST_SUITE_P(architectures, gpu_nvrtc_for, testing::ValuesIn(architectures),
                         [](const auto& one) { return "sm_" + std::to_string(one.param); });

TEST_F(gpu_nvrtc, gives_ptx_of_the_newest_it_knows_for_a_newer_architecture) {
  const int newest = compiler->architectures().back();
  const auto made = compiler->compile(*weft::make_kernel_code<portable::saxpy>(), newest + 70);
  ASSERT_TRUE(made) << made.error().what;
  EXPECT_TRUE(made->is_ptx);
  EXPECT_NE(made->bytes.find(".target sm_" + std::to_string(newest)), std::string::npos);
  EXPECT_EQ(made->bytes.back(), '\0');
}

TEST_F(gpu_nvrtc, refuses_an_architecture_older_than_all_it_knows) {
  const auto made = compiler->compile(*weft::make_kernel_code<portable::saxpy>(), 35);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, errc::incompatible);
  EXPECT_NE(made.error().what.find("3.5"), std::string::npos) << made.error().what;
  EXPECT_NE(made.error().what.find("WEFT_CUDA_NVRTC"), std::string::npos) << made.error().what;
}

TEST_F(gpu_nvrtc, begins_an_error_with_the_file_and_line_of_the_kernel) {
  const auto code = weft::make_kernel_code<calls_the_host>();
  EXPECT_GT(code->line, line_before);
  EXPECT_LT(code->line, line_behind);
  const auto made = compiler->compile(*code, 90);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, errc::incompatible);
  EXPECT_TRUE(
      made.error().what.starts_with(code->file + ":" + std::to_string(code->line) + ": the kernel 'calls_the_host'"))
      << made.error().what;
  EXPECT_NE(made.error().what.find("known_to_the_host_alone"), std::string::npos) << made.error().what;
}

TEST_F(gpu_nvrtc, has_nothing_to_compile_of_a_raw_kernel_without_a_source) {
  weft::raw_kernel raw;
  raw.name = "of_another";
  raw.entry = "of_another";
  raw.opencl_source = "__kernel void of_another() {}";
  const auto made = compiler->compile(*weft::make_kernel_code(raw), 90);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, errc::unsupported);
}

TEST_F(gpu_nvrtc, takes_the_headers_of_a_toolkit_for_a_raw_kernel) {
  if (!std::ifstream{"/usr/local/cuda/include/cuda_fp16.h"}) GTEST_SKIP() << "no toolkit in /usr/local/cuda";
  weft::raw_kernel raw;
  raw.name = raw.entry = "halves";
  raw.cuda_source =
      "#include <cuda_fp16.h>\nextern \"C\" __global__ void halves(__half* all, long long begin, long long end) {"
      " if (begin + threadIdx.x < end) all[begin + threadIdx.x] = __float2half(0.5f); }";
  const auto made = compiler->compile(*weft::make_kernel_code(raw), 90);
  EXPECT_TRUE(made) << made.error().what;
}

TEST(gpu_nvrtc_library, a_missing_library_is_unsupported_and_named) {
  const auto made = weft::gpu::load_nvrtc("/nowhere/libnvrtc.so.13", 0);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, errc::unsupported);
  EXPECT_NE(made.error().what.find("/nowhere/libnvrtc.so.13"), std::string::npos) << made.error().what;
}

TEST(gpu_nvrtc_library, another_library_is_unsupported_and_its_missing_function_named) {
  const auto made = weft::gpu::load_nvrtc("libm.so.6", 0);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, errc::unsupported);
  EXPECT_NE(made.error().what.find("nvrtcCompileProgram"), std::string::npos) << made.error().what;
}

}  // namespace gpu_nvrtc_test
