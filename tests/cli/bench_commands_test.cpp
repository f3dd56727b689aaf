// SPDX-License-Identifier: Apache-2.0
// The sentences that hold for every command of weft bench: one row of the table for each command. Interrupts are in
// tests/cli/interruption_test.cpp.
#include "cli/tool_runner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
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
  std::vector<words> wrong;      // beside the words that all of them have
};

constexpr const char* too_large_to_double = "9223372036854775808";

const std::vector<bench_command> commands{
    {"copy",
     {"-s", "4K", "--samples", "3", "--pairs", "0-1"},
     2,
     {{"--pairs", "0-7"}},
     {{"-s", "1T", "--pairs", "0-0"}, {"-s", too_large_to_double, "--pairs", "0-0"}, {"-s", too_large_to_double}},
     6,
     {{"-s", "many"},
      {"--pairs", "0"},
      {"--no-p2p", "--by", "kernel"},
      {"--by", "kernel", "-o", "m.svg"},
      {"--world", "-o", "m.svg"}}},
    {"queue",
     {"-s", "8,64", "--quick", "--batch", "1,7", "--pairs", "0-1"},
     12,
     {{"--pairs", "0-7"}, {"--from", "7"}, {"--to", "gpu7"}},
     {},
     6,
     {{"-s", "many"}, {"--pairs", "0"}, {"--ends", "both", "-s", "64"}}},
    {"ipc",
     {"--quick", "-s", "4K,1000003"},
     11,
     {{"--quick", "--pairs", "0-7"}},
     {{"--quick", "-s", "1T"}, {"--quick", "-s", too_large_to_double}},
     0,
     {{"-s", "many"}, {"--pairs", "0"}}},
    {"collective",
     {"--quick", "-s", "1K"},
     1,
     {{"--devices", "0,7"}},
     {{"-s", "1T"}, {"-s", "1T", "--processes", "2"}, {"-s", too_large_to_double}},
     6,
     {{"-s", "many"}, {"--devices", "some"}}},
    {"launch", {"--quick", "--scenario", "A,overhead", "--strategy", "guided"}, 5, {}, {}, 6, {{"--seeds", "0"}}}};

/// The commands of which a field has something to say.
std::vector<bench_command> with_some(std::vector<words> bench_command::* field) {
  std::vector<bench_command> made;
  std::ranges::copy_if(commands, std::back_inserter(made), [&](const bench_command& c) { return !(c.*field).empty(); });
  return made;
}

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
    EXPECT_TRUE(has(spent.err, "budget")) << spent.err;
    EXPECT_TRUE(has(spent.field("warnings").dump(), "rows were not measured")) << spent.out;
    EXPECT_FALSE(spent.field("results").empty());
    for (const json& row : spent.field("results")) {
      EXPECT_TRUE(row.at("seconds").is_null()) << row;
      EXPECT_TRUE(has(row.at("why"), "budget")) << row;
    }
  }
}

class large_bench_of : public bench_of {};

TEST_P(large_bench_of, uses_no_more_than_a_quarter_of_the_free_memory) {
  for (const words& large : GetParam().too_large) {
    const auto run = run_only(with({"--json", "--budget", "120s"}, large));
    EXPECT_EQ(run.exit_code, GetParam().nothing_measured) << run.err;
    EXPECT_EQ(run.field("complete"), false);
    EXPECT_TRUE(has(run.field("results").back().at("why"), "quarter")) << run.out;
  }
}

class placed_bench_of : public bench_of {};

TEST_P(placed_bench_of, ends_with_3_for_a_device_that_is_not_there) {
  for (const words& devices : GetParam().elsewhere) {
    const auto run = run_only(with(devices, {"--sim", "one"}));
    EXPECT_EQ(run.exit_code, 3) << devices[0];
    EXPECT_TRUE(has(run.err, "there is no gpu7")) << run.err;
  }
}

TEST_P(bench_of, names_what_is_wrong_in_its_words) {
  std::vector<words> wrong{{"--samples", "0"}, {"--budget", "soon"}, {"--sim", "dgx_h101"}};
  wrong.insert(wrong.end(), GetParam().wrong.begin(), GetParam().wrong.end());
  for (const words& bad : wrong) {
    const auto run = run_only(bad);
    EXPECT_EQ(run.exit_code, 2) << bad[0];
    EXPECT_TRUE(has(run.err, bad[0]) || has(run.err, bad[1])) << run.err;
  }
}

const auto name_of = [](const testing::TestParamInfo<bench_command>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(all, bench_of, testing::ValuesIn(commands), name_of);
INSTANTIATE_TEST_SUITE_P(all, large_bench_of, testing::ValuesIn(with_some(&bench_command::too_large)), name_of);
INSTANTIATE_TEST_SUITE_P(all, placed_bench_of, testing::ValuesIn(with_some(&bench_command::elsewhere)), name_of);

}  // namespace bench_commands_test
}  // namespace weft::test
