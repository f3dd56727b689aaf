// SPDX-License-Identifier: Apache-2.0
// weft explain all_reduce and weft bench collective: what they say, what they refuse, and that their documents hold.
#include "bench/collective/collective_values.hpp"
#include "bench/collective/collective_words.hpp"
#include "cli/tool_runner.hpp"
#include "command_line/commands.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::test {
namespace collective_test {

using nlohmann::json;

const words collectives{"all_reduce", "reduce",  "reduce_scatter", "all_gather",
                        "broadcast",  "scatter", "gather",         "all_to_all"};
const words bench{"bench", "collective", "--quick", "-q", "--budget", "120s"};

// ---- explain --------------------------------------------------------------------------------------------------------

TEST(explain_collective, shows_every_algorithm_with_the_chosen_one_first_and_why_the_others_lost) {
  const auto run = run_tool({"explain", "all_reduce", "100MB", "--sim", "dgx_h100", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = run.document();
  EXPECT_EQ(document.at("schema"), "weft.explain.collective/1");
  EXPECT_EQ(document.at("collective"), "all_reduce");
  EXPECT_EQ(document.at("bytes"), 100 << 20) << "sizes count in 1024";
  EXPECT_EQ(document.at("count"), 25 << 20);
  EXPECT_EQ(document.at("ranks"), 8);
  EXPECT_EQ(document.at("simulated"), true);
  ASSERT_EQ(document.at("candidates").size(), 5U);
  EXPECT_EQ(document.at("candidates").front().at("algorithm"), document.at("algorithm"));
  double before = 0;
  std::set<std::string> algorithms;
  for (const json& one : document.at("candidates")) {
    algorithms.insert(one.at("algorithm"));
    const double took = one.at("predicted_seconds");
    EXPECT_GE(took, before) << "by time\n" << one;
    before = took;
    const double algbw = one.at("algbw_bytes_per_second");
    EXPECT_NEAR(algbw, (100 << 20) / took, 1e-6 * algbw);
    EXPECT_NEAR(one.at("busbw_bytes_per_second").get<double>(), algbw * 2 * 7 / 8, 1e-6 * algbw);
    EXPECT_FALSE(one.at("why").get<std::string>().empty()) << one;
  }
  EXPECT_EQ(algorithms, (std::set<std::string>{"naive", "tree", "ring", "halving_doubling", "direct"}));

  const auto text = run_tool({"explain", "all_reduce", "100MB", "--sim", "dgx_h100"});
  EXPECT_TRUE(has(text.out, "not measured")) << text.out;
  EXPECT_TRUE(has(text.out, "(simulated)")) << text.out;
  EXPECT_TRUE(has(text.out, "slower than")) << text.out;
}

TEST(explain_collective, knows_every_collective) {
  for (const std::string& what : collectives) {
    const auto run = run_tool({"explain", what, "1M", "--sim", "two_socket_8", "--json"});
    EXPECT_EQ(run.exit_code, 0) << what << run.err;
    EXPECT_EQ(run.field("collective"), what);
    EXPECT_FALSE(run_tool({"explain", what, "1M"}).out.empty()) << what;
  }
}

TEST(explain_collective, the_order_of_ranks_leaves_only_those_that_keep_it) {
  const auto run =
      run_tool({"explain", "all_reduce", "1M", "--sim", "dgx_h100", "--order", "rank", "--json", "--ranks", "3"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("ranks"), 3);
  for (const json& one : run.field("candidates")) {
    const bool keeps = one.at("algorithm") == "naive" || one.at("algorithm") == "direct";
    EXPECT_EQ(one.at("possible"), keeps) << one;
    EXPECT_EQ(one.at("predicted_seconds").is_null(), !keeps) << one;
    if (!keeps) {
      EXPECT_TRUE(has(one.at("why"), "order of ranks")) << one;
    }
  }
}

TEST(explain_collective, takes_the_algorithm_and_the_devices_that_were_asked_for) {
  const auto run = run_tool({"explain", "all_reduce", "8M", "--sim", "two_socket_8", "--devices", "5,gpu0,2", "--type",
                             "half", "--algorithm", "ring", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("devices"), (json{5, 0, 2}));
  EXPECT_EQ(run.field("type"), "float16");
  EXPECT_EQ(run.field("count"), 4 << 20);
  EXPECT_EQ(run.field("algorithm"), "ring");
  EXPECT_EQ(run.field("candidates").front().at("why"), "was asked for");
  const auto shared = run_tool({"explain", "all_reduce", "8M", "--sim", "one", "--ranks", "4", "--json"});
  EXPECT_EQ(shared.exit_code, 0) << shared.err;
  EXPECT_EQ(shared.field("devices"), (json{0, 0, 0, 0})) << "a device may be several ranks";
}

TEST(explain_collective, what_there_is_not_ends_with_3_and_says_why) {
  const auto direct =
      run_tool({"explain", "all_reduce", "1M", "--sim", "ring_3_no_p2p", "--algorithm", "direct", "--json"});
  EXPECT_EQ(direct.exit_code, 3);
  EXPECT_TRUE(has(direct.err, "cannot map the memory of")) << direct.err;
  EXPECT_EQ(run_tool({"explain", "all_reduce", "1M", "--sim", "one", "--devices", "0,7"}).exit_code, 3);
}

TEST(explain_collective, of_nothing_does_not_ask_for_rates_that_the_topology_tells) {
  for (const words& line : {words{"all_reduce", "0"}, words{"all_reduce", "1M", "--ranks", "1"}}) {
    const auto run = run_tool(with({"explain", "--sim", "dgx_h100"}, line));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_FALSE(has(run.out, "--measure")) << run.out;
  }
}

TEST(explain_collective, wrong_words_are_usage_errors_that_name_them) {
  const std::map<std::string, words> bad{{"a size", {"all_reduce", "many"}},
                                         {"all_reduce", {"all_redcue", "1M"}},
                                         {"no type", {"all_reduce", "1M", "--type", "float128"}},
                                         {"no order", {"all_reduce", "1M", "--order", "best"}},
                                         {"did you mean ring", {"all_reduce", "1M", "--algorithm", "rink"}},
                                         {"is one of them", {"all_reduce", "1M", "--algorithm", "ring,tree"}},
                                         {"--ranks", {"all_reduce", "1M", "--ranks", "65"}},
                                         {"at most 256G", {"all_reduce", "1T"}},
                                         {"not a device", {"all_reduce", "1M", "--devices", "a"}},
                                         {"hold no float64", {"all_reduce", "4", "--type", "double"}}};
  for (const auto& [part, line] : bad) {
    const auto run = run_tool(with({"explain"}, line));
    EXPECT_EQ(run.exit_code, 2) << part << run.out;
    EXPECT_TRUE(has(run.err, part)) << run.err;
  }
}

// ---- the numbers that are summed -----------------------------------------------------------------------------------

TEST(collective_values, are_exact_in_every_type_and_differ_by_place_and_rank) {
  for (const int ranks : {1, 2, 3, 8, 64}) {
    for (int t = 0; t < data_type_count; ++t) {
      tool::with_type(static_cast<data_type>(t), [&]<class T>(T) {
        for (const auto kind : {reduction_op::kind::sum, reduction_op::kind::average, reduction_op::kind::product}) {
          tool::collective_task task;
          task.shape = tool::shape_of(collective::all_reduce, ranks, 300);
          task.operation = kind;
          const tool::collective_values<T> values{task};
          std::set<double> seen;
          for (std::size_t i = 0; i < 300; ++i) {
            seen.insert(tool::number_of(values.output(0, i)));
            double exact = kind == reduction_op::kind::product ? 1 : 0;
            for (int r = 0; r < ranks; ++r) {
              const double one = tool::number_of(values.input(r, i));
              exact = kind == reduction_op::kind::product ? exact * one : exact + one;
            }
            if (kind == reduction_op::kind::average) exact /= ranks;
            if (std::is_integral_v<T> && kind == reduction_op::kind::sum) continue;  // wraps around
            ASSERT_EQ(tool::number_of(values.output(0, i)), exact)
                << to_string(static_cast<data_type>(t)) << ", element " << i;
          }
          const bool has_room = sizeof(T) > 1 || ranks < 64;  // else an average of 64 numbers has one value
          EXPECT_EQ(seen.size() > 1, has_room || kind != reduction_op::kind::average)
              << to_string(static_cast<data_type>(t)) << " of " << ranks;
        }
      });
    }
  }
}

// ---- bench ----------------------------------------------------------------------------------------------------------

TEST(bench_collective, measures_and_verifies_every_algorithm) {
  const auto run = run_tool(with(bench, {"--json", "-s", "4,1000,300000", "--algorithm", "all"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = run.document();
  EXPECT_EQ(document.at("schema"), "weft.bench.collective/1");
  EXPECT_EQ(document.at("complete"), true);
  EXPECT_TRUE(has(document.at("note"), "not a GPU figure"));
  std::set<std::string> names;
  for (const json& row : document.at("results")) {
    names.insert(row.at("name"));
    EXPECT_EQ(row.at("collective"), "all_reduce");
    EXPECT_EQ(row.at("type"), "float32");
    if (row.at("algorithm") == "hierarchical") {
      EXPECT_TRUE(has(row.at("why"), "all ranks are on one node")) << row;
      continue;
    }
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_EQ(row.at("wrong"), 0) << row;
    const double seconds = row.at("seconds").at("median"), bytes = row.at("bytes"), ranks = row.at("ranks");
    EXPECT_EQ(bytes, 4 * row.at("count").get<double>());
    const double algbw = row.at("algbw_bytes_per_second"), busbw = row.at("busbw_bytes_per_second");
    EXPECT_NEAR(algbw, bytes / seconds, 1e-6 * algbw);
    EXPECT_NEAR(busbw, algbw * 2 * (ranks - 1) / ranks, 1e-6 * busbw);
  }
  EXPECT_EQ(names.size(), 18U);
  EXPECT_TRUE(names.contains("collective/all_reduce/ring/float32/1000B/4_ranks"));
}

TEST(bench_collective, sizes_of_as_many_elements_are_one_row) {
  const auto run = run_tool(with(bench, {"--json", "-s", "4,5,7,8", "--algorithm", "direct,ring"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::set<std::string> names;
  for (const json& row : run.field("results")) EXPECT_TRUE(names.insert(row.at("name")).second) << row;
  EXPECT_EQ(names.size(), 4U);
}

TEST(bench_collective, refuses_a_file_of_other_results_before_it_measures) {
  const scratch_folder folder;
  write_text(folder / "r.json", R"({"results": [], "virtual_driver": true})");
  const auto run = run_tool({"bench", "collective", "--budget", "0s", "-o", folder / "r.json"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, "never share a file")) << run.err;
  EXPECT_FALSE(has(run.err, "budget")) << run.err;
}

TEST(bench_collective, does_every_collective_of_every_type_of_counts_that_do_not_divide) {
  for (const char* type : {"int8", "uint16", "int64", "half", "bfloat16", "double"}) {
    const auto run =
        run_tool(with(bench, {"--json", "-s", "1000", "--collective", "all", "--ranks", "3", "--type", type}));
    EXPECT_EQ(run.exit_code, 0) << type << run.err;
    const json results = run.field("results");
    EXPECT_EQ(results.size(), 8U);
    for (const json& row : results) EXPECT_EQ(row.at("wrong"), 0) << row;
  }
}

TEST(bench_collective, knows_the_operations_the_order_of_ranks_and_in_place) {
  for (const char* op : {"product", "min", "max", "average"}) {
    const auto run = run_tool(with(bench, {"--json", "-s", "4000", "--op", op, "--order", "rank", "--in-place",
                                           "--collective", "all_reduce,reduce,reduce_scatter,all_gather"}));
    EXPECT_EQ(run.exit_code, 0) << op << run.err;
    EXPECT_EQ(run.field("operation"), op);
    EXPECT_EQ(run.field("in_place"), true);
    for (const json& row : run.field("results")) {
      EXPECT_EQ(row.at("verified"), true) << row;
      EXPECT_TRUE(row.at("algorithm") == "direct" || row.at("algorithm") == "naive" ||
                  row.at("collective") == "all_gather")
          << row;
    }
  }
  const auto run = run_tool(with(bench, {"--json", "-s", "4000", "--collective", "all_to_all", "--in-place"}));
  EXPECT_EQ(run.exit_code, 6);
  EXPECT_TRUE(has(run.field("results").front().at("why"), "in place"));
}

TEST(bench_collective, processes_are_ranks_of_their_own) {
  const auto run = run_tool(with(bench, {"--json", "-s", "4,100000", "--collective", "all", "--processes", "3"}));
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(run.field("callers"), "a process for each rank");
  EXPECT_EQ(run.field("results").size(), 16U);
  for (const json& row : run.field("results")) {
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_EQ(row.at("ranks"), 3) << row;
    EXPECT_TRUE(has(row.at("name"), "3_processes")) << row;
    EXPECT_GT(row.at("seconds").at("median").get<double>(), 0) << row;
  }
  EXPECT_TRUE(has(run_tool(with(bench, {"-s", "4", "--processes", "2"})).out, "a process each"));
}

TEST(bench_collective, a_virtual_clock_says_simulated_and_gives_the_same_figures_every_time) {
  const words line = with(bench, {"-s", "1M", "--sim", "dgx_h100", "--clock", "virtual", "--algorithm", "ring,direct"});
  const auto one = run_tool(with(line, {"--json"})), two = run_tool(with(line, {"--json"}));
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.field("simulated"), true);
  EXPECT_EQ(one.field("clock"), "virtual");
  EXPECT_EQ(one.field("results"), two.field("results"));
  const auto text = run_tool(line);
  EXPECT_TRUE(has(text.out, "All times are simulated")) << text.out;
  EXPECT_TRUE(has(text.out, "time (simulated)")) << text.out;
}

TEST(bench_collective, what_a_machine_cannot_do_has_no_figures_but_the_reason) {
  const auto run =
      run_tool(with(bench, {"--json", "-s", "1K", "--sim", "ring_3_no_p2p", "--algorithm", "direct,ring"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const json& row : run.field("results")) {
    const bool direct = row.at("algorithm") == "direct";
    EXPECT_EQ(row.at("seconds").is_null(), direct) << row;
    EXPECT_EQ(row.at("why").is_string(), direct) << row;
  }
}

TEST(bench_collective, data_that_does_not_arrive_is_counted_and_ends_with_1) {
  const scratch_folder folder;
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pair_nvlink.json"));
  machine["faults"] = json::array({{{"kind", "drops_data"}, {"from", "gpu0"}, {"to", "gpu1"}}});
  write_text(folder / "liar.json", machine.dump());
  const auto run =
      run_tool(with(bench, {"--json", "-s", "4000", "--algorithm", "all", "--sim", (folder / "liar.json").string()}));
  EXPECT_EQ(run.exit_code, 1) << run.out << run.err;
  bool found = false;
  for (const json& row : run.field("results")) {
    if (row.at("verified") != false) continue;
    found = true;
    EXPECT_GT(row.at("wrong").get<int>(), 0) << row;
    EXPECT_TRUE(has(row.at("why"), "first wrong element at")) << row;
  }
  EXPECT_TRUE(found) << run.out;
}

TEST(bench_collective, wrong_words_are_usage_errors_that_name_them) {
  const std::map<std::string, words> bad{{"did you mean all_reduce", {"--collective", "all_reduc"}},
                                         {"a size", {"-s", "many"}},
                                         {"hold no float32", {"-s", "2"}},
                                         {"smaller size", {"-s", "18446744073709551615", "--type", "int8"}},
                                         {"no algorithm", {"--algorithm", "butterfly"}},
                                         {"no operation", {"--op", "xor"}},
                                         {"--processes", {"--processes", "65"}},
                                         {"--ranks", {"--ranks", "0"}},
                                         {"give --processes, or --ranks", {"--processes", "2", "--ranks", "2"}},
                                         {"give it, or --ranks", {"--devices", "0,1", "--ranks", "2"}},
                                         {"there are 2 processes", {"--processes", "2", "--devices", "0,1,2"}},
                                         {"virtual", {"--processes", "2", "--clock", "virtual"}}};
  for (const auto& [part, line] : bad) {
    const auto run = run_tool(with({"bench", "collective"}, line));
    EXPECT_EQ(run.exit_code, 2) << part << run.out;
    EXPECT_TRUE(has(run.err, part)) << run.err;
  }
}

TEST(bench_collective, documents_are_valid_by_their_schemas) {
  expect_valid({with(bench, {"--json", "-s", "1K"}),
                with(bench, {"--json", "-s", "1K", "--processes", "2"}),
                {"bench", "collective", "--json", "-q", "--budget", "0s"},
                with(bench, {"--json", "-s", "1K", "--sim", "ring_3_no_p2p", "--algorithm", "all"}),
                {"explain", "all_reduce", "1M", "--json", "--sim", "dgx_h100"},
                {"explain", "all_gather", "0", "--json"},
                {"explain", "broadcast", "1M", "--json", "--sim", "ring_3_no_p2p", "--order", "rank"}});
}

TEST(demo, sums_over_the_devices_and_checks_every_element) {
  const scratch_folder folder;
  const auto run = run_tool({"demo", "-q", "--sim", "pair_nvlink", "-o", (folder / "out").string()});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_TRUE(has(run.out, "all_reduce of 4 MiB over 2 ranks")) << run.out;
  const json sum = json::parse(read_text(folder / "out/weft-demo.json")).at("collective");
  EXPECT_EQ(sum.at("verified"), true) << sum;
  EXPECT_EQ(sum.at("wrong"), 0) << sum;
}

}  // namespace collective_test
}  // namespace weft::test
