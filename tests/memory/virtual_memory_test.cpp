// SPDX-License-Identifier: Apache-2.0
// Blocks, reservations, mappings and rights: the rules of the driver's interface, and the types that keep them. Numbers
// in comments are those of docs/porting/checklist.md.
#include "runtime/machine_state.hpp"
#include "support/processes.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/core/log.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/address_reservation.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/physical_block.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <sys/resource.h>

namespace virtual_memory_test {

using samples::contents;
using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using samples::pattern;
using samples::same;
using weft::access_right;
using weft::address_reservation;
using weft::block_id;
using weft::bytes;
using weft::device_right;
using weft::errc;
using weft::machine;
using weft::mapping;
using weft::physical_block;
using namespace weft::literals;

WEFT_KERNEL(vmm_read, (WEFT_IN(uint8_t) src, WEFT_OUT(uint8_t) dst), { dst[i] = (uint8_t)(src[i] + 1); });
WEFT_KERNEL(vmm_write, (WEFT_OUT(uint8_t) dst), { dst[i] = (uint8_t)(i * 3); });

machine two_devices() { return samples::play(samples::wired(2)); }

/// The driver itself, whose rules the types above it keep.
struct driver {
  machine m = two_devices();
  weft::backend& raw = *weft::detail::state_of(m)->backends().front();
  bytes granule = weft::value_or_raise(raw.granularity(gpu0)).minimum;

  [[nodiscard]] block_id block(std::uint64_t granules = 1, weft::device_id on = gpu0) const {
    return weft::value_or_raise(raw.create_block(on, times(granules), false));
  }
  [[nodiscard]] std::byte* reserved(std::uint64_t granules) const {
    return static_cast<std::byte*>(weft::value_or_raise(raw.reserve(times(granules), bytes{}, nullptr)));
  }
  [[nodiscard]] bytes times(std::uint64_t granules) const { return bytes{granules * granule.value()}; }
  [[nodiscard]] std::byte* at(std::byte* base, std::uint64_t granules) const { return base + times(granules).value(); }
  [[nodiscard]] std::uint64_t free() const { return m[0].free_memory().value(); }
  [[nodiscard]] access_right right(weft::device_id by, const void* address) const {
    return weft::value_or_raise(raw.access_of(by, address));
  }
};

constexpr std::array<device_right, 1> only_gpu0{{{gpu0, access_right::read_write}}};

template <class R>
errc code(const R& r) {
  return r ? errc::not_ready : r.error().code;
}
#define EXPECT_OK(call)                                            \
  do {                                                             \
    const auto outcome = (call);                                   \
    EXPECT_TRUE(outcome) << (outcome ? "" : outcome.error().what); \
  } while (false)

/// A block of one device with rights for that device.
mapping granted(const machine& m, weft::device_id on, bytes size = 1_MiB) {
  mapping made{physical_block{m[on], size}};
  made.grant(on, access_right::read_write);
  return made;
}

// ---- sizes: 74 ------------------------------------------------------------------------------------------------------

TEST(virtual_memory, has_a_granularity_of_which_the_recommended_one_is_no_smaller) {
  const driver d;
  const weft::block_granularity g = weft::granularity(d.m);
  EXPECT_GT(g.minimum.value(), 0U);
  EXPECT_GE(g.recommended, g.minimum);
  EXPECT_EQ(g.minimum.value() % 4096, 0U);
}

TEST(virtual_memory, driver_refuses_blocks_whose_size_is_no_multiple_of_the_granularity) {
  const driver d;
  const std::uint64_t before = d.free();
  for (const std::uint64_t wrong : {std::uint64_t{0}, std::uint64_t{1}, d.granule.value() - 1, d.granule.value() + 1})
    EXPECT_EQ(code(d.raw.create_block(gpu0, bytes{wrong}, false)), errc::invalid_argument) << wrong;
  EXPECT_EQ(d.free(), before);
  EXPECT_EQ(code(d.raw.create_block(weft::device_id{2}, d.granule, false)), errc::invalid_device);
}

TEST(virtual_memory, block_is_rounded_up_for_users_who_need_not_know_the_granularity) {
  const machine m = two_devices();
  const physical_block one{m[0], 1_B};
  EXPECT_EQ(one.size(), weft::granularity(m).minimum);
  EXPECT_EQ(physical_block(m[0], one.size()).size(), one.size());
  EXPECT_EQ(physical_block(m[0], one.size() + 1_B).size(), one.size() + one.size());
  EXPECT_EQ(error_of([&] { physical_block(m[0], 0_B); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { physical_block(m[0], bytes{~0ULL}); }).code, errc::invalid_argument);
}

TEST(virtual_memory, block_larger_than_its_device_is_out_of_memory_and_takes_nothing) {
  const driver d;
  const std::uint64_t before = d.free();
  const weft::error e = error_of([&] { physical_block(d.m[0], 512_MiB); });
  EXPECT_EQ(e.code, errc::out_of_memory) << e.what;
  EXPECT_NE(e.what.find("gpu0"), std::string::npos) << e.what;
  EXPECT_EQ(d.free(), before);
}

// ---- rights: 75, 76, 77 ---------------------------------------------------------------------------------------------

TEST(virtual_memory, new_mapping_gives_no_device_any_right) {
  const machine m = two_devices();
  const mapping fresh{physical_block{m[0], 1_MiB}};
  EXPECT_EQ(fresh.access_of(gpu0), access_right::none);
  EXPECT_EQ(fresh.access_of(gpu1), access_right::none);
  const weft::error copied = error_of([&] { weft::copy(fresh.span<std::uint8_t>().first(10), pattern(10, 1)); });
  EXPECT_EQ(copied.code, errc::invalid_argument) << copied.what;
  EXPECT_NE(copied.what.find("gpu0"), std::string::npos) << copied.what;
  EXPECT_EQ(error_of([&] { contents(fresh.span<std::uint8_t>().first(10)); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { weft::fill(fresh.span<std::uint8_t>(), std::uint8_t{1}); }).code, errc::invalid_argument);
  EXPECT_FALSE(m[0].is_lost());
}

TEST(virtual_memory, kernel_without_a_right_is_an_illegal_access_and_loses_its_device) {
  const machine m = two_devices();
  const mapping fresh{physical_block{m[0], 1_MiB}};
  const weft::event ran = weft::launch<vmm_write>(weft::stream{m[0]}, weft::range(10), fresh.span<std::uint8_t>());
  const weft::error e = error_of([&] { ran.wait(); });
  EXPECT_EQ(e.code, errc::illegal_access) << e.what;
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost());
}

TEST(virtual_memory, right_to_read_lets_a_device_read_and_no_more) {
  const machine m = two_devices();
  mapping shared = granted(m, gpu0);
  const auto data = pattern(1000, 7);
  weft::copy(shared.span<std::uint8_t>().first(1000), data);
  shared.grant(gpu0, access_right::read);
  EXPECT_EQ(shared.access_of(gpu0), access_right::read);
  EXPECT_TRUE(same(contents(shared.span<std::uint8_t>().first(1000)), data));
  const weft::buffer<std::uint8_t> out{m[0], 1000};
  weft::launch<vmm_read>(weft::stream{m[0]}, weft::range(1000), shared.span<std::uint8_t>().first(1000), out).wait();
  EXPECT_EQ(contents(out)[999], static_cast<std::uint8_t>(data[999] + 1));
  const weft::error e = error_of([&] { weft::copy(shared.span<std::uint8_t>().first(1000), pattern(1000, 8)); });
  EXPECT_EQ(e.code, errc::invalid_argument) << e.what;
  EXPECT_NE(e.what.find("only read"), std::string::npos) << e.what;
  EXPECT_EQ(error_of([&] { weft::fill(shared.span<std::uint8_t>(), std::uint8_t{1}); }).code, errc::invalid_argument);
  EXPECT_TRUE(same(contents(shared.span<std::uint8_t>().first(1000)), data)) << "a refused write wrote";
  EXPECT_FALSE(m[0].is_lost());
}

TEST(virtual_memory, kernel_that_writes_what_it_may_only_read_is_an_illegal_access) {
  const machine m = two_devices();
  mapping shared = granted(m, gpu0);
  weft::fill(shared.span<std::uint8_t>(), std::uint8_t{9});
  shared.grant({{gpu0, access_right::read}, {gpu1, access_right::read}});
  const weft::error e = error_of(
      [&] { weft::launch<vmm_write>(weft::stream{m[0]}, weft::range(10), shared.span<std::uint8_t>()).wait(); });
  EXPECT_EQ(e.code, errc::illegal_access) << e.what;
  EXPECT_EQ(e.scope, weft::error_scope::device);
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_EQ(contents(shared.span<std::uint8_t>(gpu1).first(10)), samples::data(10, 9)) << "it wrote all the same";
}

TEST(virtual_memory, right_of_one_device_is_not_that_of_another) {
  const machine m = two_devices();
  mapping shared{physical_block{m[0], 1_MiB}};
  shared.grant(gpu1, access_right::read_write);
  EXPECT_EQ(shared.access_of(gpu0), access_right::none) << "not even the owner's";
  const auto data = pattern(100, 3);
  weft::copy(shared.span<std::uint8_t>(gpu1).first(100), data);
  EXPECT_TRUE(same(contents(shared.span<std::uint8_t>(gpu1).first(100)), data));
  EXPECT_EQ(error_of([&] { contents(shared.span<std::uint8_t>(gpu0).first(100)); }).code, errc::invalid_argument);
  weft::launch<vmm_write>(weft::stream{m[1]}, weft::range(100), shared.span<std::uint8_t>(gpu1)).wait();
  EXPECT_EQ(contents(shared.span<std::uint8_t>(gpu1).first(100))[50], 150);
  EXPECT_EQ(error_of([&] {
              weft::launch<vmm_write>(weft::stream{m[0]}, weft::range(10), shared.span<std::uint8_t>(gpu0)).wait();
            }).code,
            errc::illegal_access);
  EXPECT_TRUE(m[0].is_lost());
  EXPECT_FALSE(m[1].is_lost());
}

TEST(virtual_memory, peer_access_neither_gives_rights_nor_takes_them) {
  const machine m = two_devices();
  mapping one = granted(m, gpu0), other{physical_block{m[0], 1_MiB}};
  other.grant(gpu1, access_right::read_write);
  weft::enable_peer(m, gpu1, gpu0);
  EXPECT_EQ(error_of([&] { contents(one.span<std::uint8_t>(gpu1).first(1)); }).code, errc::invalid_argument);
  weft::disable_peer(m, gpu1, gpu0);
  weft::fill(other.span<std::uint8_t>(gpu1), std::uint8_t{4});
  EXPECT_EQ(contents(other.span<std::uint8_t>(gpu1).first(3)), samples::data(3, 4));
}

TEST(virtual_memory, only_the_granted_one_of_two_is_seen_by_a_peer_where_peer_access_shows_both) {
  const machine m = two_devices();
  const physical_block seen{m[0], 1_MiB}, hidden{m[0], 1_MiB};
  mapping a{seen}, b{hidden};
  a.grant({{gpu0, access_right::read_write}, {gpu1, access_right::read}});
  b.grant(gpu0, access_right::read_write);
  weft::fill(a.span<std::uint8_t>(), std::uint8_t{1});
  weft::fill(b.span<std::uint8_t>(), std::uint8_t{2});
  EXPECT_EQ(contents(a.span<std::uint8_t>(gpu1).first(5)), samples::data(5, 1));
  EXPECT_EQ(error_of([&] { contents(b.span<std::uint8_t>(gpu1).first(5)); }).code, errc::invalid_argument);
}

TEST(virtual_memory, copies_between_a_mapping_and_a_buffer_of_another_device) {
  for (const bool peers : {false, true}) {
    const machine m = two_devices();
    if (peers) {
      weft::enable_peer(m, gpu0, gpu1);
      weft::enable_peer(m, gpu1, gpu0);
    }
    mapping home = granted(m, gpu0);
    const auto data = pattern(70'001, 5);
    const weft::buffer<std::uint8_t> far = samples::filled(m[1], data);
    const weft::buffer<std::uint8_t> back{m[1], data.size()};
    weft::copy(home.span<std::uint8_t>().first(data.size()), far);
    weft::copy(back, home.span<std::uint8_t>().first(data.size()));
    EXPECT_TRUE(same(contents(back), data)) << "peer access " << peers;
    home.grant(gpu1, access_right::read_write);
    weft::fill(back, std::uint8_t{0});
    const auto report = weft::copy(back, home.span<std::uint8_t>(gpu1).first(data.size()));
    EXPECT_EQ(report.path, weft::copy_path::direct) << "the device has the right itself";
    EXPECT_TRUE(same(contents(back), data));
  }
}

TEST(virtual_memory, its_rights_and_not_those_of_the_pair_decide_the_way_of_a_copy) {
  const machine m = two_devices();
  mapping both = granted(m, gpu0);
  both.grant(gpu1, access_right::read_write);
  const auto span_of = [&](weft::device_id by) { return both.span<std::uint8_t>(by); };
  constexpr std::size_t part = 200'000;
  EXPECT_EQ(error_of([&] { weft::copy(span_of(gpu1).subspan(1, part), span_of(gpu0).first(part)); }).code,
            errc::invalid_argument)
      << "they overlap, whoever names them";
  mapping own = granted(m, gpu0);
  weft::enable_peer(m, gpu1, gpu0);
  const weft::buffer<std::uint8_t> far = samples::filled(m[1], pattern(part, 3));
  const auto report = weft::copy(own.span<std::uint8_t>().first(part), far);
  EXPECT_EQ(report.path, weft::copy_path::staged) << "gpu1 has no right, and gpu0 cannot use its memory";
  EXPECT_TRUE(same(contents(own.span<std::uint8_t>().first(part)), pattern(part, 3)));
}

TEST(virtual_memory, right_withdrawn_before_a_queued_copy_runs_counts) {
  const machine m = two_devices();
  mapping shared = granted(m, gpu0);
  weft::fill(shared.span<std::uint8_t>(), std::uint8_t{1});
  const weft::stream order{m[0]};
  samples::gate gate;
  const weft::event held = gate.hold(order);
  const auto data = pattern(10, 1);
  const weft::event copied = weft::copy(order, shared.span<std::uint8_t>().first(10), data);
  shared.grant(gpu0, access_right::read);
  gate.open();
  EXPECT_EQ(error_of([&] { copied.wait(); }).code, errc::not_enabled);
  EXPECT_EQ(contents(shared.span<std::uint8_t>().first(10)), samples::data(10, 1));
}

// ---- rights that are asked for wrongly: 78, 79 ----------------------------------------------------------------------

TEST(virtual_memory, rights_are_set_on_whole_mappings_only) {
  const driver d;
  std::byte* base = d.reserved(4);
  const block_id two = d.block(2);
  EXPECT_OK(d.raw.map_block(base, d.times(2), two));
  const auto set = [&](void* at, bytes size) { return code(d.raw.set_access(at, size, only_gpu0)); };
  EXPECT_EQ(set(base, 0_B), errc::invalid_argument);
  EXPECT_EQ(set(base, d.times(2) + 1_B), errc::invalid_argument);
  EXPECT_EQ(set(base, d.times(2) - 1_B), errc::invalid_argument);
  EXPECT_EQ(set(base, d.times(1)), errc::invalid_argument);
  EXPECT_EQ(set(base + 1, d.times(2)), errc::invalid_argument);
  EXPECT_EQ(set(base, d.times(3)), errc::invalid_argument) << "past the mapping";
  EXPECT_EQ(set(d.at(base, 2), d.times(1)), errc::invalid_argument) << "reserved, not mapped";
  EXPECT_EQ(set(nullptr, d.times(2)), errc::invalid_argument);
  int local = 0;
  EXPECT_EQ(set(&local, d.times(2)), errc::invalid_argument) << "the host's";
  const weft::buffer<std::uint8_t> plain{d.m[0], d.times(2).size()};
  EXPECT_EQ(set(plain.data(), d.times(2)), errc::invalid_argument) << "a buffer";
  EXPECT_EQ(d.right(gpu0, base), access_right::none) << "a refused call changed something";
  EXPECT_EQ(set(base, d.times(2)), errc::not_ready);
  EXPECT_EQ(d.right(gpu0, base), access_right::read_write);
}

TEST(virtual_memory, rights_for_nobody_strangers_and_of_unknown_kinds_are_refused) {
  const driver d;
  std::byte* base = d.reserved(1);
  EXPECT_OK(d.raw.map_block(base, d.granule, d.block()));
  EXPECT_EQ(code(d.raw.set_access(base, d.granule, {})), errc::invalid_argument);
  for (const int id : {-1, 2, 1000}) {
    const std::array<device_right, 2> rights{{{gpu0, access_right::read}, {weft::device_id{id}, access_right::read}}};
    EXPECT_EQ(code(d.raw.set_access(base, d.granule, rights)), errc::invalid_device) << id;
  }
  const std::array<device_right, 2> unknown{{{gpu0, access_right::read}, {gpu1, access_right{7}}}};
  EXPECT_EQ(code(d.raw.set_access(base, d.granule, unknown)), errc::invalid_argument);
  EXPECT_EQ(d.right(gpu0, base), access_right::none);
  EXPECT_EQ(code(d.raw.access_of(weft::device_id{2}, base)), errc::invalid_device);
  EXPECT_EQ(code(d.raw.access_of(gpu0, base + d.granule.value())), errc::not_found);
}

TEST(virtual_memory, device_without_a_path_to_the_memory_gets_no_right) {
  weft::topology layout = samples::wired(3);
  layout.access[layout.pair(gpu2, gpu0)] = false;
  const machine m = samples::play(std::move(layout));
  mapping shared{physical_block{m[0], 1_MiB}};
  const weft::error e = error_of([&] { shared.grant({{gpu1, access_right::read}, {gpu2, access_right::read}}); });
  EXPECT_EQ(e.code, errc::peer_unsupported) << e.what;
  EXPECT_NE(e.what.find("gpu2"), std::string::npos) << e.what;
  EXPECT_EQ(shared.access_of(gpu1), access_right::none) << "all or nothing";
  shared.grant({{gpu1, access_right::read}, {gpu2, access_right::none}});
  EXPECT_EQ(shared.access_of(gpu1), access_right::read);
}

TEST(virtual_memory, rights_go_over_mappings_that_touch_and_change_nothing_over_a_gap) {
  const driver d;
  std::byte* base = d.reserved(4);
  EXPECT_OK(d.raw.map_block(base, d.granule, d.block()));
  EXPECT_OK(d.raw.map_block(d.at(base, 1), d.granule, d.block()));
  EXPECT_OK(d.raw.map_block(d.at(base, 3), d.granule, d.block()));
  EXPECT_EQ(code(d.raw.set_access(base, d.times(4), only_gpu0)), errc::invalid_argument);
  for (const std::uint64_t i : {0U, 1U, 3U}) EXPECT_EQ(d.right(gpu0, d.at(base, i)), access_right::none) << i;
  EXPECT_OK(d.raw.set_access(base, d.times(2), only_gpu0));
  for (const std::uint64_t i : {0U, 1U}) EXPECT_EQ(d.right(gpu0, d.at(base, i)), access_right::read_write) << i;
  EXPECT_EQ(d.right(gpu0, d.at(base, 3)), access_right::none);
  EXPECT_EQ(d.right(gpu1, base), access_right::none) << "who is not listed keeps what it has";
}

// ---- aliases, ends, accounts: 80, 81, 82, 83 ------------------------------------------------------------------------

TEST(virtual_memory, block_that_is_mapped_twice_is_one_memory) {
  const machine m = two_devices();
  const physical_block block{m[0], 1_MiB};
  mapping a{block}, b{block};
  ASSERT_NE(a.address(), b.address());
  a.grant(gpu0, access_right::read_write);
  b.grant(gpu0, access_right::read);
  const auto data = pattern(5000, 9);
  weft::copy(a.span<std::uint8_t>().first(5000), data);
  EXPECT_TRUE(same(contents(b.span<std::uint8_t>().first(5000)), data));
  EXPECT_EQ(error_of([&] { weft::copy(b.span<std::uint8_t>().first(5), pattern(5, 1)); }).code, errc::invalid_argument)
      << "the rights are the mapping's";
}

TEST(virtual_memory, copy_from_an_alias_into_itself_overlaps) {
  const machine m = two_devices();
  const physical_block block{m[0], 1_MiB};
  mapping a{block}, b{block};
  a.grant(gpu0, access_right::read_write);
  b.grant(gpu0, access_right::read_write);
  EXPECT_EQ(
      error_of([&] { weft::copy(a.span<std::uint8_t>().first(100), b.span<std::uint8_t>().subspan(99, 100)); }).code,
      errc::invalid_argument);
  weft::copy(a.span<std::uint8_t>().first(100), b.span<std::uint8_t>().subspan(100, 100));
}

TEST(virtual_memory, unmaps_whole_mappings_all_or_nothing_and_once) {
  const driver d;
  std::byte* base = d.reserved(4);
  EXPECT_OK(d.raw.map_block(base, d.times(2), d.block(2)));
  EXPECT_OK(d.raw.map_block(d.at(base, 2), d.granule, d.block()));
  EXPECT_EQ(code(d.raw.unmap_block(base, 0_B)), errc::invalid_argument);
  EXPECT_EQ(code(d.raw.unmap_block(base, d.granule)), errc::invalid_argument) << "a part";
  EXPECT_EQ(code(d.raw.unmap_block(d.at(base, 1), d.granule)), errc::invalid_argument) << "its other part";
  EXPECT_EQ(code(d.raw.unmap_block(base, d.times(4))), errc::invalid_argument) << "more than is mapped";
  EXPECT_EQ(code(d.raw.unmap_block(nullptr, d.granule)), errc::not_found);
  EXPECT_OK(d.raw.access_of(gpu0, base));
  EXPECT_OK(d.raw.unmap_block(base, d.times(3)));
  EXPECT_EQ(code(d.raw.access_of(gpu0, base)), errc::not_found);
  EXPECT_EQ(code(d.raw.unmap_block(base, d.times(2))), errc::not_found) << "twice";
}

TEST(virtual_memory, memory_counts_until_neither_references_nor_mappings_are_left) {
  const driver d;
  const std::uint64_t before = d.free();
  std::byte* base = d.reserved(1);
  EXPECT_EQ(d.free(), before) << "address space is no memory";
  const block_id block = d.block();
  EXPECT_EQ(d.free(), before - d.granule.value());
  EXPECT_OK(d.raw.map_block(base, d.granule, block));
  EXPECT_OK(d.raw.set_access(base, d.granule, only_gpu0));
  EXPECT_OK(d.raw.release_block(block));
  EXPECT_EQ(d.free(), before - d.granule.value()) << "the mapping holds it";
  EXPECT_EQ(code(d.raw.release_block(block)), errc::not_found);
  EXPECT_OK(d.raw.unmap_block(base, d.granule));
  EXPECT_EQ(d.free(), before);
}

TEST(virtual_memory, mapping_keeps_block_and_reservation_in_any_order_of_destruction) {
  const machine m = two_devices();
  const std::uint64_t before = m[0].free_memory().value();
  const auto data = pattern(300, 2);
  {
    std::optional<physical_block> block{std::in_place, m[0], 1_MiB};
    std::optional<address_reservation> where{std::in_place, m, 4_MiB};
    mapping held{*where, *block};
    held.grant(gpu0, access_right::read_write);
    block.reset();
    where.reset();
    weft::copy(held.span<std::uint8_t>().first(300), data);
    EXPECT_TRUE(same(contents(held.span<std::uint8_t>().first(300)), data));
    EXPECT_LT(m[0].free_memory().value(), before);
    mapping moved = std::move(held);
    EXPECT_TRUE(same(contents(moved.span<std::uint8_t>().first(300)), data));
    EXPECT_FALSE(held);  // NOLINT(bugprone-use-after-move): an empty one is what is left
    EXPECT_EQ(held.size(), 0_B);
    EXPECT_TRUE(held.span<std::uint8_t>().empty());
    EXPECT_EQ(error_of([&] { held.grant(gpu0, access_right::read); }).code, errc::invalid_argument);
  }
  EXPECT_EQ(m[0].free_memory().value(), before);
}

TEST(virtual_memory, mapping_that_ends_waits_for_work_that_uses_it) {
  const machine m = two_devices();
  std::optional<mapping> held{granted(m, gpu0)};
  const weft::stream order{m[0]};
  const auto data = pattern(1 << 20, 2);
  const weft::buffer<std::uint8_t> out{m[0], data.size()};
  weft::copy(order, held->span<std::uint8_t>().first(data.size()), data);
  const weft::event copied = weft::copy(order, out, held->span<std::uint8_t>().first(data.size()));
  held.reset();
  EXPECT_TRUE(copied.ready()) << "it did not wait";
  copied.wait();
  EXPECT_TRUE(same(contents(out), data));
}

TEST(virtual_memory, mapping_that_ends_waits_for_work_of_a_device_that_has_lost_its_right) {
  const machine m = samples::play(samples::wired(2, {.host_rate = 1e3}), weft::clock_kind::virtual_time);
  mapping held = granted(m, gpu1);
  const weft::stream order{m[1]};
  const auto data = pattern(1000, 2);  // for 1 s
  const weft::event copied = weft::copy(order, held.span<std::uint8_t>().first(data.size()), data);
  held.grant(gpu1, access_right::none);
  held.end();
  EXPECT_TRUE(copied.ready()) << "it did not wait";
  static_cast<void>(error_of([&] { copied.wait(); }));  // its right may have gone before it began
}

TEST(virtual_memory, mapping_of_several_blocks_waits_no_longer_than_that_of_one) {
  const machine m = samples::play(samples::wired(2, {.host_rate = 1e3}), weft::clock_kind::virtual_time);
  mapping held{address_reservation{m, 64_MiB}, physical_block{m[0], 1_MiB}};
  held.grow(physical_block{m[0], 1_MiB});
  held.grant(gpu0, access_right::read_write);
  const weft::stream order{m[0]};
  const auto data = pattern(30'000, 2);  // for 30 s
  weft::copy(order, held.span<std::uint8_t>().first(data.size()), data);
  weft::copy(order, held.span<std::uint8_t>().last(data.size()), data);
  const auto begin = m.now();
  int warnings = 0;
  auto before = weft::set_log_hook([&](weft::log_level, std::string_view) { ++warnings; });
  held.end();
  weft::set_log_hook(std::move(before));
  EXPECT_GT(warnings, 0);
  EXPECT_LE(m.now() - begin, std::chrono::seconds{10});
  static_cast<void>(error_of([&] { order.synchronize(); }));
}

TEST(virtual_memory, machine_may_close_before_its_mappings_end) {
  std::optional<machine> m{two_devices()};
  const physical_block block{(*m)[0], 1_MiB};
  mapping held{block};
  m->close();
  EXPECT_EQ(error_of([&] { held.grant(gpu0, access_right::read); }).code, errc::machine_closed);
  EXPECT_EQ(error_of([&] { static_cast<void>(block.share()); }).code, errc::machine_closed);
  m.reset();
}

TEST(virtual_memory, gives_the_block_behind_an_interior_address_with_a_reference_of_its_own) {
  const driver d;
  std::byte* base = d.reserved(2);
  const block_id block = d.block(2);
  EXPECT_OK(d.raw.map_block(base, d.times(2), block));
  const auto again = d.raw.block_of(base + d.times(1).value() + 17);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, block);
  EXPECT_OK(d.raw.release_block(block));
  EXPECT_OK(d.raw.describe_block(block));
  EXPECT_OK(d.raw.release_block(block));
  EXPECT_EQ(code(d.raw.release_block(block)), errc::not_found);
  const auto revived = d.raw.block_of(base);
  ASSERT_TRUE(revived) << "only the mapping holds it";
  EXPECT_EQ(*revived, block);
  EXPECT_OK(d.raw.release_block(block));
  EXPECT_EQ(code(d.raw.block_of(base + d.times(2).value())), errc::not_found);
  const weft::buffer<int> plain{d.m[0], 4};
  EXPECT_EQ(code(d.raw.block_of(plain.data())), errc::not_found);
}

TEST(virtual_memory, finds_a_block_again_by_address_alone) {
  const machine m = two_devices();
  std::optional<physical_block> block{std::in_place, m[1], 1_MiB};
  const mapping held{*block};
  const physical_block same_one = physical_block::behind(m, static_cast<std::byte*>(held.address()) + 5);
  EXPECT_EQ(same_one, *block);
  EXPECT_EQ(same_one.on().id(), gpu1);
  EXPECT_NE(same_one, physical_block(m[1], 1_MiB));
  EXPECT_EQ(error_of([&] { static_cast<void>(physical_block::behind(m, &m)); }).code, errc::not_found);
}

// ---- reservations: 84, 85 -------------------------------------------------------------------------------------------

TEST(virtual_memory, reservation_is_freed_whole_once_and_not_while_something_is_mapped) {
  const driver d;
  std::byte* base = d.reserved(3);
  EXPECT_EQ(code(d.raw.free_reservation(base, d.times(2))), errc::invalid_argument) << "a part";
  EXPECT_EQ(code(d.raw.free_reservation(base, 0_B)), errc::invalid_argument);
  EXPECT_EQ(code(d.raw.free_reservation(d.at(base, 1), d.times(2))), errc::not_found) << "not its base";
  EXPECT_EQ(code(d.raw.free_reservation(nullptr, d.times(3))), errc::not_found);
  EXPECT_OK(d.raw.map_block(d.at(base, 1), d.granule, d.block()));
  EXPECT_EQ(code(d.raw.free_reservation(base, d.times(3))), errc::invalid_argument) << "mapped";
  EXPECT_OK(d.raw.unmap_block(d.at(base, 1), d.granule));
  EXPECT_OK(d.raw.free_reservation(base, d.times(3)));
  EXPECT_EQ(code(d.raw.free_reservation(base, d.times(3))), errc::not_found) << "twice";
}

TEST(virtual_memory, reservation_with_a_wrong_size_or_alignment_is_refused) {
  const driver d;
  EXPECT_EQ(code(d.raw.reserve(0_B, 0_B, nullptr)), errc::invalid_argument);
  EXPECT_EQ(code(d.raw.reserve(bytes{1000}, 0_B, nullptr)), errc::invalid_argument);
  EXPECT_EQ(code(d.raw.reserve(d.granule, 3_B, nullptr)), errc::invalid_argument);
  EXPECT_EQ(code(d.raw.reserve(bytes{std::uint64_t{1} << 62}, 0_B, nullptr)), errc::out_of_memory);
  const auto aligned = d.raw.reserve(d.granule, 64_MiB, nullptr);
  ASSERT_TRUE(aligned);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*aligned) % (64 << 20), 0U);
  EXPECT_OK(d.raw.free_reservation(*aligned, d.granule));
}

TEST(virtual_memory, maps_inside_one_reservation_where_nothing_is_mapped) {
  const driver d;
  std::byte* base = d.reserved(3);
  const block_id block = d.block(2);
  EXPECT_EQ(code(d.raw.map_block(base + 4096, d.granule, block)), errc::invalid_argument) << "not a granule";
  EXPECT_EQ(code(d.raw.map_block(base, d.times(3), block)), errc::invalid_argument) << "more than the block";
  EXPECT_EQ(code(d.raw.map_block(base, 0_B, block)), errc::invalid_argument);
  EXPECT_EQ(code(d.raw.map_block(base, d.granule - 1_B, block)), errc::invalid_argument);
  EXPECT_EQ(code(d.raw.map_block(d.at(base, 2), d.times(2), block)), errc::invalid_argument) << "past the end";
  EXPECT_EQ(code(d.raw.map_block(nullptr, d.granule, block)), errc::invalid_argument);
  EXPECT_EQ(code(d.raw.map_block(base, d.granule, block_id{999})), errc::not_found);
  EXPECT_OK(d.raw.map_block(d.at(base, 1), d.times(2), block));
  EXPECT_EQ(code(d.raw.map_block(base, d.times(2), block)), errc::invalid_argument) << "runs into a mapping";
  EXPECT_EQ(code(d.raw.map_block(d.at(base, 2), d.granule, block)), errc::invalid_argument) << "inside a mapping";
  EXPECT_OK(d.raw.map_block(base, d.granule, block));
}

TEST(virtual_memory, part_from_the_start_of_a_block_can_be_mapped) {
  const machine m = two_devices();
  const bytes granule = weft::granularity(m).minimum;
  const physical_block block{m[0], granule + granule};
  mapping whole{block};
  mapping part{address_reservation{m, granule}, block, {}, granule};
  EXPECT_EQ(part.size(), granule);
  whole.grant(gpu0, access_right::read_write);
  part.grant(gpu0, access_right::read_write);
  weft::fill(whole.span<std::uint8_t>(), std::uint8_t{1});
  weft::fill(part.span<std::uint8_t>(), std::uint8_t{2});
  EXPECT_EQ(contents(whole.span<std::uint8_t>().subspan(granule.size() - 1, 2)), (samples::data{2, 1}));
  EXPECT_EQ(error_of([&] {
              weft::copy(weft::detail::make<weft::device_span<std::uint8_t>>(
                             weft::detail::state_of(m).get(), gpu0, part.span<std::uint8_t>().data(),
                             granule.size() + 1, weft::memory_kind::block),
                         samples::data(granule.size() + 1));
            }).code,
            errc::out_of_range);
}

// ---- growing: 86 ----------------------------------------------------------------------------------------------------

TEST(virtual_memory, grows_in_place_and_keeps_address_contents_and_rights) {
  const machine m = two_devices();
  const std::size_t granule = weft::granularity(m).minimum.size();
  mapping grown{address_reservation{m, 64_MiB}, physical_block{m[0], bytes{granule}}};
  grown.grant({{gpu0, access_right::read_write}, {gpu1, access_right::read}});
  const auto first = pattern(granule, 1);
  weft::copy(grown.span<std::uint8_t>(), first);
  void* const address = grown.address();
  grown.grow(physical_block{m[0], bytes{2 * granule}});
  EXPECT_EQ(grown.address(), address);
  EXPECT_EQ(grown.size(), bytes{3 * granule});
  EXPECT_EQ(grown.block_count(), 2U);
  EXPECT_TRUE(same(contents(grown.span<std::uint8_t>().first(granule)), first));
  // one range over both blocks: copies, fills and kernels
  const auto all = pattern(3 * granule, 2);
  weft::copy(grown.span<std::uint8_t>(), all);
  EXPECT_TRUE(same(contents(grown.span<std::uint8_t>()), all));
  EXPECT_TRUE(same(contents(grown.span<std::uint8_t>(gpu1)), all));
  weft::fill(grown.span<std::uint8_t>().subspan(granule - 3, 6), std::uint8_t{7});
  EXPECT_EQ(contents(grown.span<std::uint8_t>().subspan(granule - 4, 8))[0], all[granule - 4]);
  EXPECT_EQ(contents(grown.span<std::uint8_t>().subspan(granule - 3, 6)), samples::data(6, 7));
  weft::launch<vmm_write>(weft::stream{m[0]}, weft::range(100), grown.span<std::uint8_t>().subspan(granule - 50, 100))
      .wait();
  const auto written = contents(grown.span<std::uint8_t>().subspan(granule - 50, 100));
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(written[i], static_cast<std::uint8_t>(i * 3)) << i;
  EXPECT_EQ(error_of([&] { weft::copy(grown.span<std::uint8_t>(gpu1).subspan(granule - 5, 10), pattern(10, 1)); }).code,
            errc::invalid_argument);
}

TEST(virtual_memory, range_over_a_block_without_a_right_is_refused) {
  const driver d;
  std::byte* base = d.reserved(2);
  EXPECT_OK(d.raw.map_block(base, d.granule, d.block()));
  EXPECT_OK(d.raw.map_block(d.at(base, 1), d.granule, d.block()));
  EXPECT_OK(d.raw.set_access(base, d.granule, only_gpu0));
  const auto both = weft::detail::make<weft::device_span<std::uint8_t>>(weft::detail::state_of(d.m).get(), gpu0,
                                                                        reinterpret_cast<std::uint8_t*>(base),
                                                                        d.times(2).size(), weft::memory_kind::block);
  EXPECT_EQ(error_of([&] { contents(both); }).code, errc::invalid_argument);
  const std::array<device_right, 1> reads{{{gpu0, access_right::read}}};
  EXPECT_OK(d.raw.set_access(d.at(base, 1), d.granule, reads));
  EXPECT_EQ(contents(both).size(), both.size()) << "rights of two kinds, both enough";
  EXPECT_EQ(error_of([&] { weft::fill(both, std::uint8_t{1}); }).code, errc::invalid_argument);
  weft::fill(both.first(d.granule.size()), std::uint8_t{1});
}

TEST(virtual_memory, growing_past_the_reservation_changes_nothing) {
  const machine m = two_devices();
  const bytes granule = weft::granularity(m).minimum;
  mapping full{physical_block{m[0], granule}};
  EXPECT_EQ(error_of([&] { full.grow(physical_block{m[0], granule}); }).code, errc::invalid_argument);
  EXPECT_EQ(full.size(), granule);
  full.grant(gpu0, access_right::read_write);
  weft::fill(full.span<std::uint8_t>(), std::uint8_t{1});
}

// ---- page tables ----------------------------------------------------------------------------------------------------

/// A kernel that is given an address and does not keep to what its parameters say.
void stray_write(const weft::kernel_range&, std::span<const weft::kernel_argument> arguments) {
  *static_cast<volatile std::uint8_t*>(arguments[0].address) = 1;
}

int write_through(access_right right) {
  const machine m = two_devices();
  mapping shared = granted(m, gpu0);
  weft::fill(shared.span<std::uint8_t>(), std::uint8_t{2});
  shared.grant(gpu0, right);
  weft::raw_kernel stray;
  stray.name = "stray";
  stray.entry = "entry";
  stray.host = stray_write;
  weft::kernel_argument argument;
  argument.type = weft::element_type::uint8;
  argument.direction = weft::parameter_direction::in;
  argument.address = shared.address();
  argument.count = 10;
  weft::launch_request request;
  request.kernel = weft::make_kernel_code(stray);
  request.range = {1, {0, 0, 0}, {1, 1, 1}};
  request.arguments = {argument};
  const weft::stream order{m[0]};
  weft::detail::make<weft::event>(
      weft::detail::state_of(m),
      weft::value_or_raise(weft::detail::state_of(m)->backend_of(gpu0).launch(order.native(), request)))
      .wait();
  return 42;
}

TEST(virtual_memory, page_tables_hold_what_a_kernel_may_only_read) {
  processes::child strays{[] { return write_through(access_right::read); }};
  EXPECT_NE(strays.wait(), 42);
  processes::child may{[] { return write_through(access_right::read_write); }};
  EXPECT_EQ(may.wait(), 42) << "the same kernel with the right to do so";
}

TEST(virtual_memory, page_tables_hold_that_the_host_follows_no_address_of_a_mapping) {
  processes::child follows{[] {
    const machine m = two_devices();
    const mapping fresh{physical_block{m[0], 1_MiB}};
    *static_cast<volatile std::uint8_t*>(fresh.address()) = 1;
    return 42;
  }};
  EXPECT_NE(follows.wait(), 42);
}

// ---- limits: 89 -----------------------------------------------------------------------------------------------------

TEST(virtual_memory, hundred_thousand_cycles_of_map_and_unmap_leave_nothing_behind) {
  const machine m = two_devices();
  const physical_block block{m[0], 1_MiB};
  const address_reservation where{m, 64_MiB};
  const std::uint64_t free_before = m[0].free_memory().value();
  const auto cycle = [&](int i) {
    mapping one{where, block, bytes{static_cast<std::uint64_t>(i % 4) * block.size().value()}};
    one.grant({{gpu0, access_right::read_write}, {gpu1, access_right::read}});
  };
  cycle(0);
  const std::size_t descriptors = processes::open_descriptors();
  const std::size_t mappings = processes::mappings_of("weft-block");
  for (int i = 0; i < (samples::is_sanitized ? 2'000 : 100'000); ++i) cycle(i);  // shadow memory follows each mapping
  EXPECT_EQ(processes::mappings_of("weft-block"), mappings);
  EXPECT_EQ(processes::open_descriptors(), descriptors);
  EXPECT_EQ(m[0].free_memory().value(), free_before);
}

TEST(virtual_memory, blocks_without_descriptors_to_make_them_are_an_error_and_leave_nothing_behind) {
  processes::child starved{[] {
    const machine m = two_devices();
    const std::uint64_t before = m[0].free_memory().value();
    for (int round = 0; round < 2; ++round) {
      std::vector<physical_block> blocks;
      const weft::error e = error_of([&] {
        processes::with_descriptors_below(processes::open_descriptors() + 4, [&] {
          for (int i = 0; i < 100; ++i) blocks.emplace_back(m[0], 1_B);
        });
      });
      if (e.code != errc::resource_exhausted) return 1;
      if (blocks.empty()) return 2;
      blocks.clear();
      if (m[0].free_memory().value() != before) return 3;
    }
    return 0;
  }};
  EXPECT_EQ(starved.wait(), 0);
}

TEST(virtual_memory, mappings_without_address_space_are_out_of_memory_and_leave_nothing_behind) {
  if (samples::is_sanitized) GTEST_SKIP() << "a sanitizer needs the address space itself";
  processes::child starved{[] {
    const machine m = two_devices();
    const physical_block block{m[0], 1_B};
    std::vector<mapping> made;
    const rlimit little{std::uint64_t{8} << 30, std::uint64_t{8} << 30};
    ::setrlimit(RLIMIT_AS, &little);
    const weft::error e = error_of([&] {
      for (int i = 0; i < 10'000; ++i) {
        made.emplace_back(address_reservation{m, 256_MiB}, block);
        made.back().grant(gpu0, access_right::read_write);
      }
    });
    if (e.code != errc::out_of_memory) return 1;
    if (made.size() < 2) return 2;
    made.clear();
    mapping again{block};
    again.grant(gpu0, access_right::read_write);
    return 0;
  }};
  EXPECT_EQ(starved.wait(), 0);
}

// ---- with the rest of the machine -----------------------------------------------------------------------------------

TEST(virtual_memory, reset_of_a_device_takes_its_blocks_and_its_rights_elsewhere) {
  const machine m = two_devices();
  mapping lost = granted(m, gpu0);
  mapping kept = granted(m, gpu1);
  kept.grant(gpu0, access_right::read);
  m[0].reset();
  EXPECT_EQ(m[0].free_memory(), m[0].total_memory());
  EXPECT_EQ(error_of([&] { contents(lost.span<std::uint8_t>().first(1)); }).code, errc::not_found);
  EXPECT_EQ(kept.access_of(gpu0), access_right::none);
  EXPECT_EQ(kept.access_of(gpu1), access_right::read_write);
  lost = granted(m, gpu0);
  weft::fill(lost.span<std::uint8_t>(), std::uint8_t{1});
}

TEST(virtual_memory, is_known_as_a_block_by_address) {
  const machine m = two_devices();
  const mapping held{physical_block{m[1], 1_MiB}};
  const weft::memory_description known = weft::address_range(m[0], static_cast<std::byte*>(held.address()) + 100);
  EXPECT_EQ(known.base, held.address());
  EXPECT_EQ(known.size, held.size());
  EXPECT_EQ(known.kind, weft::memory_kind::block);
  EXPECT_EQ(known.device, gpu1);
}

TEST(virtual_memory, order_check_sees_that_two_addresses_are_one_memory) {
  weft::machine_options options;
  options.machine = samples::wired(2);
  options.check_order = true;
  const machine m{options};
  const physical_block block{m[0], 1_MiB}, other{m[0], 1_MiB};
  mapping a{block}, b{block}, c{other};
  for (mapping* one : {&a, &b, &c}) one->grant(gpu0, access_right::read_write);
  const weft::stream first{m[0]}, second{m[0]};
  weft::fill(first, a.span<std::uint8_t>(), std::uint8_t{1});
  weft::fill(second, c.span<std::uint8_t>(), std::uint8_t{1});
  EXPECT_TRUE(m.order_violations().empty()) << "different blocks";
  weft::fill(second, b.span<std::uint8_t>(), std::uint8_t{2});
  EXPECT_EQ(m.order_violations().size(), 1U);
  m.synchronize();
}

TEST(virtual_memory, works_with_one_address_per_byte_too) {
  weft::machine_options options;
  options.machine = samples::wired(2);
  options.strict = false;
  const machine m{options};
  mapping shared = granted(m, gpu0);
  weft::fill(shared.span<std::uint8_t>(), std::uint8_t{5});
  shared.grant({{gpu0, access_right::read}, {gpu1, access_right::none}});
  EXPECT_EQ(contents(shared.span<std::uint8_t>().first(3)), samples::data(3, 5));
  EXPECT_EQ(error_of([&] { weft::fill(shared.span<std::uint8_t>(), std::uint8_t{1}); }).code, errc::invalid_argument);
  shared.grant(gpu0, access_right::read_write);
  weft::fill(shared.span<std::uint8_t>(), std::uint8_t{6});
  EXPECT_EQ(contents(shared.span<std::uint8_t>().last(1)), samples::data(1, 6));
}

// ---- what is known of a pair ----------------------------------------------------------------------------------------

TEST(peer_attributes, tell_arrays_ranks_and_atomics_raw_and_in_one_scale) {
  const machine m = samples::play(samples::shipped("dgx_h100"));
  const auto known = weft::capability_between(m, gpu0, gpu1);
  ASSERT_TRUE(known);
  EXPECT_TRUE(known->array_access);
  EXPECT_EQ(known->performance_rank, 0);
  EXPECT_TRUE(known->native_atomics);
  EXPECT_FALSE(known->partial_native_atomics);
  const std::array ops{weft::atomic_operation::integer_add, weft::atomic_operation::compare_exchange,
                       weft::atomic_operation::float_add};
  const auto answers = weft::peer_atomics(m, gpu0, gpu1, ops);
  ASSERT_EQ(answers.size(), 3U);
  using s = weft::atomic_support;
  EXPECT_TRUE(has_all(answers[0], s::signed_integers | s::unsigned_integers | s::reduction | s::scalar_64));
  EXPECT_TRUE(has_all(answers[1], s::scalar_32));
  EXPECT_FALSE(has_all(answers[1], s::reduction)) << "a compare and exchange gives the old value back";
  EXPECT_FALSE(has_all(answers[2], s::unsigned_integers));
}

TEST(peer_attributes, a_pair_offers_atomics_only_if_they_are_native) {
  const machine m = two_devices();
  const auto known = weft::capability_between(m, gpu0, gpu1);
  ASSERT_TRUE(known && known->supported);
  const std::array ops{weft::atomic_operation::integer_add};
  const auto answer = weft::peer_atomics(m, gpu0, gpu1, ops).front();
  EXPECT_EQ(answer != weft::atomic_support::none, known->native_atomics);
}

TEST(peer_attributes, a_wrong_pair_and_a_missing_or_unknown_operation_are_refused) {
  const machine m = two_devices();
  const std::array ops{weft::atomic_operation::integer_add};
  const std::array unknown{weft::atomic_operation{99}};
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::peer_atomics(m, gpu0, gpu0, ops)); }).code, errc::invalid_device);
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::peer_atomics(m, gpu0, gpu2, ops)); }).code, errc::invalid_device);
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::peer_atomics(m, gpu0, gpu1, {})); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::peer_atomics(m, gpu0, gpu1, unknown)); }).code,
            errc::invalid_argument);
}

TEST(peer_attributes, ranks_of_both_vendors_have_one_scale) {
  using weft::backend_kind;
  EXPECT_EQ(weft::performance_rank_of(backend_kind::cuda, 0), 0);
  EXPECT_EQ(weft::performance_rank_of(backend_kind::cuda, 1), 1);
  EXPECT_EQ(weft::performance_rank_of(backend_kind::hip, 4), 0) << "XGMI";
  EXPECT_EQ(weft::performance_rank_of(backend_kind::hip, 2), 2) << "PCIe";
  EXPECT_LT(weft::performance_rank_of(backend_kind::hip, 4), weft::performance_rank_of(backend_kind::hip, 2));
  EXPECT_EQ(weft::performance_rank_of(backend_kind::hip, 99), std::nullopt);
  EXPECT_EQ(weft::performance_rank_of(backend_kind::cuda, -1), std::nullopt);
}

}  // namespace virtual_memory_test
