// SPDX-License-Identifier: Apache-2.0
// How checks put findings together.
#pragma once

#include "doctor/checks/checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace weft::tool::doctor_checks {

inline finding well(std::string summary, std::vector<evidence> facts = {}) {
  return {.summary = std::move(summary), .facts = std::move(facts)};
}
inline finding not_known(std::string why, std::vector<std::string> steps = {}) {
  return {.found = verdict::unknown, .summary = std::move(why), .steps = std::move(steps)};
}
inline finding does_not_apply(std::string why) { return {.found = verdict::not_applicable, .summary = std::move(why)}; }

/// "1 GPU", "2 GPUs", "2 processes".
inline std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with("s") ? "es" : "s");
}

/// "GPU 0000:17:00.0", "GPUs 0000:17:00.0 and 0000:18:00.0", "all 4 GPUs", "5 of 8 GPUs (0000:17:00.0, …)".
inline std::string gpus_text(const machine_facts& machine, const std::vector<std::string>& addresses) {
  const std::size_t all = machine.gpus().size();
  if (addresses.empty()) return "no GPU";
  if (addresses.size() == 1) return "GPU " + addresses.front();
  if (addresses.size() == all) return fmt::format("all {} GPUs", all);
  if (addresses.size() == 2) return fmt::format("GPUs {} and {}", addresses[0], addresses[1]);
  const std::vector<std::string> first(addresses.begin(), addresses.begin() + 2);
  return fmt::format("{} of {} GPUs ({}, …)", addresses.size(), all, fmt::join(first, ", "));
}

/// The same at the start of a sentence, with its verb: "All 4 GPUs run", "GPU 0000:17:00.0 runs".
inline std::string gpus_do(const machine_facts& machine, const std::vector<std::string>& addresses,
                           std::string_view one, std::string_view many) {
  std::string text = gpus_text(machine, addresses);
  if (text.starts_with("all")) text.front() = 'A';
  return fmt::format("{} {}", text, addresses.size() == 1 ? one : many);
}

/// Puts those facts first that are of what the finding is about.
inline void put_decisive_first(finding& one) {
  std::vector<evidence> others;
  std::vector<evidence> first;
  for (evidence& fact : one.facts) {
    const bool is_decisive = std::ranges::find(one.about, fact.what) != one.about.end();
    (is_decisive ? first : others).push_back(std::move(fact));
  }
  one.decisive = first.size();
  one.facts = std::move(first);
  one.facts.insert(one.facts.end(), others.begin(), others.end());
}

/// Where the management library's answers come from.
constexpr std::string_view from_nvml = "NVML (libnvidia-ml.so.1)";

inline std::string size_text(std::int64_t count) {
  return to_string(bytes{static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0))});
}

}  // namespace weft::tool::doctor_checks
