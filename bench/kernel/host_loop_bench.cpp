// SPDX-License-Identifier: Apache-2.0
// kernel/host_loop: a WEFT_KERNEL's host loop against the same loop written by hand and compiled at -O3, interleaved in
// one process. Build this file at -O2: the point is that the kernel's loop is as fast all the same.

#include "weft/kernel/define.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

WEFT_KERNEL(affine, (WEFT_IN(float) input, WEFT_OUT(float) output), { output[i] = input[i] * 2.0f + 1.0f; });

#if defined(__GNUC__) && !defined(__clang__)
#define HAND_WRITTEN [[gnu::noinline, gnu::optimize("O3")]]
#else
#define HAND_WRITTEN [[gnu::noinline]]
#endif

HAND_WRITTEN void affine_by_hand(const float* __restrict input, float* __restrict output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    output[i] = input[i] * 2.0F + 1.0F;
  }
}

// What g++ 12 makes of the loop at -O2 alone: the price of not asking.
[[gnu::noinline]] void affine_as_compiled(const float* input, float* output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    output[i] = input[i] * 2.0F + 1.0F;
  }
}

template <class Work>
double seconds_of(int repeats, Work work) {
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < repeats; ++k) {
    work();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

struct summary {
  double low;
  double median;
  double high;
};

summary summary_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
  };
  return {at(0.05), at(0.5), at(0.95)};
}

bool is_right(const std::vector<float>& input, const std::vector<float>& output) {
  for (std::size_t k = 0; k < input.size(); ++k) {
    if (output[k] != input[k] * 2.0F + 1.0F) {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const bool as_json = argc > 1 && std::string_view(argv[1]) == "--json";
  if (!as_json) {
    std::printf("%-32s %12s %22s %22s  %s\n", "name", "GB/s", "ratio to -O3 (5-95%)", "ratio to as compiled", "data");
  }
  bool is_all_right = true;
  for (const std::size_t count : {std::size_t{1} << 10, std::size_t{1} << 14, std::size_t{1} << 24}) {
    std::vector<float> input(count);
    for (std::size_t k = 0; k < count; ++k) {
      input[k] = static_cast<float>(k % 1021) * 0.25F;
    }
    std::vector<float> output(count);
    std::array<weft::kernel_argument, 2> arguments;
    arguments[0].address = input.data();
    arguments[1].address = output.data();
    const auto n = static_cast<std::int64_t>(count);
    const weft::kernel_range range{1, {0, 0, 0}, {n, 1, 1}};
    const int repeats = static_cast<int>(std::max<std::size_t>(1, (std::size_t{1} << 22) / count));
    std::vector<double> ratios;
    std::vector<double> plain_ratios;
    std::vector<double> rates;
    bool is_checked = true;
    for (int round = 0; round < 41; ++round) {
      std::fill(output.begin(), output.end(), -1.0F);
      const double kernel = seconds_of(repeats, [&] { weft::host_entry_of<affine>(range, arguments); });
      is_checked = is_checked && is_right(input, output);
      const double hand = seconds_of(repeats, [&] { affine_by_hand(input.data(), output.data(), n); });
      const double plain = seconds_of(repeats, [&] { affine_as_compiled(input.data(), output.data(), n); });
      ratios.push_back(hand / kernel);
      plain_ratios.push_back(plain / kernel);
      rates.push_back(static_cast<double>(count * 2 * sizeof(float)) / kernel * 1e-9);
    }
    const summary ratio = summary_of(ratios);
    const summary plain = summary_of(plain_ratios);
    const double rate = summary_of(rates).median;
    is_all_right = is_all_right && is_checked;
    if (as_json) {
      std::printf(
          "{\"name\":\"kernel/host_loop/affine/%zu\",\"bytes_per_second\":%.4g,\"ratio_to_hand_written\":%.3f,"
          "\"p5\":%.3f,\"p95\":%.3f,\"ratio_to_as_compiled\":%.3f,\"verified\":%s}\n",
          count, rate * 1e9, ratio.median, ratio.low, ratio.high, plain.median, is_checked ? "true" : "false");
    } else {
      std::printf("kernel/host_loop/affine/%-8zu %12.1f %8.3f (%.3f-%.3f) %22.3f  %s\n", count, rate, ratio.median,
                  ratio.low, ratio.high, plain.median, is_checked ? "verified" : "WRONG");
    }
  }
  return is_all_right ? EXIT_SUCCESS : EXIT_FAILURE;
}
