// SPDX-License-Identifier: Apache-2.0
// reduce/…: the sum of 64 Mi floats (256 MiB), and the sum of their squares by map_reduce, against threads written by
// hand that keep the same error bound over the same memory. Host devices: CPU memory, not a GPU figure.

#include "weft/exec/reduce.hpp"

#include "paired.hpp"
#include "weft/exec/map_reduce.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

WEFT_KERNEL(square, (WEFT_IN(float) x, WEFT_OUT(float) squared), { squared[i] = x[i] * x[i]; });

#if defined(__GNUC__) && !defined(__clang__)
#define HAND_WRITTEN [[gnu::noinline, gnu::optimize("O3")]]
#else
#define HAND_WRITTEN [[gnu::noinline]]
#endif

/// Doubles in sixteen lanes, block by block: what a careful hand would write for that bound.
template <bool Squares>
HAND_WRITTEN double block_sum(const float* values) {
  std::array<double, 16> lanes{};
  for (std::size_t at = 0; at < 1024; at += 16) {
    for (std::size_t k = 0; k < 16; ++k) lanes[k] += Squares ? values[at + k] * values[at + k] : values[at + k];
  }
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

template <bool Squares>
double sum_by_threads(const std::vector<float>& values, std::size_t threads) {
  std::vector<double> sums(threads);
  const auto part = [&](std::size_t t) {
    const std::size_t blocks = values.size() / 1024;
    double total = 0;
    double lost = 0;
    for (std::size_t b = blocks * t / threads; b < blocks * (t + 1) / threads; ++b) {
      const double x = block_sum<Squares>(values.data() + b * 1024);
      const double next = total + x;
      lost += std::fabs(total) >= std::fabs(x) ? (total - next) + x : (x - next) + total;
      total = next;
    }
    sums[t] = total + lost;
  };
  std::vector<std::thread> running;
  for (std::size_t t = 1; t < threads; ++t) running.emplace_back(part, t);
  part(0);
  for (std::thread& t : running) t.join();
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  weft::machine_options chosen;
  chosen.backend = "host";
  chosen.devices = 2;
  chosen.memory_per_device = weft::bytes{std::uint64_t{1} << 30};
  const weft::machine m{chosen};

  std::vector<float> values(std::size_t{64} << 20);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1021) - 510.0f;
  const weft::array<float> there{m, values};
  const auto n = static_cast<std::int64_t>(values.size());
  const double bytes = static_cast<double>(values.size() * sizeof(float));

  // Exact: all are whole numbers.
  const double expected = sum_by_threads<false>(values, 1);
  const double expected_squares = sum_by_threads<true>(values, 1);
  bool is_right = true;
  const auto timed = [&](double wanted, auto work) {
    return [&is_right, wanted, work] { return seconds_of(1, [&] { is_right = is_right && work() == wanted; }); };
  };
  compare("reduce/sum/256MiB: two devices, in an array that is there",
          {{"weft::sum of an array", timed(expected, [&] { return weft::sum(m, there); })},
           {"two threads by hand", timed(expected, [&] { return sum_by_threads<false>(values, 2); })},
           {"one thread by hand", timed(expected, [&] { return sum_by_threads<false>(values, 1); })}},
          how, bytes);
  compare("reduce/sum_of_host/256MiB: two devices, host memory copied to them",
          {{"weft::sum of a vector", timed(expected, [&] { return weft::sum(m, values); })},
           {"two threads by hand, not copied", timed(expected, [&] { return sum_by_threads<false>(values, 2); })}},
          how, bytes);
  compare("map_reduce/squares/256MiB: two devices, in an array that is there",
          {{"weft::map_reduce",
            timed(expected_squares,
                  [&] { return weft::map_reduce<square>(m, weft::range(n), weft::reduce_op::sum, there); })},
           {"two threads by hand, fused", timed(expected_squares, [&] { return sum_by_threads<true>(values, 2); })}},
          how, bytes);
  if (!is_right) std::fprintf(stderr, "WRONG: a sum differs from the exact one\n");
  return is_right ? EXIT_SUCCESS : EXIT_FAILURE;
}
