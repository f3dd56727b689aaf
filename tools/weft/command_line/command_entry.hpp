// SPDX-License-Identifier: Apache-2.0
// Commands as the parser has them: each adds its options, and reads its words once the line was parsed.
#pragma once

#include "core/text/nearest.hpp"
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>

namespace weft::tool {

/// An error in the words of the line, for the user; nothing where all is well.
using complaint = std::optional<std::string>;

struct command_entry {
  CLI::App* at;
  command_function run;             // null: a group, whose own commands come after it
  std::function<complaint()> take;  // may be empty
};

/// The commands of a line, which they fill in.
struct command_entries {
  CLI::App& app;
  command_line& line;
  std::vector<command_entry> all{};

  void add(CLI::App* at, command_function run, std::function<complaint()> take = {}) {
    all.push_back({at, run, std::move(take)});
  }
  /// A command that only holds others: what a line that names none of those is told.
  void add_group(CLI::App* at, const char* question) {
    at->require_subcommand(0, 1);
    add(at, nullptr, [=]() -> complaint { return at->get_subcommands().empty() ? complaint{question} : std::nullopt; });
  }
};

void add_looking_commands(command_entries& to);  // devices, doctor, report, topo, route
void add_explain_commands(command_entries& to);
void add_bench_commands(command_entries& to);
void add_other_commands(command_entries& to);  // demo, conform, trace, compare, world

/// The first of several complaints.
[[nodiscard]] inline complaint first_of(std::initializer_list<complaint> all) {
  const auto found = std::ranges::find_if(all, [](const complaint& one) { return one.has_value(); });
  return found == all.end() ? std::nullopt : *found;
}

/// Reads a word by a function of option_values.hpp; an empty one leaves what is there.
template <class Parse, class Target>
[[nodiscard]] complaint read(const std::string& word, Parse&& parse, Target& to) {
  if (word.empty()) return std::nullopt;
  auto value = parse(word);
  if (!value) return value.error().what;
  to = std::move(*value);
  return std::nullopt;
}

/// A word that is one of a few.
[[nodiscard]] inline complaint one_of(std::string_view option, std::string_view word,
                                      std::vector<std::string_view> known) {
  if (std::ranges::find(known, word) != known.end()) return std::nullopt;
  const auto nearest = nearest_name(word, known);
  return fmt::format("{} is one of {}, not '{}'{}", option, fmt::join(known, ", "), word,
                     nearest ? fmt::format("; did you mean {}?", *nearest) : "");
}

/// A number, if there is one, from 1 (or `least`) on.
[[nodiscard]] inline complaint in_range(std::string_view option, std::optional<int> number, int most, int least = 1) {
  if (!number || (*number >= least && *number <= most)) return std::nullopt;
  return fmt::format("{} is a number from {} to {}", option, least, most);
}

/// `-o FILE`.
inline CLI::Option* add_output(CLI::App& to, std::string& file, const std::string& about,
                               const std::string& kind = "FILE") {
  return to.add_option("-o,--output", file, about)
      ->type_name(kind)
      ->check(CLI::Validator{[](const std::string& name) { return name.empty() ? "the name of a file is empty" : ""; },
                             "", "name"});
}

/// A page is one HTML file.
[[nodiscard]] inline complaint names_a_page(const std::string& file) {
  if (file.empty() || file.ends_with(".html") || file.starts_with("/dev/")) return std::nullopt;
  return file + ": a page is HTML, and its name ends with .html";
}

/// The most samples that a command which measures takes.
inline constexpr int most_samples = 1'000'000;

}  // namespace weft::tool
