// SPDX-License-Identifier: Apache-2.0
// What the rows of every benchmark have in common: how they ended, what that makes of the command, and how it is told.
#pragma once

#include "command_line/output.hpp"
#include "command_line/statistics.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::tool {

enum class row_state : std::uint8_t {
  done,
  not_offered,  // no such way between the two
  skipped,      // budget, memory, interrupt
  failed,       // the copy or the queue reported an error
  no_answer,    // it did not end in time
};

/// The worst that happened: interrupted, timed out, an error, data that did not arrive, or ok.
template <class Row>
[[nodiscard]] exit_code verdict_of(const std::vector<Row>& rows) {
  if (interrupted()) return exit_code::interrupted;
  const auto any = [&](row_state state) {
    return std::ranges::any_of(rows, [=](const Row& r) { return r.state == state; });
  };
  if (any(row_state::no_answer)) return exit_code::timed_out;
  if (any(row_state::failed)) return exit_code::runtime;
  const bool wrong = std::ranges::any_of(rows, [](const Row& r) { return r.verified && !*r.verified; });
  return wrong ? exit_code::falls_short : exit_code::ok;
}

/// verdict_of() for a benchmark, which is no success where not one row ran. Errors: failure (nothing_measured), with
/// the first reason.
template <class Row>
[[nodiscard]] exit_code verdict_of_bench(const std::vector<Row>& rows) {
  const exit_code verdict = verdict_of(rows);
  const bool any = std::ranges::any_of(rows, [](const Row& r) { return r.state == row_state::done; });
  if (verdict == exit_code::ok && !any) {
    const auto told = std::ranges::find_if(rows, [](const Row& r) { return !r.why.empty(); });
    throw failure{exit_code::nothing_measured,
                  "nothing was measured: " + (told == rows.end() ? std::string{"there is no such row"} : told->why)};
  }
  return verdict;
}

/// False when rows were left out.
template <class Row>
[[nodiscard]] bool all_measured(const std::vector<Row>& rows) {
  return std::ranges::none_of(rows, [](const Row& r) { return r.state == row_state::skipped; });
}

/// "ok" when every row that was checked held, "BAD" when one did not, "-" when none was checked.
template <class Row>
[[nodiscard]] std::string verified_text(const std::vector<const Row*>& rows) {
  bool any = false;
  for (const Row* row : rows) {
    if (row == nullptr || !row->verified) continue;
    if (!*row->verified) return "BAD";
    any = true;
  }
  return any ? "ok" : "-";
}
[[nodiscard]] style style_of_verified(const std::string& text);

/// seconds of a row: {median, p5, p95, samples}, or null.
[[nodiscard]] json seconds_json(const std::optional<statistics>& seconds);

/// results[] of a document. On a virtual driver every name begins with "virtual_driver/": whoever compares rows by
/// their names, of whichever files, finds none that is also a GPU's.
[[nodiscard]] json named_results(const session& run, json rows);

/// Why a row was left out.
[[nodiscard]] std::string budget_was_spent(std::chrono::nanoseconds budget);

/// The file that `-o` names, or none.
class results_output {
 public:
  /// Before a machine is opened. Errors: failure (usage) – results files are for measurements, and the clock is
  /// virtual.
  results_output(session& run, const std::string& path);
  /// Before measuring. Where the file holds results, they must be of a virtual driver too, or of none, as those of this
  /// run: a file never goes from one to the other. Errors: failure (usage).
  void require_own() const;
  /// `note`: what is said beside its name.
  void write(const std::string& content, const std::string& note = {}) const;
  void write(const json& document) const;

 private:
  session& run_;
  std::string path_;
};

/// The document of a benchmark: `about`, which stands before the rows, is what only this one says.
[[nodiscard]] json bench_document(session& run, std::string_view schema, bool is_complete, json results,
                                  const json& about = json::object());

/// A blank line, then each reason once with the names of the rows that it holds for; empty without any.
[[nodiscard]] std::string reasons_text(const session& run,
                                       const std::vector<std::pair<std::string, std::string>>& names_and_reasons);

/// The same of rows with a name and why they have no time.
template <class Row>
[[nodiscard]] std::string reasons_of_rows(const session& run, const std::vector<Row>& rows) {
  std::vector<std::pair<std::string, std::string>> reasons;
  reasons.reserve(rows.size());
  for (const Row& row : rows) reasons.emplace_back(row.name, row.why);
  return reasons_text(run, reasons);
}

}  // namespace weft::tool
