// SPDX-License-Identifier: Apache-2.0
// Order without waiting on the host: streams, events across devices, and coroutines.
#include "play.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/runtime/task.hpp"

#include <iostream>
#include <vector>

WEFT_KERNEL(add, (WEFT_INOUT(int32_t) values, int32_t amount), { values[i] += amount; });

// Work written from top to bottom: each line starts when the one before has ended; no thread stands still meanwhile.
weft::task<std::int32_t> third_element(const weft::stream& order, const weft::buffer<std::int32_t>& values) {
  co_await weft::launch<add>(order, weft::range(static_cast<std::int64_t>(values.size())), values, 1);
  std::vector<std::int32_t> host(values.size());
  co_await weft::copy(order, host, values);
  co_return host[3];
}

int main(int argc, char** argv) {
  const weft::machine m = examples::play(argc, argv, "pair_nvlink");
  const weft::stream producer{m[0]};
  const weft::stream consumer{m[1]};
  weft::buffer<std::int32_t> x{m[0], 1000};
  weft::buffer<std::int32_t> y{m[1], 1000};

  weft::fill(producer, x, 20);
  const weft::event ready = weft::launch<add>(producer, weft::range(1000), x, 2);
  consumer.wait(ready);  // gpu1 waits for gpu0; this thread does not
  const weft::event copied = weft::copy(consumer, y, x);
  weft::launch<add>(consumer, weft::range(1000), y, 20);
  copied.wait();
  std::cout << "ready before copied: " << (ready.ready() ? "yes" : "no") << "\n";
  std::cout << "20 + 2 + 20 + 1 = " << weft::sync_wait(third_element(consumer, y)) << "\n";
}
