// SPDX-License-Identifier: Apache-2.0
#include "cli/tool_runner.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::test {
namespace compare_test {

using nlohmann::json;

json row(const std::string& name, double median, double spread, bool verified = true) {
  return {
      {"name", name},
      {"seconds", {{"median", median}, {"p5", median * (1 - spread)}, {"p95", median * (1 + spread)}, {"samples", 15}}},
      {"verified", verified}};
}

json results(const std::vector<json>& rows, const std::string& driver = "CUDA 12.4") {
  return {{"schema", "weft.bench.copy/1"},
          {"host", {{"cpu", "one"}}},
          {"machine", {{"drivers", {driver}}}},
          {"clock", "wall"},
          {"results", rows}};
}

class comparison : public testing::Test {
 protected:
  tool_result compare(const json& first, const json& second, const std::vector<std::string>& more = {}) {
    write_text(folder_ / "a.json", first.dump());
    write_text(folder_ / "b.json", second.dump());
    std::vector<std::string> words{"compare", folder_ / "a.json", folder_ / "b.json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_tool(words);
  }

  scratch_folder folder_;
};

TEST_F(comparison, a_comparison_of_a_file_with_itself_finds_nothing) {
  const json one = results({row("a", 1e-6, 0.1), row("b", 1e-3, 0)});
  const tool_result run = compare(one, one);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "0 slower, 0 faster, 2 the same")) << run.out;
  EXPECT_FALSE(has(run.out, "also different")) << run.out;
}

TEST_F(comparison, compares_rows_of_one_name_in_their_order) {
  const json twice = results({row("a", 1e-3, 0), row("a", 2e-3, 0)});
  const tool_result same = compare(twice, twice);
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_TRUE(has(same.out, "2 rows in both")) << same.out;
  EXPECT_TRUE(has(same.out, "0 only in the first, 0 only in the second")) << same.out;
  const tool_result one = compare(results({row("a", 1e-3, 0)}), twice);
  EXPECT_TRUE(has(one.out, "1 row in both")) << one.out;
  EXPECT_TRUE(has(one.out, "0 only in the first, 1 only in the second")) << one.out;
}

TEST_F(comparison, fails_when_a_row_became_slower_by_more_than_the_threshold) {
  const json before = results({row("a", 1e-3, 0.02), row("b", 1e-3, 0.02)});
  const json after = results({row("a", 1.2e-3, 0.02), row("b", 0.5e-3, 0.02)}, "CUDA 13.0");
  const tool_result run = compare(before, after);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(has(run.out, "x1.20")) << run.out;
  EXPECT_TRUE(has(run.out, "1 slower, 1 faster, 0 the same")) << run.out;
  EXPECT_TRUE(has(run.out, R"(machine drivers  ["CUDA 12.4"]  ["CUDA 13.0"])")) << run.out;
  EXPECT_EQ(compare(before, after, {"--threshold", "25%"}).exit_code, 0);
  EXPECT_EQ(compare(before, after, {"--threshold", "0.25"}).exit_code, 0);
  EXPECT_TRUE(has(compare(before, after, {"--threshold", "0.5%"}).out, "from 0.5% on"));
  EXPECT_EQ(compare(before, after, {"--threshold", "much"}).exit_code, 2);
  EXPECT_EQ(compare(after, before).exit_code, 1) << "b";
}

TEST_F(comparison, looks_at_copies_at_the_same_time_too) {
  json before = results({row("a", 1e-3, 0.02)});
  json after = before;
  before["patterns"] = {row("copy/to_host/1MiB/gpu0", 1e-3, 0.02)};
  after["patterns"] = {row("copy/to_host/1MiB/gpu0", 2e-3, 0.02)};
  const tool_result run = compare(before, after);
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_TRUE(has(run.out, "1 slower, 0 faster, 1 the same")) << run.out;
}

TEST_F(comparison, does_not_count_a_difference_within_the_spread_of_the_samples) {
  EXPECT_EQ(compare(results({row("a", 1e-3, 0.5)}), results({row("a", 1.3e-3, 0.5)})).exit_code, 0);
  EXPECT_EQ(compare(results({row("a", 1e-3, 0.1)}), results({row("a", 1.3e-3, 0.5)})).exit_code, 0);
}

TEST_F(comparison, fails_when_the_second_has_wrong_data_however_fast) {
  const tool_result run = compare(results({row("a", 1e-3, 0.1)}), results({row("a", 1e-4, 0.1, false)}));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(has(run.out, "WRONG DATA")) << run.out;
  json lost = row("a", 1e-3, 0.1, false);
  lost["seconds"] = nullptr;  // no time is told of what was wrong
  EXPECT_EQ(compare(results({row("a", 1e-3, 0.1)}), results({lost})).exit_code, 1);
}

TEST_F(comparison, names_rows_that_only_one_file_has) {
  const json before = results({row("a", 1e-3, 0.1), row("old", 1e-3, 0.1)});
  const json after = results({row("a", 1e-3, 0.1), row("new", 1e-3, 0.1), row("newer", 1e-3, 0.1)});
  const tool_result run = compare(before, after, {"--all"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_TRUE(has(run.out, "1 only in the first, 2 only in the second")) << run.out;
  EXPECT_TRUE(has(run.out, "newer")) << run.out;
  EXPECT_EQ(compare(results({row("a", 1, 0)}), results({row("b", 1, 0)})).exit_code, 6);
  EXPECT_EQ(compare(results({row("a", 1, 0)}), results({row("b", 1, 0, false)})).exit_code, 6) << "nor a wrong one";
  json untimed = row("a", 1, 0);
  untimed["seconds"] = nullptr;
  const tool_result none = compare(results({untimed}), results({untimed}));
  EXPECT_EQ(none.exit_code, 6);
  EXPECT_TRUE(has(none.err, "no row with a time is in both")) << none.err;
}

TEST_F(comparison, refuses_what_cannot_be_compared) {
  json other = results({row("a", 1e-3, 0.1)});
  other["schema"] = "weft.bench.queue/1";
  EXPECT_EQ(compare(results({row("a", 1e-3, 0.1)}), other).exit_code, 2);
  EXPECT_EQ(compare({{"schema", "weft.topo/1"}}, other).exit_code, 2);
  EXPECT_EQ(run_tool({"compare", folder_ / "a.json", folder_ / "absent.json"}).exit_code, 2);
  for (const json& odd : {json{{"name", 3}}, json(7), json{{"name", "a"}, {"seconds", {{"median", "x"}}}},
                          json{{"name", "a"}, {"seconds", {{"median", -1}}}, {"verified", "yes"}}})
    EXPECT_EQ(compare(results({odd, row("b", 1, 0)}), results({odd, row("b", 1, 0)})).exit_code, 0) << odd;
}

TEST_F(comparison, a_comparison_of_real_results_is_valid_by_its_schema) {
  for (const char* name : {"a.json", "b.json"})
    ASSERT_EQ(run_tool({"bench", "copy", "-s", "1M", "--samples", "3", "-o", folder_ / name}).exit_code, 0);
  const tool_result run = run_tool({"compare", folder_ / "a.json", folder_ / "b.json", "--json"});
  EXPECT_TRUE(run.exit_code == 0 || run.exit_code == 1) << run.err;
  EXPECT_GT(run.field("rows").size(), 1U);
  const tool_result checked = check_documents({run});
  if (checked.exit_code == no_checker) GTEST_SKIP() << checked.err;
  EXPECT_EQ(checked.exit_code, 0) << checked.out;
}

}  // namespace compare_test
}  // namespace weft::test
