// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/queue_network.hpp"

#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <utility>

namespace queue_network_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using samples::play;
using samples::wired;
using weft::device_id;
using weft::errc;
using weft::machine;
using weft::queue_edge;
using weft::queue_network;
using weft::queue_options;
using weft::queue_status;

struct parcel {
  int from = -1, to = -1;
  std::uint64_t number = 0;

  friend bool operator==(const parcel&, const parcel&) = default;
};

std::vector<device_id> first(int n) {
  std::vector<device_id> ids;
  for (int i = 0; i < n; ++i) ids.emplace_back(i);
  return ids;
}

queue_options small() {
  queue_options made;
  made.capacity = 16;
  made.timeout = samples::only_a_hang;
  return made;
}

/// Sends over every queue of the network and receives what was sent over that queue, and nothing else.
void check_every_queue(queue_network<parcel>& network) {
  for (const queue_edge& edge : network.edges()) {
    auto& sender = network.sender(edge.from, edge.to);
    for (std::uint64_t i = 0; i < 10; ++i) {
      ASSERT_EQ(sender.try_send({edge.from.value(), edge.to.value(), i}), queue_status::ok);
    }
  }
  for (const queue_edge& edge : network.edges()) {
    EXPECT_EQ(network.queue(edge.from, edge.to).source(), edge.from);
    EXPECT_EQ(network.queue(edge.from, edge.to).destination(), edge.to);
    auto& receiver = network.receiver(edge.from, edge.to);
    for (std::uint64_t i = 0; i < 10; ++i) {
      parcel got;
      ASSERT_EQ(receiver.receive(got), queue_status::ok);
      ASSERT_EQ(got, (parcel{edge.from.value(), edge.to.value(), i}));
    }
    parcel got;
    EXPECT_EQ(receiver.try_receive(got), queue_status::empty);
  }
}

TEST(queue_network, a_pair_is_one_queue_with_both_its_ends) {
  const machine m = play(wired(3));
  auto network = weft::make_pair<parcel>(m, gpu0, gpu2, small());
  EXPECT_EQ(network.edges(), (std::vector<queue_edge>{{gpu0, gpu2}}));
  check_every_queue(network);
}

TEST(queue_network, a_pair_may_join_a_device_with_itself) {
  const machine m = play(wired(2));
  auto network = weft::make_pair<parcel>(m, gpu1, gpu1, small());
  check_every_queue(network);
}

TEST(queue_network, both_ways_is_a_queue_each_way_whose_messages_do_not_meet) {
  const machine m = play(wired(2));
  auto network = weft::make_bidirectional<parcel>(m, gpu0, gpu1, small());
  EXPECT_EQ(network.edges(), (std::vector<queue_edge>{{gpu0, gpu1}, {gpu1, gpu0}}));
  check_every_queue(network);
}

TEST(queue_network, a_ring_joins_each_device_with_the_next_and_the_last_with_the_first) {
  for (int n = 2; n <= 8; ++n) {
    const machine m = play(wired(n));
    auto network = weft::make_ring<parcel>(m, first(n), small());
    ASSERT_EQ(network.size(), static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(network.edges()[static_cast<std::size_t>(i)], (queue_edge{device_id{i}, device_id{(i + 1) % n}}));
    }
    check_every_queue(network);
  }
}

TEST(queue_network, a_ring_follows_the_order_in_which_the_devices_are_named) {
  const machine m = play(wired(3));
  auto network = weft::make_ring<parcel>(m, {gpu2, gpu0, gpu1}, small());
  EXPECT_EQ(network.edges(), (std::vector<queue_edge>{{gpu2, gpu0}, {gpu0, gpu1}, {gpu1, gpu2}}));
}

TEST(queue_network, a_mesh_has_a_queue_for_every_ordered_pair) {
  for (int n = 2; n <= 8; ++n) {
    const machine m = play(wired(n));
    auto network = weft::make_mesh<parcel>(m, first(n), small());
    ASSERT_EQ(network.size(), static_cast<std::size_t>(n * (n - 1)));
    std::set<std::pair<int, int>> pairs;
    for (const queue_edge& edge : network.edges()) pairs.emplace(edge.from.value(), edge.to.value());
    EXPECT_EQ(pairs.size(), network.size()) << "no pair twice";
    EXPECT_EQ(std::count_if(pairs.begin(), pairs.end(), [](auto& pair) { return pair.first == pair.second; }), 0);
    check_every_queue(network);
  }
}

TEST(queue_network, works_where_no_device_reaches_another) {
  const machine m = play(samples::shipped("ring_3_no_p2p"));
  auto network = weft::make_mesh<parcel>(m, first(3), small());
  for (const queue_edge& edge : network.edges()) {
    EXPECT_FALSE(network.queue(edge.from, edge.to).is_direct()) << to_string(edge.from) << " " << to_string(edge.to);
  }
  check_every_queue(network);
}

TEST(queue_network, a_network_of_fewer_than_two_devices_is_refused_with_those_given) {
  const machine m = play(wired(2));
  for (const auto& devices : {std::vector<device_id>{}, {gpu1}}) {
    const auto ring = error_of([&] { (void)weft::make_ring<parcel>(m, devices); });
    EXPECT_EQ(ring.code, errc::invalid_argument);
    EXPECT_NE(ring.what.find("a ring needs at least two devices"), std::string::npos) << ring.what;
    EXPECT_NE(ring.what.find(devices.empty() ? "none" : "gpu1"), std::string::npos) << ring.what;
    EXPECT_EQ(error_of([&] { (void)weft::make_mesh<parcel>(m, devices); }).code, errc::invalid_argument);
  }
  EXPECT_EQ(error_of([&] { (void)queue_network<parcel>(m, {}); }).code, errc::invalid_argument);
}

TEST(queue_network, refuses_a_device_that_stands_twice_and_names_it) {
  const machine m = play(wired(3));
  const auto ring = error_of([&] { (void)weft::make_ring<parcel>(m, {gpu0, gpu1, gpu1}); });
  EXPECT_EQ(ring.code, errc::invalid_argument);
  EXPECT_NE(ring.what.find("gpu1 stands twice in a ring of gpu0, gpu1, gpu1"), std::string::npos) << ring.what;
  EXPECT_EQ(error_of([&] { (void)weft::make_mesh<parcel>(m, {gpu2, gpu1, gpu2}); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { (void)weft::make_bidirectional<parcel>(m, gpu1, gpu1); }).code, errc::invalid_argument);
  const auto twice = error_of([&] { (void)queue_network<parcel>(m, {{gpu0, gpu1}, {gpu0, gpu1}}); });
  EXPECT_EQ(twice.code, errc::invalid_argument);
  EXPECT_NE(twice.what.find("gpu0 -> gpu1 stands twice"), std::string::npos) << twice.what;
}

TEST(queue_network, refuses_a_device_that_the_machine_does_not_have) {
  const machine m = play(wired(2));
  EXPECT_EQ(error_of([&] { (void)weft::make_ring<parcel>(m, {gpu0, device_id{9}}); }).code, errc::invalid_device);
}

TEST(queue_network, asked_for_a_pair_that_it_does_not_join_says_which_it_joins) {
  const machine m = play(wired(3));
  auto network = weft::make_ring<parcel>(m, first(3), small());
  for (const auto& cause :
       {error_of([&] { (void)network.sender(gpu0, gpu2); }), error_of([&] { (void)network.receiver(gpu0, gpu2); }),
        error_of([&] { (void)network.queue(gpu0, gpu2); })}) {
    EXPECT_EQ(cause.code, errc::not_found);
    EXPECT_NE(cause.what.find("no queue gpu0 -> gpu2"), std::string::npos) << cause.what;
    EXPECT_NE(cause.what.find("gpu0 -> gpu1, gpu1 -> gpu2, gpu2 -> gpu0"), std::string::npos) << cause.what;
  }
}

TEST(queue_network, opens_a_sender_for_each_producer_and_refuses_one_more) {
  const machine m = play(wired(2));
  queue_options options = small();
  options.producers = 3;
  auto network = weft::make_pair<parcel>(m, gpu0, gpu1, options);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(network.sender(gpu0, gpu1, i).try_send({0, 1, i}), queue_status::ok);
  }
  EXPECT_EQ(error_of([&] { (void)network.sender(gpu0, gpu1, 3); }).code, errc::not_found);
  std::set<std::uint64_t> numbers;
  for (int i = 0; i < 3; ++i) {
    parcel got;
    ASSERT_EQ(network.receiver(gpu0, gpu1).receive(got), queue_status::ok);
    numbers.insert(got.number);
  }
  EXPECT_EQ(numbers, (std::set<std::uint64_t>{0, 1, 2}));
}

TEST(queue_network, keeps_its_ends_where_they_are_when_it_moves) {
  const machine m = play(wired(2));
  auto first_home = weft::make_bidirectional<parcel>(m, gpu0, gpu1, small());
  auto* const sender = &first_home.sender(gpu0, gpu1);
  auto network = std::move(first_home);
  EXPECT_EQ(sender, &network.sender(gpu0, gpu1));
  EXPECT_EQ(sender->try_send({0, 1, 5}), queue_status::ok);
  parcel got;
  EXPECT_EQ(network.receiver(gpu0, gpu1).receive(got), queue_status::ok);
  EXPECT_EQ(got.number, 5U);
}

TEST(queue_network, a_closed_network_ends_all_its_queues) {
  const machine m = play(wired(3));
  auto network = weft::make_mesh<parcel>(m, first(3), small());
  network.close();
  for (const queue_edge& edge : network.edges()) {
    parcel got;
    EXPECT_EQ(network.receiver(edge.from, edge.to).receive(got), queue_status::closed);
  }
}

TEST(queue_network, carries_traffic_of_all_its_devices_at_once_in_order) {
  constexpr int devices = 4;
  constexpr std::uint64_t messages = 2000;
  const machine m = play(wired(devices));
  auto network = weft::make_mesh<parcel>(m, first(devices), small());
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(devices);
  for (int here = 0; here < devices; ++here) {
    threads.emplace_back([&network, &wrong, here] {
      struct line {
        weft::sender<parcel>* to;
        weft::receiver<parcel>* from;
        int other;
        std::uint64_t sent, received;
      };
      std::vector<line> lines;
      for (int other = 0; other < devices; ++other) {
        if (other == here) continue;
        lines.push_back({&network.sender(device_id{here}, device_id{other}),
                         &network.receiver(device_id{other}, device_id{here}), other, 0, 0});
      }
      const auto until = std::chrono::steady_clock::now() + samples::soon;
      for (bool done = false; !done && std::chrono::steady_clock::now() < until;) {
        done = true;
        for (line& each : lines) {
          if (each.sent < messages && each.to->try_send({here, each.other, each.sent}) == queue_status::ok) ++each.sent;
          parcel got;
          if (each.from->try_receive(got) == queue_status::ok) {
            if (got != parcel{each.other, here, each.received}) wrong[static_cast<std::size_t>(here)] = "out of order";
            ++each.received;
          }
          done = done && each.sent == messages && each.received == messages;
        }
        if (!done) std::this_thread::yield();
      }
      for (const line& each : lines) {
        if (each.received != messages) wrong[static_cast<std::size_t>(here)] = "not all came";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<std::string>(devices));
}

}  // namespace queue_network_test
