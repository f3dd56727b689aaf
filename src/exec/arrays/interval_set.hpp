// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace weft::detail {

/// Elements begin … end − 1.
struct interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t count() const { return end - begin; }
  [[nodiscard]] bool empty() const { return end <= begin; }
  [[nodiscard]] bool overlaps(const interval& other) const { return begin < other.end && other.begin < end; }
  [[nodiscard]] bool covers(const interval& other) const { return begin <= other.begin && other.end <= end; }
  friend bool operator==(const interval&, const interval&) = default;
};

[[nodiscard]] inline interval common(const interval& a, const interval& b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

/// A set of elements as disjoint runs in order, none touching the next.
class interval_set {
 public:
  interval_set() = default;
  explicit interval_set(const interval& one) { add(one); }

  void add(const interval& more);
  void remove(const interval& gone) {
    if (!runs_.empty() && runs_.front().begin < gone.end && gone.begin < runs_.back().end) take_out(gone);
  }
  void clear() { runs_.clear(); }

  [[nodiscard]] bool empty() const { return runs_.empty(); }
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] bool covers(const interval& all) const;
  /// The parts of `within` that are in the set, and those that are not.
  [[nodiscard]] std::vector<interval> inside(const interval& within) const;
  [[nodiscard]] std::vector<interval> outside(const interval& within) const;
  [[nodiscard]] const std::vector<interval>& runs() const { return runs_; }

 private:
  void take_out(const interval& gone);

  std::vector<interval> runs_;
};

}  // namespace weft::detail
