// SPDX-License-Identifier: Apache-2.0
#include "backend/address.hpp"
#include "backends/host/memory/arena.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace host_arena_test {

using weft::host::arena;
using weft::host::block;

std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

block taken(arena& from, std::size_t size) {
  auto got = from.take(size);
  EXPECT_TRUE(got) << size << ": " << (got ? "" : got.error().what);
  return *got;
}

/// Whether anything is mapped at an address, without touching it.
bool is_mapped(const void* address) {
  unsigned char resident = 0;
  const auto page = number(address) / weft::page_size() * weft::page_size();
  return ::mincore(reinterpret_cast<void*>(page), 1, &resident) == 0;
}

void write(const block& b, std::uint64_t seed) {
  for (std::size_t i = 0; i < b.size; ++i)
    b.device_side()[i] = static_cast<std::byte>((seed + 1) * 31 + i * 7 + i / 251);
}
bool holds(const block& b, std::uint64_t seed) {
  for (std::size_t i = 0; i < b.size; ++i) {
    if (b.device_side()[i] != static_cast<std::byte>((seed + 1) * 31 + i * 7 + i / 251)) return false;
  }
  return true;
}

class host_arena : public testing::TestWithParam<bool> {};

TEST_P(host_arena, aligns_to_256_bytes_and_large_blocks_to_the_page) {
  arena memory{GetParam()};
  std::vector<block> blocks;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{257}, std::size_t{4095},
        std::size_t{4096}, std::size_t{4097}, std::size_t{100'000}, (std::size_t{4} << 20) - 1}) {
    const block b = taken(memory, size);
    EXPECT_EQ(number(b.user()) % 256, 0U) << size;
    EXPECT_EQ(number(b.device_side()) % 256, 0U) << size;
    EXPECT_GE(b.size, std::max<std::size_t>(size, 1));
    blocks.push_back(b);
  }
  for (const std::size_t size : {std::size_t{4} << 20, (std::size_t{17} << 20) + 1}) {
    const block b = taken(memory, size);
    EXPECT_EQ(number(b.user()) % weft::page_size(), 0U) << size;
    EXPECT_EQ(number(b.device_side()) % weft::page_size(), 0U) << size;
    blocks.push_back(b);
  }
  for (const block& b : blocks) memory.give(b);
}

TEST_P(host_arena, never_hands_out_a_byte_twice) {
  arena memory{GetParam()};
  std::mt19937_64 random{42};
  struct owned {
    block b;
    std::uint64_t seed;
  };
  std::vector<owned> live;
  for (std::uint64_t step = 0; step < 600; ++step) {
    if (live.empty() || random() % 3 != 0) {
      const std::size_t size = 1 + random() % (random() % 10 == 0 ? 200'000 : 3000);
      live.push_back({taken(memory, size), step});
      write(live.back().b, step);
    } else {
      const std::size_t at = random() % live.size();
      ASSERT_TRUE(holds(live[at].b, live[at].seed)) << "step " << step;
      memory.give(live[at].b);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  for (const owned& o : live) {
    EXPECT_TRUE(holds(o.b, o.seed));
    memory.give(o.b);
  }
}

TEST_P(host_arena, joins_neighbours_that_were_given_back_in_any_order) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  const std::vector<std::vector<std::size_t>> orders{{1, 2, 3}, {3, 2, 1}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}};
  for (const auto& order : orders) {
    arena memory{GetParam()};
    std::vector<block> blocks;
    for (int i = 0; i < 16; ++i) blocks.push_back(taken(memory, piece));  // fills one segment
    for (const std::size_t i : order) memory.give(blocks[i]);
    const block joined = taken(memory, 3 * piece);
    EXPECT_EQ(joined.user(), blocks[1].user()) << "the three pieces did not become one";
    memory.give(joined);
    for (std::size_t i = 0; i < 16; ++i) {
      if (i < 1 || i > 3) memory.give(blocks[i]);
    }
  }
}

TEST_P(host_arena, gives_a_large_segment_back_to_the_system_at_once) {
  arena memory{GetParam()};
  const block first = taken(memory, std::size_t{6} << 20);
  const block second = taken(memory, std::size_t{6} << 20);
  const auto *user = first.user(), *other = second.user();
  memory.give(first);
  EXPECT_FALSE(is_mapped(user));
  EXPECT_TRUE(is_mapped(other));
  memory.give(second);
  EXPECT_FALSE(is_mapped(other));
}

TEST_P(host_arena, keeps_one_small_segment_for_the_next_small_block) {
  arena memory{GetParam()};
  std::vector<block> blocks;
  for (int i = 0; i < 17; ++i) blocks.push_back(taken(memory, std::size_t{1} << 20));  // one more than a segment holds
  const auto *one = blocks.front().user(), *other = blocks.back().user();
  for (const block& b : blocks) memory.give(b);
  EXPECT_NE(is_mapped(one), is_mapped(other));
}

TEST_P(host_arena, has_a_page_behind_a_large_block_that_nobody_can_touch) {
  arena memory{GetParam()};
  const block b = taken(memory, (std::size_t{6} << 20) - 100);
  write(b, 3);
  EXPECT_TRUE(holds(b, 3));
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(*static_cast<volatile std::byte*>(b.device_side() + (std::size_t{6} << 20)) = std::byte{1}, "");
  memory.give(b);
}

TEST_P(host_arena, keeps_small_blocks_out_of_the_rest_of_a_large_one) {
  // a large block of 12 to 14 MiB has as much room to itself as many small ones share
  for (std::size_t size = std::size_t{4} << 20; size <= std::size_t{36} << 20; size += std::size_t{1} << 20) {
    arena memory{GetParam()};
    const block large = taken(memory, size);
    std::vector<block> small{taken(memory, 1000)};
    EXPECT_NE(small.front().home, large.home) << size;
    memory.give(large);
    for (int i = 0; i < 20; ++i) small.push_back(taken(memory, std::size_t{1} << 20));
    for (const block& b : small) b.device_side()[0] = b.device_side()[b.size - 1] = std::byte{7};  // or a fault
    for (const block& b : small) memory.give(b);
  }
}

TEST_P(host_arena, says_when_the_system_has_no_more) {
  arena memory{GetParam()};
  const auto got = memory.take(std::size_t{1} << 60);
  ASSERT_FALSE(got);
  EXPECT_TRUE(got.error().code == weft::errc::out_of_memory || got.error().code == weft::errc::resource_exhausted);
  EXPECT_NE(got.error().native_code, 0);
  EXPECT_FALSE(got.error().what.empty());
  const block small = taken(memory, 100);  // and goes on
  memory.give(small);
}

TEST(memory_of_the_system, says_what_is_short_and_what_would_help) {
  struct row {
    int number;
    weft::errc code;
    const char* advice;
  };
  for (const row& one :
       {row{ENOMEM, weft::errc::out_of_memory, "vm.max_map_count"},
        row{EMFILE, weft::errc::resource_exhausted, "ulimit -n"},
        row{ENFILE, weft::errc::resource_exhausted, "fs.file-max"}, row{ENOSPC, weft::errc::out_of_memory, ""}}) {
    const weft::error said = weft::host::system_error("mapping a block", one.number);
    EXPECT_EQ(said.code, one.code);
    EXPECT_EQ(said.native_code, one.number);
    EXPECT_EQ(said.what.find("mapping a block: "), 0U) << said.what;
    for (const std::string advice : {"vm.max_map_count", "ulimit -n", "fs.file-max"})
      EXPECT_EQ(said.what.find(advice) != std::string::npos, advice == one.advice) << said.what;
  }
}

INSTANTIATE_TEST_SUITE_P(addresses, host_arena, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "two_per_block" : "one_per_block"; });

TEST(strict_arena, keeps_what_users_see_inaccessible_while_the_alias_works) {
  arena memory{true};
  const block b = taken(memory, 10'000);
  ASSERT_NE(b.user(), b.device_side());
  write(b, 5);
  EXPECT_TRUE(holds(b, 5));
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile std::byte*>(b.user())), "");
  EXPECT_DEATH(*static_cast<volatile std::byte*>(b.user() + b.size - 1) = std::byte{1}, "");
  memory.give(b);
}

TEST(plain_arena, has_one_address_for_users_and_devices) {
  arena memory{false};
  const block b = taken(memory, 10'000);
  EXPECT_EQ(b.user(), b.device_side());
  write(b, 6);
  EXPECT_TRUE(holds(b, 6));
  memory.give(b);
}

TEST(file_window, a_private_window_keeps_its_writes_to_itself) {
  arena memory{false};
  const block b = taken(memory, weft::page_size());
  write(b, 1);
  auto window = weft::host::map_file(b.home->file.get(), b.offset, b.size, false);
  ASSERT_TRUE(window);
  std::memset(window->get().base, 0, b.size);
  EXPECT_TRUE(holds(b, 1));
  auto shared = weft::host::map_file(b.home->file.get(), b.offset, b.size, true);
  ASSERT_TRUE(shared);
  std::memset(shared->get().base, 0, b.size);
  EXPECT_FALSE(holds(b, 1));
  memory.give(b);
}

}  // namespace host_arena_test
