#pragma once
// SPDX-License-Identifier: Apache-2.0
// The mathematics that a kernel body may call on every backend, as plain C++ for the host. The names are global and
// in C style because a body is C: the same text goes to NVRTC, HIPRTC and OpenCL C, whose prelude defines the same
// names. The largest errors, per backend, are in docs/reference/kernels.md.

#include <concepts>
#include <type_traits>

namespace weft::detail {

// Mixing signed with unsigned silently turns a negative number into a huge one, so it does not compile.
template <class A, class B>
concept same_signedness = std::integral<A> && std::integral<B> && std::is_signed_v<A> == std::is_signed_v<B>;

}  // namespace weft::detail

// Forced inline, and built-ins rather than <cmath>: the host loop is compiled with options of its own, and g++ inlines
// no ordinary function across such a border. Where clang has an element-wise square root it takes the place of one
// that must set errno, which is not vectorised; g++ has none, and there -fno-math-errno on the command line helps.
#if defined(__has_builtin)
#if __has_builtin(__builtin_elementwise_sqrt)
#define WEFT_DETAIL_SQRTF(x) __builtin_elementwise_sqrt(x)
#define WEFT_DETAIL_SQRT(x) __builtin_elementwise_sqrt(x)
#endif
#endif
#if !defined(WEFT_DETAIL_SQRT)
#define WEFT_DETAIL_SQRTF(x) __builtin_sqrtf(x)
#define WEFT_DETAIL_SQRT(x) __builtin_sqrt(x)
#endif
#define WEFT_DETAIL_INLINE [[gnu::always_inline]] inline

// NOLINTBEGIN(readability-identifier-naming)
WEFT_DETAIL_INLINE float weft_sqrt(float x) { return WEFT_DETAIL_SQRTF(x); }
WEFT_DETAIL_INLINE double weft_sqrt(double x) { return WEFT_DETAIL_SQRT(x); }
WEFT_DETAIL_INLINE float weft_rsqrt(float x) { return 1.0F / WEFT_DETAIL_SQRTF(x); }
WEFT_DETAIL_INLINE double weft_rsqrt(double x) { return 1.0 / WEFT_DETAIL_SQRT(x); }
WEFT_DETAIL_INLINE float weft_exp(float x) { return __builtin_expf(x); }
WEFT_DETAIL_INLINE double weft_exp(double x) { return __builtin_exp(x); }
WEFT_DETAIL_INLINE float weft_log(float x) { return __builtin_logf(x); }
WEFT_DETAIL_INLINE double weft_log(double x) { return __builtin_log(x); }
WEFT_DETAIL_INLINE float weft_sin(float x) { return __builtin_sinf(x); }
WEFT_DETAIL_INLINE double weft_sin(double x) { return __builtin_sin(x); }
WEFT_DETAIL_INLINE float weft_cos(float x) { return __builtin_cosf(x); }
WEFT_DETAIL_INLINE double weft_cos(double x) { return __builtin_cos(x); }
WEFT_DETAIL_INLINE float weft_tan(float x) { return __builtin_tanf(x); }
WEFT_DETAIL_INLINE double weft_tan(double x) { return __builtin_tan(x); }
WEFT_DETAIL_INLINE float weft_fabs(float x) { return __builtin_fabsf(x); }
WEFT_DETAIL_INLINE double weft_fabs(double x) { return __builtin_fabs(x); }
WEFT_DETAIL_INLINE float weft_floor(float x) { return __builtin_floorf(x); }
WEFT_DETAIL_INLINE double weft_floor(double x) { return __builtin_floor(x); }
WEFT_DETAIL_INLINE float weft_ceil(float x) { return __builtin_ceilf(x); }
WEFT_DETAIL_INLINE double weft_ceil(double x) { return __builtin_ceil(x); }
WEFT_DETAIL_INLINE float weft_pow(float x, float y) { return __builtin_powf(x, y); }
WEFT_DETAIL_INLINE double weft_pow(double x, double y) { return __builtin_pow(x, y); }
WEFT_DETAIL_INLINE float weft_fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
WEFT_DETAIL_INLINE double weft_fma(double x, double y, double z) { return __builtin_fma(x, y, z); }

// Compared by hand: a call of std::fmin keeps g++ from vectorising the loop. A NaN gives way to the other number.
WEFT_DETAIL_INLINE float weft_fmin(float x, float y) { return x < y || y != y ? x : y; }
WEFT_DETAIL_INLINE double weft_fmin(double x, double y) { return x < y || y != y ? x : y; }
WEFT_DETAIL_INLINE float weft_fmax(float x, float y) { return x > y || y != y ? x : y; }
WEFT_DETAIL_INLINE double weft_fmax(double x, double y) { return x > y || y != y ? x : y; }

/// The smaller of two integers of one signedness; the result has std::common_type of them: int where two types differ
/// and both are narrower than int.
template <class A, class B>
  requires weft::detail::same_signedness<A, B>
WEFT_DETAIL_INLINE constexpr std::common_type_t<A, B> weft_min(A a, B b) {
  return a < b ? static_cast<std::common_type_t<A, B>>(a) : static_cast<std::common_type_t<A, B>>(b);
}

/// The larger of two integers of one signedness; the result has the type that weft_min() gives.
template <class A, class B>
  requires weft::detail::same_signedness<A, B>
WEFT_DETAIL_INLINE constexpr std::common_type_t<A, B> weft_max(A a, B b) {
  return a > b ? static_cast<std::common_type_t<A, B>>(a) : static_cast<std::common_type_t<A, B>>(b);
}

/// `value` brought between `low` and `high`, three integers of one signedness; the result has std::common_type of
/// them.
/// Errors: nothing is said about the result when low > high.
template <class T, class L, class H>
  requires weft::detail::same_signedness<T, L> && weft::detail::same_signedness<T, H>
WEFT_DETAIL_INLINE constexpr std::common_type_t<T, L, H> weft_clamp(T value, L low, H high) {
  using R = std::common_type_t<T, L, H>;  // of two unsigned ones it may be int, which goes with no unsigned third
  return weft_min(weft_max(static_cast<R>(value), static_cast<R>(low)), static_cast<R>(high));
}
// NOLINTEND(readability-identifier-naming)

#undef WEFT_DETAIL_SQRTF
#undef WEFT_DETAIL_SQRT
#undef WEFT_DETAIL_INLINE
