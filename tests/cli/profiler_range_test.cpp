// SPDX-License-Identifier: Apache-2.0
// Ranges as profilers of the vendors see them: real libraries in the places where Nsight Systems and rocprof put
// theirs.
#include "cli/tool_runner.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::test {
namespace profiler_range_test {

const words work{"bench", "collective", "-s", "16M", "--algorithm", "ring", "--samples", "1", "--sim", "pair_nvlink"};

std::string heard_in(const words& environment, const std::string& variable) {
  const scratch_folder folder;
  const auto file = folder / "heard.txt";
  tool_environment here;
  here.set = environment;
  here.set.push_back(variable + "=" + file.string());
  const auto run = run_tool(work, here);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return read_text(file);
}

void expect_ranges(const std::string& heard) {
  EXPECT_TRUE(has(heard, "0 all_reduce\n")) << heard.substr(0, 2'000);
  EXPECT_TRUE(has(heard, "1 copy ")) << "within the collective\n" << heard.substr(0, 2'000);
  EXPECT_TRUE(has(heard, "1 launch ")) << "within the collective\n" << heard.substr(0, 2'000);
  EXPECT_FALSE(has(heard, "wrong")) << heard.substr(0, 2'000);
  EXPECT_FALSE(has(heard, "\n2 ")) << "each range ends\n" << heard.substr(0, 2'000);
}

const std::string nvtx_tool =
    "NVTX_INJECTION64_PATH=" + samples::build_folder() + "/lib/profilers/libweft_nvtx_tool.so";

TEST(profiler_range, is_told_to_a_tool_that_nvtx_would_load) {
  const std::string heard = heard_in({nvtx_tool}, "NVTX_TOOL_OUTPUT");
  EXPECT_TRUE(heard.starts_with("version 3\ndomain weft\n")) << heard.substr(0, 2'000);
  expect_ranges(heard);
}

TEST(profiler_range, is_nobodys_where_the_tool_hears_only_beginnings_or_only_ends) {
  for (const char* const missing : {"4", "5"})
    EXPECT_FALSE(
        has(heard_in({nvtx_tool, "NVTX_TOOL_WITHOUT=" + std::string{missing}}, "NVTX_TOOL_OUTPUT"), "all_reduce"));
}

TEST(profiler_range, is_told_to_roctx_where_a_profiler_announces_itself) {
  expect_ranges(
      heard_in({"ROCP_TOOL_LIBRARIES=tool.so", "LD_LIBRARY_PATH=" + samples::build_folder() + "/lib/profilers"},
               "ROCTX_TOOL_OUTPUT"));
}

TEST(profiler_range, is_nobodys_where_the_tool_cannot_be_loaded) {
  tool_environment here;
  here.set = {"NVTX_INJECTION64_PATH=/nowhere/tool.so"};
  EXPECT_EQ(run_tool(work, here).exit_code, 0);
}

}  // namespace profiler_range_test
}  // namespace weft::test
