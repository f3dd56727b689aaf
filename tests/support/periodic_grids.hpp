// SPDX-License-Identifier: Apache-2.0
// Loops over arrays without ends, for the tests of each backend: every step equals a plain loop, bit for bit.
#pragma once

#include "weft/exec/launch_run.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace samples {

WEFT_KERNEL(periodic_line, (WEFT_IN(uint32_t, wrap(3)) from, WEFT_OUT(uint32_t) to),
            { to[i] = from[i - 3] + 3u * from[i - 1] + 5u * from[i] + 7u * from[i + 3]; });
WEFT_KERNEL_2D(periodic_plane, (WEFT_IN(float, wrap(1)) from, WEFT_OUT(float) to, int64_t w), {
  int64_t left = x == 0 ? w - 1 : x - 1;  // the rows themselves do not wrap
  int64_t right = x == w - 1 ? 0 : x + 1;
  to[y * w + x] =
      0.25f * ((from[(y - 1) * w + x] + from[(y + 1) * w + x]) + (from[y * w + left] + from[y * w + right]));
});

inline std::vector<std::uint32_t> first_line(std::size_t n) {
  std::vector<std::uint32_t> made(n);
  for (std::size_t i = 0; i < n; ++i) made[i] = static_cast<std::uint32_t>(i * 2'654'435'761U + 1);
  return made;
}
inline std::vector<std::uint32_t> later_line(std::vector<std::uint32_t> from, int steps) {
  const std::size_t n = from.size();
  std::vector<std::uint32_t> to(n);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < n; ++i)
      to[i] = from[(i + n - 3) % n] + 3U * from[(i + n - 1) % n] + 5U * from[i] + 7U * from[(i + 3) % n];
    std::swap(from, to);
  }
  return from;
}

inline std::vector<float> first_plane(std::size_t w, std::size_t h) {
  std::vector<float> made(w * h);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<float>(i * i % 97);
  return made;
}
inline std::vector<float> later_plane(std::vector<float> from, std::size_t w, int steps) {
  const std::size_t h = from.size() / w;
  std::vector<float> to(from.size());
  for (int step = 0; step < steps; ++step) {
    for (std::size_t y = 0; y < h; ++y) {
      for (std::size_t x = 0; x < w; ++x) {
        to[y * w + x] = 0.25F * ((from[(y + h - 1) % h * w + x] + from[(y + 1) % h * w + x]) +
                                 (from[y * w + (x + w - 1) % w] + from[y * w + (x + 1) % w]));
      }
    }
    std::swap(from, to);
  }
  return from;
}

/// Five steps of each loop with each number of devices; lines are also shorter than three steps for each device.
inline void expect_periodic_loops(const weft::machine& m, weft::spread_options how = {}) {
  constexpr int steps = 5;
  const auto most = static_cast<std::size_t>(m.device_count());
  for (std::size_t devices = 1; devices <= most; ++devices) {
    how.devices.at_most = devices;
    for (const std::size_t n : {3U, 7U, 16U, 1'003U}) {
      weft::array<std::uint32_t> a{m, first_line(n)}, b{m, n};
      for (int step = 0; step < steps; ++step) {
        weft::launch<periodic_line>(m, how, weft::range(static_cast<std::int64_t>(n)), a, b);
        std::swap(a, b);
      }
      EXPECT_EQ(a.host(), later_line(first_line(n), steps)) << n << " elements, " << devices << " devices";
    }
    for (const std::size_t h : {1U, 5U, 31U}) {
      constexpr std::size_t w = 33;
      weft::array<float> a{m, first_plane(w, h)}, b{m, w * h};
      for (int step = 0; step < steps; ++step) {
        weft::launch<periodic_plane>(m, how, weft::range(w, static_cast<std::int64_t>(h)), a, b, std::int64_t{w});
        std::swap(a, b);
      }
      EXPECT_EQ(a.host(), later_plane(first_plane(w, h), w, steps)) << h << " rows, " << devices << " devices";
    }
  }
}

}  // namespace samples
