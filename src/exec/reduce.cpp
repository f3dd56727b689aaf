// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/reduce.hpp"

#include "weft/core/raise.hpp"
#include "weft/kernel/define.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>
#include <string>

namespace weft::detail {
namespace {

// Sixteen running numbers, because one would wait for each addition to end before the next begins, and no compiler may
// change the order by itself. The order is part of the result: it is written out here and nowhere else.
// op is a reduce_op. Everything is one addition, multiplication or comparison, so that every backend gets the same
// bits.
#define WEFT_DETAIL_REDUCTION_OF_REALS(name, type)                                                                \
  WEFT_KERNEL(name, (WEFT_IN(type, rows(1024)) values, WEFT_OUT(double) results, int64_t count, int32_t op), {    \
    const int64_t begin = i * 1024;                                                                               \
    const int64_t end = count - begin < 1024 ? count : begin + 1024;                                              \
    double lanes[16];                                                                                             \
    int64_t at = begin;                                                                                           \
    for (int32_t k = 0; k < 16; ++k) lanes[k] = op == 0 ? 0.0 : op == 1 ? 1.0 : values[begin];                    \
    if (op == 0) {                                                                                                \
      for (; at + 64 <= end; at += 64) {                                                                          \
        for (int32_t k = 0; k < 16; ++k)                                                                          \
          lanes[k] = lanes[k] + values[at + k] + values[at + 16 + k] + values[at + 32 + k] + values[at + 48 + k]; \
      }                                                                                                           \
      for (; at + 16 <= end; at += 16) {                                                                          \
        for (int32_t k = 0; k < 16; ++k) lanes[k] += values[at + k];                                              \
      }                                                                                                           \
      for (int32_t k = 0; at + k < end; ++k) lanes[k] += values[at + k];                                          \
      for (int32_t apart = 8; apart > 0; apart /= 2) {                                                            \
        for (int32_t k = 0; k < apart; ++k) lanes[k] += lanes[k + apart];                                         \
      }                                                                                                           \
    } else if (op == 1) {                                                                                         \
      for (; at + 16 <= end; at += 16) {                                                                          \
        for (int32_t k = 0; k < 16; ++k) lanes[k] *= values[at + k];                                              \
      }                                                                                                           \
      for (int32_t k = 0; at + k < end; ++k) lanes[k] *= values[at + k];                                          \
      for (int32_t apart = 8; apart > 0; apart /= 2) {                                                            \
        for (int32_t k = 0; k < apart; ++k) lanes[k] *= lanes[k + apart];                                         \
      }                                                                                                           \
    } else {                                                                                                      \
      const double sign = op == 2 ? 1.0 : -1.0;                                                                   \
      for (int32_t k = 0; k < 16; ++k) lanes[k] *= sign;                                                          \
      for (; at + 64 <= end; at += 64) {                                                                          \
        for (int32_t k = 0; k < 16; ++k) {                                                                        \
          double best = lanes[k];                                                                                 \
          for (int32_t row = 0; row < 64; row += 16) {                                                            \
            const double value = sign * values[at + row + k];                                                     \
            best = value < best || best != best ? value : best;                                                   \
          }                                                                                                       \
          lanes[k] = best;                                                                                        \
        }                                                                                                         \
      }                                                                                                           \
      for (; at + 16 <= end; at += 16) {                                                                          \
        for (int32_t k = 0; k < 16; ++k) {                                                                        \
          const double value = sign * values[at + k];                                                             \
          lanes[k] = value < lanes[k] || lanes[k] != lanes[k] ? value : lanes[k];                                 \
        }                                                                                                         \
      }                                                                                                           \
      for (int32_t k = 0; at + k < end; ++k) {                                                                    \
        const double value = sign * values[at + k];                                                               \
        lanes[k] = value < lanes[k] || lanes[k] != lanes[k] ? value : lanes[k];                                   \
      }                                                                                                           \
      for (int32_t apart = 8; apart > 0; apart /= 2) {                                                            \
        for (int32_t k = 0; k < apart; ++k) {                                                                     \
          lanes[k] = lanes[k + apart] < lanes[k] || lanes[k] != lanes[k] ? lanes[k + apart] : lanes[k];           \
        }                                                                                                         \
      }                                                                                                           \
      lanes[0] *= sign;                                                                                           \
    }                                                                                                             \
    results[i] = lanes[0];                                                                                        \
  })

// Exact in any order, so the compiler finds the lanes by itself.
#define WEFT_DETAIL_REDUCTION_OF_INTEGERS(name, type)                                                            \
  WEFT_KERNEL(name, (WEFT_IN(type, rows(1024)) values, WEFT_OUT(uint64_t) results, int64_t count, int32_t op), { \
    const int64_t begin = i * 1024;                                                                              \
    const int64_t end = count - begin < 1024 ? count : begin + 1024;                                             \
    uint64_t result = op == 0 ? 0 : 1;                                                                           \
    if (op == 0) {                                                                                               \
      for (int64_t at = begin; at < end; ++at) result += (uint64_t)values[at];                                   \
    } else if (op == 1) {                                                                                        \
      for (int64_t at = begin; at < end; ++at) result *= (uint64_t)values[at];                                   \
    } else {                                                                                                     \
      type best = values[begin];                                                                                 \
      if (op == 2) {                                                                                             \
        for (int64_t at = begin; at < end; ++at) best = values[at] < best ? values[at] : best;                   \
      } else {                                                                                                   \
        for (int64_t at = begin; at < end; ++at) best = values[at] > best ? values[at] : best;                   \
      }                                                                                                          \
      result = (uint64_t)best;                                                                                   \
    }                                                                                                            \
    results[i] = result;                                                                                         \
  })

// NOLINTBEGIN(bugprone-signed-char-misuse): a negative number keeps its sign in 64 bits, as is meant
WEFT_DETAIL_REDUCTION_OF_REALS(weft_reduce_float32, float);
WEFT_DETAIL_REDUCTION_OF_REALS(weft_reduce_float64, double);
WEFT_DETAIL_REDUCTION_OF_INTEGERS(weft_reduce_int8, int8_t);
WEFT_DETAIL_REDUCTION_OF_INTEGERS(weft_reduce_int16, int16_t);
WEFT_DETAIL_REDUCTION_OF_INTEGERS(weft_reduce_int32, int32_t);
WEFT_DETAIL_REDUCTION_OF_INTEGERS(weft_reduce_int64, int64_t);
WEFT_DETAIL_REDUCTION_OF_INTEGERS(weft_reduce_uint8, uint8_t);
WEFT_DETAIL_REDUCTION_OF_INTEGERS(weft_reduce_uint16, uint16_t);
WEFT_DETAIL_REDUCTION_OF_INTEGERS(weft_reduce_uint32, uint32_t);
WEFT_DETAIL_REDUCTION_OF_INTEGERS(weft_reduce_uint64, uint64_t);
// NOLINTEND(bugprone-signed-char-misuse)

#undef WEFT_DETAIL_REDUCTION_OF_REALS
#undef WEFT_DETAIL_REDUCTION_OF_INTEGERS

static_assert(static_cast<int>(reduce_op::sum) == 0 && static_cast<int>(reduce_op::product) == 1 &&
                  static_cast<int>(reduce_op::min) == 2 && static_cast<int>(reduce_op::max) == 3,
              "the kernels know them by number");

bool is_real(element_type type) { return type == element_type::float32 || type == element_type::float64; }
bool is_signed(element_type type) { return type <= element_type::int64; }

/// A block is shared by the threads of a GPU as the running numbers above are: lane k adds what lanes[k] adds, in that
/// order, and neighbouring threads read neighbouring elements. Where elements are small and aligned, a thread reads
/// four bytes of them at a time, else a warp would ask for 32 bytes only. Sums of small ones fit in 32 bits.
shared_item_form form_for_gpus(element_type type) {
  const bool is_small = size_of(type) < sizeof(std::uint32_t);
  shared_item_form form;
  form.item_lanes = is_real(type) ? 16 : 32;
  form.functions = "using element = " + std::string{name_of(type)} + ";\n";
  form.functions += std::string{"using number = "} + (is_small ? "int32_t" : "element") + ";\n";
  form.functions += std::string{"using result = "} + (is_real(type) ? "double" : "uint64_t") + ";\n";
  form.functions += std::string{"using total = "} + (is_small ? "int32_t" : "result") + ";\n";
  form.functions += is_real(type) ? "WEFT_FUNCTION bool is_nan(number a) { return a != a; }\n"
                                  : "WEFT_FUNCTION bool is_nan(number) { return false; }\n";
  form.functions += R"cuda(
template <class T, class Join>
WEFT_FUNCTION T joined(T mine, Join join, const element* __restrict__ values, const int count, const int lane) {
  int at = lane;
  if (sizeof(element) < 4 && (uint64_t)values % 4 == 0) {
    constexpr int in_word = sizeof(element) < 4 ? 4 / sizeof(element) : 1;
    const uint32_t* const words = (const uint32_t*)values;
#pragma unroll 8
    for (int w = lane; w < count / in_word; w += item_lanes) {
      const uint32_t word = words[w];
#pragma unroll
      for (int n = 0; n < in_word; ++n) mine = join(mine, (element)(word >> n * (32 / in_word)));
    }
    at += count / in_word * in_word;
  }
#pragma unroll 8
  for (; at < count; at += item_lanes) mine = join(mine, values[at]);
#pragma unroll
  for (int apart = item_lanes / 2; apart > 0; apart /= 2) mine = join(mine, weft_lane_behind(mine, apart));
  return mine;
}
)cuda";
  form.body_text = R"cuda(
  const element* const block = values + i * 1024;
  const int size = count - i * 1024 < 1024 ? (int)(count - i * 1024) : 1024;
  const number any = block[0];
  result all;
  if (op == 0) {
    all = joined(total(0), [](total a, total b) { return a + b; }, block, size, lane);
  } else if (op == 1) {
    all = joined(result(1), [](result a, result b) { return a * b; }, block, size, lane);
  } else if (op == 2) {
    all = joined(any, [](number a, number b) { return b < a || is_nan(a) ? b : a; }, block, size, lane);
  } else {
    all = joined(any, [](number a, number b) { return b > a || is_nan(a) ? b : a; }, block, size, lane);
  }
  if (lane == 0) results[i] = all;
)cuda";
  return form;
}

/// Made once and never destroyed, as code_of() has it.
template <class Kernel>
const std::shared_ptr<const kernel_code>& reduction_code() {
  static const auto& code = *new std::shared_ptr<const kernel_code>([] {
    const auto portable = make_kernel_code<Kernel>();
    auto made =
        std::make_shared<kernel_code>(*with_form_for_gpus(*portable, form_for_gpus(portable->parameters.front().type)));
    made->brief_items = 64;  // its loop is bounded: a tenth to a third of a microsecond for each block
    return made;
  }());
  return code;
}

/// Sums beside each other, which need not wait for one another; what each addition loses is added up beside it (Knuth's
/// two-sum, which asks nothing about sizes). So a million blocks cost no more accuracy than one.
double sum_of(std::span<const double> numbers) {
  constexpr std::size_t lanes = 8;
  std::array<double, lanes> sums{};
  std::array<double, lanes> lost{};
  const auto add = [&](std::size_t k, double x) {
    const double next = sums[k] + x;
    const double added = next - sums[k];
    lost[k] += (sums[k] - (next - added)) + (x - added);
    sums[k] = next;
  };
  const std::size_t whole = numbers.size() / lanes * lanes;
  for (std::size_t at = 0; at < whole; at += lanes) {
    for (std::size_t k = 0; k < lanes; ++k) add(k, numbers[at + k]);
  }
  for (std::size_t at = whole; at < numbers.size(); ++at) add(at - whole, numbers[at]);
  for (std::size_t apart = lanes / 2; apart > 0; apart /= 2) {
    for (std::size_t k = 0; k < apart; ++k) {
      add(k, sums[k + apart]);
      lost[k] += lost[k + apart];
    }
  }
  // Of an infinity nothing was lost, and the difference that says how much is not a number.
  return std::isfinite(lost[0]) ? sums[0] + lost[0] : sums[0];
}

template <class Better>
double best_of(std::span<const double> numbers, Better&& better) {
  double best = numbers.front();
  for (const double x : numbers) {
    if (better(x, best) || best != best) best = x;
  }
  return best;
}

}  // namespace

const std::shared_ptr<const kernel_code>& reduction_kernel(element_type type) {
  switch (type) {
    case element_type::int8:
      return reduction_code<weft_reduce_int8>();
    case element_type::int16:
      return reduction_code<weft_reduce_int16>();
    case element_type::int32:
      return reduction_code<weft_reduce_int32>();
    case element_type::int64:
      return reduction_code<weft_reduce_int64>();
    case element_type::uint8:
      return reduction_code<weft_reduce_uint8>();
    case element_type::uint16:
      return reduction_code<weft_reduce_uint16>();
    case element_type::uint32:
      return reduction_code<weft_reduce_uint32>();
    case element_type::uint64:
      return reduction_code<weft_reduce_uint64>();
    case element_type::float32:
      return reduction_code<weft_reduce_float32>();
    case element_type::float64:
      break;
  }
  return reduction_code<weft_reduce_float64>();
}

reduction::reduction(element_type type, reduce_op op, std::int64_t count, std::source_location where)
    : type_(type), op_(op) {
  if (count == 0 && (op == reduce_op::min || op == reduce_op::max)) {
    raise(errc::invalid_argument,
          std::string{"the "} + (op == reduce_op::min ? "least" : "greatest") + " of no elements: there is none",
          where);
  }
  const auto blocks = static_cast<std::size_t>(count / reduction_block + (count % reduction_block != 0 ? 1 : 0));
  try {
    if (is_real(type)) {
      reals_.resize(blocks);
    } else {
      integers_.resize(blocks);
    }
  } catch (const std::bad_alloc&) {
    raise(errc::resource_exhausted, "no host memory for the results of " + std::to_string(blocks) + " blocks", where);
  }
}

launch_run reduction::start(const machine& m, const spread_options& options, const spread_argument& values,
                            std::int64_t begin, std::int64_t end, std::source_location where) {
  kernel_range over;
  over.begin[0] = begin / reduction_block;
  over.end[0] = end / reduction_block + (end % reduction_block != 0 ? 1 : 0);
  std::array<spread_argument, 4> list;
  list[0] = values;
  list[1] = is_real(type_) ? make_spread_argument(reals_) : make_spread_argument(integers_);
  list[2] = make_spread_argument(end);
  list[3] = make_spread_argument(static_cast<std::int32_t>(op_));
  return spread(m, reduction_kernel(type_), over, list, options, where);
}

double reduction::combined_reals() const {
  double result = op_ == reduce_op::product ? 1 : 0;
  if (!reals_.empty()) {
    switch (op_) {
      case reduce_op::sum:
        result = sum_of(reals_);
        break;
      case reduce_op::product:
        for (const double x : reals_) result *= x;
        break;
      case reduce_op::min:
        result = best_of(reals_, std::less<>{});
        break;
      case reduce_op::max:
        result = best_of(reals_, std::greater<>{});
        break;
    }
  }
  // Sign and payload of what came out differ between processors.
  return std::isnan(result) ? std::numeric_limits<double>::quiet_NaN() : result;
}

std::uint64_t reduction::combined_integers() const {
  std::uint64_t result = op_ == reduce_op::sum ? 0 : op_ == reduce_op::product ? 1 : integers_.front();
  const bool with_sign = is_signed(type_);
  for (const std::uint64_t x : integers_) {
    const bool less = with_sign ? static_cast<std::int64_t>(x) < static_cast<std::int64_t>(result) : x < result;
    switch (op_) {
      case reduce_op::sum:
        result += x;
        break;
      case reduce_op::product:
        result *= x;
        break;
      case reduce_op::min:
        result = less ? x : result;
        break;
      case reduce_op::max:
        result = less ? result : x;
        break;
    }
  }
  return result;
}

}  // namespace weft::detail
