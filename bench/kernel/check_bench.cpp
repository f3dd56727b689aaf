// SPDX-License-Identifier: Apache-2.0
// check/…: what a launch costs more where each access is checked (machine_options::check_access), as users see it: on
// the host backend, launched in a stream, many times for each wait. The bar is twice the time:
// docs/reference/kernels.md.

#include "paired.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace {

using weft::range;

WEFT_KERNEL(check_saxpy, (WEFT_IN(float) x, WEFT_INOUT(float) y, float a), { y[i] = a * x[i] + y[i]; });
WEFT_KERNEL(check_smooth, (WEFT_IN(float, halo(1)) from, WEFT_OUT(float) to, int64_t last), {
  int64_t left = i > 0 ? i - 1 : 0;
  int64_t right = i < last ? i + 1 : last;
  to[i] = 0.25f * from[left] + 0.5f * from[i] + 0.25f * from[right];
});
WEFT_KERNEL(check_dot, (WEFT_IN(float) x, WEFT_IN(float) y, WEFT_INOUT(float, reduce(sum)) total),
            { total[0] += x[i] * y[i]; });
WEFT_KERNEL(check_gather, (WEFT_IN(float, whole) from, WEFT_IN(int32_t) at, WEFT_OUT(float) to),
            { to[i] = from[at[i]]; });
WEFT_KERNEL_2D(check_relax, (WEFT_IN(float, halo(1)) from, WEFT_OUT(float) to, int64_t w, int64_t h), {
  int64_t at = y * w + x;
  int fixed = x == 0 || y == 0 || x == w - 1 || y == h - 1;
  to[at] = fixed ? from[at] : 0.25f * ((from[at - w] + from[at + w]) + (from[at - 1] + from[at + 1]));
});
WEFT_KERNEL(check_scatter, (WEFT_IN(float) from, WEFT_IN(int32_t) at, WEFT_OUT(float, whole) to),
            { to[at[i]] = from[i]; });
WEFT_KERNEL(check_reverse, (WEFT_IN(float) from, WEFT_OUT(float, whole) to, int64_t last), { to[last - i] = from[i]; });
WEFT_KERNEL(check_pairs, (WEFT_IN(float) from, WEFT_OUT(float, rows(2)) to), {
  to[2 * i] = from[i];
  to[2 * i + 1] = -from[i];
});
WEFT_KERNEL(check_sort, (WEFT_INOUT(float, rows(4)) of), {
  for (int64_t end = 4 * i + 3; end > 4 * i; --end) {
    for (int64_t k = 4 * i; k < end; ++k) {
      float low = weft_fmin(of[k], of[k + 1]);
      of[k + 1] = weft_fmax(of[k], of[k + 1]);
      of[k] = low;
    }
  }
});
WEFT_KERNEL_2D(check_decay, (WEFT_INOUT(float) of, int64_t w), {
  float now = of[y * w + x];
  of[y * w + x] = now - 0.125f * now;
});
WEFT_KERNEL(check_largest, (WEFT_IN(int32_t) from, WEFT_INOUT(int32_t, reduce(max)) to),
            { to[0] = weft_max(to[0], from[i]); });
WEFT_KERNEL(check_exp, (WEFT_IN(float) from, WEFT_OUT(float) to), { to[i] = weft_exp(from[i]); });

/// The arguments of all kernels, on a machine that checks or does not.
struct place {
  place(bool checks, std::int64_t side)
      : m([&] {
          weft::machine_options chosen;
          chosen.backend = "host";
          chosen.devices = 1;
          chosen.check_access = checks;
          return weft::machine{chosen};
        }()),
        w(side),
        n(side * side) {
    const auto count = static_cast<std::size_t>(n);
    std::vector<float> values(count);
    std::vector<std::int32_t> places(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(i % 1021) * 0.001F;
      places[i] = static_cast<std::int32_t>((i * 7'919) % count);
    }
    weft::copy(x, values);
    weft::copy(y, values);
    weft::copy(at, places);
    weft::copy(most, std::vector<std::int32_t>(1, 0));
    weft::copy(total, std::vector<float>(1, 0.0F));
  }
  [[nodiscard]] double seconds(std::string_view kernel, int repeats) const {
    return weft::bench::seconds_of(1,
                                   [&] {  // waited for once: a wait may take longer than a kernel
                                     for (int i = 0; i < repeats; ++i) launch(kernel);
                                     order.synchronize();
                                   }) /
           repeats;
  }
  void launch(std::string_view kernel) const {
    if (kernel == "saxpy") weft::launch<check_saxpy>(order, range(n), x, z, 0.5F);
    if (kernel == "smooth") weft::launch<check_smooth>(order, range(n), x, y, n - 1);
    if (kernel == "dot") weft::launch<check_dot>(order, range(n), x, y, total);
    if (kernel == "gather") weft::launch<check_gather>(order, range(n), x, at, y);
    if (kernel == "scatter") weft::launch<check_scatter>(order, range(n), x, at, y);
    if (kernel == "relax_2d") weft::launch<check_relax>(order, range(w, w), x, y, w, w);
    if (kernel == "exp") weft::launch<check_exp>(order, range(n), x, y);
    if (kernel == "reverse") weft::launch<check_reverse>(order, range(n), x, y, n - 1);
    if (kernel == "pairs") weft::launch<check_pairs>(order, range(n), x, pairs);
    if (kernel == "sort") weft::launch<check_sort>(order, range(n / 4), y);
    if (kernel == "decay_2d") weft::launch<check_decay>(order, range(w, w), y, w);
    if (kernel == "largest") weft::launch<check_largest>(order, range(n), at, most);
  }

  weft::machine m;
  std::int64_t w, n;
  weft::buffer<float> x{m[0], static_cast<std::size_t>(n)}, y{m[0], static_cast<std::size_t>(n)},
      z{m[0], static_cast<std::size_t>(n)}, total{m[0], 1}, pairs{m[0], static_cast<std::size_t>(2 * n)};
  weft::buffer<std::int32_t> at{m[0], static_cast<std::size_t>(n)}, most{m[0], 1};
  weft::stream order{m[0]};
};

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  for (const std::int64_t side : {16, 128, 2'048}) {
    const place checked{true, side}, plain{false, side};
    const int repeats = side > 1'000 ? 1 : side > 100 ? 50 : 1'000;
    for (const std::string kernel : {"saxpy", "smooth", "dot", "gather", "relax_2d", "exp", "scatter", "reverse",
                                     "pairs", "sort", "decay_2d", "largest"}) {
      compare("check/" + kernel + "/" + std::to_string(side * side),
              {{"checked", [&] { return checked.seconds(kernel, repeats); }},
               {"not checked", [&] { return plain.seconds(kernel, repeats); }}},
              how);
    }
  }
  return 0;
}
