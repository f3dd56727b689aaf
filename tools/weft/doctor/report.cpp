// SPDX-License-Identifier: Apache-2.0
#include "doctor/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace weft::tool {

namespace {

/// Words in lines of `columns`, the second and later ones indented. A word that is longer than a line stays whole: it
/// is a path that somebody copies.
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

std::string_view word_of(const finding& one) {
  switch (one.found) {
    case verdict::failed:
      return "FAILED";
    case verdict::ok:
      return one.is_note() ? "note" : "ok";
    case verdict::not_applicable:
      return one.steps.empty() ? "n/a" : "NO GPU";
    default:
      return to_string(one.found);
  }
}

/// A line that begins with a coloured word, wrapped: colour has no width.
std::string marked(const session& run, verdict found, std::string_view word, std::string_view rest,
                   std::string_view text, std::size_t indent, std::size_t columns) {
  const std::string first = fmt::format("{:<{}}", word, name_column);
  std::string lines = wrapped(first + std::string{rest}, text, indent, columns);
  return lines.replace(0, first.size(), run.paint(style_of(found), first));
}

/// Names of checks whose findings this one tells too.
std::vector<std::string_view> told_with(const diagnosis& found, std::string_view name) {
  std::vector<std::string_view> list;
  for (std::size_t i = 0; i < found.findings.size(); ++i) {
    if (found.findings[i].part_of == name) list.push_back(all_checks()[i].name);
  }
  return list;
}

/// What a finding rests on, or all that it has seen.
enum class shown_facts : std::uint8_t { none, decisive, all };

std::string whole(const session& run, const diagnosis& found, std::size_t which, std::size_t columns,
                  shown_facts facts) {
  const check& asked = all_checks()[which];
  const finding& one = found.findings[which];
  std::string text = marked(run, one.found, word_of(one), fmt::format("{:<{}}", asked.name, text_column - name_column),
                            one.summary, text_column, columns);
  const auto line = [&](std::string_view label, std::string_view words) {
    if (!words.empty()) text += wrapped(fmt::format("{:>{}}  ", label, text_column - 2), words, text_column, columns);
  };
  line("effect", one.effect);
  line(one.is_guess ? "likely" : "cause", one.cause);
  bool is_first = true;
  for (const std::string& step : one.steps) {
    const std::string label = fmt::format("{:>{}}  ", is_first ? "do" : "", text_column - 2);
    // what is to be copied stays in one line
    text += step.starts_with("$ ")   ? fmt::format("{}  {}\n", label, step)
            : step.starts_with("| ") ? fmt::format("{}  {}\n", label, step.substr(2))
                                     : wrapped(label, step, text_column, columns);
    is_first = false;
  }
  const std::size_t all = facts == shown_facts::all ? one.facts.size() : one.decisive;
  const std::size_t some = facts == shown_facts::none ? 0 : facts == shown_facts::all ? all : std::min(all, most_shown);
  for (std::size_t i = 0; i < some; ++i)
    line(i == 0 ? "seen" : "", fmt::format("{}: {} [{}]", one.facts[i].what, one.facts[i].value, one.facts[i].where));
  if (some > 0 && some < all) line("", fmt::format("and {} more: weft doctor --check {}", all - some, asked.name));
  if (const auto others = told_with(found, asked.name); !others.empty())
    line("also",
         fmt::format("{}, for the same reason (weft doctor --check {})", fmt::join(others, ", "), others.front()));
  if (!one.part_of.empty()) line("", "part of " + one.part_of);
  if (one.found == verdict::failed || one.found == verdict::warning || one.is_note()) line("docs", docs_of(asked));
  return text;
}

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

bool has_failed(const diagnosis& found, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const auto at = std::ranges::find(all_checks(), name, &check::name) - all_checks().begin();
    if (found.findings[static_cast<std::size_t>(at)].found == verdict::failed) return true;
  }
  return false;
}

/// Whether something must be mended before the driver tells anything.
bool is_silent(const diagnosis& found) {
  return has_failed(found, {"pci-gpus", "container", "device-nodes", "driver-version", "nouveau", "libraries"});
}
/// … or before work on the GPUs could show more.
bool is_closed(const diagnosis& found) {
  return is_silent(found) || has_failed(found, {"fabric", "environment", "gpu-mode", "gpu-memory", "toolkit"});
}

/// A check that needs work, and had none or none that could show anything. A check that tried, but got no answer, has
/// facts: it was run.
bool is_not_run(const diagnosis& found, std::size_t which) {
  if (!all_checks()[which].needs_work) return false;
  const finding& one = found.findings[which];
  return (one.found == verdict::unknown && one.facts.empty()) ||
         (one.found == verdict::not_applicable && is_closed(found));
}

/// What could not be looked at, each reason once.
std::string unknown_text(const session& run, const diagnosis& found, std::size_t columns) {
  const auto checks = all_checks();
  std::string text;
  const bool is_blind = is_silent(found);
  if (is_blind) {  // the reasons would read like more failures
    std::vector<std::string_view> names;
    for (std::size_t i = 0; i < checks.size(); ++i) {
      if (found.findings[i].found == verdict::unknown && !checks[i].needs_work && found.findings[i].steps.empty())
        names.push_back(checks[i].name);
    }
    if (!names.empty()) {
      text += marked(run, verdict::unknown, "unknown", "",
                     fmt::format("{}: cannot be checked until the failure above is mended", fmt::join(names, ", ")),
                     name_column, columns);
    }
  }
  std::vector<std::string> told;
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const finding& one = found.findings[i];
    if (one.found != verdict::unknown || is_not_run(found, i) || std::ranges::find(told, one.summary) != told.end())
      continue;
    if (is_blind && one.steps.empty() && !checks[i].needs_work) continue;  // named above
    told.push_back(one.summary);
    std::vector<std::string_view> alike;
    for (std::size_t other = i; other < checks.size(); ++other) {
      const bool is_alike =
          found.findings[other].found == verdict::unknown && found.findings[other].summary == one.summary;
      if (is_alike && !is_not_run(found, other)) alike.push_back(checks[other].name);
    }
    text += alike.size() == 1
                ? whole(run, found, i, columns, shown_facts::none)
                : marked(run, one.found, "unknown", "", fmt::format("{}: {}", fmt::join(alike, ", "), one.summary),
                         name_column, columns);
  }
  return text;
}

}  // namespace

std::string docs_of(const check& one) { return fmt::format("docs/how-to/troubleshooting.md#{}", one.name); }

std::string headline(const machine_facts& machine, const diagnosis& found) {
  const json& kernels = machine.record().at("/work/kernels");
  const bool is_simulated = bool_in(machine.record().document(), "simulated").value_or(false);
  const bool is_virtual = !machine.gpus().empty() && std::ranges::all_of(machine.gpus(), [](const gpu_facts& gpu) {
    return gpu.name.starts_with("Virtual ");
  });
  std::string text = is_simulated             ? plural(kernels.size(), "simulated device")
                     : machine.gpus().empty() ? "no GPU"
                                              : machine.title() + (is_virtual ? " (the virtual driver: no GPU)" : "");
  if (machine.gpus().empty() && !is_simulated) return text;
  const std::size_t failures = found.count(verdict::failed);
  const std::size_t warnings = found.count(verdict::warning);
  text += ": ";
  if (failures > 0) text += plural(failures, "failure");
  if (warnings > 0) text += (failures > 0 ? ", " : "") + plural(warnings, "warning");
  if (failures + warnings == 0) text += "nothing wrong was found";
  std::size_t not_run = 0, not_finished = 0;
  for (std::size_t i = 0; i < found.findings.size(); ++i) {
    const finding& one = found.findings[i];
    if (!one.part_of.empty()) continue;
    if (is_not_run(found, i)) {
      ++not_run;
    } else if (all_checks()[i].needs_work && one.found == verdict::unknown) {
      ++not_finished;
    }
  }
  if (not_run > 0) text += fmt::format(", {} not run", plural(not_run, "check"));
  if (not_finished > 0) text += fmt::format(", {} not finished", plural(not_finished, "check"));
  return text;
}

std::string doctor_text(const session& run, const machine_facts& machine, const diagnosis& found,
                        std::string_view wanted, std::size_t columns) {
  const auto checks = all_checks();
  std::string text;
  if (!wanted.empty()) {
    for (std::size_t i = 0; i < checks.size(); ++i) {
      if (checks[i].name == wanted)
        text += fmt::format("{}: {}\n\n", checks[i].name, checks[i].title) +
                whole(run, found, i, columns, shown_facts::all);
    }
    return text;
  }
  const auto told = [&](auto&& is_wanted) {
    for (std::size_t i = 0; i < checks.size(); ++i) {
      if (found.findings[i].part_of.empty() && is_wanted(found.findings[i], checks[i]))
        text += whole(run, found, i, columns, shown_facts::decisive) + "\n";
    }
  };
  // wrong data first: everything else costs only time
  told([](const finding& one, const check& asked) { return one.found == verdict::failed && asked.name == "p2p-data"; });
  told([](const finding& one, const check& asked) { return one.found == verdict::failed && asked.name != "p2p-data"; });
  told([](const finding& one, const check&) { return one.found == verdict::warning; });
  told([](const finding& one, const check&) {
    return one.is_note() || (one.found == verdict::not_applicable && !one.steps.empty());
  });
  text += unknown_text(run, found, columns);
  const auto names = [&](auto&& is_wanted) {
    std::vector<std::string_view> list;
    for (std::size_t i = 0; i < checks.size(); ++i) {
      if (found.findings[i].part_of.empty() && is_wanted(found.findings[i], i)) list.push_back(checks[i].name);
    }
    return list;
  };
  const auto summary = [&](verdict level, std::string_view word, const std::vector<std::string_view>& list,
                           std::string_view more) {
    if (!list.empty())
      text += marked(run, level, word, plural(list.size(), "check") + ": ",
                     fmt::format("{}{}", fmt::join(list, ", "), more), name_column, columns);
  };
  summary(verdict::ok, "ok",
          names([](const finding& one, std::size_t) { return one.found == verdict::ok && !one.is_note(); }), "");
  summary(verdict::not_applicable, "n/a", names([&](const finding& one, std::size_t which) {
            return one.found == verdict::not_applicable && one.steps.empty() && !is_not_run(found, which);
          }),
          "");
  const bool can_work = !machine.gpus().empty() && !is_closed(found);
  summary(verdict::unknown, "not run",
          names([&](const finding&, std::size_t which) { return is_not_run(found, which); }),
          can_work ? ". They use the GPUs for about ten seconds, best when nobody else does: weft doctor --run"
          : machine.gpus().empty()           ? ": there is no GPU"
          : found.count(verdict::failed) > 1 ? ": mend the failures above first"
                                             : ": mend the failure above first");
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
                    {"effect", or_nothing(one.effect)},
                    {"cause", or_nothing(one.cause)},
                    {"cause_is_likely", one.is_guess},
                    {"advice", one.steps},
                    {"evidence", std::move(facts)},
                    {"decisive", one.decisive},
                    {"about", one.about},
                    {"part_of", or_nothing(one.part_of)},
                    {"needs_work", checks[i].needs_work},
                    {"docs", docs_of(checks[i])}});
  }
  document["checks"] = std::move(list);
}

}  // namespace weft::tool
