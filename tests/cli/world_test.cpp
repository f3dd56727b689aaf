// SPDX-License-Identifier: Apache-2.0
// `weft world check`: every rank is the real tool in a process of its own.
#include "weft/distributed/world.hpp"

#include "cli/tool_runner.hpp"
#include "processes/groups.hpp"
#include "support/hang.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <regex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace weft::test {
namespace world_test {

using samples::only_a_hang;

/// No other test has these: a process has addresses of its own on the loopback interface.
tool_environment as_rank(int rank, int size, int port) {
  const int pid = ::getpid();
  const std::string host = "127." + std::to_string(64 + (pid >> 16) % 64) + "." + std::to_string((pid >> 8) % 256) +
                           "." + std::to_string(pid % 256);
  tool_environment made;
  made.set = {"RANK=" + std::to_string(rank),        "WORLD_SIZE=" + std::to_string(size), "MASTER_ADDR=" + host,
              "MASTER_PORT=" + std::to_string(port), "WEFT_WORLD_TOKEN=of this test",      "UCX_TLS=tcp,self"};
  return made;
}

/// The tool as every rank, on as many nodes.
std::vector<tool_result> on_ranks(int size, const std::vector<std::string>& words, int nodes = 1) {
  static std::atomic<int> port{23001};
  const int here = port++;
  std::vector<tool_result> ended(static_cast<std::size_t>(size));
  std::vector<std::jthread> ranks;
  ranks.reserve(ended.size());
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      tool_environment with = as_rank(r, size, here);
      with.set.push_back("WEFT_WORLD_NODE=" + std::to_string(r * nodes / size));
      ended[static_cast<std::size_t>(r)] = run_tool(words, with);
    });
  }
  ranks.clear();
  return ended;
}

std::vector<tool_result> check(int size, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"world", "check"};
  words.insert(words.end(), more.begin(), more.end());
  return on_ranks(size, words);
}

TEST(world_check, verifies_every_pair_and_rank_0_prints_them) {
  const auto ended = check(3, {"--json"});
  if (has(ended[0].err, "libucp.so.0")) GTEST_SKIP() << ended[0].err;
  for (const tool_result& one : ended) EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(ended[1].out + ended[2].out, "");
  const auto document = ended[0].document();
  EXPECT_EQ(document["ranks"].size(), 3U);
  ASSERT_EQ(document["pairs"].size(), 3U);
  for (const auto& pair : document["pairs"]) {
    EXPECT_EQ(pair["verdict"], "ok");
    EXPECT_GT(pair["round_trip_seconds"], 0);
    EXPECT_GT(pair["bytes_per_second"], 0);
    EXPECT_TRUE(pair["transport"].get<std::string>().starts_with("tcp/")) << pair.dump();
  }
  const tool_result judged = check_documents({ended[0]});
  EXPECT_TRUE(judged.exit_code == no_checker || judged.exit_code == 0) << judged.out;
}

TEST(bench_collective, a_world_measures_and_verifies_over_its_nodes_and_rank_0_prints_the_result) {
  for (const int nodes : {1, 2}) {
    const auto ended = on_ranks(
        4,
        {"bench", "collective", "--world", "--collective", "all_reduce,broadcast", "-s", "4K,1M", "--quick", "--json"},
        nodes);
    if (nodes > 1 && has(ended[0].err, "nothing carries messages")) GTEST_SKIP() << ended[0].err;
    for (const tool_result& one : ended) EXPECT_EQ(one.exit_code, 0) << one.err;
    EXPECT_EQ(ended[1].out + ended[2].out + ended[3].out, "");
    const auto document = ended[0].document();
    EXPECT_EQ(document["nodes"], nodes);
    EXPECT_EQ(document["engine"].is_null(), false);
    ASSERT_EQ(document["results"].size(), 4U);
    for (const auto& row : document["results"]) EXPECT_EQ(row["verified"], true) << row.dump();
    const tool_result judged = check_documents({ended[0]});
    EXPECT_TRUE(judged.exit_code == no_checker || judged.exit_code == 0) << judged.out;
  }
  for (const std::string devices : {"0", "0,1,2"}) {
    for (const tool_result& one : on_ranks(2, {"bench", "collective", "--world", "--devices", devices})) {
      EXPECT_EQ(one.exit_code, 2) << one.err;
      EXPECT_TRUE(has(one.err, "and the world has 2")) << one.err;
    }
  }
  const tool_result both = run_tool({"bench", "collective", "--world", "--ranks", "2"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_TRUE(has(both.err, "the launcher says how many ranks a world has")) << both.err;
}

TEST(bench_ranks, measures_and_verifies_queues_and_copies_of_every_pair_over_nodes_and_rank_0_prints_them) {
  struct {
    std::vector<std::string> words;
    std::size_t rows;
  } const cases[] = {{{"bench", "queue", "--world", "-s", "8,4096", "--quick", "--json"}, 12},
                     {{"bench", "copy", "--world", "-s", "8,3M", "--samples", "3", "--json"}, 12},
                     {{"bench", "latency", "--world", "--samples", "3", "--json"}, 24}};
  for (const auto& [words, rows] : cases) {
    const auto ended = on_ranks(3, words, 2);
    if (has(ended[0].err, "nothing carries messages")) GTEST_SKIP() << ended[0].err;
    for (const tool_result& one : ended) EXPECT_EQ(one.exit_code, 0) << one.err;
    EXPECT_EQ(ended[1].out + ended[2].out, "");
    const auto document = ended[0].document();
    EXPECT_EQ(document["nodes"], 2);
    ASSERT_EQ(document["results"].size(), rows);
    for (const auto& row : document["results"]) {
      EXPECT_EQ(row["verified"], true) << row.dump();
      EXPECT_GT(row["seconds"]["median"], 0) << row.dump();
      EXPECT_TRUE(row["mode"].is_null() || (row["mode"] == "direct") == (row["nodes"][0] == row["nodes"][1]))
          << row.dump();
    }
    const tool_result judged = check_documents({ended[0]});
    EXPECT_TRUE(judged.exit_code == no_checker || judged.exit_code == 0) << judged.out;
  }
}

TEST(bench_ranks, prints_a_line_for_each_pair_and_size) {
  const auto queues = on_ranks(2, {"bench", "queue", "--world", "-s", "8,64", "--quick"});
  EXPECT_EQ(queues[0].exit_code, 0) << queues[0].err;
  EXPECT_TRUE(has(queues[0].out, "\n0 1    0 0      8B ")) << queues[0].out;
  EXPECT_TRUE(has(queues[0].out, "direct")) << queues[0].out;
  const auto copies = on_ranks(2, {"bench", "copy", "--world", "-s", "64K", "--samples", "3"}, 2);
  if (has(copies[0].err, "nothing carries messages")) GTEST_SKIP() << copies[0].err;
  EXPECT_EQ(copies[0].exit_code, 0) << copies[0].err;
  EXPECT_TRUE(has(copies[0].out, "copies between 2 ranks on 2 nodes, by ucx")) << copies[0].out;
}

TEST(bench_ranks, refuses_what_only_devices_of_one_process_have) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"bench", "queue", "--world", "--from", "0"},
                                                {"bench", "copy", "--world", "--no-p2p"}}) {
    const tool_result ended = run_tool(words);
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_TRUE(has(ended.err, "between ranks")) << ended.err;
  }
  EXPECT_EQ(on_ranks(1, {"bench", "copy", "--world"})[0].exit_code, 2);
}

TEST(bench_ranks, every_rank_refuses_a_file_of_other_results) {
  const scratch_folder folder;
  write_text(folder / "r.json", R"({"results": [], "virtual_driver": true})");
  for (const tool_result& one : on_ranks(2, {"bench", "queue", "--world", "-s", "8", "-o", folder / "r.json"})) {
    EXPECT_EQ(one.exit_code, 2) << one.err;
    EXPECT_TRUE(has(one.err, "never share a file")) << one.err;
  }
}

TEST(bench_ranks, every_rank_ends_before_it_measures_where_the_first_cannot_write_the_file) {
  const scratch_folder folder;
  for (const std::string what : {"queue", "collective"}) {
    const auto ended = on_ranks(2, {"bench", what, "--world", "-s", "8", "--quick", "-o", folder / "none/r.json"});
    for (const tool_result& one : ended) {
      EXPECT_EQ(one.exit_code, 4) << one.err;
      EXPECT_TRUE(has(one.err, "cannot write " + (folder / "none/r.json").string())) << one.err;
      EXPECT_EQ(one.out, "");
    }
  }
}

TEST(world_check, meets_every_pair_once_for_even_and_odd_numbers_of_ranks) {
  for (const int size : {2, 3, 4}) {
    const auto ended = check(size);
    if (has(ended[0].err, "libucp.so.0")) GTEST_SKIP() << ended[0].err;
    for (const tool_result& one : ended) EXPECT_EQ(one.exit_code, 0) << one.err;
    for (int a = 0; a < size; ++a)
      for (int b = a + 1; b < size; ++b)
        EXPECT_TRUE(has(ended[0].out, "\n" + std::to_string(a) + " " + std::to_string(b) + " ")) << ended[0].out;
  }
}

TEST(world_check, fails_for_the_pairs_of_a_rank_that_left_and_checks_the_others) {
  const tool_environment third = as_rank(2, 3, 24101);
  groups::child leaver{[&] {
    for (const std::string& one : third.set) {
      const std::size_t equals = one.find('=');
      ::setenv(one.substr(0, equals).c_str(), one.substr(equals + 1).c_str(), 1);
    }
    auto joined = world::join(world_place::from_environment());
    if (!joined) return joined.error().what;
    for (const int r : {0, 1}) static_cast<void>(joined->send(rank{r}, 99, {}, only_a_hang));  // which connects them
    return std::string{};
  }};
  tool_result first;
  tool_result second;
  {
    std::jthread other{[&] { second = run_tool({"world", "check"}, as_rank(1, 3, 24101)); }};
    first = run_tool({"world", "check"}, as_rank(0, 3, 24101));
  }
  EXPECT_EQ(leaver.said(), "");
  if (has(first.err, "libucp.so.0")) GTEST_SKIP() << first.err;
  EXPECT_EQ(first.exit_code, 1) << first.out << first.err;
  EXPECT_EQ(second.exit_code, 1) << second.err;
  EXPECT_TRUE(std::regex_search(first.out, std::regex{"\n0 1 .* ok *\n"})) << first.out;
  EXPECT_TRUE(std::regex_search(first.out, std::regex{"\n0 2 .* FAILED: .*rank 2 \\(node 0"})) << first.out;
  EXPECT_TRUE(std::regex_search(first.out, std::regex{"\n1 2 .* FAILED: .*rank 2 \\(node 0"})) << first.out;
}

TEST(bench_ranks, a_copy_that_has_no_room_is_a_row_that_says_so_and_the_others_are_measured) {
  const auto ended = on_ranks(2, {"bench", "copy", "--world", "-s", "8,64T,4K", "--samples", "1", "--json"});
  if (has(ended[0].err, "nothing carries messages")) GTEST_SKIP() << ended[0].err;
  for (const tool_result& one : ended) EXPECT_EQ(one.exit_code, 0) << one.err;
  const auto document = ended[0].document();
  ASSERT_EQ(document["results"].size(), 6U);
  for (const auto& row : document["results"]) {
    const bool fits = row["bytes"] != std::uint64_t{64} << 40;
    EXPECT_EQ(row["verified"].is_null(), !fits) << row.dump();
    EXPECT_EQ(row["why"].is_null(), fits) << row.dump();
  }
}

TEST(bench_ranks, stops_when_the_budget_is_spent) {
  const auto ended = on_ranks(2, {"bench", "queue", "--world", "-s", "8,64", "--quick", "--budget", "1us"});
  EXPECT_EQ(ended[0].exit_code, 6) << ended[0].err;
  EXPECT_TRUE(has(ended[0].err, "the budget of 1.00 us was spent")) << ended[0].err;
}

TEST(bench_ranks, measures_more_sizes_than_one_packet_carries) {
  std::string sizes = "8";
  for (int at = 2; at <= 130; ++at) sizes += "," + std::to_string(8 * at);
  const auto ended = on_ranks(2, {"bench", "copy", "--world", "-s", sizes, "--samples", "1", "--json"});
  if (has(ended[0].err, "nothing carries messages")) GTEST_SKIP() << ended[0].err;
  for (const tool_result& one : ended) EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(ended[0].document()["results"].size(), 260U);
}

TEST(world_check, a_world_of_one_process_needs_no_engine) {
  const tool_result alone = check(1)[0];
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_TRUE(has(alone.out, "1 rank on 1 node")) << alone.out;
}

TEST(world_check, says_which_variable_is_missing_and_who_is_late) {
  const tool_result none = run_tool({"world", "check"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(has(none.err, "WORLD_SIZE")) << none.err;
  const tool_result late = run_tool({"world", "check", "--timeout", "200ms"}, as_rank(0, 2, 24001));
  EXPECT_EQ(late.exit_code, 5) << late.err;
  EXPECT_TRUE(has(late.err, "rank 1")) << late.err;
  EXPECT_EQ(run_tool({"world"}).exit_code, 2);
}

}  // namespace world_test
}  // namespace weft::test
