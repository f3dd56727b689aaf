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

void require_own_results_file(const session& run, const std::string& path) {
  std::error_code ignored;
  if (path.empty() || !std::filesystem::is_regular_file(path, ignored)) return;
  std::ifstream file{path};
  const json there = json::parse(file, nullptr, false);
  if (!there.is_object() || !there.contains("results")) return;  // none of ours
  const auto marked = there.find("virtual_driver");
  const bool is_virtual = marked != there.end() && marked->is_boolean() && marked->get<bool>();
  if (is_virtual == run.virtual_driver()) return;
  throw failure{exit_code::usage,
                fmt::format("{} holds results {} a virtual driver, and these would be {} one: they never share a file; "
                            "give another -o, or remove it",
                            path, is_virtual ? "of" : "without", run.virtual_driver() ? "of" : "without")};
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
