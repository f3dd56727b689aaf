// SPDX-License-Identifier: Apache-2.0
// growth/…: what one operation costs with ever more alive. A line is fitted to the logarithms: its slope is the
// exponent. Bars: 0.1 for one operation (a logarithm passes, a walk over all does not), 1.1 for work that is done for
// each pair or each device.
#include "paired.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/machine.hpp"

#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace {

using namespace weft::bench;

WEFT_KERNEL(growth_nothing, (WEFT_INOUT(float) values), { values[i] = values[i]; });

/// The slope of the line through the logarithms, by least squares.
double exponent_of(const std::vector<std::pair<double, double>>& points) {
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [n, seconds] : points) {
    x += std::log(n);
    y += std::log(seconds);
    xx += std::log(n) * std::log(n);
    xy += std::log(n) * std::log(seconds);
  }
  const auto count = static_cast<double>(points.size());
  return (count * xy - x * y) / (count * xx - x * x);
}

/// Prints a row for each number and the exponent. `work(n)` gives the seconds of one operation with n alive.
void grow(const char* title, const char* of_what, const std::vector<int>& numbers, double bar, const options& how,
          const std::function<double(int)>& work) {
  std::vector<std::pair<double, double>> points;
  for (const int n : numbers) {
    const double seconds = work(n);
    points.emplace_back(n, seconds);
    if (how.json) {
      std::printf("{\"name\":\"growth/%s\",\"n\":%d,\"seconds\":%.4g}\n", title, n, seconds);
    } else {
      std::printf("growth/%-24s %9d %s %14.3f us\n", title, n, of_what, seconds * 1e6);
    }
    std::fflush(stdout);
  }
  const double exponent = exponent_of(points);
  if (how.json) {
    std::printf("{\"name\":\"growth/%s\",\"exponent\":%.3f,\"bar\":%.1f}\n", title, exponent, bar);
  } else {
    std::printf("growth/%-24s exponent %.2f (bar %.1f)%s\n\n", title, exponent, bar, exponent <= bar ? "" : "  MISSED");
  }
}

weft::machine play(int devices) {
  weft::machine_options options;
  options.backend = "host";
  options.devices = devices;
  return weft::machine{options};
}

std::optional<weft::machine> opencl() {
  weft::machine_options options;
  options.backend = "opencl";
  try {
    return weft::machine{options};
  } catch (const weft::error_exception& absent) {
    std::fprintf(stderr, "growth on OpenCL: skipped: %s\n", absent.cause().what.c_str());
    return std::nullopt;
  }
}

/// The median of `how.samples` samples of `repeats` operations each.
double median_of(const options& how, int repeats, const std::function<void()>& work) {
  std::vector<double> all;
  for (int i = 0; i < how.samples; ++i) all.push_back(seconds_of(repeats, work));
  return spread_of(std::move(all)).median;
}

}  // namespace

int main(int argc, char** argv) {
  const options how = parse(argc, argv);
  print_machine(how);

  const std::vector<int> alive{1'000,  2'000,   4'000,   8'000,   16'000,   32'000,
                               64'000, 128'000, 256'000, 512'000, 1'000'000};
  const weft::machine m = play(2);
  std::vector<weft::buffer<std::uint8_t>> kept;
  const auto keep = [&](const weft::machine& on, int n) {
    while (kept.size() < static_cast<std::size_t>(n)) kept.emplace_back(on[0], 64U);
  };
  const auto allocate_and_free = [&](const char* title, const weft::machine& on, const std::vector<int>& numbers,
                                     double bar) {
    grow(title, "buffers alive", numbers, bar, how, [&](int n) {
      keep(on, n);
      return median_of(how, 1000, [&] { const weft::buffer<std::uint8_t> one{on[0], 64U}; });
    });
    kept.clear();
  };
  allocate_and_free("allocate and free", m, alive, 0.1);
  // every other one is freed: none of those holes has room for what is asked
  grow("allocate and free, holes", "holes too small", {1'000, 4'000, 16'000, 64'000, 256'000}, 0.1, how, [&](int n) {
    keep(m, 2 * n);
    std::vector<weft::buffer<std::uint8_t>> left;
    for (std::size_t i = 0; i < kept.size(); i += 2) left.push_back(std::move(kept[i]));
    kept = std::move(left);
    const double seconds = median_of(how, 1000, [&] { const weft::buffer<std::uint8_t> one{m[0], 300U}; });
    kept.clear();
    return seconds;
  });
  // PoCL 3.1 walks a list of its own: the same four calls of it alone take 9 us beside 1,000 others, 1 ms beside 32,000
  if (const auto driver = opencl())
    allocate_and_free("allocate and free, OpenCL", *driver, {1'000, 2'000, 4'000, 8'000, 16'000, 32'000}, 1.4);
  grow("free_memory", "buffers alive", {1'000, 10'000, 100'000, 1'000'000}, 0.1, how, [&](int n) {
    keep(m, n);
    return median_of(how, 1000, [&] { static_cast<void>(m[0].free_memory()); });
  });
  kept.clear();
  // by pairs: 240 for 16 devices, 65,280 for 256
  const std::vector<int> pairs{16 * 15, 32 * 31, 64 * 63, 128 * 127, 256 * 255};
  grow("open, enable all peers", "pairs", pairs, 1.1, how, [&](int n) {
    const int devices = static_cast<int>(std::ceil(std::sqrt(n)));
    return median_of(how, 1, [&] {
      const weft::machine opened = play(devices);
      const auto peers = weft::enable_all_peers(opened);
    });
  });
  grow("launch over devices", "devices", {8, 16, 32, 64, 128, 256}, 1.1, how, [&](int n) {
    const weft::machine over = play(n);
    weft::array<float> values{over, 64U * static_cast<unsigned>(n), 0.0F};
    const auto all = weft::range(n * 64);
    weft::launch<growth_nothing>(over, all, values).wait();  // places the data
    return median_of(how, 20, [&] { weft::launch<growth_nothing>(over, all, values).wait(); });
  });
  grow("what is known of each pair", "pairs", pairs, 1.1, how, [&](int n) {
    const weft::machine asked = play(static_cast<int>(std::ceil(std::sqrt(n))));
    return median_of(how, 1, [&] {
      for (const weft::device& from : asked.devices()) {
        for (const weft::device& to : asked.devices()) {
          if (from.id() != to.id()) static_cast<void>(weft::capability_between(asked, from.id(), to.id()));
        }
      }
    });
  });
  return 0;
}
