// SPDX-License-Identifier: Apache-2.0
#include "plain_copy.hpp"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::bench {
namespace {

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void stream_wide(char* dst, const char* src, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 256) {
    for (std::size_t k = 0; k < 256; k += 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + k), _mm512_loadu_si512(src + i + k));
    }
  }
  _mm_sfence();
}
void stream_narrow(char* dst, const char* src, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i)));
  }
  _mm_sfence();
}
#endif

void streamed(char* dst, const char* src, std::size_t n) {
#if defined(__x86_64__)
  const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(dst) % 64) % 64;
  std::memcpy(dst, src, head);
  const std::size_t body = (n - head) / 256 * 256;
  (__builtin_cpu_supports("avx512f") ? stream_wide : stream_narrow)(dst + head, src + head, body);
  std::memcpy(dst + head + body, src + head + body, n - head - body);
#else
  std::memcpy(dst, src, n);
#endif
}

struct second_thread {
  std::atomic<int> turn{0};  // 1: a job is there, 2: end
  void (*job)(char*, const char*, std::size_t) = nullptr;
  char* dst = nullptr;
  const char* src = nullptr;
  std::size_t size = 0;
  std::thread thread{[this] {
    for (;;) {
      int seen = turn.load(std::memory_order_acquire);
      for (int spins = 0; seen == 0; ++spins) {
        // asleep, not yielding: an idle helper must not take the core from the contender it is compared with
        if (spins > 20000) turn.wait(0, std::memory_order_acquire);
        seen = turn.load(std::memory_order_acquire);
      }
      if (seen == 2) return;
      job(dst, src, size);
      turn.store(0, std::memory_order_release);
    }
  }};
  ~second_thread() {
    turn.store(2, std::memory_order_release);
    turn.notify_one();
    thread.join();
  }
};

void in_two(void (*job)(char*, const char*, std::size_t), char* dst, const char* src, std::size_t n) {
  static second_thread helper;
  const std::size_t half = n / 2 / 4096 * 4096;
  helper.job = job;
  helper.dst = dst + half;
  helper.src = src + half;
  helper.size = n - half;
  helper.turn.store(1, std::memory_order_release);
  helper.turn.notify_one();
  job(dst, src, half);
  while (helper.turn.load(std::memory_order_acquire) != 0) {
  }
}

void cached(char* dst, const char* src, std::size_t n) { std::memcpy(dst, src, n); }

}  // namespace

std::string_view name_of(plain how) {
  switch (how) {
    case plain::memcpy_one:
      return "memcpy, one thread";
    case plain::memcpy_two:
      return "memcpy, two threads";
    case plain::stream_one:
      return "streaming stores, one thread";
    case plain::stream_two:
      return "streaming stores, two threads";
  }
  return "";
}

void copy_plain(plain how, void* dst, const void* src, std::size_t n) {
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  switch (how) {
    case plain::memcpy_one:
      return cached(to, from, n);
    case plain::memcpy_two:
      return in_two(cached, to, from, n);
    case plain::stream_one:
      return streamed(to, from, n);
    case plain::stream_two:
      return in_two(streamed, to, from, n);
  }
}

}  // namespace weft::bench
