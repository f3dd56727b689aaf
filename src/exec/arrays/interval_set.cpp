// SPDX-License-Identifier: Apache-2.0
#include "exec/arrays/interval_set.hpp"

#include <algorithm>
#include <iterator>

namespace weft::detail {
namespace {

/// The first run that ends at or after `at`.
auto first_reaching(const std::vector<interval>& runs, std::int64_t at) {
  return std::lower_bound(runs.begin(), runs.end(), at,
                          [](const interval& run, std::int64_t place) { return run.end < place; });
}

}  // namespace

void interval_set::add(const interval& more) {
  if (more.empty()) return;
  interval grown = more;
  const auto from = first_reaching(runs_, more.begin);
  auto to = from;
  while (to != runs_.end() && to->begin <= more.end) {
    grown.begin = std::min(grown.begin, to->begin);
    grown.end = std::max(grown.end, to->end);
    ++to;
  }
  runs_.insert(runs_.erase(from, to), grown);
}

void interval_set::take_out(const interval& gone) {
  if (gone.empty()) return;
  auto from = runs_.begin() + (first_reaching(runs_, gone.begin + 1) - runs_.begin());
  if (from == runs_.end() || from->begin >= gone.end) return;
  auto to = from;
  while (to != runs_.end() && to->begin < gone.end) ++to;
  const interval before{from->begin, gone.begin}, behind{gone.end, std::prev(to)->end};
  if (!before.empty() && !behind.empty() && to - from == 1) {
    from = runs_.insert(from, before);
    *std::next(from) = behind;
    return;
  }
  if (!before.empty()) *from++ = before;
  if (!behind.empty()) *--to = behind;
  runs_.erase(from, to);
}

std::int64_t interval_set::count() const {
  std::int64_t sum = 0;
  for (const interval& run : runs_) sum += run.count();
  return sum;
}

bool interval_set::covers(const interval& all) const {
  if (all.empty()) return true;
  const auto run = first_reaching(runs_, all.begin + 1);
  return run != runs_.end() && run->covers(all);
}

std::vector<interval> interval_set::inside(const interval& within) const {
  std::vector<interval> found;
  if (within.empty()) return found;
  for (auto run = first_reaching(runs_, within.begin + 1); run != runs_.end() && run->begin < within.end; ++run) {
    found.push_back(common(*run, within));
  }
  return found;
}

std::vector<interval> interval_set::outside(const interval& within) const {
  std::vector<interval> found;
  std::int64_t at = within.begin;
  for (const interval& part : inside(within)) {
    if (at < part.begin) found.push_back({at, part.begin});
    at = part.end;
  }
  if (at < within.end) found.push_back({at, within.end});
  return found;
}

}  // namespace weft::detail
