// SPDX-License-Identifier: Apache-2.0
#include "backends/host/memory/memory_map.hpp"
#include "runtime/machine_state.hpp"
#include "support/samples.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/physical_block.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace host_memory_map_test {

using samples::byte_buffer;
using samples::contents;
using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using weft::errc;
using weft::memory_kind;
using weft::host::allocation;
using weft::host::fault_plan;
using weft::host::memory_map;
using weft::host::pin;

constexpr std::size_t kib = 1024;

struct memory_of_two {
  explicit memory_of_two(std::uint64_t size = 1 << 20, bool strict = false, weft::topology_fault fault = {})
      : layout(make(size, std::move(fault))), faults(layout), map(layout, gpu0, {strict, {}}, faults) {}

  static weft::topology make(std::uint64_t size, weft::topology_fault fault) {
    weft::topology made = samples::wired(2, {}, size);
    if (fault.from) made.faults.push_back(std::move(fault));
    return made;
  }
  std::uint64_t free(weft::device_id id) { return map.use(id).free.value(); }

  weft::topology layout;
  fault_plan faults;
  memory_map map;
};

TEST(memory_map, keeps_each_device_to_its_own_limit) {
  memory_of_two two;
  const auto half = two.map.allocate(gpu0, 512 * kib, memory_kind::device);
  ASSERT_TRUE(half);
  EXPECT_EQ(two.free(gpu0), 512 * kib);
  EXPECT_EQ(two.free(gpu1), 1024 * kib);
  EXPECT_FALSE(two.map.allocate(gpu0, 512 * kib + 1, memory_kind::device));
  EXPECT_TRUE(two.map.allocate(gpu0, 512 * kib, memory_kind::device)) << "to the last byte";
  EXPECT_FALSE(two.map.allocate(gpu0, 1, memory_kind::device));
  EXPECT_TRUE(two.map.allocate(gpu1, 1024 * kib, memory_kind::device));
  EXPECT_TRUE(two.map.allocate(gpu0, 64 * kib, memory_kind::pinned)) << "pinned memory is the host's";
  ASSERT_TRUE(two.map.release(*half));
  EXPECT_EQ(two.free(gpu0), 512 * kib);
}

TEST(memory_map, refuses_sizes_beyond_any_device_without_overflow) {
  memory_of_two two;
  ASSERT_TRUE(two.map.allocate(gpu0, 1000, memory_kind::device));
  for (const std::size_t size : {std::size_t{1} << 20, ~std::size_t{0}, ~std::size_t{0} - 999, std::size_t{1} << 63}) {
    const auto got = two.map.allocate(gpu0, size, memory_kind::device);
    ASSERT_FALSE(got) << size;
    EXPECT_EQ(got.error().code, errc::out_of_memory);
  }
  EXPECT_EQ(two.map.allocate(gpu0, 0, memory_kind::device).error().code, errc::invalid_argument);
}

TEST(memory_map, says_by_how_little_memory_falls_short) {
  memory_of_two two{4000};
  const auto refused = two.map.allocate(gpu1, 4001, memory_kind::device);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().what.starts_with("gpu1 has 4000 B free of 4000 B, asked for 4001 B"))
      << refused.error().what;
}

TEST(memory_map, says_who_holds_the_memory_that_is_missing) {
  memory_of_two two;
  std::vector<void*> held;
  for (const std::size_t size : {100 * kib, 300 * kib, 200 * kib, 50 * kib})
    held.push_back(*two.map.allocate(gpu1, size, memory_kind::device));
  const auto refused = two.map.allocate(gpu1, 400 * kib, memory_kind::device);
  ASSERT_FALSE(refused);
  const std::string& what = refused.error().what;
  EXPECT_TRUE(what.starts_with("gpu1 has 374 KiB free of 1 MiB, asked for 400 KiB")) << what;
  const auto first = what.find("300 KiB at 0x"), second = what.find("200 KiB at 0x"),
             third = what.find("100 KiB at 0x");
  EXPECT_TRUE(first < second && second < third && third != std::string::npos) << what;
  EXPECT_EQ(what.find("50 KiB at"), std::string::npos) << "three are enough: " << what;
}

TEST(memory_map, finds_any_interior_address_and_nothing_beside) {
  memory_of_two two;
  auto* base = static_cast<std::byte*>(*two.map.allocate(gpu0, 1000, memory_kind::device));
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{999}}) {
    const auto found = two.map.find(base + offset);
    ASSERT_TRUE(found) << offset;
    EXPECT_EQ(found->user, base);
    EXPECT_EQ(found->size, 1000U) << "what was asked for, not what it was rounded to";
  }
  EXPECT_FALSE(two.map.find(base + 1000));
  EXPECT_FALSE(two.map.find(base - 1));
  EXPECT_FALSE(two.map.find(nullptr));
  ASSERT_TRUE(two.map.release(base));
  EXPECT_FALSE(two.map.find(base));
}

TEST(memory_map, releases_only_what_starts_there_and_once) {
  memory_of_two two;
  auto* base = static_cast<std::byte*>(*two.map.allocate(gpu0, 1000, memory_kind::device));
  EXPECT_EQ(two.map.release(base + 1).error().code, errc::not_found);
  EXPECT_EQ(two.map.release(nullptr).error().code, errc::not_found);
  EXPECT_TRUE(two.map.release(base));
  EXPECT_EQ(two.map.release(base).error().code, errc::not_found);
}

TEST(memory_map, counts_memory_as_used_until_the_last_operation_lets_go) {
  memory_of_two two;
  void* base = *two.map.allocate(gpu0, 100 * kib, memory_kind::device);
  auto first = std::make_unique<pin>(two.map.find(base));
  auto second = std::make_unique<pin>(two.map.find(base));
  EXPECT_EQ(first->get()->pending, 2U);
  ASSERT_TRUE(two.map.release(base));
  EXPECT_FALSE(two.map.find(base)) << "released memory is not known any more";
  EXPECT_EQ(two.free(gpu0), 924 * kib) << "but an operation still uses it";
  first->get()->device_side[5] = std::byte{1};
  first.reset();
  EXPECT_EQ(two.free(gpu0), 924 * kib);
  second.reset();
  EXPECT_EQ(two.free(gpu0), 1024 * kib);
}

TEST(memory_map, ends_the_mappings_of_released_memory) {
  memory_of_two two;
  auto* base = static_cast<std::byte*>(*two.map.allocate(gpu1, 100 * kib, memory_kind::device));
  ASSERT_TRUE(two.map.enable(gpu0, gpu1));
  const auto mapped = two.map.map(gpu0, base + 5000, 3000);
  ASSERT_TRUE(mapped);
  const auto held = two.map.find(*mapped);
  ASSERT_TRUE(held);
  EXPECT_EQ(two.map.denied(gpu0, *held), "");
  ASSERT_TRUE(two.map.release(base));
  EXPECT_NE(two.map.denied(gpu0, *held), "");
  EXPECT_FALSE(two.map.find(*mapped));
  EXPECT_EQ(two.map.unmap(gpu0, *mapped).error().code, errc::not_found);
}

TEST(memory_map, maps_exactly_the_range_and_the_same_bytes) {
  memory_of_two two;
  auto* base = static_cast<std::byte*>(*two.map.allocate(gpu1, 100 * kib, memory_kind::device));
  ASSERT_TRUE(two.map.enable(gpu0, gpu1));
  for (const std::size_t offset :
       {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{70'001}}) {
    auto* mapped = static_cast<std::byte*>(*two.map.map(gpu0, base + offset, 5000));
    EXPECT_FALSE(two.map.find(mapped - 1)) << offset;
    EXPECT_FALSE(two.map.find(mapped + 5000)) << offset;
    const auto view = two.map.find(mapped);
    const auto owner = two.map.find(base);
    view->device_side[4999] = std::byte{77};
    EXPECT_EQ(owner->device_side[offset + 4999], std::byte{77}) << offset;
    ASSERT_TRUE(two.map.unmap(gpu0, mapped));
  }
  EXPECT_EQ(two.map.unmap(gpu0, base).error().code, errc::not_found) << "memory is not a mapping";
}

TEST(memory_map, denies_a_mapping_to_others_and_after_a_disable) {
  memory_of_two two;
  void* base = *two.map.allocate(gpu1, 8 * kib, memory_kind::device);
  ASSERT_TRUE(two.map.enable(gpu0, gpu1));
  void* mapped = *two.map.map(gpu0, base, 8 * kib);
  const auto view = two.map.find(mapped);
  EXPECT_NE(two.map.denied(gpu1, *view), "");
  EXPECT_EQ(two.map.unmap(gpu1, mapped).error().code, errc::wrong_device);
  ASSERT_TRUE(two.map.disable(gpu0, gpu1));
  EXPECT_NE(two.map.denied(gpu0, *view), "");
  EXPECT_EQ(two.map.resolve(gpu0, *view, mapped).error().code, errc::illegal_access);
  ASSERT_TRUE(two.map.enable(gpu0, gpu1));
  EXPECT_EQ(two.map.denied(gpu0, *view), "") << "access came back, and the mapping with it";
}

TEST(memory_map, lets_nothing_that_a_dropping_pair_writes_arrive) {
  memory_of_two two{1 << 20, false, {.what = weft::topology_fault::kind::drops_data, .from = gpu0, .to = gpu1}};
  auto* base = static_cast<std::byte*>(*two.map.allocate(gpu1, 20 * kib, memory_kind::device));
  const auto memory = two.map.find(base);
  std::memset(memory->device_side, 1, 20 * kib);
  ASSERT_TRUE(two.map.enable(gpu0, gpu1));
  ASSERT_TRUE(two.map.enable(gpu1, gpu0));
  const auto through = two.map.resolve(gpu0, *memory, base + 300);
  ASSERT_TRUE(through);
  std::memset(*through, 9, 1000);
  EXPECT_EQ(memory->device_side[300], std::byte{1}) << "written by a kernel";
  const auto again = two.map.resolve(gpu0, *memory, base + 300);
  EXPECT_EQ(*again, *through) << "one view for each device";
  EXPECT_EQ(**again, std::byte{9}) << "the liar believes in its write";
  void* mapped = *two.map.map(gpu0, base + 5000, 100);
  two.map.find(mapped)->device_side[0] = std::byte{9};
  EXPECT_EQ(memory->device_side[5000], std::byte{1}) << "written through a mapping";
  EXPECT_EQ(*two.map.resolve(gpu1, *memory, base), memory->device_side) << "the owner writes its own memory";
}

TEST(memory_map, counts_enabled_peers_against_the_table_of_the_device) {
  weft::topology layout = samples::wired(4);
  layout.devices[0].max_peers = 2;
  fault_plan faults{layout};
  memory_map map{layout, gpu0, {}, faults};
  const auto to = [](int id) { return weft::device_id{id}; };
  const auto epoch = map.epoch();
  EXPECT_TRUE(map.enable(gpu0, to(1)));
  EXPECT_NE(map.epoch(), epoch);
  EXPECT_EQ(map.enable(gpu0, to(1)).error().code, errc::already_enabled);
  EXPECT_TRUE(map.enable(gpu0, to(2)));
  EXPECT_EQ(map.enable(gpu0, to(3)).error().code, errc::too_many_peers);
  EXPECT_EQ(map.enable(gpu0, to(2)).error().code, errc::already_enabled) << "known before full";
  EXPECT_TRUE(map.disable(gpu0, to(1)));
  EXPECT_EQ(map.disable(gpu0, to(1)).error().code, errc::not_enabled);
  EXPECT_TRUE(map.enable(gpu0, to(3)));
  EXPECT_FALSE(map.enabled(to(3), gpu0)) << "one direction says nothing of the other";
}

TEST(memory_map, knows_adopted_memory_once_and_frees_nothing_of_it) {
  memory_of_two two;
  std::vector<std::byte> mine(10'000);
  ASSERT_TRUE(two.map.adopt(gpu0, mine.data(), 5000));
  EXPECT_EQ(two.free(gpu0), 1024 * kib);
  EXPECT_EQ(two.map.adopt(gpu1, mine.data() + 4999, 10).error().code, errc::invalid_argument);
  EXPECT_TRUE(two.map.adopt(gpu1, mine.data() + 5000, 10));
  EXPECT_EQ(two.map.adopt(gpu0, nullptr, 10).error().code, errc::invalid_argument);
  EXPECT_EQ(two.map.adopt(gpu0, mine.data() + 9000, 0).error().code, errc::invalid_argument);
  EXPECT_TRUE(two.map.release(mine.data()));
  EXPECT_TRUE(two.map.release(mine.data() + 5000));
  mine[0] = std::byte{1};
}

TEST(memory_map, survives_allocations_from_many_threads_and_ends_with_all_memory_back) {
  memory_of_two two{std::uint64_t{64} << 20};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random{t};
      std::vector<void*> mine;
      const weft::device_id on{static_cast<int>(t % 2)};
      for (int i = 0; i < 800; ++i) {
        if (mine.empty() || random() % 2 == 0) {
          auto got =
              two.map.allocate(on, 1 + random() % 40'000, i % 5 == 0 ? memory_kind::pinned : memory_kind::device);
          if (got) mine.push_back(*got);
        } else {
          const std::size_t at = random() % mine.size();
          const pin held{two.map.find(mine[at])};
          EXPECT_TRUE(two.map.release(mine[at]));
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      for (void* base : mine) EXPECT_TRUE(two.map.release(base));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(two.free(gpu0), std::uint64_t{64} << 20);
  EXPECT_EQ(two.free(gpu1), std::uint64_t{64} << 20);
}

// ---- a device that was reset ----------------------------------------------------------------------------------------

TEST(host_window, reaches_its_memory_for_as_long_as_it_is_held) {
  for (const bool strict : {true, false}) {
    weft::machine_options options;
    options.machine = samples::wired(2);
    options.strict = strict;
    const weft::machine m{options};
    weft::backend& driver = weft::detail::state_of(m)->backend_of(gpu0);
    const auto window_at = [&](void* address) {
      return weft::value_or_raise(driver.host_window(gpu0, address, weft::bytes{1}));
    };
    void* const base = weft::value_or_raise(driver.allocate(gpu1, weft::bytes{8 * kib}, memory_kind::device));
    weft::value_or_raise(driver.enable_peer(gpu0, gpu1));
    void* const mapped = weft::value_or_raise(driver.map_peer(gpu0, base, weft::bytes{8 * kib}));
    const auto to_peer = window_at(mapped);
    *to_peer = std::byte{1};
    weft::value_or_raise(driver.disable_peer(gpu0, gpu1));
    EXPECT_EQ(*to_peer, std::byte{1});
    EXPECT_EQ(driver.host_window(gpu0, mapped, weft::bytes{1}).error().code, errc::illegal_access) << "a new one";
    weft::value_or_raise(driver.enable_peer(gpu0, gpu1));
    weft::value_or_raise(driver.release(base));
    EXPECT_EQ(*to_peer, std::byte{1});

    weft::mapping shown{weft::physical_block{m[0], weft::granularity(m).minimum}};
    shown.grant(gpu0, weft::access_right::read_write);
    auto to_block = window_at(shown.address());
    *to_block = std::byte{2};
    shown.grant(gpu0, weft::access_right::none);
    EXPECT_EQ(*to_block, std::byte{2});
    to_block = nullptr;  // or the end of the mapping would wait for it
  }
}

TEST(reset_device, never_lets_an_old_owner_release_memory_of_a_new_one) {
  const weft::machine m = samples::play(samples::wired(2));
  for (const std::size_t size : {std::size_t{5000}, std::size_t{8} << 20}) {
    auto old = std::make_unique<byte_buffer>(m[0], size);
    m[0].reset();
    std::vector<byte_buffer> fresh;
    for (int i = 0; i < 8; ++i)
      fresh.push_back(samples::filled(m[0], samples::pattern(size, static_cast<std::uint64_t>(i))));
    EXPECT_EQ(error_of([&] { weft::fill(*old, std::uint8_t{1}); }).code, errc::not_found);
    old.reset();
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      EXPECT_EQ(error_of([&] { EXPECT_TRUE(samples::same(contents(fresh[i]), samples::pattern(size, i))); }).code,
                errc::not_ready)
          << i;
    }
  }
}

TEST(reset_device, leaves_pinned_memory_to_the_host) {
  const weft::machine m = samples::play(samples::wired(2));
  const weft::pinned_buffer<std::uint8_t> mine{m[0], 5000};
  mine.host()[4999] = 7;
  m[0].reset();
  EXPECT_EQ(mine.host()[4999], 7);
  const byte_buffer target{m[0], 5000};
  weft::copy(target, mine);
  EXPECT_EQ(contents(target)[4999], 7);
}

TEST(reset_device, gives_access_to_whoever_takes_a_lease_afterwards) {
  const weft::machine m = samples::play(samples::wired(2));
  const weft::peer_access before{m, gpu0, gpu1};
  m[0].reset();
  EXPECT_FALSE(weft::peer_enabled(m, gpu0, gpu1));
  const weft::peer_access after{m, gpu0, gpu1};
  EXPECT_TRUE(weft::peer_enabled(m, gpu0, gpu1));
}

}  // namespace host_memory_map_test
