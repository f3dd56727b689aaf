// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/affine_cost.hpp"

#include "core/errors/make_error.hpp"
#include "exec/balance/granules.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace weft {
namespace {

using detail::granules;

/// One device in granules.
struct runner {
  double start = 0;
  double each = 0;
  std::int64_t cap = 0;
  std::int64_t given = 0;

  [[nodiscard]] double end_of(std::int64_t n) const { return start + each * static_cast<double>(n); }
};

/// Granules done by a time, as a fraction too.
double done_by(const std::vector<runner>& runners, double time) {
  double done = 0;
  for (const runner& r : runners) {
    if (r.cap == 0 || time <= r.start) continue;
    const double n = (time - r.start) / r.each;
    done += r.cap == no_cap ? n : std::min(n, static_cast<double>(r.cap));
  }
  return done;
}

/// The least T at which the devices have done `count`: between two of their starts and ends the granules done grow
/// linearly with T. Summed anew at each of them: added up along the way, a fast device would leave its rounding to a
/// slow one.
double finish_time(const std::vector<runner>& runners, std::int64_t count) {
  std::vector<double> bends;
  for (const runner& r : runners) {
    if (r.cap == 0) continue;
    bends.push_back(r.start);
    if (r.cap != no_cap) bends.push_back(r.end_of(r.cap));
  }
  std::sort(bends.begin(), bends.end());
  bends.erase(std::unique(bends.begin(), bends.end()), bends.end());
  const auto all = static_cast<double>(count);
  const auto next =  // never the first: nothing is done by then
      std::partition_point(bends.begin() + 1, bends.end(), [&](double bend) { return done_by(runners, bend) < all; });
  const double from = *std::prev(next);
  double rate = 0;
  for (const runner& r : runners) {
    const bool runs = r.cap != 0 && r.start <= from && (r.cap == no_cap || r.end_of(r.cap) > from);
    if (runs) rate += 1 / r.each;
  }
  return rate > 0 ? from + (all - done_by(runners, from)) / rate : from;
}

/// Whole granules: each gets what it surely finishes by the common time, then one at a time goes to whoever ends first
/// with it. That is the best whole solution, since no better one gives a device less than what we began with.
double give(std::vector<runner>& runners, std::int64_t count) {
  const double until = finish_time(runners, count);
  std::int64_t left = count;
  for (runner& r : runners) {
    const double exact = (until - r.start) / r.each;
    const double sure = std::floor(exact * (1 - 0x1p-51)) - 1;  // rounding must not give one too many
    if (r.cap == 0 || !(sure > 0)) continue;
    const std::int64_t most = std::min(left, r.cap);
    r.given = sure >= static_cast<double>(most) ? most : static_cast<std::int64_t>(sure);
    left -= r.given;
  }
  using candidate = std::pair<double, std::size_t>;  // when it ends with one more, and which it is
  std::priority_queue<candidate, std::vector<candidate>, std::greater<>> next;
  const auto offer = [&](std::size_t i) {
    if (runners[i].given != runners[i].cap) next.emplace(runners[i].end_of(runners[i].given + 1), i);
  };
  for (std::size_t i = 0; left > 0 && i < runners.size(); ++i) offer(i);
  for (; left > 0; --left) {
    const std::size_t first = next.top().second;
    next.pop();
    ++runners[first].given;
    offer(first);
  }
  double end = 0;
  for (const runner& r : runners) {
    if (r.given > 0) end = std::max(end, r.end_of(r.given));
  }
  return end;
}

result<void> check(std::span<const costed_device> devices) {
  if (devices.empty()) return make_error(errc::invalid_argument, "there is no device to split over");
  for (const costed_device& d : devices) {
    const bool fine = std::isfinite(d.cost.seconds) && d.cost.seconds >= 0 && std::isfinite(d.cost.seconds_per_item) &&
                      d.cost.seconds_per_item > 0;
    if (!fine) {
      return make_error(errc::invalid_argument, to_string(d.id) + " takes " + std::to_string(d.cost.seconds) +
                                                    " s and " + std::to_string(d.cost.seconds_per_item) +
                                                    " s for each item: the first is 0 or more, the second more than 0");
    }
    if (d.cap < 0) {
      return make_error(errc::invalid_argument,
                        to_string(d.id) + " has a cap of " + std::to_string(d.cap) + " items: a cap is 0 or more");
    }
  }
  return {};
}

}  // namespace

result<equal_finish> finish_together(std::int64_t items, std::span<const costed_device> devices,
                                     const split_options& options) {
  if (auto fine = detail::check_range(items, options.granularity); !fine) return std::move(fine).error();
  if (auto fine = check(devices); !fine) return std::move(fine).error();
  const granules grid{items, options.granularity};

  std::vector<device_id> ids;
  std::vector<std::int64_t> caps;
  std::vector<std::int64_t> caps_in_items;
  std::int64_t room = 0;
  for (const costed_device& d : devices) {
    ids.push_back(d.id);
    caps_in_items.push_back(d.cap);
    caps.push_back(grid.holding(d.cap));
    room += std::min(caps.back(), grid.count() - room);
  }
  if (items > 0 && room == 0) return detail::nobody_can_hold(grid, ids, caps_in_items);

  equal_finish made;
  made.split.in_passes = room < grid.count();
  const bool cap_is_total = options.keeps_data && !made.split.in_passes;
  std::vector<runner> runners(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const affine_cost& cost = devices[i].cost;
    runner& r = runners[i];
    r.start = cost.seconds;
    r.each = cost.seconds_per_item * static_cast<double>(grid.size());
    r.cap = caps[i];
    if (cap_is_total || r.cap == 0 || r.cap >= grid.count()) continue;
    // each pass starts anew: part of what an item costs
    r.each += r.start / static_cast<double>(r.cap);
    r.start = 0;
    r.cap = no_cap;
  }
  if (items > 0) give(runners, grid.count());
  std::vector<std::int64_t> counts;
  counts.reserve(runners.size());
  for (const runner& r : runners) counts.push_back(r.given);
  made.split.shares = detail::lay_out(grid, ids, counts, caps);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const share& s = made.split.shares[i];
    if (s.count == 0) continue;
    ++made.devices;
    const affine_cost& cost = devices[i].cost;
    made.seconds = std::max(made.seconds, static_cast<double>(s.passes()) * cost.seconds +
                                              static_cast<double>(s.count) * cost.seconds_per_item);
  }
  return made;
}

bool worth_moving(double seconds_now, double seconds_then, double repeats, double seconds_to_move) {
  const double gain = seconds_now - seconds_then;
  return gain > 0.02 * seconds_now && gain * repeats > seconds_to_move;
}

}  // namespace weft
