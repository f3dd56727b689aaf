// SPDX-License-Identifier: Apache-2.0
#include "trace_picture.hpp"

#include "svg_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace weft::tool {

namespace {

/// Mid-tones: readable on white and on near-black.
struct kind_style {
  std::string_view category;
  std::string_view people;
  std::string_view css;
};
constexpr std::array<kind_style, 7> kinds{{{"kernel", "kernel", "k0"},
                                           {"copy", "copy", "k1"},
                                           {"fill", "fill", "k2"},
                                           {"wait", "wait", "k3"},
                                           {"host_call", "host function", "k4"},
                                           {"span", "launch or stage", "k5"},
                                           {"", "other", "k6"}}};
constexpr std::size_t other_kind = kinds.size() - 1;

constexpr std::string_view trace_style_sheet = R"(<style>
  text { font-family: system-ui, 'DejaVu Sans', sans-serif; fill: #1d2229; }
  .page { fill: #ffffff; } .lane { fill: #eef1f5; } .tick { stroke: #b9c1cc; stroke-width: 1; }
  .small { font-size: 11px; } .label { font-size: 12px; } .strong { font-size: 14px; font-weight: bold; }
  .title { font-size: 18px; font-weight: bold; } .faint { fill: #5c6672; } .mark { fill: #8a8f98; opacity: 0.16; }
  .word { font-size: 10px; fill: #ffffff; pointer-events: none; } .over { font-size: 10px; pointer-events: none; }
  .k0 { fill: #4a8a1f; } .k1 { fill: #2f74b5; } .k2 { fill: #2b8a8a; } .k3 { fill: #b8862f; fill-opacity: 0.4; } .k4 { fill: #8d5bbd; }
  .k5 { fill: #6b7683; } .k6 { fill: #8a8f98; } .bad { stroke: #d9242f; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9ee; } .page { fill: #14181d; } .lane { fill: #1d232b; } .tick { stroke: #46515f; }
    .faint { fill: #a3adb9; } .word { fill: #ffffff; }
  }
</style>
)";

/// At most so many letters, cut between two of them.
std::string fitted(std::string_view text, std::size_t letters) {
  std::size_t seen = 0, end = 0, cut = 0;
  for (; end < text.size(); ++end) {
    if ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) continue;
    if (seen + 2 == letters) cut = end;
    if (seen++ == letters) return std::string{text.substr(0, cut)} + "..";
  }
  return std::string{text};
}

std::size_t letters_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::size_t kind_of(const traced_event& event) {
  for (std::size_t k = 0; k < other_kind; ++k) {
    if (event.category == kinds[k].category) return k;
  }
  return other_kind;
}

struct unit_of_time {
  std::string_view name;
  double microseconds = 1;
};

unit_of_time unit_for(double microseconds) {
  if (microseconds < 1) return {"ns", 1e-3};
  if (microseconds < 1e3) return {"us", 1};
  if (microseconds < 1e6) return {"ms", 1e3};
  return {"s", 1e6};
}

std::string time_words(double microseconds) {
  const unit_of_time unit = unit_for(microseconds);
  return fmt::format("{:.4g} {}", microseconds / unit.microseconds, unit.name);
}

/// 1, 2 or 5 of a power of ten, so that there are about eight.
double step_for(double range) {
  const double rough = range / 8;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double times = rough / power;
  return power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

/// What is drawn as one: an event, or neighbours that are too narrow to be told apart.
struct drawn_run {
  double left = 0;  // pixels
  double right = 0;
  std::array<double, kinds.size()> time{};
  std::array<std::size_t, kinds.size()> count{};
  const traced_event* only = nullptr;  // null: several
  bool failed = false;

  [[nodiscard]] std::size_t events() const {
    std::size_t sum = 0;
    for (const std::size_t c : count) sum += c;
    return sum;
  }
  /// That which took the most time.
  [[nodiscard]] std::size_t kind() const {
    std::size_t best = 0;
    for (std::size_t k = 1; k < kinds.size(); ++k) {
      if (count[k] > 0 && (count[best] == 0 || time[k] > time[best])) best = k;
    }
    return best;
  }
};

/// Pixels of a row, for the whole range of time.
constexpr double plot_width = 1100, left_edge = 190, margin = 24, row_height = 18, row_gap = 4;
constexpr std::size_t most_runs = 40'000;    // of a picture: about 6 MB
constexpr std::size_t most_row_runs = 4000;  // nobody tells more apart

class scale {
 public:
  explicit scale(const trace_file& trace)
      : start_(trace.start), range_(trace.end > trace.start ? trace.end - trace.start : 1) {}
  [[nodiscard]] double x(double time) const {
    return left_edge + std::clamp((time - start_) / range_, 0.0, 1.0) * plot_width;
  }
  [[nodiscard]] double range() const { return range_; }

 private:
  double start_, range_;
};

std::vector<drawn_run> runs_of(const std::vector<traced_event>& events, const scale& to, double narrow) {
  std::vector<drawn_run> runs;
  bool open = false;  // the last run takes in more
  for (const traced_event& event : events) {
    const double left = to.x(event.start);
    const double right = to.x(event.start + event.duration);
    const bool small = right - left < narrow;
    if (!small || !open || left - runs.back().right >= narrow) {
      runs.push_back({left, right, {}, {}, &event, false});
    } else {
      runs.back().only = nullptr;
    }
    open = small;
    drawn_run& run = runs.back();
    run.right = std::max(run.right, right);
    run.time[kind_of(event)] += event.duration;
    ++run.count[kind_of(event)];
    run.failed |= event.failed;
  }
  return runs;
}

/// Half a pixel, or more where there are too many: very many tracks, or events that lie upon each other.
std::vector<drawn_run> few_runs_of(const std::vector<traced_event>& events, const scale& to, std::size_t most) {
  for (double narrow = 0.5;; narrow *= 2) {
    auto runs = runs_of(events, to, narrow);
    if (runs.size() <= most || narrow > 2 * plot_width) return runs;
  }
}

std::string tip_of(const drawn_run& run, double origin) {
  if (run.only != nullptr) {
    const traced_event& event = *run.only;
    const std::string_view kind = event.category.empty() ? std::string_view{"event"} : event.category;
    return fmt::format("{}: {}, {} from {}{}", fitted(event.name, 120), fitted(kind, 40), time_words(event.duration),
                       time_words(event.start - origin), event.failed ? ", failed" : "");
  }
  std::string text = fmt::format("{} events:", run.events());
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    if (run.count[k] == 0) continue;
    text += fmt::format(" {} {} in {};", run.count[k], kinds[k].people, time_words(run.time[k]));
  }
  text.pop_back();
  return text + (run.failed ? ", failures among them" : "");
}

class picture {
 public:
  void lane(double y) {
    body_ += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" class=\"lane\"/>\n", left_edge, y,
                         plot_width, row_height);
  }
  void run(const drawn_run& what, double y, double origin) {
    // what is there is seen, however short
    const double width = std::max(what.right - what.left, 0.5);
    body_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" class=\"{}{}\"><title>{}</title></rect>\n",
        std::min(what.left, left_edge + plot_width - width), y, width, row_height, kinds[what.kind()].css,
        what.failed ? " bad" : "", svg_words(tip_of(what, origin)));
    const auto room = static_cast<std::size_t>(std::max(0.0, (width - 6) / 6.6));
    if (what.only == nullptr || room < 4) return;
    body_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", what.left + 3, y + 12.5,
                    kinds[what.kind()].category == "wait" ? "over" : "word", svg_words(fitted(what.only->name, room)));
  }
  void text(double x, double y, std::string_view css, std::string_view anchor, std::string_view content) {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, css,
                         anchor, svg_words(content));
  }
  void tick(double x, double top, double bottom) {
    body_ += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" class=\"tick\"/>\n", x, top, bottom);
  }
  void box(double x, double y, std::string_view css) {
    body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" class=\"{}\"/>\n", x, y, css);
  }

  [[nodiscard]] std::string finish(double height, std::string_view title, bool simulated) const {
    constexpr double width = left_edge + plot_width + margin + 20;
    std::string page = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<title>{2}</title>\n{3}"
        "<rect x=\"0\" y=\"0\" width=\"{0:.0f}\" height=\"{1:.0f}\" class=\"page\"/>\n",
        width, height, svg_words(title), trace_style_sheet);
    page += body_;
    if (simulated) {
      const double size = std::min(width / 6.0, height / 2.5);
      page += fmt::format(
          "<text x=\"{0:.1f}\" y=\"{1:.1f}\" class=\"mark\" text-anchor=\"middle\" font-size=\"{2:.0f}\" "
          "font-weight=\"bold\" transform=\"rotate(-12 {0:.1f} {1:.1f})\" pointer-events=\"none\">SIMULATED</text>\n",
          width / 2, height / 2 + size / 3, size);
    }
    return page + "</svg>\n";
  }

 private:
  std::string body_;
};

void draw_axis(picture& page, const scale& to, double origin, double top, double bottom, bool simulated) {
  const unit_of_time unit = unit_for(to.range());
  const double step = step_for(to.range());
  // counted, not summed: a step that is lost in a large sum must not go on for ever
  for (int i = 0; i <= 20 && i * step <= to.range() * (1 + 1e-9); ++i) {
    const double x = to.x(origin + i * step);
    page.tick(x, top, bottom + 5);
    page.text(x, bottom + 18, "small", "middle", fmt::format("{:.4g}", i * step / unit.microseconds));
  }
  page.text(
      left_edge + plot_width / 2, bottom + 36, "label", "middle",
      fmt::format("time, {}{}", unit.name, simulated ? " of a virtual clock (simulated: not a measurement)" : ""));
}

}  // namespace

std::string trace_svg(const trace_file& trace, std::string_view title) {
  const scale to{trace};
  picture page;
  const std::string words = fmt::format("{}{}", title, trace.simulated ? " (simulated)" : "");
  page.text(margin, 34, "title", "start", fitted(words, 100));
  std::string summary =
      fmt::format("{} event{} on {} track{}, {}", trace.events, trace.events == 1 ? "" : "s", trace.tracks.size(),
                  trace.tracks.size() == 1 ? "" : "s", time_words(trace.end - trace.start));
  if (trace.dropped > 0) summary += fmt::format("; {} records were lost before it was written", trace.dropped);
  if (trace.not_drawn > 0) summary += fmt::format("; {} of other kinds are not drawn", trace.not_drawn);
  page.text(margin, 54, "label faint", "start", summary);

  // where each row goes is known before anything is drawn: ticks go under the events
  constexpr double top = 78, head = 24;
  std::vector<double> rows;
  double y = top;
  const std::size_t drawn = std::min(trace.tracks.size(), most_drawn_tracks);
  for (std::size_t t = 0; t < drawn; ++t) {
    if (t == 0 || trace.tracks[t].process != trace.tracks[t - 1].process) y += head;
    rows.push_back(y);
    y += row_height + row_gap;
  }
  for (const double row : rows) page.lane(row);
  if (drawn > 0) draw_axis(page, to, trace.start, top, y, trace.simulated);

  std::set<std::size_t> seen;
  for (std::size_t t = 0; t < drawn; ++t) {
    const trace_track& track = trace.tracks[t];
    if (t == 0 || track.process != trace.tracks[t - 1].process) {
      page.text(margin, rows[t] - 7, "strong", "start", fitted(track.process, 60));
    }
    page.text(left_edge - 10, rows[t] + 13, "small", "end", fitted(track.name, 24));
    for (const drawn_run& run : few_runs_of(track.events, to, std::min(most_row_runs, most_runs / drawn))) {
      page.run(run, rows[t], trace.start);
      for (std::size_t k = 0; k < kinds.size(); ++k) {
        if (run.count[k] > 0) seen.insert(k);
      }
    }
  }

  y += drawn > 0 ? 62 : 20;
  if (trace.tracks.empty()) page.text(margin, y, "label", "start", "nothing was recorded");
  double x = margin;
  for (const std::size_t k : seen) {
    page.box(x, y - 11, kinds[k].css);
    page.text(x + 20, y, "label", "start", kinds[k].people);
    x += 20 + 7.6 * static_cast<double>(letters_of(kinds[k].people)) + 20;
  }
  if (!seen.empty()) page.text(x, y, "label faint", "start", "red edge: failed");
  if (drawn < trace.tracks.size()) {
    y += 20;
    page.text(margin, y, "label", "start", fmt::format("and {} more tracks", trace.tracks.size() - drawn));
  }
  return page.finish(y + 24, words, trace.simulated);
}

}  // namespace weft::tool
