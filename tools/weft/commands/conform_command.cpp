// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "conformance/conformance.hpp"
#include "weft/core/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace weft::tool {

namespace {

struct tally {
  std::map<verdict_kind, std::size_t> counts;

  [[nodiscard]] std::size_t of(verdict_kind kind) const {
    const auto found = counts.find(kind);
    return found == counts.end() ? 0 : found->second;
  }
};

std::string sentence(const session& run, const case_result& result) {
  switch (result.verdict) {
    case verdict_kind::holds:
      return fmt::format("{}  {}\n", run.paint(style::good, "holds      "), result.name);
    case verdict_kind::not_offered:
      return fmt::format("{}  {}, because {}\n", run.paint(style::faint, "not offered"), result.name, result.why);
    case verdict_kind::falls_short:
      break;
  }
  return fmt::format("{}  {}: {}\n", run.paint(style::bad, "falls short"), result.name, result.why);
}

/// Runs the suite over one machine; false when the user stopped it.
bool run_suite(session& run, const std::function<machine()>& open, std::string_view title, std::string_view topology,
               const std::optional<verdict>& fault, json& cases, tally& all) {
  run.print(run.paint(style::heading, title) + "\n");
  const std::size_t total = conformance_cases().size();
  std::size_t done = 0;
  progress line{run, fmt::format("conform {}", title), total};
  struct stopped {};
  const auto after = [&](const case_result& result) {
    run.print(sentence(run, result));
    json one = {{"name", result.name},
                {"group", result.group},
                {"topology", topology.empty() ? json(nullptr) : json(topology)},
                {"verdict", to_string(result.verdict)},
                {"why", result.why.empty() ? json(nullptr) : json(result.why)},
                {"seconds", result.seconds}};
    cases.push_back(std::move(one));
    ++all.counts[result.verdict];
    line.step(++done, result.name);
    if (interrupted()) throw stopped{};
  };
  try {
    static_cast<void>(run_conformance(open, {{}, after, fault}));
  } catch (const stopped&) {
    return false;
  }
  return true;
}

}  // namespace

exit_code run_conform(session& run, const conform_options& options) {
  std::optional<verdict> fault;
  if (!options.all_topologies && !run.options().sim)  // before the first machine is opened
    fault = live_through_fault([&] { return run.open_again(); });
  const machine& first = run.open_machine();
  json cases = json::array();
  tally all;
  bool complete = true;
  if (options.all_topologies) {
    if (run.options().backend && *run.options().backend != "host") {
      throw failure{exit_code::usage, fmt::format("topologies are played by the host backend; drop --backend {}",
                                                  *run.options().backend)};
    }
    for (const std::string_view name : shipped_topologies()) {
      if (!complete) break;
      if (const auto known = load_topology(name); known && !known->faults.empty()) {
        run.warn(fmt::format("{} is left out: it has faults on purpose; try --sim {}", name, name));
        continue;
      }
      complete = run_suite(
          run, [&] { return run.open_topology(name); }, fmt::format("host, {} (simulated)", name), name, fault, cases,
          all);
    }
  } else {
    const std::string_view backend = to_string(first[0].kind());
    const std::string_view name = run.options().sim ? std::string_view{*run.options().sim} : std::string_view{};
    complete = run_suite(
        run, [&] { return run.open_again(); }, fmt::format("{}, {}", backend, run.machine_title()), name, fault, cases,
        all);
  }

  json doc = run.document("weft.conform/1");
  doc["complete"] = complete;
  doc["holds"] = all.of(verdict_kind::holds);
  doc["not_offered"] = all.of(verdict_kind::not_offered);
  doc["falls_short"] = all.of(verdict_kind::falls_short);
  doc["cases"] = std::move(cases);
  run.emit(doc);
  run.print(fmt::format("\n{} hold, {} not offered, {} fall short{}\n", all.of(verdict_kind::holds),
                        all.of(verdict_kind::not_offered), all.of(verdict_kind::falls_short),
                        complete ? "" : "; stopped before the end"));
  if (!complete) return exit_code::interrupted;
  return all.of(verdict_kind::falls_short) == 0 ? exit_code::ok : exit_code::falls_short;
}

}  // namespace weft::tool
