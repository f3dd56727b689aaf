// SPDX-License-Identifier: Apache-2.0
#include "doctor/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace weft::tool {

namespace {

/// Words in lines of `columns`, the second and later ones indented. A word that is longer than a line stays whole: it
/// is a path or a command that somebody copies.
std::string wrapped(std::string_view first, std::string_view text, std::size_t indent, std::size_t columns) {
  std::string lines{first};
  std::size_t width = first.size();
  bool is_start = true;
  for (const std::string_view word : split(text, ' ')) {
    if (!is_start && width + 1 + word.size() > columns) {
      lines += "\n" + std::string(indent, ' ');
      width = indent;
      is_start = true;
    }
    lines += (is_start ? "" : " ") + std::string{word};
    width += word.size() + (is_start ? 0 : 1);
    is_start = false;
  }
  return lines + "\n";
}

constexpr std::size_t name_column = 9, text_column = 26, most_shown = 4;

style style_of(verdict found) {
  switch (found) {
    case verdict::failed:
      return style::bad;
    case verdict::warning:
      return style::caution;
    case verdict::ok:
      return style::good;
    default:
      return style::faint;
  }
}

std::string_view word_of(verdict found) {
  switch (found) {
    case verdict::failed:
      return "FAILED";
    case verdict::not_applicable:
      return "n/a";
    default:
      return to_string(found);
  }
}

std::string whole(const session& run, const check& asked, const finding& one, std::size_t columns, std::size_t most) {
  const std::string verdict_word = fmt::format("{:<{}}", word_of(one.found), name_column);
  const std::string head = fmt::format("{:<{}}", asked.name, text_column - name_column);
  // colour has no width
  std::string text = wrapped(verdict_word + head, one.summary, text_column, columns);
  text.replace(0, verdict_word.size(), run.paint(style_of(one.found), verdict_word));
  const auto line = [&](std::string_view what, std::string_view words) {
    if (!words.empty()) text += wrapped(fmt::format("{:>{}}  ", what, text_column - 2), words, text_column, columns);
  };
  line("likely", one.cause);
  line("do", one.advice);
  for (std::size_t i = 0; i < std::min(most, one.facts.size()); ++i)
    line(i == 0 ? "seen" : "", fmt::format("{}: {} [{}]", one.facts[i].what, one.facts[i].value, one.facts[i].where));
  if (one.facts.size() > most)
    line("", fmt::format("and {} more: weft doctor --check {}", one.facts.size() - most, asked.name));
  if (!one.part_of.empty()) line("", "belongs to " + one.part_of);
  if (one.found == verdict::failed || one.found == verdict::warning) line("docs", docs_of(asked));
  return text;
}

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// What could not be looked at, each reason once.
std::string unknown_text(const session& run, const diagnosis& found, std::size_t columns) {
  const auto checks = all_checks();
  std::string text;
  std::vector<std::string> told;
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const finding& one = found.findings[i];
    if (one.found != verdict::unknown || checks[i].needs_work || std::ranges::find(told, one.summary) != told.end())
      continue;
    told.push_back(one.summary);
    std::vector<std::string_view> alike;
    for (std::size_t other = i; other < checks.size(); ++other) {
      const bool is_alike =
          found.findings[other].found == verdict::unknown && found.findings[other].summary == one.summary;
      if (is_alike && !checks[other].needs_work) alike.push_back(checks[other].name);
    }
    if (alike.size() == 1) {
      text += whole(run, checks[i], one, columns, 0);
      continue;
    }
    const std::string first = fmt::format("{:<{}}", word_of(verdict::unknown), name_column);
    std::string lines =
        wrapped(first, fmt::format("{}: {}", fmt::join(alike, ", "), one.summary), name_column, columns);
    text += lines.replace(0, first.size(), run.paint(style_of(verdict::unknown), first));
  }
  return text;
}

}  // namespace

std::string docs_of(const check& one) { return fmt::format("docs/how-to/troubleshooting.md#{}", one.name); }

std::string headline(const machine_facts& machine, const diagnosis& found) {
  const json& record = machine.record().document();
  const json& kernels = machine.record().at("/work/kernels");
  std::string text = bool_in(record, "simulated").value_or(false) ? plural(kernels.size(), "simulated device")
                     : machine.gpus().empty()                     ? "no GPU"
                                                                  : plural(machine.gpus().size(), "GPU");
  if (!machine.gpus().empty() &&
      std::ranges::all_of(machine.gpus(), [](const gpu_facts& gpu) { return gpu.name.starts_with("Virtual "); }))
    text += " of the virtual driver";
  const std::size_t failures = found.count(verdict::failed);
  const std::size_t warnings = found.count(verdict::warning);
  if (failures > 0) text += ", " + plural(failures, "failure");
  if (warnings > 0) text += ", " + plural(warnings, "warning");
  if (failures + warnings == 0 && (!machine.gpus().empty() || !kernels.empty())) text += ", nothing wrong was found";
  return text;
}

std::string doctor_text(const session& run, const machine_facts& machine, const diagnosis& found,
                        std::string_view wanted, std::size_t columns) {
  const auto checks = all_checks();
  std::string text;
  if (!wanted.empty()) {
    for (std::size_t i = 0; i < checks.size(); ++i) {
      if (checks[i].name != wanted) continue;
      text += fmt::format("{}: {}\n\n", checks[i].name, checks[i].title);
      text += whole(run, checks[i], found.findings[i], columns, found.findings[i].facts.size());
    }
    return text;
  }
  for (const verdict level : {verdict::failed, verdict::warning}) {
    for (std::size_t i = 0; i < checks.size(); ++i) {
      const finding& one = found.findings[i];
      if (one.found == level && one.part_of.empty()) text += whole(run, checks[i], one, columns, most_shown) + "\n";
    }
  }
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const finding& one = found.findings[i];
    if (one.found == verdict::not_applicable && !one.advice.empty())
      text += whole(run, checks[i], one, columns, most_shown) + "\n";
  }
  text += unknown_text(run, found, columns);
  const auto names = [&](verdict level, bool of_work) {
    std::vector<std::string_view> list;
    for (std::size_t i = 0; i < checks.size(); ++i) {
      const bool is_listed = level == verdict::unknown          ? checks[i].needs_work == of_work
                             : level == verdict::not_applicable ? found.findings[i].advice.empty()
                                                                : true;
      if (found.findings[i].found == level && is_listed) list.push_back(checks[i].name);
    }
    return list;
  };
  const auto summary = [&](verdict level, const std::vector<std::string_view>& list, std::string_view more) {
    if (list.empty()) return;
    const std::string first = fmt::format("{:<{}}", word_of(level), name_column);
    std::string lines = wrapped(first + plural(list.size(), "check") + ": ",
                                fmt::format("{}{}", fmt::join(list, ", "), more), name_column, columns);
    text += lines.replace(0, first.size(), run.paint(style_of(level), first));
  };
  summary(verdict::ok, names(verdict::ok, false), "");
  summary(verdict::not_applicable, names(verdict::not_applicable, false), "");
  if (!machine.gpus().empty())
    summary(verdict::unknown, names(verdict::unknown, true), " need work on the GPUs: weft doctor --run");
  return text;
}

void add_diagnosis(json& document, const machine_facts& machine, const diagnosis& found, std::string_view wanted) {
  json gpus = json::array();
  for (const gpu_facts& gpu : machine.gpus()) {
    gpus.push_back({{"address", gpu.address},
                    {"vendor", to_string(gpu.vendor)},
                    {"name", gpu.name.empty() ? json(nullptr) : json(gpu.name)},
                    {"driver", gpu.driver.empty() ? json(nullptr) : json(gpu.driver)},
                    {"numa_node", or_null(gpu.numa_node)}});
  }
  document["gpus"] = std::move(gpus);
  json counts;
  for (const verdict level :
       {verdict::ok, verdict::warning, verdict::failed, verdict::unknown, verdict::not_applicable})
    counts[std::string{to_string(level)}] = found.count(level);
  document["counts"] = std::move(counts);
  json list = json::array();
  const auto checks = all_checks();
  const auto or_nothing = [](const std::string& text) { return text.empty() ? json(nullptr) : json(text); };
  for (std::size_t i = 0; i < checks.size(); ++i) {
    if (!wanted.empty() && checks[i].name != wanted) continue;
    const finding& one = found.findings[i];
    json facts = json::array();
    for (const evidence& fact : one.facts)
      facts.push_back({{"what", fact.what}, {"value", fact.value}, {"where", fact.where}});
    list.push_back({{"name", checks[i].name},
                    {"question", checks[i].title},
                    {"verdict", to_string(one.found)},
                    {"summary", one.summary},
                    {"cause", or_nothing(one.cause)},
                    {"advice", or_nothing(one.advice)},
                    {"evidence", std::move(facts)},
                    {"about", one.about},
                    {"part_of", or_nothing(one.part_of)},
                    {"needs_work", checks[i].needs_work},
                    {"docs", docs_of(checks[i])}});
  }
  document["checks"] = std::move(list);
}

}  // namespace weft::tool
