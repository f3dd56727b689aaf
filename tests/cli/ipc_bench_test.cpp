// SPDX-License-Identifier: Apache-2.0
// weft bench ipc and the ring of weft demo --processes: what they say of memory between processes.
#include "bench/ipc_bench.hpp"

#include "bench/process_ring.hpp"
#include "cli/tool_runner.hpp"
#include "command_line/commands.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

namespace weft::test {
namespace ipc_bench_test {

using nlohmann::json;

const words bench{"bench", "ipc", "--quick", "-s", "4K,1000003", "-q", "--budget", "60s"};

TEST(bench_ipc, opens_touches_and_copies_verified_on_both_paths) {
  const auto run = run_tool(with(bench, {"--json"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = run.document();
  EXPECT_EQ(document.at("schema"), "weft.bench.ipc/1");
  EXPECT_EQ(document.at("simulated"), false);
  EXPECT_EQ(document.at("complete"), true);
  EXPECT_TRUE(has(document.at("note"), "not a GPU figure"));
  std::set<std::string> names;
  for (const json& row : document.at("results")) {
    names.insert(row.at("name"));
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_GT(row.at("seconds").at("median").get<double>(), 0) << row;
    EXPECT_TRUE(row.at("why").is_null()) << row;
    const bool copy = row.at("kind") == "read" || row.at("kind") == "write";
    EXPECT_EQ(row.at("bytes_per_second").is_null(), !copy) << row;
    EXPECT_EQ(row.at("share_of_limit").is_null(), !copy) << row;
    EXPECT_EQ(row.at("share_of_one_process").is_null(), !copy || row.at("path") == "one_process") << row;
  }
  EXPECT_EQ(names, (std::set<std::string>{
                       "ipc/open/between_processes/64MiB/gpu0-gpu1", "ipc/first_touch/between_processes/8MiB/gpu0-gpu1",
                       "ipc/first_touch/one_process/8MiB/gpu0-gpu1", "ipc/read/between_processes/4KiB/gpu0-gpu1",
                       "ipc/read/one_process/4KiB/gpu0-gpu1", "ipc/write/between_processes/4KiB/gpu0-gpu1",
                       "ipc/write/one_process/4KiB/gpu0-gpu1", "ipc/read/between_processes/1000003B/gpu0-gpu1",
                       "ipc/read/one_process/1000003B/gpu0-gpu1", "ipc/write/between_processes/1000003B/gpu0-gpu1",
                       "ipc/write/one_process/1000003B/gpu0-gpu1"}));
}

TEST(bench_ipc, shows_both_paths_side_by_side) {
  const auto run = run_tool(bench);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "between processes")) << run.out;
  EXPECT_TRUE(has(run.out, "one process")) << run.out;
  std::size_t good = 0;
  for (std::size_t at = run.out.find("  ok\n"); at != std::string::npos; at = run.out.find("  ok\n", at + 1)) ++good;
  EXPECT_EQ(good, 6U) << run.out;
}

TEST(bench_ipc, one_device_shares_with_itself) {
  const auto run = run_tool(with(bench, {"--json", "--sim", "one"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("simulated"), true);
  for (const json& row : run.field("results")) EXPECT_EQ(row.at("verified"), true) << row;
}

TEST(bench_ipc, devices_that_are_no_peers_have_no_rows_but_the_reason) {
  const auto run = run_tool(with(bench, {"--json", "--sim", "ring_3_no_p2p"}));
  EXPECT_EQ(run.exit_code, 6) << run.err;
  EXPECT_EQ(run.field("complete"), true) << "nothing was left out that there is";
  for (const json& row : run.field("results")) {
    EXPECT_TRUE(row.at("seconds").is_null()) << row;
    EXPECT_TRUE(row.at("why").is_string() && has(row.at("why"), "gpu1")) << row;
  }
}

TEST(bench_ipc, data_that_does_not_arrive_ends_with_1_and_the_first_bad_offset) {
  const scratch_folder folder;
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pair_nvlink.json"));
  machine["faults"] = json::array({{{"kind", "drops_data"}, {"from", "gpu0"}, {"to", "gpu1"}}});
  write_text(folder / "liar.json", machine.dump());
  const auto run = run_tool(with(bench, {"--json", "--sim", (folder / "liar.json").string()}));
  EXPECT_EQ(run.exit_code, 1) << run.err;
  bool found = false;
  for (const json& row : run.field("results")) {
    if (row.at("verified") != false) continue;
    found = found || (row.at("path") == "between_processes" && has(row.at("why"), "offset"));
  }
  EXPECT_TRUE(found) << run.out;
}

TEST(bench_ipc, a_virtual_clock_times_copies_alone_and_says_simulated) {
  const words line = with(bench, {"--clock", "virtual", "--sim", "pair_nvlink"});
  const auto run = run_tool(with(line, {"--json"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("simulated"), true);
  for (const json& row : run.field("results")) {
    const bool copy = row.at("kind") == "read" || row.at("kind") == "write";
    EXPECT_EQ(row.at("seconds").is_null(), !copy) << row;
    if (copy) {
      EXPECT_EQ(row.at("verified"), true) << row;
    } else {
      EXPECT_TRUE(has(row.at("why"), "virtual clock")) << row;
    }
  }
  EXPECT_TRUE(has(run_tool(line).out, "All times are simulated"));
}

TEST(bench_ipc, documents_are_valid_by_their_schema) {
  const scratch_folder folder;
  expect_valid({with(bench, {"--json"}),
                with(bench, {"--json", "--sim", "ring_3_no_p2p"}),
                with(bench, {"--json", "--sim", "pair_nvlink", "--clock", "virtual"}),
                {"bench", "ipc", "--json", "--budget", "0s"},
                {"demo", "--json", "--processes", "3", "--sim", "one", "-o", (folder / "a").string()},
                {"demo", "--json", "--sim", "one", "-o", (folder / "b").string()}});
}

// ---- the ring of the demo -------------------------------------------------------------------------------------------

TEST(demo, ends_with_a_ring_of_processes_when_it_is_asked_for) {
  const scratch_folder folder;
  const auto run = run_tool({"demo", "--processes", "4", "-o", (folder / "out").string()});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_TRUE(has(run.out, "a ring of processes")) << run.out;
  const json ring = json::parse(read_text(folder / "out/weft-demo.json")).at("processes");
  EXPECT_EQ(ring.at("verified"), true);
  EXPECT_TRUE(ring.at("why").is_null()) << ring;
  ASSERT_EQ(ring.at("passages").size(), 4U);
  std::set<int> processes;
  for (int r = 0; r < 4; ++r) {
    const json& one = ring.at("passages")[static_cast<std::size_t>(r)];
    EXPECT_EQ(one.at("from"), (r + 3) % 4);
    EXPECT_EQ(one.at("to"), r);
    EXPECT_EQ(one.at("device"), r);
    EXPECT_EQ(one.at("words_wrong"), 0);
    processes.insert(one.at("process").get<int>());
  }
  EXPECT_EQ(processes.size(), 4U) << "each has a process of its own";
}

TEST(demo, has_no_ring_otherwise) {
  const scratch_folder folder;
  const auto run = run_tool({"demo", "--sim", "one", "--json", "-o", (folder / "out").string()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(run.field("processes").is_null());
  for (const char* bad : {"1", "17", "x"}) EXPECT_EQ(run_tool({"demo", "--processes", bad}).exit_code, 2) << bad;
}

TEST(demo, a_ring_where_devices_do_not_reach_each_other_stays_on_one) {
  tool::global_options options;
  options.sim = "ring_3_no_p2p";
  const auto checked = [&] {
    const tool::ring_report report = tool::run_process_ring(tool::session{options}, 3);
    const bool on_one = std::ranges::all_of(report.passages, [](const auto& p) { return p.device == 0; });
    ::_exit(report.verified() && on_one && has(report.why, "gpu0") ? 7 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(checked(), ::testing::ExitedWithCode(7), "") << "in a process without machines";
}

}  // namespace ipc_bench_test
}  // namespace weft::test
