// SPDX-License-Identifier: Apache-2.0
// What the rows of every benchmark have in common: how they ended, what that makes of the command, and how it is told.
#pragma once

#include "command_line/output.hpp"
#include "command_line/statistics.hpp"
#include "weft/core/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
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

/// The memory that `count` times this size needs. A size is whatever the user says: where no number holds the product,
/// it is the largest one, and fits nowhere.
[[nodiscard]] constexpr std::uint64_t times(std::uint64_t size, std::uint64_t count) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return count != 0 && size > most / count ? most : size * count;
}

inline constexpr const char* stopped_by_user = "stopped by the user";

/// Ends a row without a result.
template <class Row>
void end_row(Row& row, row_state state, std::string why) {
  row.state = state;
  row.why = std::move(why);
  row.seconds.reset();
  row.verified.reset();
}

/// The state of a row that ended with an error: nothing is wrong where its code is one of `not_offered`.
[[nodiscard]] row_state state_after(const error& cause, std::initializer_list<errc> not_offered = {});
template <class Row>
void end_row(Row& row, const error& cause, std::initializer_list<errc> not_offered = {}) {
  end_row(row, state_after(cause, not_offered), cause.what);
}

/// The time that the rows of a benchmark have together, from now on, and how many of them it did not suffice for.
class row_budget {
 public:
  explicit row_budget(std::chrono::nanoseconds whole) : whole_(whole) {}

  [[nodiscard]] bool is_spent() const { return left().count() <= 0; }
  /// The time that each of so many rows may take.
  [[nodiscard]] std::chrono::nanoseconds share_of(std::size_t rows) const {
    return left() / static_cast<std::int64_t>(rows);
  }
  /// Why no further row is measured: the user has stopped, or it is spent; else empty.
  [[nodiscard]] std::string over() const;

  /// One more row has no result, for this reason.
  void count(std::string why) {
    why_ = std::move(why);
    ++left_out_;
  }
  template <class Row>
  void leave_out(Row& row, const std::string& why) {
    count(why);
    end_row(row, row_state::skipped, why);
  }
  /// Whether it is over, and so this row is left out.
  template <class Row>
  bool leaves_out(Row& row) {
    const std::string why = over();
    if (!why.empty()) leave_out(row, why);
    return !why.empty();
  }
  /// A warning where it did not suffice for all `rows`.
  void tell(session& run, std::size_t rows) const;

 private:
  [[nodiscard]] std::chrono::nanoseconds left() const { return whole_ - (std::chrono::steady_clock::now() - begun_); }

  std::chrono::nanoseconds whole_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::size_t left_out_ = 0;
  std::string why_;
};

/// How often something that takes `once` seconds is done in a sample of `least` seconds or more, so that the clock's
/// own reading does not show; once where the clock is virtual.
[[nodiscard]] int repeats_of(const session& run, double once, double least);

/// Whether so many samples suffice: as many as were wanted, or three after `until`.
[[nodiscard]] bool are_enough(std::size_t samples, int wanted, std::chrono::steady_clock::time_point until);

/// Samples until they are enough and have taken `least`, until the budget is spent, or the user stops.
template <class Sample>
[[nodiscard]] std::vector<double> take_samples(const row_budget& budget, int wanted,
                                               std::chrono::steady_clock::time_point until, const Sample& sample,
                                               std::chrono::nanoseconds least = {}) {
  std::vector<double> samples;
  const auto begun = std::chrono::steady_clock::now();
  while (!interrupted()) {
    samples.push_back(sample());
    const auto now = std::chrono::steady_clock::now();
    const bool is_long = now > until || now - begun >= least;
    if ((is_long && are_enough(samples.size(), wanted, until)) || budget.is_spent()) break;
  }
  return samples;
}

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

/// The file that `-o` names, or none.
class results_output {
 public:
  /// Before a machine is opened. Of ranks only the first writes: see require_place_at_first(). Errors: failure (usage)
  /// – results files are for measurements, and the clock is virtual; (runtime) – it cannot be written.
  results_output(session& run, const std::string& path, bool is_of_rank = false);
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
