// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "measured_rates.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/route.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft::tool {

namespace {

device_id device_of(const machine& m, const std::string& text, std::string_view place) {
  if (text == "host" || text == "cpu") {
    throw failure{exit_code::usage,
                  fmt::format("{} is '{}': weft route compares ways between two devices; a copy to or from the host "
                              "has only one way",
                              place, text)};
  }
  const auto number = parse_device(text);
  if (!number) throw failure{exit_code::usage, fmt::format("{}: {}", place, number.error().what)};
  return require_device(m.layout(), *number);
}

copy_path path_of(std::string_view name) {
  if (name == "direct") return copy_path::direct;
  if (name == "staged") return copy_path::staged;
  return name == "relayed" ? copy_path::relayed : copy_path::automatic;
}

std::string way_text(copy_path path, device_id via) {
  return path == copy_path::relayed ? fmt::format("relayed through {}", to_string(via)) : std::string{to_string(path)};
}

/// What the hardware could do, and what the drivers do without access.
route_facts facts_of(const machine& m) {
  route_facts facts = route_facts_of(m.layout());
  for (const peer_pair& pair : peer_topology(m)) {
    if (!capability_between(m, pair.from, pair.to)->can_copy) continue;
    pair_facts& known = facts.pairs[pair.from.index() * facts.devices + pair.to.index()];
    known.can_copy = known.usable = true;
  }
  return facts;
}

json via_json(copy_path path, device_id via) { return path == copy_path::relayed ? json(via.value()) : json(nullptr); }

}  // namespace

exit_code run_route(session& run, const route_options& options) {
  const machine& m = run.open_machine();
  const device_id from = device_of(m, options.from, "FROM");
  const device_id to = device_of(m, options.to, "TO");
  const bytes size{options.size};
  route_wish wish;
  wish.path = path_of(options.path);
  if (!options.via.empty()) {
    const device_id via = device_of(m, options.via, "--via");
    if (via == from || via == to)
      throw failure{exit_code::usage,
                    fmt::format("--via {}: it is an end of the copy; name a third device", to_string(via))};
    wish.via = via;
  }
  route_facts facts = facts_of(m);
  const measured_rates rates = options.measure ? measure_rates(m) : kept_rates(m);
  rates.apply(facts);
  const auto explained = explain_route(facts, from, to, size, wish);
  if (!explained) throw failure{exit_code_of(explained.error()), explained.error().what};
  const route_choice& chosen = explained->chosen;
  static constexpr std::string_view assumption = "every pair that offers peer access has it enabled";
  static constexpr std::string_view unknown =
      "the rate of a link on the way is not known: weft route --measure finds it";
  const bool predicted = chosen.predicted_seconds > 0;

  json doc = run.document("weft.route/1");
  doc["from"] = from.value();
  doc["to"] = to.value();
  doc["bytes"] = size.value();
  doc["assumes"] = assumption;
  doc["rates"] = rates.source.empty() ? json(nullptr) : json(rates.source);
  json route;
  route["path"] = to_string(chosen.path);
  route["via"] = via_json(chosen.path, chosen.via);
  route["predicted_seconds"] = predicted ? json(chosen.predicted_seconds) : json(nullptr);
  route["why"] = predicted ? json(nullptr) : json(unknown);
  route["chunk_bytes"] = chosen.chunk == 0 ? json(nullptr) : json(chosen.chunk);
  route["depth"] = chosen.depth == 0 ? json(nullptr) : json(chosen.depth);
  route["rejected"] = json::array();
  for (const route_alternative& other : explained->rejected) {
    route["rejected"].push_back({{"path", to_string(other.path)},
                                 {"via", via_json(other.path, other.via)},
                                 {"predicted_seconds", or_null(other.predicted_seconds)},
                                 {"why", other.why}});
  }
  doc["route"] = std::move(route);
  run.emit(doc);

  const auto rate = [&](double seconds) {
    return seconds > 0 && options.size > 0 ? rate_text(static_cast<double>(size.value()) / seconds) : std::string{"-"};
  };
  text_table table{{"", "way", m.simulated() ? "predicted (simulated)" : "predicted", "rate", "why"},
                   {false, false, true, true, false}};
  std::string why = "the cheapest";
  if (wish.path != copy_path::automatic) why = "asked for";
  if (explained->rejected.empty() && wish.path == copy_path::automatic) why = "the only way";
  if (chosen.chunk != 0)
    why += fmt::format("; chunks of {}, {} under way", to_string(bytes{chosen.chunk}), chosen.depth);
  table.row({"chosen", way_text(chosen.path, chosen.via), predicted ? time_text(chosen.predicted_seconds) : "unknown",
             rate(chosen.predicted_seconds), predicted ? why : std::string{unknown}},
            {style::good, style::good});
  for (const route_alternative& other : explained->rejected) {
    table.row({"lost", way_text(other.path, other.via),
               other.predicted_seconds ? time_text(*other.predicted_seconds) : std::string{"-"},
               rate(other.predicted_seconds.value_or(0)), other.why});
  }
  run.print(
      fmt::format("{} from {} to {} on {}\n\n{}\nAssumes that {}.\n", to_string(size), to_string(from), to_string(to),
                  run.machine_title(), table.render(run), assumption) +
      (rates.source.empty() ? std::string{} : fmt::format("Rates that no topology tells were {}.\n", rates.source)));
  return exit_code::ok;
}

}  // namespace weft::tool
