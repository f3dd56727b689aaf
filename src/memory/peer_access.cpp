// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/peer_access.hpp"

#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "memory/memory_state.hpp"
#include "weft/core/log.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"

#include <algorithm>
#include <functional>

namespace weft {
namespace {

void check(const detail::machine_state& state, device_id from, device_id to) {
  state.require_open();
  static_cast<void>(state.description_of(from));
  static_cast<void>(state.description_of(to));
}

detail::machine_state& checked(const machine& m, device_id from, device_id to) {
  check(*detail::state_of(m), from, to);
  return *detail::state_of(m);
}

peer_description describe_pair(detail::machine_state& state, device_id from, device_id to) {
  return value_or_raise(state.backend_of(from).peer(from, to));
}

peer_link link_of(const peer_description& known) {
  if (!known.can_access) return peer_link::none;
  switch (known.kind) {
    case link_kind::pcie:
    case link_kind::socket:
      return peer_link::pcie;
    case link_kind::nvlink:
      return peer_link::nvlink;
    case link_kind::infinity_fabric:
      return peer_link::infinity_fabric;
    case link_kind::xe_link:
      return peer_link::xe_link;
    case link_kind::host_memory:
      return peer_link::unified_memory;
    case link_kind::device_memory:
      return peer_link::device_memory;
    case link_kind::network:
      return peer_link::none;
    case link_kind::unknown:
      return peer_link::unknown;
  }
  return peer_link::unknown;
}

bool is_enabled(detail::machine_state& state, device_id from, device_id to) {
  return from != to && detail::peers_of(state).enabled(from, to);
}

void check_peers(detail::machine_state& state, device_id from, device_id to) {
  check(state, from, to);
  if (from == to) raise(errc::invalid_device, to_string(from) + " is not a peer of itself");
}

std::string enabling(device_id from, device_id to) {
  return "enabling the access of " + to_string(from) + " to the memory of " + to_string(to);
}

/// Runs it when its turn comes in the stream.
event in_order(const stream& order, std::stop_token stop, std::source_location where,
               std::function<result<void>(backend& driver, device_id by)> f) {
  backend& driver = detail::state_of(order)->backend_of(order.on_id());
  auto turn = [&driver, by = order.on_id(), stop = std::move(stop), where, f = std::move(f)]() -> result<void> {
    result<void> done;
    if (stop.stop_requested()) {
      done = make_error(errc::cancelled, "cancelled before its turn came on " + to_string(by));
    } else {
      done = f(driver, by);
    }
    if (!done) done.error().where = where;
    return done;
  };
  return detail::make<event>(detail::state_of(order),
                             value_or_raise(driver.call(order.native(), std::move(turn)), where));
}

/// Errors: machine_closed; invalid_argument for a stream that was moved from.
detail::machine_state& state_of(const stream& order, std::source_location where) {
  if (!detail::state_of(order)) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  detail::state_of(order)->require_open(where);
  return *detail::state_of(order);
}

enum class enabled_by : bool { program, lease };

/// Notes whose the access is: what the program enables, also beside a lease, no lease disables. Errors: as
/// peer_checks::enable().
result<void> enable_for(enabled_by who, detail::memory_state& memory, detail::peer_checks& peers, device_id from,
                        device_id to) {
  const std::lock_guard lock{memory.enabling_mutex};
  auto done = peers.enable(from, to);
  if (!done && (who == enabled_by::lease || done.error().code != errc::already_enabled)) return done;
  if (who == enabled_by::lease) {
    memory.enabled_by_lease.insert({from, to});
  } else {
    memory.enabled_by_lease.erase({from, to});
  }
  return done;
}

enable_outcome enable(detail::machine_state& state, device_id from, device_id to, enabled_by who) {
  check_peers(state, from, to);
  auto done = enable_for(who, detail::memory_of(state), detail::peers_of(state), from, to);
  if (!done && done.error().code == errc::already_enabled) return enable_outcome::already_enabled;
  value_or_raise(std::move(done));
  return enable_outcome::enabled;
}

/// Waits until neither device works any more; a lease must not end under running work.
constexpr std::chrono::seconds drain_limit{10};

}  // namespace

std::string_view to_string(peer_link link) {
  switch (link) {
    case peer_link::none:
      return "none";
    case peer_link::pcie:
      return "pcie";
    case peer_link::nvlink:
      return "nvlink";
    case peer_link::infinity_fabric:
      return "infinity_fabric";
    case peer_link::xe_link:
      return "xe_link";
    case peer_link::unified_memory:
      return "unified_memory";
    case peer_link::device_memory:
      return "device_memory";
    case peer_link::unknown:
      return "unknown";
  }
  return "unknown";
}

bool can_access_peer(const machine& m, device_id from, device_id to, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = checked(m, from, to);
  return from != to && describe_pair(state, from, to).can_access;
}

enable_outcome enable_peer(const machine& m, device_id from, device_id to, unsigned flags, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = *detail::state_of(m);
  state.require_open();
  if (flags != 0)
    raise(errc::invalid_argument,
          "the flags of a peer enable are reserved and must be 0, not " + std::to_string(flags));
  check_peers(state, from, to);
  detail::peer_checks& peers = detail::peers_of(state);
  // a refusal leaves access to the lease that has it
  if (is_enabled(state, from, to) || !peers.failure(from, to).empty())
    peers.require(from, to, peer_way::allocations, enabling(from, to), where);
  const enable_outcome how = enable(state, from, to, enabled_by::program);
  // nobody sees what the program does with the addresses from here on
  if (const auto why = peers.refusal(from, to, peer_way::allocations)) {
    if (how == enable_outcome::enabled) static_cast<void>(peers.disable(from, to));
    raise(errc::peer_unsupported, enabling(from, to) + ": " + *why);
  }
  return how;
}

event enable_peer(const stream& order, device_id to, std::stop_token stop, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = state_of(order, where);
  check_peers(state, order.on_id(), to);
  detail::peer_checks& peers = detail::peers_of(state);
  if (describe_pair(state, order.on_id(), to).can_access)
    peers.require(order.on_id(), to, peer_way::allocations, enabling(order.on_id(), to), where);
  detail::memory_state& memory = detail::memory_of(state);
  return in_order(order, std::move(stop), where, [to, &memory, &peers](backend&, device_id by) -> result<void> {
    auto done = enable_for(enabled_by::program, memory, peers, by, to);
    if (!done && done.error().code == errc::already_enabled) return {};
    return done;
  });
}

event disable_peer(const stream& order, device_id to, std::stop_token stop, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = state_of(order, where);
  check_peers(state, order.on_id(), to);
  detail::peer_checks& peers = detail::peers_of(state);
  return in_order(order, std::move(stop), where, [to, &peers](backend&, device_id by) -> result<void> {
    auto done = peers.disable(by, to);
    if (!done && done.error().code == errc::not_enabled) return {};
    return done;
  });
}

disable_outcome disable_peer(const machine& m, device_id from, device_id to, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = *detail::state_of(m);
  check_peers(state, from, to);
  auto done = detail::peers_of(state).disable(from, to);
  if (!done && done.error().code == errc::not_enabled) return disable_outcome::not_enabled;
  value_or_raise(std::move(done));
  return disable_outcome::disabled;
}

bool peer_enabled(const machine& m, device_id from, device_id to, std::source_location where) {
  const called_from here{where};
  return is_enabled(checked(m, from, to), from, to);
}

peer_access::peer_access(const std::shared_ptr<detail::machine_state>& state, device_id from, device_id to,
                         std::source_location where) {
  const called_from here{where};
  check(*state, from, to);
  detail::memory_state& memory = detail::memory_of(*state);
  const std::lock_guard lock{memory.leases_mutex};
  int& count = memory.leases[{from, to}];
  // what an earlier lease enabled stays a lease's to disable, even if that one ended too late to do so
  if (!is_enabled(*state, from, to)) enable(*state, from, to, enabled_by::lease);
  ++count;
  lease_ = unique_handle<detail::access_traits>{detail::access_lease{state, from, to}};
}

namespace detail {

namespace {

/// Waits for the work of both devices.
void end_lease(machine_state& state, device_id from, device_id to) {
  memory_state& memory = memory_of(state);
  const std::lock_guard lock{memory.leases_mutex};
  if (--memory.leases[{from, to}] != 0) return;
  {
    const std::lock_guard enabling{memory.enabling_mutex};
    if (!memory.enabled_by_lease.contains({from, to})) return;
  }
  backend& b = state.backend_of(from);
  const auto until = b.now() + drain_limit;
  if (b.drain(from, until) && b.drain(to, until)) {
    result<void> done;
    {
      const std::lock_guard enabling{memory.enabling_mutex};
      if (memory.enabled_by_lease.erase({from, to}) != 0) done = peers_of(state).disable(from, to);
    }
    if (!done && done.error().code != errc::not_enabled) log(log_level::warning, to_string(done.error()));
  } else {
    log(log_level::warning, "peer access from " + to_string(from) + " to " + to_string(to) +
                                " stays enabled: work was still pending when its last lease ended");
  }
}

}  // namespace

void access_traits::release(type& lease) noexcept {
  if (!lease.state->closed()) {
    machine_state& state = *lease.state;
    state.off_workers([gone = lease] { end_lease(*gone.state, gone.from, gone.to); });
  }
  lease = {};
}

void peer_view_traits::release(type& view) noexcept {
  if (!view.state->closed()) {
    const auto done = view.state->backend_of(view.by).unmap_peer(view.by, view.mapped);
    if (!done && done.error().code != errc::not_found) log(log_level::warning, to_string(done.error()));
  }
  view = {};
}

}  // namespace detail

std::vector<peer_access> enable_all_peers(const machine& m, std::source_location where) {
  const called_from here{where};
  std::vector<peer_access> leases;
  for (const peer_pair& pair : peer_topology(m)) {
    if (!pair.supported) continue;
    try {
      leases.emplace_back(m, pair.from, pair.to);
    } catch (const error_exception& refused) {
      if (refused.code() != errc::too_many_peers) throw;  // a full table leaves this pair to the host
    }
  }
  return leases;
}

std::vector<peer_pair> peer_topology(const machine& m) {
  std::vector<peer_pair> pairs;
  for (int a = 0; a < m.device_count(); ++a) {
    for (int b = 0; b < m.device_count(); ++b) {
      if (a != b) pairs.push_back({device_id{a}, device_id{b}, can_access_peer(m, device_id{a}, device_id{b})});
    }
  }
  return pairs;
}

std::optional<peer_capability> capability_between(const machine& m, device_id from, device_id to,
                                                  std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = checked(m, from, to);
  if (from == to) return std::nullopt;
  detail::memory_state& memory = detail::memory_of(state);
  const peer_description known = describe_pair(state, from, to);
  peer_capability c;
  c.from = from;
  c.to = to;
  c.supported = known.can_access;
  c.enabled = peer_enabled(m, from, to);
  c.can_copy = known.can_copy;
  c.link = link_of(known);
  c.bytes_per_second = known.bytes_per_second;
  c.latency = known.latency;
  c.atomics = known.can_access && known.atomics;
  c.native_atomics = known.can_access && known.native_atomics;
  c.partial_native_atomics = known.can_access && known.partial_native_atomics;
  c.array_access = known.can_access && known.array_access;
  c.performance_rank = known.performance_rank;
  c.native_rank = known.native_rank;
  c.hops = known.hops;
  c.why = known.why;
  if (known.can_access || known.can_copy) {
    const pair_facts facts = memory.pair(from, to);
    if (facts.measured) {
      c.measured = true;
      c.bytes_per_second = facts.lane.bytes_per_second;
      c.latency = std::chrono::nanoseconds{static_cast<std::int64_t>(facts.lane.latency_seconds * 1e9)};
      c.why.clear();
    }
  }
  if (const std::string lost = detail::peers_of(state).failure(from, to); !lost.empty()) {
    c.trusted = false;
    c.why = "used through the host: " + lost;
  }
  return c;
}

std::vector<atomic_support> peer_atomics(const machine& m, device_id from, device_id to,
                                         std::span<const atomic_operation> operations, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = checked(m, from, to);
  if (from == to) raise(errc::invalid_device, to_string(from) + " is not a peer of itself");
  if (operations.empty()) raise(errc::invalid_argument, "asking for the support of no atomic operation");
  std::vector<atomic_support> answers;
  for (const atomic_operation one : operations) {
    if (static_cast<std::size_t>(one) >= atomic_operation_count)
      raise(errc::invalid_argument, "there is no atomic operation " + std::to_string(static_cast<int>(one)));
    answers.push_back(value_or_raise(state.backend_of(from).peer_atomics(from, to, one)));
  }
  return answers;
}

namespace {

peer_check check_pair(const machine& m, device_id from, device_id to) {
  peer_check c{from, to, can_access_peer(m, from, to), false, "", peer_outcome::not_tried};
  if (!c.offered) {
    c.why = "not offered: " + describe_pair(*detail::state_of(m), from, to).why;
    return c;
  }
  try {
    const peer_access lease{m, from, to};
    detail::peer_checks& peers = detail::peers_of(*detail::state_of(m));
    auto found = peers.try_all(from, to);
    peers.report();
    c.outcome = found.outcome;
    c.arrived = found.outcome == peer_outcome::arrived;
    c.why = std::move(found.why);
  } catch (const error_exception& failed) {
    c.why = failed.what();
  }
  return c;
}

}  // namespace

std::vector<peer_check> verify_peers(const machine& m, bool again, const std::stop_token& stop,
                                     std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = *detail::state_of(m);
  state.require_open();
  detail::memory_state& memory = detail::memory_of(state);
  const std::lock_guard lock{memory.checks_mutex};
  if (!memory.checks.empty() && !again) return memory.checks;
  memory.checks.clear();
  std::vector<peer_check> made;
  for (const peer_pair& pair : peer_topology(m)) {
    if (stop.stop_requested()) return made;
    made.push_back(check_pair(m, pair.from, pair.to));
  }
  return memory.checks = std::move(made);
}

namespace {

/// Best of a few on the machine's clock, for a small and a large size; the slope is the rate, the rest the latency.
template <class Copy>
lane_facts measure_lane(const machine& m, std::uint64_t large, Copy&& copy_bytes) {
  constexpr std::uint64_t small = 4096;
  constexpr int repeats = 7;
  const auto best = [&](std::uint64_t size) {
    double shortest = 1e300;
    for (int i = 0; i < repeats; ++i) {
      const auto start = m.now();
      copy_bytes(size);
      shortest = std::min(shortest, std::chrono::duration<double>(m.now() - start).count());
    }
    return shortest;
  };
  copy_bytes(large);  // first touch
  const double t_small = best(small);
  const double t_large = best(large);
  lane_facts lane;
  // where the noise of a hand-over hides the slope, the whole time of the large copy bounds the rate from below
  const bool slope = t_large > t_small;
  if (t_large > 0) {
    lane.bytes_per_second =
        slope ? static_cast<double>(large - small) / (t_large - t_small) : static_cast<double>(large) / t_large;
  }
  // and where the noise of the slope hides the latency, the whole time of the small copy bounds it from above
  const double moving = lane.bytes_per_second > 0 ? static_cast<double>(small) / lane.bytes_per_second : 0.0;
  lane.latency_seconds = t_small > moving ? t_small - moving : t_small;
  return lane;
}

}  // namespace

void measure_peers(const machine& m, bytes size, const std::stop_token& stop, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = *detail::state_of(m);
  state.require_open();
  detail::memory_state& memory = detail::memory_of(state);
  const std::uint64_t large = std::max<std::uint64_t>(size.value(), 64 << 10);
  for (const device& d : m.devices()) {
    if (stop.stop_requested()) return;
    const buffer<std::byte> on_device{d, large};
    const pinned_buffer<std::byte> on_host{d, large};
    const lane_facts down =
        measure_lane(m, large, [&](std::uint64_t n) { weft::copy(on_host.subspan(0, n), on_device.subspan(0, n)); });
    const lane_facts up =
        measure_lane(m, large, [&](std::uint64_t n) { weft::copy(on_device.subspan(0, n), on_host.subspan(0, n)); });
    memory.set_host_lanes(d.id(), down, up);
  }
  copy_options direct;
  direct.route.path = copy_path::direct;
  for (const peer_pair& pair : peer_topology(m)) {
    if (stop.stop_requested()) return;
    if (!pair.supported && !memory.pair(pair.from, pair.to).can_copy) continue;
    if (detail::peers_of(state).refusal(pair.from, pair.to, peer_way::commands)) continue;  // tried now, if not before
    peer_access lease;
    try {
      if (pair.supported) lease = peer_access{m, pair.from, pair.to};
    } catch (const error_exception& refused) {
      if (refused.code() != errc::too_many_peers) throw;
      if (!memory.pair(pair.from, pair.to).usable) continue;  // a full table leaves this pair to the host
    }
    const buffer<std::byte> source{m[pair.from], large};
    const buffer<std::byte> target{m[pair.to], large};
    memory.set_measured(pair.from, pair.to, measure_lane(m, large, [&](std::uint64_t n) {
                          weft::copy(target.subspan(0, n), source.subspan(0, n), direct);
                        }));
  }
}

namespace {

void check_mapping(detail::machine_state& state, void* address, device_id owner, device_id by, bytes size) {
  if (address == nullptr || size.value() == 0)
    raise(errc::invalid_argument, "mapping null or zero bytes for " + to_string(by));
  check(state, owner, by);
  const auto known = value_or_raise(state.backend_of(address).find(address));
  if (known.device != owner || known.kind != memory_kind::device) {
    raise(errc::wrong_device, "the memory to map is " + std::string{to_string(known.kind)} + " memory of " +
                                  to_string(known.device) + ", not of " + to_string(owner));
  }
}

std::string mapping_of(device_id owner, device_id by) {
  return "mapping memory of " + to_string(owner) + " for " + to_string(by);
}

}  // namespace

void* map_peer_memory(const machine& m, void* address, device_id owner, device_id by, bytes size,
                      std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = *detail::state_of(m);
  state.require_open();
  check_mapping(state, address, owner, by, size);
  if (is_enabled(state, by, owner))
    detail::peers_of(state).require(by, owner, peer_way::allocations, mapping_of(owner, by));
  return value_or_raise(state.backend_of(by).map_peer(by, address, size));
}

peer_mapping_in_stream map_peer_memory(const stream& order, void* address, device_id owner, bytes size,
                                       std::stop_token stop, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = state_of(order, where);
  const device_id by = order.on_id();
  check_mapping(state, address, owner, by, size);
  if (describe_pair(state, by, owner).can_access)
    detail::peers_of(state).require(by, owner, peer_way::allocations, mapping_of(owner, by), where);
  auto place = std::make_shared<std::atomic<void*>>(nullptr);
  event done = in_order(order, std::move(stop), where, [=](backend& driver, device_id on) -> result<void> {
    auto mapped = driver.map_peer(on, address, size);
    if (!mapped) return std::move(mapped).error();
    place->store(*mapped, std::memory_order_release);
    return {};
  });
  return {std::move(done), place};
}

event unmap_peer_memory(const stream& order, void* mapped, std::stop_token stop, std::source_location where) {
  const called_from here{where};
  static_cast<void>(state_of(order, where));
  return in_order(order, std::move(stop), where,
                  [=](backend& driver, device_id by) { return driver.unmap_peer(by, mapped); });
}

void unmap_peer_memory(const machine& m, void* mapped, device_id by, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = *detail::state_of(m);
  state.require_open();
  static_cast<void>(state.description_of(by));
  value_or_raise(state.backend_of(by).unmap_peer(by, mapped));
}

}  // namespace weft
