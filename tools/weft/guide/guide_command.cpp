// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "guide_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace weft::tool {

namespace {

constexpr int devices_needed = 4;
constexpr std::string_view stopped = "stopped by the user";

struct guide_row {
  guide_figure figure;
  guide_value simulated;
  guide_value measured;

  /// What the guide is to be taken with, how a value was made, and why one is absent. Each once; without `known`, which
  /// has been said already.
  [[nodiscard]] std::string note(std::string_view known = {}) const {
    std::vector<std::string> parts;
    const auto add = [&](std::string text) {
      if (!text.empty() && std::ranges::find(parts, text) == parts.end()) parts.push_back(std::move(text));
    };
    add(std::string{figure.note});
    if (!simulated.number && !measured.number && simulated.why == measured.why) {
      add("neither simulated nor measured: " + simulated.why);
    } else {
      add(simulated.number ? simulated.why : "not simulated: " + simulated.why);
      if (measured.number || known.empty() || measured.why != known)
        add(measured.number ? measured.why : "not measured: " + measured.why);
    }
    return fmt::format("{}", fmt::join(parts, "; "));
  }
};

/// Three digits, and no fewer than a whole number has.
std::string number_text(double value) {
  if (value >= 1e5) return fmt::format("{:.3g} million", value / 1e6);
  if (value >= 100 || value == std::floor(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

std::string figure_text(const guide_figure& f) {
  if (!f.is_given()) return "-";
  return f.is_range() ? fmt::format("{}..{}", number_text(f.low), number_text(f.high)) : number_text(f.low);
}

std::string value_text(const guide_value& value) { return value.number ? number_text(*value.number) : "-"; }

json figure_json(const guide_figure& f) {
  if (!f.is_given()) return nullptr;
  return f.is_range() ? json{f.low, f.high} : json(f.low);
}

json rows_json(const std::vector<guide_row>& rows) {
  json all = json::array();
  for (const guide_row& row : rows) {
    json one;
    one["table"] = row.figure.table;
    one["row"] = row.figure.row;
    one["unit"] = row.figure.unit;
    one["document"] = figure_json(row.figure);
    one["simulated"] = or_null(row.simulated.number);
    one["measured"] = or_null(row.measured.number);
    const std::string note = row.note();
    one["note"] = note.empty() ? json(nullptr) : json(note);
    all.push_back(std::move(one));
  }
  return all;
}

std::string tables_text(const session& run, const std::vector<guide_row>& rows, std::string_view known) {
  std::string text;
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin;
    while (end < rows.size() && rows[end].figure.table == rows[begin].figure.table) ++end;
    text += fmt::format("\n{}\n", run.paint(style::heading, rows[begin].figure.table));
    text_table table{{"", "unit", "guide", "simulated", "measured", ""}, {false, false, true, true, true, false}};
    std::vector<std::string> notes;
    for (std::size_t i = begin; i < end; ++i) {
      const guide_row& row = rows[i];
      const std::string note = row.note(known);
      std::string mark;
      if (!note.empty()) {
        auto at = std::ranges::find(notes, note);
        if (at == notes.end()) at = notes.insert(at, note);
        mark = fmt::format("[{}]", at - notes.begin() + 1);
      }
      table.row({std::string{row.figure.row}, std::string{row.figure.unit}, figure_text(row.figure),
                 value_text(row.simulated), value_text(row.measured), mark});
    }
    text += table.render(run);
    for (std::size_t n = 0; n < notes.size(); ++n) text += fmt::format("  [{}] {}\n", n + 1, notes[n]);
    begin = end;
  }
  return text;
}

}  // namespace

exit_code run_bench_guide(session& run, const guide_options& options) {
  const machine& m = run.open_machine();
  std::string unmeasured;
  if (options.simulated_only) {
    unmeasured = "left out by --simulated-only";
  } else if (run.virtual_time()) {
    unmeasured = "a virtual clock measures nothing";
  } else if (m.device_count() < devices_needed) {
    unmeasured = fmt::format("this machine has {} device{}, and the guide's tables need {}", m.device_count(),
                             m.device_count() == 1 ? "" : "s", devices_needed);
  }
  const std::vector<std::string_view> tables = guide_table_names();
  std::vector<guide_row> rows;
  {
    // a step each for what is simulated and what is measured
    progress shown{run, "the guide's tables", 2 * tables.size()};
    std::size_t step = 0;
    const auto found = [&](std::string_view table, std::string_view how, const std::string& absent,
                           const std::function<guide_values()>& find) {
      shown.step(step++, fmt::format("{}, {}", table, how));
      guide_values none;
      none.otherwise = interrupted() ? std::string{stopped} : absent;
      if (!none.otherwise.empty()) return none;
      try {
        return find();
      } catch (const guide_stopped&) {
        return guide_values::nothing(stopped);
      }
    };
    for (const std::string_view table : tables) {
      const guide_values simulated = found(table, "simulated", {}, [&] { return simulate_table(table); });
      const guide_values measured =
          found(table, "measured", unmeasured, [&] { return measure_table(table, m, {options.quick}); });
      for (const guide_figure& f : guide_figures()) {
        if (f.table == table) rows.push_back({f, simulated.of(f.row), measured.of(f.row)});
      }
    }
  }

  json doc = run.document("weft.bench.guide/1");
  const bool measures = unmeasured.empty();
  const bool cores = m[0].kind() == backend_kind::host || run.virtual_driver();
  doc["note"] = measures && cores
                    ? json(fmt::format("measured: {}, the time of this computer's cores, not a GPU figure",
                                       run.virtual_driver() ? "a virtual driver" : "host devices"))
                    : json(nullptr);
  doc["quick"] = options.quick;
  doc["complete"] = !interrupted();
  doc["rows"] = rows_json(rows);
  run.emit(doc);

  std::string text = "The tables of a published multi-GPU programming guide, remade\n";
  text +=
      "guide: what it says, of machines that it names in part. simulated: weft on a virtual clock with devices and\n";
  text += "links like those; a model's time, no measurement.\n";
  text += measures
              ? fmt::format("measured: {}.\n", run.machine_title())
              : fmt::format("measured: nothing, since {}.\n",
                            options.simulated_only ? std::string{"only what is simulated was asked for"} : unmeasured);
  if (options.quick && measures) text += "Small sizes and few samples (--quick): a look, not figures to quote.\n";
  run.print(text + tables_text(run, rows, unmeasured));
  return interrupted() ? exit_code::interrupted : exit_code::ok;
}

}  // namespace weft::tool
