// SPDX-License-Identifier: Apache-2.0
#include "backends/host/engine/copy_engine.hpp"

#include "os/parking.hpp"

#include <cstring>
#include <pthread.h>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::host {
namespace {

// A destination from this size on is written past the caches. Smaller ones may well stay in the third level, where
// plain stores are up to twice as fast (`weft bench copy -s 16M` on a Xeon with a shared third level: 16 MiB warm at 27
// GB/s, not 13).
constexpr std::size_t streaming_from = std::size_t{16} << 20;
// A piece of such a destination, if it is not too small for the fence that follows it.
constexpr std::size_t smallest_stream = std::size_t{128} << 10;
// Below this the hand-over to the helper (a few microseconds) costs more than the second core gains.
constexpr std::size_t two_threads_from = std::size_t{2} << 20;

#if defined(__x86_64__)

// Both functions want dst aligned to 64 and n a multiple of 256.
__attribute__((target("avx512f"))) void stream_512(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; i += 256) {
    const __m512i a = _mm512_loadu_si512(src + i);
    const __m512i b = _mm512_loadu_si512(src + i + 64);
    const __m512i c = _mm512_loadu_si512(src + i + 128);
    const __m512i d = _mm512_loadu_si512(src + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 192), d);
  }
  _mm_sfence();
}

void stream_128(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; i += 64) {
    const auto* from = reinterpret_cast<const __m128i*>(src + i);
    auto* to = reinterpret_cast<__m128i*>(dst + i);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();
}

using streamer = void (*)(std::byte*, const std::byte*, std::size_t) noexcept;

streamer choose() noexcept { return __builtin_cpu_supports("avx512f") ? stream_512 : stream_128; }

void copy_large(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
  static const streamer stream = choose();
  const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(dst) % 64) % 64;
  std::memcpy(dst, src, head);
  dst += head;
  src += head;
  n -= head;
  const std::size_t body = n / 256 * 256;
  stream(dst, src, body);
  std::memcpy(dst + body, src + body, n - body);
}

#else

void copy_large(std::byte* dst, const std::byte* src, std::size_t n) noexcept { std::memcpy(dst, src, n); }

#endif

void copy_cached(std::byte* dst, const std::byte* src, std::size_t n) noexcept { std::memcpy(dst, src, n); }

constexpr std::uint32_t end_bit = std::uint32_t{1} << 31;

}  // namespace

copy_engine::copy_engine() = default;

copy_engine::~copy_engine() {
  if (helper_.joinable()) {
    word_.fetch_or(end_bit, std::memory_order_release);
    parking::wake_all(word_);
    helper_.join();
  }
}

void copy_engine::help() noexcept {
  for (;;) {
    std::uint32_t seen = word_.load(std::memory_order_acquire);  // pairs with release in copy
    if ((seen & end_bit) != 0) return;
    if (seen % 2 == 0) {
      parking::spinner spinner{waiting::adaptive};
      bool found = false;
      while (!found && spinner.spin()) found = word_.load(std::memory_order_acquire) != seen;
      if (!found) parking::park(word_, seen, std::chrono::steady_clock::time_point::max());
      continue;
    }
    job_.how(static_cast<std::byte*>(job_.dst), static_cast<const std::byte*>(job_.src), job_.size);
    word_.fetch_sub(1, std::memory_order_release);  // pairs with acquire in copy: the bytes are there
    parking::wake_all(word_);
  }
}

void copy_engine::copy(void* dst, const void* src, std::size_t n, std::size_t whole) noexcept {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  const bool streams = whole >= streaming_from && n >= smallest_stream;
  const auto how = streams ? copy_large : copy_cached;
  if (n < two_threads_from || parking::cores() < 2 || taken_.exchange(true, std::memory_order_acquire)) {
    how(to, from, n);
    return;
  }
  try {
    std::call_once(started_, [this] {
      helper_ = std::thread{[this] {
        pthread_setname_np(pthread_self(), "weft-copy");
        help();
      }};
    });
  } catch (const std::exception&) {  // no thread to be had, or no memory for one: alone, then
    taken_.store(false, std::memory_order_release);
    how(to, from, n);
    return;
  }
  const std::size_t half = n / 2 / 4096 * 4096;
  job_ = {to + half, from + half, n - half, how};
  word_.fetch_add(1, std::memory_order_release);  // pairs with acquire in help
  parking::wake_all(word_);
  how(to, from, half);
  for (;;) {
    const std::uint32_t seen = word_.load(std::memory_order_acquire);  // pairs with release in help
    if (seen % 2 == 0) break;
    parking::spinner spinner{waiting::adaptive};
    bool done = false;
    while (!done && spinner.spin()) done = word_.load(std::memory_order_acquire) != seen;
    if (!done) parking::park(word_, seen, std::chrono::steady_clock::time_point::max());
  }
  taken_.store(false, std::memory_order_release);  // pairs with acquire in exchange
}

}  // namespace weft::host
