// SPDX-License-Identifier: Apache-2.0
#include "collective/plain_fold.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::bench {

namespace {

template <int N>
void fold_scalar(float* const* arrays, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    float sum = arrays[0][i];
    for (int a = 1; a < N; ++a) sum += arrays[a][i];
    for (int a = 0; a < N; ++a) arrays[a][i] = sum;
  }
}

#if defined(__x86_64__)
template <int N>
__attribute__((target("avx512f"))) void fold_512(float* const* arrays, std::size_t begin, std::size_t end) {
  float* from[static_cast<std::size_t>(N)];
  for (int a = 0; a < N; ++a) from[a] = arrays[a];
  std::size_t i = begin;
  for (; i + 32 <= end; i += 32) {
    __m512 low = _mm512_loadu_ps(from[0] + i);
    __m512 high = _mm512_loadu_ps(from[0] + i + 16);
    for (int a = 1; a < N; ++a) {
      low = _mm512_add_ps(low, _mm512_loadu_ps(from[a] + i));
      high = _mm512_add_ps(high, _mm512_loadu_ps(from[a] + i + 16));
    }
    for (int a = 0; a < N; ++a) {
      _mm512_storeu_ps(from[a] + i, low);
      _mm512_storeu_ps(from[a] + i + 16, high);
    }
  }
  fold_scalar<N>(arrays, i, end);
}

template <int N>
__attribute__((target("avx2"))) void fold_256(float* const* arrays, std::size_t begin, std::size_t end) {
  float* from[static_cast<std::size_t>(N)];
  for (int a = 0; a < N; ++a) from[a] = arrays[a];
  std::size_t i = begin;
  for (; i + 8 <= end; i += 8) {
    __m256 sum = _mm256_loadu_ps(from[0] + i);
    for (int a = 1; a < N; ++a) sum = _mm256_add_ps(sum, _mm256_loadu_ps(from[a] + i));
    for (int a = 0; a < N; ++a) _mm256_storeu_ps(from[a] + i, sum);
  }
  fold_scalar<N>(arrays, i, end);
}
#endif

template <int N>
void fold(float* const* arrays, std::size_t begin, std::size_t end) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    fold_512<N>(arrays, begin, end);
    return;
  }
  if (__builtin_cpu_supports("avx2")) {
    fold_256<N>(arrays, begin, end);
    return;
  }
#endif
  fold_scalar<N>(arrays, begin, end);
}

class second_thread {
 public:
  ~second_thread() {
    turn_.store(end, std::memory_order_release);
    turn_.notify_one();
    thread_.join();
  }
  void start(float* const* arrays, int count, std::size_t first, std::size_t last) {
    arrays_ = arrays;
    count_ = count;
    first_ = first;
    last_ = last;
    turn_.store(busy, std::memory_order_release);  // pairs with acquire in serve
    turn_.notify_one();
  }
  void finish() const {
    for (int spins = 1; turn_.load(std::memory_order_acquire) != idle; ++spins) {  // pairs with release in serve
      if (spins % 256 == 0) std::this_thread::yield();
    }
  }

 private:
  enum : int { idle, busy, end };
  void serve() {
    for (;;) {
      int seen = turn_.load(std::memory_order_acquire);
      for (int spins = 1; seen == idle; ++spins) {
        if (spins > 20000) {
          turn_.wait(idle, std::memory_order_acquire);
        } else if (spins % 256 == 0) {
          std::this_thread::yield();  // whoever is to give the next turn may need this core
        }
        seen = turn_.load(std::memory_order_acquire);
      }
      if (seen == end) return;
      fold_plain(arrays_, count_, first_, last_);
      turn_.store(idle, std::memory_order_release);
    }
  }

  std::atomic<int> turn_{idle};
  float* const* arrays_ = nullptr;
  int count_ = 0;
  std::size_t first_ = 0, last_ = 0;
  std::thread thread_{[this] { serve(); }};
};

}  // namespace

void fold_plain(float* const* arrays, int count, std::size_t begin, std::size_t end) {
  switch (count) {
    case 2:
      return fold<2>(arrays, begin, end);
    case 3:
      return fold<3>(arrays, begin, end);
    case 4:
      return fold<4>(arrays, begin, end);
    default:
      return;
  }
}

void fold_plain_in_two(float* const* arrays, int count, std::size_t elements) {
  static second_thread helper;
  const std::size_t half = elements / 2 / 1024 * 1024;
  helper.start(arrays, count, half, elements);
  fold_plain(arrays, count, 0, half);
  helper.finish();
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
[[gnu::target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4"), gnu::optimize("O3")]]
#endif
void fold_plain_blocks(float* const* arrays, int count, std::size_t elements) {
  std::array<float, 1024> sum;
  for (std::size_t begin = 0; begin < elements; begin += sum.size()) {
    const std::size_t length = std::min(sum.size(), elements - begin);
    std::copy_n(arrays[0] + begin, length, sum.data());
    for (int a = 1; a < count; ++a)
      for (std::size_t k = 0; k < length; ++k) sum[k] += arrays[a][begin + k];
    for (int a = 0; a < count; ++a) std::copy_n(sum.data(), length, arrays[a] + begin);
  }
}

}  // namespace weft::bench
