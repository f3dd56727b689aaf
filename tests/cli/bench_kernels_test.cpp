// SPDX-License-Identifier: Apache-2.0
// Rows of weft bench that kernels make, on the host's devices, where they have to be asked for.
#include "cli/tool_runner.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::test {
namespace bench_kernels_test {

using json = nlohmann::json;

TEST(bench_kernels, copies_on_the_host_are_by_a_kernel_where_that_is_asked_for) {
  const words command{"bench", "copy", "-s", "4K", "--samples", "3", "--pairs", "0-0,1-0", "--json", "--budget", "60s"};
  for (const json& row : run_tool(command).field("results")) EXPECT_EQ(row.at("by"), "engine") << row;
  words asked = command;
  asked.insert(asked.end(), {"--by", "kernel"});
  const auto run = run_tool(asked);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json rows = run.field("results");
  ASSERT_EQ(rows.size(), 2U) << "a kernel does not go through the host: " << rows;
  EXPECT_EQ(rows[0].at("name"), "copy/same_device_by_kernel/4KiB/gpu0-gpu0");
  EXPECT_EQ(rows[1].at("name"), "copy/direct_by_kernel/4KiB/gpu1-gpu0");
  for (const json& row : rows) {
    EXPECT_EQ(row.at("by"), "kernel") << row;
    EXPECT_EQ(row.at("kernel_on"), row.at("src")) << "it stores into the destination: " << row;
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_GT(row.at("seconds").at("median").get<double>(), 0) << row;
  }
}

TEST(bench_kernels, a_copy_by_a_kernel_whose_stores_never_arrive_ends_with_1) {
  const scratch_folder folder;
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pair_nvlink.json"));
  machine["faults"] = json::array({{{"kind", "drops_data"}, {"from", "gpu0"}, {"to", "gpu1"}}});
  write_text(folder / "liar.json", machine.dump());
  const auto run = run_tool({"bench", "copy", "-s", "4K", "--samples", "1", "--json", "--budget", "60s", "--by",
                             "kernel", "--pairs", "0-1", "--sim", (folder / "liar.json").string()});
  EXPECT_EQ(run.exit_code, 1) << run.out << run.err;
  EXPECT_TRUE(has(run.field("results")[0].at("why").dump(), "offset 0")) << run.out;
}

TEST(bench_kernels, without_peer_access_a_kernel_copies_nothing_and_the_row_says_why) {
  const auto run = run_tool({"bench", "copy", "-s", "4K", "--samples", "1", "--json", "--budget", "60s", "--by",
                             "kernel", "--pairs", "0-1", "--sim", "ring_3_no_p2p"});
  EXPECT_EQ(run.exit_code, 6) << run.err;
  const json row = run.field("results")[0];
  EXPECT_TRUE(row.at("seconds").is_null()) << row;
  EXPECT_TRUE(row.at("kernel_on").is_null()) << row;
  EXPECT_TRUE(has(row.at("why").dump(), "cannot access")) << row;
}

TEST(bench_kernels, messages_go_to_kernels_and_between_them) {
  const auto run = run_tool({"bench", "queue", "--quick", "-s", "8", "--pairs", "0-1", "--mode", "direct", "--ends",
                             "both", "--batch", "1", "--json", "--budget", "60s", "--sim", "pair_nvlink"});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  const json rows = run.field("results");
  ASSERT_EQ(rows.size(), 4U);
  const words kinds{"round_trip", "throughput", "round_trip_to_kernel", "round_trip_of_kernels"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at("kind"), kinds[i]) << rows[i];
    EXPECT_EQ(rows[i].at("verified"), true) << rows[i];
  }
}

TEST(bench_kernels, a_virtual_clock_has_no_messages_of_kernels) {
  const auto run = run_tool({"bench", "queue", "--quick", "-s", "8", "--ends", "kernel", "--json", "--budget", "60s",
                             "--sim", "pair_nvlink", "--clock", "virtual"});
  EXPECT_EQ(run.exit_code, 6) << run.err;
  for (const json& row : run.field("results")) EXPECT_TRUE(has(row.at("why").dump(), "virtual clock")) << row;
}

}  // namespace bench_kernels_test
}  // namespace weft::test
