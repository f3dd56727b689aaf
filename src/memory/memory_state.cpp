// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_state.hpp"

#include "core/errors/decision_log.hpp"
#include "memory/sharing/ipc_event_body.hpp"

#include <algorithm>

namespace weft::detail {

memory_state::memory_state(machine_state& machine)
    : machine_(machine), peers_(peers_of(machine)), facts_(route_facts_of(machine.layout())) {
  backend& b = *machine_.backends().front();
  for (std::size_t i = 0; i < facts_.pairs.size(); ++i) {
    const device_id from{static_cast<int>(i / facts_.devices)};
    const device_id to{static_cast<int>(i % facts_.devices)};
    if (from == to) continue;
    const auto known = b.peer(from, to);
    if (!known && known.error().code == errc::resource_exhausted) raise(known.error());  // it is not known
    facts_.pairs[i].can_copy = known && known->can_copy;
  }
  refresh();
  machine_.before_close([stop = closing]() mutable { stop.request_stop(); });
}

memory_state::~memory_state() = default;

ipc_event_service& memory_state::events() {
  std::call_once(events_once_, [this] {
    events_ = std::make_shared<ipc_event_service>();
    machine_.before_close([service = std::weak_ptr{events_}] {
      if (const auto left = service.lock()) left->stop();
    });
  });
  return *events_;
}

/// Of what may change which pairs can be used; each part only grows, so the sum changes whenever one does.
std::uint64_t memory_state::epoch() const { return machine_.backends().front()->peer_epoch() + peers_.epoch(); }

void memory_state::refresh() {
  const std::uint64_t now = epoch();
  for (std::size_t i = 0; i < facts_.devices; ++i) {
    for (std::size_t k = 0; k < facts_.devices; ++k) {
      const device_id from{static_cast<int>(i)};
      const device_id to{static_cast<int>(k)};
      const std::size_t at = i * facts_.devices + k;
      // A copy runs on whichever device has the access: data may flow when either end may reach the other.
      facts_.pairs[at].usable = i != k && peers_.failure(from, to).empty() &&
                                (facts_.pairs[at].can_copy || peers_.enabled(from, to) || peers_.enabled(to, from));
    }
  }
  epoch_ = now;
}

result<route_choice> memory_state::choose(device_id from, device_id to, bytes size, const route_wish& wish) {
  peers_.report();  // of pairs that an earlier process has found to lose data
  while (true) {
    auto chosen = choose_by_facts(from, to, size, wish);
    if (!chosen) {
      if (const std::string why = peers_.failure(from, to); wish.path == copy_path::direct && !why.empty())
        chosen.error().what = "a direct copy from " + to_string(from) + " to " + to_string(to) + ": " + why;
      return chosen;
    }
    // one that does not arrive is demoted by the question, and another route is found
    const device_id via = chosen->via;
    const bool arrives = chosen->path == copy_path::direct    ? !peers_.refusal(from, to, peer_way::commands)
                         : chosen->path == copy_path::relayed ? !peers_.refusal(from, via, peer_way::commands) &&
                                                                    !peers_.refusal(via, to, peer_way::commands)
                                                              : true;
    if (!arrives) continue;
    if (is_logged(log_level::info)) {
      log_decision("copies from " + to_string(from) + " to " + to_string(to) + ": " +
                   std::string{to_string(chosen->path)} +
                   (chosen->path == copy_path::relayed ? " by way of " + to_string(via) : ""));
    }
    return chosen;
  }
}

result<route_choice> memory_state::choose_by_facts(device_id from, device_id to, bytes size, const route_wish& wish) {
  const std::uint64_t now = epoch();
  {
    const std::shared_lock lock{facts_mutex_};
    if (epoch_ == now) return route(facts_, from, to, size, wish);
  }
  const std::unique_lock lock{facts_mutex_};
  refresh();
  return route(facts_, from, to, size, wish);
}

route_facts memory_state::facts() {
  const std::unique_lock lock{facts_mutex_};
  if (epoch_ != epoch()) refresh();
  return facts_;
}

void memory_state::count(copy_path path, std::uint64_t size) noexcept {
  tally& t = tallies_[static_cast<std::size_t>(path)];
  t.copies.fetch_add(1, std::memory_order_relaxed);
  t.bytes.fetch_add(size, std::memory_order_relaxed);
}

void memory_state::count_failure(copy_path path) noexcept {
  tallies_[static_cast<std::size_t>(path)].failed.fetch_add(1, std::memory_order_relaxed);
}

copy_counters memory_state::counters() const noexcept {
  const auto read = [this](copy_path path) {
    const tally& t = tallies_[static_cast<std::size_t>(path)];
    return copy_counters::one{t.copies.load(std::memory_order_relaxed), t.bytes.load(std::memory_order_relaxed),
                              t.failed.load(std::memory_order_relaxed)};
  };
  return {read(copy_path::host_to_device), read(copy_path::device_to_host), read(copy_path::same_device),
          read(copy_path::direct),         read(copy_path::staged),         read(copy_path::relayed)};
}

result<copy_lane*> memory_state::take_lane(device_id from, device_id to, device_id via, std::uint64_t size, int depth,
                                           stream_handle order) {
  std::unique_ptr<copy_lane> lane;
  backend& by = machine_.backend_of(from);
  {
    const std::lock_guard lock{lanes_mutex_};
    const auto it = std::find_if(idle_lanes_.begin(), idle_lanes_.end(), [&](const auto& l) {
      return l->from == from && l->to == to && l->via == via && (l->free() || l->order == order);
    });
    if (it != idle_lanes_.end()) {
      lane = std::move(*it);
      idle_lanes_.erase(it);
    }
  }
  const auto lost = [&](error cause) -> result<copy_lane*> {
    give_lane(lane.release());
    return cause;
  };
  if (!lane) {
    lane = std::make_unique<copy_lane>();
    lane->from = from;
    lane->to = to;
    lane->via = via;
    auto first = by.create_stream(from, 0, false);
    if (!first) return std::move(first).error();
    auto second = by.create_stream(to, 0, false);
    if (!second) {
      by.destroy_stream(*first);
      return std::move(second).error();
    }
    lane->first = *first;
    lane->second = *second;
  } else if (lane->free()) {
    // a failure of the copy before is that copy's business; the lane starts clean
    static_cast<void>(by.synchronize(lane->first, no_deadline, {}));
    static_cast<void>(by.synchronize(lane->second, no_deadline, {}));
  }
  lane->order = order;
  const device_id owner = via.value() >= 0 ? via : from;
  const memory_kind kind = via.value() >= 0 ? memory_kind::device : memory_kind::pinned;
  // a reset of the device has taken what was there, but for its address
  std::erase_if(lane->slots, [&](void* slot) {
    const auto known = by.find(slot);
    const bool is_gone = !known && known.error().code == errc::not_found;
    if (is_gone) static_cast<void>(by.release(slot));
    return is_gone;
  });
  if (lane->slot_size < size) {
    for (void* slot : lane->slots) static_cast<void>(by.release(slot));
    lane->slots.clear();
    lane->slot_size = size;
  }
  while (lane->slots.size() < static_cast<std::size_t>(depth)) {
    auto slot = by.allocate(owner, bytes{lane->slot_size}, kind);
    if (!slot) return lost(std::move(slot).error());
    lane->slots.push_back(*slot);
  }
  return lane.release();
}

void memory_state::give_lane(copy_lane* lane) {
  const std::lock_guard lock{lanes_mutex_};
  idle_lanes_.emplace_back(lane);
}

void memory_state::set_measured(device_id from, device_id to, const lane_facts& lane) {
  const std::unique_lock lock{facts_mutex_};
  pair_facts& pair = facts_.pairs[from.index() * facts_.devices + to.index()];
  pair.lane = lane;
  pair.measured = true;
}

void memory_state::set_host_lanes(device_id id, const lane_facts& to_host, const lane_facts& from_host) {
  const std::unique_lock lock{facts_mutex_};
  facts_.to_host[id.index()] = to_host;
  for (std::size_t s = 0; s < facts_.devices; ++s) facts_.from_host[s * facts_.devices + id.index()] = from_host;
}

pair_facts memory_state::pair(device_id from, device_id to) {
  const std::unique_lock lock{facts_mutex_};
  if (epoch_ != epoch()) refresh();
  return facts_.pair(from, to);
}

}  // namespace weft::detail
