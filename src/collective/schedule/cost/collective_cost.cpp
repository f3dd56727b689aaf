// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/collective_cost.hpp"

#include "collective/schedule/cost/schedule_replay.hpp"
#include "collective/schedule/move_ways.hpp"
#include "collective/schedule/schedule_steps.hpp"
#include "weft/memory/route.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace weft {
namespace {

// Taken for a link that nobody has published or measured, only to size pieces; prices stay unknown.
constexpr lane_facts assumed{10e9, 5e-6};
// Shorter pieces would cost more to start than any link saves, whatever its latency.
constexpr std::uint64_t shortest_piece_bytes = std::uint64_t{64} << 10;

class pricer {
 public:
  pricer(const collective_schedule& schedule, std::size_t element_size, const topology& machine,
         std::span<const device_id> devices)
      : schedule_(schedule), ground_{machine, devices, element_size}, ways_(machine) {
    const auto ranks = static_cast<std::size_t>(schedule.shape.ranks);
    cost_.bytes_between.assign(ranks * ranks, 0);
    cost_.bytes_on_link.assign(machine.links.size(), 0);
  }

  [[nodiscard]] collective_cost price(std::chrono::nanoseconds launch_latency, std::uint64_t in_place) {
    cost_.rounds = static_cast<int>(schedule_.rounds.size());
    for (const schedule_round& round : schedule_.rounds) {
      for (const schedule_move& m : round.moves) add(m);
      for (const schedule_fold& f : round.folds) add(f);
    }
    for (const std::int64_t elements : schedule_.scratch)
      cost_.scratch_bytes = std::max(cost_.scratch_bytes, size_of(elements));
    if (is_known_) {
      const int lanes = detail::stream_layout::lanes_for(schedule_.shape.ranks);
      const auto takes =
          detail::replay(detail::schedule_steps{schedule_, in_place, lanes}, ground_, ways_, launch_latency);
      // what goes from rank to rank takes some time, however little of it a clock would show
      const std::chrono::nanoseconds least{moves_ ? 1 : 0};
      cost_.seconds = std::chrono::duration<double>(std::max(takes, least)).count();
    }
    return std::move(cost_);
  }

 private:
  [[nodiscard]] std::uint64_t size_of(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements) * ground_.element_size;
  }
  [[nodiscard]] device_id device_of(int rank) const { return ground_.devices[static_cast<std::size_t>(rank)]; }

  void count(int from, int to, std::uint64_t size) {
    if (from == to) return;
    const auto ranks = static_cast<std::size_t>(schedule_.shape.ranks);
    cost_.bytes_between[static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to)] += size;
    moves_ = moves_ || size != 0;
  }
  void carry(const link_path& way, std::uint64_t size) {
    for (const int link : way.links) cost_.bytes_on_link[static_cast<std::size_t>(link)] += size;
    is_known_ = is_known_ && !way.links.empty() && way.bytes_per_second > 0;
  }

  void add(const schedule_move& m) {
    const std::uint64_t size = size_of(m.count);
    const device_id from = device_of(m.from.rank);
    const device_id to = device_of(m.to.rank);
    count(m.from.rank, m.to.rank, size);
    if (from == to) return;
    const detail::move_ways::way& way = ways_.of(from, to, size);
    is_known_ = is_known_ && way.first != nullptr;
    for (const auto* const leg : {way.first, way.second}) {
      if (leg != nullptr) carry(leg->path, size);
    }
  }

  /// Loads or stores of a kernel.
  void reach(int from, int to, std::uint64_t size) {
    count(from, to, size);
    const device_id a = device_of(from);
    const device_id b = device_of(to);
    if (a != b) carry(ground_.machine.peer_paths[ground_.machine.pair(a, b)], size);
  }

  void add(const schedule_fold& f) {
    const std::uint64_t size = size_of(f.count);
    for (const schedule_place& place : f.inputs) reach(place.rank, f.at, size);
    for (const schedule_place& place : f.outputs) reach(f.at, place.rank, size);
  }

  const collective_schedule& schedule_;
  detail::replay_ground ground_;
  detail::move_ways ways_;
  collective_cost cost_;
  bool is_known_ = true;
  bool moves_ = false;
};

/// A link as one move sees it.
lane_facts lane_between(const route_facts& facts, device_id from, device_id to) {
  lane_facts lane;
  const auto chosen = route(facts, from, to, bytes{collective_piece_bytes});
  if (chosen && chosen->path == copy_path::staged) {
    const lane_facts& down = facts.to_host[from.index()];
    const lane_facts& up = facts.from_host[from.index() * facts.devices + to.index()];
    lane = {std::min(down.bytes_per_second, up.bytes_per_second), down.latency_seconds + up.latency_seconds};
  } else {
    lane = facts.pair(from, to).lane;
  }
  return lane.bytes_per_second > 0 ? lane : assumed;
}

bool is_pipelined(collective what, collective_algorithm algorithm) {
  return algorithm == collective_algorithm::tree ||
         (algorithm == collective_algorithm::ring && (what == collective::broadcast || what == collective::reduce));
}

}  // namespace

std::string_view to_string(reduction_order order) { return order == reduction_order::rank ? "rank" : "any"; }

collective_cost cost_of(const collective_schedule& schedule, std::size_t element_size, const topology& machine,
                        std::span<const device_id> devices, std::chrono::nanoseconds launch_latency,
                        std::uint64_t in_place) {
  return pricer{schedule, element_size, machine, devices}.price(launch_latency, in_place);
}

std::uint64_t collective_bytes(const collective_shape& shape, std::size_t element_size) {
  std::int64_t elements = 0;
  if (shape.what == collective::all_to_all) {
    for (int r = 0; r < shape.ranks; ++r) elements = std::max(elements, input_elements(shape, r));
  } else {
    elements = std::accumulate(shape.counts.begin(), shape.counts.end(), std::int64_t{0});
  }
  return static_cast<std::uint64_t>(elements) * element_size;
}

double bus_factor(collective what, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (what) {
    case collective::all_reduce:
      return 2 * others;
    case collective::reduce:
    case collective::broadcast:
      return 1;
    case collective::reduce_scatter:
    case collective::all_gather:
    case collective::scatter:
    case collective::gather:
    case collective::all_to_all:
      return others;
  }
  return 1;
}

std::int64_t best_piece(const collective_shape& shape, std::size_t element_size, collective_algorithm algorithm,
                        const topology& machine, std::span<const device_id> devices,
                        std::chrono::nanoseconds launch_latency) {
  const auto elements_of = [&](std::uint64_t size) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(size / element_size));
  };
  const std::int64_t longest = elements_of(collective_piece_bytes);
  if (!is_pipelined(shape.what, algorithm)) return longest;
  const auto whole = make_schedule(shape, algorithm, 0);
  if (!whole || whole->rounds.size() < 2) return longest;
  const route_facts facts = route_facts_of(machine);
  lane_facts slowest;
  for (const schedule_round& round : whole->rounds) {
    for (const schedule_move& m : round.moves) {
      const device_id from = devices[static_cast<std::size_t>(m.from.rank)];
      const device_id to = devices[static_cast<std::size_t>(m.to.rank)];
      if (from == to) continue;
      const lane_facts lane = lane_between(facts, from, to);
      const bool is_first = slowest.bytes_per_second <= 0;
      slowest.bytes_per_second =
          is_first ? lane.bytes_per_second : std::min(slowest.bytes_per_second, lane.bytes_per_second);
      slowest.latency_seconds = std::max(slowest.latency_seconds, lane.latency_seconds);
    }
  }
  if (slowest.bytes_per_second <= 0) return longest;
  const double time = static_cast<double>(collective_bytes(shape, element_size)) / slowest.bytes_per_second;
  // A rank has room for two pieces, each of which comes in, is folded and goes out: half a launch for each.
  if (shape.what != collective::broadcast)
    slowest.latency_seconds += std::chrono::duration<double>(launch_latency).count() / 2;
  const auto more_rounds = static_cast<double>(whole->rounds.size() - 1);
  const double pieces = std::sqrt(more_rounds * time / std::max(slowest.latency_seconds, 1e-9));
  const double piece = static_cast<double>(shape.counts.front()) / std::max(pieces, 1.0);
  return std::clamp(static_cast<std::int64_t>(std::ceil(piece)), elements_of(shortest_piece_bytes), longest);
}

}  // namespace weft
