// SPDX-License-Identifier: Apache-2.0
// The matrix of copies, and copies at the same time.
#include "cli/tool_runner.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace weft::test {
namespace copy_matrix_test {

using nlohmann::json;

/// Four devices behind a switch, on the virtual clock; a slow uplink of the last one where `lanes` says so.
tool_result copies(const scratch_folder& folder, int lanes, std::vector<std::string> more) {
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pcie_4.json"));
  machine["name"] = "four";
  machine["devices"][3]["uplink"]["lanes"] = lanes;
  write_text(folder / "four.json", machine.dump());
  std::vector<std::string> words{"bench",   "copy",    "--sim",     folder / "four.json",
                                 "--clock", "virtual", "--samples", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return run_tool(words);
}

TEST(copy_matrix, marks_each_pair_of_the_device_with_the_narrow_link) {
  const scratch_folder folder;
  const tool_result slow = copies(folder, 4, {"-s", "1M"});
  EXPECT_EQ(slow.exit_code, 0) << slow.err;
  EXPECT_EQ(std::ranges::count(slow.out, '*'), 7) << "six pairs, and what it means\n" << slow.out;
  const tool_result well = copies(folder, 16, {"-s", "1M"});
  EXPECT_EQ(std::ranges::count(well.out, '*'), 0) << well.out;
  EXPECT_TRUE(has(well.out, "1MiB, GB/s (simulated)  to gpu0  to gpu1  to gpu2  to gpu3")) << well.out;
}

TEST(copy_matrix, shows_a_pair_that_loses_data) {
  const tool_result run = run_tool({"bench", "latency", "--sim", "faulty_4", "--clock", "virtual", "-s", "64"});
  EXPECT_EQ(run.exit_code, 4) << "another pair fails\n" << run.err;
  EXPECT_TRUE(has(run.out, "64B, us (simulated)")) << run.out;
  EXPECT_TRUE(has(run.out, "gpu0     0.00      BAD")) << run.out;
  EXPECT_TRUE(has(run.out, "s: staged through the host")) << run.out;
}

TEST(copy_matrix, is_written_as_a_picture) {
  const scratch_folder folder;
  const tool_result run = run_tool({"bench", "copy", "--sim", "pair_nvlink", "-s", "64K", "-o", folder / "m.svg"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::string picture = read_text(folder / "m.svg");
  EXPECT_TRUE(has(picture, "<svg")) << picture.substr(0, 200);
  EXPECT_TRUE(has(picture, "Copy rates")) << picture.substr(0, 2000);
}

TEST(copies_at_the_same_time, share_what_they_pass) {
  const scratch_folder folder;
  const tool_result run = copies(folder, 16, {"-s", "4M", "--budget", "600s", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::map<std::string, json> rows;
  for (const json& row : run.field("patterns")) {
    rows[row.at("name")] = row;
    EXPECT_EQ(row.at("verified"), true) << row;
  }
  ASSERT_EQ(rows.size(), 4U + 4 + 6 + 4 + 4);
  const auto rate = [&](const std::string& name) {
    const json row = rows[name];
    return row.is_object() && row["bytes_per_second"].is_number() ? row["bytes_per_second"].get<double>() : 0.0;
  };
  const double one = rate("copy/to_host/4MiB/gpu0");
  EXPECT_GT(one, 25e9);
  EXPECT_NEAR(rate("copy/both_ways/4MiB/gpu0-gpu1") / one, 2, 0.1) << "a link carries as much each way";
  EXPECT_NEAR(rate("copy/all_to_one/4MiB/gpu2") / one, 1, 0.1) << "all share the link of the one";
  EXPECT_NEAR(rate("copy/one_to_all/4MiB/gpu2") / one, 1, 0.1);
}

TEST(copies_at_the_same_time, are_left_out_where_pairs_were_chosen) {
  const tool_result run = run_tool({"bench", "copy", "--sim", "pair_nvlink", "-s", "4K", "--pairs", "0-1", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(run.field("patterns").empty());
}

TEST(copies_at_the_same_time, a_pair_that_loses_data_fails_the_command) {
  // of the pairs alone the code would be the same: its rows are looked at
  const tool_result run = run_tool({"bench", "copy", "--sim", "faulty_4", "-s", "64K", "--samples", "1", "--json"});
  EXPECT_NE(run.exit_code, 0);
  std::size_t wrong = 0;
  for (const json& row : run.field("patterns")) {
    if (row.at("verified") != true) ++wrong;
  }
  EXPECT_GE(wrong, 1U) << run.out.substr(0, 2000);
}

}  // namespace copy_matrix_test
}  // namespace weft::test
