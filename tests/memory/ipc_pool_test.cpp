// SPDX-License-Identifier: Apache-2.0
// Rights and limits of pools, and pools between real processes. Children are forked before this process has a machine.
#include "runtime/machine_state.hpp"
#include "support/hang.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/opened_pool.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

namespace ipc_pool_test {

using processes::child;
using processes::shared;
using samples::byte_buffer;
using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::pattern;
using weft::access_right;
using weft::bytes;
using weft::copy_path;
using weft::errc;
using weft::machine;
using weft::memory_pool;
using weft::opened_memory;
using weft::opened_pool;
using weft::pool_handle;
using weft::pool_memory_handle;
using byte = std::uint8_t;
using wire = std::array<std::byte, pool_handle::wire_size>;
using clock_type = std::chrono::steady_clock;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

WEFT_KERNEL(ipc_pool_next, (WEFT_IN(uint8_t) src, WEFT_OUT(uint8_t) dst), { dst[i] = (uint8_t)(src[i] + 1); });

machine two_devices() {
  weft::machine_options options;
  options.devices = 2;
  options.memory_per_device = bytes{256 * mib};
  machine made{options};
  weft::kernels(made).add<ipc_pool_next>();
  return made;
}

weft::pool_options shareable() {
  weft::pool_options options;
  options.shareable = true;
  return options;
}

errc launch_on(const weft::device& by, const weft::device_span<byte>& memory) {
  const byte_buffer own{by, memory.size()};
  weft::fill(own, byte{1});
  const weft::stream order{by};
  return error_of([&] {
           weft::launch(order, "ipc_pool_next", weft::range(static_cast<std::int64_t>(memory.size())), own, memory)
               .wait();
         })
      .code;
}

TEST(shareable_pool, is_its_devices_alone_and_set_access_covers_what_was_and_what_will_be) {
  const machine m = two_devices();
  const weft::peer_access lease{m, gpu1, gpu0};
  const memory_pool pool{m[0], shareable()};
  const byte_buffer before{pool, 1000};
  EXPECT_EQ(pool.access(m[0]), access_right::read_write);
  EXPECT_EQ(pool.access(m[1]), access_right::none) << "peer access does not apply";
  EXPECT_EQ(launch_on(m[0], before), errc::not_ready);

  pool.set_access(m[1], access_right::read_write);
  const byte_buffer after{pool, 5000};
  EXPECT_EQ(launch_on(m[1], before), errc::not_ready);
  EXPECT_EQ(launch_on(m[1], after), errc::not_ready);
  EXPECT_TRUE(samples::same(samples::contents(after), samples::data(5000, 2)));

  pool.set_access(m[1], access_right::none);
  const byte_buffer last{pool, 5000};
  EXPECT_EQ(launch_on(m[1], before), errc::illegal_access);
  EXPECT_TRUE(m[1].is_lost()) << "a kernel that has no right loses its device, as for peers";
}

TEST(shareable_pool, keeps_its_own_devices_right_and_refuses_who_cannot_reach_it) {
  const machine m = two_devices();
  const memory_pool pool{m[0], shareable()}, plain{m[0]};
  EXPECT_EQ(error_of([&] { pool.set_access(m[0], access_right::none); }).code, errc::invalid_device);
  EXPECT_EQ(error_of([&] { pool.set_access(m[0], access_right::read); }).code, errc::invalid_device);
  pool.set_access(m[0], access_right::read_write);
  EXPECT_EQ(error_of([&] { plain.set_access(m[1], access_right::read); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { static_cast<void>(plain.handle()); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { pool.set_access(two_devices()[1], access_right::read); }).code, errc::wrong_device);
  EXPECT_EQ(error_of([&] { static_cast<void>(pool.access(two_devices()[1])); }).code, errc::wrong_device);
  weft::topology apart = weft::host_topology(2, bytes{64 * mib});
  apart.access.assign(apart.access.size(), false);
  const machine n = samples::play(apart);
  const memory_pool lonely{n[0], shareable()};
  EXPECT_EQ(error_of([&] { lonely.set_access(n[1], access_right::read_write); }).code, errc::peer_unsupported);
}

TEST(shareable_pool, is_copied_directly_where_it_may_be_and_by_the_host_where_not) {
  const machine m = two_devices();
  const weft::peer_access lease{m, gpu1, gpu0};
  const memory_pool pool{m[0], shareable()};
  const byte_buffer pooled{pool, 50'000}, other{m[1], 50'000}, ordinary{m[0], 50'000};
  weft::copy(pooled, pattern(50'000, 1));
  EXPECT_EQ(weft::copy(other, pooled).path, copy_path::staged) << "peer access does not cover a pool";
  EXPECT_TRUE(samples::same(samples::contents(other), pattern(50'000, 1)));
  EXPECT_EQ(weft::copy(other, ordinary).path, copy_path::direct);
  pool.set_access(m[1], access_right::read_write);
  weft::fill(other, byte{0});
  EXPECT_EQ(weft::copy(other, pooled).path, copy_path::direct);
  EXPECT_TRUE(samples::same(samples::contents(other), pattern(50'000, 1)));
}

TEST(shareable_pool, has_exact_figures_and_a_limit) {
  const machine m = two_devices();
  weft::pool_options options = shareable();
  options.max_size = bytes{8 * mib};
  memory_pool pool{m[0], options};
  const std::uint64_t before = m[0].free_memory().value();
  auto a = std::make_unique<byte_buffer>(pool, 4 * mib);
  auto b = std::make_unique<byte_buffer>(pool, 4 * mib);
  EXPECT_EQ(error_of([&] { const byte_buffer c{pool, 1}; }).code, errc::out_of_memory);
  EXPECT_EQ(pool.statistics().used.value(), 8 * mib);
  EXPECT_EQ(before - m[0].free_memory().value(), 8 * mib);
  a.reset();
  EXPECT_EQ(pool.statistics().used.value(), 4 * mib);
  EXPECT_EQ(pool.statistics().reserved.value(), 8 * mib);
  pool.trim_to(bytes{0});
  EXPECT_EQ(pool.statistics().reserved.value(), 4 * mib);
  EXPECT_EQ(pool.statistics().reserved_high.value(), 8 * mib);
  EXPECT_EQ(before - m[0].free_memory().value(), 4 * mib);
  // what was exported goes back to the device and is never handed out again
  const auto name = pool.handle_of(*b);
  b.reset();
  EXPECT_EQ(pool.statistics().reserved.value(), 0U);
  const byte_buffer fresh{pool, 4 * mib};
  EXPECT_NE(pool.handle_of(fresh), name);
}

TEST(shareable_pool, hands_a_block_out_again_only_when_other_streams_have_ended_with_it) {
  const machine m = two_devices();
  const memory_pool pool{m[0], shareable()};
  const weft::stream first{m[0]}, second{m[0]};
  samples::gate gate;
  const weft::event held = gate.hold(first);
  const byte_buffer source{m[0], 1000}, sink{m[0], 1000};
  weft::copy(source, pattern(1000, 1));
  {
    const byte_buffer block{pool, 1000};
    weft::copy(first, block, source);
    second.wait(first.record());
    weft::copy(second, sink, block);
  }
  const byte_buffer next{pool, 1000};
  weft::fill(next, byte{9});
  gate.open();
  second.synchronize();
  EXPECT_TRUE(samples::same(samples::contents(sink), pattern(1000, 1)));
  EXPECT_TRUE(samples::same(samples::contents(next), samples::data(1000, 9)));
}

struct board : processes::steps {
  wire pool{}, memory{};
};

template <class P>
concept serves_buffers = requires(const P& pool) { weft::buffer<byte>{pool, 1}; };
static_assert(serves_buffers<memory_pool> && !serves_buffers<opened_pool>, "an importer allocates nothing");

TEST(opened_pool, gives_memory_to_its_device_alone_until_set_access_and_tells_when_it_was_freed_first) {
  shared<board> with;
  child owner{[&] {
    const machine m = two_devices();
    const memory_pool pool{m[1], shareable()};
    pool.set_access(m[0], access_right::read_write);  // not inherited
    auto memory = std::make_unique<byte_buffer>(pool, 5000);
    weft::copy(*memory, pattern(5000, 1));
    with->pool = pool.handle().bytes();
    with->memory = pool.handle_of(*memory).bytes();
    with->say(1);
    if (!with->hear(2)) return 1;
    if (!samples::same(samples::contents(*memory), samples::data(5000, 2))) return 2;
    memory.reset();
    const byte_buffer next{pool, 5000};
    weft::fill(next, byte{77});
    with->say(3);
    return with->hear(4) ? 0 : 3;
  }};
  ASSERT_TRUE(with->hear(1));
  const machine m = two_devices();
  const opened_pool pool{m, pool_handle::from_bytes(with->pool), samples::only_a_hang};
  EXPECT_EQ(pool.on().id(), gpu1);
  EXPECT_EQ(pool.access(m[1]), access_right::read_write);
  EXPECT_EQ(pool.access(m[0]), access_right::none) << "rights are not inherited";
  EXPECT_EQ(error_of([&] { pool.set_access(m[1], access_right::none); }).code, errc::invalid_device);
  opened_pool left = pool;
  const opened_pool kept = std::move(left);
  // NOLINTBEGIN(bugprone-use-after-move): an empty one is what is left
  EXPECT_EQ(error_of([&] { static_cast<void>(left.on()); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { static_cast<void>(left.access(m[0])); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { left.set_access(m[0], access_right::read); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { static_cast<void>(left.open<byte>(pool_memory_handle{})); }).code, errc::invalid_argument);
  // NOLINTEND(bugprone-use-after-move)
  const auto name = pool_memory_handle::from_bytes(with->memory);
  auto& own = weft::detail::state_of(m)->backend_of(gpu0);
  {
    const auto open = pool.open<byte>(name, samples::only_a_hang);
    EXPECT_EQ(open.owner(), gpu1);
    EXPECT_TRUE(samples::same(samples::contents(open), pattern(5000, 1)));
    EXPECT_EQ(weft::value_or_raise(own.memory_access(gpu0, open.data())), access_right::none);
    pool.set_access(m[0], access_right::read_write);
    EXPECT_EQ(weft::value_or_raise(own.memory_access(gpu0, open.data())), access_right::read_write) << "what is open";
    EXPECT_EQ(launch_on(m[0], open.span()), errc::not_ready);
    // memory of a pool is no allocation, and no pool
    EXPECT_EQ(error_of([&] { static_cast<void>(weft::memory_handle::from_bytes(with->memory)); }).code,
              errc::invalid_argument);
    EXPECT_EQ(error_of([&] { static_cast<void>(pool_handle::from_bytes(with->memory)); }).code, errc::invalid_argument);
  }
  {
    const auto again = pool.open<byte>(name, samples::only_a_hang);
    EXPECT_EQ(weft::value_or_raise(own.memory_access(gpu0, again.data())), access_right::read_write) << "what will be";
    const auto window = weft::value_or_raise(own.host_window(gpu1, const_cast<byte*>(again.data()), bytes{5000}));
    with->say(2);
    ASSERT_TRUE(with->hear(3));
    EXPECT_EQ(static_cast<int>(*window), 2) << "not the data of the next owner";
    EXPECT_EQ(error_of([&] { samples::contents(again); }).code, errc::closed);
  }
  with->say(4);
  EXPECT_EQ(owner.wait(), 0);
  EXPECT_EQ(
      error_of([&] { const opened_pool late{m, pool_handle::from_bytes(with->pool), samples::only_a_hang}; }).code,
      errc::peer_dead);
}

TEST(shareable_pool, exports_what_is_its_own_by_its_own_handles_only) {
  const machine m = two_devices();
  const memory_pool pool{m[0], shareable()}, second{m[0], shareable()};
  const byte_buffer mine{pool, 100};
  const weft::shareable_buffer<byte> other{m[0], 100};
  EXPECT_EQ(error_of([&] { static_cast<void>(weft::export_memory(mine.span())); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { static_cast<void>(second.handle_of(mine)); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { static_cast<void>(pool.handle_of(byte_buffer{pool, 0})); }).code, errc::not_found);
  const auto freed = byte_buffer{m[0], 100}.span().as<const std::byte>();
  EXPECT_EQ(error_of([&] { static_cast<void>(pool.handle_of(freed)); }).code, errc::not_found);
  const auto given_back = byte_buffer{pool, 100}.span().as<const std::byte>();
  EXPECT_EQ(error_of([&] { static_cast<void>(pool.handle_of(given_back)); }).code, errc::not_found);
  EXPECT_EQ(pool.handle(), pool.handle());
  EXPECT_NE(pool.handle(), second.handle());
  EXPECT_EQ(error_of([&] { const opened_pool own{m, pool.handle(), samples::only_a_hang}; }).native_code, 201);
}

}  // namespace ipc_pool_test
