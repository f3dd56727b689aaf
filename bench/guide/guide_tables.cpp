// SPDX-License-Identifier: Apache-2.0
#include "guide/guide_tables.hpp"

#include "exec/balance/affine_cost.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace weft::bench {

namespace {

constexpr guide_figure all_figures[] = {
    {"transfer methods", "P2P direct, bandwidth", "GB/s", 12},
    {"transfer methods", "P2P direct, latency", "us", 10},
    {"transfer methods", "P2P via PCIe switch, bandwidth", "GB/s", 8},
    {"transfer methods", "P2P via PCIe switch, latency", "us", 15},
    {"transfer methods", "host-staged, bandwidth", "GB/s", 6},
    {"transfer methods", "host-staged, latency", "us", 50},
    {"transfer methods", "NVLink, bandwidth", "GB/s", 25, 50},
    {"transfer methods", "NVLink, latency", "us", 5},

    {"link classes", "PCIe 3.0 x16", "GB/s", 12, 16},
    {"link classes", "PCIe 4.0 x16", "GB/s", 24, 32},
    {"link classes", "NVLink 3.0, one link", "GB/s", 50, 100},

    {"small copies", "1,000 copies of 4 KiB", "GB/s", 2},
    {"small copies", "one copy of 4,000 KiB", "GB/s", 12},
    {"small copies", "1,000 copies of 4 KiB as one batch", "GB/s"},

    {"data parallel", "one device", "GB/s", 2.3},
    {"data parallel", "speed-up, two devices", "x", 1.91},
    {"data parallel", "speed-up, four devices", "x", 3.57},
    {"data parallel", "speed-up, four devices behind one link", "x"},

    {"scatter-gather", "10M elements, one device", "ms", 50},
    {"scatter-gather", "10M elements, two devices", "ms", 28},
    {"scatter-gather", "10M elements, four devices", "ms", 16},
    {"scatter-gather", "1B elements, one device", "ms", 4800},
    {"scatter-gather", "1B elements, two devices", "ms", 2500},
    {"scatter-gather", "1B elements, four devices", "ms", 1300},

    {"reduce", "1B elements, one device", "ms", 45},
    {"reduce", "1B elements, four devices", "ms", 14},

    {"all-reduce", "naive, bandwidth used", "%", 25},
    {"all-reduce", "tree, bandwidth used", "%", 50},
    {"all-reduce", "ring, bandwidth used", "%", 100},
    {"all-reduce", "naive, 4 bytes, 64 devices by 8", "x"},
    {"all-reduce", "tree, 4 bytes, 64 devices by 8", "x"},
    {"all-reduce", "ring, 4 bytes, 64 devices by 8", "x"},

    {"load imbalance", "equal split, total", "ms", 150},
    {"load imbalance", "proportional split, total", "ms", 120},
    {"load imbalance", "share of the first device", "%", 60},

    {"mixed devices", "share of the first", "%", 45},
    {"mixed devices", "share of the second", "%", 30},
    {"mixed devices", "share of the third", "%", 25},

    {"pipeline", "one device, per batch", "ms", 150},
    {"pipeline", "three devices, per batch", "ms", 55},
    {"pipeline", "throughput, 20 batches in all", "x"},
    {"pipeline", "three devices, hops beside the stages, per batch", "ms"},

    {"crossover", "size from which a second device helps", "elements", 10e6},

    {"images", "100 images, one device", "s", 3.2},
    {"images", "speed-up, two devices", "x", 1.88},
    {"images", "speed-up, four devices", "x", 3.90},
};

}  // namespace

std::span<const guide_figure> guide_figures() { return all_figures; }

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

}  // namespace weft::bench
