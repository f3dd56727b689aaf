// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/collective_cost.hpp"

#include "collective/fold.hpp"
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

double seconds_of(std::chrono::nanoseconds t) { return std::chrono::duration<double>(t).count(); }

/// What one round keeps busy, until it is read.
class round_load {
 public:
  round_load(std::size_t wires, std::size_t devices) : wires_(wires), memories_(devices) {}

  void wire(int which, double seconds) { wires_[static_cast<std::size_t>(which)] += seconds; }
  void memory(device_id which, double seconds) { memories_[which.index()] += seconds; }
  void at_least(double seconds) { longest_ = std::max(longest_, seconds); }
  /// What every step has to wait for before anything moves.
  void delay(double seconds) { delay_ = std::max(delay_, seconds); }

  /// How long it takes; then nothing is busy.
  [[nodiscard]] double take() {
    double busiest = longest_;
    for (std::vector<double>* const list : {&wires_, &memories_}) {
      for (double& busy : *list) {
        busiest = std::max(busiest, busy);
        busy = 0;
      }
    }
    const double all = busiest + delay_;
    longest_ = 0;
    delay_ = 0;
    return all;
  }

 private:
  std::vector<double> wires_, memories_;
  double longest_ = 0, delay_ = 0;
};

class pricer {
 public:
  pricer(const collective_schedule& schedule, std::size_t element_size, const topology& machine,
         std::span<const device_id> devices)
      : schedule_(schedule),
        element_size_(element_size),
        machine_(machine),
        devices_(devices),
        facts_(route_facts_of(machine)),
        load_(wires_of(machine), machine.devices.size()) {
    const auto ranks = static_cast<std::size_t>(schedule.shape.ranks);
    cost_.bytes_between.assign(ranks * ranks, 0);
    cost_.bytes_on_link.assign(machine.links.size(), 0);
  }

  [[nodiscard]] collective_cost price() {
    cost_.rounds = static_cast<int>(schedule_.rounds.size());
    for (const schedule_round& round : schedule_.rounds) {
      for (const schedule_move& m : round.moves) add(m);
      cost_.seconds += load_.take();
      for (const schedule_fold& f : round.folds) add(f);
      cost_.seconds += load_.take();
    }
    if (!is_known_) cost_.seconds = 0;
    for (const std::int64_t elements : schedule_.scratch)
      cost_.scratch_bytes = std::max(cost_.scratch_bytes, size_of(elements));
    return std::move(cost_);
  }

 private:
  static std::size_t wires_of(const topology& machine) {
    std::size_t count = 0;
    for (const topology_link& link : machine.links) count = std::max(count, static_cast<std::size_t>(link.wire) + 1);
    return count;
  }

  [[nodiscard]] std::uint64_t size_of(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements) * element_size_;
  }
  [[nodiscard]] device_id device_of(int rank) const { return devices_[static_cast<std::size_t>(rank)]; }

  void count(int from, int to, std::uint64_t size) {
    if (from == to) return;
    const auto ranks = static_cast<std::size_t>(schedule_.shape.ranks);
    cost_.bytes_between[static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to)] += size;
  }

  /// Steps over a way that has its wires for itself.
  void carry(const link_path& way, double bytes_per_second, double latency, std::uint64_t steps, std::uint64_t size) {
    for (const int link : way.links) {
      cost_.bytes_on_link[static_cast<std::size_t>(link)] += size;
      const int wire = machine_.links[static_cast<std::size_t>(link)].wire;
      if (bytes_per_second > 0)
        load_.wire(wire, static_cast<double>(steps) * latency + static_cast<double>(size) / bytes_per_second);
    }
    if (bytes_per_second <= 0) is_known_ = false;
  }

  void carry(const link_path& way, std::uint64_t steps, std::uint64_t size) {
    carry(way, way.bytes_per_second, seconds_of(way.latency), steps, size);
  }

  void use_memory(device_id on, std::uint64_t size) {
    const double rate = machine_.devices[on.index()].bytes_per_second;
    if (rate > 0) load_.memory(on, static_cast<double>(size) / rate);
  }

  void add(const schedule_move& m) {
    const std::uint64_t size = size_of(m.count);
    const device_id from = device_of(m.from.rank);
    const device_id to = device_of(m.to.rank);
    count(m.from.rank, m.to.rank, size);
    if (from == to) {
      use_memory(from, 2 * size);
      return;
    }
    const auto chosen = route(facts_, from, to, bytes{size});
    if (!chosen) {
      is_known_ = false;
      return;
    }
    load_.at_least(chosen->predicted_seconds);
    const std::uint64_t steps = chosen->chunk > 0 ? (size + chosen->chunk - 1) / chosen->chunk : 1;
    if (chosen->path == copy_path::direct) {
      carry(machine_.peer_paths[machine_.pair(from, to)], 1, size);
    } else if (chosen->path == copy_path::relayed) {
      carry(machine_.peer_paths[machine_.pair(from, chosen->via)], steps, size);
      carry(machine_.peer_paths[machine_.pair(chosen->via, to)], steps, size);
    } else {
      carry(machine_.to_host[from.index()], steps, size);
      // from the memory of the sender's socket on: one step over all links on the way
      const lane_facts& up = facts_.from_host[machine_.pair(from, to)];
      const link_path& across = machine_.between_sockets[machine_.pair(from, to)];
      if (!across.links.empty()) carry(across, up.bytes_per_second, up.latency_seconds, steps, size);
      carry(machine_.from_host[to.index()], up.bytes_per_second, up.latency_seconds, steps, size);
    }
  }

  /// Loads or stores of a kernel: they do not keep a link for themselves, and wait for its latency once.
  void reach(int from, int to, std::uint64_t size) {
    count(from, to, size);
    const device_id a = device_of(from);
    const device_id b = device_of(to);
    if (a == b) return;
    const link_path& way = machine_.peer_paths[machine_.pair(a, b)];
    if (way.links.empty() || way.bytes_per_second <= 0) is_known_ = false;
    load_.delay(seconds_of(way.latency));
    for (const int index : way.links) {
      const topology_link& link = machine_.links[static_cast<std::size_t>(index)];
      cost_.bytes_on_link[static_cast<std::size_t>(index)] += size;
      if (link.bytes_per_second > 0) load_.wire(link.wire, static_cast<double>(size) / link.bytes_per_second);
    }
  }

  void add(const schedule_fold& f) {
    const std::uint64_t size = size_of(f.count);
    for (const schedule_place& place : f.inputs) {
      reach(place.rank, f.at, size);
      use_memory(device_of(place.rank), size);
    }
    for (const schedule_place& place : f.outputs) {
      reach(f.at, place.rank, size);
      use_memory(device_of(place.rank), size);
    }
    // several passes keep what they have in the first output, and copy it to those that did not fit
    constexpr std::size_t width = detail::fold_width;
    std::uint64_t again = 0;
    if (f.inputs.size() > width) again += 2 * ((f.inputs.size() - width + width - 2) / (width - 1));
    if (f.outputs.size() > width) again += (f.outputs.size() - 1) / width;
    use_memory(device_of(f.outputs.front().rank), again * size);
  }

  const collective_schedule& schedule_;
  std::size_t element_size_;
  const topology& machine_;
  std::span<const device_id> devices_;
  route_facts facts_;
  round_load load_;
  collective_cost cost_;
  bool is_known_ = true;
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
                        std::span<const device_id> devices) {
  return pricer{schedule, element_size, machine, devices}.price();
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
                        const topology& machine, std::span<const device_id> devices) {
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
  const auto more_rounds = static_cast<double>(whole->rounds.size() - 1);
  const double pieces = std::sqrt(more_rounds * time / std::max(slowest.latency_seconds, 1e-9));
  const double piece = static_cast<double>(shape.counts.front()) / std::max(pieces, 1.0);
  return std::clamp(static_cast<std::int64_t>(std::ceil(piece)), elements_of(shortest_piece_bytes), longest);
}

}  // namespace weft
