// SPDX-License-Identifier: Apache-2.0
// One way to share and to grant, for each kind of memory, in one process and between two. Children are forked before
// this process has a machine, as users must.
#include "weft/memory/share.hpp"

#include "processes/share_ticket.hpp"
#include "runtime/machine_state.hpp"
#include "support/hang.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"
#include "weft/core/log.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/grant.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"
#include "weft/memory/shared_memory.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <sys/resource.h>

namespace share_test {

using processes::child;
using processes::shared;
using samples::byte_buffer;
using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using samples::pattern;
using weft::access_grant;
using weft::access_right;
using weft::bytes;
using weft::errc;
using weft::grant;
using weft::grant_way;
using weft::machine;
using weft::mapping;
using weft::memory_pool;
using weft::physical_block;
using weft::share;
using weft::share_handle;
using weft::shareable_buffer;
using weft::sharing_way;
using byte = std::uint8_t;
using clock_type = std::chrono::steady_clock;
using namespace std::chrono_literals;
using namespace weft::literals;

WEFT_KERNEL(share_test_next, (WEFT_IN(uint8_t) src, WEFT_OUT(uint8_t) dst), { dst[i] = (uint8_t)(src[i] + 1); });

constexpr std::size_t count = std::size_t{3} << 20;

machine devices(int how_many = 2) {
  weft::machine_options options;
  options.devices = how_many;
  options.memory_per_device = 256_MiB;
  machine made{options};
  weft::kernels(made).add<share_test_next>();
  return made;
}

weft::pool_options shareable() {
  weft::pool_options options;
  options.shareable = true;
  return options;
}

mapping block_on(const weft::device& on, bytes size = bytes{count},
                 weft::sharing with = weft::sharing::with_processes) {
  mapping made{physical_block{on, size, with}};
  made.grant(on.id(), access_right::read_write);
  return made;
}

/// What a kernel of `by` that writes this memory comes to; not_ready when it did.
errc writes(const weft::device& by, const weft::device_span<byte>& memory) {
  const byte_buffer own{by, memory.size()};
  weft::fill(own, byte{1});
  const weft::stream order{by};
  return error_of([&] {
           weft::launch(order, "share_test_next", weft::range(static_cast<std::int64_t>(memory.size())), own, memory)
               .wait();
         })
      .code;
}

access_right right_of(const weft::device& by, const void* address) {
  return weft::value_or_raise(weft::detail::state_of(by)->backends().front()->memory_access(by.id(), address));
}

struct board : processes::steps {
  std::atomic<std::size_t> wire_size{0};
  std::array<std::byte, share_handle::max_wire_size> wire{};

  void send(const share_handle& handle) {
    const auto made = handle.to_bytes();
    std::memcpy(wire.data(), made.data(), made.size());
    wire_size = made.size();
  }
  [[nodiscard]] share_handle received() const { return share_handle::from_bytes(std::span{wire}.first(wire_size)); }
};

enum class kind { block, blocks, pool, allocation };

/// A process that shares one kind of memory of its `on`th device with pattern 1 in it; at step 5 it lets it go, at 9 it
/// ends.
child exporter(shared<board>& with, kind what, int on = 0) {
  return child{[&with, what, on] {
    const machine m = devices();
    const weft::device home = m[on];
    {
      mapping mapped;
      std::optional<memory_pool> pool;
      byte_buffer pooled;
      shareable_buffer<byte> own;
      const auto give = [&](const auto& memory, const weft::device_span<byte>& span) {
        weft::copy(span, pattern(span.size(), 1));
        with->send(share(memory));
      };
      switch (what) {
        case kind::block:
          mapped = block_on(home);
          give(mapped, mapped.span<byte>());
          break;
        case kind::blocks: {
          // the first 2 MiB of one, then all of another
          mapped = mapping{weft::address_reservation{home, 32_MiB},
                           physical_block{home, 4_MiB, weft::sharing::with_processes}, 0_B, 2_MiB};
          mapped.grow(physical_block{home, 6_MiB, weft::sharing::with_processes});
          mapped.grant(home.id(), access_right::read_write);
          give(mapped, mapped.span<byte>());
          break;
        }
        case kind::pool:
          pool.emplace(home, shareable());
          pooled = byte_buffer{*pool, count};
          give(pooled, pooled);
          break;
        case kind::allocation:
          own = shareable_buffer<byte>{home, count};
          give(own, own);
          break;
      }
      with->say(1);
      if (!with->hear(5)) return 1;
    }
    with->say(6);
    return with->hear(9) ? 0 : 2;
  }};
}

struct expected {
  kind what;
  sharing_way way;
  std::size_t size;
};
constexpr std::array<expected, 4> kinds{{{kind::block, sharing_way::block, std::size_t{4} << 20},
                                         {kind::blocks, sharing_way::block, std::size_t{8} << 20},
                                         {kind::pool, sharing_way::pool, count},
                                         {kind::allocation, sharing_way::allocation, count}}};

// ---- share and open -------------------------------------------------------------------------------------------------

TEST(share, gives_each_kind_of_memory_to_another_process_that_reads_and_writes_it_by_any_device) {
  for (const expected& one : kinds) {
    for (const int by : {0, 1}) {
      SCOPED_TRACE(std::string{weft::to_string(one.way)} + " by gpu" + std::to_string(by));
      shared<board> with;
      child owner = exporter(with, one.what);
      ASSERT_TRUE(with->hear(1));
      const machine m = devices();
      const share_handle handle = with->received();
      EXPECT_EQ(handle.ways(), std::vector{one.way});
      EXPECT_EQ(handle.size(), one.size);
      EXPECT_EQ(handle.process(), owner.pid());
      EXPECT_EQ(handle, share_handle::from_text(handle.text()));
      {
        const weft::opened<byte> there = weft::open<byte>(m[by], handle, samples::only_a_hang);
        EXPECT_EQ(there.way(), one.way);
        EXPECT_EQ(there.owner(), gpu0);
        ASSERT_EQ(there.size(), one.size);
        EXPECT_NE(there.why().find(std::string{weft::to_string(one.way)}), std::string::npos) << there.why();
        EXPECT_TRUE(samples::same(samples::contents(there), pattern(one.size, 1)));
        EXPECT_EQ(writes(m[by], there), errc::not_ready);
        EXPECT_EQ(samples::contents(there), samples::data(one.size, 2));
        const weft::opened<std::uint32_t> again = weft::open<std::uint32_t>(m[by], handle, samples::only_a_hang);
        EXPECT_EQ(samples::contents(there), samples::data(one.size, 2)) << "one memory";
        EXPECT_EQ(again.size(), one.size / 4);
      }
      with->say(5);
      ASSERT_TRUE(with->hear(6));
      EXPECT_EQ(error_of([&] { static_cast<void>(weft::open<byte>(m[by], handle, samples::only_a_hang)); }).code,
                errc::closed);
      with->say(9);
      EXPECT_EQ(owner.wait(), 0);
      EXPECT_EQ(error_of([&] { static_cast<void>(weft::open<byte>(m[by], handle, samples::only_a_hang)); }).code,
                errc::peer_dead);
    }
  }
}

TEST(share, memory_shared_in_one_process_has_one_handle_and_is_not_opened_there) {
  const machine m = devices();
  const mapping mapped = block_on(m[0]);
  const memory_pool pool{m[0], shareable()};
  const byte_buffer pooled{pool, 100};
  const shareable_buffer<byte> own{m[0], 100};
  const auto check = [&](const auto& memory) {
    const share_handle one = share(memory);
    EXPECT_EQ(one, share(memory));
    EXPECT_EQ(one, share_handle::from_bytes(one.to_bytes()));
    EXPECT_LE(one.to_bytes().size(), share_handle::max_wire_size);
    EXPECT_EQ(one.process(), ::getpid());
    EXPECT_EQ(error_of([&] { static_cast<void>(weft::open<byte>(m[0], one, samples::only_a_hang)); }).native_code, 201);
    return one;
  };
  const share_handle a = check(mapped), b = check(pooled), c = check(own);
  EXPECT_NE(a, b);
  EXPECT_NE(b, c);
  EXPECT_EQ(share(own.subspan(10, 20)).size(), 20U);
  EXPECT_EQ(share(pooled.subspan(10, 20)).size(), 20U);
  const physical_block alone{m[0], 2_MiB, weft::sharing::with_processes};
  EXPECT_EQ(check(alone).size(), alone.size().value());
}

TEST(share, memory_that_cannot_be_shared_is_refused_with_the_type_that_can_be) {
  const machine m = devices();
  const auto refused = [&](const auto& memory, const char* advice) {
    const weft::error e = error_of([&] { static_cast<void>(share(memory)); });
    EXPECT_EQ(e.code, errc::invalid_argument) << e.what;
    EXPECT_NE(e.what.find(advice), std::string::npos) << e.what;
  };
  refused(byte_buffer{m[0], 100}, "weft::shareable_buffer");
  const memory_pool closed_pool{m[0]};
  refused(byte_buffer{closed_pool, 100}, "weft::shareable_buffer");
  refused(weft::pinned_buffer<byte>{m[0], 100}, "weft::shareable_buffer");
  refused(samples::data(100), "weft::shareable_buffer");
  refused(block_on(m[0], 2_MiB, weft::sharing::alone), "weft::sharing::with_processes");
  const mapping mapped = block_on(m[0]);
  refused(mapped.span<byte>(), "share the weft::mapping");
  refused(mapping{}, "empty mapping");
  refused(physical_block{}, "empty physical_block");
  refused(shareable_buffer<byte>{}, "sharing nothing");
  shareable_buffer<byte> left{m[0], 100};
  const shareable_buffer<byte> kept = std::move(left);
  refused(left, "sharing nothing");  // NOLINT(bugprone-use-after-move): an empty one is what is left
  EXPECT_EQ(left.size(), 0U);
  EXPECT_TRUE(left.span().empty());
  EXPECT_EQ(kept.size(), 100U);
  byte_buffer plain{m[0], 100};
  const byte_buffer taken = std::move(plain);
  EXPECT_TRUE(plain.empty());  // NOLINT(bugprone-use-after-move): as above
  EXPECT_EQ(taken.size(), 100U);
  mapping many{weft::address_reservation{m[0], 64_MiB}, physical_block{m[0], 2_MiB, weft::sharing::with_processes}};
  for (std::size_t i = 1; i <= share_handle::max_parts; ++i)
    many.grow(physical_block{m[0], 2_MiB, weft::sharing::with_processes});
  refused(many, "fewer and larger");
}

TEST(share, a_shared_block_gives_its_descriptors_back_with_its_mapping) {
  const machine m = devices();
  static_cast<void>(share(block_on(m[0])));  // starts what serves
  const std::size_t before = processes::open_descriptors();
  for (int i = 0; i < 20; ++i) {
    const mapping mapped = block_on(m[0]);
    static_cast<void>(share(mapped));
    static_cast<void>(share(mapped));
    EXPECT_EQ(processes::open_descriptors(), before + 2) << "its memory, and what is served";
  }
  EXPECT_EQ(processes::open_descriptors(), before);
}

TEST(share, leaves_nothing_open_in_who_opened_it_and_nothing_in_dev_shm) {
  const auto files = [] {
    std::size_t found = 0;
    if (DIR* folder = ::opendir("/dev/shm")) {
      while (::readdir(folder) != nullptr) ++found;
      ::closedir(folder);
    }
    return found;
  };
  const std::size_t shm = files();
  for (const expected& one : kinds) {
    shared<board> with;
    const child owner = exporter(with, one.what);
    ASSERT_TRUE(with->hear(1));
    const machine m = devices();
    {
      const auto warm = weft::open<byte>(m[1], with->received(), samples::only_a_hang);
    }
    const std::size_t descriptors = processes::open_descriptors();
    const std::size_t mappings = processes::mappings_of("weft-");
    for (int i = 0; i < 10; ++i) {
      const auto there = weft::open<byte>(m[1], with->received(), samples::only_a_hang);
      EXPECT_EQ(files(), shm);
    }
    EXPECT_EQ(processes::open_descriptors(), descriptors) << weft::to_string(one.way);
    EXPECT_EQ(processes::mappings_of("weft-"), mappings) << weft::to_string(one.way);
  }
  EXPECT_EQ(files(), shm);
}

TEST(share, opened_without_descriptors_is_resource_exhausted_and_opens_once_there_are_some) {
  for (const expected& one : kinds) {
    shared<board> with;
    const child owner = exporter(with, one.what);
    ASSERT_TRUE(with->hear(1));
    child importer{[&] {
      const machine m = devices();
      {
        const auto warm = weft::open<byte>(m[1], with->received(), samples::only_a_hang);
      }
      const std::size_t used = processes::open_descriptors();
      int refused = 0, done = 0;
      for (std::size_t limit = 3; limit <= 64; ++limit) {
        const auto open = [&] { static_cast<void>(weft::open<byte>(m[1], with->received(), samples::only_a_hang)); };
        const errc code = error_of([&] { processes::with_descriptors_below(limit, open); }).code;
        if (code != errc::resource_exhausted && code != errc::not_ready) return 1;
        ++(code == errc::not_ready ? done : refused);
        if (processes::open_descriptors() != used) return 2;
      }
      return refused >= 3 && done >= 4 ? 0 : 3;
    }};
    EXPECT_EQ(importer.wait(), 0) << weft::to_string(one.way);
  }
}

/// A process that shares one content as a block, in a pool and as an allocation of its second device, under one handle.
child exporter_of_all(shared<board>& with) {
  return child{[&with] {
    const machine m = devices();
    const std::size_t size = 2 << 20;
    mapping mapped = block_on(m[1], bytes{size});
    const memory_pool pool{m[1], shareable()};
    const byte_buffer pooled{pool, size};
    const shareable_buffer<byte> own{m[1], size};
    std::vector<weft::shared_bytes> parts;
    const auto add = [&](const auto& memory, const weft::device_span<byte>& span, std::uint64_t seed) {
      weft::copy(span, pattern(size, seed));
      const share_handle one = share(memory);
      parts.insert(parts.begin(), one.parts().begin(), one.parts().end());
    };
    add(mapped, mapped.span<byte>(), 1);
    add(pooled, pooled, 2);
    add(own, own, 3);
    with->send(share_handle{parts});
    with->say(1);
    if (!with->hear(5)) return 1;
    mapped.end();
    with->say(6);
    return with->hear(9) ? 0 : 2;
  }};
}

TEST(share, a_handle_of_several_ways_is_opened_in_the_best_that_the_machine_has) {
  shared<board> with;
  child owner = exporter_of_all(with);
  ASSERT_TRUE(with->hear(1));
  const share_handle all = with->received();
  EXPECT_EQ(all.ways(), (std::vector{sharing_way::block, sharing_way::pool, sharing_way::allocation}))
      << "the best first, in whatever order they came";
  EXPECT_LT(all.to_bytes().size(), share_handle::max_wire_size);
  const std::vector<weft::shared_bytes> parts{all.parts().begin(), all.parts().end()};
  {
    const machine m = devices();
    const auto best = weft::open<byte>(m[0], all, samples::only_a_hang);
    EXPECT_EQ(best.way(), sharing_way::block);
    EXPECT_EQ(best.why().find("not as"), std::string::npos) << best.why();
    EXPECT_TRUE(samples::same(samples::contents(best), pattern(best.size(), 1)));
    const auto second = weft::open<byte>(m[0], share_handle{std::span{parts}.first(3)}, samples::only_a_hang);
    EXPECT_EQ(second.way(), sharing_way::pool);
    EXPECT_TRUE(samples::same(samples::contents(second), pattern(second.size(), 2)));
  }
  // a machine without the device: pools cannot be opened, the allocation can, and is told why
  const machine small = devices(1);
  const auto last = weft::open<byte>(small[0], share_handle{std::span{parts}.first(3)}, samples::only_a_hang);
  EXPECT_EQ(last.way(), sharing_way::allocation);
  EXPECT_NE(last.why().find("not as a pool, since"), std::string::npos) << last.why();
  EXPECT_TRUE(samples::same(samples::contents(last), pattern(last.size(), 3)));
  // the only way fails: so does opening
  EXPECT_EQ(error_of([&] {
              static_cast<void>(
                  weft::open<byte>(small[0], share_handle{std::span{parts}.subspan(1, 2)}, samples::only_a_hang));
            }).code,
            errc::not_found);
  with->say(5);
  ASSERT_TRUE(with->hear(6));
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::open<byte>(small[0], all, samples::only_a_hang)); }).code,
            errc::closed)
      << "what was freed is not replaced by something else";
  with->say(9);
  EXPECT_EQ(owner.wait(), 0);
}

TEST(share, opened_as_elements_that_it_is_no_number_of_is_incompatible) {
  struct odd {
    std::array<byte, 7> bytes;
  };
  shared<board> with;
  const child owner = exporter(with, kind::block);
  ASSERT_TRUE(with->hear(1));
  const machine m = devices();
  const std::size_t before = processes::open_descriptors();
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::open<odd>(m[0], with->received(), samples::only_a_hang)); }).code,
            errc::incompatible);
  EXPECT_EQ(processes::open_descriptors(), before);
}

TEST(share_handle, a_damaged_cut_or_made_up_handle_is_refused) {
  const machine m = devices();
  const memory_pool pool{m[0], shareable()};
  const byte_buffer pooled{pool, 100};
  const auto good = share(pooled).to_bytes();
  const auto code_of = [](std::span<const std::byte> arrived) {
    return error_of([&] { static_cast<void>(share_handle::from_bytes(arrived)); }).code;
  };
  EXPECT_EQ(code_of(good), errc::not_ready);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto flipped = good;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const errc code = code_of(flipped);
    EXPECT_TRUE(code == errc::corrupt || (code == errc::incompatible && bit >= 32 && bit < 64)) << bit;
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(code_of(std::span{good}.first(size)), errc::corrupt) << size;
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(code_of(longer), errc::corrupt);
  longer.resize(100'000);
  EXPECT_EQ(code_of(longer), errc::corrupt);
  std::mt19937 random{7};
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> garbage(random() % 700);
    for (auto& b : garbage) b = static_cast<std::byte>(random());
    EXPECT_EQ(code_of(garbage), errc::corrupt);
  }
  EXPECT_EQ(error_of([&] { static_cast<void>(share_handle::from_text(std::string(40, 'g'))); }).code, errc::corrupt);
  EXPECT_EQ(error_of([&] { static_cast<void>(share_handle::from_text("abc")); }).code, errc::corrupt);
  EXPECT_EQ(code_of(share_handle{}.to_bytes()), errc::corrupt) << "names nothing";
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::open<byte>(m[0], share_handle{})); }).code, errc::invalid_argument);
}

TEST(share_handle, whose_parts_do_not_fit_together_is_refused) {
  using weft::detail::share_kind;
  const auto part = [](share_kind what, std::uint64_t size, std::uint64_t offset = 0) {
    weft::detail::share_ticket h;
    h.kind = what;
    h.boot = h.door = h.key = h.process = 1;
    h.size = size;
    h.offset = offset;
    return weft::detail::encode(h);
  };
  const auto code_of = [](const std::vector<weft::shared_bytes>& parts) {
    return error_of([&] { const share_handle made{parts}; }).code;
  };
  const auto pool = part(share_kind::pool, 4096), pooled = part(share_kind::pool_memory, 10),
             alone = part(share_kind::memory, 10), block = part(share_kind::block, 10);
  EXPECT_EQ(code_of({pool, pooled, alone, block}), errc::not_ready);
  EXPECT_EQ(code_of({block, block}), errc::not_ready);
  EXPECT_EQ(code_of({}), errc::corrupt);
  EXPECT_EQ(code_of({pool}), errc::corrupt);
  EXPECT_EQ(code_of({pooled}), errc::corrupt);
  EXPECT_EQ(code_of({alone, alone}), errc::corrupt);
  EXPECT_EQ(code_of({pool, pool, pooled}), errc::corrupt);
  EXPECT_EQ(code_of({part(share_kind::event, 10)}), errc::corrupt);
  EXPECT_EQ(code_of({alone, part(share_kind::block, 11)}), errc::corrupt) << "two sizes";
  EXPECT_EQ(code_of({part(share_kind::block, 10, 1)}), errc::corrupt) << "blocks are mapped from their start";
  EXPECT_EQ(code_of({part(share_kind::block, 0)}), errc::corrupt);
  EXPECT_EQ(code_of({part(share_kind::block, ~0ULL), part(share_kind::block, 2)}), errc::corrupt)
      << "more than 64 bits";
  EXPECT_EQ(code_of(std::vector(share_handle::max_parts + 1, block)), errc::corrupt);
}

TEST(share_handle, a_handle_forged_with_right_checksums_maps_nothing) {
  shared<board> with;
  const child owner = exporter(with, kind::blocks);
  ASSERT_TRUE(with->hear(1));
  const machine m = devices();
  {
    const auto warm = weft::open<byte>(m[0], with->received(), samples::only_a_hang);
  }
  const std::size_t descriptors = processes::open_descriptors();
  const std::size_t mappings = processes::mappings_of("weft-");
  const share_handle good = with->received();
  const auto forged = [&](auto&& change) {
    std::vector<weft::detail::share_ticket> parts;
    for (const auto& one : good.parts()) parts.push_back(weft::value_or_raise(weft::detail::decode(one)));
    change(parts);
    std::vector<weft::shared_bytes> made;
    for (const auto& one : parts) made.push_back(weft::detail::encode(one));
    return error_of([&] { static_cast<void>(weft::open<byte>(m[0], share_handle{made}, samples::only_a_hang)); }).code;
  };
  EXPECT_EQ(forged([](auto&) {}), errc::not_ready);
  EXPECT_EQ(forged([](auto& parts) { parts[0].size = 4096; }), errc::invalid_argument) << "no number of granules";
  EXPECT_EQ(forged([](auto& parts) { parts[1].size = 2 << 20; }), errc::corrupt) << "less than all of the second";
  EXPECT_EQ(forged([](auto& parts) { parts[1].size *= 2; }), errc::corrupt);
  EXPECT_NE(forged([](auto& parts) { parts[1].size = std::uint64_t{1} << 60; }), errc::not_ready);
  EXPECT_EQ(forged([](auto& parts) { parts[1].key ^= 1; }), errc::closed);
  EXPECT_EQ(forged([](auto& parts) { parts[0].door ^= 1; }), errc::peer_dead);
  EXPECT_EQ(forged([](auto& parts) { parts[0].boot ^= 1; }), errc::incompatible);
  EXPECT_EQ(processes::open_descriptors(), descriptors);
  EXPECT_EQ(processes::mappings_of("weft-"), mappings);
}

// ---- grant ----------------------------------------------------------------------------------------------------------

TEST(grant, for_a_buffer_is_a_lease_of_peer_access_that_says_what_else_it_shows) {
  const machine m = devices();
  const byte_buffer wanted{m[0], 100}, other{m[0], 100};
  EXPECT_FALSE(weft::peer_enabled(m, gpu1, gpu0));
  {
    const access_grant one = grant(wanted, m[1], access_right::read_write);
    access_grant two = grant(wanted.subspan(3, 5), m[1], access_right::read);
    EXPECT_EQ(one.way(), grant_way::peer_access);
    EXPECT_EQ(two.right(), access_right::read_write) << "peer access is never for reading only";
    EXPECT_NE(one.exposes().find("all buffers of gpu0"), std::string::npos) << one.exposes();
    EXPECT_FALSE(weft::peer_enabled(m, gpu0, gpu1)) << "one direction";
    EXPECT_EQ(writes(m[1], wanted), errc::not_ready);
    EXPECT_EQ(writes(m[1], other), errc::not_ready) << "as it said";
    two.end();
    EXPECT_TRUE(weft::peer_enabled(m, gpu1, gpu0)) << "leases count";
  }
  EXPECT_FALSE(weft::peer_enabled(m, gpu1, gpu0));
  const shareable_buffer<byte> own{m[0], 100};
  EXPECT_EQ(grant(own, m[1], access_right::read_write).way(), grant_way::peer_access);
  const memory_pool plain{m[0]};
  EXPECT_EQ(grant(plain, m[1], access_right::read_write).way(), grant_way::peer_access);
  EXPECT_EQ(grant(wanted, m[0], access_right::read_write).way(), grant_way::not_needed);
  const weft::pinned_buffer<byte> pinned{m[0], 100};
  EXPECT_EQ(grant(pinned, m[1], access_right::read_write).way(), grant_way::not_needed);
  EXPECT_FALSE(weft::peer_enabled(m, gpu1, gpu0));
}

TEST(grant, for_a_mapping_is_its_right_and_no_other_mappings) {
  const machine m = devices();
  const mapping wanted = block_on(m[0]), other = block_on(m[0]);
  {
    const access_grant read = grant(wanted, m[1], access_right::read);
    EXPECT_EQ(read.way(), grant_way::mapping);
    EXPECT_EQ(read.right(), access_right::read);
    EXPECT_EQ(read.exposes(), "");
    EXPECT_EQ(wanted.access_of(gpu1), access_right::read);
    EXPECT_EQ(other.access_of(gpu1), access_right::none);
    EXPECT_FALSE(weft::peer_enabled(m, gpu1, gpu0));
    {
      const access_grant write = grant(wanted.span<byte>().first(10), m[1], access_right::read_write);
      EXPECT_EQ(wanted.access_of(gpu1), access_right::read_write);
      EXPECT_NE(write.exposes().find("whole mappings"), std::string::npos) << write.exposes();
      EXPECT_EQ(writes(m[1], wanted.span<byte>(gpu1)), errc::not_ready);
      access_grant late = grant(wanted, m[1], access_right::read);
      EXPECT_EQ(late.right(), access_right::read_write) << "what it has";
      late.end();
      EXPECT_EQ(wanted.access_of(gpu1), access_right::read_write) << "the writer lasts";
    }
    EXPECT_EQ(wanted.access_of(gpu1), access_right::read) << "the other one lasts";
  }
  EXPECT_EQ(wanted.access_of(gpu1), access_right::none);
  EXPECT_EQ(wanted.access_of(gpu0), access_right::read_write);
}

TEST(grant, for_a_mapping_of_several_blocks_is_for_all_or_none_and_takes_back_what_it_gave) {
  weft::topology layout = samples::wired(3);
  layout.access[layout.pair(gpu2, gpu1)] = false;
  const machine m = samples::play(std::move(layout));
  mapping both{weft::address_reservation{m, 16_MiB}, physical_block{m[0], 2_MiB}};
  both.grow(physical_block{m[1], 2_MiB});
  const void* second = static_cast<const std::byte*>(both.address()) + (2 << 20);
  {
    const access_grant one = grant(both, m[1], access_right::read_write);
    EXPECT_EQ(one.exposes(), "");
    EXPECT_EQ(right_of(m[1], both.address()), access_right::read_write);
    EXPECT_EQ(right_of(m[1], second), access_right::read_write);
  }
  EXPECT_EQ(right_of(m[1], both.address()), access_right::none);
  EXPECT_EQ(right_of(m[1], second), access_right::none);
  EXPECT_EQ(error_of([&] { static_cast<void>(grant(both, m[2], access_right::read)); }).code, errc::peer_unsupported);
  EXPECT_EQ(right_of(m[2], both.address()), access_right::none) << "it could have had the first one";
  const access_grant half = grant(both.span<byte>().last(10), m[1], access_right::read);
  EXPECT_EQ(right_of(m[1], both.address()), access_right::none) << "the span touches the second one only";
  EXPECT_EQ(right_of(m[1], second), access_right::read);
  const access_grant first = grant(both.span<byte>().first(10), m[1], access_right::read_write);
  EXPECT_EQ(grant(both, m[1], access_right::read).right(), access_right::read) << "the lesser of its two";
}

TEST(grant, leaves_alone_what_somebody_else_has_set_or_what_is_gone) {
  const machine m = devices();
  mapping memory = block_on(m[0]);
  {
    const access_grant one = grant(memory, m[1], access_right::read_write);
    memory.grant(gpu1, access_right::read);
  }
  EXPECT_EQ(memory.access_of(gpu1), access_right::read) << "set by hand meanwhile";
  {
    const access_grant more = grant(memory, m[1], access_right::read_write);
    EXPECT_EQ(memory.access_of(gpu1), access_right::read_write);
  }
  EXPECT_EQ(memory.access_of(gpu1), access_right::read) << "what it was before";
  {
    memory.grant(gpu1, access_right::none);
    const access_grant one = grant(memory, m[1], access_right::read);
    memory.grant(gpu1, access_right::read_write);
    grant(memory, m[1], access_right::read).end();
    EXPECT_EQ(memory.access_of(gpu1), access_right::read_write) << "set by hand under one grant, before another";
  }
  EXPECT_EQ(memory.access_of(gpu1), access_right::read_write);
  {
    const access_grant one = grant(memory, m[1], access_right::read_write);
    memory.grant(gpu1, access_right::read);
    grant(memory, m[1], access_right::read).end();
    EXPECT_EQ(memory.access_of(gpu1), access_right::read) << "an end gives nothing";
  }
  EXPECT_EQ(memory.access_of(gpu1), access_right::read);
  const weft::address_reservation where{m, 4_MiB};
  mapping again{where, physical_block{m[0], 4_MiB}};
  {
    const access_grant late = grant(again, m[1], access_right::read_write);
    again.end();
    again = mapping{where, physical_block{m[0], 4_MiB}};
    again.grant(gpu1, access_right::read_write);
  }
  EXPECT_EQ(again.access_of(gpu1), access_right::read_write) << "another mapping at the same address";
  const physical_block block{m[0], 4_MiB};
  again.end();
  again = mapping{where, block};
  {
    const access_grant late = grant(again, m[1], access_right::read);
    again.end();
    again = mapping{where, block};
    again.grant(gpu1, access_right::read);
  }
  EXPECT_EQ(again.access_of(gpu1), access_right::read) << "another one of the same block, too";
  access_grant outlives;
  {
    const machine closed = devices();
    outlives = grant(block_on(closed[0]), closed[1], access_right::read);
  }
  outlives.end();
}

TEST(grant, ends_only_when_work_of_the_device_has_ended) {
  const machine m = devices();
  const mapping memory = block_on(m[0], 2_MiB);
  weft::copy(memory.span<byte>(), pattern(memory.size().value(), 1));
  byte_buffer copied{m[1], memory.size().value()};
  const weft::stream order{m[1]};
  samples::gate gate;
  access_grant right = grant(memory, m[1], access_right::read);
  const weft::event held = gate.hold(order);
  const weft::event done = weft::copy(order, copied, memory.span<const byte>(gpu1));
  std::future<void> ended = std::async(std::launch::async, [&] { right.end(); });
  EXPECT_EQ(ended.wait_for(50ms), std::future_status::timeout);
  EXPECT_EQ(memory.access_of(gpu1), access_right::read);
  gate.open();
  ended.get();
  done.wait();
  EXPECT_EQ(memory.access_of(gpu1), access_right::none);
}

TEST(grant, that_ended_too_late_for_its_right_leaves_later_ones_undisturbed) {
  const machine m = samples::play(samples::wired(2, {.host_rate = 1e3}), weft::clock_kind::virtual_time);
  mapping memory{physical_block{m[0], 1_MiB}};
  const byte_buffer busy{m[1], 20'000};  // for 20 s
  const weft::stream order{m[1]};
  const samples::data source = pattern(busy.size(), 1);
  access_grant late = grant(memory, m[1], access_right::read);
  weft::copy(order, busy, source);
  std::string said;
  auto before = weft::set_log_hook([&](weft::log_level, std::string_view text) { said = text; });
  late.end();
  weft::set_log_hook(std::move(before));
  EXPECT_NE(said.find("a right of gpu1 stays"), std::string::npos) << said;
  EXPECT_EQ(memory.access_of(gpu1), access_right::read);
  order.synchronize();
  memory.grant(gpu1, access_right::none);
  grant(memory, m[1], access_right::read).end();
  EXPECT_EQ(memory.access_of(gpu1), access_right::none);
}

TEST(grant, for_a_shareable_pool_or_its_memory_is_the_right_to_the_pool) {
  const machine m = devices();
  const memory_pool pool{m[0], shareable()}, other{m[0], shareable()};
  const byte_buffer one{pool, 100}, foreign{other, 100};
  {
    const access_grant right = grant(one, m[1], access_right::read_write);
    EXPECT_EQ(right.way(), grant_way::pool);
    EXPECT_NE(right.exposes().find("all memory of this pool"), std::string::npos) << right.exposes();
    const byte_buffer later{pool, 100};
    EXPECT_EQ(writes(m[1], one), errc::not_ready);
    EXPECT_EQ(writes(m[1], later), errc::not_ready) << "as it said";
    EXPECT_EQ(right_of(m[1], foreign.data()), access_right::none);
    const access_grant whole = grant(pool, m[1], access_right::read);
    EXPECT_EQ(whole.right(), access_right::read_write);
    EXPECT_FALSE(weft::peer_enabled(m, gpu1, gpu0));
  }
  EXPECT_EQ(pool.access(m[1]), access_right::none);
  EXPECT_EQ(right_of(m[1], one.data()), access_right::none);
  EXPECT_EQ(grant(one, m[0], access_right::read_write).way(), grant_way::not_needed);
  access_grant outlives;
  {
    const memory_pool gone{m[0], shareable()};
    outlives = grant(gone, m[1], access_right::read);
  }
  outlives.end();
}

TEST(grant, a_wrong_grant_is_refused_with_the_advice) {
  const machine m = devices(), stranger = devices();
  const byte_buffer memory{m[0], 100};
  const auto refused = [](auto&& f, errc code, const char* says) {
    const weft::error e = error_of(f);
    EXPECT_EQ(e.code, code) << e.what;
    EXPECT_NE(e.what.find(says), std::string::npos) << e.what;
  };
  const auto read = access_right::read;
  refused([&] { static_cast<void>(grant(memory, stranger[1], read)); }, errc::wrong_device, "another machine");
  refused([&] { static_cast<void>(grant(memory, m[1], access_right::none)); }, errc::invalid_argument, "end the grant");
  refused([&] { static_cast<void>(grant(samples::data(3), m[1], read)); }, errc::invalid_argument, "weft::buffer");
  refused([&] { static_cast<void>(grant(mapping{}, m[1], read)); }, errc::invalid_argument, "empty mapping");
  refused([&] { static_cast<void>(grant(byte_buffer{m[0], 0}, m[1], read)); }, errc::invalid_argument, "0 bytes");
  const mapping whole = block_on(m[0]);
  refused([&] { static_cast<void>(grant(whole.span<byte>().first(0), m[1], read)); }, errc::invalid_argument,
          "0 bytes");
  refused([&] { static_cast<void>(access_grant{}.way()); }, errc::invalid_argument, "empty access_grant");
  weft::device_span<byte> gone;
  {
    const byte_buffer freed{m[0], 100};
    gone = freed.span();
  }
  EXPECT_EQ(error_of([&] { static_cast<void>(grant(gone, m[1], read)); }).code, errc::not_found);
  const machine wide = samples::play(samples::wired(3));
  const weft::peer_access lease{wide, gpu1, gpu0};
  const byte_buffer owned{wide[0], 100};
  const weft::peer_mapping<byte> mapped{wide, owned.span(), gpu1};
  refused([&] { static_cast<void>(grant(mapped.span(), wide[2], read)); }, errc::invalid_argument, "gpu1 alone");
}

TEST(grant, for_what_another_process_shares_is_what_its_way_gives) {
  for (const expected& one : kinds) {
    SCOPED_TRACE(weft::to_string(one.way));
    shared<board> with;
    const child owner = exporter(with, one.what);
    ASSERT_TRUE(with->hear(1));
    const machine m = devices(3);
    const auto there = weft::open<byte>(m[0], with->received(), samples::only_a_hang);
    EXPECT_EQ(right_of(m[1], there.data()), access_right::none);
    EXPECT_NE(error_of([&] { static_cast<void>(grant(there, m[0], access_right::none)); }).code, errc::not_ready);
    if (one.way == sharing_way::allocation) {
      const weft::error e = error_of([&] { static_cast<void>(grant(there, m[1], access_right::read)); });
      EXPECT_EQ(e.code, errc::invalid_argument);
      EXPECT_NE(e.what.find("open its handle on gpu1"), std::string::npos) << e.what;
      EXPECT_EQ(grant(there, m[0], access_right::read).way(), grant_way::not_needed);
      continue;
    }
    {
      const access_grant right = grant(there, m[1], access_right::read);
      EXPECT_EQ(right.way(), one.way == sharing_way::pool ? grant_way::pool : grant_way::mapping);
      EXPECT_EQ(right_of(m[1], there.data()), access_right::read);
      EXPECT_EQ(right_of(m[2], there.data()), access_right::none);
    }
    EXPECT_EQ(right_of(m[1], there.data()), access_right::none);
    EXPECT_EQ(right_of(m[0], there.data()), access_right::read_write);
    if (one.way != sharing_way::pool) continue;
    weft::opened<byte> left = weft::open<byte>(m[0], with->received(), samples::only_a_hang);
    weft::opened<byte> second = std::move(left);
    EXPECT_EQ(left.size(), 0U);  // NOLINT(bugprone-use-after-move): an empty one is what is left
    EXPECT_EQ(left.data(), nullptr);
    EXPECT_TRUE(left.span().empty());
    ASSERT_EQ(second.data(), there.data());
    access_grant first = grant(there, m[1], access_right::read_write);
    access_grant last = grant(second, m[1], access_right::read_write);
    first.end();
    EXPECT_EQ(right_of(m[1], there.data()), access_right::read_write) << "grants of one memory count together";
    second = {};
    last.end();
    EXPECT_EQ(right_of(m[1], there.data()), access_right::none) << "it is open still, by the other one";
  }
}

}  // namespace share_test
