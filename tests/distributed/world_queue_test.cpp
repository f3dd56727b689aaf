// SPDX-License-Identifier: Apache-2.0
// Queues between nodes by UCX over TCP. Ranks are processes: on nodes by name, or in two network namespaces.
#include "weft/distributed/world_queue.hpp"

#include "distributed/meetings.hpp"

#include <gtest/gtest.h>

#include <array>
#include <csignal>

namespace {

using namespace meetings;
using weft::backpressure;
using weft::connect_options;
using weft::connect_receiver;
using weft::connect_sender;
using weft::queue_options;
using weft::queue_status;
using weft::transfer_mode;

constexpr rank zero{0}, one{1};

template <std::size_t Size>
struct numbered {
  std::array<std::uint8_t, Size> bytes;
  static numbered of(std::uint64_t n) {
    numbered made;
    for (std::size_t i = 0; i < Size; ++i) made.bytes[i] = static_cast<std::uint8_t>((n * 167 + i * 31) >> (i % 3));
    return made;
  }
  friend bool operator==(const numbered&, const numbered&) = default;
};

queue_options of(std::size_t capacity) {
  queue_options made;
  made.capacity = capacity;
  made.timeout = only_a_hang;
  return made;
}
std::string named(queue_status status) { return std::string{weft::to_string(status)}; }

using work = std::function<std::string(world&)>;

std::string as_rank_on(int r, const std::string& node, const std::string& host, std::uint16_t port, const work& does) {
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
std::string on_a_pair(const work& first, const work& second) { return pair_of_nodes{first, second}.said(); }

template <class T>
std::string send_all(world& w, const queue_options& options, std::uint64_t count, std::size_t batch) {
  auto tx = connect_sender<T>(w, one, 7, options);
  if (tx.mode() != transfer_mode::network) return "the mode is " + std::string{weft::to_string(tx.mode())};
  std::vector<T> messages;
  for (std::uint64_t n = 0; n < count; ++n) {
    messages.push_back(T::of(n));
    if (messages.size() < batch && n + 1 < count) continue;
    const auto sent = tx.send_batch(messages);
    if (sent.status != queue_status::ok) return "sending before " + std::to_string(n) + ": " + named(sent.status);
    messages.clear();
  }
  return "";
}
template <class T>
std::string receive_all(world& w, const queue_options& options, std::uint64_t count) {
  auto rx = connect_receiver<T>(w, zero, 7, options);
  T got{};
  for (std::uint64_t n = 0; n < count; ++n) {
    const auto status = n % 3 == 0 ? rx.receive(got) : rx.receive_batch(std::span{&got, 1}).status;
    if (status != queue_status::ok) return "message " + std::to_string(n) + ": " + named(status);
    if (!(got == T::of(n))) return "message " + std::to_string(n) + " is another";
  }
  if (const auto end = rx.receive(got); end != queue_status::closed) return "at the end: " + named(end);
  const auto s = rx.statistics();
  return s.received == count && s.corrupted == 0 ? "" : "received " + std::to_string(s.received);
}
template <class T>
std::string crosses(std::uint64_t count) {
  std::string wrong;
  for (const bool validate : {false, true}) {
    queue_options options = of(64);
    options.validate = validate;
    for (const std::size_t batch : {1U, 100U}) {
      wrong += on_a_pair([&](world& w) { return send_all<T>(w, options, count, batch); },
                         [&](world& w) { return receive_all<T>(w, options, count); });
    }
  }
  return wrong.empty() ? wrong : std::to_string(sizeof(T)) + " bytes: " + wrong;
}

TEST(world_queue, carries_messages_of_any_size_in_their_order_between_two_nodes) {
  NEEDS(no_ucx);
  EXPECT_EQ(crosses<numbered<1>>(3000), "");
  EXPECT_EQ(crosses<numbered<8>>(3000), "");
  EXPECT_EQ(crosses<numbered<24>>(3000), "");
  EXPECT_EQ(crosses<numbered<257>>(1000), "");
  EXPECT_EQ(crosses<numbered<4096>>(1000), "");
  EXPECT_EQ(crosses<numbered<65536>>(300), "");
}

std::string converse_by_queues(world& w) {
  const rank other{1 - w.self().value()};
  auto [tx, rx] = weft::connect_both<numbered<64>>(w, other, 3, of(16));
  numbered<64> got{};
  for (std::uint64_t n = 0; n < 300; ++n) {
    if (w.self() == zero && tx.send(numbered<64>::of(n)) != queue_status::ok) return "send";
    if (const auto came = rx.receive(got); came != queue_status::ok || !(got == numbered<64>::of(n)))
      return std::to_string(n) + ": " + named(came);
    if (w.self() == one && tx.send(got) != queue_status::ok) return "answer";
  }
  return "";
}

TEST(world_queue, carries_answers_over_a_cable_between_two_network_namespaces) {
  NEEDS(no_namespaces);
  NEEDS(no_ucx);
  const auto of_rank = [](int r) { return [r] { return as_rank_on(r, "", "10.77.0.1", 20'000, converse_by_queues); }; };
  EXPECT_EQ(on_two_nodes(of_rank(0), of_rank(1)), "");
}

TEST(world_queue, within_a_node_lies_in_memory_that_both_map) {
  NEEDS(no_ucx);
  const auto port = fresh_port();
  const auto of_rank = [port, host = host_of_this_test()](int r) {
    return [r, port, host] {
      return as_rank_on(r, "", host, port, [](world& w) -> std::string {
        auto [tx, rx] = weft::connect_both<int>(w, rank{1 - w.self().value()}, 3, of(16));
        int got = 0;
        return tx.send(5) == queue_status::ok && rx.receive(got) == queue_status::ok && got == 5 &&
                       tx.mode() == transfer_mode::direct
                   ? ""
                   : "wrong";
      });
    };
  };
  child a{of_rank(0)};
  child b{of_rank(1)};
  EXPECT_EQ(a.said() + b.said(), "");
}

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

TEST(world_queue, delivers_what_was_sent_while_the_sender_makes_no_call) {
  NEEDS(no_ucx);
  using large = numbered<65536>;
  whistle received;
  EXPECT_EQ(on_a_pair(
                [&](world& w) -> std::string {
                  auto tx = connect_sender<large>(w, one, 7, of(256));
                  for (std::uint64_t n = 0; n < 256; ++n)
                    if (tx.try_send(large::of(n)) != queue_status::ok) return "no room for " + std::to_string(n);
                  received.hear();
                  return "";
                },
                [&](world& w) -> std::string {
                  auto rx = connect_receiver<large>(w, zero, 7, of(256));
                  large got{};
                  for (std::uint64_t n = 0; n < 256; ++n)
                    if (rx.receive(got) != queue_status::ok || !(got == large::of(n))) return std::to_string(n);
                  received.blow();
                  return "";
                }),
            "");
}

TEST(world_queue, keeps_no_more_than_its_capacity_and_gives_single_places_back) {
  NEEDS(no_ucx);
  whistle full, taken;
  EXPECT_EQ(on_a_pair(
                [&](world& w) -> std::string {
                  auto tx = connect_sender<int>(w, one, 7, of(16));
                  int sent = 0;
                  while (tx.try_send(sent) == queue_status::ok) ++sent;
                  if (sent != 16) return std::to_string(sent) + " messages in a queue for 16";
                  if (tx.send_for(0, 1ms) != queue_status::timed_out) return "a full queue took one more";
                  full.blow();
                  taken.hear();  // one message was received, and that end makes no call any more
                  return tx.send(16) == queue_status::ok ? "" : "the place did not come back";
                },
                [&](world& w) -> std::string {
                  auto rx = connect_receiver<int>(w, zero, 7, of(16));
                  full.hear();
                  int got = -1;
                  if (rx.receive(got) != queue_status::ok || got != 0) return "first";
                  taken.blow();
                  for (int n = 1; n <= 16; ++n)
                    if (rx.receive(got) != queue_status::ok || got != n) return std::to_string(n);
                  return "";
                }),
            "");
}

TEST(world_queue, counts_exactly_what_was_overwritten) {
  NEEDS(no_ucx);
  queue_options options = of(16);
  options.when_full = backpressure::overwrite_oldest;
  using message = numbered<120>;
  EXPECT_EQ(on_a_pair(
                [&](world& w) -> std::string {
                  auto tx = connect_sender<message>(w, one, 7, options);
                  for (std::uint64_t n = 0; n < 20'000; ++n)
                    if (tx.try_send(message::of(n)) != queue_status::ok) return "refused " + std::to_string(n);
                  return "";
                },
                [&](world& w) -> std::string {
                  auto rx = connect_receiver<message>(w, zero, 7, options);
                  message got{};
                  std::uint64_t n = 0;
                  std::uint64_t received = 0;
                  while (rx.receive(got) == queue_status::ok) {
                    while (n < 20'000 && !(got == message::of(n))) ++n;
                    if (n == 20'000) return "a message that was not sent, or not in order";
                    ++n;
                    ++received;
                  }
                  if (n != 20'000) return "the last one is missing";
                  const auto s = rx.statistics();
                  return s.received == received && s.received + s.lost == 20'000
                             ? ""
                             : std::to_string(s.received) + " received, " + std::to_string(s.lost) + " lost";
                }),
            "");
}

TEST(world_queue, tells_a_sender_that_the_receiver_has_closed) {
  NEEDS(no_ucx);
  whistle over;
  EXPECT_EQ(on_a_pair(
                [&](world& w) -> std::string {
                  auto tx = connect_sender<int>(w, one, 7, of(16));
                  queue_status came = queue_status::ok;
                  while (came == queue_status::ok) came = tx.send(1);
                  over.blow();
                  return came == queue_status::closed ? "" : named(came);
                },
                [&](world& w) -> std::string {
                  {
                    auto rx = connect_receiver<int>(w, zero, 7, of(16));
                  }
                  over.hear();
                  return "";
                }),
            "");
}

TEST(world_queue, names_a_rank_that_was_killed_to_whoever_sends_or_receives) {
  NEEDS(no_ucx);
  const auto failed = [](auto& end, queue_status came) -> std::string {
    if (came != queue_status::failed) return named(came);
    const auto why = end.failure();
    if (!why || why->code != errc::peer_dead) return "no peer_dead";
    return says(why->what, "rank 1 (node 1") ? "" : why->what;
  };
  whistle connected;
  const auto stay = [&](const auto& connect) {
    return [&connect, &connected](world& w) -> std::string {
      const auto end = connect(w);
      connected.blow();
      for (;;) ::pause();
    };
  };
  const auto sending = [](world& w) {
    auto tx = connect_sender<int>(w, zero, 7, of(16));
    for (int n = 0; n < 5; ++n) static_cast<void>(tx.send(n));
    return tx;
  };
  const auto receiving = [](world& w) { return connect_receiver<int>(w, zero, 7, of(16)); };
  {
    pair_of_nodes pair{[&](world& w) -> std::string {
                         auto rx = connect_receiver<int>(w, one, 7, of(16));
                         int got = 0;
                         for (int n = 0; n < 5; ++n)
                           if (rx.receive(got) != queue_status::ok || got != n) return "lost " + std::to_string(n);
                         return failed(rx, rx.receive(got));
                       },
                       stay(sending)};
    connected.hear();
    pair.b.kill(SIGKILL);
    EXPECT_EQ(pair.a.said(), "");
  }
  {
    pair_of_nodes pair{[&](world& w) -> std::string {
                         auto tx = connect_sender<int>(w, one, 7, of(16));
                         queue_status came = queue_status::ok;
                         while (came == queue_status::ok) came = tx.send(1);
                         return failed(tx, came);
                       },
                       stay(receiving)};
    connected.hear();
    pair.b.kill(SIGKILL);
    EXPECT_EQ(pair.a.said(), "");
  }
}

TEST(world_queue, refuses_another_type_and_too_much_memory_on_both_sides) {
  NEEDS(no_ucx);
  connect_options little;
  little.largest = weft::bytes{4096};
  EXPECT_EQ(on_a_pair(
                [&](world& w) -> std::string {
                  auto e = error_of([&] { static_cast<void>(connect_sender<numbered<12>>(w, one, 1)); });
                  if (e.code != errc::incompatible || !says(e.what, "16 bytes") || !says(e.what, "12 bytes"))
                    return e.what;
                  e = error_of([&] { static_cast<void>(connect_sender<int>(w, one, 2, {}, little)); });
                  return e.code == errc::resource_exhausted ? "" : e.what;
                },
                [&](world& w) -> std::string {
                  auto e = error_of([&] { static_cast<void>(connect_receiver<numbered<16>>(w, zero, 1)); });
                  if (e.code != errc::incompatible || !says(e.what, "rank 0 (node 0") || !says(e.what, "12 bytes"))
                    return e.what;
                  e = error_of([&] { static_cast<void>(connect_receiver<int>(w, zero, 2)); });
                  return e.code == errc::incompatible && says(e.what, "accepts 4") ? "" : e.what;
                }),
            "");
}

TEST(world_queue, gives_up_at_its_deadline_and_when_it_is_stopped) {
  NEEDS(no_ucx);
  whistle tried, over;
  EXPECT_EQ(on_a_pair(
                [&](world& w) -> std::string {
                  connect_options soon;
                  soon.limit = 1ms;
                  auto e = error_of([&] { static_cast<void>(connect_receiver<int>(w, one, 1, {}, soon)); });
                  if (e.code != errc::timed_out || !says(e.what, "rank 1 (node 1")) return e.what;
                  e = error_of([&] { static_cast<void>(connect_sender<int>(w, one, 1, {}, soon)); });
                  if (e.code != errc::timed_out || !says(e.what, "rank 1 (node 1")) return e.what;
                  e = error_of([&] { static_cast<void>(connect_sender<int>(w, zero, 1)); });
                  if (e.code != errc::invalid_argument) return e.what;
                  tried.blow();
                  auto rx = connect_receiver<int>(w, one, 2, of(16));
                  int got = 0;
                  if (const auto late = rx.receive_for(got, 1ms); late != queue_status::timed_out) return named(late);
                  std::stop_source stop;
                  std::thread other{[&] { stop.request_stop(); }};
                  const auto came = rx.receive(got, stop.get_token());
                  other.join();
                  over.blow();
                  return came == queue_status::cancelled ? "" : named(came);
                },
                [&](world& w) -> std::string {
                  tried.hear();
                  // what was given up was offered all the same: its sender is told that nobody receives
                  auto stale = connect_sender<int>(w, zero, 1, of(16));
                  queue_status told = queue_status::ok;
                  while (told == queue_status::ok) told = stale.send(1);
                  if (told != queue_status::closed) return "of an offer that was given up: " + named(told);
                  auto tx = connect_sender<int>(w, zero, 2, of(16));
                  over.hear();
                  return "";
                }),
            "");
}

}  // namespace
