// SPDX-License-Identifier: Apache-2.0
#include "distributed/meeting/sha256.hpp"

#include <gtest/gtest.h>

#include <string>

namespace {

using weft::detail::sha256;

std::span<const std::byte> view(std::string_view text) { return std::as_bytes(std::span{text}); }

std::string written(const weft::detail::sha256_digest& digest) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte b : digest) {
    text += digits[std::to_integer<std::size_t>(b >> 4)];
    text += digits[std::to_integer<std::size_t>(b & std::byte{15})];
  }
  return text;
}

std::string hash_of(std::string_view text) {
  sha256 hash;
  hash.add(view(text));
  return written(hash.digest());
}

std::string hmac_of(std::string_view key, std::string_view text) {
  const std::span<const std::byte> parts[] = {view(text.substr(0, 3)), view(text.substr(3))};
  return written(weft::detail::hmac_sha256(key, parts));
}

// The values are those of FIPS 180-4's examples and of RFC 4231.
TEST(sha256, gives_the_digests_of_the_standard) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256, does_not_depend_on_how_the_bytes_were_cut) {
  for (std::size_t size = 50; size < 140; ++size) {
    const std::string text(size, 'w');
    for (const std::size_t cut : {std::size_t{1}, size / 2, size - 1}) {
      sha256 hash;
      hash.add(view(text).first(cut));
      hash.add(view(text).subspan(cut));
      EXPECT_EQ(written(hash.digest()), hash_of(text)) << size << " cut at " << cut;
    }
  }
}

TEST(hmac_sha256, gives_the_codes_of_the_standard) {
  EXPECT_EQ(hmac_of("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
