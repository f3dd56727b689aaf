// SPDX-License-Identifier: Apache-2.0
#include "processes/share_server.hpp"

#include "support/processes.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <unistd.h>

namespace share_server_test {

using weft::errc;
using weft::detail::watch_of;

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
