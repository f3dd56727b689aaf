// SPDX-License-Identifier: Apache-2.0
#include "collective/fold/fold_sixteen.hpp"

#include "collective/fold/fold.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define WEFT_DETAIL_V3 [[gnu::target("avx2,f16c")]]
#define WEFT_DETAIL_V3_INLINE [[gnu::target("avx2,f16c"), gnu::always_inline]] static inline
#endif

namespace weft::detail {

#if defined(WEFT_DETAIL_V3)
namespace {

using op = reduction_op::kind;
using memory_list = std::array<std::uint16_t*, fold_width>;

constexpr std::int64_t group = 32;  // elements at a time

/// Sixteen numbers, in the order of their form.
struct numbers {
  __m256 first, second;
};
struct sixteen_bits {
  __m256i all;
};

/// In the order of memory.
struct half_form {
  WEFT_DETAIL_V3_INLINE numbers read(const std::uint16_t* from) {
    const auto* const at = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
  }
  WEFT_DETAIL_V3_INLINE sixteen_bits narrowed(const numbers& from) {
    return {_mm256_set_m128i(_mm256_cvtps_ph(from.second, _MM_FROUND_TO_NEAREST_INT),
                             _mm256_cvtps_ph(from.first, _MM_FROUND_TO_NEAREST_INT))};
  }
};

/// Those at even places, then those at odd ones: either are the upper halves of the numbers they are read as.
struct bfloat_form {
  WEFT_DETAIL_V3_INLINE numbers read(const std::uint16_t* from) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-0x10000)))};
  }
  /// To the nearest, ties to even, in the upper half.
  WEFT_DETAIL_V3_INLINE __m256i rounded(__m256 from) {
    const __m256i bits = _mm256_castps_si256(from);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  }
  /// A NaN keeps its upper bits, and is quiet.
  WEFT_DETAIL_V3_INLINE __m256i rounded_with_holes(__m256 from) {
    const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(from), _mm256_set1_epi32(0x400000));
    const __m256 is_none = _mm256_cmp_ps(from, from, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded(from), quiet, _mm256_castps_si256(is_none));
  }
  WEFT_DETAIL_V3_INLINE sixteen_bits merged(__m256i even, __m256i odd) {
    return {_mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa)};
  }
  WEFT_DETAIL_V3_INLINE sixteen_bits narrowed(const numbers& from) {
    if (_mm256_movemask_ps(_mm256_cmp_ps(from.first, from.second, _CMP_UNORD_Q)) != 0) [[unlikely]]
      return merged(rounded_with_holes(from.first), rounded_with_holes(from.second));
    return merged(rounded(from.first), rounded(from.second));
  }
};

template <op What>
WEFT_DETAIL_V3_INLINE __m256 combined(__m256 a, __m256 b) {
  if constexpr (What == op::product) return _mm256_mul_ps(a, b);
  if constexpr (What == op::sum) return _mm256_add_ps(a, b);
  constexpr int wins = What == op::min ? _CMP_LT_OQ : _CMP_GT_OQ;
  const __m256 takes_b = _mm256_or_ps(_mm256_cmp_ps(b, a, wins), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_ps(a, b, takes_b);
}

struct fold_lists {
  memory_list in{}, out{};
  std::size_t inputs = 0, outputs = 0;
  float divide_by = 1;
};

template <class Form, op What>
WEFT_DETAIL_V3_INLINE void fold_group(const fold_lists& of, std::int64_t at) {
  numbers low = Form::read(of.in[0] + at), high = Form::read(of.in[0] + at + 16);
  for (std::size_t n = 1; n < of.inputs; ++n) {
    const numbers low_more = Form::read(of.in[n] + at), high_more = Form::read(of.in[n] + at + 16);
    low = {combined<What>(low.first, low_more.first), combined<What>(low.second, low_more.second)};
    high = {combined<What>(high.first, high_more.first), combined<What>(high.second, high_more.second)};
  }
  if (of.divide_by > 1) {
    const __m256 by = _mm256_set1_ps(of.divide_by);
    low = {_mm256_div_ps(low.first, by), _mm256_div_ps(low.second, by)};
    high = {_mm256_div_ps(high.first, by), _mm256_div_ps(high.second, by)};
  }
  const sixteen_bits low_made = Form::narrowed(low), high_made = Form::narrowed(high);
  for (std::size_t n = 0; n < of.outputs; ++n) {
    auto* const to = reinterpret_cast<__m256i*>(of.out[n] + at);
    _mm256_storeu_si256(to, low_made.all);
    _mm256_storeu_si256(to + 1, high_made.all);
  }
}

template <class Form, op What>
WEFT_DETAIL_V3 void fold_range(const fold_lists& of, std::int64_t begin, std::int64_t end) {
  std::int64_t at = begin;
  for (; at + group <= end; at += group) fold_group<Form, What>(of, at);
  if (at >= end) return;
  const std::size_t rest = static_cast<std::size_t>(end - at) * sizeof(std::uint16_t);
  std::array<std::array<std::uint16_t, group>, fold_width> padded{};
  std::array<std::uint16_t, group> result;
  fold_lists last = of;
  for (std::size_t n = 0; n < of.inputs; ++n) {
    std::memcpy(padded[n].data(), of.in[n] + at, rest);
    last.in[n] = padded[n].data();
  }
  last.out[0] = result.data();
  last.outputs = 1;
  fold_group<Form, What>(last, 0);
  for (std::size_t n = 0; n < of.outputs; ++n) std::memcpy(of.out[n] + at, result.data(), rest);
}

template <class Value>
Value scalar_at(std::span<const kernel_argument> arguments, std::size_t behind) {
  Value made{};
  std::memcpy(&made, arguments[2 * fold_width + behind].scalar.data(), sizeof made);
  return made;
}

std::uint16_t* element_zero(const kernel_argument& of) {
  return of.address == nullptr ? nullptr : static_cast<std::uint16_t*>(of.address) - of.first;
}

/// The arguments are those of fold_kernel().
template <class Form>
void run_fold(const kernel_range& items, std::span<const kernel_argument> arguments) {
  fold_lists of;
  of.inputs = static_cast<std::size_t>(scalar_at<std::int32_t>(arguments, 1));
  of.outputs = static_cast<std::size_t>(scalar_at<std::int32_t>(arguments, 2));
  of.divide_by = static_cast<float>(scalar_at<std::int64_t>(arguments, 4));
  for (std::size_t n = 0; n < fold_width; ++n) {
    of.in[n] = element_zero(arguments[n]);
    of.out[n] = element_zero(arguments[fold_width + n]);
  }
  const std::int64_t begin = items.begin[0] * fold_block;
  const std::int64_t end = std::min(scalar_at<std::int64_t>(arguments, 0), items.end[0] * fold_block);
  switch (static_cast<op>(scalar_at<std::int32_t>(arguments, 3))) {
    case op::product:
      return fold_range<Form, op::product>(of, begin, end);
    case op::min:
      return fold_range<Form, op::min>(of, begin, end);
    case op::max:
      return fold_range<Form, op::max>(of, begin, end);
    default:
      return fold_range<Form, op::sum>(of, begin, end);
  }
}

}  // namespace

host_entry fold_of_sixteen_bits(data_type type, host_entry otherwise) {
  // clang before 18 does not know f16c by name
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!__builtin_cpu_supports("avx2") || !has_f16c) return otherwise;
  return type == data_type::float16 ? run_fold<half_form> : run_fold<bfloat_form>;
}
#else
host_entry fold_of_sixteen_bits(data_type, host_entry otherwise) { return otherwise; }
#endif

}  // namespace weft::detail
