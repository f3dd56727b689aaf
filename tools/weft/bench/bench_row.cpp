// SPDX-License-Identifier: Apache-2.0
#include "bench_row.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

namespace weft::tool {

style style_of_verified(const std::string& text) {
  return text == "BAD" ? style::bad : text == "ok" ? style::good : style::faint;
}

json seconds_json(const std::optional<statistics>& seconds) {
  if (!seconds) return nullptr;
  return {{"median", seconds->median}, {"p5", seconds->p5}, {"p95", seconds->p95}, {"samples", seconds->samples}};
}

json named_results(const session& run, json rows) {
  if (!run.virtual_driver()) return rows;
  for (json& row : rows) {
    if (row.value("simulated", false)) continue;  // a model of other devices: the driver has no part in it
    row["name"] = "virtual_driver/" + row.at("name").get<std::string>();
  }
  return rows;
}

row_state state_after(const error& cause, std::initializer_list<errc> not_offered) {
  if (std::ranges::find(not_offered, cause.code) != not_offered.end()) return row_state::not_offered;
  return cause.code == errc::timed_out ? row_state::no_answer : row_state::failed;
}

std::string row_budget::over() const {
  if (interrupted()) return stopped_by_user;
  return is_spent() ? fmt::format("the budget of {} was spent", time_text(seconds_of(whole_))) : std::string{};
}

void row_budget::tell(session& run, std::size_t rows) const {
  if (left_out_ > 0) run.warn(fmt::format("{} of {} rows were not measured: {}", left_out_, rows, why_));
}

int repeats_of(const session& run, double once, double least) {
  return run.virtual_time() ? 1 : static_cast<int>(std::clamp(least / std::max(once, 1e-9), 1.0, 200.0));
}

bool are_enough(std::size_t samples, int wanted, std::chrono::steady_clock::time_point until) {
  const auto all = static_cast<std::size_t>(wanted);
  return samples >= all || (samples >= std::min<std::size_t>(3, all) && std::chrono::steady_clock::now() > until);
}

results_output::results_output(session& run, const std::string& path, bool is_of_rank) : run_(run), path_(path) {
  if (path.empty()) return;
  if (run.virtual_time()) {
    throw failure{exit_code::usage,
                  path +
                      " is not written: times of a virtual clock are simulated, and results files are for "
                      "measurements; drop --clock virtual or -o"};
  }
  if (!is_of_rank) require_place(path);
}

void results_output::require_own() const {
  std::error_code ignored;
  if (path_.empty() || !std::filesystem::is_regular_file(path_, ignored)) return;
  std::ifstream file{path_};
  const json there = json::parse(file, nullptr, false);
  if (!there.is_object() || !there.contains("results")) return;  // none of ours
  const auto marked = there.find("virtual_driver");
  const bool is_virtual = marked != there.end() && marked->is_boolean() && marked->get<bool>();
  if (is_virtual == run_.virtual_driver()) return;
  throw failure{exit_code::usage,
                fmt::format("{} holds results {} a virtual driver, and these would be {} one: they never share a file; "
                            "give another -o, or remove it",
                            path_, is_virtual ? "of" : "without", run_.virtual_driver() ? "of" : "without")};
}

void results_output::write(const std::string& content, const std::string& note) const {
  if (path_.empty()) return;
  write_file(path_, content);
  run_.note("wrote " + path_ + note);
}

void results_output::write(const json& document) const {
  write(document.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

json bench_document(session& run, std::string_view schema, bool is_complete, json results, const json& about) {
  json doc = run.document(schema);
  doc["note"] = or_null(run.figures_note());
  doc.update(about);
  doc["complete"] = is_complete;
  doc["results"] = named_results(run, std::move(results));
  return doc;
}

std::string reasons_text(const session& run,
                         const std::vector<std::pair<std::string, std::string>>& names_and_reasons) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const auto& [name, why] : names_and_reasons) {
    if (!why.empty()) by_reason[why].push_back(name);
  }
  std::string text;
  for (const auto& [why, names] : by_reason) {
    const bool many = names.size() > 3;
    text += fmt::format("{}: {}{}\n",
                        run.paint(style::caution, many ? names.front() : fmt::format("{}", fmt::join(names, ", "))),
                        many ? fmt::format("(and {} more) ", names.size() - 1) : "", why);
  }
  return text.empty() ? text : "\n" + text;
}

}  // namespace weft::tool
