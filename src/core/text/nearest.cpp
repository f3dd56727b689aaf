// SPDX-License-Identifier: Apache-2.0
#include "core/text/nearest.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace weft {
namespace {

constexpr std::size_t longest_name = 64;  // nobody misspells longer names, and the table stays small

// Insertions, deletions, changes and swaps of neighbours that turn one name into the other.
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

}  // namespace

std::optional<std::string_view> nearest_name(std::string_view name, std::span<const std::string_view> known) {
  if (name.empty() || name.size() > longest_name) return std::nullopt;
  std::optional<std::string_view> best;
  std::size_t fewest = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    if (candidate.size() > longest_name) continue;
    const std::size_t edits = edits_between(name, candidate);
    if (edits < fewest && edits < candidate.size()) {
      fewest = edits;
      best = candidate;
    }
  }
  return best;
}

}  // namespace weft
