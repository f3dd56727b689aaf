// SPDX-License-Identifier: Apache-2.0
#include "runtime/packet_socket.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

namespace weft::detail {

error process_error(errc code, std::string what, error_scope scope, int native_code) {
  error made;
  made.code = code;
  made.scope = scope;
  made.native_code = native_code;
  made.what = std::move(what);
  made.where = {};
  return made;
}

error system_error(std::string doing, int number) {
  std::string what = std::move(doing) + ": " + std::generic_category().message(number);
  switch (number) {
    case EMFILE:
      return process_error(errc::resource_exhausted, std::move(what) + "; raise the process's limit (ulimit -n)",
                           error_scope::call, number);
    case ETOOMANYREFS:
      return process_error(errc::resource_exhausted,
                           std::move(what) + "; too many descriptors are under way that nobody has received",
                           error_scope::call, number);
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return process_error(errc::resource_exhausted, std::move(what), error_scope::call, number);
    default:
      return process_error(errc::io_failed, std::move(what), error_scope::call, number);
  }
}

std::chrono::nanoseconds steady_now() noexcept { return std::chrono::steady_clock::now().time_since_epoch(); }

void stop_signal::ring::operator()() const noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(fd, &one, sizeof one));
}

stop_signal::stop_signal(const std::stop_token& stop) : stop_(stop) {
  if (!stop_.stop_possible()) return;
  bell_ = descriptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (bell_) callback_.emplace(stop_, ring{bell_.get()});
}

void stop_signal::poll(std::vector<pollfd>& these, wait_deadline until) {
  auto left = until == no_deadline ? no_deadline : until - steady_now();
  if (left < std::chrono::nanoseconds{0}) left = std::chrono::nanoseconds{0};
  if (stop_.stop_possible() && !bell_) left = std::min<std::chrono::nanoseconds>(left, std::chrono::milliseconds{10});
  timespec limit{};
  limit.tv_sec = static_cast<std::time_t>(left.count() / 1'000'000'000);
  limit.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
  if (bell_) these.push_back({bell_.get(), POLLIN, 0});
  // interrupted by a signal it returns early, and so it may: whoever waits looks again
  if (::ppoll(these.data(), these.size(), left == no_deadline ? nullptr : &limit, nullptr) < 0) {
    for (pollfd& p : these) p.revents = 0;
  }
  if (bell_) these.pop_back();
}

result<packet_io> read_packet(int socket, std::span<std::byte> room, raw_packet& into) {
  into.bytes = {};
  into.descriptors.clear();
  into.sender.reset();
  into.lost_descriptors = false;
  // Room for one descriptor more than a packet may have: what is too much is seen, and closed.
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(sizeof(int) * (process_group::max_descriptors + 1)) + CMSG_SPACE(sizeof(ucred))>
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
    return system_error("cannot read from a process of the group", errno);
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
  if (got == 0) {
    pollfd state{socket, 0, 0};
    if (::poll(&state, 1, 0) == 1 && (state.revents & POLLHUP) != 0) return packet_io::ended;
    return process_error(errc::corrupt, "expected a packet, got an empty one", error_scope::endpoint);
  }
  if ((head.msg_flags & MSG_TRUNC) != 0) {
    into.descriptors.clear();
    return process_error(errc::corrupt, "expected a packet of at most " + std::to_string(room.size() - 1) + " bytes",
                         error_scope::endpoint);
  }
  into.bytes = room.first(static_cast<std::size_t>(got));
  return packet_io::done;
}

result<packet_io> write_packet(int socket, const packet& p, std::span<const int> descriptors, bool with_credentials) {
  packet announced = p;
  announced.descriptors = static_cast<std::uint8_t>(descriptors.size());
  auto bytes = packet_header(announced);
  std::array<iovec, 2> parts{iovec{bytes.data(), bytes.size()},
                             iovec{const_cast<std::byte*>(p.payload.data()), p.payload.size()}};
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(sizeof(int) * process_group::max_descriptors) + CMSG_SPACE(sizeof(ucred))>
          control{};
  msghdr head{};
  head.msg_iov = parts.data();
  head.msg_iovlen = p.payload.empty() ? 1 : 2;
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
      return process_error(errc::invalid_argument, "one of the descriptors to send is not open");
    default:
      return system_error("cannot write to a process of the group", errno);
  }
}

result<packet> checked_packet(const raw_packet& raw) {
  auto parsed = parse_packet(raw.bytes);
  if (!parsed) return parsed;
  if (raw.descriptors.size() != parsed->descriptors) {
    if (raw.lost_descriptors && raw.descriptors.size() < parsed->descriptors)
      return parsed;  // no room here: not its fault
    return process_error(errc::corrupt,
                         "expected " + std::to_string(parsed->descriptors) + " descriptors with a packet, got " +
                             std::to_string(raw.descriptors.size()) + (raw.lost_descriptors ? " or more" : ""),
                         error_scope::endpoint);
  }
  return parsed;
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

result<std::pair<descriptor, descriptor>> connected_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_error("cannot make a connection between two processes", errno);
  }
  make_room(ends[0]);
  make_room(ends[1]);
  return std::pair{descriptor{ends[0]}, descriptor{ends[1]}};
}

void make_room(int socket) noexcept {
  int now = 0;
  socklen_t size = sizeof now;
  constexpr int wanted = static_cast<int>(4 * max_packet_bytes);
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

std::uint64_t start_time_of(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) return 0;
  std::array<char, 1024> text;
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  if (count <= 0) return 0;
  const std::string_view line{text.data(), static_cast<std::size_t>(count)};
  // The second field is the program's name in parentheses, with any characters; the start time is field 22.
  auto at = line.rfind(')');
  for (int field = 2; at != std::string_view::npos && field < 22; ++field) at = line.find(' ', at + 1);
  std::uint64_t ticks = 0;
  if (at == std::string_view::npos) return 0;
  std::from_chars(line.data() + at + 1, line.data() + line.size(), ticks);
  return ticks;
}

result<descriptor> watch_process(pid_t pid, std::uint64_t start_time) {
  descriptor made{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  const std::string who = "process " + std::to_string(pid);
  if (!made) {
    if (errno == ESRCH) return process_error(errc::peer_dead, who + " has ended", error_scope::process);
    return system_error("cannot watch " + who, errno);
  }
  // The pid may have gone to another process between its message and now; its start time has not.
  const std::uint64_t now = start_time_of(pid);
  if (now != 0 && start_time != 0 && now != start_time) {
    return process_error(errc::peer_dead, who + " has ended, and another one has its number", error_scope::process);
  }
  return made;
}

bool is_process_descriptor(int fd) noexcept {
  return ::syscall(SYS_pidfd_send_signal, fd, 0, nullptr, 0) == 0 || errno == ESRCH || errno == EPERM;
}

bool is_readable(int fd) noexcept {
  pollfd state{fd, POLLIN, 0};
  return ::poll(&state, 1, 0) == 1 && state.revents != 0;
}

}  // namespace weft::detail
