// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/router.hpp"

#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <thread>

namespace router_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using samples::play;
using samples::wired;
using weft::device_id;
using weft::errc;
using weft::machine;
using weft::queue_options;
using weft::queue_status;
using weft::routed;
using weft::router;

constexpr device_id gpu3{3};

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

/// A star: gpu0 in the middle, a queue to each of the others.
struct star {
  explicit star(int devices, const queue_options& options = small())
      : m(play(wired(devices))), network(m, rays(devices), options), route(network, gpu0) {}

  static std::vector<weft::queue_edge> rays(int devices) {
    std::vector<weft::queue_edge> edges;
    for (int i = 1; i < devices; ++i) edges.push_back({gpu0, device_id{i}});
    return edges;
  }
  /// Everything that lies there for a member.
  std::vector<std::uint64_t> taken(device_id member) {
    std::vector<std::uint64_t> all;
    std::uint64_t got = 0;
    while (network.receiver(gpu0, member).try_receive(got) == queue_status::ok) all.push_back(got);
    return all;
  }
  void fill(device_id member) {
    while (route.try_send(member, 777) == queue_status::ok) {
    }
  }
  /// Closes the receiver of a member and lets the sender learn of it, which it does when it looks for space.
  void close(device_id member) {
    network.receiver(gpu0, member).close();
    for (int i = 0; i < 100 && route.try_send(member, 777) != queue_status::closed; ++i) {
    }
  }

  machine m;
  weft::queue_network<std::uint64_t> network;
  router<std::uint64_t> route;
};

// ---- direct ---------------------------------------------------------------------------------------------------------

TEST(router, sends_to_the_member_that_is_named_and_to_no_other) {
  star s{4};
  EXPECT_EQ(s.route.try_send(gpu2, 5), queue_status::ok);
  EXPECT_EQ(s.route.send(gpu3, 6), queue_status::ok);
  EXPECT_EQ(s.taken(gpu1), (std::vector<std::uint64_t>{}));
  EXPECT_EQ(s.taken(gpu2), (std::vector<std::uint64_t>{5}));
  EXPECT_EQ(s.taken(gpu3), (std::vector<std::uint64_t>{6}));
  EXPECT_EQ(s.route.statistics(gpu2), (weft::member_statistics{gpu2, 1, 0, 0, 0}));
  EXPECT_EQ(s.route.statistics(), (weft::router_statistics{2, 0, 0, 0}));
}

TEST(router, never_loses_a_message_to_an_unknown_member_in_silence) {
  star s{3};
  EXPECT_EQ(s.route.try_send(device_id{7}, 1), queue_status::failed);
  EXPECT_EQ(s.route.send(gpu0, 1), queue_status::failed);
  EXPECT_EQ(s.route.statistics(), (weft::router_statistics{0, 2, 0, 2}));
  const auto cause = s.route.failure();
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code, errc::not_found);
  EXPECT_EQ(cause->what, "gpu0 is not a member of this router; its members are gpu1, gpu2");
  EXPECT_EQ(error_of([&] { (void)s.route.statistics(gpu3); }).code, errc::not_found);
}

TEST(router, counts_a_full_member_and_says_so) {
  star s{3};
  s.fill(gpu1);
  EXPECT_EQ(s.route.try_send(gpu1, 1), queue_status::full);
  EXPECT_EQ(s.route.statistics(gpu1), (weft::member_statistics{gpu1, 16, 2, 0, 0}));
  EXPECT_EQ(s.route.try_send(gpu2, 1), queue_status::ok);
}

TEST(router, over_a_network_that_no_queue_leaves_there_is_refused) {
  const machine m = play(wired(2));
  auto network = weft::make_pair<std::uint64_t>(m, gpu0, gpu1, small());
  EXPECT_EQ(error_of([&] { (void)router<std::uint64_t>(network, gpu1); }).code, errc::not_found);
}

TEST(router, refuses_a_second_membership_and_a_closed_sender) {
  star s{3};
  EXPECT_EQ(error_of([&] { s.route.join(gpu1, s.network.sender(gpu0, gpu2)); }).code, errc::invalid_argument);
  weft::sender<std::uint64_t> closed;
  EXPECT_EQ(error_of([&] { s.route.join(gpu3, closed); }).code, errc::invalid_argument);
  EXPECT_EQ(s.route.size(), 2U);
}

TEST(router, without_members_fails_every_way_of_sending_and_says_what_to_do) {
  router<std::uint64_t> route;
  EXPECT_EQ(route.try_send(gpu0, 1), queue_status::failed);
  EXPECT_EQ(route.try_send_by_key(1, 1).status, queue_status::failed);
  EXPECT_EQ(route.try_send_to_next(1).status, queue_status::failed);
  const auto all = route.try_broadcast(1);
  EXPECT_EQ(all.delivered, 0U);
  EXPECT_TRUE(all.members.empty());
  EXPECT_EQ(route.owner_of(1), std::nullopt);
  ASSERT_TRUE(route.failure().has_value());
  EXPECT_NE(route.failure()->what.find("join()"), std::string::npos);
  star s{2};
  route.join(gpu1, s.network.sender(gpu0, gpu1));
  EXPECT_FALSE(route.failure().has_value()) << "that there is none is true no more";
}

TEST(router, takes_a_sender_that_was_closed_under_it_for_a_closed_member) {
  star s{3};
  s.network.sender(gpu0, gpu1).close();
  EXPECT_EQ(s.route.try_send(gpu1, 1), queue_status::closed);
  EXPECT_EQ(s.route.send(gpu1, 1), queue_status::closed);
  EXPECT_EQ(s.route.try_send_to_next(2), (routed{gpu2, queue_status::ok}));
}

// ---- broadcast ------------------------------------------------------------------------------------------------------

TEST(broadcast, gives_every_member_a_copy) {
  for (int devices = 2; devices <= 8; ++devices) {
    star s{devices};
    for (std::uint64_t i = 0; i < 10; ++i) {
      const auto result = s.route.try_broadcast(i * 3);
      EXPECT_TRUE(result.reached_all());
      EXPECT_EQ(result.delivered, static_cast<std::size_t>(devices - 1));
    }
    for (int i = 1; i < devices; ++i) {
      EXPECT_EQ(s.taken(device_id{i}), (std::vector<std::uint64_t>{0, 3, 6, 9, 12, 15, 18, 21, 24, 27}));
    }
  }
}

TEST(broadcast, reaches_the_others_when_one_member_is_full_and_one_has_closed) {
  star s{5};
  s.fill(gpu1);
  s.close(gpu3);
  const auto result = s.route.try_broadcast(42);
  EXPECT_EQ(result.delivered, 2U);
  EXPECT_FALSE(result.reached_all());
  EXPECT_EQ(std::vector<routed>(result.members.begin(), result.members.end()),
            (std::vector<routed>{{gpu1, queue_status::full},
                                 {gpu2, queue_status::ok},
                                 {gpu3, queue_status::closed},
                                 {device_id{4}, queue_status::ok}}));
  EXPECT_EQ(s.taken(gpu2), (std::vector<std::uint64_t>{42}));
  EXPECT_EQ(s.taken(device_id{4}), (std::vector<std::uint64_t>{42}));
  EXPECT_EQ(s.taken(gpu1), (std::vector<std::uint64_t>(16, 777)));
  EXPECT_EQ(s.route.statistics().broadcasts, 1U);
  EXPECT_EQ(s.route.statistics(gpu3).sent, 16U) << "before it learnt that the member has closed";
}

// ---- by key ---------------------------------------------------------------------------------------------------------

constexpr std::uint64_t keys = 20000;

std::vector<device_id> owners(const router<std::uint64_t>& route) {
  std::vector<device_id> all;
  for (std::uint64_t key = 0; key < keys; ++key) all.push_back(*route.owner_of(key));
  return all;
}

TEST(routing_by_key, spreads_keys_nearly_evenly) {
  for (int devices = 2; devices <= 9; ++devices) {
    star s{devices};
    for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{1} << 40}) {
      std::map<device_id, double> counts;
      for (std::uint64_t key = 0; key < keys; ++key) ++counts[*s.route.owner_of(key * step)];
      const double expected = static_cast<double>(keys) / (devices - 1);
      ASSERT_EQ(counts.size(), static_cast<std::size_t>(devices - 1));
      for (const auto& [member, count] : counts) {
        EXPECT_NEAR(count, expected, 0.1 * expected) << to_string(member) << " of " << devices - 1 << ", step " << step;
      }
    }
  }
}

TEST(routing_by_key, moves_only_the_keys_of_the_member_that_leaves) {
  for (int devices = 3; devices <= 9; ++devices) {
    for (int gone = 1; gone < devices; ++gone) {
      star s{devices};
      const auto before = owners(s.route);
      EXPECT_TRUE(s.route.leave(device_id{gone}));
      EXPECT_FALSE(s.route.leave(device_id{gone}));
      const auto after = owners(s.route);
      std::map<device_id, int> heirs;
      for (std::size_t key = 0; key < keys; ++key) {
        if (before[key] == device_id{gone}) {
          ASSERT_NE(after[key], device_id{gone});
          ++heirs[after[key]];
        } else {
          ASSERT_EQ(after[key], before[key]) << "key " << key << " of a member that stayed";
        }
      }
      EXPECT_EQ(heirs.size(), static_cast<std::size_t>(devices - 2)) << "the keys of one go to all the others";
      s.route.join(device_id{gone}, s.network.sender(gpu0, device_id{gone}));
      EXPECT_EQ(owners(s.route), before) << "and come back with it, though it stands last now";
    }
  }
}

TEST(routing_by_key, delivers_to_the_owner) {
  star s{6};
  for (std::uint64_t key = 0; key < 20; ++key) {
    const routed went = s.route.try_send_by_key(key, key * 7);
    ASSERT_EQ(went, (routed{*s.route.owner_of(key), queue_status::ok}));
    ASSERT_EQ(s.taken(went.to), (std::vector<std::uint64_t>{key * 7}));
    ASSERT_EQ(s.route.send_by_key(key, 1), went);
    ASSERT_EQ(s.taken(went.to), (std::vector<std::uint64_t>{1}));
  }
}

TEST(routing_by_key, keeps_a_key_with_its_owner_even_when_that_is_full_or_closed) {
  star s{4};
  const device_id owner = *s.route.owner_of(11);
  s.fill(owner);
  EXPECT_EQ(s.route.try_send_by_key(11, 1), (routed{owner, queue_status::full}));
  s.network.receiver(gpu0, owner).close();
  EXPECT_EQ(s.route.try_send_by_key(11, 1), (routed{owner, queue_status::closed}));
  EXPECT_TRUE(s.route.leave(owner));
  const routed went = s.route.try_send_by_key(11, 1);
  EXPECT_EQ(went.status, queue_status::ok);
  EXPECT_NE(went.to, owner);
}

// ---- to the next ----------------------------------------------------------------------------------------------------

TEST(routing_to_the_next, takes_the_members_in_turn) {
  for (int devices = 2; devices <= 8; ++devices) {
    star s{devices};
    for (int i = 0; i < 3 * (devices - 1); ++i) {
      EXPECT_EQ(s.route.try_send_to_next(static_cast<std::uint64_t>(i)),
                (routed{device_id{1 + i % (devices - 1)}, queue_status::ok}));
    }
    for (int i = 1; i < devices; ++i) EXPECT_EQ(s.taken(device_id{i}).size(), 3U);
  }
}

TEST(routing_to_the_next, passes_over_who_is_full_or_closed) {
  star s{5};
  s.fill(gpu1);
  s.close(gpu3);
  std::vector<device_id> went;
  for (std::uint64_t i = 0; i < 8; ++i) went.push_back(s.route.try_send_to_next(i).to);
  const device_id gpu4{4};
  EXPECT_EQ(went, (std::vector<device_id>{gpu2, gpu4, gpu2, gpu4, gpu2, gpu4, gpu2, gpu4}));
  EXPECT_EQ(s.taken(gpu1), std::vector<std::uint64_t>(16, 777));
  EXPECT_EQ(s.taken(gpu2), (std::vector<std::uint64_t>{0, 2, 4, 6}));
}

TEST(routing_to_the_next, when_nobody_takes_it_says_full_before_closed) {
  star s{3};
  s.close(gpu1);
  s.fill(gpu2);
  EXPECT_EQ(s.route.try_send_to_next(1), (routed{gpu2, queue_status::full}));
  s.network.receiver(gpu0, gpu2).close();
  EXPECT_EQ(s.route.try_send_to_next(1), (routed{device_id{}, queue_status::closed}));
}

TEST(routing_to_the_next, goes_on_in_turn_when_a_member_leaves) {
  star s{5};
  EXPECT_EQ(s.route.try_send_to_next(0).to, gpu1);
  EXPECT_EQ(s.route.try_send_to_next(0).to, gpu2);
  EXPECT_TRUE(s.route.leave(gpu1));
  EXPECT_EQ(s.route.try_send_to_next(0).to, gpu3);
  EXPECT_TRUE(s.route.leave(device_id{4}));
  EXPECT_EQ(s.route.try_send_to_next(0).to, gpu2);
  EXPECT_EQ(s.route.try_send_to_next(0).to, gpu3);
}

TEST(router, works_while_the_members_receive_on_threads_of_their_own) {
  constexpr int devices = 3;
  constexpr std::uint64_t messages = 3000;
  star s{devices};
  std::array<std::uint64_t, devices> received{}, broadcasts{};
  std::vector<std::thread> threads;
  for (int i = 1; i < devices; ++i) {
    threads.emplace_back([&, i] {
      const auto at = static_cast<std::size_t>(i);
      std::uint64_t got = 0, last = 0;
      while (s.network.receiver(gpu0, device_id{i}).receive(got) == queue_status::ok) {
        ++received[at];
        if (got % 2 == 1) ++broadcasts[at];
        EXPECT_GT(got, last);
        last = got;
      }
    });
  }
  std::uint64_t sent_to_next = 0;
  std::array<std::uint64_t, devices> reached{};
  for (std::uint64_t i = 1; i <= messages; ++i) {
    if (i % 2 == 1) {
      for (const routed& member : s.route.try_broadcast(i).members) {
        if (member.status == queue_status::ok) ++reached[member.to.index()];
      }
    } else if (s.route.try_send_to_next(i).status == queue_status::ok) {
      ++sent_to_next;
    } else {
      std::this_thread::yield();
    }
  }
  for (int i = 1; i < devices; ++i) s.network.sender(gpu0, device_id{i}).close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(broadcasts, reached);
  EXPECT_EQ(received[1] + received[2], sent_to_next + reached[1] + reached[2]);
  EXPECT_EQ(s.route.statistics(gpu1).sent, received[1]);
  EXPECT_EQ(s.route.statistics(gpu2).sent, received[2]);
}

// ---- the ring -------------------------------------------------------------------------------------------------------

struct note {
  int author = -1;
  std::uint32_t visits = 0;
};

struct circle {
  explicit circle(int devices, std::uint32_t limit = weft::ring_stop<note>::usual_hop_limit)
      : m(play(wired(devices))), ring(weft::make_ring<weft::travelling<note>>(m, first(devices), small())) {
    for (int i = 0; i < devices; ++i)
      stops.push_back(std::make_unique<weft::ring_stop<note>>(ring, device_id{i}, limit));
  }

  machine m;
  weft::queue_network<weft::travelling<note>> ring;
  std::vector<std::unique_ptr<weft::ring_stop<note>>> stops;
};

TEST(ring, brings_a_message_round_to_every_device_in_turn_and_home) {
  for (int devices = 2; devices <= 8; ++devices) {
    circle c{devices};
    ASSERT_EQ(c.stops[0]->try_send({0, 0}), queue_status::ok);
    for (int i = 1; i <= devices; ++i) {
      auto& stop = *c.stops[static_cast<std::size_t>(i % devices)];
      ASSERT_EQ(stop.try_step([&](note& body, device_id origin, std::uint32_t hops) {
        EXPECT_EQ(origin, gpu0);
        EXPECT_EQ(hops, static_cast<std::uint32_t>(i));
        EXPECT_EQ(body.visits, static_cast<std::uint32_t>(i - 1)) << "what the others wrote into it";
        ++body.visits;
        return origin != stop.here();
      }),
                queue_status::ok);
    }
    for (const auto& stop : c.stops) {
      EXPECT_EQ(stop->try_step([](note&, device_id, std::uint32_t) { return true; }), queue_status::empty);
    }
    EXPECT_EQ(c.stops[0]->statistics(), (weft::ring_statistics{1, 1, 0, 0}));
    EXPECT_EQ(c.stops[1]->statistics(), (weft::ring_statistics{0, 1, 1, 0}));
  }
}

TEST(ring, drops_and_counts_what_would_make_one_hop_too_many) {
  for (int devices = 2; devices <= 8; ++devices) {
    for (const std::uint32_t limit : {1U, 3U, 8U, 19U}) {
      circle c{devices, limit};
      ASSERT_EQ(c.stops[1]->try_send({1, 0}), queue_status::ok);
      std::uint32_t seen = 0;
      for (bool moving = true; moving;) {
        moving = false;
        for (const auto& stop : c.stops) {
          moving |= stop->try_step([&](note&, device_id, std::uint32_t hops) {
            EXPECT_EQ(hops, ++seen);
            return true;
          }) == queue_status::ok;
        }
        ASSERT_LE(seen, limit);
      }
      EXPECT_EQ(seen, limit) << "hops that were made";
      std::uint64_t expired = 0;
      for (const auto& stop : c.stops) expired += stop->statistics().expired;
      EXPECT_EQ(expired, 1U);
      EXPECT_EQ(c.stops[(1 + limit) % c.stops.size()]->statistics().expired, 1U) << "where its last hop ended";
    }
  }
}

TEST(ring, keeps_a_message_that_cannot_go_on_and_shows_it_once) {
  circle c{3};
  while (c.stops[1]->try_send({1, 0}) == queue_status::ok) {
  }
  ASSERT_EQ(c.stops[0]->try_send({0, 0}), queue_status::ok);
  int visits = 0;
  const auto visit = [&](note& body, device_id origin, std::uint32_t) {
    EXPECT_EQ(origin, gpu0);
    EXPECT_EQ(body.author, 0);
    ++visits;
    return true;
  };
  EXPECT_EQ(c.stops[1]->try_step(visit), queue_status::full);
  EXPECT_TRUE(c.stops[1]->holds());
  EXPECT_EQ(c.stops[1]->try_step(visit), queue_status::full);
  EXPECT_EQ(visits, 1);
  std::vector<int> authors;
  const auto take = [&](note& body, device_id, std::uint32_t) {
    authors.push_back(body.author);
    return false;
  };
  while (c.stops[2]->try_step(take) == queue_status::ok) {
  }
  EXPECT_EQ(c.stops[1]->try_step(visit), queue_status::ok);
  EXPECT_FALSE(c.stops[1]->holds());
  EXPECT_EQ(visits, 1);
  EXPECT_EQ(c.stops[2]->try_step(take), queue_status::ok);
  EXPECT_EQ(std::count(authors.begin(), authors.end(), 1), 16);
  EXPECT_EQ(std::count(authors.begin(), authors.end(), 0), 1);
}

TEST(ring, a_stop_at_a_device_outside_the_ring_is_refused) {
  const machine m = play(wired(4));
  auto ring = weft::make_ring<weft::travelling<note>>(m, first(3), small());
  EXPECT_EQ(error_of([&] { (void)weft::ring_stop<note>(ring, gpu3); }).code, errc::not_found);
  EXPECT_EQ(error_of([&] { (void)weft::ring_stop<note>(ring, gpu0, 0); }).code, errc::invalid_argument);
  auto mesh = weft::make_mesh<weft::travelling<note>>(m, first(3), small());
  EXPECT_EQ(error_of([&] { (void)weft::ring_stop<note>(mesh, gpu0); }).code, errc::invalid_argument);
}

TEST(ring, works_with_a_thread_on_every_device) {
  for (int devices = 2; devices <= 4; ++devices) {
    constexpr int own = 200;
    circle c{devices};
    std::vector<std::thread> threads;
    std::vector<int> came_home(static_cast<std::size_t>(devices)), passed(static_cast<std::size_t>(devices));
    std::atomic<int> done{0};
    for (int i = 0; i < devices; ++i) {
      threads.emplace_back([&, i] {
        const auto at = static_cast<std::size_t>(i);
        auto& stop = *c.stops[at];
        int sent = 0;
        bool counted = false;
        const auto until = std::chrono::steady_clock::now() + samples::soon;
        while (done.load() != devices && std::chrono::steady_clock::now() < until) {
          // three on the way at a time: fewer than fill the ring
          if (sent < own && sent - came_home[at] < 3 && stop.try_send({i, 0}) == queue_status::ok) ++sent;
          const queue_status status = stop.try_step([&](note& body, device_id origin, std::uint32_t hops) {
            if (origin == device_id{i}) {
              EXPECT_EQ(hops, static_cast<std::uint32_t>(devices));
              EXPECT_EQ(body.author, i);
              ++came_home[at];
              return false;
            }
            ++passed[at];
            return true;
          });
          if (came_home[at] == own && !counted) {
            counted = true;
            ++done;
          }
          if (status == queue_status::empty) std::this_thread::yield();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(came_home, std::vector<int>(static_cast<std::size_t>(devices), own));
    EXPECT_EQ(passed, std::vector<int>(static_cast<std::size_t>(devices), own * (devices - 1)));
  }
}

}  // namespace router_test
