// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "weft/exec/balance.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft::tool {

exit_code run_explain_launch(session& run, const explain_launch_options& options) {
  const machine& m = run.open_machine();
  const auto count = static_cast<std::size_t>(m.device_count());
  if (options.starts.size() > count) {
    throw failure{exit_code::usage, fmt::format("--start has {} times for {} device{}: give one for each, or fewer",
                                                options.starts.size(), count, count == 1 ? "" : "s")};
  }
  double fastest = 0;
  for (const topology_device& d : m.layout().devices) fastest = std::max(fastest, d.speed);

  balance_request request;
  request.items = options.items;
  request.strategy = options.strategy;
  request.granularity = options.granularity;
  request.keeps_data = !options.streamed;
  for (const device& d : m.devices()) {
    const double speed = m.layout().devices[d.id().index()].speed;
    balance_device one;
    one.id = d.id();
    one.items_per_second = options.items_per_second * speed / fastest;
    one.is_given = true;
    const auto start = options.starts[std::min(d.id().index(), options.starts.size() - 1)];
    one.chunk_seconds = std::chrono::duration<double>(start).count();
    one.weight = speed;
    request.devices.push_back(one);
  }
  const auto explained = explain_balance(request);
  if (!explained) throw failure{exit_code::usage, explained.error().what};
  const balance_plan& plan = explained->plan;

  json doc = run.document("weft.explain.launch/1");
  doc["items"] = options.items;
  doc["items_per_second"] = options.items_per_second;
  doc["asked"] = to_string(explained->asked);
  doc["strategy"] = to_string(plan.strategy);
  doc["why"] = explained->why;
  doc["predicted_seconds"] = plan.predicted_seconds;
  doc["ideal_seconds"] = explained->ideal_seconds;
  doc["devices"] = json::array();
  text_table table{{"device", "items", "share", "predicted", "why"}, {false, true, true, true, false}};
  for (std::size_t i = 0; i < explained->devices.size(); ++i) {
    const balance_reason& r = explained->devices[i];
    doc["devices"].push_back({{"device", r.device.value()},
                              {"items", r.items},
                              {"items_per_second", request.devices[i].items_per_second},
                              {"start_seconds", request.devices[i].chunk_seconds},
                              {"predicted_seconds", r.predicted_seconds},
                              {"why", r.why}});
    const double share = options.items == 0 ? 0 : static_cast<double>(r.items) / static_cast<double>(options.items);
    table.row({to_string(r.device), std::to_string(r.items), fmt::format("{:.1f} %", 100 * share),
               time_text(r.predicted_seconds), r.why});
  }
  run.emit(doc);
  const auto least = std::chrono::duration<double>(*std::ranges::min_element(options.starts)).count();
  run.print(fmt::format(
      "{} item{} on {}\n{}\n\n{}\nPredicted {}, ideally {}: computed from {:g} items/s on the fastest device and "
      "{}{} for each piece, not measured.\n",
      options.items, options.items == 1 ? "" : "s", run.machine_title(), explained->why, table.render(run),
      time_text(plan.predicted_seconds), time_text(explained->ideal_seconds), options.items_per_second,
      time_text(least), options.starts.size() > 1 ? " or more" : ""));
  return exit_code::ok;
}

}  // namespace weft::tool
