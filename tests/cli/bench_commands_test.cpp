// SPDX-License-Identifier: Apache-2.0
// What the commands of weft bench have in common: one row of the table for each. tests/cli/interruption_test.cpp stops
// them.
#include "cli/tool_runner.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace weft::test {
namespace bench_commands_test {

using nlohmann::json;

struct bench_command {
  std::string name;
  words little;                  // work for a moment
  std::size_t kept;              // rows that a file holds of it
  std::vector<words> elsewhere;  // devices that the machine "one" has not
  std::vector<words> too_large;  // for a quarter of the free memory
  int nothing_measured;          // the exit code where that is all
};

const std::vector<bench_command> commands{
    {"copy",
     {"-s", "4K", "--samples", "3", "--pairs", "0-1"},
     2,
     {{"--pairs", "0-7"}},
     {{"-s", "1T", "--pairs", "0-0"}},
     6},
    {"queue",
     {"-s", "8,64", "--quick", "--batch", "1,7", "--pairs", "0-1"},
     12,
     {{"--pairs", "0-7"}, {"--from", "7"}, {"--to", "gpu7"}},
     {},
     6},
    {"ipc", {"--quick", "-s", "4K,1000003"}, 11, {{"--quick", "--pairs", "0-7"}}, {{"--quick", "-s", "1T"}}, 0},
    {"collective",
     {"--quick", "-s", "1K"},
     1,
     {{"--devices", "0,7"}},
     {{"-s", "1T"}, {"-s", "1T", "--processes", "2"}},
     6},
    {"launch", {"--quick", "--scenario", "A,overhead", "--strategy", "guided"}, 5, {}, {}, 6}};

class bench_of : public testing::TestWithParam<bench_command> {
 protected:
  static tool_result run(const words& more) {
    return run_tool(with(with({"bench", GetParam().name, "-q", "--budget", "120s"}, GetParam().little), more));
  }
  /// With its own words in place of those for little work.
  static tool_result run_only(const words& more) { return run_tool(with({"bench", GetParam().name, "-q"}, more)); }
};

TEST_P(bench_of, keeps_in_a_file_what_was_measured_and_nothing_that_was_simulated) {
  const scratch_folder folder;
  const words to{"-o", (folder / "r.json").string()};
  const auto refused = run_only(with({"--clock", "virtual"}, to));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(has(refused.err, "simulated")) << refused.err;
  EXPECT_TRUE(folder.names().empty());
  const auto written = run(to);
  EXPECT_EQ(written.exit_code, 0) << written.err;
  const json rows = json::parse(read_text(folder / "r.json")).at("results");
  EXPECT_EQ(rows.size(), GetParam().kept);
  for (const json& row : rows) EXPECT_EQ(row.value("simulated", false), false) << row;
}

TEST_P(bench_of, leaves_rows_out_and_says_so_when_its_budget_is_spent) {
  for (const words& how :
       GetParam().name == "collective" ? std::vector<words>{{}, {"--processes", "2"}} : std::vector<words>{{}}) {
    const auto spent = run_only(with({"--json", "--budget", "0s"}, how));
    EXPECT_EQ(spent.exit_code, 6) << spent.err;
    EXPECT_EQ(spent.field("complete"), false);
    EXPECT_FALSE(spent.field("results").empty());
    for (const json& row : spent.field("results")) {
      EXPECT_TRUE(row.at("seconds").is_null()) << row;
      EXPECT_TRUE(has(row.at("why"), "budget")) << row;
    }
  }
}

TEST_P(bench_of, uses_no_more_than_a_quarter_of_the_free_memory) {
  for (const words& large : GetParam().too_large) {
    const auto run = run_only(with({"--json", "--budget", "120s"}, large));
    EXPECT_EQ(run.exit_code, GetParam().nothing_measured) << run.err;
    EXPECT_EQ(run.field("complete"), false);
    EXPECT_TRUE(has(run.field("results").back().at("why"), "quarter")) << run.out;
  }
}

TEST_P(bench_of, ends_with_3_for_a_device_that_is_not_there) {
  for (const words& devices : GetParam().elsewhere) {
    const auto run = run_only(with(devices, {"--sim", "one"}));
    EXPECT_EQ(run.exit_code, 3) << devices[0];
    EXPECT_TRUE(has(run.err, "there is no gpu7")) << run.err;
  }
}

TEST_P(bench_of, names_what_is_wrong_in_its_words) {
  for (const words& bad : {words{"--samples", "0"}, words{"--budget", "soon"}, words{"--sim", "dgx_h101"}}) {
    const auto run = run_only(bad);
    EXPECT_EQ(run.exit_code, 2) << bad[0];
    EXPECT_TRUE(has(run.err, bad[0]) || has(run.err, bad[1])) << run.err;
  }
}

INSTANTIATE_TEST_SUITE_P(all, bench_of, testing::ValuesIn(commands), [](const auto& info) { return info.param.name; });

}  // namespace bench_commands_test
}  // namespace weft::test
