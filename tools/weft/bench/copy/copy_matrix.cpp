// SPDX-License-Identifier: Apache-2.0
#include "copy_matrix.hpp"

#include "pictures/topo_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace weft::tool {

namespace {

/// One row for each pair: by the engine, direct where that was measured.
std::vector<const copy_row*> best_rows(const std::vector<copy_row>& rows, std::uint64_t size, std::size_t devices) {
  std::vector<const copy_row*> best(devices * devices, nullptr);
  for (const copy_row& row : rows) {
    if (row.size != size || row.by != copy_maker::engine || row.src.index() >= devices || row.dst.index() >= devices)
      continue;
    const copy_row*& slot = best[row.src.index() * devices + row.dst.index()];
    const bool is_better = slot == nullptr || (!slot->seconds && slot->verified.value_or(true));
    if (is_better) slot = &row;
  }
  return best;
}

/// Pairs that are slower than three quarters of what the better quarter of their class reaches. Not the median: one
/// slow GPU of four has half of all pairs.
std::vector<bool> odd_ones(const machine& m, const std::vector<const copy_row*>& best, std::size_t devices) {
  constexpr std::size_t fewest = 4;  // of two, none is the odd one
  constexpr double least = 0.75;
  const std::vector<std::string> classes = link_classes(m.layout());
  const auto class_of = [&](std::size_t i) {
    const copy_row& row = *best[i];
    return row.src == row.dst ? std::string{"self"}
                              : std::string{to_string(row.path)} + classes[m.layout().pair(row.src, row.dst)];
  };
  std::map<std::string, std::vector<double>> rates;
  for (std::size_t i = 0; i < devices * devices; ++i) {
    if (best[i] != nullptr && best[i]->seconds) rates[class_of(i)].push_back(1 / best[i]->seconds->median);
  }
  std::vector<bool> odd(devices * devices);
  // where a processor plays all devices, they share one memory, and differences are noise
  if (std::ranges::all_of(m.devices(), is_played) && m.clock() == clock_kind::wall) return odd;
  for (auto& [name, of_class] : rates) std::ranges::sort(of_class);
  for (std::size_t i = 0; i < devices * devices; ++i) {
    if (best[i] == nullptr || !best[i]->seconds) continue;
    const std::vector<double>& like = rates[class_of(i)];
    odd[i] = like.size() >= fewest && 1 / best[i]->seconds->median < least * quantile(like, 0.75);
  }
  return odd;
}

}  // namespace

std::string copy_matrix_text(const session& run, const machine& m, const std::vector<copy_row>& rows,
                             std::uint64_t size, copy_quantity what, std::size_t devices) {
  const auto best = best_rows(rows, size, devices);
  const auto odd = odd_ones(m, best, devices);
  const std::string unit = what == copy_quantity::rate ? "GB/s" : "us";
  std::vector<std::string> header{
      fmt::format("{}, {}{}", size_name(size), unit, run.simulated() ? " (simulated)" : "")};
  for (std::size_t d = 0; d < devices; ++d) header.push_back(fmt::format("to gpu{}", d));
  text_table table{header, std::vector<bool>(devices + 1, true)};
  bool has_staged = false;
  bool has_odd = false;
  for (std::size_t from = 0; from < devices; ++from) {
    std::vector<std::string> cells{fmt::format("gpu{}", from)};
    std::vector<style> styles(devices + 1, style::plain);
    for (std::size_t to = 0; to < devices; ++to) {
      const copy_row* row = best[from * devices + to];
      std::string cell = "-";
      if (row != nullptr && row->verified && !*row->verified) {
        cell = "BAD";
        styles[to + 1] = style::bad;
      } else if (row != nullptr && row->seconds) {
        const bool is_staged = row->path == copy_path::staged;
        const bool is_odd = odd[from * devices + to];
        has_staged = has_staged || is_staged;
        has_odd = has_odd || is_odd;
        cell = what == copy_quantity::rate
                   ? row->bytes_per_second() ? fmt::format("{:.1f}", *row->bytes_per_second() / 1e9) : "-"
                   : fmt::format("{:.2f}", row->seconds->median * 1e6);
        cell += std::string{is_staged ? "s" : ""} + (is_odd ? "*" : "");
        if (is_odd) styles[to + 1] = style::caution;
      }
      cells.push_back(std::move(cell));
    }
    table.row(std::move(cells), std::move(styles));
  }
  std::string text = table.render(run);
  if (has_staged) text += "s: staged through the host\n";
  if (has_odd)
    text +=
        "*: slower than three quarters of what the better of its like reach (weft doctor --run looks for the cause)\n";
  return text;
}

std::string copy_matrix_svg(const session& run, const std::vector<copy_row>& rows, std::uint64_t size,
                            std::size_t devices) {
  heat_map map;
  map.devices = devices;
  map.simulated = run.simulated();
  map.unit = "GB/s";
  map.title = run.virtual_time() ? "Copy rates (simulated)" : "Copy rates";
  map.subtitle = fmt::format("{}, {}, direct where offered", size_name(size), run.machine_title());
  map.values.resize(devices * devices);
  map.failed.resize(devices * devices);
  const auto best = best_rows(rows, size, devices);
  for (std::size_t i = 0; i < best.size(); ++i) {
    if (best[i] == nullptr) continue;
    map.failed[i] = best[i]->verified && !*best[i]->verified;
    if (const auto rate = best[i]->bytes_per_second()) map.values[i] = *rate / 1e9;
  }
  return heat_map_svg(map);
}

}  // namespace weft::tool
