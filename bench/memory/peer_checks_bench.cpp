// SPDX-License-Identifier: Apache-2.0
// peer_checks/…: what the verification of a pair at its first use costs on the host backend, beside the same machine
// without verification. Bars: 20 us for each ordered pair that is used; nothing for pairs that are only enabled.
#include "paired.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/machine.hpp"

#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace weft::bench;

weft::machine play(int devices, weft::peer_verification when) {
  weft::machine_options options;
  options.backend = "host";
  options.devices = devices;
  options.verify_peers = when;
  return weft::machine{options};
}

/// Seconds of a pass in which each ordered pair carries one small copy, for each pair.
double pass(const std::vector<weft::buffer<char>>& memory) {
  const double start = now();
  for (std::size_t a = 0; a < memory.size(); ++a) {
    for (std::size_t b = 0; b < memory.size(); ++b) {
      if (a != b) weft::copy(memory[b], memory[a]);
    }
  }
  return (now() - start) / static_cast<double>(memory.size() * (memory.size() - 1));
}

/// Seconds for each pair of a first pass, and of a later one, on a new machine.
std::pair<double, double> first_and_later(int devices, weft::peer_verification when) {
  const weft::machine m = play(devices, when);
  const auto peers = weft::enable_all_peers(m);
  std::vector<weft::buffer<char>> memory;
  for (const weft::device& d : m.devices()) memory.emplace_back(d, 64U);
  const double first = pass(memory);
  double later = first;
  for (int i = 0; i < 5; ++i) later = std::min(later, pass(memory));
  return {first, later};
}

}  // namespace

int main(int argc, char** argv) {
  const options how = parse(argc, argv);
  print_machine(how);
  for (const int devices : {2, 8, 32, 128}) {
    std::vector<double> cost, later;
    for (int i = 0; i < how.samples; ++i) {
      const auto verified = first_and_later(devices, weft::peer_verification::first_use);
      const auto plain = first_and_later(devices, weft::peer_verification::never);
      cost.push_back((verified.first - plain.first) * 1e6);
      later.push_back((verified.second - plain.second) * 1e6);
    }
    const spread first = spread_of(std::move(cost)), after = spread_of(std::move(later));
    if (how.json) {
      std::printf("{\"name\":\"peer_checks/first use\",\"devices\":%d,\"us\":%.4g,\"later_us\":%.4g,\"bar_us\":20}\n",
                  devices, first.median, after.median);
    } else {
      std::printf(
          "peer_checks/first use, %3d devices: %6.2f us for each pair [%.2f, %.2f] (bar 20)%s; later %+.3f us\n",
          devices, first.median, first.p5, first.p95, first.median <= 20 ? "" : "  MISSED", after.median);
    }
    std::fflush(stdout);
  }
  const auto opening = [](weft::peer_verification when) {
    return contender{when == weft::peer_verification::never ? "without verification" : "first_use", [when] {
                       return seconds_of(1, [when] {
                         const weft::machine m = play(64, when);
                         const auto peers = weft::enable_all_peers(m);
                       });
                     }};
  };
  compare("peer_checks/64 devices, opened and enabled",
          {opening(weft::peer_verification::first_use), opening(weft::peer_verification::never)}, how);
  return 0;
}
