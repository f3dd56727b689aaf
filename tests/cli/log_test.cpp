// SPDX-License-Identifier: Apache-2.0
// WEFT_LOG: what a program decides, on stderr.
#include "cli/tool_runner.hpp"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace weft::test {
namespace weft_log_test {

std::string logged(const words& command, const std::string& level, const words& more = {}) {
  tool_environment here;
  here.set = more;
  if (!level.empty()) here.set.push_back("WEFT_LOG=" + level);
  return run_tool(command, here).err;
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(weft_log, tells_each_new_decision_once) {
  const std::string copies =
      logged({"bench", "copy", "-q", "-s", "64K", "--samples", "3", "--sim", "ring_3_no_p2p"}, "info");
  EXPECT_NE(copies.find("info: machine of"), std::string::npos) << copies;
  EXPECT_EQ(times(copies, "info: copies from gpu0 to gpu1: staged"), 1U) << copies;
  const std::string launch =
      logged({"bench", "launch", "-q", "--quick", "--scenario", "overhead", "--strategy", "static_equal"}, "info");
  EXPECT_NE(launch.find("info: launch of bench_count: static_equal, gpu0 about"), std::string::npos) << launch;
  const std::string collective =
      logged({"bench", "collective", "-q", "--quick", "-s", "1M", "--sim", "dgx_h100"}, "info");
  EXPECT_NE(collective.find("info: all_reduce over 8 ranks of 1 MiB: "), std::string::npos) << collective;
  const std::string queue =
      logged({"bench", "queue", "-q", "--quick", "-s", "64", "--pairs", "0-1", "--sim", "ring_3_no_p2p"}, "info");
  EXPECT_NE(queue.find("info: queue from gpu0 to gpu1, messages of 64 bytes: staged through the host, for "),
            std::string::npos)
      << queue;
}

TEST(weft_log, tells_of_a_pair_that_loses_data_at_error_and_nothing_without_it) {
  const words command{"topo", "--verify", "-q", "--sim", "faulty_4"};
  const std::string warned = logged(command, "error");
  EXPECT_NE(warned.find("] error: data from gpu0 to gpu1 does not arrive"), std::string::npos) << warned;
  EXPECT_EQ(times(warned, "] info: "), 0U);
  EXPECT_EQ(times(logged(command, ""), "] error: "), 0U);
}

TEST(weft_log, names_time_rank_and_level_in_each_line) {
  const std::string text =
      logged({"bench", "copy", "-q", "-s", "4K", "--samples", "1", "--sim", "pair_nvlink"}, "debug", {"RANK=3"});
  const std::regex line{"weft [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} \\[rank 3\\] (debug|info|warning|error): .+"};
  std::istringstream lines{text};
  std::size_t count = 0;
  for (std::string one; std::getline(lines, one); ++count) EXPECT_TRUE(std::regex_match(one, line)) << one;
  EXPECT_GT(count, 2U);
  EXPECT_NE(logged({"topo", "--sim", "one"}, "info").find("[process "), std::string::npos);
}

TEST(weft_log, refuses_a_level_that_there_is_not) {
  tool_environment here;
  here.set = {"WEFT_LOG=loud"};
  const tool_result run = run_tool({"topo", "--sim", "one"}, here);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("WEFT_LOG is 'loud': expected debug, info, warning or error"), std::string::npos) << run.err;
}

}  // namespace weft_log_test
}  // namespace weft::test
