// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/route.hpp"

#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace route_test {

using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using weft::bytes;
using weft::copy_path;
using weft::device_id;
using weft::errc;
using weft::lane_facts;
using weft::route_facts;
using weft::route_wish;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

/// N devices without any usable pair; every way to and from the host as given.
route_facts unjoined(std::size_t devices, lane_facts host) {
  route_facts facts;
  facts.devices = devices;
  facts.pairs.resize(devices * devices);
  facts.to_host.assign(devices, host);
  facts.from_host.assign(devices * devices, host);
  facts.local.assign(devices, {500e9, 0});
  return facts;
}
void join(route_facts& facts, device_id a, device_id b, lane_facts lane) {
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    facts.pairs[from.index() * facts.devices + to.index()] = {lane, true, true, false};
  }
}
route_wish wish(copy_path path, device_id via = {}) {
  route_wish made;
  made.path = path;
  made.via = via;
  return made;
}

/// A pipeline of two stages, chunk by chunk: a stage does one chunk at a time, in order, and a chunk enters the second
/// when it has left the first.
double simulate(const lane_facts& first, const lane_facts& second, std::uint64_t size, std::uint64_t chunk) {
  double in_done = 0, out_done = 0;
  for (std::uint64_t at = 0; at < size; at += chunk) {
    const auto n = static_cast<double>(std::min(chunk, size - at));
    in_done += first.latency_seconds + n / first.bytes_per_second;
    out_done = std::max(out_done, in_done) + second.latency_seconds + n / second.bytes_per_second;
  }
  return out_done;
}

bool same_choice(const weft::route_choice& a, const weft::route_choice& b) {
  return a.path == b.path && a.via == b.via && a.chunk == b.chunk && a.depth == b.depth &&
         a.predicted_seconds == b.predicted_seconds;
}

TEST(route, is_a_pure_function_on_every_shipped_machine) {
  for (const std::string_view name : weft::shipped_topologies()) {
    const weft::topology layout = samples::shipped(name);
    const route_facts facts = weft::route_facts_of(layout);
    const route_facts again = weft::route_facts_of(layout);
    for (int from = 0; from < layout.device_count(); ++from) {
      for (int to = 0; to < layout.device_count(); ++to) {
        for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{65'537}, 64 * mib}) {
          const auto one = weft::route(facts, device_id{from}, device_id{to}, bytes{size});
          ASSERT_TRUE(one) << name;
          ASSERT_TRUE(same_choice(*one, *weft::route(again, device_id{from}, device_id{to}, bytes{size}))) << name;
          if (from == to) {
            EXPECT_EQ(one->path, copy_path::same_device);
            continue;
          }
          const bool offered =
              layout.can_access(device_id{from}, device_id{to}) || layout.can_access(device_id{to}, device_id{from});
          if (!offered) {
            EXPECT_NE(one->path, copy_path::direct) << name << " " << from << " to " << to;
          }
          if (one->path != copy_path::direct) {
            EXPECT_GE(one->depth, 1);
            EXPECT_EQ(one->chunk == 0, size == 0);
          }
        }
      }
    }
  }
}

TEST(route, no_other_way_is_predicted_to_be_faster) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random{seed};
    const auto lane = [&] {  // one in eight is of unknown speed
      const double rate = std::pow(10.0, 8 + static_cast<double>(random() % 40) / 10);
      return weft::lane_facts{random() % 8 == 0 ? 0 : rate, static_cast<double>(random() % 20) * 1e-6};
    };
    route_facts facts;
    facts.devices = 5;
    facts.pairs.resize(25);
    facts.from_host.resize(25);
    for (std::size_t i = 0; i < 25; ++i) {
      facts.pairs[i].usable = i % 6 != 0 && random() % 3 != 0;
      facts.pairs[i].lane = lane();
      facts.from_host[i] = lane();
    }
    for (int d = 0; d < 5; ++d) {
      facts.to_host.push_back(lane());
      facts.local.push_back(lane());
    }
    for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{65'537}, 64 * mib}) {
      for (int to = 1; to < 5; ++to) {
        const auto all = weft::explain_route(facts, device_id{0}, device_id{to}, bytes{size}, {});
        ASSERT_TRUE(all) << seed;
        const weft::route_choice& chosen = all->chosen;
        for (const weft::route_alternative& other : all->rejected) {
          if (!other.predicted_seconds || (chosen.path == copy_path::direct && chosen.predicted_seconds <= 0)) continue;
          EXPECT_GE(*other.predicted_seconds, chosen.predicted_seconds)
              << "seed " << seed << ", " << size << " bytes to " << to << ": " << to_string(other.path);
          EXPECT_GT(chosen.predicted_seconds, 0) << "seed " << seed << ": a way of known speed was there";
        }
      }
    }
  }
}

TEST(route, takes_the_link_where_there_is_one_and_the_host_where_there_is_none) {
  const auto path = [](const char* name, int from, int to) {
    return weft::route(weft::route_facts_of(samples::shipped(name)), device_id{from}, device_id{to}, bytes{64 * mib})
        ->path;
  };
  EXPECT_EQ(path("pair_nvlink", 0, 1), copy_path::direct);
  EXPECT_EQ(path("dgx_h100", 2, 7), copy_path::direct);
  EXPECT_EQ(path("mi300x_8", 7, 0), copy_path::direct);
  EXPECT_EQ(path("two_socket_8", 0, 3), copy_path::direct);
  EXPECT_EQ(path("two_socket_8", 0, 5), copy_path::staged);
  EXPECT_EQ(path("ring_3_no_p2p", 0, 1), copy_path::staged);
  EXPECT_EQ(path("mixed_3", 2, 0), copy_path::staged);
}

TEST(route, leaves_a_link_that_is_slower_than_the_host) {
  route_facts facts = unjoined(2, {20e9, 2e-6});
  join(facts, gpu0, gpu1, {1e9, 1e-6});
  EXPECT_EQ(weft::route(facts, gpu0, gpu1, bytes{64 * mib})->path, copy_path::staged);
  EXPECT_EQ(weft::route(facts, gpu0, gpu1, bytes{100})->path, copy_path::direct)
      << "a few bytes: one latency beats two";
}

TEST(route, goes_through_a_third_device_when_that_beats_the_host) {
  route_facts facts = unjoined(4, {5e9, 10e-6});
  join(facts, gpu0, gpu1, {50e9, 1e-6});
  join(facts, gpu1, gpu2, {50e9, 1e-6});
  join(facts, gpu0, device_id{3}, {50e9, 1e-6});
  join(facts, device_id{3}, gpu2, {80e9, 1e-6});  // the better way round
  const auto choice = weft::route(facts, gpu0, gpu2, bytes{64 * mib});
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->path, copy_path::relayed);
  EXPECT_EQ(choice->via, device_id{3});
  EXPECT_GT(choice->chunk, 0U);
  EXPECT_EQ(choice->depth, 3);
  facts.to_host.assign(4, {60e9, 1e-6});
  facts.from_host.assign(16, {60e9, 1e-6});
  EXPECT_EQ(weft::route(facts, gpu0, gpu2, bytes{64 * mib})->path, copy_path::staged) << "now the host is faster";
}

TEST(route, needs_both_links_of_a_detour) {
  route_facts facts = unjoined(3, {5e9, 10e-6});
  join(facts, gpu0, gpu1, {50e9, 1e-6});
  EXPECT_EQ(weft::route(facts, gpu0, gpu2, bytes{64 * mib})->path, copy_path::staged);
  const auto refused = weft::route(facts, gpu0, gpu2, bytes{mib}, wish(copy_path::relayed));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::peer_unsupported);
}

TEST(route, does_not_choose_a_detour_of_unknown_speed) {
  route_facts facts = unjoined(4, {5e9, 10e-6});
  join(facts, gpu0, gpu1, {0, 0});
  join(facts, gpu1, gpu2, {0, 0});
  EXPECT_EQ(weft::route(facts, gpu0, gpu2, bytes{64 * mib})->path, copy_path::staged);
  const auto asked = weft::route(facts, gpu0, gpu2, bytes{64 * mib}, wish(copy_path::relayed, gpu1));
  ASSERT_TRUE(asked) << "but goes there when told to";
  EXPECT_EQ(asked->predicted_seconds, 0);
  EXPECT_GT(asked->chunk, 0U);
  const auto any = weft::route(facts, gpu0, gpu2, bytes{64 * mib}, wish(copy_path::relayed));
  ASSERT_TRUE(any) << any.error().what;
  EXPECT_EQ(any->via, gpu1) << "there is no other";
  join(facts, gpu0, device_id{3}, {1e9, 1e-6});
  join(facts, device_id{3}, gpu2, {1e9, 1e-6});
  EXPECT_EQ(weft::route(facts, gpu0, gpu2, bytes{64 * mib}, wish(copy_path::relayed))->via, device_id{3});
}

TEST(route, prefers_a_direct_link_of_unknown_speed_to_the_host) {
  route_facts facts = unjoined(2, {5e9, 10e-6});
  join(facts, gpu0, gpu1, {0, 0});
  const auto choice = weft::route(facts, gpu0, gpu1, bytes{64 * mib});
  EXPECT_EQ(choice->path, copy_path::direct);
  EXPECT_EQ(choice->predicted_seconds, 0) << "an unknown time is not guessed";
}

TEST(route, honours_a_wish_or_refuses_it_with_the_reason) {
  route_facts facts = unjoined(3, {5e9, 10e-6});
  join(facts, gpu0, gpu1, {50e9, 1e-6});
  join(facts, gpu1, gpu2, {50e9, 1e-6});
  EXPECT_EQ(weft::route(facts, gpu0, gpu1, bytes{mib}, wish(copy_path::staged))->path, copy_path::staged);
  EXPECT_EQ(weft::route(facts, gpu0, gpu1, bytes{mib}, wish(copy_path::direct))->path, copy_path::direct);
  EXPECT_EQ(weft::route(facts, gpu0, gpu2, bytes{mib}, wish(copy_path::relayed, gpu1))->via, gpu1);
  const auto expect_refused = [&](device_id from, device_id to, const route_wish& w, const char* text) {
    const auto got = weft::route(facts, from, to, bytes{mib}, w);
    ASSERT_FALSE(got) << text;
    EXPECT_EQ(got.error().code, errc::peer_unsupported);
    EXPECT_NE(got.error().what.find(text), std::string::npos) << got.error().what;
  };
  expect_refused(gpu0, gpu2, wish(copy_path::direct), "no peer path between gpu0 and gpu2");
  expect_refused(gpu0, gpu0, wish(copy_path::staged), "gpu0 alone");
  expect_refused(gpu0, gpu1, wish(copy_path::automatic, gpu2), "only a relayed one goes through another device");
  expect_refused(gpu0, gpu1, wish(copy_path::same_device), "same_device");
  expect_refused(gpu0, gpu1, wish(copy_path::host_to_device), "host_to_device");
  expect_refused(gpu0, gpu1, wish(copy_path::relayed, gpu0), "through gpu0");
  expect_refused(gpu0, gpu1, wish(copy_path::relayed, device_id{9}), "no gpu9");
  route_wish fast = wish(copy_path::relayed, gpu1);
  fast.min_bytes_per_second = 60e9;
  expect_refused(gpu0, gpu2, fast, "slower than was asked for");
  facts.pairs[1].usable = facts.pairs[3].usable = false;
  expect_refused(gpu0, gpu1, wish(copy_path::direct), "not enabled");
}

TEST(route, expects_a_copy_on_one_device_to_read_and_to_write_all_of_its_bytes) {
  const weft::topology layout = samples::shipped("dgx_h100");
  const double rate = layout.devices[2].bytes_per_second;
  ASSERT_GT(rate, 0);
  const auto choice = weft::route(weft::route_facts_of(layout), gpu2, gpu2, bytes{64 * mib});
  ASSERT_TRUE(choice);
  EXPECT_DOUBLE_EQ(choice->predicted_seconds, 2 * 64.0 * mib / rate);
}

TEST(route, knows_no_device_outside_the_machine) {
  const route_facts facts = unjoined(2, {5e9, 0});
  for (const auto& [from, to] : {std::pair{0, 2}, std::pair{2, 0}, std::pair{-1, 0}, std::pair{0, 1'000'000}}) {
    const auto got = weft::route(facts, device_id{from}, device_id{to}, bytes{1});
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, errc::invalid_device);
  }
}

TEST(route_report, says_why_each_other_way_lost) {
  route_facts facts = unjoined(4, {5e9, 10e-6});
  join(facts, gpu0, gpu1, {50e9, 1e-6});
  join(facts, gpu0, gpu2, {50e9, 1e-6});
  join(facts, gpu2, gpu1, {50e9, 1e-6});
  const auto report = weft::explain_route(facts, gpu0, gpu1, bytes{64 * mib});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->chosen.path, copy_path::direct);
  ASSERT_EQ(report->rejected.size(), 3U) << "staged, through gpu2, through gpu3";
  EXPECT_EQ(report->rejected[0].path, copy_path::staged);
  ASSERT_TRUE(report->rejected[0].predicted_seconds);
  EXPECT_NE(report->rejected[0].why.find("times as long"), std::string::npos) << report->rejected[0].why;
  EXPECT_EQ(report->rejected[1].via, gpu2);
  EXPECT_TRUE(report->rejected[1].predicted_seconds);
  EXPECT_EQ(report->rejected[2].via, device_id{3});
  EXPECT_FALSE(report->rejected[2].predicted_seconds);
  EXPECT_NE(report->rejected[2].why.find("no usable peer path"), std::string::npos) << report->rejected[2].why;
  for (const auto& other : report->rejected) {
    if (other.predicted_seconds) {
      EXPECT_GE(*other.predicted_seconds, report->chosen.predicted_seconds);
    }
  }
  const auto asked = weft::explain_route(facts, gpu0, gpu1, bytes{mib}, wish(copy_path::staged));
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->chosen.path, copy_path::staged);
  EXPECT_EQ(asked->rejected[0].path, copy_path::direct);
  EXPECT_EQ(asked->rejected[0].why, "not asked for");
  EXPECT_FALSE(weft::explain_route(facts, gpu1, device_id{3}, bytes{mib}, wish(copy_path::direct)));
  EXPECT_TRUE(weft::explain_route(facts, gpu0, gpu0, bytes{mib})->rejected.empty());
}

TEST(route_report, tells_a_link_that_is_too_slow_from_none_and_an_unknown_time_from_that_of_the_chosen_way) {
  route_facts facts = unjoined(3, {5e9, 10e-6});
  join(facts, gpu0, gpu1, {1e9, 1e-6});
  join(facts, gpu0, gpu2, {50e9, 1e-6});
  join(facts, gpu2, gpu1, {1e9, 1e-6});
  route_wish fast;
  fast.min_bytes_per_second = 10e9;
  const auto slow = weft::explain_route(facts, gpu0, gpu1, bytes{mib}, fast);
  ASSERT_TRUE(slow);
  ASSERT_EQ(slow->rejected.size(), 2U) << "direct, through gpu2";
  EXPECT_EQ(slow->rejected[0].why, "the link between gpu0 and gpu1 is slower than was asked for");
  EXPECT_EQ(slow->rejected[1].why, "the link between gpu2 and gpu1 is slower than was asked for");
  join(facts, gpu0, gpu1, {0, 0});
  join(facts, gpu2, gpu1, {0, 0});
  const auto unknown = weft::explain_route(facts, gpu0, gpu1, bytes{mib});
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->chosen.path, copy_path::direct);
  ASSERT_EQ(unknown->rejected.size(), 2U) << "staged, through gpu2";
  EXPECT_TRUE(unknown->rejected[0].predicted_seconds);
  EXPECT_TRUE(unknown->rejected[0].why.starts_with("the time of the chosen way is not known"));
  EXPECT_TRUE(unknown->rejected[1].why.starts_with("its time is not known"));
}

TEST(route, is_direct_where_the_driver_copies_without_access) {
  route_facts facts = unjoined(3, {10e9, 5e-6});
  weft::pair_facts& pair = facts.pairs[0 * 3 + 1];
  pair.can_copy = pair.usable = true;
  EXPECT_EQ(weft::value_or_raise(weft::route(facts, gpu0, gpu1, bytes{mib})).path, copy_path::direct);
  EXPECT_EQ(weft::value_or_raise(weft::route(facts, gpu1, gpu0, bytes{mib})).path, copy_path::staged);
  pair.usable = false;  // what a self-check distrusts is not used, and not because there is no path
  const auto refused = weft::route(facts, gpu0, gpu1, bytes{mib}, wish(copy_path::direct));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("was found not to work"), std::string::npos) << refused.error().what;
}

TEST(pipeline, takes_as_long_as_its_chunks_one_by_one) {
  for (const lane_facts first : {lane_facts{10e9, 5e-6}, lane_facts{3e9, 0}, lane_facts{25e9, 50e-6}}) {
    for (const lane_facts second : {lane_facts{10e9, 5e-6}, lane_facts{40e9, 1e-6}, lane_facts{2e9, 20e-6}}) {
      for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{65'536},
                                       std::uint64_t{65'537}, mib - 1, 3 * mib, 64 * mib + 12'345, 1024 * mib}) {
        const auto plan = weft::plan_pipeline(first, second, bytes{size});
        const double exact = simulate(first, second, size, plan.chunk);
        EXPECT_NEAR(plan.seconds, exact, exact * 1e-9) << size << " in chunks of " << plan.chunk;
      }
    }
  }
}

TEST(pipeline, has_a_chunk_within_five_percent_of_the_best_one) {
  for (const lane_facts first : {lane_facts{10e9, 5e-6}, lane_facts{25e9, 10e-6}, lane_facts{12e9, 2e-6}}) {
    for (const lane_facts second : {lane_facts{10e9, 5e-6}, lane_facts{20e9, 2e-6}, lane_facts{6e9, 8e-6}}) {
      for (const std::uint64_t size : {2 * mib, 16 * mib + 77, 64 * mib, 256 * mib}) {
        double best = 1e300;
        std::uint64_t best_chunk = 0;
        for (std::uint64_t chunk = 4096; chunk <= size;
             chunk += std::max<std::uint64_t>(4096, chunk / 64 / 4096 * 4096)) {
          const double t = simulate(first, second, size, chunk);
          if (t < best) {
            best = t;
            best_chunk = chunk;
          }
        }
        best = std::min(best, simulate(first, second, size, size));
        const auto plan = weft::plan_pipeline(first, second, bytes{size});
        EXPECT_LE(plan.seconds, best * 1.05) << size << ": chunk " << plan.chunk << ", best " << best_chunk
                                             << "; lanes " << first.bytes_per_second << "/" << second.bytes_per_second;
      }
    }
  }
}

TEST(pipeline, a_pipeline_for_no_bytes_takes_no_time) {
  const auto plan = weft::plan_pipeline({10e9, 5e-6}, {10e9, 5e-6}, bytes{0});
  EXPECT_EQ(plan.chunk, 0U);
  EXPECT_EQ(plan.seconds, 0);
}

TEST(pipeline, a_pipeline_of_unknown_rates_has_a_chunk_but_no_time) {
  for (const auto& [first, second] :
       {std::pair{lane_facts{}, lane_facts{10e9, 1e-6}}, std::pair{lane_facts{10e9, 1e-6}, lane_facts{}},
        std::pair{lane_facts{}, lane_facts{}}}) {
    const auto plan = weft::plan_pipeline(first, second, bytes{64 * mib});
    EXPECT_GT(plan.chunk, 0U);
    EXPECT_LE(plan.chunk, 64 * mib);
    EXPECT_GE(plan.depth, 1);
    EXPECT_EQ(plan.seconds, 0);
  }
}

}  // namespace route_test
