// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <utility>

namespace weft::detail {

inline constexpr std::size_t max_rendezvous_name = 64;

/// The abstract address of a name, and its length. It holds the user's id, so that the names of two users do not meet;
/// that alone keeps nobody out, which is why both sides check who is at the other end.
[[nodiscard]] inline std::pair<sockaddr_un, socklen_t> rendezvous_address(std::string_view name, uid_t uid) {
  const std::string text = "weft.rendezvous." + std::to_string(uid) + "." + std::string{name};
  sockaddr_un address{};
  static_assert(sizeof address.sun_path > 1 + 16 + 10 + 1 + max_rendezvous_name);
  address.sun_family = AF_UNIX;
  std::copy(text.begin(), text.end(), address.sun_path + 1);  // the first byte 0: no file
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

}  // namespace weft::detail
