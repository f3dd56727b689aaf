// SPDX-License-Identifier: Apache-2.0
// Devices of two backends as one machine: who is there, in what order things happen, and how bytes get across.
#include "runtime/machine_state.hpp"
#include "support/hang.hpp"
#include "support/mixed_machines.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"
#include "support/untold_stream.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/exec/launch.hpp"
#include "weft/kernel/define.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/multicast.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/physical_block.hpp"
#include "weft/memory/scatter.hpp"
#include "weft/runtime/barrier.hpp"
#include "weft/runtime/stream.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <numeric>
#include <thread>

namespace opencl_mixed_machine_test {

using samples::error_of;
using samples::one_of_each;
using weft::access_right;
using weft::buffer;
using weft::errc;
using weft::machine;
using weft::mapping;
using weft::physical_block;
using weft::stream;
using namespace std::chrono_literals;
using namespace weft::literals;

WEFT_KERNEL(mixed_add, (WEFT_INOUT(int32_t) values, int32_t by), { values[i] = values[i] + by; });

class mixed_machine : public samples::mixed_test {};
INSTANTIATE_TEST_SUITE_P(mixtures, mixed_machine, samples::mixtures, samples::name_of_mixture);

std::vector<std::int32_t> ramp(std::size_t n) {
  std::vector<std::int32_t> made(n);
  std::iota(made.begin(), made.end(), 1);
  return made;
}
std::vector<std::int32_t> read(const buffer<std::int32_t>& from) {
  std::vector<std::int32_t> got(from.size());
  weft::copy(got, from);
  return got;
}

TEST_P(mixed_machine, numbers_its_devices_on_over_the_backends_in_the_order_in_which_they_were_named) {
  const machine m = open();
  const int host = m.device_count("host");
  const int opencl = m.device_count(*samples::opencl_options(GetParam().memory).backend);
  EXPECT_EQ(host, 2);
  ASSERT_GT(opencl, 0);
  ASSERT_EQ(m.device_count(), host + opencl);
  for (int i = 0; i < m.device_count(); ++i) {
    EXPECT_EQ(m[i].id().value(), i);
    EXPECT_EQ(m[i].kind() == weft::backend_kind::host, GetParam().host_first ? i < host : i >= opencl) << i;
    EXPECT_FALSE(m[i].has(weft::capability::unified_memory)) << "no memory is seen by all of them";
  }
  int open_ones = 0;
  for (const weft::backend_status& b : m.backends()) {
    open_ones += b.available ? 1 : 0;
    EXPECT_TRUE(b.available || !b.why.empty()) << b.name;
    EXPECT_EQ(b.available, b.looked_at) << b.name;
  }
  EXPECT_EQ(open_ones, 2);
}

TEST_P(mixed_machine, has_one_layout_whose_devices_reach_each_other_through_the_host) {
  const machine m = open();
  const weft::topology& layout = m.layout();
  ASSERT_EQ(layout.device_count(), m.device_count());
  EXPECT_EQ(std::count_if(layout.nodes.begin(), layout.nodes.end(),
                          [](const weft::topology_node& n) { return n.kind == weft::node_kind::socket; }),
            1);
  EXPECT_EQ(m.traffic().bytes_on_link.size(), layout.links.size());
  const auto [host, other] = one_of_each(m);
  for (const auto& [from, to] : {std::pair{host, other}, std::pair{other, host}}) {
    EXPECT_FALSE(layout.can_access(from.id(), to.id()));
    EXPECT_EQ(layout.peer_paths[layout.pair(from.id(), to.id())].links.size(), 2U) << "in and out of the socket";
    const auto about = weft::value_or_raise(weft::detail::state_of(m)->backends().front()->peer(from.id(), to.id()));
    EXPECT_FALSE(about.can_access);
    EXPECT_EQ(about.hops, 2);
    EXPECT_NE(about.why.find("different backends"), std::string::npos) << about.why;
    const auto e = error_of([&, a = from, b = to] { const weft::peer_access lease{m, a.id(), b.id()}; });
    EXPECT_EQ(e.code, errc::peer_unsupported) << e.what;
  }
}

TEST_P(mixed_machine, copies_between_devices_of_two_backends_through_the_host) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const std::size_t count : {std::size_t{1}, std::size_t{1023}, std::size_t{3'000'001}}) {
    const auto sent = ramp(count);
    const buffer<std::int32_t> a{host, count}, b{other, count}, c{host, count};
    weft::copy(a, sent);
    EXPECT_EQ(weft::copy(b, a).path, weft::copy_path::staged);
    EXPECT_EQ(weft::copy(c, b).path, weft::copy_path::staged);
    EXPECT_EQ(read(c), sent);
  }
  weft::copy_options direct;
  direct.route.path = weft::copy_path::direct;
  const buffer<std::int32_t> a{host, 10}, b{other, 10};
  EXPECT_EQ(error_of([&] { weft::copy(a, b, direct); }).code, errc::peer_unsupported);
}

TEST_P(mixed_machine, counts_what_crosses_on_the_links_of_both) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  const buffer<std::int32_t> a{host, 1'000}, b{other, 1'000};
  weft::fill(a, 7);
  const auto before = m.traffic().bytes_on_link;
  weft::copy(b, a);
  const auto after = m.traffic().bytes_on_link;
  const weft::topology& layout = m.layout();
  for (const weft::link_path* path : {&layout.to_host[host.id().index()], &layout.from_host[other.id().index()]}) {
    ASSERT_EQ(path->links.size(), 1U);
    const auto link = static_cast<std::size_t>(path->links.front());
    EXPECT_EQ(after[link] - before[link], 4'000U) << "link " << link;
  }
}

TEST_P(mixed_machine, orders_work_across_backends_by_events) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [first, second] : {std::pair{host, other}, std::pair{other, host}}) {
    for (int round = 0; round < 20; ++round) {
      const stream a{first}, b{second};
      std::atomic<bool> go{false};
      std::atomic<int> step{0};
      a.call([&] {
        go.wait(false);
        step = 1;
      });
      b.wait(a.record());
      int seen = -1;
      const weft::event done = b.call([&] { seen = step; });
      EXPECT_FALSE(done.ready());
      go = true;
      go.notify_all();
      EXPECT_EQ(done.wait_for(samples::soon), weft::wait_outcome::ok);
      EXPECT_EQ(seen, 1);
      // an event that has ended already holds nobody up
      a.synchronize();
      b.wait(a.record());
      EXPECT_EQ(b.synchronize_for(samples::soon), weft::wait_outcome::ok);
    }
  }
}

TEST_P(mixed_machine, maps_blocks_of_the_backend_that_has_them) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  const std::uint64_t free = host.free_memory().value();
  {
    const physical_block block{host, 1_MiB, weft::sharing::with_processes};
    EXPECT_EQ(block.on(), host.id());
    mapping memory{block};
    EXPECT_EQ(memory.access_of(host.id()), access_right::none);
    EXPECT_EQ(error_of([&] { memory.grant(other.id(), access_right::read); }).code, errc::peer_unsupported);
    memory.grant(host.id(), access_right::read_write);
    EXPECT_EQ(memory.access_of(host.id()), access_right::read_write);
    EXPECT_EQ(memory.access_of(other.id()), access_right::none);
    const auto numbers = memory.span<std::int32_t>().first(1000);
    weft::copy(numbers, ramp(1000));
    weft::launch<mixed_add>(stream{host}, weft::range(1000), numbers, 5).wait();
    const buffer<std::int32_t> there{other, 1000};
    weft::copy(there, numbers);
    std::vector<std::int32_t> expected(1000);
    std::iota(expected.begin(), expected.end(), 6);
    EXPECT_EQ(read(there), expected);

    const auto again = physical_block::behind(m, numbers.data());
    EXPECT_EQ(again.size(), block.size());
    mapping second{physical_block::open(m, block.share())};
    second.grant(host.id(), access_right::read);
    std::vector<std::int32_t> got(1000);
    weft::copy(got, second.span<std::int32_t>().first(1000));
    EXPECT_EQ(got, expected);
  }
  EXPECT_EQ(host.free_memory().value(), free);
  EXPECT_EQ(error_of([&] { physical_block(other, 1_MiB); }).code, errc::unsupported);
}

TEST_P(mixed_machine, says_that_a_block_was_made_on_a_device_that_it_has_not) {
  const machine m = open(), other = samples::play(samples::wired(2));
  const physical_block block{other[0], 1_MiB, weft::sharing::with_processes};
  const auto e = error_of([&] { static_cast<void>(physical_block::open(m, block.share())); });
  EXPECT_EQ(e.code, errc::not_found) << e.what;
  EXPECT_NE(e.what.find(other[0].uuid()), std::string::npos) << e.what;
}

TEST_P(mixed_machine, has_multicast_between_devices_of_one_backend) {
  const machine m = open();
  const std::vector<weft::device_id> four = samples::two_of_each(m);
  std::vector<weft::device_id> hosts;
  for (const weft::device_id id : four) {
    if (m[id].kind() == weft::backend_kind::host) hosts.push_back(id);
  }
  EXPECT_EQ(error_of([&] { weft::multicast_object(m, four, 1_MiB); }).code, errc::unsupported);
  weft::multicast_object group{m, hosts, 1_MiB};
  std::vector<mapping> replicas;
  for (const weft::device_id id : hosts) group.add(id);
  for (const weft::device_id id : hosts) {
    const physical_block block{m[id], group.size()};
    weft::value_or_raise(group.bind(block, samples::only_a_hang));
    replicas.emplace_back(block).grant(id, access_right::read_write);
  }
  const stream order{m[hosts[1]]};
  group.store(order, 0, ramp(1000)).wait();
  for (const mapping& one : replicas) {
    std::vector<std::int32_t> got(1000);
    weft::copy(got, one.span<std::int32_t>().first(1000));
    EXPECT_EQ(got, ramp(1000));
  }
  std::vector<std::int32_t> sums(1000);
  group.load(order, sums, 0).wait();
  for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], 2 * static_cast<std::int32_t>(i + 1));
  for (const weft::device_id id : four) {
    if (m[id].kind() == weft::backend_kind::host) continue;
    const buffer<std::int32_t> far{m[id], 1000};
    EXPECT_EQ(error_of([&] { group.store(order, 0, far); }).code, errc::invalid_argument);
    EXPECT_EQ(error_of([&] { group.load(order, far, 0); }).code, errc::invalid_argument);
  }
  group.unbind(hosts[0]);
}

TEST_P(mixed_machine, carries_a_failure_across_and_skips_what_follows_it) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [first, second] : {std::pair{host, other}, std::pair{other, host}}) {
    for (const bool ended : {false, true}) {
      const stream a{first}, b{second};
      std::atomic<bool> go{ended};
      const weft::event bad = a.call([&] {
        go.wait(false);
        throw std::runtime_error{"on purpose"};
      });
      if (ended) {
        while (!bad.ready()) std::this_thread::yield();
      }
      b.wait(bad);
      bool ran = false;
      const weft::event done = b.call([&] { ran = true; });
      go = true;
      go.notify_all();
      const auto e = error_of([&] { done.wait(); });
      EXPECT_NE(e.what.find("on purpose"), std::string::npos) << e.what;
      EXPECT_FALSE(ran);
      EXPECT_NO_THROW(b.call([&] { ran = true; }).wait()) << "told once, it is over";
      EXPECT_TRUE(ran);
      EXPECT_THROW(a.synchronize(), weft::error_exception);
    }
  }
}

TEST_P(mixed_machine, joins_devices_of_two_backends_in_a_barrier) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  weft::device_barrier barrier{m, {host.id(), other.id()}};
  const stream a{host}, b{other};
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> arrived{0};
    for (const stream* s : {&a, &b}) {
      s->call([&] { ++arrived; });
      barrier.arrive_and_order(*s);
    }
    int first = 0, second = 0;
    a.call([&] { first = arrived; });
    b.call([&] { second = arrived; });
    m.synchronize();
    EXPECT_EQ(first, 2);
    EXPECT_EQ(second, 2);
  }
}

TEST_P(mixed_machine, uses_pinned_memory_of_one_backend_with_devices_of_the_other) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    const auto sent = ramp(100'000);
    const weft::pinned_buffer<std::int32_t> pinned{owner, sent.size()};
    std::copy(sent.begin(), sent.end(), pinned.data());
    const buffer<std::int32_t> there{user, sent.size()};
    weft::copy(there, pinned);
    EXPECT_EQ(read(there), sent);
    std::fill(pinned.data(), pinned.data() + pinned.size(), 0);
    weft::copy(pinned, there);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), pinned.data()));
  }
}

TEST_P(mixed_machine, keeps_pinned_memory_until_the_other_backend_has_done_with_it) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    const stream order{user};
    const buffer<std::int32_t> there{user, 4'096};
    std::atomic<bool> go{false};
    order.call([&] { go.wait(false); });
    const void* address = nullptr;
    {
      const weft::pinned_buffer<std::int32_t> pinned{owner, 4'096};
      address = pinned.data();
      std::fill(pinned.data(), pinned.data() + pinned.size(), 42);
      weft::copy(order, there, pinned);
    }
    EXPECT_EQ(error_of([&] { static_cast<void>(weft::address_range(m[0], address)); }).code, errc::not_found);
    // what is made meanwhile must not get that memory
    std::vector<weft::pinned_buffer<std::int32_t>> others;
    for (int i = 0; i < 8; ++i) {
      others.emplace_back(owner, 4'096U);
      EXPECT_NE(others.back().data(), address);
      std::fill(others.back().data(), others.back().data() + 4'096, -1);
    }
    go = true;
    go.notify_all();
    order.synchronize();
    EXPECT_EQ(read(there), std::vector<std::int32_t>(4'096, 42));
  }
}

TEST_P(mixed_machine, gives_pinned_memory_back_after_a_reset_of_its_device_when_the_other_backend_has_done_with_it) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  const stream order{other};
  const buffer<std::int32_t> there{other, 4'096};
  std::atomic<bool> go{false};
  order.call([&] { go.wait(false); });
  const void* address = nullptr;
  {
    const weft::pinned_buffer<std::int32_t> pinned{host, 4'096};
    address = pinned.data();
    std::fill(pinned.data(), pinned.data() + pinned.size(), 42);
    weft::copy(order, there, pinned);
  }
  {
    const std::jthread resets{[&, d = host] { d.reset(); }};
    go = true;
    go.notify_all();
  }
  EXPECT_EQ(read(there), std::vector<std::int32_t>(4'096, 42));
  const auto until = std::chrono::steady_clock::now() + samples::only_a_hang;
  const void* got = nullptr;
  while (got != address && std::chrono::steady_clock::now() < until)
    got = weft::pinned_buffer<std::int32_t>{host, 4'096}.data();
  EXPECT_EQ(got, address);
}

TEST_P(mixed_machine, a_reset_ends_the_wait_behind_which_another_backend_uses_pinned_memory_of_the_device) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    const weft::pinned_buffer<std::uint32_t> word{owner, 1};
    const weft::pinned_buffer<std::int32_t> pinned{owner, 1'000};
    *word.data() = 0;
    std::fill(pinned.data(), pinned.data() + pinned.size(), 42);
    const buffer<std::int32_t> there{user, 1'000};
    weft::fill(there, 7);
    const stream held{owner}, order{user};
    if (error_of([&] { held.wait_value(word.data(), 1, weft::word_comparison::equal); }).code == errc::unsupported)
      continue;
    order.wait(held.record());
    const weft::event copied = weft::copy(order, there, pinned);
    auto reset = std::async(std::launch::async, [d = owner] { d.reset(); });
    EXPECT_EQ(reset.wait_for(samples::only_a_hang), std::future_status::ready);
    std::atomic_ref{*word.data()}.store(1);  // where the reset has ended nothing, so that this test ends
    reset.get();
    EXPECT_EQ(error_of([&] { copied.wait(); }).code, errc::device_lost);
    EXPECT_FALSE(owner.is_lost());
    EXPECT_EQ(read(there), std::vector<std::int32_t>(1'000, 7));
  }
}

TEST_P(mixed_machine, takes_back_the_addresses_of_a_device_that_was_reset_whatever_its_backend) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const weft::device& d : {host, other}) {
    const auto lose_some = [&] {
      for (int n = 0; n < 16; ++n) {
        const buffer<std::byte> lost{d, std::size_t{16} << 20};
        d.reset();
      }
    };
    lose_some();
    const std::uint64_t before = processes::address_space();
    lose_some();
    EXPECT_LT(processes::address_space(), before + (std::size_t{64} << 20)) << d.name();
  }
}

TEST_P(mixed_machine, leaves_a_stream_behind_its_failure_to_the_owner_that_alone_is_told) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const weft::device& d : {host, other}) EXPECT_EQ(samples::untold_stream_fault(m, d.id()), "") << d.name();
}

TEST_P(mixed_machine, adopts_a_range_for_devices_of_one_backend_alone) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  std::vector<std::int32_t> all(3'000);
  const std::span own{all.data() + 1'000, 1'000};
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    {
      const weft::adopted_memory<std::int32_t> mine{owner, own};
      for (const std::span<std::int32_t> again :
           {own, own.subspan(1, 10), std::span{all}, std::span{all}.first(1'001), std::span{all}.last(1'001)}) {
        const auto e = error_of([&, d = user] { const weft::adopted_memory<std::int32_t> no{d, again}; });
        EXPECT_EQ(e.code, errc::invalid_argument) << to_string(e);
        EXPECT_EQ(weft::address_range(m[0], own.data()).device, owner.id());
      }
    }
    EXPECT_EQ(error_of([&, &at = own] { static_cast<void>(weft::address_range(m[0], at.data())); }).code,
              errc::not_found);
  }
}

TEST_P(mixed_machine, adopts_a_range_anew_that_another_backend_still_copies) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    std::vector<std::int32_t> own = ramp(1'000), got(own.size());
    const stream order{user};
    std::atomic<bool> go{false};
    order.call([&] { go.wait(false); });
    {
      const weft::adopted_memory<std::int32_t> before{owner, own};
      weft::copy(order, got, before);
    }
    for (const weft::device& next : {owner, user}) {
      const auto e = error_of([&] {
        const weft::adopted_memory<std::int32_t> now{next, own};
        EXPECT_EQ(weft::address_range(m[0], own.data()).device, next.id());
      });
      EXPECT_EQ(e.what, "nothing failed");
    }
    go = true;
    go.notify_all();
    order.synchronize();
    EXPECT_EQ(got, own);
  }
}

TEST_P(mixed_machine, a_batch_that_is_refused_has_copied_nothing) {
  auto options = samples::mixed_options(GetParam());
  options.devices.reset();
  weft::topology layout = samples::wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::device_lost;
  fault.device = weft::device_id{1};
  layout.faults.push_back(fault);
  options.machine = layout;
  const machine m{options};
  const auto [host, other] = one_of_each(m);
  const weft::device dead = m[host.id().value() + 1];
  const buffer<std::byte> gone{dead, 64};
  EXPECT_EQ(error_of([&] { stream{dead}.call([] {}).wait(); }).code, errc::device_lost);
  weft::backend& driver = *weft::detail::state_of(m)->backends().front();
  const auto line = [](void* dst, const void* src, std::uint64_t size, bool dst_is_host, bool src_is_host) {
    weft::copy_request made;
    made.dst = dst;
    made.src = src;
    made.dst_is_host = dst_is_host;
    made.src_is_host = src_is_host;
    made.shape.width = size;
    return made;
  };
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    const buffer<std::byte> there{owner, 64}, here{user, 64};
    const std::vector<std::byte> sent(64, std::byte{9});
    std::vector<std::byte> plain(128);
    std::vector<std::pair<weft::copy_request, errc>> wrong{
        {line(plain.data(), sent.data(), 64, false, true), errc::not_found},
        {line(plain.data(), there.data(), 65, true, false), errc::out_of_range},
        {line(plain.data(), here.data(), 65, true, false), errc::out_of_range},
        {line(here.data(), there.data(), 64, false, false), errc::peer_unsupported},
        {line(here.data() + 16, here.data(), 32, false, false), errc::invalid_argument},
        {line(plain.data() + 16, plain.data(), 32, true, true), errc::invalid_argument}};
    if (user.id() == other.id()) wrong.emplace_back(line(gone.data(), sent.data(), 64, false, true), errc::device_lost);
    for (const auto& [bad, code] : wrong) {
      weft::fill(there, std::byte{1});
      weft::fill(here, std::byte{1});
      const stream order{user};
      const auto refused =
          driver.copy_batch(order.native(), std::array{line(there.data(), sent.data(), 64, false, true),
                                                       line(here.data(), sent.data(), 64, false, true), bad});
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, code) << refused.error().what;
      m.synchronize();
      for (const buffer<std::byte>* one : {&there, &here}) {
        std::vector<std::byte> got(64);
        weft::copy(got, *one);
        EXPECT_EQ(got, std::vector<std::byte>(64, std::byte{1})) << to_string(refused.error());
      }
    }
  }
}

TEST_P(mixed_machine, a_batch_that_fails_has_left_nothing_under_way) {
  auto options = samples::mixed_options(GetParam());
  options.devices.reset();
  weft::topology layout = samples::wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::call_fails;  // no stream on the host stands in
  fault.device = weft::device_id{0};
  fault.call = "create_stream";
  fault.nth = 0;
  layout.faults.push_back(fault);
  options.machine = layout;
  const machine m{options};
  const auto [host, other] = one_of_each(m);
  const buffer<std::int32_t> across{host, 1'000}, there{other, 1'000}, beside{other, 1'000};
  const stream order{other};
  std::atomic<bool> go{false};
  order.call([&] { go.wait(false); });
  const auto sent = ramp(1'000);
  {
    std::promise<void> came_back;
    const std::jthread opens{[&, back = came_back.get_future()] {
      back.wait_for(20ms);  // it should not: how long this takes to say so does not matter
      go = true;
      go.notify_all();
    }};
    std::vector<weft::copy_part> parts;
    parts.push_back(weft::part(there, sent));
    parts.push_back(weft::part(across, sent));
    EXPECT_EQ(error_of([&] { weft::copy_batch(order, parts); }).code, errc::resource_exhausted);
    EXPECT_TRUE(go) << "the memory of the first part is the program's again";
    came_back.set_value();
  }
}

TEST_P(mixed_machine, moves_memory_of_one_backend_in_a_stream_of_the_other) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    const stream order{user};
    const buffer<std::int32_t> there{owner, 1'000};
    const auto sent = ramp(1'000);
    std::vector<std::int32_t> got(1'000);
    std::atomic<bool> go{false};
    order.call([&] { go.wait(false); });
    weft::fill(order, there, 9);
    weft::copy(order, got, there);
    weft::copy(order, there, sent);
    const weft::event done = order.record();
    EXPECT_EQ(owner.synchronize_for(5ms), weft::wait_outcome::timed_out) << "it comes after what is in the stream";
    EXPECT_FALSE(done.ready());
    EXPECT_EQ(got[0], 0);
    go = true;
    go.notify_all();
    done.wait();
    EXPECT_EQ(got, std::vector<std::int32_t>(1'000, 9));
    EXPECT_EQ(read(there), sent);
  }
}

TEST_P(mixed_machine, refuses_a_range_that_passes_the_end_of_another_backends_memory) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    weft::backend& driver = *weft::detail::state_of(m)->backends().front();
    const weft::pinned_buffer<std::byte> pinned{owner, 100};
    const buffer<std::byte> there{user, 200};
    weft::copy_request request;
    request.dst = there.data();
    request.src = pinned.data();
    request.shape.width = 101;
    const auto refused = driver.copy(stream{user}.native(), request);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, errc::out_of_range) << refused.error().what;
  }
}

TEST_P(mixed_machine, refuses_a_word_of_another_backend_and_says_whose_it_is) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    const buffer<std::uint32_t> there{owner, 1};
    const stream order{user};
    for (const auto& e : {error_of([&] { order.write_value(there.data(), 1); }),
                          error_of([&] { order.wait_value(there.data(), 1); })}) {
      EXPECT_EQ(e.code, errc::peer_unsupported) << to_string(e);
      EXPECT_NE(e.what.find("device memory of " + to_string(owner.id())), std::string::npos) << e.what;
    }
  }
}

TEST_P(mixed_machine, refuses_a_kernel_over_memory_of_another_backend_and_says_what_to_do) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [owner, user] : {std::pair{host, other}, std::pair{other, host}}) {
    const buffer<std::int32_t> there{owner, 100};
    weft::fill(there, 1);
    const stream order{user};
    const auto e = error_of([&] { weft::launch<mixed_add>(order, weft::range(100), there, 1).wait(); });
    EXPECT_TRUE(e.code == errc::peer_unsupported || e.code == errc::wrong_device) << to_string(e);
    EXPECT_FALSE(user.is_lost());
    EXPECT_EQ(read(there), std::vector<std::int32_t>(100, 1));
  }
  const auto e = error_of([&] { const weft::unified_buffer<int> none{host, 10}; });
  EXPECT_EQ(e.code, errc::unsupported);
  EXPECT_NE(e.what.find("pinned"), std::string::npos) << e.what;
}

TEST_P(mixed_machine, scatters_gathers_and_replicates_over_all_devices) {
  const machine m = open();
  const auto all = ramp(100'003);
  const auto counts = weft::even_split(all.size(), static_cast<std::size_t>(m.device_count()));
  std::vector<buffer<std::int32_t>> parts;
  for (const weft::device& d : m.devices()) parts.emplace_back(d, counts[d.id().index()]);
  weft::scatter(std::span{parts}, all);
  std::vector<std::int32_t> back(all.size());
  weft::gather(back, std::span{parts});
  EXPECT_EQ(back, all);
  // from one device to all, across backends
  for (const weft::device& source : {m[0], m[m.device_count() - 1]}) {
    const buffer<std::int32_t> whole{source, all.size()};
    weft::copy(whole, all);
    std::vector<buffer<std::int32_t>> copies;
    for (const weft::device& d : m.devices()) copies.emplace_back(d, all.size());
    weft::replicate(std::span{copies}, whole);
    for (const auto& one : copies) EXPECT_EQ(read(one), all);
    weft::scatter(std::span{parts}, whole);
    const buffer<std::int32_t> together{source, all.size()};
    weft::gather(together, std::span{parts});
    EXPECT_EQ(read(together), all);
  }
}

TEST_P(mixed_machine, closes_while_one_backend_moves_memory_of_another) {
  constexpr std::size_t many = std::size_t{4} << 20;
  for (int i = 0; i < 8; ++i) {
    machine m = open();
    const auto [host, other] = one_of_each(m);
    const buffer<std::int32_t> there{other, many};
    const weft::pinned_buffer<std::int32_t> here{host, many};
    const weft::stream order{other};
    const auto running = weft::copy(order, there, here);
    m.close();  // the copy ends, well or cancelled, before the memory that it reads goes
    EXPECT_TRUE(running.ready());
  }
}

struct note {
  std::uint64_t number = 0;
  std::uint64_t check = 0;
};

TEST_P(mixed_machine, sends_messages_across_through_the_host) {
  const machine m = open();
  const auto [host, other] = one_of_each(m);
  for (const auto& [from, to] : {std::pair{host, other}, std::pair{other, host}}) {
    weft::queue_options options;
    options.timeout = samples::only_a_hang;
    weft::message_queue<note> queue{m, from.id(), to.id(), options};
    EXPECT_FALSE(queue.is_direct());
    EXPECT_FALSE(queue.why().empty());
    constexpr std::uint64_t count = 20'000;
    auto in = queue.open_receiver();
    std::jthread sender{[out = queue.open_sender()]() mutable {
      for (std::uint64_t i = 0; i < count; ++i) {
        if (out.send({i, i * 3}) != weft::queue_status::ok) return;
      }
    }};
    for (std::uint64_t i = 0; i < count; ++i) {
      note got;
      ASSERT_EQ(in.receive(got), weft::queue_status::ok) << "message " << i;
      ASSERT_EQ(got.number, i);
      ASSERT_EQ(got.check, i * 3);
    }
  }
}

TEST_P(mixed_machine, counts_messages_between_devices_of_one_backend_on_the_link_between_them) {
  const machine m = open();
  const weft::device_id from{GetParam().host_first ? 0 : m.device_count() - m.device_count("host")};
  const weft::device_id to{from.value() + 1};
  const weft::message_queue<note> queue{m, from, to};
  ASSERT_TRUE(queue.is_direct()) << queue.why();
  const auto before = m.traffic().bytes_on_link;
  auto out = queue.open_sender();
  auto in = queue.open_receiver();
  note got;
  for (std::uint64_t i = 0; i < 50; ++i) ASSERT_EQ(out.send({i, i}), weft::queue_status::ok);
  for (std::uint64_t i = 0; i < 50; ++i) ASSERT_EQ(in.receive(got), weft::queue_status::ok);
  const auto after = m.traffic().bytes_on_link;
  const int between = m.layout().peer_paths[m.layout().pair(from, to)].links.at(0);
  for (std::size_t link = 0; link < after.size(); ++link)
    EXPECT_EQ(after[link] - before[link], link == static_cast<std::size_t>(between) ? 50 * sizeof(note) : 0) << link;
}

TEST_P(mixed_machine, has_one_clock_for_deadlines_and_for_records) {
  const auto opened = std::chrono::steady_clock::now();
  const machine m = open();
  const auto sink = std::make_shared<weft::trace_sink>();
  m.trace_to(sink);
  const auto [host, other] = one_of_each(m);
  const auto begin = m.now();
  for (const weft::device& d : {host, other}) {
    const buffer<std::int32_t> there{d, 10'000};
    weft::fill(there, 1);
    static_cast<void>(read(there));
  }
  const auto end = m.now();
  // The clock of an OpenCL device was compared with ours in between: it is wrong by no more than that time, however
  // long this thread was kept from its core.
  const auto error = std::chrono::steady_clock::now() - opened;
  const auto records = sink->take();
  EXPECT_GE(records.size(), 4U);
  for (const weft::trace_record& r : records) {
    EXPECT_GE(r.started, begin - error) << r.name << " on " << to_string(r.device);
    EXPECT_LE(r.ended, end + error) << r.name << " on " << to_string(r.device);
  }
  for (const weft::device& d : {host, other}) {
    const stream held{d};
    std::atomic<bool> go{false};
    held.call([&] { go.wait(false); });
    const weft::event last = held.record();
    EXPECT_EQ(last.wait_for(1ms), weft::wait_outcome::timed_out);
    EXPECT_EQ(held.synchronize_for(1ms), weft::wait_outcome::timed_out);
    EXPECT_EQ(d.synchronize_for(1ms), weft::wait_outcome::timed_out);
    EXPECT_EQ(m.synchronize_for(1ms), weft::wait_outcome::timed_out);
    go = true;
    go.notify_all();
    EXPECT_EQ(m.synchronize_for(samples::soon), weft::wait_outcome::ok);
  }
}

TEST_P(mixed_machine, ends_what_waits_across_when_it_is_closed) {
  for (const bool host_waits : {false, true}) {
    machine m = open();
    const auto [host, other] = one_of_each(m);
    const stream a{host_waits ? other : host}, b{host_waits ? host : other};
    // held by a gate that nobody opens: the other device never arrives
    weft::device_barrier barrier{m, {host.id(), other.id()}};
    a.wait(barrier.arrive(a));
    b.wait(a.record());
    const weft::event last = b.record();
    EXPECT_FALSE(last.ready());
    m.close();
    EXPECT_TRUE(last.ready());
    ASSERT_TRUE(last.failure());
    EXPECT_EQ(error_of([&] { b.synchronize(); }).code, errc::machine_closed);
  }
}

TEST_P(mixed_machine, goes_on_without_a_device_that_is_lost) {
  auto options = samples::mixed_options(GetParam());
  options.devices.reset();
  weft::topology layout = samples::wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::device_lost;
  fault.device = weft::device_id{0};
  layout.faults.push_back(fault);
  options.machine = layout;
  const machine m{options};
  const auto [host, other] = one_of_each(m);
  const stream a{host}, b{other};
  const weft::event gone = a.call([] {});
  b.wait(gone);
  EXPECT_EQ(error_of([&] { b.call([] {}).wait(); }).code, errc::device_lost);
  EXPECT_TRUE(host.is_lost());
  for (const weft::device& d : m.devices()) {
    if (d.id() == host.id()) continue;
    EXPECT_FALSE(d.is_lost()) << to_string(d.id());
    const buffer<std::int32_t> there{d, 100};
    weft::fill(there, 5);
    EXPECT_EQ(read(there), std::vector<std::int32_t>(100, 5));
  }
  host.reset();
  const buffer<std::int32_t> again{host, 100}, across{other, 100};
  weft::fill(again, 6);
  weft::copy(across, again);
  EXPECT_EQ(read(across), std::vector<std::int32_t>(100, 6));
}

}  // namespace opencl_mixed_machine_test
