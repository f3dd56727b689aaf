// SPDX-License-Identifier: Apache-2.0
#include "option_values.hpp"

#include "bench/launch_bench.hpp"
#include "core/text/nearest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace weft::tool {

namespace {

error bad_text(std::string what) { return error{errc::invalid_argument, error_scope::call, 0, std::move(what)}; }

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc{} && end == text.data() + text.size();
}

result<std::vector<std::uint64_t>> parse_range(std::string_view text, std::size_t dots) {
  const auto colon = text.find(':', dots);
  const auto first = parse_size(text.substr(0, dots));
  if (!first) return first.error();
  const auto last = parse_size(text.substr(dots + 2, colon == std::string_view::npos ? colon : colon - dots - 2));
  if (!last) return last.error();
  std::uint64_t factor = 4;
  if (colon != std::string_view::npos && (!read_number(text.substr(colon + 1), factor) || factor < 2)) {
    return bad_text(fmt::format("the step of the range '{}' is not a whole number of at least 2", text));
  }
  if (*first == 0 || *first > *last) {
    return bad_text(fmt::format("the range '{}' is empty: write it from small to large, from at least 1", text));
  }
  std::vector<std::uint64_t> sizes;
  std::uint64_t size = *first;
  for (; size < *last; size *= factor) {
    sizes.push_back(size);
    if (size > *last / factor) break;
  }
  sizes.push_back(*last);
  return sizes;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(by);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

result<std::uint64_t> parse_size(std::string_view text) {
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  std::uint64_t value = 0;
  const auto wrong = [&text] {
    return bad_text(
        fmt::format("'{}' is not a size: write a whole number with B, K, M, G or T (1024 each), like 64M", text));
  };
  if (digits == 0) return wrong();
  if (!read_number(text.substr(0, digits), value)) return bad_text(fmt::format("the size '{}' is too large", text));
  std::string unit{text.substr(digits)};
  std::ranges::transform(unit, unit.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  if (unit.ends_with('B')) unit.pop_back();
  if (unit.size() == 2 && unit[1] == 'I') unit.pop_back();
  if (unit.empty()) return value;
  constexpr std::string_view letters = "KMGT";
  const auto place = letters.find(unit[0]);
  if (unit.size() != 1 || place == std::string_view::npos) return wrong();
  const unsigned shift = 10 * (static_cast<unsigned>(place) + 1);
  if (value > (static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) >> shift)) {
    return bad_text(fmt::format("the size '{}' is too large", text));
  }
  return value << shift;
}

result<std::vector<std::uint64_t>> parse_sizes(std::string_view text) {
  std::vector<std::uint64_t> sizes;
  for (const std::string_view part : split(text, ',')) {
    if (const auto dots = part.find(".."); dots != std::string_view::npos) {
      auto range = parse_range(part, dots);
      if (!range) return range.error();
      sizes.insert(sizes.end(), range->begin(), range->end());
      continue;
    }
    const auto size = parse_size(part);
    if (!size) return size.error();
    if (*size == 0) return bad_text("a size is at least 1 byte");
    sizes.push_back(*size);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

result<int> parse_device(std::string_view text) {
  std::string_view digits = text;
  if (digits.starts_with("gpu") || digits.starts_with("GPU")) digits.remove_prefix(3);
  int value = 0;
  if (!read_number(digits, value) || value < 0) {
    return bad_text(fmt::format("'{}' is not a device: write 0 or gpu0", text));
  }
  return value;
}

result<std::vector<pair_choice>> parse_pairs(std::string_view text) {
  std::vector<pair_choice> pairs;
  for (const std::string_view part : split(text, ',')) {
    const auto ends = split(part, '-');
    if (ends.size() != 2) return bad_text(fmt::format("'{}' is not a pair of devices: write 0-1 or gpu0-gpu1", part));
    const auto from = parse_device(ends[0]);
    if (!from) return from.error();
    const auto to = parse_device(ends[1]);
    if (!to) return to.error();
    const pair_choice pair{*from, *to};
    if (std::ranges::find(pairs, pair) == pairs.end()) pairs.push_back(pair);
  }
  return pairs;
}

result<std::vector<std::size_t>> parse_batches(std::string_view text) {
  std::vector<std::size_t> batches;
  for (const std::string_view part : split(text, ',')) {
    std::size_t batch = 0;
    if (!read_number(part, batch) || batch < 1 || batch > 1024) {
      return bad_text(fmt::format("'{}' is not a batch: write numbers of messages from 1 to 1024, like 1,64", part));
    }
    batches.push_back(batch);
  }
  std::ranges::sort(batches);
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  return batches;
}

result<std::int64_t> parse_count(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit{end, static_cast<std::size_t>(text.data() + text.size() - end)};
  double scale = 0;
  if (unit.empty()) scale = 1;
  if (unit == "K" || unit == "k") scale = 1e3;
  if (unit == "M") scale = 1e6;
  if (unit == "G") scale = 1e9;
  if (unit == "T") scale = 1e12;
  const double items = value * scale;
  // 2.3M is not exact in binary
  const bool is_whole = std::abs(items - std::round(items)) <= 1e-9 * items;
  if (problem != std::errc{} || scale == 0 || !(value >= 0) || items > 1e18 || !is_whole) {
    return bad_text(
        fmt::format("'{}' is not a whole number of items: write it with K, M, G or T (1000 each), like 1M", text));
  }
  return static_cast<std::int64_t>(std::llround(items));
}

result<std::vector<std::size_t>> parse_words(std::string_view text, const std::vector<std::string_view>& known,
                                             std::string_view what) {
  std::vector<std::size_t> found;
  for (const std::string_view word : split(text, ',')) {
    const auto at = std::ranges::find(known, word);
    if (at == known.end()) {
      const auto nearest = nearest_name(word, known);
      return bad_text(fmt::format("'{}' is no {}: there are {}{}", word, what, fmt::join(known, ", "),
                                  nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
    }
    found.push_back(static_cast<std::size_t>(at - known.begin()));
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

result<std::vector<balance>> parse_strategies(std::string_view text) {
  std::vector<std::string_view> known;
  known.reserve(std::size(all_strategies));
  for (const balance s : all_strategies) known.push_back(to_string(s));
  const auto found = parse_words(text, known, "strategy");
  if (!found) return found.error();
  std::vector<balance> strategies;
  strategies.reserve(found->size());
  for (const std::size_t i : *found) strategies.push_back(all_strategies[i]);
  return strategies;
}

result<std::vector<std::string>> parse_scenarios(std::string_view text) {
  std::vector<std::string_view> known;
  known.reserve(std::size(launch_scenarios) + 1);
  for (const launch_scenario& s : launch_scenarios) known.push_back(s.name);
  known.push_back("overhead");
  const auto found = parse_words(text, known, "scenario");
  if (!found) return found.error();
  std::vector<std::string> scenarios;
  for (const std::size_t i : *found) scenarios.emplace_back(known[i]);
  return scenarios;
}

result<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit{end, static_cast<std::size_t>(text.data() + text.size() - end)};
  double scale = 0;
  if (unit == "ns") scale = 1;
  if (unit == "us") scale = 1e3;
  if (unit == "ms") scale = 1e6;
  if (unit == "s" || unit.empty()) scale = 1e9;
  if (unit == "m" || unit == "min") scale = 60e9;
  // From 1e9 seconds on it is surely a slip, and near the end of the type.
  if (problem != std::errc{} || scale == 0 || !std::isfinite(value) || value < 0 || value * scale > 1e18) {
    return bad_text(fmt::format("'{}' is not a time: write 500ms, 10s or 2m", text));
  }
  return std::chrono::nanoseconds{static_cast<std::int64_t>(value * scale)};
}

result<double> parse_share(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit{end, static_cast<std::size_t>(text.data() + text.size() - end)};
  if (unit == "%") value /= 100;
  if (problem != std::errc{} || (!unit.empty() && unit != "%") || !(value >= 0 && value <= 100))
    return bad_text(fmt::format("'{}' is not a share: write 10% or 0.1", text));
  return value;
}

}  // namespace weft::tool
