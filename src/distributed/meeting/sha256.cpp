// SPDX-License-Identifier: Apache-2.0
#include "distributed/meeting/sha256.hpp"

#include <algorithm>
#include <bit>

namespace weft::detail {
namespace {

constexpr std::array<std::uint32_t, 64> round_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

void sha256::mix() noexcept {
  std::array<std::uint32_t, 64> w;
  for (std::size_t t = 0; t < 16; ++t) {
    w[t] = 0;
    for (std::size_t k = 0; k < 4; ++k) w[t] = w[t] << 8U | std::to_integer<std::uint32_t>(block_[4 * t + k]);
  }
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t low = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3U);
    const std::uint32_t high = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10U);
    w[t] = w[t - 16] + low + w[t - 7] + high;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + choice + round_constants[t] + w[t];
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    const std::uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + majority;
    h = g, g = f, f = e, e = d + first;
    d = c, c = b, b = a, a = first + second;
  }
  const std::array<std::uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (std::size_t n = 0; n < 8; ++n) state_[n] += mixed[n];
}

void sha256::add(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const std::size_t filled = length_ % block_.size();
    const std::size_t taken = std::min(bytes.size(), block_.size() - filled);
    std::copy_n(bytes.begin(), taken, block_.begin() + static_cast<std::ptrdiff_t>(filled));
    bytes = bytes.subspan(taken);
    length_ += taken;
    if (length_ % block_.size() == 0) mix();
  }
}

sha256_digest sha256::digest() noexcept {
  const std::uint64_t bits = 8 * length_;
  constexpr std::array<std::byte, 64> padding{std::byte{0x80}};
  add(std::span{padding}.first((119 - length_ % 64) % 64 + 1));  // up to 8 bytes before the end of a block
  std::array<std::byte, 8> tail;
  for (std::size_t k = 0; k < 8; ++k) tail[k] = static_cast<std::byte>(bits >> (56 - 8 * k));
  add(tail);
  sha256_digest made;
  for (std::size_t k = 0; k < made.size(); ++k) made[k] = static_cast<std::byte>(state_[k / 4] >> (24 - 8 * (k % 4)));
  return made;
}

sha256_digest hmac_sha256(std::string_view key, std::span<const std::span<const std::byte>> parts) noexcept {
  std::array<std::byte, 64> block{};
  if (key.size() > block.size()) {
    sha256 of_key;
    of_key.add(std::as_bytes(std::span{key}));
    std::ranges::copy(of_key.digest(), block.begin());
  } else {
    std::ranges::copy(std::as_bytes(std::span{key}), block.begin());
  }
  sha256 inner;
  sha256 outer;
  for (std::byte& b : block) b ^= std::byte{0x36};
  inner.add(block);
  for (std::byte& b : block) b ^= std::byte{0x36 ^ 0x5c};
  outer.add(block);
  for (const std::span<const std::byte> part : parts) inner.add(part);
  outer.add(inner.digest());
  return outer.digest();
}

bool are_equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  if (a.size() != b.size()) return false;
  std::byte differs{};
  for (std::size_t n = 0; n < a.size(); ++n) differs |= a[n] ^ b[n];
  return differs == std::byte{};
}

}  // namespace weft::detail
