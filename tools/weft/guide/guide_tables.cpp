// SPDX-License-Identifier: Apache-2.0
#include "guide_tables.hpp"

#include "command_line/interruption.hpp"
#include "weft/core/raise.hpp"
#include "weft/exec/affine_cost.hpp"

#include <algorithm>

namespace weft::tool {

namespace {

constexpr guide_figure one(std::string_view table, std::string_view row, std::string_view unit, double value,
                           std::string_view note = {}) {
  return {table, row, unit, value, value, note};
}

constexpr guide_figure all_figures[] = {
    // Four ways between two devices.
    one("transfer methods", "P2P direct, bandwidth", "GB/s", 12, "the guide measured PCIe 3.0 x16, one switch"),
    one("transfer methods", "P2P direct, latency", "us", 10),
    one("transfer methods", "P2P via PCIe switch, bandwidth", "GB/s", 8,
        "the row of the guide for different switches: the way goes up to the socket and down again"),
    one("transfer methods", "P2P via PCIe switch, latency", "us", 15),
    one("transfer methods", "host-staged, bandwidth", "GB/s", 6,
        "half of 12: the guide sends all of it to the host, and then all of it on; weft sends chunks, and both halves "
        "of "
        "the way are busy at once"),
    one("transfer methods", "host-staged, latency", "us", 50),
    {"transfer methods", "NVLink, bandwidth", "GB/s", 25, 50,
     "one link of NVLink 2.0: 25 each way, 50 in both together"},
    one("transfer methods", "NVLink, latency", "us", 5),

    // The links themselves.
    {"link classes", "PCIe 3.0 x16", "GB/s", 12, 16, "simulated: the line's rate, before packet headers"},
    {"link classes", "PCIe 4.0 x16", "GB/s", 24, 32, "simulated: the line's rate, before packet headers"},
    {"link classes", "NVLink 2.0, one link", "GB/s", 25, 50, "25 each way, 50 in both together"},
    {"link classes", "NVLink 3.0, one link", "GB/s", 50, 100,
     "contradicts what was published of the hardware: a link of NVLink 3.0 has 25 each way and 50 in both together, as "
     "one of 2.0 has; there are twice as many of them"},

    // Device to host, in pieces and at once.
    one("small copies", "1,000 copies of 4 KiB", "GB/s", 2, "1,024 elements each, taken as floats"),
    one("small copies", "one copy of 4,000 KiB", "GB/s", 12),
    {"small copies", "1,000 copies of 4 KiB as one batch", "GB/s", 0, 0, "not in the guide: weft::copy_batch"},

    {"synchronisation", "100 synchronisations", "ms", 1, 5,
     "what they add to 100 kernels: 99 more than one costs, over 99, times 100"},
    {"synchronisation", "one synchronisation", "ms", 0.01, 0.05},

    // y = 2 x + 1 from and to host memory.
    one("data parallel", "one device", "GB/s", 2.3,
        "fed to the simulation: links that make one device stream 2.3 GB/s, and 4.01 % that is not divided, as 3.57x "
        "on "
        "four implies"),
    one("data parallel", "two devices", "GB/s", 4.4),
    one("data parallel", "four devices", "GB/s", 8.2),
    one("data parallel", "speed-up, two devices", "x", 1.91, "implies 4.7 % that is not divided, 3.57x on four 4.0 %"),
    one("data parallel", "speed-up, four devices", "x", 3.57),
    one("data parallel", "scaling efficiency", "%", 89,
        "stands beside two speed-ups and fits one: 3.57x of 4 is 89 %, 1.91x of 2 is 95 %; 'due to P2P overhead' "
        "cannot "
        "be, since the program copies from the host and no device from another"),
    {"data parallel", "speed-up, four devices behind one link", "x", 0, 0,
     "not in the guide: its figure needs a link for each device, and the same program on one full-duplex link that all "
     "four share does this"},

    // Copies out, computes, copies back.
    one("scatter-gather", "10M elements, one device", "ms", 50,
        "0.8 GB/s, where the guide's data parallel table has 2.3 GB/s for one device"),
    one("scatter-gather", "10M elements, two devices", "ms", 28),
    one("scatter-gather", "10M elements, four devices", "ms", 16),
    one("scatter-gather", "10M elements, speed-up", "x", 3.1),
    one("scatter-gather", "100M elements, one device", "ms", 480),
    one("scatter-gather", "100M elements, two devices", "ms", 250),
    one("scatter-gather", "100M elements, four devices", "ms", 135),
    one("scatter-gather", "100M elements, speed-up", "x", 3.6),
    one("scatter-gather", "1B elements, one device", "ms", 4800),
    one("scatter-gather", "1B elements, two devices", "ms", 2500),
    one("scatter-gather", "1B elements, four devices", "ms", 1300),
    one("scatter-gather", "1B elements, speed-up", "x", 3.7),
    {"scatter-gather", "scaling efficiency", "%", 85, 93,
     "contradicts the speed-ups beside it: 3.1x of 4 is 78 %, 3.6x 89 %, 3.7x 92 %; shown here: that of 10M elements"},

    // A sum.
    one("reduce", "1B elements, one device", "ms", 45,
        "89 GB/s: the data is on the device already, and the guide's program copies it there"),
    one("reduce", "1B elements, four devices", "ms", 14),
    one("reduce", "speed-up", "x", 3.2,
        "implies 8.3 % that is not divided: 3.7 ms for a last sum of 4,096 numbers; the guide's program also leaves "
        "out "
        "what does not divide by devices and threads"),

    // Four devices, 100 MB.
    one("all-reduce", "naive, bandwidth used", "%", 25,
        "the guide calls it all-to-all; a quarter is what is left of a link when everything goes through one device, "
        "first in and then out; pieces of 16 MiB come in while others go out, which would make it a half"),
    one("all-reduce", "tree, bandwidth used", "%", 50,
        "one binary tree in pieces, in the limit: the first pieces fill it, and each one pays its latency"),
    one("all-reduce", "ring, bandwidth used", "%", 100,
        "contradicts '(N-1)/N of peak' below it, 75 % for its four devices; and its program passes on what it has "
        "summed "
        "already: right for two devices, and for three a sum that counts one of them twice"),
    {"all-reduce", "halving and doubling, bandwidth used", "%", 0, 0, "not in the guide"},
    {"all-reduce", "direct, bandwidth used", "%", 0, 0,
     "not in the guide: each device combines its part of everybody's memory in place"},
    {"all-reduce", "naive, 4 bytes", "us", 0, 0, "not in the guide, which has 'O(N^2)'"},
    {"all-reduce", "tree, 4 bytes", "us", 0, 0, "not in the guide, which has 'O(log N)'"},
    {"all-reduce", "ring, 4 bytes", "us", 0, 0, "not in the guide, which has 'O(N)'"},
    {"all-reduce", "naive, 4 bytes, 64 devices by 8", "x", 0, 0,
     "not in the guide; its O(N^2) would make it 64, and through one device it is O(N)"},
    {"all-reduce", "tree, 4 bytes, 64 devices by 8", "x", 0, 0, "not in the guide; its O(log N) would make it 2"},
    {"all-reduce", "ring, 4 bytes, 64 devices by 8", "x", 0, 0, "not in the guide; its O(N) would make it 8"},
    {"all-reduce", "ring is ahead of tree from, 4 devices", "bytes", 0, 0,
     "not in the guide, which says small N for naive, moderate N for tree and large N for ring; what decides is the "
     "size as much"},
    {"all-reduce", "ring is ahead of tree from, 8 devices", "bytes", 0, 0, "not in the guide"},
    {"all-reduce", "ring is ahead of tree from, 16 devices", "bytes", 0, 0, "not in the guide"},

    // Two devices, 3 : 2.
    one("load imbalance", "equal split, first device", "ms", 100),
    one("load imbalance", "equal split, total", "ms", 150),
    one("load imbalance", "proportional split, total", "ms", 120, "'20 % faster' is 20 % less time; 25 % more speed"),
    one("load imbalance", "share of the first device", "%", 60),

    {"mixed devices", "share of the first", "%", 45, 45,
     "shares of a machine whose speeds are 45 : 30 : 25; by the published peak rates of the three cards it would be "
     "42 : 35 : 24"},
    one("mixed devices", "share of the second", "%", 30),
    one("mixed devices", "share of the third", "%", 25),

    // Three stages.
    one("pipeline", "one device, per batch", "ms", 150),
    one("pipeline", "three devices, per batch", "ms", 55),
    one("pipeline", "throughput, in steady state", "x", 2.7),
    {"pipeline", "20 batches in all", "ms", 0, 0, "not in the guide, which leaves out filling and draining"},
    {"pipeline", "throughput, 20 batches in all", "x", 0, 0,
     "not in the guide: with the pipeline filled and drained 2.7x becomes this"},
    {"pipeline", "three devices, hops beside the stages, per batch", "ms", 0, 0,
     "not in the guide: what weft does unless told otherwise"},

    one("crossover", "elements from which a second device helps", "elements", 10e6,
        "contradicts the guide's own scatter-gather, where four devices are 3.1x faster at this very size; it depends "
        "on "
        "where the data is"),

    one("images", "100 images, one device", "s", 3.2),
    one("images", "100 images, two devices", "s", 1.7),
    one("images", "100 images, four devices", "s", 0.82, "its program's output says 823 ms and 121.5 images/s"),
    one("images", "one device", "images/s", 31),
    one("images", "two devices", "images/s", 59),
    one("images", "four devices", "images/s", 122),
    one("images", "speed-up, two devices", "x", 1.88),
    one("images", "speed-up, four devices", "x", 3.90,
        "no fixed part that is not divided gives both: 1.88x on two implies 6.4 %, 3.90x on four 0.9 %"),

    {"unified memory", "against copies", "x", 2, 3, "the guide says it of one chip whose GPU shares the host's memory"},
};

}  // namespace

std::span<const guide_figure> guide_figures() { return all_figures; }

std::vector<std::string_view> guide_table_names() {
  std::vector<std::string_view> names;
  for (const guide_figure& f : all_figures) {
    if (names.empty() || names.back() != f.table) names.push_back(f.table);
  }
  return names;
}

double figure_of(std::string_view table, std::string_view row) {
  const auto* at =
      std::ranges::find_if(all_figures, [&](const guide_figure& f) { return f.table == table && f.row == row; });
  if (at == std::end(all_figures)) raise(errc::not_found, "the guide has no '" + std::string{row} + "'");
  return at->low;
}

std::int64_t crossover_items(const crossover_costs& costs, int devices) {
  std::vector<costed_device> all;
  all.reserve(static_cast<std::size_t>(devices));
  for (int d = 0; d < devices; ++d) {
    all.push_back({device_id{d}, d == 0 ? affine_cost{costs.first_seconds, costs.first_seconds_per_item}
                                        : affine_cost{costs.other_seconds, costs.other_seconds_per_item}});
  }
  const auto devices_for = [&](std::int64_t items) { return value_or_raise(finish_together(items, all)).devices; };
  std::int64_t one_does = 0;
  std::int64_t more_do = 1;
  constexpr std::int64_t most = std::int64_t{1} << 40;
  while (more_do < most && devices_for(more_do) < 2) {
    one_does = more_do;
    more_do *= 2;
  }
  while (more_do - one_does > 1) {
    const std::int64_t middle = one_does + (more_do - one_does) / 2;
    (devices_for(middle) < 2 ? one_does : more_do) = middle;
  }
  return more_do;
}

void stop_if_interrupted() {
  if (interrupted()) throw guide_stopped{};
}

}  // namespace weft::tool
