// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/balancer.hpp"

#include "exec/balance/find_onward.hpp"
#include "exec/balance/granules.hpp"

#include <cmath>

namespace weft {
namespace {

using detail::granules;

/// A chunk lasts at least this many times what it costs to start: 5 % at most is lost to starting.
constexpr double starts_per_chunk = 20;
/// Where the cost of a start is not known, no chunk is less than this part of the whole.
constexpr std::int64_t finest_part = 4096;
/// The first chunk of a device of unknown speed: this part of the whole.
constexpr double probe_part = 64;
/// A share that others may steal from is begun in this many pieces, a stolen one in half as many: what has begun cannot
/// be stolen. With 8 a device that slows down in the middle of a piece costs 8 % (balance_test: C), with 32 the starts
/// do.
constexpr std::int64_t pieces_to_steal = 16;
/// A speed this many times off is believed when the next one says so too.
constexpr double odd_factor = 3;

/// x as a count of granules within 1 … most.
std::int64_t clamped(double x, std::int64_t most) {
  if (!(x >= 1)) return std::min<std::int64_t>(1, most);
  return x >= static_cast<double>(most) ? most : static_cast<std::int64_t>(x);
}

}  // namespace

std::int64_t items_to_steal(std::int64_t left, double victim_rate, double thief_rate, double thief_chunk_seconds,
                            double moved_item_seconds) {
  if (left < 1 || !(thief_rate > 0)) return 0;
  const auto all = static_cast<double>(left);
  const double thief_item = 1 / thief_rate + moved_item_seconds;
  if (!(victim_rate > 0)) return left;
  const double victim_item = 1 / victim_rate;
  // (left − s) · victim = start + s · thief
  const double both = (all * victim_item - thief_chunk_seconds) / (victim_item + thief_item);
  if (!(both >= 1)) return 0;
  return both >= all ? left : static_cast<std::int64_t>(both);
}

balancer::balancer(const balance_request& request, const balance_plan& plan)
    : items_(request.items),
      grain_(granules{request.items, request.granularity}.size()),
      grid_count_(granules{request.items, request.granularity}.count()),
      most_(grid_count_),
      strategy_(plan.strategy),
      keeps_data_(request.keeps_data && !plan.in_passes),
      divisor_(request.guided_divisor),
      moved_item_seconds_(request.moved_item_seconds) {
  const granules grid{items_, grain_};
  workers_.reserve(request.devices.size());
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    const balance_device& d = request.devices[i];
    const share& s = plan.shares[i];
    add_worker(d);
    worker& w = workers_.back();
    w.takes_part = s.count > 0;
    w.is_spare = s.count == 0 && w.cap > 0 && (strategy_ != balance::weighted || d.weight > 0);
    if (strategy_ != balance::guided && s.count > 0) {
      w.own = {grid.at(s.first), grid.at(s.first + s.count)};
      w.step = s.passes() == 1 ? w.own.count() : s.at_once / grain_;
      if (strategy_ == balance::work_stealing) {
        w.step = std::min(w.step, (w.own.count() - 1) / pieces_to_steal + 1);
      }
    }
  }
  if (strategy_ == balance::guided && grid_count_ > 0) pool_.push_back({0, grid_count_});
}

balancer::balancer(const balance_request& request, std::span<const piece> placed)
    : items_(request.items),
      grain_(granules{request.items, request.granularity}.size()),
      grid_count_(granules{request.items, request.granularity}.count()),
      most_(grid_count_),
      strategy_(balance::dynamic),
      keeps_data_(request.keeps_data),
      divisor_(request.guided_divisor),
      moved_item_seconds_(request.moved_item_seconds) {
  const granules grid{items_, grain_};
  for (const balance_device& d : request.devices) {
    add_worker(d);
    worker& w = workers_.back();
    for (auto p = placed.rbegin(); p != placed.rend(); ++p) {
      if (p->device == d.id && p->count > 0) w.placed.push_back({grid.at(p->first), grid.at(p->first + p->count)});
    }
    w.takes_part = !w.placed.empty();
    w.is_spare = w.placed.empty() && w.cap > 0;
  }
}

void balancer::add_worker(const balance_device& d) {
  worker w;
  w.id = d.id;
  w.rate = d.items_per_second;
  w.nominal = d.nominal_speed;
  w.chunk_seconds = d.chunk_seconds;
  w.cap = granules{items_, grain_}.holding(d.cap);
  workers_.push_back(std::move(w));
}

balancer::worker* balancer::find(device_id device) {
  return detail::find_onward(workers_, found_, [&](const worker& w) { return w.id == device; });
}

std::int64_t balancer::room(const worker& w) const {
  if (!w.takes_part) return 0;
  return keeps_data_ ? w.cap - w.held : w.cap;
}

/// Its own rate; without one, what its nominal speed makes likely beside the measured ones.
double balancer::likely_rate(const worker& w) const {
  if (w.rate > 0) return w.rate;
  double measured = 0;
  double nominal = 0;
  for (const worker& other : workers_) {
    if (!(other.rate > 0)) continue;
    measured += other.rate;
    nominal += other.nominal;
  }
  return nominal > 0 ? w.nominal * measured / nominal : w.nominal;
}

double balancer::speed(device_id device) const {
  const auto w = std::find_if(workers_.begin(), workers_.end(), [&](const worker& one) { return one.id == device; });
  return w == workers_.end() ? 0 : likely_rate(*w);
}

std::int64_t balancer::pool_count() const {
  std::int64_t count = 0;
  for (const run& r : pool_) count += r.count();
  return count;
}

std::int64_t balancer::least_chunk(const worker& w) const {
  if (w.chunk_seconds > 0) {
    if (!(w.rate > 0)) return 1;
    return clamped(std::ceil(starts_per_chunk * w.chunk_seconds * w.rate / static_cast<double>(grain_)), grid_count_);
  }
  return std::max<std::int64_t>(1, grid_count_ / finest_part);
}

std::int64_t balancer::chunk_of_pool(const worker& w) const {
  double all = 0;
  double nominal = 0;
  for (const worker& other : workers_) {
    if (room(other) <= 0) continue;
    all += likely_rate(other);
    nominal = std::max(nominal, other.nominal);
  }
  const std::int64_t left = pool_count();
  const auto whole = static_cast<double>(left);
  std::int64_t least = least_chunk(w);
  double chunk = whole * likely_rate(w) / (divisor_ * all);
  if (!(w.rate > 0)) {
    // A wrong guess must not cost more than a sliver: a slow device would end long after the others.
    const double part = std::max(probe_part, 4 * static_cast<double>(workers_.size()));
    chunk = std::min(chunk, static_cast<double>(grid_count_) / part * (w.nominal / nominal));
    least = 1;
  }
  return std::max(clamped(chunk, left), std::min(least, left));
}

std::int64_t balancer::chunk_of_own(const worker& w) const {
  if (strategy_ != balance::work_stealing) return w.step;
  // Smaller towards the end, so that there is something left to steal until it no longer pays.
  const std::int64_t half = w.own.count() - w.own.count() / 2;
  return std::min(w.own.count(), std::max(least_chunk(w), std::min(w.step, half)));
}

piece balancer::handed(worker& to, run& from, std::int64_t count) {
  const granules grid{items_, grain_};
  const std::int64_t n = std::min({count, from.count(), room(to), std::max(most_, least_chunk(to))});
  const std::int64_t first = grid.begin_of(from.begin);
  from.begin += n;
  if (keeps_data_) to.held += n;
  return {to.id, first, grid.begin_of(from.begin) - first};
}

std::optional<piece> balancer::next(device_id device) {
  worker* w = find(device);
  if (w == nullptr || room(*w) <= 0) return std::nullopt;
  if (w->own.count() == 0 && !w->placed.empty()) {
    w->own = w->placed.back();
    w->placed.pop_back();
    w->step = w->own.count();
  }
  if (w->own.count() == 0 && pool_.empty() && strategy_ == balance::work_stealing) steal(*w);
  if (w->own.count() > 0) return handed(*w, w->own, chunk_of_own(*w));
  if (pool_.empty()) return std::nullopt;
  const piece taken = handed(*w, pool_.back(), chunk_of_pool(*w));
  if (pool_.back().count() == 0) pool_.pop_back();
  return taken;
}

void balancer::steal(worker& thief) {
  worker* victim = nullptr;
  double longest = 0;
  for (worker& w : workers_) {
    if (w.own.count() == 0) continue;
    const double time = static_cast<double>(w.own.count()) / likely_rate(w);
    if (time <= longest) continue;
    victim = &w;
    longest = time;
  }
  if (victim == nullptr) return;
  // In granules: rates and the cost of moving per granule.
  const auto size = static_cast<double>(grain_);
  const std::int64_t wanted =
      items_to_steal(victim->own.count(), likely_rate(*victim) / size, likely_rate(thief) / size, thief.chunk_seconds,
                     moved_item_seconds_ * size);
  const std::int64_t taken = std::min(wanted, room(thief));
  if (taken == 0) return;
  thief.own = {victim->own.end - taken, victim->own.end};
  victim->own.end -= taken;
  thief.step = std::max<std::int64_t>(1, taken / (pieces_to_steal / 2));
}

void balancer::finished(const piece& done, double seconds) {
  const granules grid{items_, grain_};
  const std::int64_t n = grid.at(done.first + done.count) - grid.at(done.first);
  finished_ += n;
  worker* w = find(done.device);
  if (w == nullptr || !(seconds > 0) || !std::isfinite(seconds) || done.count <= 0) return;
  // The start of a chunk is no part of the speed; where it is overestimated, half of the time is still the items'.
  const double running = std::max(seconds - w->chunk_seconds, seconds / 2);
  const double rate = static_cast<double>(done.count) / running;
  if (!(w->rate > 0)) {
    w->rate = rate;
    ++w->samples;
    return;
  }
  const bool odd = rate > odd_factor * w->rate || rate * odd_factor < w->rate;
  if (odd && !w->was_odd) {
    w->was_odd = true;
    return;
  }
  // The second odd one in a row: the device has changed, or the first sample was the odd one.
  const double weight = odd ? 1 : w->samples < 4 ? 0.5 : 0.3;
  w->was_odd = false;
  w->rate += weight * (rate - w->rate);
  ++w->samples;
}

void balancer::give_back(const piece& undone) {
  const granules grid{items_, grain_};
  const run back{grid.at(undone.first), grid.at(undone.first + undone.count)};
  if (back.count() == 0) return;
  if (worker* w = find(undone.device); w != nullptr && keeps_data_) w->held -= back.count();
  pool_.push_back(back);
  keep_within_caps();
}

void balancer::return_excess(worker& w) {
  if (!w.takes_part) {
    pool_.insert(pool_.end(), w.placed.begin(), w.placed.end());
    w.placed.clear();
  }
  const std::int64_t kept = std::min(w.own.count(), std::max<std::int64_t>(0, room(w)));
  if (kept == w.own.count()) return;
  pool_.push_back({w.own.begin + kept, w.own.end});
  w.own.end = w.own.begin + kept;
}

/// Where the room that is left does not hold what is left, data cannot stay until the end.
void balancer::keep_within_caps() {
  if (!keeps_data_) return;
  const std::int64_t needed = [&] {
    std::int64_t count = pool_count();
    for (const worker& w : workers_) {
      count += w.own.count();
      for (const run& r : w.placed) count += r.count();
    }
    return count;
  }();
  std::int64_t space = 0;
  for (const worker& w : workers_) space += std::min(std::max<std::int64_t>(0, room(w)), needed - space);
  keeps_data_ = space >= needed;
}

void balancer::limit(device_id device, std::int64_t cap) {
  worker* w = find(device);
  if (w == nullptr) return;
  w->cap = std::min(w->cap, granules{items_, grain_}.holding(std::max<std::int64_t>(0, cap)));
  if (w->cap == 0) return drop(device);
  keep_within_caps();
  if (keeps_data_) return_excess(*w);
}

void balancer::limit_pieces(std::int64_t items) { most_ = std::max<std::int64_t>(1, items / grain_); }

void balancer::drop(device_id device) {
  worker* w = find(device);
  if (w == nullptr) return;
  w->takes_part = false;
  w->is_spare = false;
  return_excess(*w);
  const auto works = [](const worker& other) { return other.takes_part; };
  if (std::none_of(workers_.begin(), workers_.end(), works)) {
    for (worker& other : workers_) other.takes_part = other.is_spare;
  }
  keep_within_caps();
}

std::int64_t balancer::unassigned() const {
  const granules grid{items_, grain_};
  std::int64_t count = 0;
  const auto add = [&](const run& r) { count += grid.begin_of(r.end) - grid.begin_of(r.begin); };
  for (const run& r : pool_) add(r);
  for (const worker& w : workers_) {
    add(w.own);
    for (const run& r : w.placed) add(r);
  }
  return count;
}

bool balancer::has_taker() const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const worker& w) { return room(w) > 0; });
}

}  // namespace weft
