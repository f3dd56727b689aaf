// SPDX-License-Identifier: Apache-2.0
// messages/…: a round trip and a stream of messages between two processes on the loopback interface: a world with UCX
// over TCP, queues of that world (as between nodes; more than 64 KiB as a batch), UCX called bare (tag send and
// receive, spinning), and a bare TCP socket (spinning). Bars: 8 B at most 1.25 times bare UCX; 1 MiB at least 0.9 of
// the bare socket.

#include "distributed/engine/ucp_declarations.hpp"
#include "paired.hpp"
#include "weft/core/raise.hpp"
#include "weft/distributed/far_memory.hpp"
#include "weft/distributed/world.hpp"
#include "weft/distributed/world_queue.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <iostream>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using namespace std::chrono_literals;
namespace ucp = weft::detail::ucp;
using block = std::vector<std::byte>;

[[noreturn]] void fail(const std::string& what) {
  std::cerr << what << '\n';
  std::_Exit(1);
}

/// One way for bytes between the two processes.
struct way {
  virtual ~way() = default;
  virtual void send(std::span<const std::byte> bytes) = 0;
  virtual void receive(std::span<std::byte> into) = 0;
};

void whole(ssize_t (*move)(int, void*, std::size_t, int), int socket, std::byte* at, std::size_t size) {
  while (size > 0) {
    const ssize_t moved = move(socket, at, size, MSG_DONTWAIT);
    if (moved == 0 || (moved < 0 && errno != EAGAIN)) fail("the socket failed");
    if (moved > 0) at += moved, size -= static_cast<std::size_t>(moved);
  }
}
ssize_t send_some(int s, void* from, std::size_t size, int flags) {
  return ::send(s, from, size, flags | MSG_NOSIGNAL);
}

struct bare_socket final : way {
  explicit bare_socket(weft::descriptor s) : socket(std::move(s)) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  void send(std::span<const std::byte> bytes) override {
    whole(send_some, socket.get(), const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  void receive(std::span<std::byte> into) override { whole(::recv, socket.get(), into.data(), into.size()); }
  weft::descriptor socket;
};

template <class F>
void load(F& call, const char* name) {
  static void* library = ::dlopen("libucp.so.0", RTLD_NOW);
  call = library != nullptr ? reinterpret_cast<F>(::dlsym(library, name)) : nullptr;
  if (call == nullptr) fail(std::string{"no UCX here: "} + name);
}

struct bare_ucx final : way {
  explicit bare_ucx(bare_socket& control) {
    load(calls.init_version, "ucp_init_version");
    load(calls.worker_create, "ucp_worker_create");
    load(calls.worker_get_address, "ucp_worker_get_address");
    load(calls.worker_progress, "ucp_worker_progress");
    load(calls.ep_create, "ucp_ep_create");
    load(calls.tag_send_nbx, "ucp_tag_send_nbx");
    load(calls.tag_recv_nbx, "ucp_tag_recv_nbx");
    load(calls.request_check_status, "ucp_request_check_status");
    load(calls.request_free, "ucp_request_free");
    ucp::params wanted;
    wanted.field_mask = ucp::params::has_features;
    wanted.features = ucp::params::tags;
    ucp::context* context = nullptr;
    if (calls.init_version(1, 13, &wanted, nullptr, &context) != ucp::ok) fail("ucp_init");
    const ucp::worker_params plain;
    if (calls.worker_create(context, &plain, &worker) != ucp::ok) fail("ucp_worker_create");
    ucp::address* mine = nullptr;
    std::size_t size = 0;
    if (calls.worker_get_address(worker, &mine, &size) != ucp::ok) fail("ucp_worker_get_address");
    std::array<std::byte, 4096> theirs{};
    std::array<std::byte, 4096> sent{};
    std::memcpy(sent.data(), mine, size);
    control.send(sent);
    control.receive(theirs);
    ucp::endpoint_params to;
    to.field_mask = ucp::endpoint_params::has_address;
    to.to = reinterpret_cast<const ucp::address*>(theirs.data());
    if (calls.ep_create(worker, &to, &ep) != ucp::ok) fail("ucp_ep_create");
  }
  void finish(ucp::started s) {
    if (s == nullptr) return;
    if (ucp::is_error(s)) fail("UCX refused a message");
    while (calls.request_check_status(s) > ucp::ok) calls.worker_progress(worker);
    calls.request_free(s);
  }
  void send(std::span<const std::byte> bytes) override {
    const ucp::request_params plain{};
    finish(calls.tag_send_nbx(ep, bytes.data(), bytes.size(), 7, &plain));
  }
  void receive(std::span<std::byte> into) override {
    const ucp::request_params plain{};
    finish(calls.tag_recv_nbx(worker, into.data(), into.size(), 7, ~std::uint64_t{}, &plain));
  }
  ucp::calls calls;
  ucp::worker* worker = nullptr;
  ucp::endpoint* ep = nullptr;
};

struct of_a_world final : way {
  of_a_world(int self, std::uint16_t port)
      : world(weft::value_or_raise(weft::world::join({weft::rank{self}, 2, {}, "127.0.0.1", port}, options(self)))),
        other(1 - self) {}
  static weft::world_options options(int self) {
    weft::world_options made;
    made.node = std::to_string(self);
    made.engine = weft::world_engine::ucx;
    made.token = "of this benchmark";
    return made;
  }
  void send(std::span<const std::byte> bytes) override { weft::value_or_raise(world.send(other, 7, bytes, 60s)); }
  void receive(std::span<std::byte> into) override {
    static_cast<void>(weft::value_or_raise(world.receive(other, 7, into, 60s)));
  }
  weft::world world;
  weft::rank other;
};

/// Queues there and back for messages of one size.
template <std::size_t Size>
struct queue_of {
  struct message {
    std::array<std::byte, Size> bytes;
  };
  explicit queue_of(of_a_world& w) {
    weft::queue_options options;
    options.capacity = std::max<std::size_t>(64, (std::size_t{256} << 10) / Size);
    options.timeout = 60s;
    auto [out, in] = weft::connect_both<message>(w.world, w.other, Size, options);
    tx = std::move(out), rx = std::move(in);
  }
  void send(std::span<const std::byte> bytes) {
    const std::span messages{reinterpret_cast<const message*>(bytes.data()), bytes.size() / Size};
    if (messages.size() == 1 ? tx.send(messages[0]) != weft::queue_status::ok
                             : tx.send_batch(messages).status != weft::queue_status::ok)
      fail("a queue refused a message");
  }
  void receive(std::span<std::byte> into) {
    const std::span messages{reinterpret_cast<message*>(into.data()), into.size() / Size};
    if (messages.size() == 1 ? rx.receive(messages[0]) != weft::queue_status::ok
                             : rx.receive_batch(messages, messages.size()).status != weft::queue_status::ok)
      fail("a queue has no message");
  }
  weft::sender<message> tx;
  weft::receiver<message> rx;
};

struct by_queues final : way {
  explicit by_queues(of_a_world& w) : one(w), word(w), line(w), page(w), most(w) {}
  template <class F>
  void with(std::size_t size, const F& what) {
    switch (size) {
      case 1:
        return what(one);
      case 8:
        return what(word);
      case 256:
        return what(line);
      case 4096:
        return what(page);
      default:
        return what(most);
    }
  }
  void send(std::span<const std::byte> bytes) override {
    with(bytes.size(), [&](auto& queue) { queue.send(bytes); });
  }
  void receive(std::span<std::byte> into) override {
    with(into.size(), [&](auto& queue) { queue.receive(into); });
  }
  queue_of<1> one;
  queue_of<8> word;
  queue_of<256> line;
  queue_of<4096> page;
  queue_of<65536> most;
};

/// Batches of messages of one size.
template <std::size_t Size>
struct by_batches final : way {
  explicit by_batches(of_a_world& w) : of(w), one(w) {}
  void send(std::span<const std::byte> bytes) override { bytes.size() == 1 ? one.send(bytes) : of.send(bytes); }
  void receive(std::span<std::byte> into) override { into.size() == 1 ? one.receive(into) : of.receive(into); }
  queue_of<Size> of;
  queue_of<1> one;
};

/// Rank 0 copies to memory of rank 1, and what it receives from there; the program of rank 1 does nothing.
struct by_copies final : way {
  explicit by_copies(of_a_world& w) : all(w), mine(std::size_t{16} << 20), offered(w.world, mine) {
    const auto own = offered.span();
    w.send(std::as_bytes(std::span{&own, 1}));
    w.receive(std::as_writable_bytes(std::span{&theirs, 1}));
  }
  void send(std::span<const std::byte> bytes) override {
    if (all.other == weft::rank{1}) copy(all.world, theirs.first(bytes.size()), bytes);
  }
  void receive(std::span<std::byte> into) override {
    if (all.other == weft::rank{1}) copy(all.world, into, theirs.first(into.size()));
  }
  of_a_world& all;
  std::vector<std::byte> mine;
  weft::offered_memory<std::byte> offered;
  weft::far_span<std::byte> theirs;
};

/// What the other process is to do next.
struct order {
  int way = -1;  // none: end
  int repeats = 0;
  std::uint64_t size = 0;
  bool is_stream = false;
};

struct both_ways {
  both_ways(int self, std::uint16_t port, bare_socket& control)
      : ucx(control), world(self, port), queues(world), small(world), pages(world), copies(world), socket(control) {}
  way& at(int n) {
    return n == 0   ? static_cast<way&>(world)
           : n == 1 ? static_cast<way&>(ucx)
           : n == 2 ? static_cast<way&>(queues)
           : n == 4 ? static_cast<way&>(copies)
           : n == 5 ? static_cast<way&>(small)
           : n == 6 ? static_cast<way&>(pages)
                    : socket;
  }
  bare_ucx ucx;
  of_a_world world;
  by_queues queues;
  by_batches<64> small;
  by_batches<4096> pages;
  by_copies copies;
  bare_socket& socket;
};

void serve(bare_socket& control, both_ways& ways) {
  for (;;) {
    order next;
    control.receive(std::as_writable_bytes(std::span{&next, 1}));
    if (next.way < 0) return;
    if (next.way == 4) {  // a program that does nothing: it does not spin either
      pollfd until_next{control.socket.get(), POLLIN, 0};
      ::poll(&until_next, 1, -1);
      continue;
    }
    block room(next.size);
    for (int n = 0; n < next.repeats; ++n) {
      ways.at(next.way).receive(room);
      if (!next.is_stream || n + 1 == next.repeats)
        ways.at(next.way).send(std::span{room}.first(next.is_stream ? 1 : next.size));
    }
  }
}

double ask(bare_socket& control, both_ways& ways, const order& o) {
  control.send(std::as_bytes(std::span{&o, 1}));
  block mine(o.size);
  block back(o.size);
  for (std::size_t n = 0; n < mine.size(); ++n) mine[n] = static_cast<std::byte>(n * 7 + 1);
  way& by = ways.at(o.way);
  const double begin = weft::bench::now();
  for (int n = 0; n < o.repeats; ++n) {
    by.send(mine);
    if (!o.is_stream) by.receive(back);
  }
  if (o.is_stream) by.receive(std::span{back}.first(1));
  const double took = weft::bench::now() - begin;
  if (!o.is_stream && back != mine) fail("other bytes came back");
  return took / o.repeats;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  ::setenv("UCX_TLS", "tcp,self", 0);
  print_machine(how, "two processes, TCP over the loopback interface: no network");
  const auto port = static_cast<std::uint16_t>(21000 + ::getpid() % 20000);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port + 1));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const weft::descriptor listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(listener.get(), 1) != 0)
    fail("cannot listen");
  const pid_t other = ::fork();
  if (other == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    bare_socket control{weft::descriptor{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}};
    if (::connect(control.socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) fail("cannot connect");
    both_ways ways{1, port, control};
    serve(control, ways);
    std::_Exit(0);
  }
  bare_socket control{weft::descriptor{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)}};
  both_ways ways{0, port, control};
  const auto contest = [&](const std::string& title, int repeats, std::uint64_t size, bool is_stream) {
    const auto by = [&, repeats, size, is_stream](int n) {
      return [&, n, repeats, size, is_stream] { return ask(control, ways, {n, repeats, size, is_stream}); };
    };
    compare(title,
            {{"weft queue", by(2)}, {"weft copy", by(4)}, {"weft", by(0)}, {"bare ucx", by(1)}, {"bare socket", by(3)}},
            how, is_stream ? static_cast<double>(size) : 0);
  };
  for (const std::uint64_t size : {8UL, 256UL, 4096UL, 65536UL})
    contest("messages/round trip of " + std::to_string(size) + " B", 400, size, false);
  for (const std::uint64_t size : {4096UL, 65536UL, 1048576UL, 16777216UL})
    contest("messages/stream of " + std::to_string(size) + " B", size > 1048576 ? 4 : 40, size, true);
  for (const auto& [size, way] : {std::pair{64, 5}, {4096, 6}}) {
    const auto by = [&](int n) { return [&, n] { return ask(control, ways, {n, 40, 1U << 20U, true}); }; };
    compare("messages/stream of batches, 1 MiB in messages of " + std::to_string(size) + " B",
            {{"weft queue", by(way)}, {"bare ucx, one message", by(1)}, {"bare socket", by(3)}}, how, 1U << 20U);
  }
  const order end{};
  control.send(std::as_bytes(std::span{&end, 1}));
  ::waitpid(other, nullptr, 0);
}
