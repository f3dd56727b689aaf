// SPDX-License-Identifier: Apache-2.0
#include "cli/tool_runner.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::test {
namespace report_test {

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(report, holds_devices_links_findings_copies_and_collectives_in_one_file) {
  const scratch_folder folder;
  const tool_result run =
      run_tool({"report", "--quick", "--sim", "pcie_4", "--clock", "virtual", "-o", folder / "r.html"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("wrote " + (folder / "r.html").string()), std::string::npos) << run.out;
  const std::string page = read_text(folder / "r.html");
  for (const char* heading : {"<h2>Devices</h2>", "<h2>What weft doctor found</h2>", "<h2>Copies of 1MiB</h2>",
                              "<h2>Collectives over all devices</h2>"})
    EXPECT_EQ(times(page, heading), 1U) << heading;
  EXPECT_EQ(times(page, "<svg"), 3U) << "the machine, the doctor's rates, the matrix of copies";
  EXPECT_EQ(times(page, "<svg"), times(page, "</svg>"));
  EXPECT_EQ(times(page, "<table"), times(page, "</table>"));
  EXPECT_NE(page.find("All times are simulated"), std::string::npos);
  EXPECT_NE(page.find("copy/all_to_one/1MiB/gpu3"), std::string::npos);
  EXPECT_NE(page.find("<td>all_gather</td>"), std::string::npos);
  for (const char* reference : {"<script", " src=", " href=", "@import"})
    EXPECT_EQ(times(page, reference), 0U) << reference;
}

TEST(report, ends_with_1_where_a_pair_loses_data) {
  const scratch_folder folder;
  const tool_result run = run_tool({"report", "--quick", "--sim", "faulty_4", "-o", folder / "r.html", "--json"});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(read_text(folder / "r.html").find("WRONG DATA"), std::string::npos);
  const tool_result checked = check_documents({run});
  if (checked.exit_code == no_checker) GTEST_SKIP() << checked.err;
  EXPECT_EQ(checked.exit_code, 0) << checked.out;
}

TEST(report, says_what_was_not_measured_on_the_page_and_in_the_document) {
  const scratch_folder folder;
  const tool_result run =
      run_tool({"report", "--quick", "--sim", "one", "--budget", "0s", "-o", folder / "r.html", "--json"});
  EXPECT_TRUE(has(run.field("warnings").dump(), "rows were not measured")) << run.out;
  EXPECT_TRUE(has(read_text(folder / "r.html"), "copy/same_device/1MiB/gpu0-gpu0: the budget of 0 ns was spent"));
}

TEST(report, finds_out_before_it_measures_that_its_page_has_no_place) {
  const scratch_folder folder;
  const tool_result run =
      run_tool({"report", "--quick", "--sim", "one", "--budget", "0s", "-o", folder / "none/r.html"});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_TRUE(has(run.err, "cannot write " + (folder / "none/r.html").string())) << run.err;
  EXPECT_FALSE(has(run.err, "budget")) << run.err;
}

TEST(report, is_named_as_what_it_is) {
  EXPECT_EQ(run_tool({"report", "-o", "page.pdf"}).exit_code, 2);
  EXPECT_EQ(run_tool({"report", "--quick", "--sim", "one", "-o", "/dev/full"}).exit_code, 4);
}

}  // namespace report_test
}  // namespace weft::test
