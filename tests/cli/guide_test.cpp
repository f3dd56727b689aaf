// SPDX-License-Identifier: Apache-2.0
#include "cli/tool_runner.hpp"
#include "guide/guide_tables.hpp"
#include "support/paths.hpp"
#include "weft/core/error.hpp"
#include "weft/core/raise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace weft::test {
namespace guide_test {

using nlohmann::json;

json row_of(const json& rows, const std::string& table, const std::string& row) {
  for (const json& one : rows) {
    if (one.at("table") == table && one.at("row") == row) return one;
  }
  ADD_FAILURE() << "no row " << table << ", " << row;
  return {};
}

double simulated(const json& rows, const std::string& table, const std::string& row) {
  const json one = row_of(rows, table, row);
  return one.is_null() || one.at("simulated").is_null() ? -1 : one.at("simulated").get<double>();
}

void expect_valid(const tool_result& run) {
  const scratch_folder folder;
  write_text(folder / "d", run.out);
  const std::string checker =
      "import json, sys, jsonschema\n"
      "schema = json.load(open(sys.argv[1]))\n"
      "jsonschema.Draft7Validator.check_schema(schema)\n"
      "bad = [(list(e.absolute_path), e.message[:300])\n"
      "       for e in jsonschema.Draft7Validator(schema).iter_errors(json.load(open(sys.argv[2])))]\n"
      "print(bad)\n"
      "sys.exit(1 if bad else 0)\n";
  std::string python;
  for (const char* candidate : {"/usr/bin/python3", "python3"}) {
    if (python.empty() && run_program({candidate, "-c", "import jsonschema"}).exit_code == 0) python = candidate;
  }
  ASSERT_FALSE(python.empty()) << "python3-jsonschema is not here: scripts/setup test";
  const auto checked =
      run_program({python, "-c", checker, samples::source_folder() + "/share/weft/schema/weft.bench.guide-1.json",
                   (folder / "d").string()});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
}

TEST(guide_tables, have_each_row_once_and_say_where_the_guide_contradicts_itself) {
  std::set<std::pair<std::string_view, std::string_view>> names;
  for (const tool::guide_figure& f : tool::guide_figures()) {
    EXPECT_TRUE(names.emplace(f.table, f.row).second) << f.table << ", " << f.row;
    EXPECT_FALSE(f.unit.empty()) << f.row;
    EXPECT_TRUE(f.is_given() || has(std::string{f.note}, "not in the guide")) << f.row;
    EXPECT_GE(f.high, f.low) << f.row;
  }
  EXPECT_EQ(tool::guide_table_names().size(), 14U);
  EXPECT_THROW(static_cast<void>(tool::figure_of("images", "no such row")), error_exception);
}

TEST(guide_tables, what_is_not_divided_follows_from_a_speed_up) {
  EXPECT_NEAR(tool::serial_part(3.57, 4), 0.0401, 0.0001);
  EXPECT_NEAR(tool::serial_part(1.91, 2), 0.0471, 0.0001);
  EXPECT_EQ(tool::serial_part(4, 4), 0);
}

TEST(guide_tables, a_second_device_helps_once_the_first_takes_longer_than_its_start) {
  // a0 + b n > a1, and n = (a1 - a0) / b
  EXPECT_NEAR(static_cast<double>(tool::crossover_items({20e-6, 5e-9, 120e-6, 5e-9}, 4)), 20'000, 2);
  EXPECT_EQ(tool::crossover_items({5e-6, 1e-9, 5e-6, 1e-9}, 2), 2) << "equal starts: an item each";
}

TEST(bench_guide, simulates_what_arithmetic_says_in_a_document_valid_by_its_schema) {
  const auto run = run_tool({"bench", "guide", "-q", "--json", "--simulated-only"});
  expect_valid(run);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("schema"), "weft.bench.guide/1");
  const json rows = run.field("rows");
  ASSERT_EQ(rows.size(), tool::guide_figures().size());
  const double serial = 0.0401;
  EXPECT_NEAR(simulated(rows, "data parallel", "one device"), 2.3, 0.001);
  EXPECT_NEAR(simulated(rows, "data parallel", "speed-up, two devices"), 1 / (serial + (1 - serial) / 2), 0.02);
  EXPECT_GE(simulated(rows, "data parallel", "speed-up, four devices"), 3.55);
  EXPECT_LE(simulated(rows, "data parallel", "speed-up, four devices"), 3.58);
  EXPECT_LT(simulated(rows, "data parallel", "speed-up, four devices behind one link"), 2.2);
  EXPECT_NEAR(simulated(rows, "pipeline", "one device, per batch"), 150, 1e-6);
  EXPECT_NEAR(simulated(rows, "pipeline", "three devices, per batch"), 55, 1e-6);
  EXPECT_NEAR(simulated(rows, "pipeline", "20 batches in all"), (20 + 3 - 1) * 55, 1e-6);
  EXPECT_NEAR(simulated(rows, "pipeline", "throughput, 20 batches in all"), 3000.0 / 1210, 1e-6);
  EXPECT_NEAR(simulated(rows, "load imbalance", "equal split, total"), 150, 0.001);
  EXPECT_NEAR(simulated(rows, "load imbalance", "proportional split, total"), 120, 0.5);
  EXPECT_NEAR(simulated(rows, "mixed devices", "share of the first"), 45, 0.3);
  // 1 us and 4 KiB at 12 GB/s, a thousand times
  EXPECT_NEAR(simulated(rows, "small copies", "1,000 copies of 4 KiB"), 4.096e-6 / (1e-6 + 4096 / 12e9), 0.01);
  EXPECT_NEAR(simulated(rows, "small copies", "one copy of 4,000 KiB"), 12, 0.05);
  EXPECT_NEAR(simulated(rows, "images", "speed-up, four devices"), 4, 0.01);
  for (const json& row : rows) EXPECT_TRUE(row.at("measured").is_null()) << row;
}

TEST(bench_guide, says_of_every_absent_number_why) {
  const auto run = run_tool({"bench", "guide", "--json", "--quick"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("simulated"), false) << "the machine that is measured";
  EXPECT_EQ(run.field("quick"), true);
  int measured = 0;
  for (const json& row : run.field("rows")) {
    for (const char* how : {"simulated", "measured"}) {
      if (row.at(how).is_null()) {
        ASSERT_TRUE(row.at("note").is_string()) << row;
        EXPECT_TRUE(has(row.at("note"), how)) << row;
      } else {
        EXPECT_GT(row.at(how).get<double>(), 0) << row;
      }
    }
    measured += row.at("measured").is_null() ? 0 : 1;
  }
  EXPECT_GT(measured, 20);
  EXPECT_TRUE(has(row_of(run.field("rows"), "scatter-gather", "scaling efficiency").at("note"), "contradicts"));
  EXPECT_EQ(row_of(run.field("rows"), "link classes", "PCIe 3.0 x16").at("document"), (json{12.0, 16.0}));
}

TEST(bench_guide, shows_three_columns_and_what_each_is) {
  const auto run = run_tool({"bench", "guide", "-q", "--simulated-only"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "guide  simulated  measured")) << run.out;
  EXPECT_TRUE(has(run.out, "a model's time, no measurement")) << run.out;
  EXPECT_TRUE(has(run.out, "measured: nothing")) << run.out;
  EXPECT_FALSE(has(run.out, "left out by --simulated-only")) << "said once, and not in every line";
  for (const std::string_view table : tool::guide_table_names()) EXPECT_TRUE(has(run.out, std::string{table})) << table;
}

TEST(bench_guide, a_virtual_clock_measures_nothing) {
  const auto run = run_tool({"bench", "guide", "-q", "--json", "--sim", "one", "--clock", "virtual"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const json& row : run.field("rows")) {
    EXPECT_TRUE(row.at("measured").is_null()) << row;
    EXPECT_TRUE(has(row.at("note"), "a virtual clock measures nothing")) << row;
  }
}

}  // namespace guide_test
}  // namespace weft::test
