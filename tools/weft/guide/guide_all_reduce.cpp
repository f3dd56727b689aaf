// SPDX-License-Identifier: Apache-2.0
// The guide's all-reduce: what each algorithm makes of a link. Its devices have one link each, in both directions at
// once, to a switch; of its figures nothing else explains all three.
#include "bench/collective/collective_words.hpp"
#include "bench/collective/collective_work.hpp"
#include "command_line/statistics.hpp"
#include "guide_kernels.hpp"
#include "guide_tables.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace weft::tool {

namespace {

using std::chrono::nanoseconds;
using wall = std::chrono::steady_clock;

constexpr int ranks = 4;
constexpr double link_rate = 12e9;                          // the guide's peer to peer
constexpr nanoseconds way = std::chrono::microseconds{10};  // from device to device
constexpr std::int64_t elements = 25'000'000;               // 100 MB of floats

struct guide_algorithm {
  collective_algorithm algorithm;
  std::string_view used;     // its rows
  std::string_view latency;  // empty: none
  std::string_view growth;
};
constexpr std::array algorithms{
    guide_algorithm{collective_algorithm::naive, "naive, bandwidth used", "naive, 4 bytes",
                    "naive, 4 bytes, 64 devices by 8"},
    guide_algorithm{collective_algorithm::tree, "tree, bandwidth used", "tree, 4 bytes",
                    "tree, 4 bytes, 64 devices by 8"},
    guide_algorithm{collective_algorithm::ring, "ring, bandwidth used", "ring, 4 bytes",
                    "ring, 4 bytes, 64 devices by 8"},
    guide_algorithm{collective_algorithm::halving_doubling, "halving and doubling, bandwidth used", "", ""},
    guide_algorithm{collective_algorithm::direct, "direct, bandwidth used", "", ""}};

struct crossover_row {
  int devices;
  std::string_view row;
};
constexpr std::array crossovers{crossover_row{4, "ring is ahead of tree from, 4 devices"},
                                crossover_row{8, "ring is ahead of tree from, 8 devices"},
                                crossover_row{16, "ring is ahead of tree from, 16 devices"}};

/// Devices with one link each to one switch.
topology switched(int devices, double rate) {
  topology made;
  made.name = "switched";
  const auto n = static_cast<std::size_t>(devices);
  made.devices.resize(n);
  made.access.assign(n * n, true);
  for (std::size_t d = 0; d < n; ++d) {
    made.devices[d].name = "device";
    made.devices[d].memory = bytes{std::uint64_t{1} << 30};
    made.devices[d].capabilities = capability::peer_to_peer;
    made.access[d * n + d] = false;
    made.nodes.push_back(
        {.kind = node_kind::device, .name = to_string(device_id{static_cast<int>(d)}), .parent = devices});
  }
  made.nodes.push_back({.kind = node_kind::pcie_switch, .name = "switch0", .parent = devices + 1});
  made.nodes.push_back({.kind = node_kind::socket, .name = "socket0"});
  const auto join = [&](int from, int to) {
    topology_link one;
    one.from = from;
    one.to = to;
    one.wire = static_cast<int>(made.links.size());
    one.kind = link_kind::pcie;
    one.bytes_per_second = rate;
    one.latency = way / 2;
    made.links.push_back(one);
  };
  for (int d = 0; d <= devices; ++d) {
    // the last one is the switch's own, to the host
    const int above = d < devices ? devices : devices + 1;
    join(d, above);
    join(above, d);
  }
  return value_or_raise(complete_topology(std::move(made)));
}

collective_task task_of(collective_algorithm algorithm, std::int64_t count, int devices) {
  collective_task made;
  made.shape = shape_of(collective::all_reduce, devices, count);
  made.algorithm = algorithm;
  made.in_place = true;
  return made;
}

/// Seconds by the model, of one algorithm.
double predicted(const topology& layout, collective_algorithm algorithm, std::int64_t count) {
  const int devices = layout.device_count();
  const std::vector<device_id> ids = first_devices(devices);
  const collective_shape shape = shape_of(collective::all_reduce, devices, count);
  const std::int64_t piece = best_piece(shape, sizeof(float), algorithm, layout, ids);
  return cost_of(value_or_raise(make_schedule(shape, algorithm, piece)), sizeof(float), layout, ids).seconds;
}

double share_of_link(double seconds, std::int64_t count, double rate) {
  return 100 * static_cast<double>(count) * sizeof(float) / seconds * bus_factor(collective::all_reduce, ranks) / rate;
}

/// Runs it on new numbers, and ends the command when the sum is wrong.
void run_checked(collective_work& work, std::string_view name) {
  work.load();
  work.run();
  const collective_finding found = work.check();
  guide_check(found.wrong == 0, fmt::format("all-reduce by {} ({})", name, found.first));
}

double simulated_seconds(const machine& m, communicator& all, collective_algorithm algorithm, std::int64_t count) {
  const auto work = work_of_all(all, task_of(algorithm, count, all.size()));
  run_checked(*work, to_string(algorithm));
  const nanoseconds begin = m.now();
  work->run();
  return std::chrono::duration<double>(m.now() - begin).count();
}

/// The fewest bytes, in steps of a 32nd, from which a ring is predicted to be faster than a tree.
std::int64_t ring_ahead_from(const topology& layout) {
  const auto is_ahead = [&](std::int64_t count) {
    return predicted(layout, collective_algorithm::ring, count) < predicted(layout, collective_algorithm::tree, count);
  };
  std::int64_t behind = 0, ahead = 1;
  while (ahead < std::int64_t{1} << 28 && !is_ahead(ahead)) {
    behind = ahead;
    ahead *= 2;
  }
  while (ahead - behind > std::max<std::int64_t>(1, ahead / 32)) {
    const std::int64_t middle = behind + (ahead - behind) / 2;
    (is_ahead(middle) ? ahead : behind) = middle;
  }
  return ahead * static_cast<std::int64_t>(sizeof(float));
}

/// "naive up to 2 devices, tree up to 64": who is predicted to be the fastest of the guide's three.
std::string fastest_text(const std::vector<topology>& layouts, std::int64_t count) {
  std::vector<std::pair<collective_algorithm, int>> best;  // and up to which number
  for (const topology& layout : layouts) {
    const int n = layout.device_count();
    auto first = algorithms.front().algorithm;
    for (const guide_algorithm& one : std::span{algorithms}.first(3)) {
      if (predicted(layout, one.algorithm, count) < predicted(layout, first, count)) first = one.algorithm;
    }
    if (best.empty() || best.back().first != first) best.emplace_back(first, n);
    best.back().second = n;
  }
  std::string text;
  for (const auto& [algorithm, n] : best)
    text += fmt::format("{}{} up to {}", text.empty() ? "" : ", ", to_string(algorithm), n);
  return text;
}

}  // namespace

guide_values simulate_all_reduce() {
  guide_values made;
  machine_options options;
  options.backend = "host";
  options.machine = switched(ranks, link_rate);
  options.clock = clock_kind::virtual_time;
  const machine m{options};
  communicator all{m};
  std::vector<topology> layouts;
  layouts.reserve(6);
  for (int n = 2; n <= 64; n *= 2) layouts.push_back(switched(n, link_rate));
  for (const guide_algorithm& one : algorithms) {
    stop_if_interrupted();
    const double took = simulated_seconds(m, all, one.algorithm, elements);
    const double told = predicted(m.layout(), one.algorithm, elements);
    made.put(one.used, share_of_link(took, elements, link_rate),
             fmt::format("simulated: busbw by a link's rate, on four devices with a link of 12 GB/s each to a switch: "
                         "{:.3g} ms, algbw {:.3g} GB/s; predicted {:.3g} ms, {:.3g} %",
                         1e3 * took, elements * sizeof(float) / took / giga, 1e3 * told,
                         share_of_link(told, elements, link_rate)));
    if (one.latency.empty()) continue;
    const double small = simulated_seconds(m, all, one.algorithm, 1);
    std::vector<std::string> more;
    double of_8 = 0, of_64 = 0;
    for (const topology& layout : layouts) {
      const double seconds = predicted(layout, one.algorithm, 1);
      more.push_back(fmt::format("{:.3g}", 1e6 * seconds));
      if (layout.device_count() == 8) of_8 = seconds;
      of_64 = seconds;
    }
    made.put(
        one.latency, 1e6 * small,
        fmt::format("simulated: four devices, 10 us from one to the next; predicted for 2, 4, 8, 16, 32 and 64: {} us",
                    fmt::join(more, ", ")));
    made.put(one.growth, of_64 / of_8, "simulated: predicted by the model of costs");
  }
  const std::string fastest =
      fmt::format("the fastest of the three, by the number of devices: for 4 bytes {}; for 1 MB {}; for 100 MB {}",
                  fastest_text(layouts, 1), fastest_text(layouts, 250'000), fastest_text(layouts, elements));
  for (const crossover_row& row : crossovers) {
    made.put(row.row, static_cast<double>(ring_ahead_from(switched(row.devices, link_rate))),
             "simulated: predicted by the model of costs");
  }
  made.rows[crossovers.front().row].why += "; " + fastest;
  return made;
}

guide_values measure_all_reduce(const machine& m, const guide_plan& plan) {
  guide_values made;
  made.otherwise = "this computer has four devices in one memory, and two cores or so for all of them";
  std::vector<device> first;
  first.reserve(ranks);
  for (int d = 0; d < ranks; ++d) first.push_back(m[d]);
  communicator all{first};
  const auto seconds_by = [&](collective_algorithm algorithm, std::int64_t count) {
    const auto work = work_of_all(all, task_of(algorithm, count, ranks));
    run_checked(*work, to_string(algorithm));
    const int repeats = count < 100'000 ? 100 : 1;
    std::vector<double> times;
    for (int k = 0; k < (plan.quick ? 3 : 9); ++k) {
      stop_if_interrupted();
      const auto begin = wall::now();
      for (int r = 0; r < repeats; ++r) work->run();
      times.push_back(std::chrono::duration<double>(wall::now() - begin).count() / repeats);
    }
    return summarise(std::move(times)).median;
  };

  const std::int64_t count = plan.quick ? elements / 16 : elements;
  const auto leases = enable_all_peers(m);
  const buffer<float> from{m[0], static_cast<std::size_t>(count)}, to{m[1], static_cast<std::size_t>(count)};
  fill(from, 1.0F);
  std::vector<double> copies(plan.quick ? 3 : 9);
  for (double& one : copies) one = copy(to, from).bytes_per_second();
  const double rate = summarise(std::move(copies)).median;
  for (const guide_algorithm& one : algorithms) {
    const double took = seconds_by(one.algorithm, count);
    made.put(one.used, share_of_link(took, count, rate),
             fmt::format("measured: busbw by what a copy between two devices does here, {:.3g} GB/s; {:.3g} ms",
                         rate / giga, 1e3 * took));
    if (!one.latency.empty()) made.put(one.latency, 1e6 * seconds_by(one.algorithm, 1));
  }
  // the smallest power of four from which on the ring was always ahead
  std::int64_t from_count = 0;
  for (std::int64_t k = 1; k <= count; k *= 4) {
    const bool ahead = seconds_by(collective_algorithm::ring, k) < seconds_by(collective_algorithm::tree, k);
    if (!ahead) from_count = 0;
    if (ahead && from_count == 0) from_count = k;
  }
  const std::string_view row = crossovers.front().row;
  if (from_count > 0) {
    made.put(row, static_cast<double>(from_count) * sizeof(float), "measured at powers of four");
  } else {
    made.leave(row, fmt::format("a ring was not ahead of a tree up to {} bytes", count * 4));
  }
  return made;
}

}  // namespace weft::tool
