#pragma once
// SPDX-License-Identifier: Apache-2.0
// Kernels that must compute the same on every backend, each with data, and a way to run one on the host.

#include "collective/fold/fold.hpp"
#include "support/rounds.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/exec/reduce.hpp"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace portable {

WEFT_KERNEL(saxpy, (WEFT_IN(float) input, WEFT_INOUT(float) output, float scale, int32_t unused), {
  output[i] = input[i] * scale + output[i];  // not fused anywhere
});

WEFT_KERNEL(integer_mix,
            (WEFT_IN(int8_t) a, WEFT_IN(uint16_t) b, WEFT_IN(int32_t) c, WEFT_IN(uint64_t) d, WEFT_OUT(uint8_t) narrow,
             WEFT_OUT(int16_t) folded, WEFT_OUT(uint32_t) mixed, WEFT_OUT(int64_t) wide, uint8_t step, int64_t offset),
            {
              const int32_t low = weft_min((int32_t)a[i], c[i]), high = weft_max((int32_t)a[i], c[i]);
              uint64_t hash = d[i];
              for (int32_t round = 0; round < 3; ++round) {
                hash ^= hash >> 29;
                hash *= 0x9E3779B97F4A7C15u;
              }
              narrow[i] = (uint8_t)((uint32_t)b[i] / (uint32_t)step + (uint32_t)(hash & 7u));
              folded[i] = (int16_t)weft_clamp(c[i] % 1000 + a[i], -300, 300);
              mixed[i] = (uint32_t)hash ^ ((uint32_t)b[i] << 3);
              if (low == high) {
                wide[i] = offset;
                return;
              }
              wide[i] = (int64_t)high - low + offset * i;
            });

WEFT_KERNEL_2D(blur_5x5, (WEFT_IN(uint8_t, halo(2)) in, WEFT_OUT(uint8_t) out, int32_t width, int32_t height), {
  int32_t sum = 0;
  for (int32_t dy = -2; dy <= 2; ++dy) {
    const int64_t row = weft_clamp(y + dy, 0, height - 1);
    for (int32_t dx = -2; dx <= 2; ++dx) {
      const int64_t column = weft_clamp(x + dx, 0, width - 1);
      sum += in[row * width + column] * (3 - (dx < 0 ? -dx : dx)) * (3 - (dy < 0 ? -dy : dy));
    }
  }
  out[y * width + x] = (uint8_t)((sum + 40) / 81);
});

WEFT_KERNEL_3D(write_index, (WEFT_OUT(int64_t) out, int64_t width, int64_t height),
               { out[(z * height + y) * width + x] = x + 1000 * y + 1000000 * z; });

// Everything here is correctly rounded, so the bits are equal.
WEFT_KERNEL(float_arithmetic, (WEFT_IN(float) a, WEFT_IN(float) b, WEFT_OUT(float) out),
            { out[i] = (a[i] * b[i] + a[i]) * 0.3f - b[i]; });
WEFT_KERNEL(float_division, (WEFT_IN(float) a, WEFT_IN(float) b, WEFT_OUT(float) out),
            { out[i] = (a[i] * b[i] - a[i]) / (b[i] + 7.0f) + weft_sqrt(a[i]); });
WEFT_KERNEL(double_arithmetic, (WEFT_IN(double) a, WEFT_IN(double) b, WEFT_OUT(double) out),
            { out[i] = (a[i] * b[i] - a[i]) / (b[i] + 7.0) + weft_sqrt(a[i]) * 0.3; });

inline constexpr std::size_t function_count = 14;

// One row of results per item, in the order of `functions` below.
WEFT_KERNEL(float_functions, (WEFT_IN(float) a, WEFT_IN(float) b, WEFT_OUT(float, rows(14)) out), {
  const int64_t row = i * 14;
  out[row] = weft_sqrt(a[i]);
  out[row + 1] = weft_rsqrt(a[i]);
  out[row + 2] = weft_exp(b[i]);
  out[row + 3] = weft_log(a[i]);
  out[row + 4] = weft_sin(b[i]);
  out[row + 5] = weft_cos(b[i]);
  out[row + 6] = weft_tan(b[i]);
  out[row + 7] = weft_pow(a[i], b[i]);
  out[row + 8] = weft_fabs(b[i]);
  out[row + 9] = weft_floor(b[i]);
  out[row + 10] = weft_ceil(b[i]);
  out[row + 11] = weft_fmin(a[i], b[i]);
  out[row + 12] = weft_fmax(a[i], b[i]);
  out[row + 13] = weft_fma(a[i], b[i], a[i]);
});
WEFT_KERNEL(double_functions, (WEFT_IN(double) a, WEFT_IN(double) b, WEFT_OUT(double, rows(14)) out), {
  const int64_t row = i * 14;
  out[row] = weft_sqrt(a[i]);
  out[row + 1] = weft_rsqrt(a[i]);
  out[row + 2] = weft_exp(b[i]);
  out[row + 3] = weft_log(a[i]);
  out[row + 4] = weft_sin(b[i]);
  out[row + 5] = weft_cos(b[i]);
  out[row + 6] = weft_tan(b[i]);
  out[row + 7] = weft_pow(a[i], b[i]);
  out[row + 8] = weft_fabs(b[i]);
  out[row + 9] = weft_floor(b[i]);
  out[row + 10] = weft_ceil(b[i]);
  out[row + 11] = weft_fmin(a[i], b[i]);
  out[row + 12] = weft_fmax(a[i], b[i]);
  out[row + 13] = weft_fma(a[i], b[i], a[i]);
});

// Reductions: several in one kernel, of one element and of many, with a return in the body, in two and three
// dimensions.
WEFT_KERNEL(adds_up, (WEFT_IN(int32_t) values, WEFT_INOUT(int64_t, reduce(sum)) total), { total[0] += values[i]; });
WEFT_KERNEL(finds_ends,
            (WEFT_IN(float) values, WEFT_INOUT(float, reduce(min)) least, WEFT_INOUT(float, reduce(max)) most,
             WEFT_IN(double) wide, WEFT_INOUT(double, reduce(max)) widest, WEFT_INOUT(double, reduce(min)) narrowest),
            {
              least[0] = weft_fmin(least[0], values[i]);
              most[0] = weft_fmax(most[0], values[i]);
              widest[0] = weft_fmax(widest[0], wide[i]);
              narrowest[0] = weft_fmin(narrowest[0], wide[i]);
            });
WEFT_KERNEL_2D(tallies,
               (WEFT_IN(uint8_t) values, WEFT_INOUT(uint32_t, reduce(sum)) seen,
                WEFT_INOUT(int16_t, reduce(product)) signs, WEFT_INOUT(uint64_t, reduce(max)) latest, int64_t width),
               {
                 const uint8_t value = values[y * width + x];
                 if (value >= 50) {
                   return;
                 }
                 seen[value] += 1;
                 signs[value % 2] = (int16_t)(signs[value % 2] * 3);
                 latest[0] = weft_max(latest[0], (uint64_t)(y * width + x));
               });
WEFT_KERNEL_3D(narrow_ends,
               (WEFT_IN(int8_t) a, WEFT_INOUT(int8_t, reduce(min)) least, WEFT_INOUT(int8_t, reduce(max)) most,
                WEFT_INOUT(int16_t, reduce(min)) least16, WEFT_INOUT(int32_t, reduce(max)) most32,
                WEFT_INOUT(int64_t, reduce(min)) least64, WEFT_INOUT(uint16_t, reduce(min)) least16u,
                WEFT_INOUT(uint8_t, reduce(product)) product, int64_t width, int64_t height),
               {
                 const int8_t value = a[(z * height + y) * width + x];
                 least[0] = weft_min(least[0], value);
                 most[0] = weft_max(most[0], value);
                 least16[0] = weft_min(least16[0], (int16_t)(value * 200));
                 most32[0] = weft_max(most32[0], value * 10000000);
                 least64[0] = weft_min(least64[0], value * (int64_t)10000000000);
                 least16u[0] = weft_min(least16u[0], (uint16_t)(500 + value));
                 product[0] = (uint8_t)(product[0] * 3u);
               });
WEFT_KERNEL(adds_floats, (WEFT_IN(float) values, WEFT_INOUT(float, reduce(sum)) total), { total[0] += values[i]; });

/// A buffer or a scalar of a run, as bytes.
struct value {
  weft::element_type type = weft::element_type::float32;
  weft::parameter_direction direction = weft::parameter_direction::scalar;
  std::vector<std::byte> bytes;

  template <class T>
  [[nodiscard]] std::vector<T> as() const {
    std::vector<T> elements(bytes.size() / sizeof(T));
    if (!bytes.empty()) {
      std::memcpy(elements.data(), bytes.data(), bytes.size());
    }
    return elements;
  }
};

template <class T>
value buffer(weft::parameter_direction direction, const std::vector<T>& elements) {
  value made{weft::element_type_of<T>(), direction, std::vector<std::byte>(elements.size() * sizeof(T))};
  if (!elements.empty()) {
    std::memcpy(made.bytes.data(), elements.data(), made.bytes.size());
  }
  return made;
}
template <class T>
value in(const std::vector<T>& elements) {
  return buffer(weft::parameter_direction::in, elements);
}
template <class T>
value inout(const std::vector<T>& elements) {
  return buffer(weft::parameter_direction::inout, elements);
}
template <class T>
value out(std::size_t count) {
  return buffer(weft::parameter_direction::out, std::vector<T>(count));
}
template <class T>
value scalar(T number) {
  return buffer(weft::parameter_direction::scalar, std::vector<T>{number});
}

/// A kernel with a range and data.
struct run {
  std::shared_ptr<const weft::kernel_code> code;
  weft::kernel_range range;
  std::vector<value> values;
};

inline weft::kernel_range range_of(std::int64_t x) { return {1, {0, 0, 0}, {x, 1, 1}}; }
inline weft::kernel_range range_of(std::int64_t x, std::int64_t y) { return {2, {0, 0, 0}, {x, y, 1}}; }
inline weft::kernel_range range_of(std::int64_t x, std::int64_t y, std::int64_t z) { return {3, {0, 0, 0}, {x, y, z}}; }

/// The arguments that point into the values of a run, which must stay where they are.
inline std::vector<weft::kernel_argument> arguments_of(run& one) {
  std::vector<weft::kernel_argument> arguments;
  for (std::size_t n = 0; n < one.values.size(); ++n) {
    value& from = one.values[n];
    weft::kernel_argument argument;
    argument.type = from.type;
    argument.direction = from.direction;
    if (from.direction == weft::parameter_direction::scalar) {
      std::memcpy(argument.scalar.data(), from.bytes.data(), from.bytes.size());
    } else {
      argument.address = from.bytes.data();
      argument.count = static_cast<std::int64_t>(from.bytes.size() / weft::size_of(from.type));
      const auto outermost = static_cast<std::size_t>(one.code->dimensions - 1);
      argument.slab = weft::slab_of(one.code->parameters[n].access, argument.count,
                                    one.range.end[outermost] - one.range.begin[outermost]);
    }
    arguments.push_back(argument);
  }
  return arguments;
}

/// The values after a raw run on the host.
inline std::vector<value> on_host(run one) {
  one.code->host(one.range, arguments_of(one));
  return one.values;
}

template <class T, class Formula>
std::vector<T> filled(std::size_t count, Formula formula) {
  std::vector<T> elements(count);
  for (std::size_t k = 0; k < count; ++k) {
    elements[k] = static_cast<T>(formula(k));
  }
  return elements;
}

inline run saxpy_run(std::size_t n) {
  return {weft::make_kernel_code<saxpy>(),
          range_of(static_cast<std::int64_t>(n)),
          {in(filled<float>(n, [](std::size_t k) { return 0.1 * static_cast<double>(k) - 20.0; })),
           inout(filled<float>(n, [](std::size_t k) { return 1.0 / static_cast<double>(k + 3); })), scalar(1.7F),
           scalar<std::int32_t>(0)}};
}

inline run integer_run(std::size_t n) {
  return {weft::make_kernel_code<integer_mix>(),
          range_of(static_cast<std::int64_t>(n)),
          {in(filled<std::int8_t>(n, [](std::size_t k) { return k * 37; })),
           in(filled<std::uint16_t>(n, [](std::size_t k) { return k * 1009; })),
           in(filled<std::int32_t>(n, [](std::size_t k) { return k % 5 == 0 ? (k * 37) % 128 : k * 2654435761U; })),
           in(filled<std::uint64_t>(n, [](std::size_t k) { return k * 0x9E3779B97F4A7C15U; })), out<std::uint8_t>(n),
           out<std::int16_t>(n), out<std::uint32_t>(n), out<std::int64_t>(n), scalar<std::uint8_t>(7),
           scalar<std::int64_t>(-5'000'000'000)}};
}

inline run blur_run(std::int32_t width, std::int32_t height) {
  const auto pixels = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  return {weft::make_kernel_code<blur_5x5>(),
          range_of(width, height),
          {in(filled<std::uint8_t>(pixels, [](std::size_t k) { return (k * k * 31 + k) >> 3; })),
           out<std::uint8_t>(pixels), scalar(width), scalar(height)}};
}

inline run index_run(std::int64_t width, std::int64_t height, std::int64_t depth) {
  return {weft::make_kernel_code<write_index>(),
          range_of(width, height, depth),
          {out<std::int64_t>(static_cast<std::size_t>(width * height * depth)), scalar(width), scalar(height)}};
}

/// Positive numbers for a, numbers of both signs for b; far from where tan and log lose all their digits.
template <class T, class Kernel>
run number_run(std::size_t n, std::size_t results_per_item) {
  return {weft::make_kernel_code<Kernel>(),
          range_of(static_cast<std::int64_t>(n)),
          {in(filled<T>(n, [](std::size_t k) { return 0.013 + 0.37 * static_cast<double>(k); })),
           in(filled<T>(n, [](std::size_t k) { return 0.0913 * static_cast<double>(k % 200) - 9.03; })),
           out<T>(n * results_per_item)}};
}

/// One of the library's own: every block but the last is whole.
template <class T>
run reduction_run(weft::reduce_op op, std::size_t n) {
  constexpr std::int64_t block = weft::detail::reduction_block;
  const std::int64_t blocks = (static_cast<std::int64_t>(n) + block - 1) / block;
  using result = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;
  return {weft::detail::reduction_kernel(weft::element_type_of<T>()),
          range_of(blocks),
          {in(filled<T>(n,
                        [](std::size_t k) {
                          if constexpr (std::is_floating_point_v<T>) {
                            return (k % 2 == 0 ? 0.0913 : -0.0913) * static_cast<double>(k % 21 + 1);
                          } else {
                            return (k * 2654435761U) | 1U;
                          }
                        })),
           out<result>(static_cast<std::size_t>(blocks)), scalar(static_cast<std::int64_t>(n)),
           scalar(static_cast<std::int32_t>(op))}};
}

/// The library's folds; of what is sixteen bits wide, the patterns of numbers of moderate size.
template <class T>
run fold_run(weft::data_type type, weft::reduction_op::kind op, std::int32_t inputs, std::size_t n) {
  run made{weft::detail::fold_kernel(type), range_of((static_cast<std::int64_t>(n) + 511) / 512), {}};
  const bool is_sixteen = type == weft::data_type::float16 || type == weft::data_type::bfloat16;
  for (std::size_t input = 0; input < 8; ++input) {
    made.values.push_back(in(filled<T>(n, [&](std::size_t k) {
      const std::size_t mixed = (k * 8 + input + 1) * 2654435761U >> 3;
      if constexpr (std::is_floating_point_v<T>) {
        return 0.0913 * static_cast<double>(mixed % 41) - 1.7;
      } else {
        return is_sixteen ? 0x3b00 + mixed % 0x300 + (mixed >> 12 & 1) * 0x8000 : mixed * 0x9E3779B97F4A7C15U;
      }
    })));
  }
  for (int output = 0; output < 8; ++output) made.values.push_back(out<T>(n));
  for (const std::int32_t number : {inputs, std::int32_t{7}, static_cast<std::int32_t>(op)})
    made.values.push_back(scalar(number));
  made.values.insert(made.values.begin() + 16, scalar(static_cast<std::int64_t>(n)));
  // a power of two: its quotient is exact wherever it is rounded
  made.values.push_back(scalar(std::int64_t{op == weft::reduction_op::kind::average ? 4 : 1}));
  return made;
}

/// Each text that the types share, and by night each type, each operation on some: PoCL takes up to eight seconds for
/// one.
inline std::vector<run> fold_runs() {
  using weft::data_type;
  using kind = weft::reduction_op::kind;
  constexpr std::size_t n = 1300;
  if (!samples::by_night()) {
    return {fold_run<std::int8_t>(data_type::int8, kind::average, 7, n),
            fold_run<std::uint32_t>(data_type::uint32, kind::min, 8, n),
            fold_run<std::uint16_t>(data_type::float16, kind::product, 3, n),
            fold_run<std::uint16_t>(data_type::bfloat16, kind::max, 2, n),
            fold_run<float>(data_type::float32, kind::sum, 7, n)};
  }
  return {fold_run<std::int8_t>(data_type::int8, kind::average, 7, n),
          fold_run<std::int16_t>(data_type::int16, kind::product, 5, n),
          fold_run<std::int32_t>(data_type::int32, kind::min, 8, n),
          fold_run<std::int64_t>(data_type::int64, kind::average, 3, n),
          fold_run<std::uint8_t>(data_type::uint8, kind::max, 2, n),
          fold_run<std::uint16_t>(data_type::uint16, kind::product, 6, n),
          fold_run<std::uint32_t>(data_type::uint32, kind::sum, 8, n),
          fold_run<std::uint64_t>(data_type::uint64, kind::min, 1, n),
          fold_run<std::uint16_t>(data_type::float16, kind::average, 8, n),
          fold_run<std::uint16_t>(data_type::float16, kind::product, 3, n),
          fold_run<std::uint16_t>(data_type::bfloat16, kind::sum, 7, n),
          fold_run<std::uint16_t>(data_type::bfloat16, kind::max, 2, n),
          fold_run<float>(data_type::float32, kind::sum, 7, n),
          fold_run<float>(data_type::float32, kind::min, 5, n),
          fold_run<double>(data_type::float64, kind::product, 4, n),
          fold_run<double>(data_type::float64, kind::average, 8, n)};
}

inline run adding_run(std::size_t n) {
  return {weft::make_kernel_code<adds_up>(),
          range_of(static_cast<std::int64_t>(n)),
          {in(filled<std::int32_t>(n, [](std::size_t k) { return k * 2654435761U; })),
           inout(std::vector<std::int64_t>{1000})}};
}

/// Sums of floats, whose bits depend on their order.
inline run float_adding_run(std::size_t n) {
  return {weft::make_kernel_code<adds_floats>(),
          range_of(static_cast<std::int64_t>(n)),
          {in(filled<float>(n, [](std::size_t k) { return 0.1 + static_cast<double>(k * 31 % 1013); })),
           inout(std::vector<float>{0.5F})}};
}

/// Kernels with reduce() parameters whose result is the same in any order.
inline std::vector<run> reduce_runs() {
  const auto ends = [](std::size_t n) {
    const auto mixed = [](std::size_t k) { return static_cast<double>(k * 7919 % 10007) - 5003.5; };
    return run{weft::make_kernel_code<finds_ends>(),
               range_of(static_cast<std::int64_t>(n)),
               {in(filled<float>(n, mixed)), inout(std::vector<float>{3.5F}), inout(std::vector<float>{-7.0F}),
                in(filled<double>(n, mixed)), inout(std::vector<double>{-1e300}), inout(std::vector<double>{1e300})}};
  };
  constexpr std::int64_t width = 131, height = 77;
  run tally{weft::make_kernel_code<tallies>(),
            range_of(width, height),
            {in(filled<std::uint8_t>(width * height, [](std::size_t k) { return k * 2654435761U >> 7; })),
             inout(filled<std::uint32_t>(50, [](std::size_t k) { return k; })), inout(std::vector<std::int16_t>{1, -1}),
             inout(std::vector<std::uint64_t>{0}), scalar(width)}};
  constexpr std::int64_t side = 19;
  run narrow{weft::make_kernel_code<narrow_ends>(),
             range_of(side, side, side),
             {in(filled<std::int8_t>(side * side * side, [](std::size_t k) { return k * 37; })),
              inout(std::vector<std::int8_t>{100}), inout(std::vector<std::int8_t>{-100}),
              inout(std::vector<std::int16_t>{32000}), inout(std::vector<std::int32_t>{-2'000'000'000}),
              inout(std::vector<std::int64_t>{1'000'000'000'000}), inout(std::vector<std::uint16_t>{65000}),
              inout(std::vector<std::uint8_t>{5}), scalar(side), scalar(side)}};
  std::vector<run> runs{adding_run(1), adding_run(7), adding_run(100'003), ends(1), ends(5000)};
  runs.push_back(std::move(tally));
  runs.push_back(std::move(narrow));
  return runs;
}

/// Reductions of memory: each type and each operation; both with each other by night, as a compiler of kernels takes
/// about two seconds for each.
inline std::vector<run> memory_reduction_runs() {
  std::vector<run> runs;
  const bool all = samples::by_night();
  for (const auto op : {weft::reduce_op::sum, weft::reduce_op::product, weft::reduce_op::min, weft::reduce_op::max}) {
    const auto takes = [&](weft::reduce_op once) { return all || op == once; };
    runs.push_back(reduction_run<float>(op, 3333));
    if (takes(weft::reduce_op::sum)) runs.push_back(reduction_run<double>(op, 3333));
    if (takes(weft::reduce_op::min)) runs.push_back(reduction_run<std::int8_t>(op, 3333));
    if (takes(weft::reduce_op::sum)) runs.push_back(reduction_run<std::int16_t>(op, 3333));
    runs.push_back(reduction_run<std::int32_t>(op, 3333));
    if (takes(weft::reduce_op::max)) runs.push_back(reduction_run<std::int64_t>(op, 3333));
    if (takes(weft::reduce_op::product)) runs.push_back(reduction_run<std::uint8_t>(op, 3333));
    if (takes(weft::reduce_op::max)) runs.push_back(reduction_run<std::uint16_t>(op, 3333));
    if (takes(weft::reduce_op::min)) runs.push_back(reduction_run<std::uint32_t>(op, 3333));
    if (takes(weft::reduce_op::sum)) runs.push_back(reduction_run<std::uint64_t>(op, 3333));
  }
  return runs;
}

/// The kernels above with data of their own; what is not a function kernel or a reduction must give equal bits on every
/// backend. `folds`: the kernels of collectives too.
inline std::vector<run> exact_runs(bool folds = true) {
  std::vector<run> runs{saxpy_run(1000),
                        integer_run(1000),
                        blur_run(67, 41),
                        index_run(13, 7, 5),
                        number_run<float, float_arithmetic>(1000, 1),
                        number_run<double, double_arithmetic>(1000, 1)};
  for (std::vector<run> more : {memory_reduction_runs(), folds ? fold_runs() : std::vector<run>{}})
    runs.insert(runs.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return runs;
}
inline run float_division_run() { return number_run<float, float_division>(1000, 1); }
inline run float_function_run() { return number_run<float, float_functions>(1000, function_count); }
inline run double_function_run() { return number_run<double, double_functions>(1000, function_count); }

}  // namespace portable
