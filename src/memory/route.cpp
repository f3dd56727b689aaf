// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/route.hpp"

#include "core/errors/make_error.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace weft {
namespace {

// Taken for a lane that nobody has published or measured, only to size chunks; predictions stay unknown.
constexpr lane_facts assumed{25e9, 7e-6};

constexpr std::uint64_t smallest_chunk = std::uint64_t{64} << 10;
constexpr std::uint64_t largest_chunk = std::uint64_t{16} << 20;
constexpr std::uint64_t chunk_step = 4096;

double seconds(const lane_facts& lane, std::uint64_t size) {
  return lane.latency_seconds + static_cast<double>(size) / lane.bytes_per_second;
}

bool known(const lane_facts& lane) { return lane.bytes_per_second > 0; }

std::string time_text(double s) {
  char text[32];
  if (s < 1e-3) {
    std::snprintf(text, sizeof text, "%.1f us", s * 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.2f ms", s * 1e3);
  }
  return text;
}

struct candidate {
  bool possible = false;
  route_choice choice;
};

/// Whether a peer link is as good as the caller wants; what is not known is not held against it.
bool good_enough(const lane_facts& lane, const route_wish& wish) {
  if (known(lane) && lane.bytes_per_second < wish.min_bytes_per_second) return false;
  return wish.max_latency.count() == 0 ||
         lane.latency_seconds <= std::chrono::duration<double>(wish.max_latency).count();
}

candidate direct_way(const route_facts& facts, device_id from, device_id to, std::uint64_t size,
                     const route_wish& wish) {
  const pair_facts& pair = facts.pair(from, to);
  candidate c{pair.usable && good_enough(pair.lane, wish), {copy_path::direct, {}, 0, 0, 0}};
  if (known(pair.lane)) c.choice.predicted_seconds = seconds(pair.lane, size);
  return c;
}

candidate staged_way(const route_facts& facts, device_id from, device_id to, std::uint64_t size) {
  const pipeline_plan plan = plan_pipeline(facts.to_host[from.index()],
                                           facts.from_host[from.index() * facts.devices + to.index()], bytes{size});
  return {true, {copy_path::staged, {}, plan.chunk, plan.depth, plan.seconds}};
}

candidate relayed_way(const route_facts& facts, device_id from, device_id to, device_id via, std::uint64_t size,
                      const route_wish& wish) {
  const pair_facts& first = facts.pair(from, via);
  const pair_facts& second = facts.pair(via, to);
  if (via == from || via == to || !first.usable || !second.usable) return {};
  if (!good_enough(first.lane, wish) || !good_enough(second.lane, wish)) return {};
  const pipeline_plan plan = plan_pipeline(first.lane, second.lane, bytes{size});
  return {true, {copy_path::relayed, via, plan.chunk, plan.depth, plan.seconds}};
}

/// Whether two steps in a pipeline may take less than `to_beat`: at the least, all bytes pass the slower one. Most
/// copies have a direct way, and are spared the plans of all others (8 devices: seven square roots).
bool may_beat(const lane_facts& first, const lane_facts& second, std::uint64_t size, const route_choice& to_beat) {
  if (to_beat.predicted_seconds <= 0) return to_beat.path != copy_path::direct;
  return known(first) && known(second) &&
         std::max(seconds(first, size), seconds(second, size)) < to_beat.predicted_seconds;
}

/// The fastest relay. With `to_beat`, only of those that may be faster; without, one of unknown time if there is no
/// other.
candidate best_relay(const route_facts& facts, device_id from, device_id to, std::uint64_t size, const route_wish& wish,
                     const route_choice* to_beat = nullptr) {
  candidate best;
  for (std::size_t k = 0; k < facts.devices; ++k) {
    const device_id via{static_cast<int>(k)};
    if (to_beat != nullptr && !may_beat(facts.pair(from, via).lane, facts.pair(via, to).lane, size, *to_beat)) continue;
    const candidate c = relayed_way(facts, from, to, via, size, wish);
    if (!c.possible) continue;
    if (c.choice.predicted_seconds <= 0) {  // a detour of unknown cost is not chosen, unless a detour was asked for
      if (to_beat == nullptr && !best.possible) best = c;
    } else if (best.choice.predicted_seconds <= 0 || c.choice.predicted_seconds < best.choice.predicted_seconds) {
      best = c;
    }
  }
  return best;
}

/// Strictly better: an unknown time of a direct way beats everything, of another way nothing.
bool beats(const route_choice& a, const route_choice& b) {
  if (b.path == copy_path::direct && b.predicted_seconds <= 0) return false;
  if (a.predicted_seconds <= 0) return false;
  return b.predicted_seconds <= 0 || a.predicted_seconds < b.predicted_seconds;
}

std::string why_not_direct(const route_facts& facts, device_id from, device_id to, const route_wish& wish) {
  const std::string pair = to_string(from) + " and " + to_string(to);
  if (!facts.pair(from, to).can_access && !facts.pair(to, from).can_access && !facts.pair(from, to).can_copy)
    return "no peer path between " + pair;
  if (facts.pair(from, to).usable && !good_enough(facts.pair(from, to).lane, wish)) {
    return "the link between " + pair + " is slower than was asked for";
  }
  return "peer access between " + pair + " is not enabled, or was found not to work";
}

/// Of a link that a relay cannot take.
std::string why_not_over(const route_facts& facts, device_id from, device_id to) {
  const std::string pair = to_string(from) + " and " + to_string(to);
  return facts.pair(from, to).usable ? "the link between " + pair + " is slower than was asked for"
                                     : "no usable peer path between " + pair;
}

error refused(std::string what) { return make_error(errc::peer_unsupported, std::move(what)); }

}  // namespace

std::string_view to_string(copy_path path) {
  switch (path) {
    case copy_path::automatic:
      return "automatic";
    case copy_path::host:
      return "host";
    case copy_path::host_to_device:
      return "host_to_device";
    case copy_path::device_to_host:
      return "device_to_host";
    case copy_path::same_device:
      return "same_device";
    case copy_path::direct:
      return "direct";
    case copy_path::staged:
      return "staged";
    case copy_path::relayed:
      return "relayed";
  }
  return "host";
}

pipeline_plan plan_pipeline(const lane_facts& first, const lane_facts& second, bytes size) {
  const std::uint64_t total = size.value();
  if (total == 0) return {0, 1, 0};
  const lane_facts a = known(first) ? first : assumed;
  const lane_facts b = known(second) ? second : assumed;
  const double latency = std::max(a.latency_seconds, b.latency_seconds);
  const double rate = std::min(a.bytes_per_second, b.bytes_per_second);
  const double best = std::sqrt(static_cast<double>(total) * latency * rate);
  std::uint64_t chunk = best >= static_cast<double>(largest_chunk) ? largest_chunk : static_cast<std::uint64_t>(best);
  chunk = std::clamp((chunk + chunk_step - 1) / chunk_step * chunk_step, smallest_chunk, largest_chunk);
  chunk = std::min(chunk, total);
  pipeline_plan plan;
  plan.chunk = chunk;
  const std::uint64_t count = total / chunk + (total % chunk != 0 ? 1 : 0);
  // One chunk in each stage keeps both busy, and a third one is on its way while a slot changes hands, which took an
  // H200 6 to 20 us.
  plan.depth = static_cast<int>(std::min<std::uint64_t>(count, 3));
  if (!known(first) || !known(second)) return plan;
  const std::uint64_t last = total - (count - 1) * chunk;
  if (count == 1) {
    plan.seconds = seconds(first, total) + seconds(second, total);
    return plan;
  }
  const double in = seconds(first, chunk);
  const double out = seconds(second, chunk);
  const auto full = static_cast<double>(count - 1);
  const double before_last = in >= out ? full * in + out : in + full * out;  // second stage done with all but the last
  const double last_arrived = (in >= out ? full * in : in + (full - 1) * std::max(in, out)) + seconds(first, last);
  plan.seconds = std::max(before_last, last_arrived) + seconds(second, last);
  return plan;
}

route_facts route_facts_of(const topology& machine) {
  route_facts facts;
  const std::size_t n = machine.devices.size();
  facts.devices = n;
  const auto lane = [](const link_path& path) {
    return lane_facts{path.bytes_per_second, std::chrono::duration<double>(path.latency).count()};
  };
  facts.pairs.resize(n * n);
  facts.from_host.resize(n * n);
  for (std::size_t a = 0; a < n; ++a) {
    facts.to_host.push_back(lane(machine.to_host[a]));
    facts.local.push_back({machine.devices[a].bytes_per_second / 2, 0});  // a copy reads and writes
    for (std::size_t b = 0; b < n; ++b) {
      const std::size_t i = a * n + b;
      facts.pairs[i].can_access = machine.access[i];
      // data may flow when either end can reach the other
      facts.pairs[i].usable =
          a != b && !machine.peer_paths[i].links.empty() && (machine.access[i] || machine.access[b * n + a]);
      facts.pairs[i].lane = lane(machine.peer_paths[i]);
      lane_facts up = lane(machine.from_host[b]);
      if (!machine.between_sockets[i].links.empty()) {
        const lane_facts across = lane(machine.between_sockets[i]);
        up.latency_seconds += across.latency_seconds;
        up.bytes_per_second = std::min(up.bytes_per_second, across.bytes_per_second);
      }
      facts.from_host[i] = up;
    }
  }
  return facts;
}

result<route_choice> route(const route_facts& facts, device_id from, device_id to, bytes size, const route_wish& wish) {
  for (const device_id id : {from, to}) {
    if (id.value() < 0 || id.index() >= facts.devices)
      return make_error(errc::invalid_device, "there is no " + to_string(id));
  }
  const std::uint64_t n = size.value();
  if (wish.via.value() >= 0 && wish.path != copy_path::relayed) {
    return refused("a copy that is " + std::string{to_string(wish.path)} + " through " + to_string(wish.via) +
                   ": only a relayed one goes through another device");
  }
  if (from == to) {
    if (wish.path != copy_path::automatic && wish.path != copy_path::same_device) {
      return refused("a copy on " + to_string(from) + " alone cannot be " + std::string{to_string(wish.path)});
    }
    route_choice c{copy_path::same_device, {}, 0, 0, 0};
    if (known(facts.local[from.index()])) c.predicted_seconds = seconds(facts.local[from.index()], n);
    return c;
  }
  switch (wish.path) {
    case copy_path::automatic:
      break;
    case copy_path::direct: {
      const candidate c = direct_way(facts, from, to, n, wish);
      if (!c.possible)
        return refused("a direct copy from " + to_string(from) + " to " + to_string(to) + ": " +
                       why_not_direct(facts, from, to, wish));
      return c.choice;
    }
    case copy_path::staged:
      return staged_way(facts, from, to, n).choice;
    case copy_path::relayed: {
      const bool named = wish.via.value() >= 0;
      if (named && wish.via.index() >= facts.devices)
        return refused("there is no " + to_string(wish.via) + " to go through");
      const candidate c =
          named ? relayed_way(facts, from, to, wish.via, n, wish) : best_relay(facts, from, to, n, wish);
      if (!c.possible) {
        return refused("no way from " + to_string(from) + " to " + to_string(to) + " through " +
                       (named ? to_string(wish.via) : std::string{"another device"}) +
                       ": a link is not enabled, or slower than was asked for");
      }
      return c.choice;
    }
    default:
      return refused("a copy between two devices cannot be " + std::string{to_string(wish.path)});
  }
  candidate best = direct_way(facts, from, to, n, wish);
  if (!best.possible || may_beat(facts.to_host[from.index()],
                                 facts.from_host[from.index() * facts.devices + to.index()], n, best.choice)) {
    const candidate staged = staged_way(facts, from, to, n);
    if (!best.possible || beats(staged.choice, best.choice)) best = staged;
  }
  const candidate relay = best_relay(facts, from, to, n, wish, &best.choice);
  if (relay.possible && beats(relay.choice, best.choice)) best = relay;
  return best.choice;
}

result<route_report> explain_route(const route_facts& facts, device_id from, device_id to, bytes size,
                                   const route_wish& wish) {
  auto chosen = route(facts, from, to, size, wish);
  if (!chosen) return std::move(chosen).error();
  route_report report;
  report.chosen = *chosen;
  if (from == to) return report;
  const auto lost = [&](const candidate& c, std::string impossible) {
    route_alternative a;
    a.path = c.choice.path;
    a.via = c.choice.via;
    if (c.possible && c.choice.predicted_seconds > 0) a.predicted_seconds = c.choice.predicted_seconds;
    if (!c.possible) {
      a.why = std::move(impossible);
    } else if (wish.path != copy_path::automatic) {
      a.why = "not asked for";
    } else if (!a.predicted_seconds) {
      a.why = "its time is not known: no rate was published or measured for a link on the way";
    } else if (report.chosen.predicted_seconds <= 0) {
      a.why = "the time of the chosen way is not known: no rate was published or measured for a link on it";
    } else {
      const double more = *a.predicted_seconds / report.chosen.predicted_seconds;
      char times[16];
      std::snprintf(times, sizeof times, "%.2f", more);
      a.why = "takes " + time_text(*a.predicted_seconds) + ", " + times + " times as long";
    }
    report.rejected.push_back(std::move(a));
  };
  const std::uint64_t n = size.value();
  if (report.chosen.path != copy_path::direct) {
    candidate c = direct_way(facts, from, to, n, wish);
    c.choice.path = copy_path::direct;
    lost(c, why_not_direct(facts, from, to, wish));
  }
  if (report.chosen.path != copy_path::staged) lost(staged_way(facts, from, to, n), "");
  for (std::size_t k = 0; k < facts.devices; ++k) {
    const device_id via{static_cast<int>(k)};
    if (via == from || via == to || (report.chosen.path == copy_path::relayed && report.chosen.via == via)) continue;
    candidate c = relayed_way(facts, from, to, via, n, wish);
    c.choice.path = copy_path::relayed;
    c.choice.via = via;
    const pair_facts& first = facts.pair(from, via);
    lost(c,
         first.usable && good_enough(first.lane, wish) ? why_not_over(facts, via, to) : why_not_over(facts, from, via));
  }
  return report;
}

}  // namespace weft
