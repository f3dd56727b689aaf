// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/split.hpp"

#include "core/errors/make_error.hpp"
#include "exec/balance/granules.hpp"

#include <cmath>
#include <numeric>

namespace weft {
namespace {

using detail::granules;

struct portion {
  double weight = 0;     // relative to the largest
  std::int64_t cap = 0;  // granules
  std::int64_t given = 0;
  double remainder = 0;
};

bool all_equal(const std::vector<portion*>& parts) {
  return std::all_of(parts.begin(), parts.end(), [&](const portion* p) { return p->weight == parts.front()->weight; });
}

/// What a proportional share of `rest` is for one of `parts`, whole granules; the remainder is kept.
void give_proportion(const std::vector<portion*>& parts, std::int64_t rest) {
  if (all_equal(parts)) {  // exact where doubles are not
    for (portion* p : parts) {
      p->given = rest / static_cast<std::int64_t>(parts.size());
      p->remainder = 0;
    }
    return;
  }
  double total = 0;
  for (const portion* p : parts) total += p->weight;
  std::int64_t left = rest;
  for (portion* p : parts) {
    const double exact = static_cast<double>(rest) * p->weight / total;
    const double whole = std::floor(exact);
    // a double of 2^63 does not fit
    p->given = whole >= static_cast<double>(left) ? left : static_cast<std::int64_t>(whole);
    p->remainder = exact - whole;
    left -= p->given;
  }
}

/// Proportional shares; whoever would get more than it holds gets what it holds, and the rest is divided anew. The caps
/// hold `count` together.
void fill(std::vector<portion>& all, std::int64_t count) {
  std::vector<portion*> open;
  for (portion& p : all) {
    if (p.weight > 0 && p.cap > 0) open.push_back(&p);
  }
  std::int64_t rest = count;
  for (bool changed = true; changed && !open.empty();) {
    give_proportion(open, rest);
    changed = false;
    for (auto at = open.begin(); at != open.end();) {
      portion& p = **at;
      if (p.given < p.cap) {
        ++at;
        continue;
      }
      p.given = p.cap;
      rest -= p.cap;
      changed = true;
      at = open.erase(at);
    }
  }
  std::int64_t left = count;
  for (const portion& p : all) left -= p.given;
  std::sort(open.begin(), open.end(), [](const portion* a, const portion* b) {
    return a->remainder != b->remainder ? a->remainder > b->remainder : a < b;  // all lie in one vector
  });
  // More than one round only where a double is coarser than a granule.
  while (left > 0 && !open.empty()) {
    const std::int64_t each = std::max<std::int64_t>(1, left / static_cast<std::int64_t>(open.size()));
    for (portion* p : open) {
      const std::int64_t more = std::min({each, left, p->cap - p->given});
      p->given += more;
      left -= more;
    }
    std::erase_if(open, [](const portion* p) { return p->given == p->cap; });
  }
}

result<void> check(std::span<const split_device> devices) {
  bool weighted = false;
  for (const split_device& d : devices) {
    if (!std::isfinite(d.weight) || d.weight < 0) {
      return make_error(errc::invalid_argument, to_string(d.id) + " has weight " + std::to_string(d.weight) +
                                                    ": a weight is 0 or a positive number");
    }
    if (d.cap < 0) {
      return make_error(errc::invalid_argument,
                        to_string(d.id) + " has a cap of " + std::to_string(d.cap) + " items: a cap is 0 or more");
    }
    weighted = weighted || d.weight > 0;
  }
  if (devices.empty()) return make_error(errc::invalid_argument, "there is no device to split over");
  if (!weighted) return make_error(errc::invalid_argument, "all devices have weight 0: give one of them a share");
  return {};
}

}  // namespace

piece share::piece_of(std::int64_t pass) const {
  const std::int64_t before = pass * at_once;
  return {device, first + before, std::min(at_once, count - before)};
}

namespace detail {

std::vector<share> lay_out(const granules& grid, std::span<const device_id> ids, std::span<const std::int64_t> counts,
                           std::span<const std::int64_t> caps) {
  std::vector<share> laid;
  laid.reserve(ids.size());
  std::int64_t at = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    share made{ids[i], grid.begin_of(at), 0, 0};
    const std::int64_t n = counts[i];
    made.count = grid.begin_of(at + n) - made.first;
    if (n > 0) {
      const std::int64_t passes = (n - 1) / std::max<std::int64_t>(1, caps[i]) + 1;
      const std::int64_t step = (n - 1) / passes + 1;
      made.at_once = passes == 1 ? made.count : step * grid.size();
    }
    at += n;
    laid.push_back(made);
  }
  return laid;
}

error nobody_can_hold(const granules& grid, std::span<const device_id> ids, std::span<const std::int64_t> caps) {
  std::string text = "no device can hold " + std::string{grid.size() == 1 ? "one item" : "one granule of "} +
                     (grid.size() == 1 ? "" : std::to_string(grid.size()) + " items") + ":";
  for (std::size_t i = 0; i < ids.size(); ++i) {
    text += (i > 0 ? ", " : " ") + to_string(ids[i]) + " holds " + std::to_string(caps[i]);
  }
  return make_error(errc::out_of_memory, text + "; raise the memory cap or split finer");
}

}  // namespace detail

result<item_split> split(std::int64_t items, std::span<const split_device> devices, const split_options& options) {
  if (auto fine = detail::check_range(items, options.granularity); !fine) return std::move(fine).error();
  if (auto fine = check(devices); !fine) return std::move(fine).error();
  const granules grid{items, options.granularity};

  std::vector<portion> parts(devices.size());
  std::vector<device_id> ids;
  std::vector<device_id> with_weight;
  std::vector<std::int64_t> caps;
  std::vector<std::int64_t> caps_in_items;
  double largest = 0;
  for (const split_device& d : devices) largest = std::max(largest, d.weight);
  std::int64_t room = 0;  // of those that take part, no more than all of it
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const split_device& d = devices[i];
    parts[i].weight = d.weight / largest;  // the sum of the largest doubles is not finite
    ids.push_back(d.id);
    caps.push_back(grid.holding(d.cap));
    if (parts[i].weight <= 0) continue;
    room += std::min(caps[i], grid.count() - room);
    with_weight.push_back(d.id);
    caps_in_items.push_back(d.cap);
  }
  if (items > 0 && room == 0) return detail::nobody_can_hold(grid, with_weight, caps_in_items);

  item_split made;
  made.in_passes = room < grid.count();
  const bool cap_is_total = options.keeps_data && !made.in_passes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].cap = cap_is_total ? caps[i] : caps[i] > 0 ? no_cap : 0;
  }
  fill(parts, grid.count());
  std::vector<std::int64_t> counts;
  counts.reserve(parts.size());
  for (const portion& p : parts) counts.push_back(p.given);
  made.shares = detail::lay_out(grid, ids, counts, caps);
  return made;
}

}  // namespace weft
