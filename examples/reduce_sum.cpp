// SPDX-License-Identifier: Apache-2.0
// A sum over all devices, in one line and by a kernel of one's own. The tail is part of it, whatever the size.
#include "play.hpp"
#include "weft/exec/reduce.hpp"

#include <cstdint>
#include <iostream>
#include <vector>

WEFT_KERNEL(add_up, (WEFT_IN(int32_t) values, WEFT_INOUT(int64_t, reduce(sum)) total), { total[0] += values[i]; });

int main(int argc, char** argv) {
  const weft::machine m = examples::play(argc, argv, "two_socket_8");
  bool right = true;
  for (const std::int64_t count : {1, 1'023, 1'000'003}) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(count));
    std::int64_t expected = 0;
    for (std::size_t i = 0; i < host.size(); ++i) {
      host[i] = static_cast<std::int32_t>(i * 2'654'435'761U % 2'001) - 1'000;
      expected += host[i];
    }
    const weft::array<std::int32_t> values{m, host};
    const std::int64_t sum = weft::sum(m, values);

    // A kernel may do more than add: each device has a total of its own, and they are combined at the end.
    weft::array<std::int64_t> total{m, 1, std::int64_t{0}};
    weft::launch<add_up>(m, weft::range(count), values, total).wait();
    const bool both = sum == expected && total.host()[0] == expected;
    std::cout << count << " numbers: " << sum << (both ? "\n" : ", WRONG\n");
    right = right && both;
  }
  return right ? 0 : 1;
}
