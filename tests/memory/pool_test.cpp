// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/pool.hpp"

#include "support/samples.hpp"
#include "weft/memory/fill.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>

namespace pool_test {

using samples::byte_buffer;
using samples::error_of;
using weft::bytes;
using weft::errc;
using weft::machine;
using weft::memory_pool;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

TEST(memory_pool, keeps_data_apart_and_its_figures_right_for_random_sizes) {
  const machine m = samples::play(samples::wired(1));
  const std::uint64_t before = m[0].free_memory().value();
  {
    const memory_pool pool{m[0]};
    std::mt19937_64 random{7};
    struct owned {
      byte_buffer memory;
      std::uint64_t seed;
    };
    std::vector<owned> live;
    std::uint64_t asked = 0, high = 0, allocations = 0;
    for (std::uint64_t step = 0; step < 500; ++step) {
      if (live.empty() || random() % 5 < 3) {
        const std::size_t size = 1 + random() % (std::size_t{1} << (random() % 18));
        byte_buffer made{pool, size};
        weft::copy(made, samples::pattern(size, step));
        live.push_back({std::move(made), step});
        asked += size;
        ++allocations;
      } else {
        const std::size_t at = random() % live.size();
        ASSERT_TRUE(
            samples::same(samples::contents(live[at].memory), samples::pattern(live[at].memory.size(), live[at].seed)))
            << step;
        asked -= live[at].memory.size();
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
      const weft::pool_statistics now = pool.statistics();
      high = std::max(high, now.used.value());
      ASSERT_GE(now.used.value(), asked);
      // rounded up by a quarter, and then a block of half as much again
      ASSERT_LE(now.used.value(), asked * 15 / 8 + 384 * live.size()) << "less than half is unused";
      ASSERT_GE(now.reserved, now.used);
      ASSERT_EQ(now.used_high.value(), high);
      ASSERT_EQ(now.hits + now.misses, allocations);
      ASSERT_EQ(before - m[0].free_memory().value(), now.reserved.value());
    }
    EXPECT_GT(pool.statistics().hits, 50U) << "seed 7";
    live.clear();
    EXPECT_EQ(pool.statistics().used.value(), 0U);
    memory_pool{pool}.trim_to(bytes{0});
    EXPECT_EQ(pool.statistics().reserved.value(), 0U);
  }
  EXPECT_EQ(m[0].free_memory().value(), before);
}

TEST(memory_pool, does_not_hand_out_a_block_that_work_still_uses) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0]};
  const weft::stream order{m[0]};
  samples::gate hold;
  const void* busy = nullptr;
  {
    const byte_buffer first{pool, 1000};
    busy = first.data();
    hold.hold(order);
    weft::fill(order, first, std::uint8_t{1});
  }
  const byte_buffer second{pool, 1000};
  EXPECT_NE(second.data(), busy);
  hold.open();
  order.synchronize();
  const byte_buffer third{pool, 1000};
  EXPECT_EQ(third.data(), busy) << "ended work gives it free";
}

TEST(memory_pool, never_reserves_more_than_its_limit) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0], {.max_size = bytes{mib}}};
  std::vector<byte_buffer> held;
  for (int i = 0; i < 4; ++i) held.emplace_back(pool, mib / 4);
  const weft::error refused = error_of([&] { const byte_buffer more{pool, 1}; });
  EXPECT_EQ(refused.code, errc::out_of_memory);
  EXPECT_NE(refused.what.find("pool on gpu0"), std::string::npos) << refused.what;
  held.clear();
  const byte_buffer whole{pool, mib};  // what was free in quarters goes back for it
  EXPECT_EQ(pool.statistics().reserved.value(), mib);
  EXPECT_EQ(error_of([&] { const byte_buffer more{pool, 2 * mib}; }).code, errc::out_of_memory);
  EXPECT_EQ(error_of([&] { const byte_buffer more{pool, std::size_t{1} << 63}; }).code, errc::out_of_memory);
}

TEST(memory_pool, gives_all_of_its_limit_to_a_size_that_rounding_would_take_past_it) {
  const machine m = samples::play(samples::wired(1));
  for (const std::uint64_t limit : {std::uint64_t{1}, std::uint64_t{1000}, 100 * mib}) {  // 112 MiB when rounded
    const memory_pool pool{m[0], {.max_size = bytes{limit}}};
    for (int i = 0; i < 3; ++i) {
      const byte_buffer whole{pool, limit};
      EXPECT_EQ(pool.statistics().used.value(), limit);
      EXPECT_EQ(error_of([&] { const byte_buffer more{pool, 1}; }).code, errc::out_of_memory);
    }
    EXPECT_EQ(pool.statistics().hits, 2U) << "the free block serves its own size";
  }
  const memory_pool pool{m[0], {.max_size = bytes{100 * mib}}};
  const byte_buffer most{pool, 80 * mib}, rest{pool, 19 * mib};  // 20 MiB when rounded, which fit
  EXPECT_EQ(pool.statistics().reserved.value(), 100 * mib);
}

TEST(memory_pool, keeps_only_as_much_free_memory_as_it_was_told) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0], {.keep = bytes{0}}};
  const auto before = m[0].free_memory();
  {
    const byte_buffer one{pool, 5000};
  }
  EXPECT_EQ(m[0].free_memory(), before);
  EXPECT_EQ(pool.statistics().reserved.value(), 0U);
}

TEST(memory_pool, reuses_a_much_larger_block_rather_than_reserve_more_than_it_keeps) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0], {.keep = bytes{5 * mib}}};
  const auto use = [&](std::uint64_t size) { const byte_buffer one{pool, size}; };
  use(4 * mib);
  use(mib);
  EXPECT_EQ(pool.statistics().misses, 2U) << "both are within what is kept";
  use(2 * mib);
  EXPECT_EQ(pool.statistics().misses, 2U) << "the block of 4 MiB";
  {
    const byte_buffer large{pool, 4 * mib}, medium{pool, mib};
    use(mib / 8);
  }
  EXPECT_EQ(pool.statistics().misses, 3U) << "every block was in use";
  use(mib / 32);
  EXPECT_EQ(pool.statistics().misses, 4U) << "the smallest free block is four times as large, and then some";
}

TEST(memory_pool, gives_back_first_what_was_used_least_lately) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0], {.keep = bytes{5 * mib}}};
  const auto use = [&](std::uint64_t size) { const byte_buffer one{pool, size}; };
  use(2 * mib);
  use(mib / 4);
  use(2 * mib);
  use(4 * mib);  // one too many: the 256 KiB and the 2 MiB go, in this order, and this one stays
  EXPECT_EQ(pool.statistics().reserved.value(), 4 * mib);
  use(4 * mib);
  EXPECT_EQ(pool.statistics().misses, 3U);
}

TEST(memory_pool, a_block_that_alone_is_more_than_it_keeps_pushes_out_no_other) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0], {.keep = bytes{2 * mib}}};
  const auto use = [&](std::uint64_t size) { const byte_buffer one{pool, size}; };
  use(mib);
  use(8 * mib);
  EXPECT_EQ(pool.statistics().reserved.value(), mib);
  use(mib);
  EXPECT_EQ(pool.statistics().hits, 1U);
  EXPECT_EQ(error_of([&] { use(std::uint64_t{1} << 61); }).code, errc::out_of_memory);
}

TEST(memory_pool, gives_its_free_blocks_back_before_the_device_is_full) {
  const machine m = samples::play(samples::wired(1, {}, 4 * mib));
  const memory_pool pool{m[0]};
  {
    const byte_buffer big{pool, 3 * mib};
  }
  EXPECT_GE(pool.statistics().reserved.value(), 3 * mib);
  const byte_buffer other{pool, 7 * mib / 4};
  EXPECT_EQ(pool.statistics().used.value(), 7 * mib / 4);
}

TEST(memory_pool, takes_the_smallest_free_block_of_up_to_half_as_much_again) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0]};
  {
    const byte_buffer first{pool, 3 * mib / 2}, second{pool, 5 * mib / 4};
  }
  {
    const byte_buffer mine{pool, mib};
    EXPECT_EQ(pool.statistics().used.value(), 5 * mib / 4);
    const byte_buffer next{pool, mib};
    EXPECT_EQ(pool.statistics().used.value(), 11 * mib / 4);
    EXPECT_EQ(pool.statistics().hits, 2U);
    const byte_buffer none{pool, mib};
    EXPECT_EQ(pool.statistics().used.value(), 15 * mib / 4);
    EXPECT_EQ(pool.statistics().hits, 2U);
  }
  const byte_buffer small{pool, mib / 2};
  EXPECT_EQ(pool.statistics().hits, 2U) << "the smallest free block is twice as large";
}

TEST(memory_pool, outlives_its_handle_as_long_as_a_buffer_needs_it) {
  const machine m = samples::play(samples::wired(1));
  const auto before = m[0].free_memory();
  {
    byte_buffer kept;
    {
      const memory_pool pool{m[0]};
      kept = byte_buffer{pool, 1000};
    }
    weft::copy(kept, samples::pattern(1000, 1));
    EXPECT_TRUE(samples::same(samples::contents(kept), samples::pattern(1000, 1)));
  }
  EXPECT_EQ(m[0].free_memory(), before);
}

TEST(memory_pool, that_was_moved_from_is_refused_by_every_call) {
  const machine m = samples::play(samples::wired(1));
  const auto moved = std::make_unique<memory_pool>(m[0], weft::pool_options{.shareable = true});
  const memory_pool pool{std::move(*moved)};
  const byte_buffer memory{pool, 100};
  const std::vector<std::function<void()>> calls{
      [&] { static_cast<void>(moved->on()); },
      [&] { static_cast<void>(moved->statistics()); },
      [&] { moved->trim_to(bytes{0}); },
      [&] { moved->set_access(m[0], weft::access_right::read_write); },
      [&] { static_cast<void>(moved->access(m[0])); },
      [&] { static_cast<void>(moved->handle()); },
      [&] { static_cast<void>(moved->handle_of(memory)); },
      [&] { const byte_buffer more{*moved, 100}; },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const weft::error refused = error_of(calls[i]);
    EXPECT_EQ(refused.code, errc::invalid_argument) << i;
    EXPECT_NE(refused.what.find("moved from"), std::string::npos) << i << ": " << refused.what;
  }
}

TEST(memory_pool, forgets_its_blocks_when_the_device_is_reset) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0]};
  auto old = std::make_unique<byte_buffer>(pool, 1000);
  {
    const byte_buffer idle{pool, 1000};
  }
  m[0].reset();
  const byte_buffer fresh{pool, 1000};
  weft::copy(fresh, samples::pattern(1000, 2));
  old.reset();
  const byte_buffer next{pool, 1000};
  weft::copy(next, samples::pattern(1000, 3));
  EXPECT_TRUE(samples::same(samples::contents(fresh), samples::pattern(1000, 2)));
  memory_pool{pool}.trim_to(bytes{0});
  EXPECT_TRUE(samples::same(samples::contents(next), samples::pattern(1000, 3)));
}

TEST(memory_pool, serves_several_threads) {
  const machine m = samples::play(samples::wired(1));
  const memory_pool pool{m[0]};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random{t};
      for (std::uint64_t i = 0; i < 150; ++i) {
        const std::size_t size = 1 + random() % 5000;
        const byte_buffer mine = byte_buffer{pool, size};
        weft::copy(mine, samples::pattern(size, t * 1000 + i));
        EXPECT_TRUE(samples::same(samples::contents(mine), samples::pattern(size, t * 1000 + i)));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(pool.statistics().used.value(), 0U);
}

}  // namespace pool_test
