// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/message_queue.hpp"

#include "channel/queue_progress.hpp"
#include "channel/queue_state.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/runtime/task.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <thread>

namespace message_queue_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using samples::play;
using samples::wired;
using weft::backpressure;
using weft::batch_result;
using weft::errc;
using weft::machine;
using weft::message_queue;
using weft::queue_options;
using weft::queue_status;
using weft::transfer_mode;
using namespace std::chrono_literals;

static_assert(weft::message<std::array<char, 65536>>);
static_assert(!weft::message<std::array<char, 65537>>, "send a descriptor of what is larger");
static_assert(!weft::message<std::string>, "what a pointer refers to does not travel");

/// A message whose every byte depends on its number.
template <std::size_t Size, std::size_t Alignment = 1>
struct alignas(Alignment) sized {
  std::array<std::uint8_t, Size> bytes;

  static sized numbered(std::uint64_t n) {
    sized made;
    for (std::size_t i = 0; i < Size; ++i) made.bytes[i] = static_cast<std::uint8_t>((n * 167 + i * 31) >> (i % 3));
    return made;
  }
  friend bool operator==(const sized&, const sized&) = default;
};

struct tick {
  std::uint64_t number;
  double price;
  std::uint64_t check;

  static tick numbered(std::uint64_t n) { return {n, static_cast<double>(n) * 0.25, n * 0x9e3779b97f4a7c15U}; }
  friend bool operator==(const tick&, const tick&) = default;
};

queue_options with(std::size_t capacity, backpressure policy = backpressure::block,
                   transfer_mode mode = transfer_mode::adaptive) {
  queue_options made;
  made.capacity = capacity;
  made.timeout = samples::only_a_hang;
  made.when_full = policy;
  made.mode = mode;
  return made;
}

// ---- what a queue is ----------------------------------------------------------------------------------------------

TEST(message_queue, is_direct_between_devices_with_peer_access_and_lies_in_the_destinations_memory) {
  const machine m = play(wired(2));
  const auto before = m[1].free_memory();
  const message_queue<tick> queue{m, gpu0, gpu1};
  EXPECT_TRUE(queue.is_direct());
  EXPECT_EQ(queue.mode(), transfer_mode::direct);
  EXPECT_EQ(queue.why(), "");
  EXPECT_EQ(queue.source(), gpu0);
  EXPECT_EQ(queue.destination(), gpu1);
  EXPECT_EQ(queue.capacity(), 1024U);
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.full());
  EXPECT_GE((before - m[1].free_memory()).value(), 1024 * sizeof(tick));
  EXPECT_TRUE(weft::peer_enabled(m, gpu0, gpu1)) << "by a lease of the queue";
}

TEST(message_queue, without_peer_access_is_staged_and_says_why) {
  const machine m = play(samples::shipped("ring_3_no_p2p"));
  for (const transfer_mode asked : {transfer_mode::adaptive, transfer_mode::direct}) {
    const message_queue<tick> queue{m, gpu0, gpu1, with(64, backpressure::block, asked)};
    EXPECT_EQ(queue.mode(), transfer_mode::host_staged);
    EXPECT_NE(queue.why().find("gpu0 has no peer access to gpu1"), std::string::npos) << queue.why();
  }
}

TEST(message_queue, over_a_pair_that_drops_data_finds_out_and_is_staged) {
  const machine m = play(samples::shipped("faulty_4"));
  int found = 0;
  for (const weft::device& from : m.devices()) {
    for (const weft::device& to : m.devices()) {
      if (from == to) continue;
      const message_queue<tick> queue{m, from.id(), to.id(), with(1024)};
      auto tx = queue.open_sender();
      auto rx = queue.open_receiver();
      for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
      tick got{};
      for (std::uint64_t n = 0; n < 40; ++n) {
        ASSERT_EQ(rx.receive(got), queue_status::ok);
        ASSERT_EQ(got, tick::numbered(n));
      }
      found += static_cast<int>(queue.why().find("does not arrive") != std::string::npos);
    }
  }
  EXPECT_GT(found, 0) << "the topology has a pair that drops data";
}

TEST(message_queue, rounds_its_capacity_up_to_a_power_of_two_of_at_least_16) {
  const machine m = play(wired(2));
  for (const auto& [asked, got] :
       std::vector<std::pair<std::size_t, std::size_t>>{{1, 16}, {16, 16}, {17, 32}, {1000, 1024}}) {
    EXPECT_EQ((message_queue<int>{m, gpu0, gpu1, with(asked)}.capacity()), got) << asked;
  }
}

TEST(message_queue, refuses_what_cannot_be_and_names_it) {
  const machine m = play(wired(2));
  const auto error_with = [&](auto change) {
    queue_options options;
    change(options);
    return error_of([&] { message_queue<int>{m, gpu0, gpu1, options}; });
  };
  EXPECT_EQ(error_with([](queue_options& o) { o.capacity = 0; }).code, errc::invalid_argument);
  EXPECT_EQ(error_with([](queue_options& o) { o.producers = 0; }).code, errc::invalid_argument);
  EXPECT_EQ(error_with([](queue_options& o) { o.batch_size = 0; }).code, errc::invalid_argument);
  EXPECT_EQ(error_with([](queue_options& o) { o.sample_every = 3; }).code, errc::invalid_argument);
  EXPECT_EQ(error_with([](queue_options& o) { o.timeout = -1ns; }).code, errc::invalid_argument);
  EXPECT_EQ(error_with([](queue_options& o) { o.sample_every = 4, o.when_full = backpressure::spill; }).code,
            errc::invalid_argument);
  EXPECT_EQ(error_with([](queue_options& o) { o.capacity = std::size_t{1} << 33; }).code, errc::invalid_argument);
  EXPECT_EQ(error_with([](queue_options& o) { o.capacity = std::size_t{1} << 30; }).code, errc::out_of_memory);
  const auto rdma = error_with([](queue_options& o) { o.mode = transfer_mode::rdma; });
  EXPECT_EQ(rdma.code, errc::unsupported);
  EXPECT_NE(rdma.what.find("nodes"), std::string::npos) << rdma.what;
  EXPECT_EQ(error_of([&] { message_queue<int>{m, gpu0, weft::device_id{9}}; }).code, errc::invalid_device);
}

TEST(message_queue, opens_each_end_once) {
  const machine m = play(wired(2));
  queue_options two = with(16);
  two.producers = 2;
  const message_queue<int> queue{m, gpu0, gpu1, two};
  const auto a = queue.open_sender(), b = queue.open_sender();
  EXPECT_EQ(error_of([&] { static_cast<void>(queue.open_sender()); }).code, errc::resource_exhausted);
  const auto rx = queue.open_receiver();
  EXPECT_EQ(error_of([&] { static_cast<void>(queue.open_receiver()); }).code, errc::resource_exhausted);
}

// ---- one message --------------------------------------------------------------------------------------------------

template <class T>
void carries_every_byte(const machine& m, const queue_options& options) {
  const message_queue<T> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  std::uint64_t sent = 0, received = 0;
  T got{};
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 1 + round % 15; ++i) ASSERT_EQ(tx.try_send(T::numbered(sent++)), queue_status::ok);
    while (received != sent) {
      ASSERT_EQ(rx.receive(got), queue_status::ok);
      ASSERT_TRUE(got == T::numbered(received)) << "message " << received << " of " << sizeof(T) << " bytes";
      ++received;
    }
    ASSERT_EQ(rx.try_receive(got), queue_status::empty);
  }
  EXPECT_EQ(queue.statistics().received, received);
}

template <class T>
void carries_every_byte_everywhere() {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    for (const bool validate : {false, true}) {
      for (const backpressure policy : {backpressure::block, backpressure::overwrite_oldest, backpressure::spill}) {
        queue_options options = with(16, policy, mode);
        options.validate = validate;
        carries_every_byte<T>(m, options);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(message_queue, carries_messages_of_any_size) {
  carries_every_byte_everywhere<sized<1>>();
  carries_every_byte_everywhere<sized<3>>();
  carries_every_byte_everywhere<sized<8>>();
  carries_every_byte_everywhere<tick>();
  carries_every_byte_everywhere<sized<25>>();
  carries_every_byte_everywhere<sized<64>>();
  carries_every_byte_everywhere<sized<64, 64>>();
  carries_every_byte_everywhere<sized<257>>();
  carries_every_byte_everywhere<sized<4096, 16>>();
  carries_every_byte_everywhere<sized<65536>>();
}

TEST(message_queue, is_full_at_its_capacity_and_takes_more_once_a_quarter_was_read) {
  const machine m = play(wired(2));
  const message_queue<tick> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
  EXPECT_EQ(tx.try_send(tick::numbered(16)), queue_status::full);
  EXPECT_TRUE(queue.full());
  EXPECT_EQ(queue.size(), 16U);
  tick got{};
  for (std::uint64_t n = 0; n < 4; ++n) {
    ASSERT_EQ(rx.try_receive(got), queue_status::ok);
    EXPECT_EQ(got, tick::numbered(n));
  }
  EXPECT_EQ(queue.size(), 12U);
  for (std::uint64_t n = 16; n < 20; ++n) EXPECT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
  EXPECT_EQ(tx.try_send(tick::numbered(20)), queue_status::full);
}

TEST(message_queue, peeks_without_taking) {
  const machine m = play(wired(2));
  for (const bool validate : {false, true}) {
    queue_options options = with(16);
    options.validate = validate;
    const message_queue<tick> queue{m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    tick got{};
    EXPECT_EQ(rx.try_peek(got), queue_status::empty);
    EXPECT_EQ(rx.front(), nullptr);
    ASSERT_EQ(tx.try_send(tick::numbered(1)), queue_status::ok);
    ASSERT_EQ(tx.try_send(tick::numbered(2)), queue_status::ok);
    ASSERT_EQ(rx.try_peek(got), queue_status::ok);
    EXPECT_EQ(got, tick::numbered(1));
    ASSERT_NE(rx.front(), nullptr);
    EXPECT_EQ(*rx.front(), tick::numbered(1));
    ASSERT_EQ(rx.try_receive(got), queue_status::ok);
    EXPECT_EQ(got, tick::numbered(1)) << "what was peeked is received";
    EXPECT_EQ(*rx.front(), tick::numbered(2));
    rx.pop();
    EXPECT_EQ(rx.front(), nullptr);
  }
}

// ---- batches and places in the ring -------------------------------------------------------------------------------

template <class T>
void sends_batches() {
  const machine m = play(wired(2));
  const message_queue<T> queue{m, gpu0, gpu1, with(64)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  std::vector<T> out(100), in(100);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = T::numbered(i);
  EXPECT_EQ(tx.try_send_batch(out), (batch_result{queue_status::partial, 64}));
  EXPECT_EQ(rx.try_receive_batch(std::span{in}.first(10)), (batch_result{queue_status::ok, 10}));
  EXPECT_EQ(rx.try_receive_batch(std::span{in}.subspan(10)), (batch_result{queue_status::ok, 54}));
  EXPECT_EQ(rx.try_receive_batch(in), (batch_result{queue_status::empty, 0}));
  EXPECT_EQ(tx.try_send_batch(std::span{out}.subspan(64)), (batch_result{queue_status::ok, 36}));
  EXPECT_EQ(rx.receive_batch(std::span{in}.subspan(64), 36), (batch_result{queue_status::ok, 36}));
  EXPECT_EQ(in, out);
  EXPECT_EQ(rx.receive_batch_for(in, 1ms), (batch_result{queue_status::timed_out, 0}));
  EXPECT_EQ(tx.try_send_batch({}), (batch_result{queue_status::ok, 0}));
  EXPECT_EQ(rx.receive_batch(in, 0), (batch_result{queue_status::ok, 0})) << "none were asked for";
  tx.close();
  EXPECT_EQ(rx.receive_batch(in, 0), (batch_result{queue_status::closed, 0})) << "none follow";
  EXPECT_EQ(rx.receive_batch({}, 0), (batch_result{queue_status::ok, 0}));
  const auto s = queue.statistics();
  EXPECT_EQ(s.sent, 100U);
  EXPECT_EQ(s.received, 100U);
  EXPECT_GE(s.sent_batches, 2U);
}

TEST(message_batch, is_sent_and_received_as_a_prefix) {
  sends_batches<sized<8>>();
  sends_batches<sized<12>>();
  sends_batches<sized<64>>();
  sends_batches<sized<600>>();
}

TEST(message_batch, waits_for_at_least_as_many_as_asked_and_for_space) {
  const machine m = play(wired(2));
  const message_queue<tick> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  std::vector<tick> out(500), in(500);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = tick::numbered(i);
  std::thread sending{[&] { EXPECT_EQ(tx.send_batch(out), (batch_result{queue_status::ok, 500})); }};
  EXPECT_EQ(rx.receive_batch(in, 500), (batch_result{queue_status::ok, 500}));
  sending.join();
  EXPECT_EQ(in, out);
}

template <class T>
void reserves() {
  const machine m = play(wired(2));
  const message_queue<T> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  std::uint64_t sent = 0, received = 0;
  for (std::size_t round = 0; round < 50; ++round) {
    auto places = tx.reserve(1 + round % 9);
    ASSERT_EQ(places.status(), queue_status::ok);
    ASSERT_EQ(places.size(), 1 + round % 9);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = T::numbered(sent + i);
    EXPECT_EQ(rx.front(), nullptr) << "nothing is there before the commit";
    const std::size_t kept = round % 4 == 0 ? 0 : (round % 3 == 0 ? places.size() / 2 : places.size());
    places.commit(kept);
    sent += kept;
    while (received != sent) {
      const T* next = rx.front();
      ASSERT_NE(next, nullptr);
      EXPECT_TRUE(*next == T::numbered(received++));
      rx.pop();
    }
  }
  EXPECT_EQ(rx.front(), nullptr) << "and the credit is given";
  auto all = tx.reserve(100);
  EXPECT_EQ(all.size(), 16U);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = T::numbered(i);
  all.commit();
  EXPECT_EQ(tx.reserve(1).status(), queue_status::full);
}

/// Receives on the thread of the sender, as what carries messages between nodes does, and keeps how many were there.
template <class T>
class eager_reader final : public weft::detail::queue_feed {
 public:
  explicit eager_reader(weft::receiver<T>& from) : from_(from) {}
  bool bring() noexcept override {
    const std::size_t got = from_.try_receive_batch(std::span{all}.subspan(count)).count;
    count += got;
    looks += got != 0 ? 1 : 0;
    return got != 0;
  }
  std::vector<T> all = std::vector<T>(2000);
  std::size_t count = 0, looks = 0;

 private:
  weft::receiver<T>& from_;
};

template <class T>
void expect_few_looks() {
  const machine m = play(wired(2));
  const message_queue<T> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  const auto reader = std::make_shared<eager_reader<T>>(rx);
  weft::detail::state_of(tx)->feed_from(reader, *weft::detail::internals::native(tx)->other_waits);
  std::vector<T> sent(1600);
  for (std::size_t n = 0; n < sent.size(); ++n) sent[n] = T::numbered(n);
  EXPECT_EQ(tx.send_batch(sent), (batch_result{queue_status::ok, sent.size()}));
  weft::detail::state_of(tx)->feed_from(nullptr, *weft::detail::internals::native(tx)->other_waits);
  reader->all.resize(reader->count);
  EXPECT_TRUE(reader->all == sent);
  // at least 12 of 16 places are free whenever a quarter was given back; the message that finds it out goes by itself
  EXPECT_LE(reader->looks, 2 * sent.size() / 12);
}

TEST(message_batch, larger_than_the_ring_is_brought_on_by_the_ringful_and_not_message_by_message) {
  expect_few_looks<sized<8>>();
  expect_few_looks<sized<600>>();
}

TEST(reservation, is_written_where_it_is_read_and_may_be_abandoned) {
  reserves<sized<8, 8>>();
  reserves<tick>();
  reserves<sized<100>>();
  reserves<sized<1000, 8>>();
}

TEST(reservation, in_a_queue_that_copies_its_messages_fails_and_says_what_to_do) {
  const machine m = play(wired(2));
  queue_options checked = with(16), sampled = with(16);
  checked.validate = true;
  sampled.sample_every = 2;
  for (const queue_options& options :
       {checked, sampled, with(16, backpressure::spill), with(16, backpressure::overwrite_oldest)}) {
    const message_queue<tick> queue{m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    EXPECT_EQ(tx.reserve(1).status(), queue_status::failed);
    ASSERT_TRUE(tx.failure());
    EXPECT_EQ(tx.failure()->code, errc::unsupported);
    EXPECT_NE(tx.failure()->what.find("send the message instead"), std::string::npos) << tx.failure()->what;
  }
}

// ---- a full ring --------------------------------------------------------------------------------------------------

TEST(backpressure_policy, reject_says_full_in_every_form) {
  const machine m = play(wired(2));
  const message_queue<int> queue{m, gpu0, gpu1, with(16, backpressure::reject)};
  auto tx = queue.open_sender();
  for (int i = 0; i < 16; ++i) ASSERT_EQ(tx.send(i), queue_status::ok);
  EXPECT_EQ(tx.send(16), queue_status::full);
  EXPECT_EQ(tx.send_for(16, 10s), queue_status::full);
  EXPECT_EQ(queue.statistics().failed_sends, 2U);
}

TEST(backpressure_policy, drop_newest_says_ok_and_counts) {
  const machine m = play(wired(2));
  const message_queue<int> queue{m, gpu0, gpu1, with(16, backpressure::drop_newest)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(tx.send(i), queue_status::ok);
  EXPECT_EQ(queue.statistics().dropped, 4U);
  int got = -1;
  for (int i = 0; i < 16; ++i) {
    ASSERT_EQ(rx.try_receive(got), queue_status::ok);
    EXPECT_EQ(got, i);
  }
  EXPECT_EQ(rx.try_receive(got), queue_status::empty);
}

TEST(backpressure_policy, overwrite_oldest_keeps_the_newest_and_counts_exactly_what_was_lost) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    const message_queue<int> queue{m, gpu0, gpu1, with(16, backpressure::overwrite_oldest, mode)};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(tx.try_send(i), queue_status::ok);
    tx.close();
    int got = -1, last = -1;
    std::uint64_t received = 0;
    while (rx.receive(got) == queue_status::ok) {
      EXPECT_GT(got, last);
      last = got;
      ++received;
    }
    EXPECT_EQ(last, 999) << "the newest is there";
    const auto s = queue.statistics();
    EXPECT_EQ(s.received, received);
    EXPECT_EQ(s.received + s.lost, 1000U);
    if (mode == transfer_mode::direct) {
      EXPECT_EQ(received, 16U);
    }
  }
}

TEST(backpressure_policy, overwrite_oldest_counts_at_rest_what_can_be_received) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    const message_queue<int> queue{m, gpu0, gpu1, with(16, backpressure::overwrite_oldest, mode)};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    for (std::uint64_t n = 1; n <= 48; ++n) {
      ASSERT_EQ(tx.try_send(static_cast<int>(n)), queue_status::ok);
      ASSERT_TRUE(processes::comes_true([&] { return queue.statistics().staged.messages == n || queue.is_direct(); }));
      EXPECT_EQ(queue.size(), std::min<std::uint64_t>(n, 16));
    }
    int got = 0;
    for (std::size_t left = 16; left-- != 0;) {
      ASSERT_EQ(rx.try_receive(got), queue_status::ok);
      EXPECT_EQ(queue.size(), left);
    }
    EXPECT_EQ(queue.statistics().lost, 32U);
  }
}

TEST(backpressure_policy, spill_keeps_order_up_to_its_limit) {
  const machine m = play(wired(2));
  queue_options options = with(16, backpressure::spill);
  options.spill_limit = weft::bytes{100 * sizeof(int)};
  const message_queue<int> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  int sent = 0;
  while (tx.try_send(sent) == queue_status::ok) ++sent;
  EXPECT_EQ(sent, 116);
  EXPECT_EQ(queue.size(), 116U);
  tx.close();
  int got = -1;
  for (int i = 0; i < sent; ++i) {
    ASSERT_EQ(rx.receive(got), queue_status::ok) << i;
    ASSERT_EQ(got, i);
  }
  EXPECT_EQ(rx.receive(got), queue_status::closed);
  EXPECT_EQ(queue.statistics().spilled, 100U);
  EXPECT_EQ(queue.statistics().spilled_high_water, 100U);
}

// ---- waiting ------------------------------------------------------------------------------------------------------

TEST(waiting_form, a_wait_at_either_end_ends_at_its_deadline_and_moves_nothing) {
  const machine m = play(wired(2));
  for (const weft::waiting policy : {weft::waiting::adaptive, weft::waiting::park, weft::waiting::spin}) {
    queue_options options = with(16);
    options.wait_policy = policy;
    options.timeout = 3ms;
    const message_queue<int> queue{m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    int got = 77;
    EXPECT_EQ(rx.receive_for(got, 2ms), queue_status::timed_out);
    EXPECT_EQ(rx.receive(got), queue_status::timed_out);
    EXPECT_EQ(got, 77);
    for (int i = 0; i < 16; ++i) ASSERT_EQ(tx.send(i), queue_status::ok);
    EXPECT_EQ(tx.send_for(99, 2ms), queue_status::timed_out);
    EXPECT_EQ(tx.send(99), queue_status::timed_out);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(rx.try_receive(got), queue_status::ok);
      ASSERT_EQ(got, i);
    }
    EXPECT_EQ(rx.try_receive(got), queue_status::empty);
    const auto s = queue.statistics();
    EXPECT_EQ(s.send_timeouts, 2U);
    EXPECT_EQ(s.receive_timeouts, 2U);
  }
}

TEST(waiting_form, takes_a_limit_of_zero_of_the_past_and_of_for_ever) {
  const machine m = play(wired(2));
  const message_queue<int> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  int got = 0;
  EXPECT_EQ(rx.receive_for(got, 0ns), queue_status::timed_out);
  EXPECT_EQ(rx.receive_for(got, -5s), queue_status::timed_out);
  EXPECT_EQ(rx.receive_for(got, std::chrono::nanoseconds::min()), queue_status::timed_out);
  std::thread receiving{[&] { EXPECT_EQ(rx.receive_for(got, std::chrono::nanoseconds::max()), queue_status::ok); }};
  EXPECT_EQ(tx.send_for(3, std::chrono::nanoseconds::max()), queue_status::ok);
  receiving.join();
  EXPECT_EQ(got, 3);
}

TEST(waiting_form, is_woken_by_the_other_end) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    for (const weft::waiting policy : {weft::waiting::park, weft::waiting::adaptive}) {
      queue_options options = with(16, backpressure::block, mode);
      options.wait_policy = policy;
      const message_queue<tick> queue{m, gpu0, gpu1, options};
      const message_queue<tick> back{m, gpu1, gpu0, options};
      auto tx = queue.open_sender(), reply = back.open_sender();
      auto rx = queue.open_receiver(), answers = back.open_receiver();
      constexpr std::uint64_t rounds = 400;
      std::thread other{[&] {
        tick got{};
        for (std::uint64_t n = 0; n < rounds; ++n) {
          ASSERT_EQ(rx.receive(got), queue_status::ok);
          ASSERT_EQ(reply.send(got), queue_status::ok);
        }
      }};
      tick got{};
      for (std::uint64_t n = 0; n < rounds; ++n) {
        ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
        ASSERT_EQ(answers.receive(got), queue_status::ok);
        ASSERT_EQ(got, tick::numbered(n));
      }
      other.join();
    }
  }
}

TEST(waiting_form, ends_when_a_stop_is_requested) {
  const machine m = play(wired(2));
  queue_options options = with(16);
  options.wait_policy = weft::waiting::park;
  const message_queue<int> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  std::stop_source stop;
  int got = 0;
  std::thread receiving{[&] { EXPECT_EQ(rx.receive(got, stop.get_token()), queue_status::cancelled); }};
  while (queue.statistics().receiver_parks == 0) std::this_thread::yield();
  stop.request_stop();
  receiving.join();
  for (int i = 0; i < 16; ++i) ASSERT_EQ(tx.send(i), queue_status::ok);
  EXPECT_EQ(tx.send(99, stop.get_token()), queue_status::cancelled);
  EXPECT_EQ(queue.size(), 16U);
  EXPECT_EQ(queue.statistics().receive_cancellations, 1U);
  EXPECT_EQ(queue.statistics().send_cancellations, 1U);
}

// ---- the end ------------------------------------------------------------------------------------------------------

TEST(closing, the_sender_lets_the_receiver_have_everything_first) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    const message_queue<tick> queue{m, gpu0, gpu1, with(16, backpressure::block, mode)};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
    tx.close();
    tick got{};
    for (std::uint64_t n = 0; n < 16; ++n) {
      ASSERT_EQ(rx.receive(got), queue_status::ok);
      EXPECT_EQ(got, tick::numbered(n));
    }
    EXPECT_EQ(rx.receive(got), queue_status::closed);
    EXPECT_EQ(rx.try_receive(got), queue_status::closed);
    EXPECT_EQ(rx.front(), nullptr);
  }
}

TEST(closing, an_end_that_was_closed_says_so_in_every_form) {
  const machine m = play(wired(2));
  const message_queue<tick> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  ASSERT_EQ(tx.send(tick::numbered(0)), queue_status::ok);
  tx.close();
  tx.close();
  EXPECT_FALSE(tx.is_open());
  const std::vector<tick> two(2);
  EXPECT_EQ(tx.try_send(two[0]), queue_status::closed);
  EXPECT_EQ(tx.send(two[0]), queue_status::closed);
  EXPECT_EQ(tx.send_for(two[0], 1ms), queue_status::closed);
  EXPECT_EQ(tx.try_send_batch(two), (batch_result{queue_status::closed, 0}));
  EXPECT_EQ(tx.send_batch(two), (batch_result{queue_status::closed, 0}));
  EXPECT_EQ(tx.reserve(1).status(), queue_status::closed);
  rx.close();
  EXPECT_FALSE(rx.is_open());
  tick got{};
  EXPECT_EQ(rx.try_receive(got), queue_status::closed);
  EXPECT_EQ(rx.receive(got), queue_status::closed);
  EXPECT_EQ(rx.try_peek(got), queue_status::closed);
  EXPECT_EQ(rx.front(), nullptr);
  EXPECT_EQ(rx.clear(), 0U);
  EXPECT_EQ(queue.statistics().discarded, 1U);
}

TEST(closing, an_end_whose_place_another_takes_is_closed_at_once) {
  const machine m = play(wired(2));
  const message_queue<tick> first{m, gpu0, gpu1, with(16)}, second{m, gpu0, gpu1, with(16)},
      third{m, gpu0, gpu1, with(16)};
  auto tx = first.open_sender(), new_tx = third.open_sender(), sends = second.open_sender();
  auto receives = first.open_receiver(), rx = second.open_receiver(), new_rx = third.open_receiver();
  tick got{};
  tx = std::move(new_tx);
  EXPECT_EQ(receives.try_receive(got), queue_status::closed);
  EXPECT_FALSE(new_tx.failure());  // NOLINT(bugprone-use-after-move)
  rx = std::move(new_rx);
  queue_status sent = queue_status::ok;
  for (std::uint64_t n = 0; n <= 16 && sent == queue_status::ok; ++n) sent = sends.try_send(tick::numbered(n));
  EXPECT_EQ(sent, queue_status::closed);  // not full, at the latest where it looks for space
  auto& same = tx;
  tx = std::move(same);
  EXPECT_EQ(tx.try_send(tick::numbered(1)), queue_status::ok);
  EXPECT_EQ(rx.try_receive(got), queue_status::ok);
}

TEST(closing, the_sender_wakes_a_receiver_that_sleeps) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    queue_options options = with(16, backpressure::block, mode);
    options.wait_policy = weft::waiting::park;
    const message_queue<int> queue{m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    int got = 0;
    std::thread receiving{[&] { EXPECT_EQ(rx.receive(got), queue_status::closed); }};
    while (queue.statistics().receiver_parks == 0) std::this_thread::yield();
    tx.close();
    receiving.join();
  }
}

TEST(closing, the_receiver_is_learned_by_the_sender_and_what_is_in_flight_counts_as_discarded) {
  const machine m = play(wired(2));
  const message_queue<int> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (int i = 0; i < 10; ++i) ASSERT_EQ(tx.send(i), queue_status::ok);
  int got = 0;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(rx.try_receive(got), queue_status::ok);
  rx.close();
  queue_status status = queue_status::ok;
  int more = 0;
  while ((status = tx.send(0)) == queue_status::ok) ++more;
  EXPECT_EQ(status, queue_status::closed);
  EXPECT_EQ(more, 6) << "it looks when it needs space";
  const auto s = queue.statistics();
  EXPECT_EQ(s.discarded, 13U);
  EXPECT_EQ(s.in_flight, 0U);
  EXPECT_EQ(s.sent, s.received + s.discarded);
}

TEST(closing, the_queue_ends_both_ends_at_once) {
  const machine m = play(wired(2));
  message_queue<int> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  int got = 0;
  std::thread receiving{[&] { EXPECT_EQ(rx.receive(got), queue_status::closed); }};
  queue.close();
  receiving.join();
  EXPECT_EQ(tx.send(1), queue_status::closed);
}

/// Every operation of both ends of a queue that holds messages and has room says `expected`, and moves nothing.
template <class Message>
void expect_over(const queue_options& options, queue_status expected, bool by_machine) {
  machine m = play(wired(2));
  message_queue<Message> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_EQ(tx.try_send(Message::numbered(n)), queue_status::ok);
  Message got{};
  ASSERT_EQ(rx.receive(got), queue_status::ok);
  by_machine ? m.close() : queue.close();
  const Message one = Message::numbered(9);
  const std::vector<Message> three(3, one);
  std::vector<Message> room(3);
  EXPECT_EQ(tx.try_send(one), expected);
  EXPECT_EQ(tx.send(one), expected);
  EXPECT_EQ(tx.send_for(one, 1ms), expected);
  EXPECT_EQ(tx.try_send_batch(three), (batch_result{expected, 0}));
  EXPECT_EQ(tx.send_batch(three), (batch_result{expected, 0}));
  if (options.when_full == backpressure::block && !options.validate && options.sample_every == 0) {
    const auto places = tx.reserve(2);
    EXPECT_EQ(places.size(), 0U);
    EXPECT_EQ(places.status(), expected);
  }
  EXPECT_EQ(rx.try_receive(got), expected);
  EXPECT_EQ(rx.receive(got), expected);
  EXPECT_EQ(rx.try_peek(got), expected);
  EXPECT_EQ(rx.front(), nullptr);
  EXPECT_EQ(rx.try_receive_batch(room), (batch_result{expected, 0}));
  EXPECT_EQ(rx.receive_batch(room), (batch_result{expected, 0}));
  EXPECT_EQ(rx.receive_batch(room, 0), (batch_result{expected, 0}));
  EXPECT_EQ(tx.failure() && tx.failure()->code == errc::machine_closed, by_machine);
  const auto s = queue.statistics();
  EXPECT_EQ(s.received, 1U);
  EXPECT_EQ(s.in_flight, 0U);
  EXPECT_EQ(s.sent, s.received + s.discarded);
}

TEST(closing, ends_every_operation_at_once_and_discards_what_was_not_received) {
  for (const bool by_machine : {false, true}) {
    const queue_status expected = by_machine ? queue_status::failed : queue_status::closed;
    for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
      for (const backpressure policy :
           {backpressure::block, backpressure::drop_newest, backpressure::overwrite_oldest, backpressure::spill}) {
        queue_options options = with(64, policy, mode);
        expect_over<tick>(options, expected, by_machine);
        expect_over<sized<300>>(options, expected, by_machine);
        if (policy == backpressure::overwrite_oldest) continue;
        options.validate = true;
        expect_over<tick>(options, expected, by_machine);
      }
      queue_options sampled = with(64, backpressure::block, mode);
      sampled.sample_every = 2;
      expect_over<tick>(sampled, expected, by_machine);
    }
  }
}

TEST(closing, the_machine_fails_what_waits_and_ends_stay_safe_to_use) {
  machine m = play(wired(2));
  const message_queue<int> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  int got = 0;
  std::thread receiving{[&] { EXPECT_EQ(rx.receive(got), queue_status::failed); }};
  m.close();
  receiving.join();
  ASSERT_TRUE(rx.failure());
  EXPECT_EQ(rx.failure()->code, errc::machine_closed);
  EXPECT_EQ(tx.try_send(1), queue_status::failed);
}

weft::topology with_a_device_that_is_lost(weft::device_id gone) {
  weft::topology layout = wired(2);
  weft::topology_fault lost;
  lost.what = weft::topology_fault::kind::device_lost;
  lost.device = gone;
  layout.faults.push_back(lost);
  return layout;
}

TEST(closing, a_lost_device_fails_the_queue_and_names_it) {
  const machine m = play(with_a_device_that_is_lost(gpu1));
  const message_queue<int> queue{m, gpu0, gpu1, with(16)};
  auto rx = queue.open_receiver();
  int got = 0;
  std::thread receiving{[&] { EXPECT_EQ(rx.receive(got), queue_status::failed); }};
  EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
  receiving.join();
  ASSERT_TRUE(rx.failure());
  EXPECT_EQ(rx.failure()->code, errc::device_lost);
  EXPECT_NE(rx.failure()->what.find("gpu1"), std::string::npos) << rx.failure()->what;
}

TEST(closing, a_lost_device_is_told_within_a_lap_or_1024_messages_to_a_sender_that_overwrites) {
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    for (const std::size_t capacity : {std::size_t{16}, std::size_t{2048}}) {
      const machine m = play(with_a_device_that_is_lost(gpu1));
      const message_queue<tick> queue{m, gpu0, gpu1, with(capacity, backpressure::overwrite_oldest, mode)};
      auto tx = queue.open_sender();
      for (std::uint64_t n = 0; n < 5; ++n) ASSERT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
      EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
      std::uint64_t more = 0;
      while (more < 5000 && tx.try_send(tick::numbered(more)) == queue_status::ok) ++more;
      EXPECT_EQ(more, std::max<std::uint64_t>(capacity, 1024) - 5);
      EXPECT_EQ(tx.try_send(tick::numbered(0)), queue_status::failed);
      ASSERT_TRUE(tx.failure());
      EXPECT_EQ(tx.failure()->code, errc::device_lost);
    }
  }
}

TEST(closing, a_lost_device_is_told_to_an_end_that_polls_whatever_its_calls_were) {
  for (const backpressure policy : {backpressure::block, backpressure::drop_newest}) {
    for (const bool reserves_first : {false, true}) {  // which counts one look; a full try_send counts two
      const machine m = play(with_a_device_that_is_lost(gpu1));
      const message_queue<tick> queue{m, gpu0, gpu1, with(16, policy)};
      auto tx = queue.open_sender();
      for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
      if (reserves_first) {
        EXPECT_EQ(tx.reserve(1).status(), queue_status::full);
      }
      EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
      queue_status status = queue_status::ok;
      for (int polls = 0; polls < 2048 && status != queue_status::failed; ++polls) status = tx.try_send({});
      EXPECT_EQ(status, queue_status::failed);
    }
  }
  for (const bool peeks : {false, true}) {
    const machine m = play(with_a_device_that_is_lost(gpu1));
    const message_queue<tick> queue{m, gpu0, gpu1, with(16)};
    auto rx = queue.open_receiver();
    EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
    std::array<tick, 2> got{};
    queue_status status = queue_status::empty;
    for (int polls = 0; polls < 4096 && status == queue_status::empty; ++polls) {
      if (polls % 2 != 0) {
        status = rx.try_receive(got[0]);
      } else {
        status = peeks ? rx.try_peek(got[0]) : rx.try_receive_batch(got).status;
      }
    }
    EXPECT_EQ(status, queue_status::failed);
  }
}

/// Keeps the progress thread of a machine busy until it goes.
class busy_progress {
 public:
  explicit busy_progress(const machine& m)
      : progress_(weft::detail::channels_of(*weft::detail::state_of(m)).progress()) {
    EXPECT_TRUE(progress_.add(job_));
    EXPECT_EQ(job_->has_begun.get_future().wait_for(samples::only_a_hang), std::future_status::ready);
  }
  busy_progress(const busy_progress&) = delete;
  busy_progress& operator=(const busy_progress&) = delete;
  ~busy_progress() { job_->may_end.set_value(); }

 private:
  struct job final : weft::detail::queue_job {
    step_outcome step() override {
      has_begun.set_value();
      may_end.get_future().wait_for(samples::only_a_hang);
      return step_outcome::finished;
    }
    void arm() noexcept override {}
    void disarm() noexcept override {}
    std::promise<void> has_begun, may_end;
  };

  weft::detail::queue_progress& progress_;
  const std::shared_ptr<job> job_ = std::make_shared<job>();
};

TEST(closing, after_a_lost_device_the_receiver_still_gets_what_was_sent_before) {
  struct way {
    transfer_mode mode;
    backpressure policy;
    bool checks;  // how messages are put into the ring and taken out of it
  };
  using enum transfer_mode;
  using enum backpressure;
  for (const auto& [mode, policy, checks] :
       {way{direct, block, false}, way{direct, spill, false}, way{host_staged, block, false},
        way{host_staged, spill, true}, way{host_staged, overwrite_oldest, false}}) {
    SCOPED_TRACE(std::string{to_string(mode)} + ", " + std::to_string(static_cast<int>(policy)));
    const machine m = play(with_a_device_that_is_lost(gpu1));
    queue_options options = with(16, policy, mode);
    options.validate = checks;
    const message_queue<tick> queue{m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    const std::uint64_t count = policy == spill ? 40 : 16;
    tick got{};
    {
      const busy_progress nothing_is_forwarded{m};
      for (std::uint64_t n = 0; n < count; ++n) ASSERT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
      EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
      weft::detail::state_of(tx)->stop(weft::detail::state_of(tx)->trouble());
      ASSERT_TRUE(rx.failure());
      EXPECT_EQ(queue.statistics().in_flight, count);
      EXPECT_EQ(queue.statistics().discarded, 0U);
      if (mode == host_staged) {
        EXPECT_EQ(rx.try_receive(got), queue_status::empty);
        EXPECT_EQ(rx.receive_for(got, 1ms), queue_status::timed_out);
        EXPECT_EQ(rx.front(), nullptr);
      }
    }
    for (std::uint64_t n = 0; n < count; ++n) {
      ASSERT_EQ(rx.receive(got), queue_status::ok) << n;
      EXPECT_EQ(got, tick::numbered(n));
    }
    EXPECT_EQ(rx.receive(got), queue_status::failed);
    EXPECT_EQ(rx.front(), nullptr);
    EXPECT_EQ(rx.failure()->code, errc::device_lost);
  }
}

TEST(closing, after_a_lost_device_each_senders_messages_are_received) {
  const machine m = play(with_a_device_that_is_lost(gpu1));
  queue_options options = with(16);
  options.producers = 2;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto idle = queue.open_sender();
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
  EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
  EXPECT_EQ(tx.send(tick::numbered(16)), queue_status::failed);
  tick got{};
  for (std::uint64_t n = 0; n < 16; ++n) {
    ASSERT_EQ(rx.receive(got), queue_status::ok) << n;
    EXPECT_EQ(got, tick::numbered(n));
  }
  EXPECT_EQ(rx.receive(got), queue_status::failed);
}

TEST(closing, the_machine_ends_the_wait_for_what_a_lost_device_left_in_a_spill) {
  machine m = play(with_a_device_that_is_lost(gpu1));
  const message_queue<tick> queue{m, gpu0, gpu1, with(16, backpressure::spill)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
  EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
  weft::detail::state_of(tx)->stop(weft::detail::state_of(tx)->trouble());
  tick got{};
  EXPECT_EQ(rx.receive(got), queue_status::ok);
  m.close();
  EXPECT_EQ(rx.receive(got), queue_status::failed);
  EXPECT_EQ(rx.failure()->code, errc::device_lost);
  EXPECT_EQ(tx.try_send(got), queue_status::failed);
}

TEST(clearing, a_spill_whose_sender_has_closed_still_tells_the_receiver_of_the_end) {
  const machine m = play(wired(2));
  const message_queue<tick> queue{m, gpu0, gpu1, with(16, backpressure::spill)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
  tx.close();
  EXPECT_EQ(rx.clear(), 40U);
  tick got{};
  EXPECT_EQ(rx.receive(got), queue_status::closed);
  const auto s = queue.statistics();
  EXPECT_EQ(s.sent, s.cleared);
}

TEST(clearing, drops_what_was_sent_before_and_nothing_else) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    const message_queue<tick> queue{m, gpu0, gpu1, with(64, backpressure::block, mode)};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
    tick got{};
    ASSERT_EQ(rx.receive(got), queue_status::ok);
    EXPECT_EQ(rx.clear(), 39U);
    EXPECT_TRUE(queue.empty());
    ASSERT_EQ(tx.send(tick::numbered(40)), queue_status::ok);
    ASSERT_EQ(rx.receive(got), queue_status::ok);
    EXPECT_EQ(got, tick::numbered(40));
    const auto s = queue.statistics();
    EXPECT_EQ(s.cleared, 39U);
    EXPECT_EQ(s.received, 2U);
    EXPECT_EQ(s.sent, 41U);
  }
}

// ---- many producers -----------------------------------------------------------------------------------------------

TEST(many_producers, fill_the_queue_when_each_has_filled_its_ring) {
  const machine m = play(wired(2));
  queue_options options = with(16);
  options.producers = 2;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto one = queue.open_sender(), other = queue.open_sender();
  for (auto* from : {&one, &other}) {
    for (std::uint64_t n = 0; n < 16; ++n) {
      EXPECT_FALSE(queue.full());
      ASSERT_EQ(from->try_send(tick::numbered(n)), queue_status::ok);
    }
  }
  EXPECT_TRUE(queue.full());
  EXPECT_EQ(queue.capacity(), 16U);
}

TEST(many_producers, keep_their_own_order_and_lose_nothing) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    queue_options options = with(32, backpressure::block, mode);
    options.producers = 3;
    const message_queue<tick> queue{m, gpu0, gpu1, options};
    constexpr std::uint64_t each = 5000;
    std::vector<std::thread> producers;
    for (std::uint64_t p = 0; p < 3; ++p) {
      producers.emplace_back([&, p, tx = queue.open_sender()]() mutable {
        for (std::uint64_t n = 0; n < each; ++n)
          ASSERT_EQ(tx.send(tick::numbered(p * 1'000'000 + n)), queue_status::ok);
      });
    }
    auto rx = queue.open_receiver();
    std::array<std::uint64_t, 3> next{};
    tick got{};
    queue_status status{};
    while ((status = rx.receive(got)) == queue_status::ok) {
      const std::uint64_t p = got.number / 1'000'000;
      ASSERT_LT(p, 3U);
      ASSERT_EQ(got, tick::numbered(p * 1'000'000 + next[p]));
      ++next[p];
    }
    EXPECT_EQ(status, queue_status::closed) << "after the last producer has closed";
    for (auto& thread : producers) thread.join();
    for (const std::uint64_t n : next) EXPECT_EQ(n, each);
  }
}

// ---- checks, samples and accounts ---------------------------------------------------------------------------------

/// Flips a bit of the second message, where it lies.
void damage_the_second(const weft::sender<tick>& tx) {
  const auto& ring = weft::detail::internals::native(tx)->ring;
  auto* slots = reinterpret_cast<std::uint8_t*>(ring.slots);
  slots[(ring.stride == 0 ? ring.bytes : ring.stride) + 5] ^= 0x10;
}

TEST(validation, finds_an_injected_flip_and_goes_on) {
  const machine m = play(wired(2));
  queue_options options = with(16);
  options.validate = true;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 3; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
  damage_the_second(tx);
  tick got{};
  ASSERT_EQ(rx.receive(got), queue_status::ok);
  EXPECT_EQ(rx.receive(got), queue_status::failed);
  ASSERT_TRUE(rx.failure());
  EXPECT_EQ(rx.failure()->code, errc::corrupt);
  EXPECT_NE(rx.failure()->what.find("message 1 of the queue from gpu0 to gpu1"), std::string::npos)
      << rx.failure()->what;
  ASSERT_EQ(rx.receive(got), queue_status::ok);
  EXPECT_EQ(got, tick::numbered(2));
  EXPECT_EQ(queue.statistics().corrupted, 1U);
}

TEST(failure, is_that_of_the_last_call_that_failed_until_the_queue_is_stopped) {
  const machine m = play(with_a_device_that_is_lost(gpu1));
  queue_options options = with(16);
  options.validate = true;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  EXPECT_EQ(tx.reserve(1).status(), queue_status::failed);
  EXPECT_EQ(tx.failure()->code, errc::unsupported);
  for (std::uint64_t n = 0; n < 2; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
  damage_the_second(tx);
  tick got{};
  ASSERT_EQ(rx.receive(got), queue_status::ok);
  EXPECT_EQ(rx.receive(got), queue_status::failed);
  EXPECT_EQ(rx.failure()->code, errc::corrupt);
  EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
  EXPECT_EQ(rx.receive(got), queue_status::failed);
  EXPECT_EQ(rx.failure()->code, errc::device_lost);
  EXPECT_EQ(tx.reserve(1).status(), queue_status::failed);
  EXPECT_EQ(tx.failure()->code, errc::device_lost);
}

TEST(validation, tells_a_batch_that_took_messages_before_the_damaged_one) {
  const machine m = play(wired(2));
  queue_options options = with(16);
  options.validate = true;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 3; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
  damage_the_second(tx);
  std::array<tick, 3> got{};
  const auto some = rx.receive_batch(got);
  EXPECT_EQ(some.status, queue_status::partial) << "a batch of one that is ok would say nothing of the second";
  EXPECT_EQ(some.count, 1U);
  ASSERT_TRUE(rx.failure());
  EXPECT_EQ(rx.failure()->code, errc::corrupt);
  const auto rest = rx.receive_batch(got);
  EXPECT_EQ(rest.status, queue_status::ok);
  EXPECT_EQ(rest.count, 1U);
  EXPECT_EQ(got[0], tick::numbered(2));
}

TEST(latency_samples, give_no_rate_that_no_queue_has_with_several_producers) {
  const machine m = play(wired(2));
  queue_options options = with(2048);
  options.sample_every = 1;
  options.producers = 2;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto one = queue.open_sender(), other = queue.open_sender();
  auto rx = queue.open_receiver();
  tick got{};
  for (std::uint64_t n = 0; n < 1'000; ++n) {
    ASSERT_EQ(one.send(tick::numbered(n)), queue_status::ok);
    ASSERT_EQ(rx.receive(got), queue_status::ok);
  }
  for (int turn = 0; turn < 20; ++turn) {
    for (auto* from : {&other, &one}) {
      ASSERT_EQ(from->send(tick::numbered(0)), queue_status::ok);
      ASSERT_EQ(rx.receive(got), queue_status::ok);
    }
  }
  // between two messages lies a nanosecond of the clock at the least
  EXPECT_LE(queue.statistics().peak_messages_per_second, 1e9);
}

TEST(control_words, impossible_control_words_stop_the_queue_as_corrupt) {
  const machine m = play(wired(2));
  const message_queue<std::uint64_t> queue{m, gpu0, gpu1, with(16)};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(tx.try_send(n), queue_status::ok);
  *reinterpret_cast<std::uint64_t*>(weft::detail::internals::native(tx)->ring.credit) = 1'000'000;
  EXPECT_EQ(tx.try_send(16), queue_status::failed);
  EXPECT_EQ(tx.failure()->code, errc::corrupt);
  std::uint64_t got = 0;
  for (std::uint64_t n = 0; n < 16; ++n) {
    ASSERT_EQ(rx.try_receive(got), queue_status::ok) << "what was published before is good";
  }
  EXPECT_EQ(rx.try_receive(got), queue_status::failed);
}

TEST(latency_samples, tell_the_call_from_the_queueing) {
  const machine m = play(wired(2));
  queue_options options = with(64);
  options.sample_every = 4;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
  tick got{};
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(rx.receive(got), queue_status::ok);
  const auto s = queue.statistics();
  EXPECT_EQ(s.send_call.samples, 10U);
  EXPECT_EQ(s.queueing.samples, 10U);
  EXPECT_EQ(s.receive_call.samples, 10U);
  EXPECT_GT(s.queueing.mean().count(), 0);
  EXPECT_LE(s.queueing.quantile(0.5), s.queueing.quantile(0.99));
  EXPECT_GT(s.peak_messages_per_second, 0);
}

TEST(latency_samples, take_no_message_for_another_once_a_forwarder_has_lost_some) {
  const machine m = play(wired(2));
  queue_options options = with(16, backpressure::overwrite_oldest, transfer_mode::host_staged);
  options.sample_every = 1;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  tick got{};
  ASSERT_EQ(tx.send(tick::numbered(0)), queue_status::ok);
  ASSERT_EQ(rx.receive(got), queue_status::ok);
  {
    const busy_progress nothing_is_forwarded{m};
    for (std::uint64_t n = 1; n < 41; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
  }
  for (std::uint64_t n = 25; n < 41; ++n) {
    ASSERT_EQ(rx.receive(got), queue_status::ok);
    ASSERT_EQ(got, tick::numbered(n));
  }
  const auto s = queue.statistics();
  EXPECT_EQ(s.lost, 24U);
  EXPECT_EQ(s.receive_call.samples, 17U);
  EXPECT_EQ(s.queueing.samples, 1U);
}

TEST(queue_statistics, count_what_the_transport_did) {
  const machine m = play(wired(3));
  const message_queue<tick> direct{m, gpu0, gpu1, with(64)};
  const message_queue<tick> staged{m, gpu0, gpu2, with(64, backpressure::block, transfer_mode::host_staged)};
  const auto before = m.traffic().bytes_on_link;
  for (const auto* queue : {&direct, &staged}) {
    auto tx = queue->open_sender();
    auto rx = queue->open_receiver();
    tick got{};
    for (std::uint64_t n = 0; n < 50; ++n) ASSERT_EQ(tx.send(tick::numbered(n)), queue_status::ok);
    for (std::uint64_t n = 0; n < 50; ++n) ASSERT_EQ(rx.receive(got), queue_status::ok);
  }
  EXPECT_EQ(direct.statistics().direct.messages, 50U);
  EXPECT_EQ(direct.statistics().direct.bytes, 50 * sizeof(tick));
  EXPECT_EQ(direct.statistics().staged.messages, 0U);
  // the forwarder counts what it has moved, behind the receiver's back
  EXPECT_EQ(staged.statistics().staged.messages, 50U);
  EXPECT_TRUE(processes::comes_true([&] { return staged.statistics().staged.operations >= 1; }));
  EXPECT_EQ(staged.statistics().direct.messages, 0U);
  const auto after = m.traffic().bytes_on_link;
  std::uint64_t crossed = 0;
  for (std::size_t link = 0; link < after.size(); ++link) {
    const std::uint64_t here = after[link] - before[link];
    EXPECT_TRUE(here == 0 || here == 50 * sizeof(tick)) << here << " on link " << link;
    crossed += here;
  }
  EXPECT_EQ(crossed, 3 * 50 * sizeof(tick)) << "one link direct, two through the host";
}

// ---- coroutines ---------------------------------------------------------------------------------------------------

weft::task<std::uint64_t> sum_of(weft::receiver<tick>& rx) {
  std::uint64_t sum = 0;
  tick got{};
  while (co_await rx.receiving(got) == queue_status::ok) sum += got.number;
  co_return sum;
}

TEST(coroutine, awaits_messages_and_space) {
  const machine m = play(wired(2));
  for (const transfer_mode mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    const message_queue<tick> queue{m, gpu0, gpu1, with(16, backpressure::block, mode)};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    const auto sending = [&]() -> weft::task<bool> {
      bool good = true;
      for (std::uint64_t n = 0; n < 300; ++n) {
        const auto status = co_await tx.sending(tick::numbered(n));
        good = good && status == queue_status::ok;
      }
      tx.close();
      co_return good;
    };
    std::thread other{[&] { EXPECT_TRUE(weft::sync_wait(sending())); }};
    EXPECT_EQ(weft::sync_wait(sum_of(rx)), 299U * 300 / 2);
    other.join();
  }
}

TEST(coroutine, an_awaiting_coroutine_hears_of_a_lost_device_long_before_its_thousandth_look) {
  const machine m = play(with_a_device_that_is_lost(gpu1));
  const message_queue<tick> queue{m, gpu0, gpu1, with(16)}, full{m, gpu0, gpu1, with(16)};
  auto rx = queue.open_receiver();
  auto tx = full.open_sender();
  for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(tx.try_send(tick::numbered(n)), queue_status::ok);
  EXPECT_EQ(error_of([&] { m[1].default_stream().call([] {}).wait(); }).code, errc::device_lost);
  const auto receiving = [&]() -> weft::task<queue_status> {
    tick got{};
    co_return co_await rx.receiving(got);
  };
  const auto sending = [&]() -> weft::task<queue_status> { co_return co_await tx.sending(tick::numbered(16)); };
  EXPECT_EQ(weft::sync_wait(receiving()), queue_status::failed);
  EXPECT_EQ(weft::sync_wait(sending()), queue_status::failed);
  EXPECT_EQ(rx.failure()->code, errc::device_lost);
  EXPECT_EQ(tx.failure()->code, errc::device_lost);
  EXPECT_LT(queue.statistics().empty, 1000U);
  EXPECT_LT(full.statistics().full, 1000U);
}

TEST(coroutine, that_awaits_does_not_ask_for_trouble_at_its_first_look) {
  const machine m = play(wired(2));
  queue_options options = with(16);
  options.timeout = 0ns;
  const message_queue<tick> queue{m, gpu0, gpu1, options};
  auto rx = queue.open_receiver();
  std::atomic<int> asked{0};
  weft::detail::state_of(rx)->trouble = [&] {
    ++asked;
    return nullptr;
  };
  const auto receiving = [&]() -> weft::task<queue_status> {
    tick got{};
    co_return co_await rx.receiving(got);
  };
  for (int n = 0; n < 100; ++n) EXPECT_EQ(weft::sync_wait(receiving()), queue_status::timed_out);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(queue.statistics().receive_timeouts, 100U);
}

TEST(coroutine, an_awaited_send_counts_as_failed_once_and_only_if_it_does) {
  const machine m = play(wired(2));
  queue_options brief = with(16);
  brief.timeout = 0ns;
  const message_queue<tick> patient{m, gpu0, gpu1, with(16)}, hasty{m, gpu0, gpu1, brief};
  const auto sending = [](weft::sender<tick>& tx) -> weft::task<queue_status> {
    co_return co_await tx.sending(tick::numbered(16));
  };
  auto tx = patient.open_sender(), late = hasty.open_sender();
  auto rx = patient.open_receiver();
  for (auto* end : {&tx, &late})
    for (std::uint64_t n = 0; n < 16; ++n) ASSERT_EQ(end->try_send(tick::numbered(n)), queue_status::ok);
  std::thread other{[&] { EXPECT_EQ(weft::sync_wait(sending(tx)), queue_status::ok); }};
  EXPECT_TRUE(processes::comes_true([&] { return patient.statistics().full >= 2; })) << "looks, without space";
  tick got{};
  for (std::uint64_t n = 0; n < 17; ++n) {
    EXPECT_EQ(rx.receive(got), queue_status::ok);
    EXPECT_EQ(got, tick::numbered(n));
  }
  other.join();
  EXPECT_EQ(patient.statistics().failed_sends, 0U);
  EXPECT_EQ(weft::sync_wait(sending(late)), queue_status::timed_out);
  EXPECT_EQ(hasty.statistics().failed_sends, 1U);
  EXPECT_EQ(hasty.statistics().send_timeouts, 1U);
}

TEST(coroutine, an_awaiting_coroutine_hears_of_a_stop_and_of_the_end_of_the_machine) {
  machine m = play(wired(2));
  const message_queue<tick> queue{m, gpu0, gpu1, with(16)};
  auto rx = queue.open_receiver();
  std::stop_source stop;
  const auto receiving = [&](std::stop_token token) -> weft::task<queue_status> {
    tick got{};
    co_return co_await rx.receiving(got, std::move(token));
  };
  std::thread stopping{[&] { stop.request_stop(); }};
  EXPECT_EQ(weft::sync_wait(receiving(stop.get_token())), queue_status::cancelled);
  stopping.join();
  std::thread closing{[&] { m.close(); }};
  EXPECT_EQ(weft::sync_wait(receiving({})), queue_status::failed);
  closing.join();
}

}  // namespace message_queue_test
