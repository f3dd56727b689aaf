// SPDX-License-Identifier: Apache-2.0
#include "exec/arrays/instance_list.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace weft::detail {
namespace {

int width_of(const interval& range) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(range.count())));
}

/// For orders by begin: an instance before a place.
bool begins_before(const array_instance* one, std::int64_t place) { return one->range.begin < place; }

}  // namespace

instance_list::place instance_list::first_in(const size_class& of, const interval& range) {
  constexpr int widest = 61;  // what is longer may begin anywhere
  if (of.width > widest) return of.by_begin.begin();
  const std::int64_t longest = (std::int64_t{1} << of.width) - 1;
  return std::lower_bound(of.by_begin.begin(), of.by_begin.end(), range.begin - longest + 1, begins_before);
}

void instance_list::enter(array_instance& one) {
  const int width = width_of(one.range);
  auto of = std::find_if(classes_.begin(), classes_.end(), [&](const size_class& c) { return c.width == width; });
  if (of == classes_.end()) of = classes_.insert(of, {width, {}});
  std::vector<array_instance*>& list = of->by_begin;
  list.insert(std::lower_bound(list.begin(), list.end(), one.range.begin + 1, begins_before), &one);
}

void instance_list::erase(const std::vector<const array_instance*>& gone) noexcept {
  for (const array_instance* one : gone) {
    for (size_class& of : classes_) {
      if (of.width == width_of(one->range)) std::erase(of.by_begin, one);
    }
  }
  auto next = gone.begin();
  std::erase_if(all_, [&](const auto& one) {
    if (next == gone.end() || one.get() != *next) return false;
    ++next;
    return true;
  });
}

array_instance& instance_list::add(std::unique_ptr<array_instance> one) {
  if (all_.size() == all_.capacity()) all_.reserve(2 * all_.size() + 2);
  enter(*one);
  all_.push_back(std::move(one));  // into room that is there: what is in one list is in the other
  return *all_.back();
}

void instance_list::shift(std::int64_t by) {
  for (const auto& one : all_) {
    if (!one->is_home) one->range = {one->range.begin + by, one->range.end + by};
  }
  for (size_class& of : classes_) {
    std::ranges::sort(of.by_begin, {}, [](const array_instance* one) { return one->range.begin; });
  }
}

}  // namespace weft::detail
