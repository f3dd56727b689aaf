// SPDX-License-Identifier: Apache-2.0
#include "processes/share_ticket.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace share_ticket_test {

using weft::errc;
using weft::detail::decode_reply;
using weft::detail::encode_reply;
using weft::detail::reply_bytes;
using weft::detail::share_answer;
using weft::detail::share_reply;

constexpr auto last_answer = static_cast<std::uint16_t>(share_answer::refused);

share_reply reply_with(std::uint16_t answer) {
  share_reply made;
  made.answer = static_cast<share_answer>(answer);
  made.size = 4097;
  made.device = 3;
  return made;
}

TEST(share_reply, comes_back_as_it_was_for_every_answer) {
  for (std::uint16_t answer = 0; answer <= last_answer; ++answer) {
    const share_reply sent = reply_with(answer);
    const auto got = decode_reply(encode_reply(sent));
    ASSERT_TRUE(got) << answer << ": " << got.error().what;
    EXPECT_EQ(*got, sent);
  }
}

TEST(share_reply, is_refused_when_it_is_cut_or_says_what_cannot_be) {
  const auto refusal = [](std::span<const std::byte> bytes) {
    const auto got = decode_reply(bytes);
    return got ? std::optional<errc>{} : got.error().code;
  };
  const reply_bytes good = encode_reply(reply_with(last_answer));
  EXPECT_EQ(refusal(std::span{good}.first(good.size() - 1)), errc::corrupt);
  EXPECT_EQ(refusal(encode_reply(reply_with(last_answer + 1))), errc::corrupt);
  reply_bytes foreign = good;
  foreign[0] ^= std::byte{1};
  EXPECT_EQ(refusal(foreign), errc::corrupt);
  reply_bytes newer = good;
  newer[4] ^= std::byte{0x80};
  EXPECT_EQ(refusal(newer), errc::incompatible);
}

}  // namespace share_ticket_test
