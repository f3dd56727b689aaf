// SPDX-License-Identifier: Apache-2.0
// One kernel over all devices: y = 2x + 1, from host memory and back. The launch divides, copies, runs and gathers.
#include "play.hpp"
#include "weft/exec/launch_run.hpp"

#include <iostream>
#include <numeric>
#include <vector>

WEFT_KERNEL(twice_plus_one, (WEFT_IN(float) x, WEFT_OUT(float) y), { y[i] = 2.0f * x[i] + 1.0f; });

int main(int argc, char** argv) {
  const weft::machine m = examples::play(argc, argv, "two_socket_8");
  std::vector<float> x(1 << 20), y(x.size());
  std::iota(x.begin(), x.end(), 0.0F);

  weft::spread_options how;                    // without any, `automatic` decides how many devices it is worth
  how.strategy = weft::balance::static_equal;  // here: the same for each
  const weft::launch_run run = weft::launch<twice_plus_one>(m, how, weft::range(1 << 20), x, y);
  run.wait();  // y is complete

  std::size_t right = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (y[i] == 2.0F * static_cast<float>(i) + 1.0F) ++right;
  }
  for (const weft::device_account& d : run.report().devices) {
    std::cout << to_string(d.device) << ": " << d.items << " items\n";
  }
  std::cout << right << " of " << y.size() << " are right\n";
  return right == y.size() ? 0 : 1;
}
