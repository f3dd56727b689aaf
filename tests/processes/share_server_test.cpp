// SPDX-License-Identifier: Apache-2.0
#include "processes/share_server.hpp"

#include "support/hang.hpp"
#include "support/processes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <span>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace share_server_test {

using weft::descriptor;
using weft::errc;
using weft::detail::fetch_share;
using weft::detail::share_answer;
using weft::detail::share_server;
using weft::detail::share_ticket;
using weft::detail::watch_of;

descriptor connected_to(std::uint64_t door) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int size = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "weft.share.%016llx",
                                 static_cast<unsigned long long>(door));
  descriptor made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(size));
  EXPECT_EQ(::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  return made;
}

/// None where the server hung up.
std::optional<share_answer> answer_to(const descriptor& link, const share_ticket& asked) {
  const auto request = weft::detail::encode_request(asked);
  static_cast<void>(::send(link.get(), request.data(), request.size(), MSG_NOSIGNAL));
  std::array<std::byte, 64> room;
  const ssize_t got = ::recv(link.get(), room.data(), room.size(), 0);
  if (got <= 0) return std::nullopt;
  return weft::value_or_raise(weft::detail::decode_reply(std::span{room}.first(static_cast<std::size_t>(got)))).answer;
}

TEST(share_server, answers_each_of_several_that_ask_after_a_while) {
  share_server server;
  share_ticket asked;
  asked.key = 1;
  asked.door = weft::value_or_raise(server.door());
  bool all = false;
  for (int round = 0; round < 20 && !all; ++round) {  // who is silent for too long is let go
    const std::array late{connected_to(asked.door), connected_to(asked.door), connected_to(asked.door)};
    const bool came = answer_to(connected_to(asked.door), asked) == share_answer::gone;  // and so has who came before
    all = came && std::ranges::all_of(late, [&](const descriptor& one) { return answer_to(one, asked).has_value(); });
  }
  EXPECT_TRUE(all);
}

TEST(fetch_share, takes_a_file_of_a_driver_for_a_block_and_for_nothing_else) {
  using weft::detail::share_kind;
  struct board : processes::steps {
    std::uint64_t door = 0;
  };
  processes::shared<board> with;
  const processes::child exporter{[&] {
    const descriptor device{::open("/dev/null", O_RDWR | O_CLOEXEC)};
    weft::detail::share_grant grant;
    grant.file = device.get();
    grant.size = 4096;
    share_server server;
    std::uint64_t key = 0;
    for (const share_kind one : {share_kind::block, share_kind::memory})
      server.offer(++key, one, [grant] { return std::make_shared<const weft::detail::share_grant>(grant); });
    with->door = weft::value_or_raise(server.door());
    with->say(1);
    return with->hear(2) ? 0 : 1;
  }};
  ASSERT_TRUE(with->hear(1));
  share_ticket asked;
  asked.process = static_cast<std::uint32_t>(exporter.pid());
  asked.boot = weft::detail::this_boot();
  asked.door = with->door;
  asked.size = 4096;
  asked.key = 1;
  asked.kind = share_kind::block;
  const auto block = fetch_share(asked, samples::only_a_hang);
  EXPECT_TRUE(block) << (block ? "" : block.error().what);
  asked.key = 2;
  asked.kind = share_kind::memory;
  const auto memory = fetch_share(asked, samples::only_a_hang);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, errc::corrupt) << memory.error().what;
}

TEST(process_watch, sees_a_process_until_it_is_killed) {
  processes::child other{[] {
    ::pause();
    return 0;
  }};
  const auto watched = weft::value_or_raise(watch_of(static_cast<std::uint32_t>(other.pid())));
  EXPECT_EQ(watched->pid(), static_cast<std::uint32_t>(other.pid()));
  EXPECT_TRUE(watched->alive());
  EXPECT_TRUE(watched->alive_now());
  other.kill(SIGKILL);
  EXPECT_EQ(other.wait(), -SIGKILL);
  EXPECT_FALSE(watched->alive_now());
  EXPECT_FALSE(watched->alive()) << "once dead is dead";
}

TEST(process_watch, is_refused_for_a_process_that_has_ended) {
  processes::child other{[] { return 0; }};
  const auto pid = static_cast<std::uint32_t>(other.pid());
  EXPECT_EQ(other.wait(), 0);
  const auto watched = watch_of(pid);
  ASSERT_FALSE(watched);
  EXPECT_EQ(watched.error().code, errc::peer_dead) << watched.error().what;
}

}  // namespace share_server_test
