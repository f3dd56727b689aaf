// SPDX-License-Identifier: Apache-2.0
// Devices of different speed, 45 : 30 : 25. The first launch finds the speeds out, the next ones divide by them. The
// clock is virtual: the kernel really runs, and its times are those of a model, not measurements.
#include "weft/exec/launch_run.hpp"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <vector>

WEFT_KERNEL(add_one, (WEFT_INOUT(int32_t) values), { values[i] += 1; });

int main() {
  constexpr std::int64_t items = 1'000'000;
  weft::machine_options options;
  options.sim = "mixed_3";
  options.clock = weft::clock_kind::virtual_time;
  const weft::machine m{options};

  weft::spread_options how;
  how.model = weft::kernel_cost{.seconds = 0, .seconds_per_item = 100e-6};  // on a device of speed 1
  bool right = true;
  weft::launch_report last;
  for (const weft::balance strategy : {weft::balance::static_equal, weft::balance::guided, weft::balance::automatic}) {
    how.strategy = strategy;
    weft::array<std::int32_t> values{m, items, 0};
    const weft::launch_run run = weft::launch<add_one>(m, how, weft::range(items), values);
    run.wait();
    last = run.report();
    std::cout << std::left << std::setw(13) << to_string(strategy) << std::fixed << std::setprecision(1);
    for (const weft::device_account& d : last.devices) {
      std::cout << to_string(d.device) << ' ' << 100 * static_cast<double>(d.items) / items << " %  ";
    }
    std::cout << "efficiency " << 100 * last.efficiency() << " % (simulated)\n";
    const std::vector<std::int32_t> got = values.host();
    right = right && std::ranges::count(got, 1) == items;  // each item once, whoever did it
  }
  std::cout << '\n' << to_string(last) << (right ? "every item was done once\n" : "ITEMS ARE WRONG\n");
  return right ? 0 : 1;
}
