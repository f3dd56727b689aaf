// SPDX-License-Identifier: Apache-2.0
#include "exec/arrays/array_body.hpp"

#include "core/errors/called_from.hpp"
#include "exec/split_launch/launch_job.hpp"
#include "exec/split_launch/launch_state.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

namespace weft::detail {
namespace {

std::string text_of(const interval& range) {
  return std::to_string(range.begin) + " … " + std::to_string(range.end - 1);
}

[[noreturn]] void raise_undefined(const interval& range, std::source_location where) {
  raise(errc::invalid_argument, "elements " + text_of(range) + " are read, and nothing has written them", where);
}

interval turned(const interval& range, std::int64_t by) { return {range.begin + by, range.end + by}; }

bool is_done(const event& e) { return !e.record() || (e.record()->finished() && !e.record()->cause()); }

bool are_same(const event& a, const event& b) { return a.record().get() == b.record().get(); }

bool has_failed(const event& e) { return e.record() && e.record()->finished() && e.record()->cause(); }

/// Later uses need not know of it: it has ended well, or was a read that failed, which left the elements alone.
bool is_over(const array_use& use) { return is_done(use.done) || (!use.writes && has_failed(use.done)); }

/// Takes `range` out of those uses that `is_meant` is true of.
template <class Is>
void forget(std::vector<array_use>& uses, const interval& range, Is is_meant) {
  const auto is_replaced = [&](const array_use& use) { return use.range.overlaps(range) && is_meant(use); };
  const auto replaced = static_cast<std::size_t>(std::ranges::count_if(uses, is_replaced));
  if (replaced == 0) return;
  std::vector<array_use> kept;
  kept.reserve(uses.size() + replaced);  // nothing fails once some have been moved
  for (array_use& use : uses) {
    if (!is_replaced(use)) {
      kept.push_back(std::move(use));
      continue;
    }
    for (const interval& part : {interval{use.range.begin, range.begin}, interval{range.end, use.range.end}}) {
      if (!part.empty()) kept.push_back({part, use.writes, use.done});
    }
  }
  uses = std::move(kept);
}

/// Elements that are written anew need not know of a use that failed.
void forget_failed(std::vector<array_use>& uses, const interval& range) {
  forget(uses, range, [](const array_use& use) { return has_failed(use.done); });
}

/// Makes a stream wait for an event, unless the event is of that stream itself.
void wait_in(const stream& order, const event& e) {
  const auto& record = *e.record();
  if (record.stream == static_cast<std::uint64_t>(order.native()) && record.device == order.on().id()) return;
  order.wait(e);
}

}  // namespace

void array_body::borrow(const memory_ref& home) {
  auto made = std::make_unique<array_instance>();
  const bool host = home.state == nullptr;
  const bool of_one_device = !host && (home.kind == memory_kind::device || home.kind == memory_kind::block ||
                                       home.kind == memory_kind::mapped);
  made->device = of_one_device ? home.device : device_id{};
  made->is_shared = !host && !of_one_device;
  made->is_foreign = host;
  made->is_home = true;
  made->range = all();
  made->address = static_cast<std::byte*>(home.address);
  made->kind = home.kind;
  made->valid.add(all());
  instances_.add(std::move(made));
}

void array_body::adopt(const device& by, const memory_ref& home) {
  borrow(home);
  array_instance& place = **instances_.begin();
  place.owned = unique_handle<memory_traits>{detail::adopt(by, home.address, home.size, {})};
  place.is_shared = true;
  place.is_foreign = false;
  place.kind = memory_kind::adopted;
}

void array_body::set(std::span<const std::byte> pattern) {
  pattern_.assign(pattern.begin(), pattern.end());
  constant_.add(all());
}

memory_ref array_body::reference(const array_instance& in, const interval& range) const {
  memory_ref ref;
  ref.state = in.is_foreign ? nullptr : machine_.get();
  ref.address = in.address + static_cast<std::uint64_t>(range.begin - in.range.begin) * element();
  ref.size = static_cast<std::uint64_t>(range.count()) * element();
  ref.device = in.device == device_id{} ? device_id{0} : in.device;
  ref.kind = in.kind;
  return ref;
}

/// The parts of `wanted` that no device needs to be sent: every element of them is the pattern.
std::vector<interval> array_body::constant_at(const interval& wanted) const {
  std::vector<interval> made;
  for (const std::int64_t by : turns()) {
    for (const interval& part : constant_.inside(turned(wanted, by))) made.push_back(turned(part, -by));
  }
  return made;
}

interval array_body::with_room(const interval& range) const {
  if (passes_through_) return range;
  return common({-beyond_, count() + beyond_}, {range.begin - halo_, range.end + halo_});
}

bool array_body::share_elements(const interval& a, const interval& b) const {
  const auto all_turns = turns();
  return std::any_of(all_turns.begin(), all_turns.end(), [&](std::int64_t by) { return turned(a, by).overlaps(b); });
}

/// The elements of `wanted` that are valid in an instance, each once: where they are wanted if they are there.
std::vector<array_body::held_part> array_body::held(const array_instance& place, const interval& wanted) const {
  std::vector<held_part> made;
  interval_set left{wanted};
  for (const std::int64_t by : turns()) {
    for (const interval& missing : std::vector<interval>{left.runs()}) {
      for (const interval& there : place.valid.inside(turned(missing, by))) {
        made.push_back({turned(there, -by), by});
        left.remove(made.back().range);
      }
    }
  }
  return made;
}

/// Without the copies that are a turn away.
std::vector<interval> array_body::elements_of(const interval_set& places) const {
  if (beyond_ == 0) return places.runs();
  interval_set made;
  for (const interval& run : places.runs()) {
    for (const std::int64_t by : turns()) {
      if (const interval inside = common(all(), turned(run, by)); !inside.empty()) made.add(inside);
    }
  }
  return made.runs();
}

/// Of the memories that hold the range: the one that lacks least; for what is only written, where nothing has to come,
/// the one with the most room for halos.
array_instance* array_body::find(const array_need& need) {
  const interval wide = with_room(need.range);
  array_instance* best = nullptr;
  std::pair<std::int64_t, std::int64_t> most{-1, -1};
  instances_.overlapping(need.range, [&](array_instance& one) {
    if ((one.device != need.device && !one.is_shared) || !one.range.covers(need.range)) return;
    std::int64_t valid = 0;
    for (const interval& part : one.valid.inside(need.range)) valid += part.count();
    const std::int64_t room = common(one.range, wide).count();
    const auto worth = need.reads ? std::pair{valid, room} : std::pair{room, valid};
    if (worth > most) {
      most = worth;
      best = &one;
    }
  });
  return best;
}

void array_body::order(const stream& stream, array_instance& where, const interval& range, bool writes) {
  for (const array_use& use : where.uses) {
    if ((use.writes || writes) && use.range.overlaps(range) && !is_over(use)) wait_in(stream, use.done);
  }
}

void array_body::wrote(array_instance& to, const interval& range) {
  constant_.remove(range);
  forget(unwritten_, range, [](const array_use&) { return true; });
  for (const std::int64_t by : turns()) {
    const interval copy = turned(range, by);
    for (interval_set& set : had_) set.remove(copy);
    instances_.overlapping(copy, [&](array_instance& one) {
      if (&one == &to && by == 0) return;
      one.valid.remove(copy);
      is_untidy_ = true;
      // what failed to come here has been replaced, and is of no interest any more
      forget_failed(one.uses, copy);
    });
  }
  had_by(to.device).add(range);
  to.valid.add(range);
}

void array_body::leave_unwritten(const interval& range, const event& failed) {
  if (range.empty()) return;
  unwritten_.push_back({range, true, failed});  // first: memory may be short for what follows
  forget(unwritten_, range, [&](const array_use& use) { return !are_same(use.done, failed); });
}

std::vector<event> array_body::unwritten(const interval& range) const {
  std::vector<event> found;
  for (const array_use& use : unwritten_) {
    const auto is_it = [&](const event& e) { return are_same(e, use.done); };
    if (share_elements(use.range, range) && std::ranges::none_of(found, is_it)) found.push_back(use.done);
  }
  return found;
}

/// Before a copy is submitted: who waits for it, and who must come after it, will know of it whatever else fails.
void array_body::make_room(array_instance& to, array_instance& from, array_moves& moves) {
  const auto for_one_more = [](auto& list) {
    if (list.capacity() - list.size() < 2) list.reserve(2 * list.size() + 8);  // two: both ends may be one instance
  };
  for_one_more(moves.copies);
  for_one_more(from.uses);
  for_one_more(to.uses);
}

/// Submits a copy between two places, behind what uses them, and writes it down.
event array_body::copy_part(const stream& order_in, array_instance& to, array_instance& from, const held_part& part,
                            const route_wish& route, array_moves& moves) {
  const interval& range = part.range;
  const interval there = turned(range, part.turn);
  order(order_in, from, there, false);
  order(order_in, to, range, true);
  const std::uint64_t size = static_cast<std::uint64_t>(range.count()) * element();
  copy_shape shape;
  shape.width = size;
  copy_options options;
  if (from.device != device_id{} && to.device != device_id{} && from.device != to.device) options.route = route;
  make_room(to, from, moves);
  event done = copy_in(order_in, reference(to, range), reference(from, there), shape, options, {});
  moves.copies.push_back(done);
  from.uses.push_back({there, false, done});
  to.uses.push_back({range, true, done});
  to.valid.add(range);
  moves.bytes += size;
  ++traffic_.copies;
  if (to.device == device_id{}) {
    traffic_.device_to_host += size;
  } else if (from.device == device_id{}) {
    traffic_.host_to_device += size;
  } else if (from.device != to.device) {
    traffic_.between_devices += size;
  } else {
    traffic_.within_devices += size;
    return done;
  }
  interval_set& had = had_by(to.device);
  for (const interval& again : had.inside(range))
    traffic_.redundant += static_cast<std::uint64_t>(again.count()) * element();
  had.add(range);
  return done;
}

interval_set array_body::fetch(array_instance& to, const interval& range, const lane& by, const route_wish& route,
                               array_moves& moves) {
  is_untidy_ = true;  // with more elements it may replace another one, and the copies become uses
  interval_set left{range};
  const auto take_from = [&](auto&& allowed) {
    reaching(range, [&](array_instance& from) {
      if (left.empty() || !allowed(from)) return;  // it may be `to` itself, whose other end a periodic halo has
      for (const interval& wanted : std::vector<interval>{left.runs()}) {
        for (const held_part& part : held(from, wanted)) {
          copy_part(by.in(), to, from, part, route, moves);
          left.remove(part.range);
        }
      }
    });
  };
  take_from([&](const array_instance& from) { return from.device == to.device; });
  // A peer first: what is on a device is often newer in its caches, and the host's links are everybody's.
  take_from([&](const array_instance& from) {
    return from.device != device_id{} && to.device != device_id{} && !is_lost(from.device) &&
           machine_->backend_of(to.device).peer_enabled(to.device, from.device);
  });
  take_from([&](const array_instance& from) { return from.device == device_id{}; });
  take_from([&](const array_instance& from) { return !is_lost(from.device); });
  take_from([](const array_instance&) { return true; });
  for (const interval& wanted : std::vector<interval>{left.runs()}) {
    for (const interval& part : constant_at(wanted)) {
      order(by.in(), to, part, true);
      fill_request request;
      request.count = static_cast<std::uint64_t>(part.count());
      request.pattern_size = static_cast<std::uint32_t>(pattern_.size());
      std::memcpy(request.pattern.data(), pattern_.data(), pattern_.size());
      const event done = fill_in(by.in(), reference(to, part), request, {});
      to.uses.push_back({part, true, done});
      to.valid.add(part);
      left.remove(part);
    }
  }
  return left;
}

array_instance& array_body::acquire(const array_need& need, const lane& by, const route_wish& route,
                                    array_moves& moves) {
  array_instance* found = find(need);
  if (found == nullptr) {
    settle_uses();  // which may give memory back; not at each piece, for it looks at all instances
    auto made = std::make_unique<array_instance>();
    made->device = need.device;
    made->range = with_room(need.range);
    const auto wanted = static_cast<std::size_t>(made->range.count());
    auto memory = passes_through_ ? allocate(launches_of(*machine_).passing(by.on()), wanted, element(), {})
                                  : allocate(by.on(), wanted, element(), memory_kind::device, {});
    made->address = static_cast<std::byte*>(memory.address);
    made->owned = unique_handle<memory_traits>{std::move(memory)};
    found = &instances_.add(std::move(made));
    is_untidy_ = true;
  }
  std::erase_if(found->uses, is_over);
  if (need.reads) {
    for (const event& e : unwritten(need.range)) by.compute().wait(e);
  } else {
    forget_failed(found->uses, need.range);  // overwritten without being read
  }
  if (need.reads || need.keeps) {
    for (const interval& lacking : found->valid.outside(need.range)) {
      const interval_set nowhere = fetch(*found, lacking, by, route, moves);
      if (!need.reads || nowhere.empty()) continue;
      const interval& first = nowhere.runs().front();
      if (unwritten(first).empty()) raise_undefined(first, {});
    }
  }
  return *found;
}

std::shared_ptr<lane> array_body::lane_on(device_id device) const {
  const auto found = lanes_.find(device);
  auto way = found == lanes_.end() ? nullptr : found->second.lock();
  return way && !way->is_spoiled() && !way->idle() ? way : nullptr;
}

void array_body::used_by(const std::shared_ptr<lane>& way) { lanes_[way->on().id()] = way; }

void array_body::commit(array_instance& where, const array_need& need, const event& done) {
  // Who writes all of it has waited for those before, so that who comes later need only wait for this one; of reads,
  // the last in a stream stands for those before it there.
  std::erase_if(where.uses, [&](const array_use& use) {
    if (!need.range.covers(use.range)) return false;
    if (need.writes) return true;
    return !use.writes && use.done.record() && done.record() && use.done.record()->device == done.record()->device &&
           use.done.record()->stream == done.record()->stream;
  });
  where.uses.push_back({need.range, need.writes, done});
  if (need.writes) wrote(where, need.range);
  instances_.overlapping(need.own, [&](array_instance& one) { one.own.remove(need.own); });
  where.own.add(need.own);
}

bool array_body::has_home() const {
  return std::any_of(instances_.begin(), instances_.end(), [](const auto& one) { return one->is_home; });
}

bool array_body::is_lost(device_id device) const {
  return device != device_id{} && machine_->backend_of(device).lost(device) != nullptr;
}

/// For what any device can do: the first that is there, since a machine goes on without the others.
device array_body::somebody() const {
  for (int i = 0; i < machine_->device_count(); ++i) {
    if (device one = detail::make<device>(machine_, device_id{i}); !one.is_lost()) return one;
  }
  return detail::make<device>(machine_, device_id{0});
}

void array_body::ensure_home() {
  if (has_home() || count() == 0) return;
  auto made = std::make_unique<array_instance>();
  made->is_home = true;
  made->range = all();
  made->kind = memory_kind::pinned;
  auto memory = allocate(somebody(), shape_.count, element(), memory_kind::pinned, {});
  made->address = static_cast<std::byte*>(memory.address);
  made->owned = unique_handle<memory_traits>{std::move(memory)};
  instances_.add(std::move(made));
}

event array_body::bring_home(const interval& range, const lane& by, const route_wish& route, array_moves& moves) {
  event last;
  for (const auto& home : instances_) {
    if (!home->is_home) continue;
    for (const interval& lacking : home->valid.outside(range)) {
      interval_set left{lacking};
      reaching(lacking, [&](array_instance& from) {
        if (&from == home.get()) return;
        for (const interval& wanted : std::vector<interval>{left.runs()}) {
          for (const held_part& part : held(from, wanted)) {
            last = copy_part(by.out(), *home, from, part, route, moves);
            left.remove(part.range);
          }
        }
      });
    }
    break;
  }
  return last;
}

array_body::held_before array_body::before(const interval& range) const {
  held_before found;
  for (const interval& part : constant_.inside(range)) found.constant.add(part);
  for (const auto& one : instances_) {
    if (!one->is_home) continue;
    for (const std::int64_t by : turns())
      for (const interval& run : one->valid.inside(turned(range, by))) found.at_home.add(run);
    for (const array_use& use : one->uses)
      if (use.writes && !is_done(use.done)) found.pending.push_back(use);
  }
  return found;
}

bool array_body::abandon(const interval& range, bool reads, bool writes, const held_before& before,
                         std::span<const event> own) {
  const auto is_among = [](std::span<const event> list, const array_use& use) {
    return std::ranges::any_of(list, [&](const event& e) { return are_same(e, use.done); });
  };
  std::vector<event> failed;  // asked for once: more of them fail meanwhile
  for (const auto& one : instances_) {
    for (const array_use& use : one->uses)
      if (has_failed(use.done)) failed.push_back(use.done);
  }
  interval_set left;
  for (const interval& run : elements_of(interval_set{range})) left.add(run);
  for (const interval& part : constant_.runs()) left.remove(part);
  std::vector<interval_set> remains;
  for (const auto& one : instances_) {
    interval_set there;
    const auto take_out_failed = [&](std::span<const event> but) {
      for (const array_use& use : one->uses)
        if (use.writes && is_among(failed, use) && !is_among(but, use)) there.remove(use.range);
    };
    if (!is_lost(one->device)) {
      there = one->valid;
      take_out_failed({});
      if (one->is_home) {
        // Results reach the home only after their kernel has ended well: until then it holds what the piece began with.
        interval_set again = before.at_home;
        for (const array_use& use : before.pending)
          if (has_failed(use.done) && !is_among(own, use)) again.remove(use.range);
        for (const interval& part : again.runs()) there.add(part);
        take_out_failed(own);
      }
    }
    if (writes && one->is_home && is_lost(one->device)) return false;
    for (const interval& run : elements_of(there)) left.remove(run);
    interval_set& kept = remains.emplace_back(one->valid);
    for (const std::int64_t by : turns()) {
      const interval part = turned(range, by);
      kept.remove(part);
      for (const interval& run : there.inside(part)) kept.add(run);
    }
  }
  interval_set again;  // of the constant
  for (const interval& run : std::vector<interval>{left.runs()}) {
    for (const interval& part : before.constant.inside(run)) {
      again.add(part);
      left.remove(part);
    }
  }
  if (reads && !left.empty()) return false;
  for (const interval& part : again.runs()) constant_.add(part);
  std::size_t next = 0;
  for (const auto& one : instances_) one->valid = std::move(remains[next++]);
  // The piece is done again, and its own failures must not fail it then. Results that another launch failed to bring
  // home stay.
  for (const auto& one : instances_) {
    const auto is_over = [&](const array_use& use) {
      return is_among(failed, use) && (!one->is_home || is_among(own, use));
    };
    for (const std::int64_t by : turns()) forget(one->uses, turned(range, by), is_over);
  }
  is_untidy_ = true;
  return true;
}

void array_body::drop_replicas(device_id device) {
  settle_uses();
  instances_.erase_if([&](array_instance& one) {
    if (one.is_home || one.is_shared || (device != device_id{} && one.device != device)) return false;
    interval_set alone;
    for (const interval& run : elements_of(one.valid)) alone.add(run);
    for (const auto& other : instances_) {
      if (other.get() == &one || is_lost(other->device)) continue;
      for (const interval& run : elements_of(other->valid)) alone.remove(run);
    }
    for (const interval& run : constant_.runs()) alone.remove(run);  // can be made again
    if (!alone.empty()) return false;
    one.valid.clear();  // before the next one is looked at: two equal replicas do not vouch for each other
    return true;
  });
}

void array_body::shift(std::int64_t by) {
  instances_.shift(by);
  for (const auto& one : instances_) {
    if (one->is_home) continue;
    one->uses.clear();
    interval_set moved;
    for (const interval& run : one->valid.runs()) moved.add({run.begin + by, run.end + by});
    one->valid = std::move(moved);
    one->own.clear();
  }
}

std::uint64_t array_body::missing(device_id device, const interval& range) const {
  interval_set left{range};
  reaching(range, [&](const array_instance& one) {
    if (one.device != device && !one.is_shared) return;
    for (const held_part& part : held(one, range)) left.remove(part.range);
  });
  for (const interval& part : constant_at(range)) left.remove(part);
  return static_cast<std::uint64_t>(left.count()) * element();
}

std::vector<array_part> array_body::parts() const {
  std::map<device_id, interval_set> places;
  for (const auto& one : instances_) {
    for (const interval& run : elements_of(one->valid)) places[one->device].add(run);
  }
  std::vector<array_part> made;
  for (const auto& [device, set] : places) {
    for (const interval& run : set.runs()) made.push_back({device, run.begin, run.count()});
  }
  return made;
}

/// Of the valid elements those that no other device has.
interval_set array_body::only_on(const array_instance& place) const {
  interval_set alone;
  for (const interval& run : elements_of(place.valid)) alone.add(run);
  for (const interval& mine : elements_of(place.valid)) {
    reaching(mine, [&](const array_instance& other) {
      if (other.device == place.device || other.device == device_id{}) return;
      for (const interval& run : elements_of(other.valid)) alone.remove(run);
    });
  }
  return alone;
}

std::vector<array_part> array_body::distribution(const interval& wanted) const {
  std::vector<array_part> made;
  interval_set left{wanted};
  const auto take = [&](const array_instance& from, const interval& run) {
    for (const interval& part : left.inside(run)) made.push_back({from.device, part.begin, part.count()});
    left.remove(run);
  };
  // Instance by instance: two that touch are two memories, and one piece over both would have to be copied together.
  // Shares come first: a halo is valid too, and nobody's place to work at.
  reaching(wanted, [&](const array_instance& one) {
    if (one.device == device_id{}) return;
    for (const interval& share : one.own.runs()) {
      for (const interval& run : one.valid.inside(share)) take(one, run);
    }
  });
  // What several devices have, for a halo or as a whole, lies nowhere in particular.
  reaching(wanted, [&](const array_instance& one) {
    if (left.empty() || one.device == device_id{}) return;
    const interval_set alone = only_on(one);
    for (const interval& run : alone.runs()) take(one, run);
  });
  if (!left.empty()) return {};
  std::sort(made.begin(), made.end(), [](const array_part& a, const array_part& b) { return a.first < b.first; });
  return made;
}

void array_body::settle_uses() {
  for (const auto& one : instances_) {
    std::erase_if(one->uses, is_over);
  }
  // what holds nothing and is used by nobody gives its memory back
  instances_.erase_if([](const array_instance& one) {
    return !one.is_home && !one.is_shared && one.valid.empty() && one.uses.empty();
  });
}

/// Whether `other`, once all that was submitted has ended, can stand for `one`: on the same device, with as much room.
bool array_body::replaces(const array_instance& other, const array_instance& one) {
  if (&other == &one || other.device != one.device || other.is_shared || !other.range.covers(one.range)) return false;
  const auto& runs = one.valid.runs();
  return std::all_of(runs.begin(), runs.end(), [&](const interval& run) { return other.valid.covers(run); });
}

void array_body::drop_duplicates() {
  if (!is_untidy_) return;
  settle_uses();
  bool is_left = false;
  instances_.erase_if([&](array_instance& one) {
    if (one.is_home || one.is_shared) return false;
    is_left = is_left || one.valid.empty();  // in use, or it would be gone
    array_instance* other = nullptr;
    instances_.overlapping(one.range, [&](array_instance& candidate) {
      if (replaces(candidate, one)) other = &candidate;
    });
    if (other == nullptr) return false;
    const auto writes = [](const array_use& use) { return use.writes; };
    if (!one.uses.empty() || std::any_of(other->uses.begin(), other->uses.end(), writes)) {
      is_left = true;  // until that has ended
      return false;
    }
    for (const interval& run : one.own.runs()) other->own.add(run);
    one.valid.clear();  // it replaces none of those that follow
    return true;
  });
  is_untidy_ = is_left;
}

std::vector<event> array_body::pending(const interval& range, bool writes_only) const {
  std::vector<event> found;
  reaching(range, [&](const array_instance& one) {
    for (const array_use& use : one.uses) {
      if ((use.writes || !writes_only) && share_elements(use.range, range) && !is_done(use.done))
        found.push_back(use.done);
    }
  });
  return found;
}

void array_body::wait_for_job() {
  std::shared_ptr<launch_job> job;
  {
    const std::lock_guard lock{mutex};
    job = last_job.lock();
  }
  if (job) job->wait_submitted();
}

interval array_body::range_of(std::uint64_t first, std::size_t elements, std::source_location where) const {
  if (first > shape_.count || elements > shape_.count - first) {
    raise(errc::out_of_range,
          std::to_string(elements) + " elements from " + std::to_string(first) + " on, of an array of " +
              std::to_string(shape_.count) + " elements",
          where);
  }
  const auto begin = static_cast<std::int64_t>(first);
  return {begin, begin + static_cast<std::int64_t>(elements)};
}

void array_body::write(std::uint64_t first, std::span<const std::byte> from, std::source_location where) {
  if (from.empty()) return;
  machine_->require_open(where);
  const interval range = range_of(first, from.size() / element(), where);
  for (;;) {
    wait_for_job();
    std::vector<event> busy;
    {
      const std::lock_guard lock{mutex};
      const auto job = last_job.lock();
      busy = pending(range, false);
      std::erase_if(busy, [](const event& e) { return e.record()->finished(); });  // failed: about to be overwritten
      if (busy.empty() && (!job || job->has_submitted())) {
        ensure_home();
        for (const auto& home : instances_) {
          if (!home->is_home) continue;
          std::erase_if(home->uses, is_over);
          forget_failed(home->uses, range);
          std::memcpy(home->address + first * element(), from.data(), from.size());
          wrote(*home, range);
          return;
        }
      }
    }
    for (const event& e : busy) static_cast<void>(e.record()->owner->wait(*e.record(), no_deadline, {}));
  }
}

void array_body::read(std::uint64_t first, std::span<std::byte> to, std::source_location where) {
  if (to.empty()) return;
  machine_->require_open(where);
  const interval range = range_of(first, to.size() / element(), where);
  // The caller's memory as one more instance: copied into like a device's, and forgotten at the end.
  array_instance target;
  target.is_foreign = true;
  target.range = range;
  target.address = to.data();
  target.kind = memory_kind::pinned;
  array_moves moves;
  std::map<device_id, std::shared_ptr<lane>> lanes;
  launch_state& launches = launches_of(*machine_);
  std::exception_ptr refused;
  {
    std::unique_lock lock{mutex};
    // of a launch that another thread has begun meanwhile some pieces may be there, and the rest not
    for (auto job = last_job.lock(); job && !job->has_submitted(); job = last_job.lock()) {
      lock.unlock();
      wait_for_job();
      lock.lock();
    }
    try {
      settle_uses();
      interval_set left{range};
      for (const auto& from : instances_) {
        for (const held_part& part : held(*from, range)) left.remove(part.range);
      }
      interval_set constant;
      for (const interval& wanted : std::vector<interval>{left.runs()}) {
        for (const interval& part : constant_.inside(wanted)) {
          constant.add(part);
          left.remove(part);
        }
      }
      if (!left.empty() && unwritten(left.runs().front()).empty()) raise_undefined(left.runs().front(), where);
      moves.copies = unwritten(range);
      for (const interval& part : constant.runs()) {
        for (std::int64_t i = part.begin; i < part.end; ++i) {
          std::memcpy(to.data() + static_cast<std::uint64_t>(i - range.begin) * element(), pattern_.data(),
                      pattern_.size());
        }
      }
      left = interval_set{range};
      for (const interval& part : constant.runs()) left.remove(part);
      // the host's first, a lost device's only where nothing else has them: it fails with the cause
      for (const int turn : {0, 1, 2}) {
        for (const auto& from : instances_) {
          const bool from_host = from->device == device_id{};
          if ((turn == 0 && !from_host) || (turn == 1 && is_lost(from->device))) continue;
          for (const interval& wanted : std::vector<interval>{left.runs()}) {
            for (const held_part& part : held(*from, wanted)) {
              left.remove(part.range);
              const device actor = from_host ? somebody() : detail::make<device>(machine_, from->device);
              auto& by = lanes[actor.id()];
              if (!by) by = launches.lanes.take(actor);
              copy_part(by->out(), target, *from, part, {}, moves);
            }
          }
        }
      }
    } catch (...) {
      refused = std::current_exception();  // what was submitted before still writes the caller's memory
    }
    had_by({}).clear();  // the caller's memory is no place of the array's
  }
  std::shared_ptr<const error> cause;
  for (const event& e : moves.copies) {
    if (!e.record() || e.record()->owner->wait(*e.record(), no_deadline, {}) != wait_outcome::failed) continue;
    // pieces are cancelled because another has failed: that is the cause to tell
    if (!cause || cause->code == errc::cancelled) cause = e.record()->cause();
  }
  if (cause) {
    for (const auto& [device, by] : lanes) launches.lanes.drop(by);
  }
  if (refused) std::rethrow_exception(refused);
  if (cause) raise(error{*cause});
}

// ---- what array<T> calls --------------------------------------------------------------------------------------------

std::shared_ptr<array_body> make_array(const machine& m, const array_shape& shape, std::source_location where) {
  const called_from here{where};
  state_of(m)->require_open();
  if (shape.count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / shape.element) {
    raise(errc::invalid_argument,
          "an array of " + std::to_string(shape.count) + " elements: the size in bytes overflows");
  }
  return std::make_shared<array_body>(state_of(m), shape);
}

void set_array(array_body& array, std::span<const std::byte> pattern) {
  const std::lock_guard lock{array.mutex};
  array.set(pattern);
}

void write_array(array_body& array, std::uint64_t first, std::span<const std::byte> from, std::source_location where) {
  const called_from here{where};
  array.write(first, from, where);
}

void read_array(const array_body& array, std::uint64_t first, std::span<std::byte> to, std::source_location where) {
  const called_from here{where};
  const_cast<array_body&>(array).read(first, to, where);  // reading changes where elements are, not what they are
}

std::vector<array_part> parts_of(const array_body& array) {
  const std::lock_guard lock{array.mutex};
  return array.parts();
}

array_traffic traffic_of(const array_body& array) {
  const std::lock_guard lock{array.mutex};
  return array.traffic();
}

void free_replicas(array_body& array) {
  const std::lock_guard lock{array.mutex};
  array.drop_replicas({});
}

}  // namespace weft::detail
