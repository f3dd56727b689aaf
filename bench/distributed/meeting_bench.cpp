// SPDX-License-Identifier: Apache-2.0
// meeting/…: n ranks find each other and gather 200 bytes each, beside n bare TCP connections over which 200 bytes go
// in and n times 200 come out. Ranks are threads of one process, on the loopback interface. The bar: linear in n but
// for the table that all get, as the bare connections are.

#include "distributed/meeting/meeting.hpp"

#include "paired.hpp"

#include <arpa/inet.h>
#include <barrier>
#include <cstdlib>
#include <iostream>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr std::size_t said_by_each = 200;
std::atomic<std::uint16_t> next_port{21000};

template <class F>
double in_threads(int count, const F& rank_does) {
  std::barrier<> start{count + 1};
  std::vector<std::jthread> ranks;
  ranks.reserve(static_cast<std::size_t>(count));
  for (int r = 0; r < count; ++r) {
    ranks.emplace_back([&, r] {
      start.arrive_and_wait();
      rank_does(r);
    });
  }
  start.arrive_and_wait();
  const double begin = weft::bench::now();
  for (auto& t : ranks) t.join();
  return weft::bench::now() - begin;
}

[[noreturn]] void fail(const std::string& what) {
  std::cerr << what << '\n';
  std::exit(1);
}

double meet(int size) {
  const std::uint16_t port = next_port++;
  return in_threads(size, [&](int r) {
    weft::detail::meeting_place at;
    at.self = weft::rank{r};
    at.size = size;
    at.host = "127.0.0.1";
    at.port = port;
    at.token = "of this benchmark";
    at.version = "0";
    weft::detail::meeting m{at};
    const std::vector<std::byte> mine(said_by_each, static_cast<std::byte>(r));
    if (auto open = m.open(); !open) fail(to_string(open.error()));
    auto all = m.all_gather(mine);
    if (!all) fail(to_string(all.error()));
    for (std::size_t n = 0; n < all->size(); ++n) {
      const auto& one = (*all)[n];
      if (one.size() != said_by_each || one.front() != static_cast<std::byte>(n) || one.back() != one.front())
        fail("wrong data");
    }
  });
}

void whole(ssize_t (*move)(int, char*, std::size_t), int socket, std::vector<char>& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t moved = move(socket, bytes.data() + done, bytes.size() - done);
    if (moved <= 0) fail("a bare connection failed");
    done += static_cast<std::size_t>(moved);
  }
}
ssize_t receive(int s, char* to, std::size_t size) { return ::recv(s, to, size, 0); }
ssize_t send(int s, char* from, std::size_t size) { return ::send(s, from, size, MSG_NOSIGNAL); }

double bare(int size) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(next_port++);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const weft::descriptor listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(listener.get(), 4096) != 0)
    fail("cannot listen");
  return in_threads(size, [&](int r) {
    std::vector<char> mine(said_by_each, static_cast<char>(r));
    std::vector<char> all(said_by_each * static_cast<std::size_t>(size));
    if (r == 0) {
      std::vector<weft::descriptor> others;
      for (int n = 1; n < size; ++n) others.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      for (auto& o : others) whole(receive, o.get(), mine);
      for (auto& o : others) whole(send, o.get(), all);
    } else {
      const weft::descriptor link{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
      if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) fail("cannot connect");
      whole(send, link.get(), mine);
      whole(receive, link.get(), all);
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  options how = parse(argc, argv);
  how.samples = std::min(how.samples, 9);
  print_machine(how, "ranks are threads; no network");
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  for (const int size : {4, 16, 64, 256, 1024}) {
    compare("meeting/" + std::to_string(size) + " ranks",
            {{"weft", [&] { return meet(size); }}, {"bare connections", [&] { return bare(size); }}}, how);
  }
}
