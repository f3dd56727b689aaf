// SPDX-License-Identifier: Apache-2.0
#include "pictures/topo_picture.hpp"

#include "cli/tool_runner.hpp"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace weft::tool {
namespace topo_picture_test {

struct label {
  double left, top, right, bottom;
  std::string words;
};

/// Where each text is, with letters of DejaVu Sans at most 0.62 (bold: 0.70) of their size wide.
std::vector<label> labels_of(const std::string& svg) {
  std::vector<label> found;
  const std::regex text{
      "<text x=\"([0-9.-]+)\" y=\"([0-9.-]+)\" class=\"([a-z ]+)\" text-anchor=\"([a-z]+)\">([^<]*)</text>"};
  for (auto i = std::sregex_iterator{svg.begin(), svg.end(), text}; i != std::sregex_iterator{}; ++i) {
    const std::string css = (*i)[3];
    const std::string anchor = (*i)[4];
    if (css == "mark") continue;
    const double size = css.starts_with("title")    ? 18
                        : css.starts_with("strong") ? 14
                        : css.starts_with("small")  ? 11
                                                    : 12;
    const double letter = css.starts_with("title") || css.starts_with("strong") ? 0.70 : 0.60;
    const double width = letter * size * static_cast<double>((*i)[5].length());
    const double x = std::stod((*i)[1]);
    const double y = std::stod((*i)[2]);
    const double left = anchor == "middle" ? x - width / 2 : anchor == "end" ? x - width : x;
    found.push_back({left, y - 0.75 * size, left + width, y + 0.2 * size, (*i)[5]});
  }
  return found;
}

void expect_no_overlap(const std::string& name, const std::string& svg) {
  const auto labels = labels_of(svg);
  EXPECT_GE(labels.size(), 3U) << name;
  for (std::size_t a = 0; a < labels.size(); ++a) {
    EXPECT_GE(labels[a].left, 0) << name << ": " << labels[a].words;
    for (std::size_t b = a + 1; b < labels.size(); ++b) {
      const bool apart = labels[a].right <= labels[b].left || labels[b].right <= labels[a].left ||
                         labels[a].bottom <= labels[b].top || labels[b].bottom <= labels[a].top;
      EXPECT_TRUE(apart) << name << ": '" << labels[a].words << "' and '" << labels[b].words << "'";
    }
  }
}

TEST(topology_picture, labels_do_not_overlap_on_any_shipped_machine) {
  for (const std::string_view name : shipped_topologies()) {
    const auto machine = load_topology(name);
    ASSERT_TRUE(machine) << name;
    expect_no_overlap(std::string{name}, topology_svg(*machine));
  }
  expect_no_overlap("host", topology_svg(host_topology(4, bytes{std::uint64_t{4} << 30})));
}

TEST(topology_picture, shows_every_device_and_says_simulated) {
  const auto machine = load_topology("dgx_h100");
  ASSERT_TRUE(machine);
  const std::string svg = topology_svg(*machine);
  for (int i = 0; i < 8; ++i) EXPECT_NE(svg.find(">gpu" + std::to_string(i) + "<"), std::string::npos);
  EXPECT_NE(svg.find(">simulated</text>"), std::string::npos);
  EXPECT_NE(svg.find("450 GB/s per direction"), std::string::npos);
  EXPECT_EQ(topology_svg(host_topology(2, bytes{1 << 20})).find(">simulated</text>"), std::string::npos);
}

TEST(topology_picture, shows_how_the_names_of_unlike_devices_differ) {
  const std::string picture = topology_svg(*load_topology("mixed_3"));
  for (const char* name : {"GeForce RTX 3090", "GeForce RTX 3080", "GeForce RTX 3070"})
    EXPECT_NE(picture.find('>' + std::string{name} + '<'), std::string::npos) << name;
}

TEST(topology_picture, is_the_same_for_the_same_machine) {
  const auto machine = load_topology("mi300x_8");
  ASSERT_TRUE(machine);
  EXPECT_EQ(topology_svg(*machine), topology_svg(*machine));
}

TEST(topology_picture, escapes_what_a_file_says) {
  topology machine = host_topology(1, bytes{1 << 20});
  machine.name = "<script>&\"";
  machine.devices[0].name = "a<b>&c";
  const std::string svg = topology_svg(machine);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;c"), std::string::npos);
  const std::string dot = topology_dot(machine);
  EXPECT_NE(dot.find("graph \"<script>&\\\"\""), std::string::npos) << dot;
}

TEST(topology_picture, an_empty_machine_has_a_picture_too) {
  topology nothing;
  nothing.name = "empty";
  EXPECT_NE(topology_svg(nothing).find("empty"), std::string::npos);
  EXPECT_NE(topology_dot(nothing).find("graph"), std::string::npos);
}

TEST(topology_picture, is_well_formed) {
  if (test::run_program({"xmllint", "--version"}).exit_code != 0) GTEST_SKIP() << "xmllint (libxml2-utils) is not here";
  const test::scratch_folder folder;
  std::vector<std::string> command{"xmllint", "--noout"};
  for (const std::string_view name : shipped_topologies()) {
    const auto machine = load_topology(name);
    ASSERT_TRUE(machine);
    command.push_back((folder / (std::string{name} + ".svg")).string());
    test::write_text(command.back(), topology_svg(*machine));
  }
  const auto checked = test::run_program(command);
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

TEST(heat_map, writes_each_value_and_marks_what_failed) {
  heat_map map;
  map.title = "Copy rates (simulated)";
  map.subtitle = "4MiB";
  map.unit = "GB/s";
  map.devices = 2;
  map.values = {10.25, 5.5, std::nullopt, 12.0};
  map.failed = {false, true, false, false};
  map.simulated = true;
  const std::string svg = heat_map_svg(map);
  EXPECT_NE(svg.find(">10<title>"), std::string::npos) << svg;
  EXPECT_NE(svg.find(">bad<title>"), std::string::npos);
  EXPECT_NE(svg.find(">-<title>"), std::string::npos);
  EXPECT_NE(svg.find(">simulated</text>"), std::string::npos);
  expect_no_overlap("heat map", svg);
}

TEST(topology_picture, shows_below_what_verification_and_measurement_found) {
  const test::scratch_folder folder;
  const auto plain = test::run_tool({"topo", "--sim", "faulty_4", "-o", folder / "plain.svg"});
  const auto verified = test::run_tool({"topo", "--verify", "--sim", "faulty_4", "-o", folder / "verified.svg"});
  EXPECT_EQ(verified.exit_code, 1) << verified.err;
  const std::string before = test::read_text(folder / "plain.svg");
  const std::string after = test::read_text(folder / "verified.svg");
  EXPECT_EQ(before.find(">bad<"), std::string::npos);
  EXPECT_NE(after.find(">bad<"), std::string::npos);
  EXPECT_NE(after.find(before.substr(0, before.size() - 7)), std::string::npos) << "the machine stays above";
  const auto measured =
      test::run_tool({"topo", "--measure", "--sim", "pcie_4", "--clock", "virtual", "-o", folder / "measured.svg"});
  EXPECT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_NE(test::read_text(folder / "measured.svg").find("Rates between devices"), std::string::npos);
}

}  // namespace topo_picture_test
}  // namespace weft::tool
