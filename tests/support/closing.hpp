// SPDX-License-Identifier: Apache-2.0
// Machines that are closed while threads use them.
#pragma once

#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "support/threads.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace samples {

WEFT_KERNEL(closing_add_one, (WEFT_INOUT(int32_t) values), { values[i] += 1; });

/// Operations of every kind until one throws. Its error.
inline weft::error use_until_closed(const weft::machine& m, int first, std::atomic<int>& ready) {
  return error_of([&] {
    const weft::buffer<std::int32_t> a{m[0], 64}, b{m[1], 64};  // for default streams
    const weft::buffer<std::int32_t> c{m[0], 64}, d{m[1], 64};  // for this one
    const weft::stream order{m[0]};
    std::vector<std::int32_t> here(64);
    ++ready;
    for (int i = first;; ++i) {
      switch (i % 8) {
        case 0:
          weft::copy(b, a);
          break;
        case 1:
          weft::copy(order, d, c);
          break;
        case 2:
          weft::fill(a.span(), 3);
          break;
        case 3:
          weft::copy(here, a);
          break;
        case 4:
          static_cast<void>(weft::buffer<int>{m[1], 10});
          break;
        case 5:
          weft::launch<closing_add_one>(order, weft::range(64), c);
          break;
        case 6:
          weft::copy_peer(m, b.data(), gpu1, a.data(), gpu0, weft::bytes{100});
          break;
        default:
          order.synchronize();
          break;
      }
    }
  });
}

/// Each use ends with machine_closed, or with cancelled where the operation had been taken; what is wrong, else empty.
inline std::string closed_in_use(const std::function<weft::machine()>& open, int often) {
  for (int round = 0; round < samples::rounds(often); ++round) {
    weft::machine m = open();
    std::atomic<int> ready{0};
    std::vector<weft::error> ends(3);
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 3; ++t)
        threads.emplace_back([&, t] { ends[static_cast<std::size_t>(t)] = use_until_closed(m, t, ready); });
      while (ready < 3) std::this_thread::yield();
      for (int i = 0; i < round % 16 * 8; ++i) std::this_thread::yield();
      m.close();
    }
    for (const weft::error& e : ends) {
      if (e.code != weft::errc::machine_closed && e.code != weft::errc::cancelled)
        return "round " + std::to_string(round) + ": " + to_string(e);
    }
  }
  return {};
}

}  // namespace samples
