// SPDX-License-Identifier: Apache-2.0
#include "os/socket.hpp"

#include "core/errors/make_error.hpp"
#include "os/system_error.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

namespace weft::detail {

std::optional<std::size_t> next_packet_bytes(int socket) noexcept {
  ssize_t size;
  do size = ::recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  while (size < 0 && (errno == EINTR || errno == ECONNRESET));  // as below
  if (size < 0 && errno == EAGAIN) return std::nullopt;
  return static_cast<std::size_t>(size < 0 ? 0 : size);
}

result<packet_io> receive_packet(int socket, std::span<std::byte> room, raw_packet& into, const char* from) {
  into.bytes = {};
  into.descriptors.clear();
  into.descriptors.reserve(most_descriptors + 1);  // what has come is to be closed, also where there is no memory
  into.sender.reset();
  into.lost_descriptors = into.is_cut = false;
  // Room for one descriptor more than a packet may have: what is too much is seen, and closed.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * (most_descriptors + 1)) + CMSG_SPACE(sizeof(ucred))>
      control;
  iovec part{room.data(), room.size()};
  msghdr head{};
  head.msg_iov = &part;
  head.msg_iovlen = 1;
  head.msg_control = control.data();
  head.msg_controllen = control.size();
  ssize_t got;
  // ECONNRESET is told once, before what the peer had sent: read on
  do got = ::recvmsg(socket, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) {
    if (errno == EAGAIN) return packet_io::later;
    return system_error("cannot read from " + std::string{from}, errno);
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&head); c != nullptr; c = CMSG_NXTHDR(&head, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_RIGHTS) {
      const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
        into.descriptors.emplace_back(fd);
      }
    } else if (c->cmsg_type == SCM_CREDENTIALS) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(c), sizeof who);
      into.sender = credentials{who.pid, who.uid};
    }
  }
  into.lost_descriptors = (head.msg_flags & MSG_CTRUNC) != 0;
  into.is_cut = (head.msg_flags & MSG_TRUNC) != 0;
  if (into.is_cut) into.descriptors.clear();
  into.bytes = room.first(static_cast<std::size_t>(got));
  if (got > 0) return packet_io::done;
  pollfd state{socket, 0, 0};
  const bool is_over = ::poll(&state, 1, 0) == 1 && (state.revents & POLLHUP) != 0;
  return is_over ? packet_io::ended : packet_io::done;
}

result<packet_io> send_packet(int socket, std::span<const iovec> parts, std::span<const int> descriptors,
                              bool with_credentials, const char* to) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * most_descriptors) + CMSG_SPACE(sizeof(ucred))> control{};
  msghdr head{};
  head.msg_iov = const_cast<iovec*>(parts.data());
  head.msg_iovlen = parts.size();
  char* at = control.data();
  const auto attach = [&](int type, const void* data, std::size_t count) {
    auto* c = reinterpret_cast<cmsghdr*>(at);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(count);
    std::memcpy(CMSG_DATA(c), data, count);
    at += CMSG_SPACE(count);
    head.msg_control = control.data();
    head.msg_controllen = static_cast<std::size_t>(at - control.data());
  };
  if (with_credentials) {
    const ucred me{::getpid(), ::geteuid(), ::getegid()};  // the kernel checks that they are true
    attach(SCM_CREDENTIALS, &me, sizeof me);
  }
  if (!descriptors.empty()) attach(SCM_RIGHTS, descriptors.data(), descriptors.size_bytes());
  ssize_t sent;
  do sent = ::sendmsg(socket, &head, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent >= 0) return packet_io::done;
  switch (errno) {
    case EAGAIN:
      return packet_io::later;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return packet_io::ended;
    case EBADF:
      return make_error(errc::invalid_argument, "one of the descriptors to send is not open");
    default:
      return system_error("cannot write to " + std::string{to}, errno);
  }
}

void accept_credentials(int socket, bool on) noexcept {
  const int value = on ? 1 : 0;
  ::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &value, sizeof value);
}

std::optional<credentials> maker_of(int socket) noexcept {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return std::nullopt;
  return credentials{who.pid, who.uid};
}

result<std::pair<descriptor, descriptor>> connected_sockets(std::size_t packet_bytes) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return system_error("cannot make a connection between two processes", errno);
  for (const int end : ends) make_room(end, packet_bytes);
  return std::pair{descriptor{ends[0]}, descriptor{ends[1]}};
}

void make_room(int socket, std::size_t packet_bytes) noexcept {
  int now = 0;
  socklen_t size = sizeof now;
  const int wanted = static_cast<int>(4 * packet_bytes);
  if (::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &now, &size) == 0 && now >= wanted) return;
  const int asked = wanted / 2;  // the kernel doubles it
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &asked, sizeof asked);
}

bool is_packet_socket(int fd) noexcept {
  int domain = 0;
  int type = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return false;
  size = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return false;
  return domain == AF_UNIX && type == SOCK_SEQPACKET;
}

bool is_readable(int fd) noexcept {
  pollfd state{fd, POLLIN, 0};
  return ::poll(&state, 1, 0) == 1 && state.revents != 0;
}

}  // namespace weft::detail
