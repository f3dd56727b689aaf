// SPDX-License-Identifier: Apache-2.0
// The guide's all-reduce: what each algorithm makes of a link. Its devices have one link each, in both directions at
// once, to a switch; of its figures nothing else explains all three.
#include "guide/guide_kernels.hpp"
#include "guide/guide_tables.hpp"
#include "weft/collective/collective_cost.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"

#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace weft::bench {

namespace {

using std::chrono::nanoseconds;

constexpr int ranks = 4;
constexpr double link_rate = 12e9;                          // the guide's peer to peer
constexpr nanoseconds way = std::chrono::microseconds{10};  // from device to device
constexpr std::int64_t elements = 25'000'000;               // 100 MB of floats

struct guide_algorithm {
  collective_algorithm algorithm;
  std::string_view used;  // its rows
  std::string_view growth;
};
constexpr std::array algorithms{
    guide_algorithm{collective_algorithm::naive, "naive, bandwidth used", "naive, 4 bytes, 64 devices by 8"},
    guide_algorithm{collective_algorithm::tree, "tree, bandwidth used", "tree, 4 bytes, 64 devices by 8"},
    guide_algorithm{collective_algorithm::ring, "ring, bandwidth used", "ring, 4 bytes, 64 devices by 8"}};

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

/// Seconds by the model, of one algorithm.
double predicted(const topology& layout, collective_algorithm algorithm, std::int64_t count) {
  const int devices = layout.device_count();
  const std::vector<device_id> ids = first_devices(devices);
  const collective_shape shape{collective::all_reduce, devices, 0, {count}};
  const std::int64_t piece = best_piece(shape, sizeof(float), algorithm, layout, ids);
  return cost_of(value_or_raise(make_schedule(shape, algorithm, piece)), sizeof(float), layout, ids).seconds;
}

double share_of_link(double seconds, std::int64_t count, double rate) {
  return 100 * static_cast<double>(count) * sizeof(float) / seconds * bus_factor(collective::all_reduce, ranks) / rate;
}

/// Rank r adds r + 1 at each place, in place.
double simulated_seconds(const machine& m, communicator& all, collective_algorithm algorithm, std::int64_t count) {
  std::vector<buffer<float>> data;
  data.reserve(ranks);
  for (int r = 0; r < ranks; ++r) {
    data.emplace_back(m[r], static_cast<std::size_t>(count));
    fill(data.back(), static_cast<float>(r + 1));
  }
  const nanoseconds begin = m.now();
  all.all_reduce(data, data, reduce_op::sum, {.algorithm = algorithm}).wait();
  const nanoseconds end = m.now();
  const std::vector<float> sums(static_cast<std::size_t>(count), ranks * (ranks + 1) / 2.0F);
  std::vector<float> got(sums.size());
  for (const buffer<float>& one : data) {
    copy(got, one);
    guide_check(got == sums, "all-reduce by " + std::string{to_string(algorithm)});
  }
  return std::chrono::duration<double>(end - begin).count();
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
  for (const guide_algorithm& one : algorithms) {
    made[one.used] = share_of_link(simulated_seconds(m, all, one.algorithm, elements), elements, link_rate);
    made[one.growth] =
        predicted(switched(64, link_rate), one.algorithm, 1) / predicted(switched(8, link_rate), one.algorithm, 1);
  }
  return made;
}

}  // namespace weft::bench
