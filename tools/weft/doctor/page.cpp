// SPDX-License-Identifier: Apache-2.0
#include "doctor/report.hpp"
#include "pictures/html_page.hpp"
#include "pictures/svg_words.hpp"
#include "pictures/topo_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace weft::tool {

namespace {

std::string_view colour_of(verdict found) {
  switch (found) {
    case verdict::failed:
      return "#f4c7c3";
    case verdict::warning:
      return "#fce8b2";
    default:
      return "#cfe8d0";
  }
}

/// The worst that was found about one GPU.
verdict worst_of(const diagnosis& found, const std::string& address) {
  verdict worst = verdict::ok;
  for (const finding& one : found.findings) {
    if (std::ranges::find(one.about, address) == one.about.end()) continue;
    if (one.found == verdict::failed || (one.found == verdict::warning && worst == verdict::ok)) worst = one.found;
  }
  return worst;
}

/// GPUs in the boxes of their NUMA nodes, coloured by what was found about them.
std::string gpus_picture(const machine_facts& machine, const diagnosis& found) {
  constexpr int width = 190, height = 74, gap = 12, each_row = 4;
  std::map<int, std::vector<const gpu_facts*>> nodes;
  for (const gpu_facts& gpu : machine.gpus()) nodes[gpu.numa_node.value_or(-1)].push_back(&gpu);
  int y = gap;
  std::string inside;
  for (const auto& [node, gpus] : nodes) {
    const int rows = (static_cast<int>(gpus.size()) + each_row - 1) / each_row;
    const int tall = 26 + rows * (height + gap);
    inside +=
        fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#f5f5f5\" stroke=\"#999\"/>",
                    gap, y, each_row * (width + gap) + gap, tall);
    inside += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", 2 * gap, y + 18,
                          node < 0 ? std::string{"NUMA node not known"} : fmt::format("NUMA node {}", node));
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      const gpu_facts& gpu = *gpus[i];
      const int left = 2 * gap + static_cast<int>(i % each_row) * (width + gap);
      const int top = y + 26 + static_cast<int>(i / each_row) * (height + gap);
      const std::string lines[] = {gpu.address, fitted_name(gpu.model(), 25),
                                   "bus " + link_text(gpu.link.lanes, gpu.link.rate)};
      inside += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{}\" stroke=\"#555\"/>",
                            left, top, width, height, colour_of(worst_of(found, gpu.address)));
      for (int line = 0; line < 3; ++line)
        inside +=
            fmt::format("<text x=\"{}\" y=\"{}\">{}</text>", left + 8, top + 20 + 20 * line, svg_words(lines[line]));
    }
    y += tall + gap;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"DejaVu Sans, Verdana, "
      "sans-serif\" font-size=\"12\">{}</svg>",
      each_row * (width + gap) + 3 * gap, y, inside);
}

/// Rates of the pairs that work measured, by their ends in order; empty where there are none.
std::string rates_picture(const machine_facts& machine) {
  const json& pairs = machine.record().at("/work/pairs");
  std::vector<std::string> ends;
  if (!pairs.is_array()) return {};
  for (const json& pair : pairs) {
    for (const char* end : {"from", "to"}) {
      const auto label = string_in(pair, end);
      if (label && std::ranges::find(ends, *label) == ends.end()) ends.push_back(*label);
    }
  }
  if (ends.size() < 2 || ends.size() > 64) return {};
  std::ranges::sort(ends, {},
                    [](const std::string& label) { return std::pair{label.size(), label}; });  // gpu10 after gpu9
  heat_map map;
  map.title = "Copies between the GPUs";
  const bool is_played = string_in(machine.record().at("/work"), "measured_on") == "host_memory";
  map.subtitle = fmt::format("in the order {} to {}; outlined: data did not arrive{}", ends.front(), ends.back(),
                             is_played ? "; CPU memory, not a GPU figure" : "");
  map.simulated = bool_in(machine.record().document(), "simulated").value_or(false);
  map.unit = "GB/s";
  map.devices = ends.size();
  map.values.resize(ends.size() * ends.size());
  map.failed.resize(ends.size() * ends.size());
  for (const json& pair : pairs) {
    const auto from = std::ranges::find(ends, string_in(pair, "from").value_or(""));
    const auto to = std::ranges::find(ends, string_in(pair, "to").value_or(""));
    if (from == ends.end() || to == ends.end()) continue;
    const auto at =
        static_cast<std::size_t>(from - ends.begin()) * ends.size() + static_cast<std::size_t>(to - ends.begin());
    const auto rate = number_in(pair, "bytes_per_second");
    if (rate) map.values[at] = *rate / 1e9;
    map.failed[at] = bool_in(pair, "arrived") == false;
  }
  return heat_map_svg(map);
}

std::string section(const check& asked, const finding& one) {
  std::string text = fmt::format("<section class=\"{}\" id=\"{}\"><b>{}: {}</b><br>{}", to_string(one.found),
                                 asked.name, to_string(one.found), asked.name, svg_words(one.summary));
  if (!one.effect.empty()) text += "<br>effect: " + svg_words(one.effect);
  if (!one.cause.empty()) text += (one.is_guess ? "<br>likely: " : "<br>cause: ") + svg_words(one.cause);
  if (!one.part_of.empty()) text += "<br>part of " + svg_words(one.part_of);
  if (!one.steps.empty()) text += "<p>What to do:</p>";
  for (const std::string& step : one.steps) {
    text += step.starts_with("$ ") || step.starts_with("| ") ? fmt::format("<pre>{}</pre>", svg_words(step.substr(2)))
                                                             : fmt::format("<div>{}</div>", svg_words(step));
  }
  if (!one.facts.empty()) {
    text += "<table><tr><th>seen</th><th>value</th><th>where</th></tr>";
    for (const evidence& fact : one.facts)
      text += fmt::format("<tr><td>{}</td><td>{}</td><td><code>{}</code></td></tr>", svg_words(fact.what),
                          svg_words(fact.value), svg_words(fact.where));
    text += "</table>";
  }
  return text + "</section>\n";
}

}  // namespace

void add_doctor(html_page& page, const machine_facts& machine, const diagnosis& found, std::string_view wanted) {
  page.paragraph(headline(machine, found));
  if (!machine.gpus().empty()) page.picture(gpus_picture(machine, found));
  if (const std::string rates = rates_picture(machine); !rates.empty()) page.picture(rates);
  static constexpr std::pair<verdict, std::string_view> parts[] = {{verdict::failed, "Failures"},
                                                                   {verdict::warning, "Warnings"},
                                                                   {verdict::unknown, "Not known"},
                                                                   {verdict::ok, "Well"},
                                                                   {verdict::not_applicable, "Does not apply"}};
  const auto checks = all_checks();
  for (const auto& [level, heading] : parts) {
    std::string list;
    for (std::size_t i = 0; i < checks.size(); ++i) {
      const bool is_wanted = wanted.empty() ? found.findings[i].part_of.empty() : checks[i].name == wanted;
      if (found.findings[i].found == level && is_wanted) list += section(checks[i], found.findings[i]);
    }
    if (list.empty()) continue;
    page.heading(heading);
    page.markup(list);
  }
}

}  // namespace weft::tool
