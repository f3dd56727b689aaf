// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <iostream>
#include <numeric>
#include <vector>

WEFT_KERNEL(twice_plus_one, (WEFT_IN(float) input, WEFT_OUT(float) output), { output[i] = 2.0f * input[i] + 1.0f; });

int main() {
  weft::machine_options options;  // without any, a machine has the GPUs of this computer, or four virtual devices
  options.backend = "host";       // here: always four virtual ones
  options.devices = 4;
  const weft::machine m{options};
  const auto peers = weft::enable_all_peers(m);

  std::vector<float> numbers(1024);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  weft::buffer<float> x{m[0], numbers.size()};
  weft::buffer<float> y{m[1], numbers.size()};
  weft::buffer<float> z{m[1], numbers.size()};

  weft::copy(x, numbers);                // host -> gpu0
  const auto report = weft::copy(y, x);  // gpu0 -> gpu1
  const weft::stream order{m[1]};
  weft::launch<twice_plus_one>(order, weft::range(1024), y, z);
  weft::copy(order, numbers, z).wait();  // gpu1 -> host, after the kernel

  std::cout << "gpu0 -> gpu1: " << to_string(report.size) << ", " << to_string(report.path) << "\n";
  std::cout << "2 * 1023 + 1 = " << numbers[1023] << "\n";
}
