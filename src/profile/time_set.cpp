// SPDX-License-Identifier: Apache-2.0
#include "profile/time_set.hpp"

#include <algorithm>

namespace weft::detail {

time_set::time_set(std::vector<time_range> ranges) {
  std::erase_if(ranges, [](const time_range& r) { return r.end <= r.begin; });
  std::sort(ranges.begin(), ranges.end(), [](const time_range& a, const time_range& b) { return a.begin < b.begin; });
  for (const time_range& r : ranges) {
    if (!ranges_.empty() && r.begin <= ranges_.back().end) {
      ranges_.back().end = std::max(ranges_.back().end, r.end);
    } else {
      ranges_.push_back(r);
    }
  }
}

std::chrono::nanoseconds time_set::length() const {
  std::chrono::nanoseconds sum{0};
  for (const time_range& r : ranges_) sum += r.end - r.begin;
  return sum;
}

time_set time_set::without(const time_set& other) const {
  time_set left;
  auto hole = other.ranges_.begin();
  for (time_range r : ranges_) {
    while (hole != other.ranges_.end() && hole->end <= r.begin) ++hole;
    // the last hole may reach into the next range: it is looked at again there
    for (auto h = hole; h != other.ranges_.end() && h->begin < r.end; ++h) {
      if (r.begin < h->begin) left.ranges_.push_back({r.begin, h->begin});
      r.begin = h->end;
    }
    if (r.begin < r.end) left.ranges_.push_back(r);
  }
  return left;
}

}  // namespace weft::detail
