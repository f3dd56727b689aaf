// SPDX-License-Identifier: Apache-2.0
// guide: the tables of docs/explanation/guide.md, as Markdown: what a published multi-GPU guide says, and the same
// simulated. Nothing is measured, so the figures are the same on every computer.
// usage: bench_guide_guide [--check PAGE]     (1: PAGE lacks lines, which it prints)
#include "guide/guide_tables.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace {

using weft::bench::guide_figure;

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// Three digits, and no fewer than a whole number has.
std::string number_text(double value) {
  if (value >= 1e5) return printed("%.3g million", value / 1e6);
  return printed(value >= 100 || value == std::floor(value) ? "%.0f" : "%.3g", value);
}

std::string figure_text(const guide_figure& f) {
  if (f.low == 0) return "–";
  return f.high > f.low ? number_text(f.low) + " … " + number_text(f.high) : number_text(f.low);
}

std::string line_of(const guide_figure& f, double simulated) {
  return "| " + std::string{f.row} + ", " + std::string{f.unit} + " | " + figure_text(f) + " | " +
         number_text(simulated) + " |";
}

}  // namespace

int main(int argc, char** argv) {
  const bool checks = argc == 3 && std::string{argv[1]} == "--check";
  if (argc > 1 && !checks) {
    std::fputs("usage: bench_guide_guide [--check PAGE]\n", stderr);
    return 2;
  }
  std::string page;
  if (checks) {
    std::ifstream file{argv[2]};
    if (!file) {
      std::fprintf(stderr, "%s cannot be read\n", argv[2]);
      return 2;
    }
    page.assign(std::istreambuf_iterator<char>{file}, {});
  }
  std::string_view table;
  weft::bench::guide_values simulated;
  int missing = 0;
  for (const guide_figure& f : weft::bench::guide_figures()) {
    if (f.table != table) {
      table = f.table;
      simulated = weft::bench::simulate_table(table);
      if (!checks) std::printf("\n## %s\n\n| | the guide | simulated |\n|---|---|---|\n", std::string{table}.c_str());
    }
    const std::string line = line_of(f, simulated.at(f.row));
    if (checks && page.find('\n' + line) != std::string::npos) continue;
    missing += checks ? 1 : 0;
    std::puts(line.c_str());
  }
  return missing == 0 ? 0 : 1;
}
