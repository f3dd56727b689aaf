/* SPDX-License-Identifier: Apache-2.0
 * What makes CUDA C++ out of C++: put before the text of every kernel, behind device_side.h. No header of the host's: a
 * kernel finds what NVRTC has built in, and nothing else. */
/* clang-format off */
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define WEFT_VIRTUAL_CUDA 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define warpSize 32
typedef decltype(sizeof(0)) size_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned uint32_t;
typedef unsigned long long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
struct alignas(16) longlong2 {
  long long x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
static thread_local weft_virtual_thread weft_virtual_now_;
static const weft_virtual_services* weft_virtual_services_;
#define threadIdx (weft_virtual_now_.thread)
#define blockIdx (weft_virtual_now_.block)
#define blockDim (weft_virtual_now_.block_size)
#define gridDim (weft_virtual_now_.grid_size)
inline void weft_virtual_barrier_(int warp) {
  const weft_virtual_thread mine = weft_virtual_now_;
  weft_virtual_services_->barrier(warp);
  weft_virtual_now_ = mine;
}
inline void weft_virtual_yield_() {
  const weft_virtual_thread mine = weft_virtual_now_;
  weft_virtual_services_->yield();
  weft_virtual_now_ = mine;
}
inline unsigned weft_virtual_lane_() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u;
}
inline void __syncthreads() { weft_virtual_barrier_(0); }
inline void __syncwarp(unsigned = 0xffffffffu) { weft_virtual_barrier_(1); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { weft_virtual_yield_(); }
[[noreturn]] inline void __trap() {
  weft_virtual_services_->fail(719);
  __builtin_unreachable();
}
inline long long clock64() { return (long long)weft_virtual_services_->clock(); }
typedef long clock_t;
inline clock_t clock() noexcept { return (clock_t)weft_virtual_services_->clock(); }
/* What hardware keeps in %smid. */
inline unsigned weft_multiprocessor() {
  return weft_virtual_services_->multiprocessor(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
}
inline unsigned long long __globaltimer() { return weft_virtual_services_->clock(); }
#define assert(x) ((x) ? (void)0 : weft_virtual_services_->fail(710))
template <class T>
inline T weft_virtual_swap_(T value, int from) {
  static_assert(sizeof(T) <= 8, "at most eight bytes");
  unsigned long long word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  const weft_virtual_thread mine = weft_virtual_now_;
  word = weft_virtual_services_->exchange(word, from);
  weft_virtual_now_ = mine;
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
inline T __shfl_sync(unsigned, T v, int from, int width = 32) {
  const int lane = (int)weft_virtual_lane_();
  return weft_virtual_swap_(v, (lane & ~(width - 1)) + (from & (width - 1)));
}
template <class T>
inline T __shfl_down_sync(unsigned, T v, unsigned by, int width = 32) {
  const int lane = (int)weft_virtual_lane_();
  return weft_virtual_swap_(v, (lane & (width - 1)) + (int)by < width ? lane + (int)by : lane);
}
template <class T>
inline T __shfl_down(T v, unsigned by, int width = 32) { /* HIP's: without a mask */
  return __shfl_down_sync(~0u, v, by, width);
}
template <class T>
inline T __shfl_up_sync(unsigned, T v, unsigned by, int width = 32) {
  const int lane = (int)weft_virtual_lane_();
  return weft_virtual_swap_(v, (lane & (width - 1)) >= (int)by ? lane - (int)by : lane);
}
template <class T>
inline T __shfl_xor_sync(unsigned, T v, int with, int width = 32) {
  const int lane = (int)weft_virtual_lane_();
  const int from = lane ^ with;
  return weft_virtual_swap_(v, (from & ~(width - 1)) == (lane & ~(width - 1)) ? from : lane);
}
#define WEFT_VIRTUAL_ATOMIC(suffix)                                 \
  template <class T, class V>                                       \
  inline T atomicAdd##suffix(T* p, V v) {                           \
    return weft_virtual_add_(p, (T)v);                              \
  }                                                                 \
  template <class T, class V>                                       \
  inline T atomicSub##suffix(T* p, V v) {                           \
    return __atomic_fetch_sub(p, (T)v, 5);                          \
  }                                                                 \
  template <class T, class V>                                       \
  inline T atomicAnd##suffix(T* p, V v) {                           \
    return __atomic_fetch_and(p, (T)v, 5);                          \
  }                                                                 \
  template <class T, class V>                                       \
  inline T atomicOr##suffix(T* p, V v) {                            \
    return __atomic_fetch_or(p, (T)v, 5);                           \
  }                                                                 \
  template <class T, class V>                                       \
  inline T atomicXor##suffix(T* p, V v) {                           \
    return __atomic_fetch_xor(p, (T)v, 5);                          \
  }                                                                 \
  template <class T, class V>                                       \
  inline T atomicExch##suffix(T* p, V v) {                          \
    T n = (T)v, o;                                                  \
    __atomic_exchange(p, &n, &o, 5);                                \
    return o;                                                       \
  }                                                                 \
  template <class T, class V, class W>                              \
  inline T atomicCAS##suffix(T* p, V was, W v) {                    \
    T o = (T)was;                                                   \
    T n = (T)v;                                                     \
    __atomic_compare_exchange(p, &o, &n, false, 5, 5);              \
    return o;                                                       \
  }                                                                 \
  template <class T, class V>                                       \
  inline T atomicMin##suffix(T* p, V v) {                           \
    T o = *(volatile T*)p;                                          \
    while ((T)v < o) {                                              \
      T n = (T)v;                                                   \
      if (__atomic_compare_exchange(p, &o, &n, false, 5, 5)) break; \
    }                                                               \
    return o;                                                       \
  }                                                                 \
  template <class T, class V>                                       \
  inline T atomicMax##suffix(T* p, V v) {                           \
    T o = *(volatile T*)p;                                          \
    while (o < (T)v) {                                              \
      T n = (T)v;                                                   \
      if (__atomic_compare_exchange(p, &o, &n, false, 5, 5)) break; \
    }                                                               \
    return o;                                                       \
  }                                                                 \
  inline unsigned atomicInc##suffix(unsigned* p, unsigned v) {      \
    unsigned o = *(volatile unsigned*)p, n;                         \
    do n = o >= v ? 0 : o + 1;                                      \
    while (!__atomic_compare_exchange(p, &o, &n, false, 5, 5));     \
    return o;                                                       \
  }                                                                 \
  inline unsigned atomicDec##suffix(unsigned* p, unsigned v) {      \
    unsigned o = *(volatile unsigned*)p, n;                         \
    do n = o == 0 || o > v ? v : o - 1;                             \
    while (!__atomic_compare_exchange(p, &o, &n, false, 5, 5));     \
    return o;                                                       \
  }
template <class T>
inline T weft_virtual_add_(T* p, T v) {
  return __atomic_fetch_add(p, v, 5);
}
inline float weft_virtual_add_(float* p, float v) {
  float o = *(volatile float*)p, n;
  do n = o + v;
  while (!__atomic_compare_exchange(p, &o, &n, false, 5, 5));
  return o;
}
inline double weft_virtual_add_(double* p, double v) {
  double o = *(volatile double*)p, n;
  do n = o + v;
  while (!__atomic_compare_exchange(p, &o, &n, false, 5, 5));
  return o;
}
WEFT_VIRTUAL_ATOMIC()
WEFT_VIRTUAL_ATOMIC(_system)
WEFT_VIRTUAL_ATOMIC(_block)
template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T>
inline T __ldcg(const T* p) {
  return *p;
}
template <class T>
inline T __ldcs(const T* p) {
  return *p;
}
template <class T>
inline T __ldcv(const T* p) {
  return *(const volatile T*)p;
}
template <class T>
inline void __stcg(T* p, T v) {
  *p = v;
}
template <class T>
inline void __stcs(T* p, T v) {
  *p = v;
}
template <class T>
inline void __stwt(T* p, T v) {
  *p = v;
}
/* The instructions for multicast addresses, by the names that the library's own kernels give them. */
template <class F>
inline void weft_virtual_each_(unsigned long long address, unsigned size, F f) {
  unsigned char* where[WEFT_VIRTUAL_MOST_REPLICAS];
  const unsigned count = weft_virtual_services_->replicas(address, size, where);
  for (unsigned n = 0; n < count; ++n) f(where[n], n);
}
inline void weft_multimem_store_16(unsigned long long to, uint4 v) {
  weft_virtual_each_(to, 16, [&](unsigned char* p, unsigned) { *(uint4*)p = v; });
}
inline void weft_multimem_store_4(unsigned long long to, unsigned v) {
  weft_virtual_each_(to, 4, [&](unsigned char* p, unsigned) { *(unsigned*)p = v; });
}
inline void weft_multimem_and_4(unsigned long long to, unsigned v) {
  weft_virtual_each_(to, 4, [&](unsigned char* p, unsigned) { __atomic_fetch_and((unsigned*)p, v, 5); });
}
inline void weft_multimem_or_4(unsigned long long to, unsigned v) {
  weft_virtual_each_(to, 4, [&](unsigned char* p, unsigned) { __atomic_fetch_or((unsigned*)p, v, 5); });
}
#define WEFT_VIRTUAL_MULTIMEM(name, T, joined)                                \
  inline T weft_multimem_##name(unsigned long long from) {                    \
    T a = 0;                                                                  \
    weft_virtual_each_(from, sizeof(T), [&](unsigned char* p, unsigned n) {   \
      const T b = *(const T*)p;                                               \
      a = n == 0 ? b : (T)(joined);                                           \
    });                                                                       \
    return a;                                                                 \
  }
#define WEFT_VIRTUAL_MULTIMEM_INTEGER(name, T, U)           \
  WEFT_VIRTUAL_MULTIMEM(add_##name, T, (U)a + (U)b)         \
  WEFT_VIRTUAL_MULTIMEM(min_##name, T, b < a ? b : a)       \
  WEFT_VIRTUAL_MULTIMEM(max_##name, T, a < b ? b : a)
WEFT_VIRTUAL_MULTIMEM_INTEGER(s32, int, unsigned)
WEFT_VIRTUAL_MULTIMEM_INTEGER(u32, unsigned, unsigned)
WEFT_VIRTUAL_MULTIMEM_INTEGER(s64, long long, unsigned long long)
WEFT_VIRTUAL_MULTIMEM_INTEGER(u64, unsigned long long, unsigned long long)
WEFT_VIRTUAL_MULTIMEM(add_f32, float, a + b)
WEFT_VIRTUAL_MULTIMEM(add_f64, double, a + b)
inline float4 weft_multimem_add_f32_4(unsigned long long from) {
  float4 a = {0, 0, 0, 0};
  weft_virtual_each_(from, 16, [&](unsigned char* p, unsigned n) {
    const float4 b = *(const float4*)p;
    a = n == 0 ? b : float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  });
  return a;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
inline int __mul24(int a, int b) { return ((a << 8) >> 8) * ((b << 8) >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __float_as_uint(float f) {
  unsigned u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
inline int __float_as_int(float f) {
  int u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
inline float __uint_as_float(unsigned u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline float __int_as_float(int u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline long long __double_as_longlong(double f) {
  long long u;
  __builtin_memcpy(&u, &f, 8);
  return u;
}
inline double __longlong_as_double(long long u) {
  double f;
  __builtin_memcpy(&f, &u, 8);
  return f;
}
#define WEFT_VIRTUAL_MATH1(name)                                            \
  inline float name##f(float x) noexcept { return __builtin_##name##f(x); } \
  inline double name(double x) noexcept { return __builtin_##name(x); }     \
  inline float name(float x) noexcept { return __builtin_##name##f(x); }
#define WEFT_VIRTUAL_MATH2(name)                                                        \
  inline float name##f(float x, float y) noexcept { return __builtin_##name##f(x, y); } \
  inline double name(double x, double y) noexcept { return __builtin_##name(x, y); }    \
  inline float name(float x, float y) noexcept { return __builtin_##name##f(x, y); }
WEFT_VIRTUAL_MATH1(sqrt)
WEFT_VIRTUAL_MATH1(exp)
WEFT_VIRTUAL_MATH1(exp2) WEFT_VIRTUAL_MATH1(log) WEFT_VIRTUAL_MATH1(log2) WEFT_VIRTUAL_MATH1(log10)
    WEFT_VIRTUAL_MATH1(sin) WEFT_VIRTUAL_MATH1(cos) WEFT_VIRTUAL_MATH1(tan) WEFT_VIRTUAL_MATH1(tanh)
        WEFT_VIRTUAL_MATH1(fabs) WEFT_VIRTUAL_MATH1(floor) WEFT_VIRTUAL_MATH1(ceil) WEFT_VIRTUAL_MATH1(rint)
            WEFT_VIRTUAL_MATH1(round) WEFT_VIRTUAL_MATH1(trunc) WEFT_VIRTUAL_MATH1(erf) WEFT_VIRTUAL_MATH1(cbrt)
                WEFT_VIRTUAL_MATH1(atan) WEFT_VIRTUAL_MATH2(pow) WEFT_VIRTUAL_MATH2(fmin) WEFT_VIRTUAL_MATH2(fmax)
                    WEFT_VIRTUAL_MATH2(fmod)
                        WEFT_VIRTUAL_MATH2(atan2) inline float fmaf(float x, float y, float z) noexcept {
  return __builtin_fmaf(x, y, z);
}
inline double fma(double x, double y, double z) noexcept { return __builtin_fma(x, y, z); }
inline float fma(float x, float y, float z) noexcept { return __builtin_fmaf(x, y, z); }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
/* The fast ones are as exact as the others here. */
inline float __expf(float x) { return __builtin_expf(x); }
inline float __logf(float x) { return __builtin_logf(x); }
inline float __log2f(float x) { return __builtin_log2f(x); }
inline float __sinf(float x) { return __builtin_sinf(x); }
inline float __cosf(float x) { return __builtin_cosf(x); }
inline float __powf(float x, float y) { return __builtin_powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline int abs(int x) noexcept { return x < 0 ? -x : x; }
template <class A>
inline A min(A a, A b) {
  return a < b ? a : b;
}
template <class A>
inline A max(A a, A b) {
  return a > b ? a : b;
}
inline void* memcpy(void* d, const void* s, size_t n) noexcept { return __builtin_memcpy(d, s, n); }
inline void* memset(void* d, int v, size_t n) noexcept { return __builtin_memset(d, v, n); }
template <class T>
struct weft_virtual_is_pointer_ {
  static constexpr unsigned char value = 0;
};
template <class T>
struct weft_virtual_is_pointer_<T*> {
  static constexpr unsigned char value = 1;
};
template <class T>
struct weft_virtual_is_pointer_<T* const> {
  static constexpr unsigned char value = 1;
};
template <unsigned... N>
struct weft_virtual_list_ {};
template <unsigned N, unsigned... M>
struct weft_virtual_count_ : weft_virtual_count_<N - 1, N - 1, M...> {};
template <unsigned... M>
struct weft_virtual_count_<0, M...> {
  typedef weft_virtual_list_<M...> list;
};
template <class T>
struct weft_virtual_plain_ {
  typedef T type;
};
template <class T>
struct weft_virtual_plain_<const T> {
  typedef T type;
};
template <auto F>
struct weft_virtual_kernel_;
template <class... A, void (*F)(A...)>
struct weft_virtual_kernel_<F> {
  static constexpr unsigned sizes[] = {(unsigned)sizeof(A)..., 0};
  static constexpr unsigned alignments[] = {(unsigned)alignof(A)..., 0};
  static constexpr unsigned char pointers[] = {weft_virtual_is_pointer_<A>::value..., 0};
  template <unsigned... N>
  static inline void with(void** a, weft_virtual_list_<N...>) {
    F(*(typename weft_virtual_plain_<A>::type*)a[N]...);
  }
  static void call(void** a) { with(a, typename weft_virtual_count_<sizeof...(A)>::list{}); }
  static void all(const weft_virtual_launch* l, void** a) {
    weft_virtual_now_.block_size = l->block;
    weft_virtual_now_.grid_size = l->grid;
    for (unsigned bz = 0; bz < l->grid.z; ++bz)
      for (unsigned by = 0; by < l->grid.y; ++by)
        for (unsigned bx = 0; bx < l->grid.x; ++bx) {
          weft_virtual_now_.block = {bx, by, bz};
          for (unsigned z = 0; z < l->block.z; ++z)
            for (unsigned y = 0; y < l->block.y; ++y)
              for (unsigned x = 0; x < l->block.x; ++x) {
                weft_virtual_now_.thread = {x, y, z};
                with(a, typename weft_virtual_count_<sizeof...(A)>::list{});
              }
        }
  }
  static constexpr weft_virtual_entry entry(const char* name, unsigned most_threads) {
    return {name, (void*)F, (unsigned)sizeof...(A), sizes, alignments, pointers, &call, &all, most_threads};
  }
};
/* Accesses of 16 bytes, as kernel/ring.h makes them where a compiler has them. The half with the stamp is stored last and
 * loaded first. With WEFT_VIRTUAL_TEARS=N, from the stamp N on, the link brings the half with the stamp first, and the
 * other half together with the next piece behind it. */
#if !defined(__HIPCC_RTC__)
#define WEFT_RING_WHOLE_PIECES
#if defined(WEFT_VIRTUAL_TEARS)
static thread_local uint64_t* weft_virtual_late_at_;
static thread_local uint64_t weft_virtual_late_;
#endif
inline void weft_ring_store_piece(void* address, uint64_t low, uint64_t high, int) {
  uint64_t* const halves = (uint64_t*)address;
#if defined(WEFT_VIRTUAL_TEARS)
  if ((high >> 32) >= WEFT_VIRTUAL_TEARS) {
    if (weft_virtual_late_at_ + 2 == halves) __atomic_store_n(weft_virtual_late_at_, weft_virtual_late_, __ATOMIC_RELAXED);
    weft_virtual_late_at_ = halves;
    weft_virtual_late_ = low;
    __atomic_store_n(halves + 1, high, __ATOMIC_RELEASE);
    return;
  }
#endif
  __atomic_store_n(halves, low, __ATOMIC_RELAXED);
  __atomic_store_n(halves + 1, high, __ATOMIC_RELEASE);
}
inline void weft_ring_load_piece(const void* address, uint64_t* low, uint64_t* high, int) {
  const uint64_t* const halves = (const uint64_t*)address;
  *high = __atomic_load_n(halves + 1, __ATOMIC_ACQUIRE);
  *low = __atomic_load_n(halves, __ATOMIC_RELAXED);
}
#endif
