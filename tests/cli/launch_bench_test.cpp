// SPDX-License-Identifier: Apache-2.0
#include "bench/launch_bench.hpp"

#include "cli/tool_runner.hpp"
#include "command_line/commands.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::test {
namespace launch_bench_test {

using nlohmann::json;

const words bench{"bench", "launch", "-q", "--budget", "60s"};

json row_of(const json& rows, const std::string& name) {
  for (const json& row : rows) {
    if (row.at("name") == name) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

/// Of the ideal, in percent.
double percent(const json& rows, const std::string& name) {
  const json row = row_of(rows, name);
  return row.is_null() || row.at("efficiency").is_null() ? -1 : 100 * row.at("efficiency").get<double>();
}

TEST(bench_launch, reaches_what_arithmetic_says_of_each_strategy) {
  const json rows =
      run_tool(with(bench, {"--json", "--clock", "virtual", "--scenario", "A,C,D,D2,E"})).field("results");
  ASSERT_EQ(rows.size(), 5U * 12);
  // A third of the work on the slowest of 45 : 30 : 25 takes 4/3 of the ideal; the piece itself 20 us more.
  EXPECT_NEAR(percent(rows, "launch/A/static_equal/history/3"), 75.0, 0.01);
  EXPECT_NEAR(percent(rows, "launch/E/static_equal/history/3"), 74.9, 0.05);
  // The first device has a third at 450,000 items/s and then at 225,000: done before the last one, so that one decides.
  EXPECT_NEAR(percent(rows, "launch/C/static_equal/history/3"), 100 * (1.145161290 / 1.333353), 0.01);
  // The last 25 % of items that cost up to twice the mean: 1 - 0.75^2 of the work, on a quarter of the speed.
  EXPECT_NEAR(percent(rows, "launch/D/weighted/history/3"), 100 * 0.25 / (1 - 0.75 * 0.75), 0.05);
  EXPECT_NEAR(percent(rows, "launch/D2/weighted/history/3"), 100 * 0.45 / (1 - 0.55 * 0.55), 0.05);
  // data on the devices: one share each, which cannot answer what changes later
  EXPECT_NEAR(percent(rows, "launch/C/automatic/history/3"), 76.3, 0.1);
  for (const char* strategy : {"weighted", "dynamic", "guided", "memory_aware", "work_stealing", "automatic"}) {
    EXPECT_GE(percent(rows, std::string{"launch/A/"} + strategy + "/history/3"), 99.9) << strategy;
  }
  for (const char* scenario : {"A", "C", "D", "D2", "E"}) {
    EXPECT_GE(percent(rows, std::string{"launch/"} + scenario + "/guided/no_history/3"), 97.0) << scenario;
  }
}

TEST(bench_launch, under_noise_tells_the_median_and_the_worst_of_the_seeds) {
  const auto run = run_tool(with(
      bench, {"--json", "--clock", "virtual", "--scenario", "B", "--strategy", "dynamic,guided", "--seeds", "30"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const json& row : run.field("results")) {
    EXPECT_EQ(row.at("seconds").at("samples"), 30) << row;
    EXPECT_LT(row.at("worst_efficiency").get<double>(), row.at("efficiency").get<double>()) << row;
  }
  const json guided = row_of(run.field("results"), "launch/B/guided/no_history/3");
  EXPECT_GE(guided.at("worst_efficiency").get<double>(), 0.93);
}

TEST(bench_launch, the_same_line_gives_the_same_simulated_figures) {
  const words line = with(bench, {"--json", "--clock", "virtual", "--scenario", "A,B,E", "--seeds", "3"});
  EXPECT_EQ(run_tool(line).field("results"), run_tool(line).field("results"));
}

TEST(bench_launch, marks_what_is_simulated_and_what_ran) {
  const auto run = run_tool(with(bench, {"--json", "--quick", "--strategy", "guided"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = run.document();
  EXPECT_EQ(document.at("schema"), "weft.bench.launch/1");
  EXPECT_EQ(document.at("simulated"), false) << "the machine on which the overhead is measured";
  EXPECT_EQ(document.at("complete"), true);
  EXPECT_EQ(document.at("balanced").at("machine"), "mixed_3");
  EXPECT_EQ(document.at("balanced").at("speeds"), (json{45.0, 30.0, 25.0}));
  std::set<std::string> names;
  std::set<std::string> measured;
  for (const json& row : document.at("results")) {
    names.insert(row.at("name"));
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_GT(row.at("seconds").at("median").get<double>(), 0) << row;
    const std::string scenario = row.at("scenario");
    EXPECT_EQ(row.at("simulated"), scenario != "overhead") << row;
    EXPECT_EQ(row.at("launched"), scenario[0] != 'C' && scenario[0] != 'D') << row;
    EXPECT_EQ(row.at("efficiency").is_null(), scenario == "overhead") << row;
    EXPECT_TRUE(row.at("why").is_string() || !row.at("predicted_seconds").is_null()) << row;
    if (scenario == "overhead") measured.insert(row.at("name"));
  }
  EXPECT_EQ(names.size(), document.at("results").size()) << "each name once";
  EXPECT_EQ(measured,
            (std::set<std::string>{"launch/overhead/stream/1", "launch/overhead/by_type/1", "launch/overhead/by_name/1",
                                   "launch/overhead/by_type/2", "launch/overhead/by_name/2"}));
}

TEST(bench_launch, draws_a_bar_for_each_strategy_and_says_simulated) {
  const auto run = run_tool(with(bench, {"--scenario", "A", "--strategy", "static_equal,automatic"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "strategy (simulated)")) << run.out;
  EXPECT_TRUE(has(run.out, "########..  75.0") || has(run.out, "#######...  75.0")) << run.out;
  EXPECT_TRUE(has(run.out, "########## 100.0")) << run.out;
  EXPECT_TRUE(has(run.out, "no measurement")) << run.out;
  EXPECT_FALSE(has(run.out, "overhead")) << run.out;
}

TEST(bench_launch, plays_the_speeds_of_the_machine_that_is_asked_for) {
  const auto run =
      run_tool(with(bench, {"--json", "--scenario", "A", "--strategy", "static_equal", "--sim", "dgx_h100"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("simulated"), true);
  EXPECT_EQ(run.field("balanced").at("speeds").size(), 8U);
  // eight that are alike
  EXPECT_GE(percent(run.field("results"), "launch/A/static_equal/history/8"), 99.9);
}

TEST(bench_launch, plays_the_machine_that_the_environment_names) {
  const auto run = run_tool(with(bench, {"--json", "--scenario", "A", "--strategy", "static_equal"}),
                            {{"WEFT_TOPOLOGY=pair_nvlink"}, {}, {}});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("balanced").at("machine"), "pair_nvlink");
}

TEST(bench_launch, takes_no_more_seeds_and_samples_than_its_budget_has_time_for) {
  const std::pair<words, int> asked[] = {{{"--scenario", "B", "--strategy", "guided"}, 10'000},
                                         {{"--scenario", "overhead", "--samples", "1000000"}, 1'000'000}};
  for (const auto& [more, most] : asked) {
    const auto run = run_tool(with({"bench", "launch", "-q", "--json", "--seeds", "10000", "--budget", "100ms"}, more));
    for (const json& row : run.field("results")) {
      if (!row.at("seconds").is_null()) {
        EXPECT_LT(row.at("seconds").at("samples"), most) << row;
      }
    }
  }
}

TEST(bench_launch, a_file_holds_what_was_measured_and_nothing_else) {
  const scratch_folder folder;
  const auto run = run_tool({"bench", "launch", "--quick", "--scenario", "A,overhead", "--strategy", "guided", "-o",
                             (folder / "r.json").string()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json kept = json::parse(read_text(folder / "r.json"));
  EXPECT_EQ(kept.at("results").size(), 5U);
  for (const json& row : kept.at("results")) EXPECT_EQ(row.at("simulated"), false) << row;
}

TEST(bench_launch, a_results_file_without_anything_measured_is_refused) {
  const scratch_folder folder;
  for (const words& more : {words{"--clock", "virtual"}, words{"--scenario", "A"}}) {
    const auto run = run_tool(with(with({"bench", "launch"}, more), {"-o", (folder / "r.json").string()}));
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_TRUE(has(run.err, "simulated")) << run.err;
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(bench_launch, a_virtual_clock_has_no_overhead_to_show) {
  const auto run = run_tool(with(bench, {"--clock", "virtual", "--scenario", "overhead"}));
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, "real time")) << run.err;
}

TEST(bench_launch, wrong_words_are_answered_with_what_there_is) {
  const auto strategy = run_tool({"bench", "launch", "--strategy", "guidd"});
  EXPECT_EQ(strategy.exit_code, 2);
  EXPECT_TRUE(has(strategy.err, "did you mean guided?")) << strategy.err;
  const auto scenario = run_tool({"bench", "launch", "--scenario", "A,F"});
  EXPECT_EQ(scenario.exit_code, 2);
  EXPECT_TRUE(has(scenario.err, "'F' is no scenario: there are A, B, C, D, D2, E, overhead")) << scenario.err;
}

// ---- the picture of the demo --------------------------------------------------------------------------------------

TEST(balance_picture, shows_who_waits_for_whom) {
  const topology layout = value_or_raise(load_topology("mixed_3"));
  const auto launches = tool::watch_launches(layout, {balance::static_equal, balance::guided, balance::automatic});
  ASSERT_EQ(launches.size(), 3U);
  for (const tool::watched_launch& one : launches) EXPECT_TRUE(one.verified) << to_string(one.asked);
  EXPECT_NEAR(launches[0].report.efficiency(), 0.75, 0.001);
  EXPECT_EQ(launches[0].pieces.size(), 3U);
  EXPECT_GE(launches[1].report.efficiency(), 0.97);
  EXPECT_GT(launches[1].pieces.size(), 9U);
  EXPECT_GE(launches[2].report.efficiency(), 0.99) << "what the others found out serves it";

  const std::string text = tool::balance_text(launches);
  // static_equal is the longest, so its slowest device fills the axis; the fastest has done in 25/45 of it.
  EXPECT_TRUE(has(text, "gpu2 |" + std::string(60, '#') + "|  33.3 % of the items, 1 piece\n")) << text;
  EXPECT_TRUE(has(text, "gpu0 |" + std::string(33, '#') + std::string(27, '.') + "|  33.3 %")) << text;
  EXPECT_TRUE(has(text, "|  45.0 % of the items, 1 piece\n")) << text;
  EXPECT_TRUE(has(text, "static_equal: 1.33 s, 75.0 % of the ideal (simulated)")) << text;
  EXPECT_TRUE(has(text, "#=")) << "pieces of guided are told apart: " << text;

  const std::string picture = tool::balance_svg(launches, "three strategies");
  EXPECT_TRUE(has(picture, "<svg")) << picture.substr(0, 200);
  EXPECT_TRUE(has(picture, "simulated"));
  EXPECT_TRUE(has(picture, "static_equal: 75.0 % of the ideal"));
  EXPECT_EQ(picture, tool::balance_svg(
                         tool::watch_launches(layout, {balance::static_equal, balance::guided, balance::automatic}),
                         "three strategies"));
}

TEST(demo, shows_how_strategies_divide_a_kernel) {
  const scratch_folder folder;
  const auto run = run_tool({"demo", "-o", (folder / "out").string(), "--sim", "one"});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_TRUE(has(run.out, "75.0 % of the ideal (simulated)")) << run.out;
  EXPECT_TRUE(std::filesystem::exists(folder / "out/balance.svg"));
  const json balance = json::parse(read_text(folder / "out/weft-demo.json")).at("balance");
  ASSERT_EQ(balance.size(), 3U);
  for (const json& one : balance) {
    EXPECT_EQ(one.at("simulated"), true) << one;
    EXPECT_EQ(one.at("verified"), true) << one;
    EXPECT_EQ(one.at("devices").size(), 3U) << one;
  }
}

// ---- explain launch -----------------------------------------------------------------------------------------------

TEST(explain_launch, tells_what_each_device_would_get_and_why) {
  const words line{"explain", "launch", "1M", "--rate", "450K", "--start", "0us", "--sim", "mixed_3"};
  const auto run = run_tool(with(line, {"--json"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = run.document();
  EXPECT_EQ(document.at("schema"), "weft.explain.launch/1");
  EXPECT_EQ(document.at("items"), 1'000'000) << "items count in 1000";
  ASSERT_EQ(document.at("devices").size(), 3U);
  const std::vector<double> shares{0.45, 0.30, 0.25};
  for (std::size_t i = 0; i < 3; ++i) {
    const json& device = document.at("devices")[i];
    EXPECT_NEAR(device.at("items").get<double>(), 1e6 * shares[i], 1) << device;
    EXPECT_NEAR(device.at("items_per_second").get<double>(), 1e6 * shares[i], 1e-3) << device;
    EXPECT_TRUE(has(device.at("why").get<std::string>(), "supposed speed")) << device << " nothing was measured";
  }
  EXPECT_NEAR(document.at("ideal_seconds").get<double>(), 1.0, 1e-9);
  const auto text = run_tool(line);
  EXPECT_TRUE(has(text.out, "45.0 %")) << text.out;
  EXPECT_TRUE(has(text.out, "not measured")) << text.out;
}

TEST(explain_launch, leaves_out_devices_that_small_work_is_not_worth) {
  const auto items_of = [](const std::string& items) {
    std::vector<std::int64_t> got;
    const auto run = run_tool(
        {"explain", "launch", items, "--rate", "200M", "--start", "20us,120us", "--json", "--sim", "two_socket_8"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    for (const json& device : run.field("devices")) got.push_back(device.at("items"));
    return got;
  };
  const auto small = items_of("20K");  // 20 us and 100 us on the first: the others would not have begun
  ASSERT_EQ(small.size(), 8U);
  EXPECT_EQ(small.front(), 20'000);
  EXPECT_EQ(std::ranges::count(small, 0), 7);
  const auto large = items_of("100M");
  EXPECT_EQ(std::ranges::count(large, 0), 0);
  // each ends when the others do: 20 us + first * 5 ns = 120 us + other * 5 ns
  EXPECT_NEAR(static_cast<double>(large[0] - large[1]), 20'000, 10);
}

TEST(explain_launch, wrong_words_are_usage_errors) {
  for (const words& bad :
       {words{}, words{"many"}, words{"-1"}, words{"1M", "--rate", "0"}, words{"1M", "--granularity", "0"},
        words{"1M", "--start", "soon"}, words{"1M", "--strategy", "best"}, words{"1M", "--strategy", "guided,dynamic"},
        words{"1M", "--start", "1us,2us,3us", "--sim", "pair_nvlink"}}) {
    const auto run = run_tool(with({"explain", "launch"}, bad));
    EXPECT_EQ(run.exit_code, 2) << (bad.empty() ? "" : bad.back()) << run.out;
    EXPECT_FALSE(run.err.empty());
  }
  EXPECT_EQ(run_tool({"explain"}).exit_code, 2);
}

}  // namespace launch_bench_test
}  // namespace weft::test
