// SPDX-License-Identifier: Apache-2.0
#include "topo_picture.hpp"

#include "svg_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

namespace weft::tool {

namespace {

// Mid-tones: readable on white and on near-black.
std::string_view colour_of(link_kind kind) {
  switch (kind) {
    case link_kind::pcie:
      return "#3b82c4";
    case link_kind::nvlink:
      return "#5fa02c";
    case link_kind::infinity_fabric:
      return "#d9544f";
    case link_kind::xe_link:
      return "#9b6bc9";
    case link_kind::socket:
      return "#b8862f";
    case link_kind::network:
      return "#2fa79b";
    case link_kind::host_memory:
      return "#6f8f8f";
    case link_kind::device_memory:
      return "#c2649b";
    case link_kind::unknown:
      break;
  }
  return "#8a8f98";
}

std::string_view people_name(link_kind kind) {
  switch (kind) {
    case link_kind::pcie:
      return "PCIe";
    case link_kind::nvlink:
      return "NVLink";
    case link_kind::infinity_fabric:
      return "Infinity Fabric";
    case link_kind::xe_link:
      return "Xe Link";
    case link_kind::socket:
      return "between sockets";
    case link_kind::network:
      return "network";
    case link_kind::host_memory:
      return "host memory";
    case link_kind::device_memory:
      return "within one GPU";
    case link_kind::unknown:
      break;
  }
  return "unknown link";
}

std::string rate_of(double bytes_per_second) {
  return bytes_per_second > 0 ? fmt::format("{:.4g} GB/s", bytes_per_second / 1e9) : std::string{"rate unknown"};
}

/// Three pixels at 32 GB/s, and a pixel more for each doubling: a hundredfold range stays visible.
double width_of(double bytes_per_second) {
  if (bytes_per_second <= 0) return 1.5;
  return std::clamp(3.0 + std::log2(bytes_per_second / 32e9), 1.5, 8.0);
}

constexpr std::string_view style_sheet = R"(<style>
  text { font-family: system-ui, 'DejaVu Sans', sans-serif; fill: #1d2229; }
  .page { fill: #ffffff; } .socket { fill: #eef1f5; stroke: #b9c1cc; } .switch { fill: #e0e6ee; stroke: #9aa5b4; }
  .device { fill: #ffffff; stroke: #4a5563; } .fabric { fill: #e6efdd; stroke: #7f9c63; }
  .bus { fill: #7b8694; }
  .small { font-size: 11px; } .label { font-size: 12px; } .strong { font-size: 14px; font-weight: bold; }
  .title { font-size: 18px; font-weight: bold; } .faint { fill: #5c6672; } .mark { fill: #8a8f98; opacity: 0.16; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9ee; } .page { fill: #14181d; } .socket { fill: #1d232b; stroke: #46515f; }
    .switch { fill: #28303a; stroke: #5a6675; } .device { fill: #14181d; stroke: #97a3b3; }
    .fabric { fill: #24301b; stroke: #7f9c63; } .faint { fill: #a3adb9; }
  }
</style>
)";

class svg_page {
 public:
  void rectangle(double x, double y, double width, double height, double corner, std::string_view css) {
    body_ +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{:.1f}\" class=\"{}\"/>\n",
                    x, y, width, height, corner, css);
  }
  void text(double x, double y, std::string_view css, std::string_view anchor, std::string_view content) {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, css,
                         anchor, svg_words(content));
  }
  void curve(const std::string& path, link_kind kind, double bytes_per_second, std::string_view tip) {
    body_ += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:.1f}\" stroke-linecap=\"round\"{}>"
        "<title>{}</title></path>\n",
        path, colour_of(kind), width_of(bytes_per_second), bytes_per_second > 0 ? "" : " stroke-dasharray=\"4 4\"",
        svg_words(tip));
  }
  void raw(std::string_view part) { body_ += part; }

  [[nodiscard]] std::string finish(double width, double height, std::string_view title, bool simulated) const {
    std::string page = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "role=\"img\" aria-label=\"{2}\">\n<title>{2}</title>\n{3}",
        width, height, svg_words(title), style_sheet);
    page += fmt::format("<rect x=\"0\" y=\"0\" width=\"{:.0f}\" height=\"{:.0f}\" class=\"page\"/>\n", width, height);
    page += body_;
    if (simulated) {
      const double size = std::min(width / 6.0, height / 2.5);
      page += fmt::format(
          "<text x=\"{0:.1f}\" y=\"{1:.1f}\" class=\"mark\" text-anchor=\"middle\" font-size=\"{2:.0f}\" "
          "font-weight=\"bold\" transform=\"rotate(-18 {0:.1f} {1:.1f})\" pointer-events=\"none\">simulated</text>\n",
          width / 2, height / 2 + size / 3, size);
    }
    return page + "</svg>\n";
  }

 private:
  std::string body_;
};

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Two directions as one line: the faster one is drawn.
struct drawn_link {
  int a = 0;
  int b = 0;
  const topology_link* link = nullptr;
};

std::vector<drawn_link> drawn_links(const topology& machine) {
  std::map<std::tuple<int, int, link_kind>, const topology_link*> best;
  for (const topology_link& link : machine.links) {
    auto& slot = best[{std::min(link.from, link.to), std::max(link.from, link.to), link.kind}];
    if (slot == nullptr || slot->bytes_per_second < link.bytes_per_second) slot = &link;
  }
  std::vector<drawn_link> list;
  list.reserve(best.size());
  for (const auto& [key, link] : best) list.push_back({std::get<0>(key), std::get<1>(key), link});
  return list;
}

std::string generation_text(const topology_link& link) {
  std::string text{people_name(link.kind)};
  if (link.generation > 0) text += fmt::format(" {}", link.generation);
  if (link.lanes > 0) text += fmt::format(" x{}", link.lanes);
  return text;
}

std::string tip_of(const topology& machine, const topology_link& link) {
  return fmt::format("{} - {}: {}, {} per direction", machine.nodes[at(link.from)].name,
                     machine.nodes[at(link.to)].name, generation_text(link), rate_of(link.bytes_per_second));
}

std::string node_caption(const topology_node& node) {
  return node.numa_node ? fmt::format("{} (NUMA {})", node.name, *node.numa_node) : node.name;
}

/// Where everything of one machine is. Columns are devices, ordered by socket and then switch.
class layout_of_topology {
 public:
  static constexpr double box_width = 136, box_height = 62, gap = 16, margin = 24, pad = 14, top = 92;

  explicit layout_of_topology(const topology& machine) : machine_(machine), centre_(machine.nodes.size(), 0.0) {
    const int count = machine.device_count();
    for (int i = 0; i < count; ++i) order_.push_back(i);
    std::ranges::sort(order_, {}, [&](int device) { return std::pair{chain(device), device}; });
    for (int i = 0; i < count; ++i) depth_ = std::max(depth_, chain(i).size());
    double x = margin + pad * static_cast<double>(std::max<std::size_t>(depth_, 1));
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (i > 0) {
        // A gap for every frame that ends and begins between two neighbours.
        const auto before = chain(order_[i - 1]);
        const auto here = chain(order_[i]);
        std::size_t shared = 0;
        while (shared < std::min(before.size(), here.size()) && before[shared] == here[shared]) ++shared;
        x += gap + 2 * pad * static_cast<double>(std::max(before.size(), here.size()) - shared) +
             (shared == 0 ? gap : 0.0);
      }
      centre_[at(order_[i])] = x + box_width / 2;
      x += box_width;
    }
    width_ = x + pad * static_cast<double>(std::max<std::size_t>(depth_, 1)) + margin;
  }

  /// The places above a device, from the outermost to the innermost.
  [[nodiscard]] std::vector<int> chain(int device) const {
    std::vector<int> places;
    for (auto node = machine_.nodes[at(device)].parent; node && places.size() < machine_.nodes.size();
         node = machine_.nodes[at(*node)].parent) {
      places.insert(places.begin(), *node);
    }
    return places;
  }
  [[nodiscard]] const std::vector<int>& order() const { return order_; }
  [[nodiscard]] std::size_t depth() const { return depth_; }
  [[nodiscard]] double width() const { return width_; }
  [[nodiscard]] double centre(int device) const { return centre_[at(device)]; }
  [[nodiscard]] double device_top() const { return top + static_cast<double>(depth_) * 56; }
  [[nodiscard]] double device_bottom() const { return device_top() + box_height; }
  [[nodiscard]] double frame_top(std::size_t level) const { return top + static_cast<double>(level) * 56; }
  [[nodiscard]] double frame_bottom(std::size_t level) const {
    return device_bottom() + pad * static_cast<double>(depth_ - level);
  }

 private:
  const topology& machine_;
  std::vector<double> centre_;
  std::vector<int> order_;
  std::size_t depth_ = 0;
  double width_ = 0;
};

struct frame {
  int node = 0;
  std::size_t level = 0;
  double left = 0, right = 0;
};

std::vector<frame> frames_of(const layout_of_topology& places) {
  std::map<int, frame> frames;
  for (const int device : places.order()) {
    const auto chain = places.chain(device);
    for (std::size_t level = 0; level < chain.size(); ++level) {
      const double inset = layout_of_topology::pad * static_cast<double>(places.depth() - level);
      const double left = places.centre(device) - layout_of_topology::box_width / 2 - inset;
      const double right = places.centre(device) + layout_of_topology::box_width / 2 + inset;
      auto [found, added] = frames.try_emplace(chain[level], frame{chain[level], level, left, right});
      if (!added) {
        found->second.left = std::min(found->second.left, left);
        found->second.right = std::max(found->second.right, right);
      }
    }
  }
  // Outer frames first: inner ones are drawn on them.
  std::vector<frame> list;
  list.reserve(frames.size());
  for (const auto& [node, f] : frames) list.push_back(f);
  std::ranges::sort(list, {}, [](const frame& f) { return std::pair{f.level, f.node}; });
  return list;
}

std::vector<std::string> access_lines(const topology& machine) {
  std::size_t offered = 0;
  const auto count = machine.devices.size();
  for (std::size_t i = 0; i < machine.access.size(); ++i) {
    if (machine.access[i] && count != 0 && i / count != i % count) ++offered;
  }
  std::vector<std::string> lines;
  lines.push_back(fmt::format("Peer access: {} of {} ordered pairs", offered, count * (count == 0 ? 0 : count - 1)));
  if (!machine.faults.empty()) {
    std::string kinds;
    for (const topology_fault& fault : machine.faults) {
      kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", to_string(fault.what));
    }
    lines.push_back("Faults: " + kinds);
  }
  return lines;
}

}  // namespace

std::string topology_svg(const topology& machine) {
  using at_place = layout_of_topology;
  const at_place places{machine};
  svg_page page;
  const std::vector<frame> frames = frames_of(places);
  const std::vector<drawn_link> links = drawn_links(machine);
  const auto is_device = [&](int node) { return node < machine.device_count(); };
  const auto is_fabric = [&](int node) { return machine.nodes[at(node)].kind == node_kind::fabric_switch; };

  std::map<int, frame> frame_of;
  for (const frame& f : frames) {
    frame_of[f.node] = f;
    const double y = places.frame_top(f.level);
    page.rectangle(f.left, y, f.right - f.left, places.frame_bottom(f.level) - y, 10,
                   machine.nodes[at(f.node)].kind == node_kind::socket ? "socket" : "switch");
  }
  const double edge_line = 30;  // in a frame, where the lines from below end, under the caption

  // Links of the PCIe tree, and between sockets along the top.
  int arcs_between_sockets = 0;
  std::map<int, std::vector<double>> ends_in;  // frame → where lines from below end
  for (const drawn_link& l : links) {
    if (is_fabric(l.a) || is_fabric(l.b) || (is_device(l.a) && is_device(l.b))) continue;
    const std::string tip = tip_of(machine, *l.link);
    const int lower = is_device(l.a) ? l.a : l.b;
    const int upper = lower == l.a ? l.b : l.a;
    if (is_device(lower)) {
      if (!frame_of.contains(upper)) continue;
      const double x = places.centre(lower);
      ends_in[upper].push_back(x);
      page.curve(fmt::format("M{:.1f} {:.1f}V{:.1f}", x, places.device_top(),
                             places.frame_top(frame_of[upper].level) + edge_line),
                 l.link->kind, l.link->bytes_per_second, tip);
      continue;
    }
    if (!frame_of.contains(l.a) || !frame_of.contains(l.b)) continue;
    const frame& a = frame_of[l.a];
    const frame& b = frame_of[l.b];
    const double ax = (a.left + a.right) / 2;
    const double bx = (b.left + b.right) / 2;
    if (a.level != b.level) {
      const frame& inner = a.level > b.level ? a : b;
      const frame& outer = a.level > b.level ? b : a;
      ends_in[outer.node].push_back((inner.left + inner.right) / 2);
      page.curve(fmt::format("M{:.1f} {:.1f}V{:.1f}", (inner.left + inner.right) / 2, places.frame_top(inner.level),
                             places.frame_top(outer.level) + edge_line),
                 l.link->kind, l.link->bytes_per_second, tip);
    } else {
      const double y = places.frame_top(a.level);
      const double lift = std::min(34.0, 14.0 + 4.0 * ++arcs_between_sockets);
      page.curve(fmt::format("M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", ax, y, ax, y - lift, bx,
                             y - lift, bx, y),
                 l.link->kind, l.link->bytes_per_second, tip);
    }
  }

  for (const auto& [node, ends] : ends_in) {
    const double y = places.frame_top(frame_of[node].level) + edge_line;
    page.rectangle(std::ranges::min(ends) - 14, y - 2, std::ranges::max(ends) - std::ranges::min(ends) + 28, 4, 2,
                   "bus");
  }

  // A fabric is one bar: which switch of it a link ends in says little, the sum per device says all.
  double bottom = places.frame_bottom(0);
  std::vector<int> fabrics;
  for (int node = machine.device_count(); node < static_cast<int>(machine.nodes.size()); ++node) {
    if (is_fabric(node)) fabrics.push_back(node);
  }
  double deepest_arc = 0;
  for (const drawn_link& l : links) {
    if (!is_device(l.a) || !is_device(l.b)) continue;
    deepest_arc = std::max(deepest_arc, 26 + 0.14 * std::abs(places.centre(l.a) - places.centre(l.b)));
  }
  const double bar_top = bottom + 22 + (deepest_arc > 0 ? deepest_arc : 14);
  if (!fabrics.empty()) {
    std::map<int, std::pair<double, const topology_link*>> to_fabric;
    for (const topology_link& link : machine.links) {
      if (!is_device(link.from) || !is_fabric(link.to)) continue;
      auto& [sum, example] = to_fabric[link.from];
      sum += link.bytes_per_second;
      example = &link;
    }
    for (const auto& [device, sum] : to_fabric) {
      page.curve(fmt::format("M{0:.1f} {1:.1f}V{2:.1f}", places.centre(device), places.device_bottom(), bar_top),
                 sum.second->kind, sum.first,
                 fmt::format("{} - fabric: {}, {} per direction in all", machine.nodes[at(device)].name,
                             people_name(sum.second->kind), rate_of(sum.first)));
    }
    std::string caption = machine.nodes[at(fabrics.front())].name;
    if (fabrics.size() > 1) caption += fmt::format(" .. {}", machine.nodes[at(fabrics.back())].name);
    const double left = at_place::margin;
    page.rectangle(left, bar_top, places.width() - 2 * left, 34, 10, "fabric");
    page.text(places.width() / 2, bar_top + 22, "label", "middle", "fabric: " + caption);
    bottom = bar_top + 34;
  }

  // Links from device to device hang below, the longer the deeper.
  for (const drawn_link& l : links) {
    if (!is_device(l.a) || !is_device(l.b)) continue;
    const double ax = places.centre(l.a);
    const double bx = places.centre(l.b);
    const double y = places.device_bottom();
    const double sag = (26 + 0.14 * std::abs(ax - bx) + places.frame_bottom(0) - y) * 4 / 3;
    page.curve(
        fmt::format("M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", ax, y, ax, y + sag, bx, y + sag, bx, y),
        l.link->kind, l.link->bytes_per_second, tip_of(machine, *l.link));
  }
  if (deepest_arc > 0) bottom = std::max(bottom, places.frame_bottom(0) + deepest_arc + 6);

  // Boxes and words last: lines go under them.
  for (const frame& f : frames) {
    page.text(f.left + 12, places.frame_top(f.level) + 18, "label", "start", node_caption(machine.nodes[at(f.node)]));
  }
  for (const int device : places.order()) {
    const topology_device& d = machine.devices[at(device)];
    const double left = places.centre(device) - at_place::box_width / 2;
    const double y = places.device_top();
    page.rectangle(left, y, at_place::box_width, at_place::box_height, 8, "device");
    page.text(places.centre(device), y + 20, "strong", "middle", machine.nodes[at(device)].name);
    page.text(places.centre(device), y + 37, "small", "middle", fitted_name(d.name, 20));
    page.text(places.centre(device), y + 52, "small faint", "middle",
              fmt::format("{}, {} unit{}", to_string(d.memory), d.compute_units, d.compute_units == 1 ? "" : "s"));
  }

  // The legend: one line per kind and rate.
  std::map<std::tuple<link_kind, int, int, double>, const topology_link*> kinds;
  for (const drawn_link& l : links) {
    kinds[{l.link->kind, l.link->generation, l.link->lanes, l.link->bytes_per_second}] = l.link;
  }
  double y = bottom + 34;
  const double left = at_place::margin;
  double needed = 0;
  const auto legend_line = [&](const std::string& words, double indent) {
    page.text(left + indent, y, "label", "start", words);
    needed = std::max(needed, left + indent + 7.6 * static_cast<double>(words.size()) + at_place::margin);
    y += 20;
  };
  constexpr std::size_t most_lines = 24;
  for (const auto& [key, link] : kinds) {
    if (kinds.size() > most_lines && key > std::next(kinds.begin(), most_lines)->first) break;
    page.curve(fmt::format("M{:.1f} {:.1f}H{:.1f}", left, y - 4, left + 40), link->kind, link->bytes_per_second,
               generation_text(*link));
    legend_line(fmt::format("{}: {}{}", generation_text(*link), rate_of(link->bytes_per_second),
                            link->bytes_per_second > 0 ? " per direction" : " until measured"),
                52);
  }
  if (kinds.size() > most_lines) legend_line(fmt::format("and {} more kinds of links", kinds.size() - most_lines), 52);
  if (kinds.empty()) legend_line("no links are known", 0);
  for (const std::string& words : access_lines(machine)) legend_line(words, 0);
  legend_line("GB/s: 1 GB = 1e9 bytes; lines are as wide as their links are fast", 0);

  const std::string title = machine.name + (machine.simulated ? " (simulated)" : "");
  const double described = std::min(7.6 * static_cast<double>(machine.description.size()) + 2 * left, 1200.0);
  const double width = std::max({places.width(), needed, described, 420.0});
  page.text(left, 34, "title", "start", title);
  page.text(left, 56, "label faint", "start",
            fitted(machine.description, static_cast<std::size_t>((width - 2 * left) / 7.6)));
  return page.finish(width, y + 4, title, machine.simulated);
}

std::string topology_dot(const topology& machine) {
  const auto escaped = [](std::string_view text) {
    std::string safe;
    for (const char c : text) {
      if (c == '"' || c == '\\') safe += '\\';
      safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return safe;
  };
  const auto name_of = [&](int node) { return escaped(machine.nodes[at(node)].name); };
  std::string dot = fmt::format("graph \"{0}\" {{\n  label=\"{0}{1}\";\n  node [shape=box, style=rounded];\n",
                                escaped(machine.name), machine.simulated ? " (simulated)" : "");
  for (int i = 0; i < static_cast<int>(machine.nodes.size()); ++i) {
    std::string label = escaped(node_caption(machine.nodes[at(i)]));
    if (i < machine.device_count()) {
      const topology_device& d = machine.devices[at(i)];
      label += "\\n" + escaped(d.name) + "\\n" + to_string(d.memory);
    }
    dot += fmt::format("  \"{}\" [label=\"{}\"{}];\n", name_of(i), label,
                       i < machine.device_count() ? "" : ", shape=ellipse");
  }
  for (const drawn_link& l : drawn_links(machine)) {
    dot += fmt::format("  \"{}\" -- \"{}\" [label=\"{}, {}\", color=\"{}\", penwidth={:.1f}];\n", name_of(l.a),
                       name_of(l.b), generation_text(*l.link), rate_of(l.link->bytes_per_second),
                       colour_of(l.link->kind), width_of(l.link->bytes_per_second));
  }
  return dot + "}\n";
}

namespace {

struct rgb {
  double r = 0, g = 0, b = 0;
};

/// Dark blue to yellow, even in lightness: order is seen without reading the numbers, and without seeing hues.
rgb ramp(double share) {
  static constexpr std::array<rgb, 6> stops{rgb{45, 38, 92},   rgb{51, 84, 137},  rgb{38, 124, 141},
                                            rgb{45, 162, 124}, rgb{132, 201, 76}, rgb{245, 226, 60}};
  const double place = std::clamp(share, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(place), stops.size() - 2);
  const double f = place - static_cast<double>(below);
  const rgb& a = stops[below];
  const rgb& b = stops[below + 1];
  return {a.r + (b.r - a.r) * f, a.g + (b.g - a.g) * f, a.b + (b.b - a.b) * f};
}

std::string cell_number(double value) {
  return value < 9.95 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

}  // namespace

std::string heat_map_svg(const heat_map& map) {
  constexpr double cell_width = 62, cell_height = 40, left = 84, top = 118;
  svg_page page;
  double low = 0, high = 0;
  bool any = false;
  for (const auto& value : map.values) {
    if (!value) continue;
    low = any ? std::min(low, *value) : *value;
    high = any ? std::max(high, *value) : *value;
    any = true;
  }
  // From zero: a ramp over noise would show differences where there are none.
  if (low < 0.5 * high || low == high)
    low = 0;
  else
    low = 0.5 * high;
  page.text(24, 34, "title", "start", map.title);
  page.text(24, 56, "label faint", "start", map.subtitle);
  const auto n = static_cast<double>(map.devices);
  page.text(left + n * cell_width / 2, top - 28, "label faint", "middle", "to");
  page.text(24, top + n * cell_height / 2 + 4, "label faint", "start", "from");
  for (std::size_t i = 0; i < map.devices; ++i) {
    const auto k = static_cast<double>(i);
    page.text(left + k * cell_width + cell_width / 2, top - 10, "label", "middle", fmt::format("gpu{}", i));
    page.text(left - 8, top + k * cell_height + cell_height / 2 + 4, "label", "end", fmt::format("{}", i));
  }
  for (std::size_t from = 0; from < map.devices; ++from) {
    for (std::size_t to = 0; to < map.devices; ++to) {
      const std::size_t i = from * map.devices + to;
      const double x = left + static_cast<double>(to) * cell_width;
      const double y = top + static_cast<double>(from) * cell_height;
      const bool failed = i < map.failed.size() && map.failed[i];
      const auto value = i < map.values.size() ? map.values[i] : std::nullopt;
      std::string fill = "#8a8f98";
      std::string ink = "#ffffff";
      std::string words = "-";
      if (value) {
        const rgb c = ramp(high > low ? (*value - low) / (high - low) : 1.0);
        fill = fmt::format("#{:02x}{:02x}{:02x}", static_cast<int>(c.r), static_cast<int>(c.g), static_cast<int>(c.b));
        if (0.299 * c.r + 0.587 * c.g + 0.114 * c.b > 140) ink = "#10151b";
        words = cell_number(*value);
      }
      if (failed) words = "bad";
      page.raw(fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"4\" fill=\"{}\"{}/>\n", x + 1.5,
          y + 1.5, cell_width - 3, cell_height - 3, fill, failed ? " stroke=\"#e5484d\" stroke-width=\"3\"" : ""));
      page.raw(
          fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"13\" text-anchor=\"middle\" style=\"fill:{}\"{}>{}"
                      "<title>gpu{} to gpu{}: {}</title></text>\n",
                      x + cell_width / 2, y + cell_height / 2 + 5, ink, from == to ? " font-style=\"italic\"" : "",
                      words, from, to, failed ? "the data did not arrive" : words + " " + map.unit));
    }
  }
  const double below = top + n * cell_height + 30;
  // The ramp itself, as a key.
  constexpr int steps = 40;
  for (int i = 0; i < steps; ++i) {
    const rgb c = ramp(static_cast<double>(i) / (steps - 1));
    page.raw(fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"4.5\" height=\"12\" fill=\"#{:02x}{:02x}{:02x}\"/>\n",
                         left + 4 * i, below, static_cast<int>(c.r), static_cast<int>(c.g), static_cast<int>(c.b)));
  }
  page.text(left - 8, below + 11, "small", "end", any ? cell_number(low) : "-");
  page.text(left + 4 * steps + 8, below + 11, "small", "start",
            fmt::format("{} {}", any ? cell_number(high) : "-", map.unit));
  page.text(24, below + 36, "small faint", "start",
            "italic: within one device; -: no figure; bad: the data did not arrive");
  const double words = std::max(
      {9.4 * static_cast<double>(map.title.size()) + 20, 6.9 * static_cast<double>(map.subtitle.size()), 400.0});
  return page.finish(std::max(left + n * cell_width + 24, words + 48), below + 52, map.title, map.simulated);
}

namespace {

std::pair<double, double> size_of(const std::string& picture) {
  double width = 0;
  double height = 0;
  const auto at = picture.find("viewBox=\"0 0 ");
  if (at != std::string::npos)
    static_cast<void>(std::sscanf(picture.c_str() + at, "viewBox=\"0 0 %lf %lf", &width, &height));
  return {width, height};
}

}  // namespace

std::string stacked_svg(const std::string& above, const std::string& below) {
  const auto [upper_width, upper_height] = size_of(above);
  const auto [lower_width, lower_height] = size_of(below);
  const double width = std::max(upper_width, lower_width);
  const double height = upper_height + lower_height;
  std::string lower = below;
  lower.insert(std::string_view{"<svg"}.size(), fmt::format(" y=\"{:.0f}\"", upper_height));
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\">\n{2}{3}</svg>\n",
      width, height, above, lower);
}

}  // namespace weft::tool
