// SPDX-License-Identifier: Apache-2.0
// Times two things that should do the same, turn about in one run, so that whatever else the machine does hits both.
// Google Benchmark does not pair, and a ratio of two separate runs on a shared machine says little.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::bench {

struct spread {
  double p5 = 0, median = 0, p95 = 0;
};
[[nodiscard]] spread spread_of(std::vector<double> values);

struct contender {
  std::string name;
  std::function<double()> sample;  // seconds for one unit of work
};

struct options {
  int samples = 41;
  bool json = false;
};
[[nodiscard]] options parse(int argc, char** argv);

/// Prints one block: each contender's time, and the ratio of the first contender to each other, sample by sample.
/// `bytes` > 0 adds GB/s.
void compare(std::string_view title, const std::vector<contender>& contenders, const options& how, double bytes = 0);

/// Prints what `first` takes more than `second`: the quartiles of the differences of `pairs` neighbours, each one unit
/// of work, in turning order. For bars that are times, not ratios; neighbours see the same noise.
void compare_difference(std::string_view title, const contender& first, const contender& second, int pairs,
                        const options& how);

/// Seconds that `work` takes, per repetition.
template <class Work>
double seconds_of(int repeats, Work&& work);

/// Seconds on the steady clock.
[[nodiscard]] double now();

template <class Work>
double seconds_of(int repeats, Work&& work) {
  const double start = now();
  for (int i = 0; i < repeats; ++i) work();
  return (now() - start) / repeats;
}

/// The commit, the processor and the cores that a figure belongs to, and what else is to be said of all of them.
void print_machine(const options& how, std::string_view remark = "host devices: CPU memory, not a GPU figure");

}  // namespace weft::bench
