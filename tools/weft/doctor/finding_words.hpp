// SPDX-License-Identifier: Apache-2.0
// How checks put findings together.
#pragma once

#include "doctor/checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

namespace weft::tool::doctor_checks {

inline finding well(std::string summary, std::vector<evidence> facts = {}) {
  return {verdict::ok, std::move(summary), {}, {}, std::move(facts), {}, {}};
}
inline finding not_known(std::string why, std::string advice = {}) {
  return {verdict::unknown, std::move(why), {}, std::move(advice), {}, {}, {}};
}
inline finding does_not_apply(std::string why) { return {verdict::not_applicable, std::move(why), {}, {}, {}, {}, {}}; }

/// "1 GPU", "2 GPUs", "2 processes".
inline std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with("s") ? "es" : "s");
}

/// What is wrong with some of many: a finding as bad as the worst of them, whose summary names the first ones.
class complaints {
 public:
  void add(verdict how_bad, std::string about, std::string sentence) {
    if (sentences_.empty() || how_bad == verdict::failed) worst_ = how_bad;
    if (!about.empty()) about_.push_back(std::move(about));
    sentences_.push_back(std::move(sentence));
  }
  [[nodiscard]] bool any() const { return !sentences_.empty(); }
  [[nodiscard]] std::size_t count() const { return sentences_.size(); }
  [[nodiscard]] finding told(std::string cause, std::string advice, std::vector<evidence> facts) {
    constexpr std::size_t most = 3;
    std::string summary;
    for (std::size_t i = 0; i < std::min(most, sentences_.size()); ++i) summary += (i == 0 ? "" : "; ") + sentences_[i];
    if (sentences_.size() > most) summary += fmt::format("; and {} more", sentences_.size() - most);
    return {worst_, std::move(summary), std::move(cause), std::move(advice), std::move(facts), std::move(about_), {}};
  }

 private:
  verdict worst_ = verdict::warning;
  std::vector<std::string> sentences_, about_;
};

/// Where the management library's answers come from.
constexpr std::string_view from_nvml = "NVML (libnvidia-ml.so.1)";

}  // namespace weft::tool::doctor_checks
