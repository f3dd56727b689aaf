// SPDX-License-Identifier: Apache-2.0
// weft-conform: the suite on its own, for a build that has nothing but weft.
#include "conformance/conformance.hpp"
#include "conformance/isolation.hpp"
#include "weft/core/topology.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int exit_short = 1;
constexpr int exit_usage = 2;

struct subject {
  std::string title;
  weft::machine_options options;
};

int usage(const std::string& complaint) {
  std::fprintf(stderr, "weft-conform: %s\n", complaint.c_str());
  std::fputs(
      "usage: weft-conform [--backend NAME] [--sim NAME|FILE]... [--all-topologies] [--virtual] [--filter TEXT]\n"
      "                    [--isolate] [--sentence-limit SECONDS]\n",
      stderr);
  return exit_usage;
}

/// Of this program as a process that answers for one group of it.
std::vector<std::string> arguments_of(const subject& one, const std::string& filter) {
  std::vector<std::string> words{"--filter", filter};
  if (one.options.backend) words.insert(words.end(), {"--backend", *one.options.backend});
  if (one.options.sim) words.insert(words.end(), {"--sim", *one.options.sim});
  if (one.options.clock == weft::clock_kind::virtual_time) words.emplace_back("--virtual");
  words.emplace_back("--answer");
  return words;
}

/// Of a kernel that faults, where the filter asks for one; before a machine is opened.
std::optional<weft::verdict> fault_of(const subject& one, const std::string& filter) {
  const auto cases = weft::conformance_cases();
  const bool has_fault = std::any_of(cases.begin(), cases.end(), [&](const weft::conformance_case& asked) {
    return asked.group == "faults" && weft::is_among(asked, filter);
  });
  if (!has_fault || one.options.sim) return std::nullopt;
  return weft::live_through_fault([&] { return weft::machine{one.options}; });
}

/// Prints the sentences of one machine; the number that fall short.
int report(const subject& one, const std::string& filter, std::optional<weft::isolation> alone) {
  std::printf("%s\n", one.title.c_str());
  int holds = 0;
  int absent = 0;
  int fallen = 0;
  std::string group;
  weft::run_options run;
  run.filter = filter;
  run.after_each = [&](const weft::case_result& result) {
    if (group != result.group) {
      group = result.group;
      std::printf("  %s\n", group.c_str());
    }
    switch (result.verdict) {
      case weft::verdict_kind::holds:
        ++holds;
        std::printf("    %s: holds\n", result.name.c_str());
        break;
      case weft::verdict_kind::not_offered:
        ++absent;
        std::printf("    %s: not offered, because %s\n", result.name.c_str(), result.why.c_str());
        break;
      case weft::verdict_kind::falls_short:
        ++fallen;
        std::printf("    %s: falls short: %s\n", result.name.c_str(), result.why.c_str());
        break;
    }
    std::fflush(stdout);
  };
  if (alone) {
    alone->arguments = arguments_of(one, filter);
    static_cast<void>(weft::run_isolated(*alone, run));
  } else {
    run.fault = fault_of(one, filter);
    static_cast<void>(weft::run_conformance([&] { return weft::machine{one.options}; }, run));
  }
  std::printf("%s: %d hold, %d not offered, %d fall short\n\n", one.title.c_str(), holds, absent, fallen);
  return fallen;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  weft::machine_options base;
  std::vector<std::string> topologies;
  std::string filter;
  std::optional<weft::isolation> alone;
  std::optional<std::size_t> answer;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool has_value = i + 1 < arguments.size();
    if (word == "--all-topologies") {
      for (const std::string_view name : weft::shipped_topologies()) {
        const auto machine = weft::load_topology(name);
        if (machine && !machine->faults.empty()) {
          std::printf("%.*s is left out: it has faults on purpose\n\n", static_cast<int>(name.size()), name.data());
        } else {
          topologies.emplace_back(name);
        }
      }
    } else if (word == "--virtual") {
      base.clock = weft::clock_kind::virtual_time;
    } else if (word == "--isolate") {
      if (!alone) alone.emplace();
    } else if (word == "--backend" || word == "--sim" || word == "--filter" || word == "--sentence-limit" ||
               word == "--answer") {
      if (!has_value) return usage(word + " needs a value");
      const std::string& value = arguments[++i];
      if (word == "--backend") base.backend = value;
      if (word == "--sim") topologies.push_back(value);
      if (word == "--filter") filter = value;
      if (word == "--answer") answer = std::strtoull(value.c_str(), nullptr, 10);
      if (word == "--sentence-limit") {
        if (!alone) alone.emplace();
        alone->limit = std::chrono::seconds{std::atoi(value.c_str())};
        if (alone->limit.count() < 1) return usage(word + " needs whole seconds, from 1 on");
      }
    } else {
      return usage("unknown argument " + word);
    }
  }
  std::vector<subject> subjects;
  for (const std::string& name : topologies) {
    weft::machine_options options = base;
    options.sim = name;
    subjects.push_back({name, options});
  }
  if (subjects.empty()) subjects.push_back({base.backend ? "backend " + *base.backend : "the default machine", base});

  if (answer) {  // not in the usage: for run_isolated()
    const subject& one = subjects.front();
    weft::run_options run;
    run.filter = filter;
    const auto cases = weft::conformance_cases();
    if (*answer < cases.size() && cases[*answer].group == "faults") run.fault = fault_of(one, filter);
    weft::answer_group(*answer, [&] { return weft::machine{one.options}; }, run);
    return 0;
  }
  int fallen = 0;
  for (const subject& one : subjects) fallen += report(one, filter, alone);
  return fallen == 0 ? 0 : exit_short;
}
