// SPDX-License-Identifier: Apache-2.0
// What the tool shows in terminals of different widths.
#include "cli/tool_runner.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace weft::test {
namespace terminal_test {

/// Without colours, and letters of several bytes as one.
std::size_t width_of(const std::string& line) {
  std::size_t width = 0;
  bool is_colour = false;
  for (const char letter : line) {
    if (letter == '\x1b') is_colour = true;
    if (!is_colour && (static_cast<unsigned char>(letter) & 0xC0U) != 0x80U) ++width;
    if (letter == 'm') is_colour = false;
  }
  return width;
}

class terminal : public testing::TestWithParam<int> {};

TEST_P(terminal, holds_every_line_of_every_command) {
  if (!has_terminals()) GTEST_SKIP() << "this system gives out no terminals (/dev/pts)";
  const scratch_folder folder;
  const std::vector<words> commands{{},
                                    {"devices"},
                                    {"topo", "--p2p"},
                                    {"doctor"},
                                    {"doctor", "--run"},
                                    {"route", "0", "5", "64M"},
                                    {"explain", "launch", "1M"},
                                    {"explain", "all_reduce", "100M"},
                                    {"bench", "copy", "-s", "1M", "--samples", "1"},
                                    {"bench", "latency", "-s", "64", "--samples", "1", "--pairs", "0-1"},
                                    {"bench", "collective", "-s", "1M", "--samples", "1"}};
  for (const words& command : commands) {
    tool_environment here;
    here.terminal_columns = GetParam();
    here.folder = folder.path();
    words all{"--color", "always", "-q"};
    const bool measures = !command.empty() && (command[0] == "bench" || command.back() == "--run");
    // wide tables; fewer devices where each pair is measured
    if (command != words{"doctor"})
      all.insert(all.end(), {"--sim", measures ? "mixed_3" : "dgx_h100", "--clock", "virtual"});
    all.insert(all.end(), command.begin(), command.end());
    const tool_result run = run_tool(all, here);
    std::istringstream lines{run.out};
    for (std::string line; std::getline(lines, line);) {
      const bool is_command = line.find("$ ") != std::string::npos;  // to be copied whole
      const std::size_t width = is_command ? 0 : width_of(line);
      EXPECT_LE(width, static_cast<std::size_t>(GetParam())) << (command.empty() ? "" : command[0]) << ": " << line;
    }
    EXPECT_FALSE(run.out.empty()) << run.err;
  }
}

INSTANTIATE_TEST_SUITE_P(widths, terminal, testing::Values(60, 80, 120, 200), testing::PrintToStringParamName());

TEST(terminal_table, repeats_the_first_column_beside_those_that_did_not_fit) {
  if (!has_terminals()) GTEST_SKIP() << "this system gives out no terminals (/dev/pts)";
  tool_environment here;
  here.terminal_columns = 60;
  const tool_result narrow = run_tool({"topo", "--sim", "dgx_h100"}, here);
  const auto times = [](const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  };
  EXPECT_GE(times(narrow.out, "\nGPU7"), 2U) << narrow.out;
  EXPECT_EQ(times(run_tool({"topo", "--sim", "dgx_h100"}).out, "\nGPU7"), 1U) << "a pipe has no width";
}

}  // namespace terminal_test
}  // namespace weft::test
