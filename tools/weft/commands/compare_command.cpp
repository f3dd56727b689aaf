// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "command_line/json_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace weft::tool {

namespace {

struct measured {
  std::string name;
  double median = 0, p5 = 0, p95 = 0;
  bool is_right = true;  // not found to be wrong
};

struct results_file {
  std::string path;
  json document;
  std::vector<measured> rows;
};

results_file read_results(const std::string& path) {
  results_file file{path, read_json(path), {}};
  const auto schema = string_in(file.document, "schema");
  const json& results = part_of(file.document, "results");
  if (!schema || !schema->starts_with("weft.bench.") || !results.is_array())
    throw failure{exit_code::usage, path + ": this holds no results; weft bench … -o FILE writes them"};
  std::vector<const json*> rows;
  for (const char* part : {"results", "patterns"}) {  // bench copy has both
    const json& list = part_of(file.document, part);
    if (!list.is_array()) continue;
    for (const json& row : list) rows.push_back(&row);
  }
  for (const json* const entry : rows) {
    const json& row = *entry;
    const json& seconds = part_of(row, "seconds");
    const auto name = string_in(row, "name");
    const auto median = number_in(seconds, "median");
    const bool is_right = bool_in(row, "verified").value_or(true);
    const bool has_time = median && *median > 0;
    if (!name || (!has_time && is_right)) continue;
    const double time = median.value_or(0);
    file.rows.push_back(
        {*name, time, number_in(seconds, "p5").value_or(time), number_in(seconds, "p95").value_or(time), is_right});
  }
  return file;
}

enum class change : std::uint8_t { same, faster, slower, wrong, only_in_first, only_in_second };

std::string_view to_string(change what) {
  static constexpr std::string_view names[] = {"same", "faster", "slower", "wrong", "only_in_first", "only_in_second"};
  return names[static_cast<std::size_t>(what)];
}

struct compared {
  std::string name;
  const measured* first = nullptr;
  const measured* second = nullptr;
  change what = change::same;
  double ratio = 0;  // of times: below 1 the second is faster
};

/// A difference counts where it is past the threshold and the middles of both lie outside the other's 5th to 95th
/// percentile: where samples scatter that much, a ratio of medians says nothing.
change judge(const measured& first, const measured& second, double threshold) {
  if (!second.is_right) return change::wrong;
  if (!first.is_right || first.median <= 0 || second.median <= 0) return change::same;
  const double ratio = second.median / first.median;
  const bool is_apart = (second.median > first.p95 && first.median < second.p5) ||
                        (second.median < first.p5 && first.median > second.p95);
  if (!is_apart) return change::same;
  return ratio > 1 + threshold ? change::slower : ratio < 1 / (1 + threshold) ? change::faster : change::same;
}

std::vector<compared> compare(const results_file& first, const results_file& second, double threshold) {
  std::multimap<std::string, const measured*> by_name;  // rows of one name in their order
  for (const measured& row : second.rows) by_name.emplace(row.name, &row);
  std::vector<compared> list;
  for (const measured& row : first.rows) {
    const auto found = by_name.lower_bound(row.name);
    compared one{row.name, &row, nullptr, change::only_in_first, 0};
    if (found != by_name.end() && found->first == row.name) {
      one.second = found->second;
      one.what = judge(row, *found->second, threshold);
      one.ratio = row.median > 0 ? found->second->median / row.median : 0;
      by_name.erase(found);
    }
    list.push_back(std::move(one));
  }
  for (const measured& row : second.rows) {
    const auto [begin, end] = by_name.equal_range(row.name);
    if (std::any_of(begin, end, [&](const auto& left) { return left.second == &row; }))
      list.push_back({row.name, nullptr, &row, row.is_right ? change::only_in_second : change::wrong, 0});
  }
  return list;
}

/// What else than the figures differs: value before, value after.
std::vector<std::array<std::string, 3>> differences(const json& first, const json& second) {
  static constexpr std::pair<const char*, const char*> looked_at[] = {
      {"tool", "version"},    {"tool", "commit"},    {"host", "name"},         {"host", "kernel"},
      {"host", "cpu"},        {"host", "threads"},   {"host", "memory_bytes"}, {"machine", "name"},
      {"machine", "devices"}, {"machine", "models"}, {"machine", "drivers"}};
  std::vector<std::array<std::string, 3>> list;
  const auto text = [](const json& value) {
    return value.is_string() ? value.get<std::string>() : value.is_null() ? "?" : value.dump();
  };
  const auto add = [&](const std::string& what, const json& a, const json& b) {
    if (a != b) list.push_back({what, text(a), text(b)});
  };
  for (const auto& [part, field] : looked_at)
    add(fmt::format("{} {}", part, field), part_of(part_of(first, part), field), part_of(part_of(second, part), field));
  for (const char* field : {"clock", "simulated", "virtual_driver"})
    add(field, part_of(first, field), part_of(second, field));
  return list;
}

json row_json(const compared& one) {
  const auto side = [](const measured* row) -> json {
    if (row == nullptr) return nullptr;
    return {{"median", row->median}, {"p5", row->p5}, {"p95", row->p95}, {"right", row->is_right}};
  };
  return {{"name", one.name},
          {"first", side(one.first)},
          {"second", side(one.second)},
          {"ratio", one.ratio > 0 ? json(one.ratio) : json(nullptr)},
          {"change", to_string(one.what)}};
}

std::string row_text(const session& run, const std::vector<compared>& rows, bool all) {
  text_table table{{"row", "first", "p5..p95", "second", "p5..p95", "second/first", ""},
                   {false, true, true, true, true, true, false}};
  const auto times = [](const measured* row, std::vector<std::string>& cells) {
    const bool has_time = row != nullptr && row->median > 0;
    cells.push_back(has_time ? time_text(row->median) : "-");
    cells.push_back(has_time ? fmt::format("{}..{}", time_text(row->p5), time_text(row->p95)) : "-");
  };
  bool any = false;
  for (const compared& one : rows) {
    if (!all && one.what != change::slower && one.what != change::faster && one.what != change::wrong) continue;
    any = true;
    std::vector<std::string> cells{one.name};
    times(one.first, cells);
    times(one.second, cells);
    cells.push_back(one.ratio > 0 ? fmt::format("x{:.2f}", one.ratio) : "-");
    std::string word{to_string(one.what)};
    std::ranges::replace(word, '_', ' ');
    cells.push_back(one.what == change::wrong ? "WRONG DATA" : word);
    const style last = one.what == change::slower || one.what == change::wrong ? style::bad
                       : one.what == change::faster                            ? style::good
                                                                               : style::faint;
    table.row(std::move(cells), last);
  }
  return any ? table.render(run) + "\n" : std::string{};
}

}  // namespace

exit_code run_compare(session& run, const compare_options& options) {
  const results_file first = read_results(options.first);
  const results_file second = read_results(options.second);
  if (string_in(first.document, "schema") != string_in(second.document, "schema")) {
    throw failure{exit_code::usage, fmt::format("{} is {}, and {} is {}: only results of one command can be compared",
                                                first.path, *string_in(first.document, "schema"), second.path,
                                                *string_in(second.document, "schema"))};
  }
  const std::vector<compared> rows = compare(first, second, options.threshold);
  const auto count = [&](change what) { return std::ranges::count(rows, what, &compared::what); };
  const auto both =
      std::ranges::count_if(rows, [](const compared& one) { return one.first != nullptr && one.second != nullptr; });
  if (both == 0) {
    throw failure{exit_code::nothing_measured,
                  "no row with a time is in both files: were other sizes, pairs or another driver measured?"};
  }
  double product = 0;
  std::size_t timed = 0;
  for (const compared& one : rows) {
    if (one.ratio <= 0) continue;
    product += std::log(one.ratio);
    ++timed;
  }
  const double mean = timed > 0 ? std::exp(product / static_cast<double>(timed)) : 0;
  const auto changed = differences(first.document, second.document);

  json document = run.document("weft.compare/1");
  document["first"] = first.path;
  document["second"] = second.path;
  document["threshold"] = options.threshold;
  document["geometric_mean_ratio"] = mean > 0 ? json(mean) : json(nullptr);
  json counts;
  for (const change what :
       {change::same, change::faster, change::slower, change::wrong, change::only_in_first, change::only_in_second})
    counts[std::string{to_string(what)}] = count(what);
  document["counts"] = std::move(counts);
  json differing = json::array();
  for (const auto& [what, before, after] : changed)
    differing.push_back({{"what", what}, {"first", before}, {"second", after}});
  document["differences"] = std::move(differing);
  json list = json::array();
  for (const compared& one : rows) list.push_back(row_json(one));
  document["rows"] = std::move(list);
  run.emit(document);

  std::string text =
      fmt::format("{} and {}: {} row{} in both\n\n", first.path, second.path, both, both == 1 ? "" : "s");
  text += row_text(run, rows, options.all);
  text += fmt::format("{} slower, {} faster, {} the same{}; {} only in the first, {} only in the second\n",
                      count(change::slower), count(change::faster), count(change::same),
                      count(change::wrong) > 0 ? fmt::format(", {} with WRONG DATA", count(change::wrong)) : "",
                      count(change::only_in_first), count(change::only_in_second));
  if (mean > 0) text += fmt::format("times on average (geometric mean): x{:.3f}\n", mean);
  text += fmt::format("a row counts from {:g}% on, where its samples do not overlap\n", 100 * options.threshold);
  if (!changed.empty()) {
    text_table table{{"also different", "first", "second"}};
    for (const auto& [what, before, after] : changed) table.row({what, before, after});
    text += "\n" + table.render(run);
  }
  run.print(text);
  return count(change::slower) + count(change::wrong) > 0 ? exit_code::falls_short : exit_code::ok;
}

}  // namespace weft::tool
