// SPDX-License-Identifier: Apache-2.0
// Times as sets: what several overlapping operations cover together is counted once.
#pragma once

#include "weft/profile/time_range.hpp"

#include <vector>

namespace weft::detail {

/// Stretches of time in order, none empty, none touching the next.
class time_set {
 public:
  time_set() = default;
  /// What all of `ranges` cover together; empty ones and those that end before they begin add nothing.
  explicit time_set(std::vector<time_range> ranges);

  [[nodiscard]] const std::vector<time_range>& ranges() const { return ranges_; }
  [[nodiscard]] std::chrono::nanoseconds length() const;
  /// What is here and not in `other`.
  [[nodiscard]] time_set without(const time_set& other) const;

 private:
  std::vector<time_range> ranges_;
};

}  // namespace weft::detail
