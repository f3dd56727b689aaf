// SPDX-License-Identifier: Apache-2.0
#include "bench_row.hpp"

#include <fmt/format.h>

#include <map>

namespace weft::tool {

style style_of_verified(const std::string& text) {
  return text == "BAD" ? style::bad : text == "ok" ? style::good : style::faint;
}

json seconds_json(const std::optional<statistics>& seconds) {
  if (!seconds) return nullptr;
  return {{"median", seconds->median}, {"p5", seconds->p5}, {"p95", seconds->p95}, {"samples", seconds->samples}};
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
