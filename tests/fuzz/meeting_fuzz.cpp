// SPDX-License-Identifier: Apache-2.0
// Any bytes that come over a rank's connection give frames, announcements and tables that are whole, or the reason why
// not.
#include "distributed/announcement.hpp"
#include "distributed/meeting/frame_link.hpp"
#include "distributed/meeting/greeting.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sys/socket.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span{data, size});
  if (const auto table = weft::detail::parse_table(bytes, 3)) {
    if (!std::ranges::equal(weft::detail::table_of(*table), bytes)) std::abort();
  }
  if (const auto read = weft::detail::read_announcement(bytes)) {
    const auto again = weft::detail::read_announcement(weft::detail::written(*read));
    if (!again || again->host != read->host || again->session != read->session) std::abort();
  }
  int ends[2];
  if (size > 4096 || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 0;
  weft::detail::frame_link link{weft::descriptor{ends[0]}, 1024};
  if (::send(ends[1], data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  ::close(ends[1]);
  for (std::size_t frames = 0;; ++frames) {
    const auto got = link.pull();
    if (!got) break;  // closed, or corrupt
    if (!*got || (**got).payload.size() > 1024 || frames > size) std::abort();
  }
  return 0;
}
