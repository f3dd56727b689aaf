// SPDX-License-Identifier: Apache-2.0
// The instances of one array. A launch over n devices asks n times who has some elements: looking at all of them each
// time would grow with the square of n.
#pragma once

#include "exec/arrays/array_instance.hpp"

#include <memory>
#include <vector>

namespace weft::detail {

/// Thread: as its array.
class instance_list {
 public:
  /// Those that have a place in `range`, in no order that means anything. `f` may change all of an instance but its
  /// range, and not the list.
  template <class F>
  void overlapping(const interval& range, F&& f) const {
    for (const size_class& of : classes_) {
      for (auto at = first_in(of, range); at != of.by_begin.end() && (*at)->range.begin < range.end; ++at) {
        if ((*at)->range.overlaps(range)) f(**at);
      }
    }
  }

  array_instance& add(std::unique_ptr<array_instance> one);
  /// `is` is asked about all of them, which are there until it has been; it may throw, and then all stay.
  template <class Is>
  void erase_if(Is is) {
    std::vector<const array_instance*> gone;
    for (const auto& one : all_) {
      if (is(*one)) gone.push_back(one.get());
    }
    erase(gone);
  }
  /// The ranges of all but homes are `by` further on.
  void shift(std::int64_t by);

  [[nodiscard]] auto begin() const { return all_.begin(); }
  [[nodiscard]] auto end() const { return all_.end(); }
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  [[nodiscard]] const array_instance& front() const { return *all_.front(); }

 private:
  /// Instances of 2^(width−1) to 2^width − 1 elements: what overlaps begins no further back than the longest is long.
  struct size_class {
    int width = 0;
    std::vector<array_instance*> by_begin;
  };
  using place = std::vector<array_instance*>::const_iterator;
  [[nodiscard]] static place first_in(const size_class& of, const interval& range);
  void enter(array_instance& one);
  /// Those, given in the order of the list.
  void erase(const std::vector<const array_instance*>& gone) noexcept;

  std::vector<std::unique_ptr<array_instance>> all_;  // in the order in which they were made
  std::vector<size_class> classes_;
};

}  // namespace weft::detail
