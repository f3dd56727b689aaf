// SPDX-License-Identifier: Apache-2.0
// kernel/host_loop: a WEFT_KERNEL's host loop, in a file compiled with -O2 for any x86-64, against the plain loop
// compiled with -O3 -march=native, turn about in one process. Bar: 0.9 from 64 Ki elements. The plain loop may fuse
// multiplications and additions, the kernel never does: polynomial shows what that costs.
// usage: bench_kernel_host_loop [--json]

#include "kernel/plain_loops.hpp"
#include "paired.hpp"
#include "weft/kernel/define.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace weft::bench;
using std::int64_t;

WEFT_KERNEL(affine, (WEFT_IN(float) input, WEFT_OUT(float) output), { output[i] = input[i] * 2.0f + 1.0f; });
WEFT_KERNEL(saxpy, (WEFT_IN(float) input, WEFT_INOUT(float) output, float scale), { output[i] += scale * input[i]; });
WEFT_KERNEL(polynomial, (WEFT_IN(float) input, WEFT_OUT(float) output), {
  float sum = 0.1f;
  for (int k = 0; k < 16; ++k) sum = sum * input[i] + 0.3f;
  output[i] = sum;
});
WEFT_KERNEL_2D(mean_2d, (WEFT_IN(float, halo(1)) input, WEFT_OUT(float) output, int64_t width), {
  const int64_t at = y * width + x;
  output[at] = (input[at - width - 1] + input[at - width] + input[at - width + 1] + input[at - 1] + input[at] +
                input[at + 1] + input[at + width - 1] + input[at + width] + input[at + width + 1]) *
               (1.0f / 9);
});
WEFT_KERNEL_3D(mean_3d, (WEFT_IN(float, halo(1)) input, WEFT_OUT(float) output, int64_t width, int64_t height), {
  const int64_t plane = width * height;
  const int64_t at = z * plane + y * width + x;
  output[at] = (input[at] + input[at - 1] + input[at + 1] + input[at - width] + input[at + width] + input[at - plane] +
                input[at + plane]) *
               (1.0f / 7);
});

struct one_loop {
  std::string name;
  double bytes;  // of an element: read and written
  std::function<void(float*)> kernel, plain;
};

template <class... Scalars>
std::vector<weft::kernel_argument> arguments_of(const std::vector<float>& input, float* output, Scalars... scalars) {
  std::vector<weft::kernel_argument> made(2);
  made[0].address = const_cast<float*>(input.data());
  made[1].address = output;
  [[maybe_unused]] const auto add = [&](auto value) {
    std::memcpy(made.emplace_back().scalar.data(), &value, sizeof value);
  };
  (add(scalars), ...);
  return made;
}

std::vector<one_loop> loops_of(const std::vector<float>& input, int64_t width, int64_t height, int64_t depth) {
  const int64_t n = width * height * depth;
  const int64_t rows = height * depth;
  const weft::kernel_range line{1, {0, 0, 0}, {n, 1, 1}};
  const weft::kernel_range image{2, {1, 1, 0}, {width - 1, rows - 1, 1}};
  const weft::kernel_range volume{3, {1, 1, 1}, {width - 1, height - 1, depth - 1}};
  const float scale = 0.5F;
  return {
      {"affine", 8, [=, &input](float* to) { weft::host_entry_of<affine>(line, arguments_of(input, to)); },
       [=, &input](float* to) { plain_affine(input.data(), to, n); }},
      {"saxpy", 12, [=, &input](float* to) { weft::host_entry_of<saxpy>(line, arguments_of(input, to, scale)); },
       [=, &input](float* to) { plain_saxpy(input.data(), to, scale, n); }},
      {"polynomial", 8, [=, &input](float* to) { weft::host_entry_of<polynomial>(line, arguments_of(input, to)); },
       [=, &input](float* to) { plain_polynomial(input.data(), to, n); }},
      {"mean_2d", 8, [=, &input](float* to) { weft::host_entry_of<mean_2d>(image, arguments_of(input, to, width)); },
       [=, &input](float* to) { plain_mean_2d(input.data(), to, width, rows); }},
      {"mean_3d", 8,
       [=, &input](float* to) { weft::host_entry_of<mean_3d>(volume, arguments_of(input, to, width, height)); },
       [=, &input](float* to) { plain_mean_3d(input.data(), to, width, height, depth); }},
  };
}

/// Within what fused operations round otherwise.
bool are_near(const std::vector<float>& one, const std::vector<float>& other) {
  return std::equal(one.begin(), one.end(), other.begin(),
                    [](float a, float b) { return std::abs(a - b) <= 1e-5F * (std::abs(a) + std::abs(b)); });
}

}  // namespace

int main(int argc, char** argv) {
  const options how = parse(argc, argv);
  print_machine(how);
  bool is_right = true;
  for (const auto& [width, height, depth] : {std::array<int64_t, 3>{64, 32, 32}, {128, 128, 64}, {256, 256, 256}}) {
    const int64_t n = width * height * depth;
    const auto count = static_cast<std::size_t>(n);
    std::vector<float> input(count);
    for (std::size_t k = 0; k < count; ++k) input[k] = static_cast<float>(k % 1021) * 0.001F;
    for (const one_loop& loop : loops_of(input, width, height, depth)) {
      const std::string name = "kernel/host_loop/" + loop.name + "/" + std::to_string(count);
      std::vector<float> output(count, 1.0F);
      std::vector<float> expected(count, 1.0F);
      loop.kernel(output.data());
      loop.plain(expected.data());
      if (!are_near(output, expected)) {
        std::fprintf(stderr, "%s: wrong\n", name.c_str());
        is_right = false;
      }
      const int repeats = static_cast<int>(std::max<int64_t>(1, (int64_t{1} << 22) / n));
      const auto timed = [&](const std::function<void(float*)>& work) {
        return [&, repeats] { return seconds_of(repeats, [&] { work(output.data()); }); };
      };
      compare(name, {{"kernel", timed(loop.kernel)}, {"plain -O3 -march=native", timed(loop.plain)}}, how,
              static_cast<double>(count) * loop.bytes);
    }
  }
  return is_right ? EXIT_SUCCESS : EXIT_FAILURE;
}
