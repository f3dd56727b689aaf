// SPDX-License-Identifier: Apache-2.0
// What the tests of worlds share: places that no other test has, ranks that are threads, and nodes that are network
// namespaces of the test's own.
#pragma once

#include "distributed/engine/engine.hpp"
#include "processes/groups.hpp"
#include "weft/distributed/world.hpp"

#include <barrier>
#include <fstream>
#include <functional>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

namespace meetings {

using namespace std::chrono_literals;
using groups::child;
using groups::code_of;
using groups::failure_of;
using groups::says;
using samples::error_of;
using samples::only_a_hang;
using weft::descriptor;
using weft::errc;
using weft::rank;
using weft::result;
using weft::world;
using weft::world_options;
using weft::world_place;

/// Where no other test meets: every process has addresses of its own on the loopback interface.
inline std::string host_of_this_test() {
  static const int pid = ::getpid();
  return "127." + std::to_string(64 + (pid >> 16) % 64) + "." + std::to_string((pid >> 8) % 256) + "." +
         std::to_string(pid % 256);
}
inline std::uint16_t fresh_port() {
  static std::atomic<int> next{20001};
  return static_cast<std::uint16_t>(next++);
}

inline std::span<const std::byte> view(std::string_view text) { return std::as_bytes(std::span{text}); }

inline world_place place(int self, int size, std::uint16_t port) {
  return {rank{self}, size, std::nullopt, host_of_this_test(), port};
}
inline world_options within(std::chrono::nanoseconds limit, std::string token = "of this test") {
  world_options made;
  made.timeout = limit;
  made.token = std::move(token);
  made.engine = weft::world_engine::none;
  return made;
}

/// What every rank's join ended with, by rank: ranks are threads.
template <class F>
std::vector<result<world>> join_all(const std::vector<int>& ranks, const F& join) {
  std::vector<std::optional<result<world>>> ended(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < ranks.size(); ++n) threads.emplace_back([&, n] { ended[n].emplace(join(ranks[n])); });
  for (std::thread& t : threads) t.join();
  std::vector<result<world>> made;
  for (auto& one : ended) made.push_back(std::move(*one));
  return made;
}

inline void write_file(const char* path, const std::string& text) {
  std::ofstream file{path};
  file << text << std::flush;
  if (!file) throw std::runtime_error{std::string{"cannot write "} + path};
}
/// From now on this process is in a network of its own, as root of a user namespace where it is none already.
/// Empty, or why it may not.
inline std::string leave_the_network() {
  const auto user = ::geteuid();
  const auto group = ::getegid();
  if (user == 0 && ::unshare(CLONE_NEWNET | CLONE_NEWNS) == 0) return {};
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) != 0) {
    if (errno == EINVAL) return "this process has threads that are not the test's (ThreadSanitizer's)";
    return std::string{"unshare: "} + std::strerror(errno);
  }
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
  write_file("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
  return {};
}

/// /sys shows the interfaces of the network in which it was mounted, and UCX looks there.
inline void see_the_network() {
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0)
    throw std::runtime_error{std::string{"cannot mount sysfs: "} + std::strerror(errno)};
}

/// Returns once the kernel says that the cable carries.
inline void wait_for_carrier(const char* interface) {
  const descriptor any{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  ifreq asked{};
  std::strncpy(asked.ifr_name, interface, IFNAMSIZ - 1);
  while (::ioctl(any.get(), SIOCGIFFLAGS, &asked) != 0 || (asked.ifr_flags & IFF_RUNNING) == 0) ::sched_yield();
}

/// Empty, or why this process may not make network namespaces.
inline std::string no_namespaces() {
  if (::access("/usr/sbin/ip", X_OK) != 0 && ::access("/sbin/ip", X_OK) != 0) return "no ip (package iproute2)";
  return child{[] {
           std::string reason = leave_the_network();
           if (reason.empty()) see_the_network();
           return reason;
         }}
      .said();
}

inline void run(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error{command};
}

/// UCX over TCP.
inline world_options with_ucx() {
  ::setenv("UCX_TLS", "tcp,self", 1);  // between namespaces of one computer it would take shared memory
  world_options made = within(only_a_hang);
  made.engine = weft::world_engine::ucx;
  return made;
}

/// Empty, or why there is no UCX here.
inline std::string no_ucx() {
  return child{[] {
           static_cast<void>(with_ucx());
           auto opened = weft::detail::open_ucx(0, 1);
           return opened ? std::string{} : opened.error().what;
         }}
      .said();
}

#define NEEDS(what)                                                     \
  if (const std::string reason = what(); !reason.empty()) {             \
    EXPECT_FALSE(says(reason, "signal")) << "what is there has to run"; \
    GTEST_SKIP() << reason;                                             \
  }                                                                     \
  static_assert(true)

/// Two nodes, 10.77.0.1 and 10.77.0.2, joined by a cable of two ends ("weft0" on the first, "weft1" on the second).
/// Calls from a process of its own, `first` on the first node after `second` runs on the second; gives what they said.
inline std::string on_two_nodes(const std::function<std::string()>& first, const std::function<std::string()>& second) {
  child outside{[&] {
    if (const std::string reason = leave_the_network(); !reason.empty()) throw std::runtime_error{reason};
    see_the_network();
    int ready[2];
    int joined[2];
    if (::pipe2(ready, O_CLOEXEC) != 0 || ::pipe2(joined, O_CLOEXEC) != 0) throw std::runtime_error{"pipe"};
    char one = 0;
    child other{[&] {
      if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) throw std::runtime_error{"unshare"};
      see_the_network();
      static_cast<void>(!::write(ready[1], &one, 1));
      static_cast<void>(!::read(joined[0], &one, 1));
      run("PATH=$PATH:/usr/sbin:/sbin; ip link set lo up; ip addr add 10.77.0.2/24 dev weft1; ip link set weft1 up");
      wait_for_carrier("weft1");
      static_cast<void>(!::write(ready[1], &one, 1));
      return second();
    }};
    static_cast<void>(!::read(ready[0], &one, 1));
    run("PATH=$PATH:/usr/sbin:/sbin; ip link set lo up; ip link add weft0 type veth peer name weft1 netns " +
        std::to_string(other.pid()) + " && ip addr add 10.77.0.1/24 dev weft0 && ip link set weft0 up");
    static_cast<void>(!::write(joined[1], &one, 1));
    static_cast<void>(!::read(ready[0], &one, 1));
    wait_for_carrier("weft0");
    const std::string said = first();
    return said + other.said();
  }};
  return outside.said();
}

// ---- two ranks on two nodes by name ---------------------------------------------------------------------------------

inline constexpr rank zero{0}, one{1};

using work = std::function<std::string(world&)>;

inline std::string as_rank_on(int r, const std::string& node, const std::string& host, std::uint16_t port,
                              const work& does) {
  world_options options = with_ucx();
  options.node = node;
  auto w = world::join(world_place{rank{r}, 2, {}, host, port}, options);
  return w ? does(*w) : failure_of(w);
}

/// Two ranks as processes of this computer, each on a node of its own.
struct pair_of_nodes {
  pair_of_nodes(const work& first, const work& second)
      : port(fresh_port()),
        host(host_of_this_test()),
        a{[&] { return as_rank_on(0, "a", host, port, first); }},
        b{[&] { return as_rank_on(1, "b", host, port, second); }} {}
  std::string said() { return a.said() + b.said(); }
  std::uint16_t port;
  std::string host;
  child a, b;
};
inline std::string on_a_pair(const work& first, const work& second) { return pair_of_nodes{first, second}.said(); }

/// A line between the two processes of a test that is none of weft's.
struct whistle {
  whistle() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error{"pipe"};
  }
  void blow() const { static_cast<void>(!::write(ends[1], "", 1)); }
  void hear() const {
    char any = 0;
    static_cast<void>(!::read(ends[0], &any, 1));
  }
  int ends[2]{};
};

}  // namespace meetings
