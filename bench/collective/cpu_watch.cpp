// SPDX-License-Identifier: Apache-2.0
#include "collective/cpu_watch.hpp"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <unistd.h>

namespace weft::bench {

cpu_watch::cpu_watch() : last_(read()) {}

double cpu_watch::others_since(double own_seconds) {
  const times now = read();
  const times before = last_;
  last_ = now;
  if (now.busy < 0 || now.all <= before.all) return -1;
  return std::clamp((now.busy - before.busy - own_seconds) / (now.all - before.all), 0.0, 1.0);
}

cpu_watch::times cpu_watch::read() {
  std::ifstream file{"/proc/stat"};
  std::string name;
  if (!(file >> name) || name != "cpu") return {};
  // user nice system idle iowait irq softirq steal; what follows is part of user and nice
  double ticks[8] = {};
  for (double& t : ticks) file >> t;
  if (!file) return {};
  const auto rate = static_cast<double>(::sysconf(_SC_CLK_TCK));
  times seen;
  for (const double t : ticks) seen.all += t / rate;
  seen.busy = seen.all - (ticks[3] + ticks[4]) / rate;
  return seen;
}

}  // namespace weft::bench
