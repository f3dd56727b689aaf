// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/multicast.hpp"

#include "runtime/machine_state.hpp"
#include "support/hang.hpp"
#include "support/samples.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <limits>
#include <thread>

namespace multicast_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using weft::access_right;
using weft::device_id;
using weft::errc;
using weft::machine;
using weft::mapping;
using weft::multicast_object;
using weft::multicast_reduction;
using weft::physical_block;
using namespace std::chrono_literals;
using namespace weft::literals;

constexpr std::array<device_id, 3> all{gpu0, gpu1, gpu2};

/// Three devices that have joined, each with its own mapping of its replica.
struct team {
  machine m = samples::play(samples::wired(3));
  multicast_object group{m, all, 1_MiB};
  std::vector<mapping> replicas;

  team() {
    for (const device_id id : all) group.add(id);
    for (const device_id id : all) {
      const physical_block block{m[id], group.size()};
      weft::value_or_raise(group.bind(block, samples::only_a_hang));
      replicas.emplace_back(block);
      replicas.back().grant(id, access_right::read_write);
      weft::fill(replicas.back().span<std::uint8_t>(), std::uint8_t{0});
    }
  }
  template <class T>
  [[nodiscard]] weft::device_span<T> on(device_id id) const {
    return replicas[id.index()].span<T>();
  }
};

template <class T>
std::vector<T> read(weft::device_span<T> memory) {
  std::vector<T> got(memory.size());
  weft::copy(got, memory);
  return got;
}

TEST(multicast, store_reaches_every_replica) {
  const team t;
  std::vector<std::int32_t> data(1000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::int32_t>(i * 7);
  t.group.store(weft::stream{t.m[1]}, 5, data).wait();
  for (const device_id id : all) {
    const auto got = read(t.on<std::int32_t>(id).first(1006));
    EXPECT_EQ(std::vector<std::int32_t>(got.begin() + 5, got.begin() + 1005), data) << to_string(id);
    EXPECT_EQ(got[4], 0);
    EXPECT_EQ(got[1005], 0);
  }
}

TEST(multicast, store_takes_memory_of_its_device) {
  const team t;
  const weft::buffer<float> mine{t.m[0], 10};
  weft::fill(mine, 1.5F);
  t.group.store(weft::stream{t.m[0]}, 0, mine).wait();
  for (const device_id id : all) EXPECT_EQ(read(t.on<float>(id).first(10)), std::vector<float>(10, 1.5F));
  EXPECT_EQ(error_of([&] { t.group.store(weft::stream{t.m[1]}, 0, mine); }).code, errc::invalid_argument)
      << "gpu1 may not read it";
}

TEST(multicast, load_gives_the_sum_the_smallest_or_the_largest_of_all_replicas) {
  const team t;
  for (const device_id id : all) weft::fill(t.on<std::int32_t>(id), (id.value() - 1) * 10 + 1);
  const weft::buffer<std::int32_t> out{t.m[2], 100};
  const weft::stream order{t.m[2]};
  t.group.load(order, out, 3).wait();
  EXPECT_EQ(read(out.span()), std::vector<std::int32_t>(100, -9 + 1 + 11));
  t.group.load(order, out, 3, multicast_reduction::min).wait();
  EXPECT_EQ(read(out.span()), std::vector<std::int32_t>(100, -9));
  std::vector<std::int32_t> host(100);
  t.group.load(order, host, 3, multicast_reduction::max).wait();
  EXPECT_EQ(host, std::vector<std::int32_t>(100, 11));
}

TEST(multicast, load_takes_elements_as_the_type_of_its_destination) {
  const team t;
  const weft::stream order{t.m[0]};
  for (const device_id id : all) weft::fill(t.on<double>(id), 0.25 * (id.value() + 1));
  std::vector<double> real(4);
  t.group.load(order, real, 1).wait();
  EXPECT_EQ(real, std::vector<double>(4, 1.5));
  for (const device_id id : all) weft::fill(t.on<std::uint8_t>(id), std::uint8_t{100});
  std::vector<std::uint8_t> small(4);
  t.group.load(order, small, 1).wait();
  EXPECT_EQ(small, std::vector<std::uint8_t>(4, 300 - 256)) << "integers wrap";
  for (const device_id id : all) weft::fill(t.on<std::int64_t>(id), std::int64_t{-5});
  std::vector<std::int64_t> wide(1);
  t.group.load(order, wide, 0, multicast_reduction::max).wait();
  EXPECT_EQ(wide[0], -5);
}

TEST(multicast, bind_before_all_have_joined_ends_at_its_deadline_and_names_who_is_missing) {
  const machine m = samples::play(samples::wired(3));
  multicast_object group{m, all, 1_MiB};
  group.add(gpu1);
  const auto bound = group.bind(physical_block{m[1], group.size()}, 5ms);
  ASSERT_FALSE(bound);
  EXPECT_EQ(bound.error().code, errc::timed_out);
  EXPECT_NE(bound.error().what.find("waits for gpu0, gpu2 to join"), std::string::npos) << bound.error().what;
  std::stop_source stop;
  stop.request_stop();
  const auto cancelled =
      group.bind(physical_block{m[1], group.size()}, std::chrono::nanoseconds::max(), stop.get_token());
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, errc::cancelled);
}

TEST(multicast, driver_refuses_to_bind_before_all_have_joined_where_hardware_would_hang) {
  const machine m = samples::play(samples::wired(3));
  weft::backend& raw = *weft::detail::state_of(m)->backends().front();
  const auto group = weft::value_or_raise(raw.create_multicast(2, 2_MiB));
  const auto block = weft::value_or_raise(raw.create_block(gpu0, 2_MiB, false));
  EXPECT_TRUE(raw.add_multicast_device(group, gpu0));
  const auto early = raw.bind_multicast(group, block);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, errc::not_ready);
  EXPECT_TRUE(raw.add_multicast_device(group, gpu1));
  EXPECT_TRUE(raw.bind_multicast(group, block));
  raw.release_multicast(group);
}

TEST(multicast, bind_waits_for_the_last_to_join) {
  const machine m = samples::play(samples::wired(3));
  // whoever is first, several times; without a deadline, so that only being told can end the wait
  for (int round = 0; round < 20; ++round) {
    multicast_object group{m, all, 1_MiB};
    group.add(gpu0);
    group.add(gpu1);
    const physical_block block{m[0], group.size()};
    std::jthread late{[&] { group.add(gpu2); }};
    const auto bound = group.bind(block, std::chrono::nanoseconds::max());
    EXPECT_TRUE(bound);
  }
}

TEST(multicast, wait_for_others_to_join_ends_when_the_machine_is_closed) {
  for (int round = 0; round < 20; ++round) {
    machine m = samples::play(samples::wired(3));
    const multicast_object group{m, all, 1_MiB};
    std::atomic<bool> begins{false};
    std::future<errc> end = std::async(std::launch::async, [&] {
      return error_of([&] {
               begins = true;
               weft::value_or_raise(group.wait_joined(samples::only_a_hang));
             })
          .code;
    });
    while (!begins) std::this_thread::yield();
    for (int i = 0; i < round * 8; ++i) std::this_thread::yield();  // mostly until it waits
    m.close();
    ASSERT_EQ(end.get(), errc::machine_closed) << round;
  }
}

TEST(multicast, needs_two_devices_that_reach_each_other) {
  const machine m = samples::play(samples::wired(3));
  const auto tried = [](const machine& on, std::span<const device_id> with) {
    return error_of([&] { multicast_object(on, with, 1_MiB); });
  };
  EXPECT_EQ(tried(m, {}).code, errc::unsupported);
  EXPECT_EQ(tried(m, std::span{all}.first(1)).code, errc::unsupported);
  const std::array twice{gpu0, gpu1, gpu0};
  EXPECT_EQ(tried(m, twice).code, errc::invalid_argument);
  const std::array unknown{gpu0, device_id{3}};
  EXPECT_EQ(tried(m, unknown).code, errc::invalid_device);
  EXPECT_EQ(error_of([&] { multicast_object(m, all, 0_B); }).code, errc::invalid_argument);
  weft::topology layout = samples::wired(3);
  layout.access[layout.pair(gpu2, gpu1)] = false;
  const weft::error apart = tried(samples::play(std::move(layout)), all);
  EXPECT_EQ(apart.code, errc::unsupported);
  EXPECT_NE(apart.what.find("gpu2"), std::string::npos) << apart.what;
}

TEST(multicast, refuses_strangers_and_what_is_done_twice) {
  team t;
  EXPECT_EQ(error_of([&] { t.group.add(device_id{3}); }).code, errc::wrong_device);
  EXPECT_EQ(error_of([&] { t.group.add(gpu1); }).code, errc::invalid_argument);
  const auto bind = [&](const physical_block& block) {
    return error_of([&] { weft::value_or_raise(t.group.bind(block, samples::only_a_hang)); }).code;
  };
  EXPECT_EQ(bind(physical_block(t.m[1], t.group.size())), errc::invalid_argument) << "bound before";
  const machine other = samples::play(samples::wired(3));
  EXPECT_EQ(bind(physical_block(other[1], t.group.size())), errc::wrong_device);
  const weft::buffer<int> theirs{other[0], 4};
  weft::device_span<int> gone;
  {
    const weft::buffer<int> freed{t.m[0], 4};
    gone = freed.span();
  }
  const weft::stream order{t.m[0]};
  EXPECT_EQ(error_of([&] { t.group.store(order, 0, theirs); }).code, errc::wrong_device);
  EXPECT_EQ(error_of([&] { t.group.load(order, theirs, 0); }).code, errc::wrong_device);
  EXPECT_EQ(error_of([&] { t.group.store(order, 0, gone); }).code, errc::not_found);
  EXPECT_EQ(error_of([&] { t.group.load(order, gone, 0); }).code, errc::not_found);
  const std::array pair{gpu0, gpu1};
  multicast_object two{t.m, pair, 8_MiB};
  two.add(gpu0);
  two.add(gpu1);
  EXPECT_EQ(error_of([&] { weft::value_or_raise(two.bind(physical_block{t.m[2], 8_MiB}, samples::only_a_hang)); }).code,
            errc::wrong_device);
  EXPECT_EQ(error_of([&] { weft::value_or_raise(two.bind(physical_block{t.m[0], 1_MiB}, samples::only_a_hang)); }).code,
            errc::invalid_argument)
      << "too small";
  weft::value_or_raise(two.bind(physical_block{t.m[0], 8_MiB}, samples::only_a_hang));
  const std::vector<int> data(4);
  EXPECT_EQ(error_of([&] { two.store(weft::stream{t.m[0]}, 0, data); }).code, errc::not_ready)
      << "gpu1 has bound nothing";
  EXPECT_EQ(error_of([&] { two.unbind(gpu1); }).code, errc::not_found);
}

TEST(multicast, stores_and_loads_stay_inside_and_belong_to_the_team) {
  team t;
  const std::vector<std::uint8_t> data(4);
  const weft::stream order{t.m[0]};
  EXPECT_EQ(error_of([&] { t.group.store(order, t.group.size().size() - 3, data); }).code, errc::out_of_range);
  EXPECT_EQ(error_of([&] { t.group.store(order, std::numeric_limits<std::size_t>::max(), data); }).code,
            errc::out_of_range);
  t.group.store(order, t.group.size().size() - 4, data).wait();
  const std::array pair{gpu0, gpu1};
  multicast_object two{t.m, pair, 1_MiB};
  for (const device_id id : pair) two.add(id);
  for (const device_id id : pair) weft::value_or_raise(two.bind(physical_block{t.m[id], 1_MiB}, samples::only_a_hang));
  EXPECT_EQ(error_of([&] { two.store(weft::stream{t.m[2]}, 0, data); }).code, errc::wrong_device);
  two.unbind(gpu1);
  EXPECT_EQ(error_of([&] { two.store(weft::stream{t.m[0]}, 0, data); }).code, errc::not_ready);
}

TEST(multicast, counts_what_crosses_the_links) {
  const team t;
  const auto before = t.m.traffic();
  t.group.store(weft::stream{t.m[0]}, 0, std::vector<std::uint8_t>(1000)).wait();
  const auto after = t.m.traffic();
  const weft::topology& layout = t.m.layout();
  std::uint64_t moved = 0;
  for (std::size_t i = 0; i < after.bytes_on_link.size(); ++i) {
    if (layout.links[i].from == 0) moved += after.bytes_on_link[i] - before.bytes_on_link[i];
  }
  EXPECT_EQ(moved, 2000U) << "one copy to each of the two others";
}

}  // namespace multicast_test
