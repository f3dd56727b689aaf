// SPDX-License-Identifier: Apache-2.0
// What the tests of rendezvous, groups and packets share. Ranks are processes wherever one of them dies, is stopped, is
// another user or runs another program; where only their talk matters they are threads of this process, which the
// rendezvous does not mind and ThreadSanitizer can watch.
#pragma once

#include "processes/packet.hpp"
#include "processes/packet_socket.hpp"
#include "processes/rendezvous_address.hpp"
#include "support/hang.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/core/raise.hpp"
#include "weft/processes/rendezvous.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <poll.h>
#include <random>
#include <set>
#include <signal.h>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace groups {

using namespace std::chrono_literals;
using samples::error_of;
using samples::only_a_hang;
using samples::pattern;
using samples::soon;
using weft::descriptor;
using weft::errc;
using weft::join_options;
using weft::peer_message;
using weft::process_group;
using weft::rank;
using weft::rendezvous;
using weft::detail::packet;
using weft::detail::packet_io;
using weft::detail::packet_kind;
namespace wire = weft::detail;

using stopwatch = std::chrono::steady_clock;
/// As poll() takes it.
inline int milliseconds_of(std::chrono::milliseconds limit) { return static_cast<int>(limit.count()); }
inline std::span<const std::byte> view(const samples::data& d) { return std::as_bytes(std::span{d}); }
inline std::span<const std::byte> view(std::string_view s) { return std::as_bytes(std::span{s}); }
inline samples::data data_of(const std::vector<std::byte>& bytes) {
  samples::data made(bytes.size());
  std::transform(bytes.begin(), bytes.end(), made.begin(),
                 [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  return made;
}
inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all{"/proc/self/fd"};  // itself one of them
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Takes the free numbers below the highest open one, so that a limit leaves room for exactly as many as it says.
inline std::vector<descriptor> fill_holes() {
  int highest = 0;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    highest = std::max(highest, std::stoi(entry.path().filename()));
  }
  std::vector<descriptor> fill;
  do fill.emplace_back(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  while (fill.back().get() <= highest);
  return fill;
}

/// A name that no other test of this machine has.
inline std::string fresh_name() {
  static std::atomic<int> next{0};
  return "test." + std::to_string(::getpid()) + "." + std::to_string(next++);
}

inline join_options within(std::chrono::nanoseconds limit) {
  join_options made;
  made.timeout = limit;
  return made;
}

template <class T>
std::string failure_of(const weft::result<T>& r) {
  return r ? std::string{"nothing failed"} : to_string(r.error());
}
/// The code of a failure; not_ready when nothing failed.
template <class T>
errc code_of(const weft::result<T>& r) {
  return r ? errc::not_ready : r.error().code;
}
inline bool says(const std::string& text, std::string_view what) { return text.find(what) != std::string::npos; }

/// A process that does one thing, and what it says about it: nothing when all went well. Killed with its owner.
class child {
 public:
  explicit child(const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error{"pipe"};
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(3);
      ::close(ends[0]);
      std::string said;
      try {
        said = work();
      } catch (const std::exception& e) {
        said = std::string{"threw "} + e.what();
      }
      static_cast<void>(!::write(ends[1], said.data(), said.size()));
      ::_exit(0);
    }
    ::close(ends[1]);
    said_ = descriptor{ends[0]};
  }
  child(child&&) noexcept = default;
  ~child() {
    if (said_) {
      kill(SIGKILL);
      static_cast<void>(said());
    }
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }

  /// Waits for its end; kills it when it hangs, so that a failing test ends.
  std::string said() {
    std::string text;
    std::array<char, 4096> part;
    while (true) {
      pollfd p{said_.get(), POLLIN, 0};
      if (::poll(&p, 1, milliseconds_of(only_a_hang * 3 / 2)) == 0) {  // what waits in it has given up before
        kill(SIGKILL);
        text += "hung; ";
      }
      const ssize_t got = ::read(said_.get(), part.data(), part.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      text.append(part.data(), static_cast<std::size_t>(got));
    }
    said_.reset();
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status))
      text += "ended by signal " + std::to_string(WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
      text += "exit code " + std::to_string(WEXITSTATUS(status));
    return text;
  }

 private:
  pid_t pid_ = -1;
  descriptor said_;
};

/// One T that parent and children share.
template <class T>
class shared {
 public:
  shared() : at_(new(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) T{}) {}
  shared(const shared&) = delete;
  shared& operator=(const shared&) = delete;
  ~shared() { ::munmap(at_, sizeof(T)); }
  T* operator->() const { return at_; }
  T& operator*() const { return *at_; }

 private:
  T* at_;
};

template <class Done>
bool eventually(Done done) {
  const auto until = stopwatch::now() + only_a_hang;
  while (!done()) {
    if (stopwatch::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// A group whose ranks are all in this process.
inline std::vector<process_group> together(int size, const std::function<join_options(int)>& options = nullptr) {
  auto places = rendezvous::connected(size);
  std::vector<std::optional<weft::result<process_group>>> made(places.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      made[i].emplace(std::move(places[i]).join(options ? options(r) : within(soon)));
    });
  }
  for (std::thread& t : threads) t.join();
  std::vector<process_group> all;
  for (auto& m : made) all.push_back(weft::value_or_raise(std::move(*m)));
  return all;
}

inline descriptor memory_with(const samples::data& content) {
  descriptor made{static_cast<int>(::syscall(SYS_memfd_create, "test", MFD_CLOEXEC))};
  if (::write(made.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size())) made.reset();
  return made;
}
inline samples::data content_of(const descriptor& memory, std::size_t count) {
  samples::data read(count, 0xa5);
  const ssize_t got = ::pread(memory.get(), read.data(), count, 0);
  read.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return read;
}

/// What every rank does in a healthy group: sees the others, sends each of them a message with memory, meets.
inline std::string converse(process_group& group, const std::vector<pid_t>& pids = {}) {
  const int self = group.self().value();
  for (int r = 0; r < group.size(); ++r) {
    const auto& p = group.peer(rank{r});
    if (p.rank != rank{r} || p.uid != ::geteuid() || p.start_time == 0) return "does not know " + to_string(p.rank);
    if (!pids.empty() && p.pid != pids[static_cast<std::size_t>(r)]) return "wrong pid of " + to_string(p.rank);
    if (text_of(p.announcement) != "devices of " + std::to_string(r)) return "announcement of " + to_string(p.rank);
    if (!group.alive(rank{r})) return to_string(p.rank) + " should be alive";
  }
  for (int r = 0; r < group.size(); ++r) {
    if (r == self) continue;
    const auto seed = static_cast<std::uint64_t>(100 * self + r);
    const auto memory = memory_with(pattern(5000, seed));
    const std::array<int, 1> with{memory.get()};
    if (auto sent = group.send(rank{r}, 7, view(pattern(33, seed)), with, soon); !sent) return failure_of(sent);
  }
  for (int r = 0; r < group.size(); ++r) {
    if (r == self) continue;
    const auto seed = static_cast<std::uint64_t>(100 * r + self);
    auto got = group.receive(rank{r}, 7, soon);
    if (!got) return failure_of(got);
    if (data_of(got->payload) != pattern(33, seed)) return "payload from " + to_string(rank{r});
    if (got->descriptors.size() != 1 || (::fcntl(got->descriptors[0].get(), F_GETFD) & FD_CLOEXEC) == 0) {
      return "descriptor from " + to_string(rank{r});
    }
    if (content_of(got->descriptors[0], 6000) != pattern(5000, seed)) return "memory from " + to_string(rank{r});
  }
  for (int i = 0; i < 20; ++i) {
    if (auto met = group.barrier(soon); !met) return failure_of(met);
  }
  const auto all = group.all_gather(view(pattern(static_cast<std::size_t>(self) * 1000, 3)), soon);
  if (!all) return failure_of(all);
  for (int r = 0; r < group.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (data_of((*all)[i]) != pattern(i * 1000, 3)) return "gathered from " + to_string(rank{r});
  }
  return "";
}

inline std::string join_and_converse(rendezvous place, int self, const std::vector<pid_t>& pids = {}) {
  const std::string devices = "devices of " + std::to_string(self);
  join_options options = within(soon);
  options.announcement = view(devices);
  auto group = std::move(place).join(options);
  return group ? converse(*group, pids) : failure_of(group);
}

/// A connection to whoever gathers at a name, for speaking without the library.
inline descriptor raw_connection(const std::string& name, uid_t uid) {
  const auto [address, length] = wire::rendezvous_address(name, uid);
  descriptor made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  eventually(
      [&, &a = address, n = length] { return ::connect(made.get(), reinterpret_cast<const sockaddr*>(&a), n) == 0; });
  return made;
}

/// Reads one packet without the library's checks; empty at the end of the connection.
inline std::vector<std::byte> raw_read(const descriptor& from) {
  std::vector<std::byte> room(wire::max_packet_bytes);
  pollfd p{from.get(), POLLIN, 0};
  ::poll(&p, 1, milliseconds_of(only_a_hang));
  const ssize_t got = ::recv(from.get(), room.data(), room.size(), 0);
  room.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return room;
}

// A program started by exec is this test again, with a ticket in its environment.
const bool is_started_with_a_ticket = [] {
  const char* ticket = std::getenv("WEFT_TEST_TICKET");
  if (ticket == nullptr) return false;
  std::string said;
  try {
    const std::string text = ticket;
    said = join_and_converse(rendezvous::inherited(text), text[5] - '0');
  } catch (const std::exception& e) {
    said = e.what();
  }
  static_cast<void>(!::write(STDERR_FILENO, said.data(), said.size()));
  ::_exit(said.empty() ? 0 : 1);
}();

/// Kills for each test; a nightly run does more.
inline int kills() { return samples::by_night() ? 400 : 50; }

}  // namespace groups
