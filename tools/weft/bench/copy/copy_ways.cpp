// SPDX-License-Identifier: Apache-2.0
#include "copy_ways.hpp"

#include "weft/exec/launch_run.hpp"
#include "weft/memory/fill.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

namespace weft::tool {

namespace {

WEFT_KERNEL(bench_copy_words, (WEFT_IN(uint64_t) from, WEFT_OUT(uint64_t) to), { to[i] = from[i]; });

constexpr std::size_t piece = std::size_t{8} << 20;  // of a pattern on the host at a time

/// A word that depends on its place and on the seed: the finaliser of a counter, so that neighbours share no bits.
std::uint64_t pattern_word(std::uint64_t place, std::uint64_t seed) {
  std::uint64_t x = place * 0x9E3779B97F4A7C15ULL + seed;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ULL;
  return x ^ (x >> 29);
}

std::vector<std::uint64_t> pattern_piece(std::size_t offset, std::size_t size, std::uint64_t seed) {
  std::vector<std::uint64_t> words((size + 7) / 8);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = pattern_word(offset / 8 + i, seed);
  return words;
}

template <class T>
void write_to(const device_span<T>& range, std::uint64_t seed) {
  constexpr std::size_t step = piece / sizeof(T);
  for (std::size_t first = 0; first < range.size(); first += step) {
    const std::size_t count = std::min(step, range.size() - first);
    const auto words = pattern_piece(first * sizeof(T), count * sizeof(T), seed);
    weft::copy(range.subspan(first, count), std::span{reinterpret_cast<const T*>(words.data()), count});
  }
}

template <class T>
std::string check_in(const device_span<const T>& range, std::uint64_t seed) {
  constexpr std::size_t step = piece / sizeof(T);
  std::vector<T> got(std::min(step, range.size()));
  for (std::size_t first = 0; first < range.size(); first += step) {
    const std::size_t count = std::min(step, range.size() - first);
    weft::copy(std::span{got}.first(count), range.subspan(first, count));
    const auto words = pattern_piece(first * sizeof(T), count * sizeof(T), seed);
    const auto wanted = std::as_bytes(std::span{words}).first(count * sizeof(T));
    const auto here = std::as_bytes(std::span{got}).first(count * sizeof(T));
    if (std::memcmp(here.data(), wanted.data(), wanted.size()) == 0) continue;
    const auto at = static_cast<std::size_t>(std::ranges::mismatch(here, wanted).in1 - here.begin());
    return fmt::format("first bad byte at offset {}: expected 0x{:02x}, got 0x{:02x}", first * sizeof(T) + at,
                       std::to_integer<unsigned>(wanted[at]), std::to_integer<unsigned>(here[at]));
  }
  return {};
}

std::size_t words_of(std::uint64_t size) { return (size + 7) / 8; }

}  // namespace

void write_pattern(const device_span<std::byte>& range, std::uint64_t seed) { write_to(range, seed); }
void write_pattern(const device_span<std::uint64_t>& range, std::uint64_t seed) { write_to(range, seed); }
std::string check_pattern(const device_span<const std::byte>& range, std::uint64_t seed) {
  return check_in(range, seed);
}
std::string check_pattern(const device_span<const std::uint64_t>& range, std::uint64_t seed) {
  return check_in(range, seed);
}

engine_copy::engine_copy(const machine& m, device_id src, device_id dst, std::uint64_t size, copy_options how)
    : how_(std::move(how)), src_(m[src], size), dst_(m[dst], size), order_(m[dst]) {}

void engine_copy::blank() const { fill(dst_, std::byte{0xEE}); }

wait_outcome engine_copy::once_within(std::chrono::nanoseconds timeout) const {
  return weft::copy(order_, dst_, src_, how_).wait_for(timeout);
}

kernel_copy::kernel_copy(const machine& m, device_id by, device_id src, device_id dst, std::uint64_t size)
    : src_(m[src], words_of(size)), dst_(m[dst], words_of(size)), order_(m[by]) {}

void kernel_copy::blank() const { fill(dst_, std::uint64_t{0xEEEE'EEEE'EEEE'EEEE}); }

event kernel_copy::launched() const {
  return launch<bench_copy_words>(order_, range(static_cast<std::int64_t>(dst_.size())), src_, dst_);
}

}  // namespace weft::tool
