// SPDX-License-Identifier: Apache-2.0
// Queues between nodes by UCX over TCP. Ranks are processes: on nodes by name, or in two network namespaces.
#include "weft/distributed/world_queue.hpp"

#include "distributed/engine/messenger.hpp"
#include "distributed/meetings.hpp"
#include "distributed/queues/queue_carrier.hpp"
#include "support/processes.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/exec/launch.hpp"
#include "weft/kernel/define.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/runtime/machine.hpp"

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
  whistle taken, full;
  EXPECT_EQ(on_a_pair(
                [&](world& w) -> std::string {
                  auto tx = connect_sender<int>(w, one, 7, of(16));
                  if (tx.send(0) != queue_status::ok) return "first";
                  taken.hear();  // the other end has seen that nothing is left, and makes no call any more
                  for (int n = 1; n <= 16; ++n)
                    if (tx.send(n) != queue_status::ok) return "no place for " + std::to_string(n);
                  if (tx.send_for(17, 1ms) != queue_status::timed_out) return "17 messages in a queue for 16";
                  full.blow();
                  return "";
                },
                [&](world& w) -> std::string {
                  auto rx = connect_receiver<int>(w, zero, 7, of(16));
                  int got = -1;
                  if (rx.receive(got) != queue_status::ok || got != 0) return "first";
                  if (rx.try_receive(got) != queue_status::empty) return "more than one";
                  taken.blow();
                  full.hear();
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
  struct message {
    std::uint64_t number;
    std::array<std::uint64_t, 14> squares;
    static message of(std::uint64_t n) {
      message made{n, {}};
      made.squares.fill(n * n);
      return made;
    }
    bool operator==(const message&) const = default;
  };
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
                    if (got.number < n || !(got == message::of(got.number)))
                      return "a message that was not sent, or not in order";
                    n = got.number + 1;
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
                  soon.timeout = 1ms;
                  auto e = error_of([&] { static_cast<void>(connect_receiver<int>(w, one, 1, {}, soon)); });
                  if (e.code != errc::timed_out || !says(e.what, "rank 1 (node 1")) return e.what;
                  e = error_of([&] { static_cast<void>(connect_sender<int>(w, one, 1, {}, soon)); });
                  if (e.code != errc::timed_out || !says(e.what, "rank 1 (node 1")) return e.what;
                  e = error_of([&] { static_cast<void>(connect_sender<int>(w, zero, 1)); });
                  if (e.code != errc::invalid_argument) return e.what;
                  tried.blow();
                  auto rx = connect_receiver<int>(w, one, 2, of(16));
                  auto again = connect_receiver<int>(w, one, 1, of(16));
                  int got = 0;
                  if (const auto came = again.receive(got); came != queue_status::ok || got != 5) return named(came);
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
                  auto tx = connect_sender<int>(w, zero, 2, of(16));
                  auto again = connect_sender<int>(w, zero, 1, of(16));  // not by the offer that was given up
                  if (const auto sent = again.send(5); sent != queue_status::ok) return named(sent);
                  over.hear();
                  return "";
                }),
            "");
}

TEST(world_queue, a_sender_without_time_to_wait_takes_an_offer_that_is_there) {
  NEEDS(no_ucx);
  EXPECT_EQ(on_a_pair(
                [&](world& w) -> std::string {
                  auto rx = connect_receiver<int>(w, one, 1, of(16));
                  int got = 0;
                  const auto came = rx.receive(got);
                  return came == queue_status::ok && got == 5 ? "" : named(came);
                },
                [&](world& w) -> std::string {
                  connect_options now;
                  now.timeout = 0ns;
                  std::string wrong = "no offer was there";
                  static_cast<void>(processes::comes_true([&] {
                    try {
                      auto tx = connect_sender<int>(w, zero, 1, of(16), now);
                      const auto sent = tx.send(5);
                      wrong = sent == queue_status::ok ? "" : named(sent);
                      return true;
                    } catch (const weft::error_exception& early) {
                      return early.cause().code != errc::timed_out;
                    }
                  }));
                  return wrong;
                }),
            "");
}

constexpr std::uint64_t polls = 200'000'000'000;  // which take minutes: only a hang comes to it

WEFT_KERNEL(send_over_the_network, (WEFT_RING out, uint64_t count, uint64_t most, WEFT_OUT(int32_t) outcome), {
  outcome[i] = 0;
  for (uint64_t n = 0; n < count && outcome[i] == 0; ++n) {
    const uint64_t message = n * 3;
    outcome[i] = weft_ring_send(out, &message, most);
  }
});
WEFT_KERNEL(add_over_the_network,
            (WEFT_RING in, uint64_t count, uint64_t most, WEFT_OUT(uint64_t) sum, WEFT_OUT(int32_t) outcome), {
              uint64_t message = 0;
              outcome[i] = 0;
              sum[i] = 0;
              for (uint64_t n = 0; n < count && outcome[i] == 0; ++n) {
                outcome[i] = weft_ring_receive(in, &message, most);
                if (outcome[i] == 0) {
                  sum[i] += message;
                }
              }
            });

TEST(world_queue, joins_kernels_of_two_nodes) {
  NEEDS(no_ucx);
  constexpr std::uint64_t count = 500;
  weft::machine_options one_device;
  one_device.devices = 1;
  EXPECT_EQ(
      on_a_pair(
          [&](world& w) -> std::string {
            const weft::machine m{one_device};
            auto tx = connect_sender<std::uint64_t>(w, one, 1, of(16));
            const weft::buffer<std::int32_t> outcome{m[0], 1};
            const weft::kernel_end out{tx, m[0]};
            weft::launch<send_over_the_network>(weft::stream{m[0]}, weft::range(1), out, count, polls, outcome).wait();
            std::array<std::int32_t, 1> came{};
            weft::copy(came, outcome);
            return came[0] == WEFT_RING_OK ? "" : "outcome " + std::to_string(came[0]);
          },
          [&](world& w) -> std::string {
            const weft::machine m{one_device};
            auto rx = connect_receiver<std::uint64_t>(w, zero, 1, of(16));
            const weft::buffer<std::uint64_t> sum{m[0], 1};
            const weft::buffer<std::int32_t> outcome{m[0], 1};
            const weft::kernel_end in{rx, m[0]};
            weft::launch<add_over_the_network>(weft::stream{m[0]}, weft::range(1), in, count, polls, sum, outcome)
                .wait();
            std::array<std::uint64_t, 1> got{};
            weft::copy(got, sum);
            return got[0] == 3 * count * (count - 1) / 2 ? "" : "a sum of " + std::to_string(got[0]);
          }),
      "");
}

// ---- what another rank says may be anything -------------------------------------------------------------------------

struct said_record {
  std::uint32_t what, queue;
  std::uint64_t value;
  std::uint32_t count, size;
};

/// A rank with a carrier of queues, and another one whose frames are written by the test, both in this process.
struct liar_and_victim {
  liar_and_victim() {
    static_cast<void>(with_ucx());
    auto a = weft::value_or_raise(weft::detail::open_ucx(0, 2));
    liar = weft::value_or_raise(weft::detail::open_ucx(1, 2));
    const std::vector addresses{weft::value_or_raise(a->address()), weft::value_or_raise(liar->address())};
    a->introduce(addresses);
    liar->introduce(addresses);
    carrier = weft::detail::queue_carrier::open(std::make_shared<weft::detail::messenger>(
        std::move(a), [](int r) { return "rank " + std::to_string(r) + " of this test"; }));
    // from now on a thread of the carrier's looks after the network
    static_cast<void>(carrier->await_offer(1, 8, weft::detail::steady_now(), {}));
  }
  void says(const std::vector<said_record>& records, std::string_view behind = "") {
    std::vector<std::byte> frame(records.size() * sizeof(said_record) + behind.size());
    if (!records.empty()) std::memcpy(frame.data(), records.data(), records.size() * sizeof(said_record));
    std::memcpy(frame.data() + records.size() * sizeof(said_record), behind.data(), behind.size());
    weft::detail::transfer t;
    liar->send(t, 0, {weft::detail::message_tag::most_own, true}, frame);
    while (t.is_under_way()) liar->progress();
  }
  /// The records of the next frame that comes, without what follows them.
  std::vector<std::uint32_t> hears() {
    std::vector<std::byte> frame(std::size_t{128} << 10);
    weft::detail::transfer t;
    liar->receive(t, 0, {weft::detail::message_tag::most_own, true}, frame);
    if (!processes::comes_true([&] { return liar->progress(), !t.is_under_way(); })) liar->cancel(t, 0);
    std::vector<std::uint32_t> kinds;
    said_record r{};
    for (std::size_t at = 0; t.at == weft::detail::transfer::stage::done && at < t.bytes; at += sizeof r + r.size) {
      std::memcpy(&r, frame.data() + at, sizeof r);
      kinds.push_back(r.what);
    }
    return kinds;
  }
  /// What a wait for an offer on channel 9 comes to.
  std::string await_on_nine() {
    std::optional<std::string> came;
    std::stop_source over;
    std::jthread progress{[&] {
      while (!over.stop_requested()) liar->progress();
    }};
    auto offer = carrier->await_offer(1, 9, weft::deadline_after(weft::detail::steady_now(), only_a_hang), {});
    over.request_stop();
    return offer ? "offer " + std::to_string(offer->number) : weft::to_string(offer.error());
  }
  std::shared_ptr<weft::detail::queue_carrier> carrier;
  std::unique_ptr<weft::detail::engine> liar;  // goes first: its last words need somebody who hears them
};

constexpr std::uint32_t offer_ = 1, answer_ = 2, messages_ = 3, credit_ = 4, fin_ = 5, withdrawal_ = 7;

TEST(world_queue, believes_no_frame_that_cannot_be) {
  NEEDS(no_ucx);
  const std::string lies = "rank 1 of this test sent what no queue sends";
  for (const auto& [frame, behind] : std::vector<std::pair<std::vector<said_record>, std::string>>{
           {{}, "short"},
           {{{offer_, 0, 9, 0, 0}}, ""},
           {{{offer_, 1, 9, 0, 100}}, "less than that"},
           {{{offer_, 1, 9, 0, 2000}}, std::string(2000, 'x')},
           {{{99, 1, 0, 0, 0}}, ""},
           {{{messages_, 7, 0, 1, 4}}, "four"},
           {{{credit_, 0, 0, 0, 0}}, ""},
           {{{fin_, 12345, 0, 0, 0}}, ""}}) {
    liar_and_victim both;
    both.says(frame, behind);
    const std::string came = both.await_on_nine();
    EXPECT_TRUE(meetings::says(came, lies)) << came;
  }
  liar_and_victim honest;
  honest.says({{offer_, 1, 9, 0, 4}}, "four");
  EXPECT_EQ(honest.await_on_nine(), "offer 1");
}

TEST(world_queue, takes_no_offer_that_was_withdrawn_and_keeps_none_of_many) {
  NEEDS(no_ucx);
  liar_and_victim both;
  std::vector<said_record> frame{{withdrawal_, 1, 9, 0, 0}};  // of what was taken already, or never there
  for (std::uint32_t n = 1; n <= 1500; ++n) {
    frame.push_back({offer_, n, 9, 0, 0});
    frame.push_back({withdrawal_, n, 9, 0, 0});
  }
  frame.push_back({offer_, 1501, 9, 0, 0});
  both.says(frame);
  EXPECT_EQ(both.await_on_nine(), "offer 1501");
}

/// An end for messages of 64 bytes: one that receives is offered to the liar, and one that sends takes its offer 1.
struct victims_end {
  victims_end(liar_and_victim& both, const queue_options& options, bool sends = false) : carrier(both.carrier) {
    using weft::detail::queue_side;
    const auto side = sends ? queue_side::sending : queue_side::receiving;
    const auto header = weft::detail::describe(weft::detail::type_of<numbered<64>>(), options);
    auto file = weft::value_or_raise(weft::detail::make_region(header));
    auto region =
        weft::value_or_raise(weft::detail::map_region(file.get(), weft::detail::region_size(shape_in(header))));
    std::byte* const base = region.get().base;
    queue =
        weft::detail::make_region_side(side, header, std::move(region), options, weft::parking::word_scope::process);
    end->peer = 1;
    end->sends = sends;
    end->words = weft::detail::words_in(base);
    end->overwrites = queue->overwrites;
    end->message.resize(64);
    auto other = weft::detail::view_of(sends ? queue_side::receiving : queue_side::sending, base);
    if (sends) other.credit = &end->unused;
    weft::detail::set_end(end->ring, other, queue->shape);
    end->queue = queue;
    if (sends) {
      carrier->take(end, {1, {}});
    } else {
      weft::value_or_raise(carrier->offer(end, 5, header));
    }
  }
  ~victims_end() { carrier->leave(*end); }
  victims_end(const victims_end&) = delete;
  victims_end& operator=(const victims_end&) = delete;
  std::shared_ptr<weft::detail::queue_carrier> carrier;
  std::shared_ptr<weft::detail::queue_state> queue;
  std::shared_ptr<weft::detail::far_end> end = std::make_shared<weft::detail::far_end>();
};

constexpr said_record accepts{answer_, 1, 0, 1, 0};

TEST(world_queue, a_sender_learns_whether_its_receiver_still_waits) {
  NEEDS(no_ucx);
  const auto until = weft::deadline_after(weft::detail::steady_now(), only_a_hang);
  for (const bool waits : {false, true}) {
    liar_and_victim both;
    const victims_end here{both, of(16), true};
    both.says({{credit_, 1, waits ? 0 : WEFT_RING_CLOSED_BIT, 0, 0}});
    EXPECT_EQ(weft::value_or_raise(here.carrier->await_receiver(*here.end, until, {})), waits);
  }
}

TEST(world_queue, a_receiver_that_is_taken_says_so_and_one_that_is_not_withdraws_its_offer) {
  NEEDS(no_ucx);
  for (const bool is_taken : {false, true}) {
    liar_and_victim both;
    std::optional<victims_end> here{std::in_place, both, of(16)};
    const std::weak_ptr<weft::detail::far_end> end = here->end;
    EXPECT_EQ(both.hears(), std::vector{offer_});
    if (is_taken) {
      both.says({accepts});
    } else {
      here.reset();
    }
    EXPECT_EQ(both.hears(), std::vector{is_taken ? credit_ : withdrawal_});
    here.reset();
    EXPECT_TRUE(end.expired()) << "who has gone leaves no memory behind";
  }
}

said_record small(std::uint64_t first, std::uint32_t count) { return {messages_, 1, first, count, 64 * count}; }

TEST(world_queue, a_queue_overfilled_or_reordered_by_another_rank_ends_as_corrupt) {
  NEEDS(no_ucx);
  for (const auto& wrong : std::vector<std::vector<said_record>>{
           {small(1, 1)}, {small(0, 17)}, {{messages_, 1, 0, 2, 64}}, {{fin_, 1, 5, 0, 0}}}) {
    liar_and_victim both;
    const victims_end here{both, of(16)};
    both.says({accepts});
    both.says(wrong, std::string(wrong.back().size, 'x'));
    EXPECT_TRUE(meetings::says(both.await_on_nine(), "sent what no queue sends"));
    while (!here.queue->stopped()) std::this_thread::yield();  // told by the carrier's thread, which saw it
    ASSERT_NE(here.queue->cause(), nullptr);
    EXPECT_EQ(here.queue->cause()->code, errc::corrupt);
  }
}

TEST(world_queue, counts_what_was_overwritten_before_it_left) {
  NEEDS(no_ucx);
  liar_and_victim both;
  queue_options options = of(16);
  options.when_full = backpressure::overwrite_oldest;
  const victims_end here{both, options};
  both.says({accepts});
  both.says({small(5, 1)}, std::string(64, 'x'));
  while (weft::detail::statistics_of(*here.queue).lost == 0) std::this_thread::yield();
  EXPECT_EQ(weft::detail::statistics_of(*here.queue).lost, 5U);
}

}  // namespace
