// SPDX-License-Identifier: Apache-2.0
#include "distributed/meeting/frame_link.hpp"
#include "distributed/meeting/greeting.hpp"
#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using weft::descriptor;
using weft::errc;
using weft::detail::frame_header;
using weft::detail::frame_kind;
using weft::detail::frame_link;
using bytes = std::vector<std::byte>;

struct pair {
  std::array<int, 2> ends{};
  pair() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0); }
};

bytes text(std::string_view letters) {
  const auto view = std::as_bytes(std::span{letters});
  return {view.begin(), view.end()};
}

TEST(frame_link, gives_frames_as_they_were_put_however_the_bytes_arrive) {
  const pair wire;
  frame_link sender{descriptor{wire.ends[0]}, 64};
  const std::array parts{std::span<const std::byte>{}, std::span<const std::byte>{}};
  const bytes first = text("one");
  const bytes second = text("two");
  const std::array both{std::span{first}, std::span{second}};
  sender.put(frame_kind::waiting, both);
  sender.put(frame_kind::gather, parts);
  EXPECT_TRUE(sender.has_unsent());
  ASSERT_TRUE(sender.flush());
  EXPECT_FALSE(sender.has_unsent());
  bytes all(100);
  const auto size = ::recv(wire.ends[1], all.data(), all.size(), 0);
  ASSERT_EQ(size, static_cast<ssize_t>(2 * sizeof(frame_header) + 6));

  const pair slow;
  frame_link receiver{descriptor{slow.ends[0]}, 6};
  std::vector<frame_kind> kinds;
  for (ssize_t n = 0; n < size; ++n) {
    ASSERT_EQ(::send(slow.ends[1], &all[static_cast<std::size_t>(n)], 1, 0), 1);
    const auto got = receiver.pull();
    ASSERT_TRUE(got);
    if (!*got) continue;
    kinds.push_back((**got).kind);
    EXPECT_EQ(bytes((**got).payload.begin(), (**got).payload.end()), text(kinds.size() == 1 ? "onetwo" : ""));
  }
  EXPECT_EQ(kinds, (std::vector{frame_kind::waiting, frame_kind::gather}));
  ::close(slow.ends[1]);
  const auto got = receiver.pull();
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, errc::closed);
  ::close(wire.ends[1]);
}

TEST(frame_link, refuses_a_frame_that_is_too_long_or_none_of_weft_before_it_takes_memory) {
  const auto pulled = [](const frame_header& head) {
    const pair wire;
    frame_link receiver{descriptor{wire.ends[0]}, 64};
    EXPECT_EQ(::send(wire.ends[1], &head, sizeof head, 0), static_cast<ssize_t>(sizeof head));
    const auto got = receiver.pull();
    ::close(wire.ends[1]);
    return got ? errc::not_ready : got.error().code;
  };
  EXPECT_EQ(pulled({frame_header::is_weft, 2, 64}), errc::not_ready);
  EXPECT_EQ(pulled({frame_header::is_weft, 2, 65}), errc::corrupt);
  EXPECT_EQ(pulled({frame_header::is_weft, 2, ~0U}), errc::corrupt);
  EXPECT_EQ(pulled({frame_header::is_weft, 0, 0}), errc::corrupt);
  EXPECT_EQ(pulled({frame_header::is_weft, 8, 0}), errc::corrupt);
  EXPECT_EQ(pulled({frame_header::is_weft + 1, 2, 0}), errc::corrupt);
}

TEST(table_of_ranks, is_read_as_it_was_written_and_refused_when_cut_or_longer) {
  const std::vector<bytes> said{text("a"), {}, text("ccc")};
  const bytes table = weft::detail::table_of(said);
  const auto read = weft::detail::parse_table(table, 3);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, said);
  for (std::size_t size = 0; size < table.size(); ++size)
    EXPECT_FALSE(weft::detail::parse_table(std::span{table}.first(size), 3)) << size;
  EXPECT_FALSE(weft::detail::parse_table(table, 2));
  EXPECT_FALSE(weft::detail::parse_table(table, 4));
}

TEST(ranks_in_words, counts_those_that_are_not_named) {
  const std::array<int, 2> two{0, 1};
  EXPECT_EQ(weft::detail::ranks_in_words(two, 2), "rank 0, rank 1");
  EXPECT_EQ(weft::detail::ranks_in_words(two, 9), "rank 0, rank 1 and 7 more");
}

}  // namespace
