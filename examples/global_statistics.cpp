// SPDX-License-Identifier: Apache-2.0
// What all devices know together. Each has its own readings of the same sensors and looks at those; all_reduce gives
// every device the sum, the average, the least and the greatest over all of them.
#include "play.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <vector>

namespace {

constexpr std::int64_t sensors = 1'000;
constexpr std::int64_t times = 512;  // readings of a sensor on each device

// Sensor i: everything that this device has of it.
WEFT_KERNEL(look,
            (WEFT_IN(int32_t, whole) readings, WEFT_OUT(int64_t) sum, WEFT_OUT(double) average, WEFT_OUT(int32_t) least,
             WEFT_OUT(int32_t) greatest, int64_t width, int64_t count),
            {
              int64_t all = 0;
              int32_t low = readings[i];
              int32_t high = readings[i];
              for (int64_t t = 0; t < count; ++t) {
                int32_t one = readings[t * width + i];
                all += one;
                low = one < low ? one : low;
                high = one > high ? one : high;
              }
              sum[i] = all;
              average[i] = (double)all / (double)count;
              least[i] = low;
              greatest[i] = high;
            });

std::int32_t reading(int device, std::int64_t time, std::int64_t sensor) {
  const std::int64_t n = (device * times + time) * sensors + sensor;
  return static_cast<std::int32_t>(n * 7'919 % 20'011 - 10'005 + sensor);
}

struct known_sensor {
  std::int64_t sum = 0;
  double average = 0;
  std::int32_t least = 0, greatest = 0;
};

known_sensor plain(int devices, std::int64_t sensor) {
  known_sensor made;
  made.least = made.greatest = reading(0, 0, sensor);
  for (int d = 0; d < devices; ++d) {
    for (std::int64_t t = 0; t < times; ++t) {
      const std::int32_t one = reading(d, t, sensor);
      made.sum += one;
      made.least = std::min(made.least, one);
      made.greatest = std::max(made.greatest, one);
    }
  }
  made.average = static_cast<double>(made.sum) / static_cast<double>(devices * times);
  return made;
}

template <class T>
std::vector<weft::buffer<T>> on_each(const weft::communicator& all, std::int64_t count) {
  std::vector<weft::buffer<T>> made;
  for (int r = 0; r < all.size(); ++r) made.emplace_back(all.on(weft::rank{r}), static_cast<std::size_t>(count));
  return made;
}

template <class T>
std::vector<T> on_host(const weft::buffer<T>& from) {
  std::vector<T> made(from.size());
  copy(made, from);
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  const weft::machine m = examples::play(argc, argv, "two_socket_8");
  weft::communicator all{m};
  auto readings = on_each<std::int32_t>(all, times * sensors);
  auto sums = on_each<std::int64_t>(all, sensors);
  auto averages = on_each<double>(all, sensors);
  auto least = on_each<std::int32_t>(all, sensors);
  auto greatest = on_each<std::int32_t>(all, sensors);

  for (int r = 0; r < all.size(); ++r) {
    const auto k = static_cast<std::size_t>(r);
    std::vector<std::int32_t> host;
    for (std::int64_t t = 0; t < times; ++t) {
      for (std::int64_t s = 0; s < sensors; ++s) host.push_back(reading(r, t, s));
    }
    copy(readings[k], host);
    weft::launch<look>(all.on(weft::rank{r}).default_stream(), weft::range(sensors), readings[k], sums[k], averages[k],
                       least[k], greatest[k], sensors, times);
  }
  // in place, in the order of the default streams: after the kernels, and nobody waits in between
  all.all_reduce(sums, weft::reduce_op::sum);
  all.all_reduce(averages, weft::reduction_op::average());  // devices have as many readings each
  all.all_reduce(least, weft::reduce_op::min);
  all.all_reduce(greatest, weft::reduce_op::max).wait();

  // The same by plain loops, for the first device and for all others.
  std::int64_t wrong = 0;
  for (int r = 0; r < all.size(); ++r) {
    const auto k = static_cast<std::size_t>(r);
    const auto got_sums = on_host(sums[k]);
    const auto got_averages = on_host(averages[k]);
    const auto got_least = on_host(least[k]), got_greatest = on_host(greatest[k]);
    for (std::int64_t s = 0; s < sensors; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const known_sensor expected = plain(all.size(), s);
      const bool right = got_sums[at] == expected.sum && got_least[at] == expected.least &&
                         got_greatest[at] == expected.greatest && std::abs(got_averages[at] - expected.average) < 1e-9;
      wrong += right ? 0 : 1;
      if (r > 0 || s % 333 != 0) continue;
      std::cout << "sensor " << s << ": sum " << got_sums[at] << ", average " << got_averages[at] << ", from "
                << got_least[at] << " to " << got_greatest[at] << '\n';
    }
  }
  std::cout << sensors << " sensors on " << all.size() << " devices: " << wrong << " wrong\n";
  return wrong == 0 ? 0 : 1;
}
