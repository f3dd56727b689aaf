// SPDX-License-Identifier: Apache-2.0
// Memory between real processes, by handles: children are forked before this process has a machine, as users must.
#include "processes/share_server.hpp"
#include "runtime/machine_state.hpp"
#include "support/faults.hpp"
#include "support/hang.hpp"
#include "support/processes.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"
#include "weft/memory/shared_memory.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace memory_handle_test {

using processes::child;
using processes::shared;
using samples::error_of;
using samples::pattern;
using weft::errc;
using weft::machine;
using weft::memory_handle;
using weft::opened_memory;
using weft::shareable_buffer;
using byte = std::uint8_t;
using clock_type = std::chrono::steady_clock;
using namespace std::chrono_literals;

WEFT_KERNEL(memory_handle_next, (WEFT_IN(uint8_t) src, WEFT_OUT(uint8_t) dst), { dst[i] = (uint8_t)(src[i] + 1); });

/// What two processes tell each other.
struct board : processes::steps {
  std::array<std::byte, memory_handle::wire_size> wire{};
  std::array<std::byte, memory_handle::wire_size> more{};
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> turns{0};  // of whoever works until it is killed
};

memory_handle received(const std::array<std::byte, memory_handle::wire_size>& wire) {
  return memory_handle::from_bytes(wire);
}

machine two_devices() {
  weft::machine_options options;
  options.devices = 2;
  options.memory_per_device = weft::bytes{std::uint64_t{256} << 20};
  machine made{options};
  weft::kernels(made).add<memory_handle_next>();
  return made;
}

/// True once there are `wanted` open descriptors: a connection that was answered is closed a moment later.
bool comes_to(std::size_t wanted) {
  return processes::comes_true([&] { return processes::open_descriptors() == wanted; });
}

/// A process that exports `count` bytes of a pattern, and lives until step 9; at step 5 it frees them.
child exporter(shared<board>& with, std::size_t count, std::size_t offset = 0) {
  return child{[&with, count, offset] {
    const machine m = two_devices();
    {
      const shareable_buffer<byte> memory{m[0], count};
      weft::copy(memory, pattern(count, 1));
      with->wire = weft::export_memory(memory.subspan(offset, count - offset)).bytes();
      with->say(1);
      if (!with->hear(5)) return 1;
    }
    with->say(6);
    return with->hear(9) ? 0 : 2;
  }};
}

TEST(memory_handle, has_64_bytes_and_is_the_same_each_time_and_another_for_other_memory) {
  const machine m = two_devices();
  const shareable_buffer<byte> a{m[0], 5000}, b{m[0], 5000};
  static_assert(sizeof a.handle().bytes() == 64);
  const memory_handle first = a.handle();
  EXPECT_EQ(first, a.handle());
  EXPECT_EQ(first, weft::export_memory(a.span()));
  EXPECT_NE(first, b.handle());
  EXPECT_NE(first, weft::export_memory(a.subspan(1, 10))) << "it carries where it begins";
  EXPECT_EQ(first, memory_handle::from_bytes(first.bytes()));
  EXPECT_EQ(first, memory_handle::from_text(first.text()));
  EXPECT_EQ(first.process(), ::getpid());
  EXPECT_EQ(first.size(), 5000U);
  EXPECT_EQ(memory_handle{}.process(), 0);
}

TEST(memory_handle, a_handle_of_freed_memory_is_never_used_again) {
  const machine m = two_devices();
  std::vector<memory_handle> seen;
  std::vector<void*> addresses;
  bool reused = false;
  for (int i = 0; i < 20; ++i) {
    const shareable_buffer<byte> memory{m[0], 4096};
    reused = reused || std::find(addresses.begin(), addresses.end(), memory.data()) != addresses.end();
    addresses.push_back(memory.data());
    EXPECT_EQ(std::find(seen.begin(), seen.end(), memory.handle()), seen.end());
    seen.push_back(memory.handle());
  }
  EXPECT_TRUE(reused) << "no address came twice: this shows nothing";
}

TEST(memory_handle, is_refused_for_what_cannot_be_exported_with_the_advice) {
  const machine m = two_devices();
  const auto refused = [&](const weft::device_span<const byte>& what) {
    return error_of([&] { static_cast<void>(weft::export_memory(what)); });
  };
  const samples::byte_buffer plain{m[0], 100};
  weft::error e = refused(plain);
  EXPECT_EQ(e.code, errc::invalid_argument);
  EXPECT_NE(e.what.find("neighbours"), std::string::npos) << e.what;
  EXPECT_NE(e.what.find("shareable_buffer"), std::string::npos) << e.what;
  const weft::pinned_buffer<byte> pinned{m[0], 100};
  EXPECT_EQ(refused(pinned).code, errc::invalid_argument);
  const weft::memory_pool pool{m[0]};
  const samples::byte_buffer pooled{pool, 100};
  EXPECT_EQ(refused(pooled).code, errc::invalid_argument);
  const weft::peer_access lease{m, samples::gpu1, samples::gpu0};
  const shareable_buffer<byte> own{m[0], 100};
  const weft::peer_mapping<byte> mapped{m, own.span(), samples::gpu1};
  EXPECT_EQ(refused(mapped.span()).code, errc::invalid_argument);
  EXPECT_EQ(refused({}).code, errc::invalid_argument);
  const auto reaches = [&](std::size_t offset, std::size_t count) {
    return refused(weft::detail::make<weft::device_span<byte>>(weft::detail::state_of(own.span()), own.span().on(),
                                                               own.data() + offset, count))
        .code;
  };
  EXPECT_EQ(reaches(50, 51), errc::out_of_range);
  EXPECT_EQ(reaches(100, 1), errc::not_found) << "one past the end";
  weft::device_span<byte> gone;
  {
    const shareable_buffer<byte> freed{m[0], 100};
    gone = freed.span();
  }
  EXPECT_EQ(refused(gone).code, errc::not_found);
}

TEST(memory_handle, a_damaged_cut_or_foreign_handle_is_refused_and_maps_nothing) {
  shared<board> with;
  const child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  const machine m = two_devices();
  {
    const opened_memory<byte> whole{m[0], received(with->wire), samples::only_a_hang};
  }
  const std::size_t mappings = processes::mappings_of("weft-shared");
  const std::size_t descriptors = processes::open_descriptors();
  const auto raw_open = [&](const weft::shared_bytes& bytes) {
    return error_of([&] { const opened_memory<byte> open{m[0], memory_handle{bytes}, samples::soon}; });
  };
  for (std::size_t bit = 0; bit < 8 * memory_handle::wire_size; ++bit) {
    auto flipped = with->wire;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(error_of([&] { static_cast<void>(received(flipped)); }).code, errc::not_ready) << bit;
    EXPECT_NE(raw_open(flipped).code, errc::not_ready) << bit;
  }
  for (std::size_t size = 0; size < memory_handle::wire_size; ++size) {
    EXPECT_EQ(error_of([&] { static_cast<void>(memory_handle::from_bytes(std::span{with->wire}.first(size))); }).code,
              errc::corrupt);
  }
  EXPECT_EQ(error_of([&] { static_cast<void>(memory_handle::from_text("")); }).code, errc::corrupt);
  EXPECT_EQ(error_of([&] { static_cast<void>(memory_handle::from_text(std::string(128, 'g'))); }).code, errc::corrupt);
  EXPECT_EQ(raw_open({}).code, errc::corrupt) << "a handle that names nothing";
  std::mt19937 random{5};
  for (int i = 0; i < 200; ++i) {
    weft::shared_bytes garbage;
    for (auto& b : garbage) b = static_cast<std::byte>(random());
    EXPECT_EQ(raw_open(garbage).code, errc::corrupt);
  }
  // forged with a right checksum: what does not fit what was exported is found by the exporter
  using weft::detail::share_ticket;
  const auto valid = weft::value_or_raise(weft::detail::decode(with->wire));
  const auto forged = [&](auto&& change) {
    share_ticket h = valid;
    change(h);
    return raw_open(weft::detail::encode(h)).code;
  };
  EXPECT_EQ(forged([](share_ticket& h) { h.boot ^= 1; }), errc::incompatible) << "another boot";
  EXPECT_EQ(forged([](share_ticket& h) { h.door ^= 1; }), errc::peer_dead);
  EXPECT_EQ(forged([](share_ticket& h) { h.key ^= 1; }), errc::closed);
  EXPECT_EQ(forged([](share_ticket& h) { h.size += 1; }), errc::corrupt);
  EXPECT_EQ(forged([](share_ticket& h) { h.offset = ~std::uint64_t{0} - h.size; }), errc::corrupt);
  EXPECT_EQ(forged([](share_ticket& h) { h.kind = weft::detail::share_kind::event; }), errc::invalid_argument);
  EXPECT_EQ(processes::mappings_of("weft-shared"), mappings);
  EXPECT_EQ(processes::open_descriptors(), descriptors);
}

// With no huge page left, what is mapped of such a file ends a process with SIGBUS when it is touched.
TEST(memory_handle, an_exporter_that_serves_a_file_of_huge_pages_is_refused) {
  constexpr std::uint64_t huge = std::uint64_t{2} << 20;
  const weft::descriptor file{::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB)};
  if (!file) GTEST_SKIP() << "this kernel makes no memory files of huge pages";
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(2 * huge)), 0);
  ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  shared<board> with;
  const child other{[&] {
    weft::detail::share_server server;
    weft::detail::share_ticket h;
    h.process = static_cast<std::uint32_t>(::getpid());
    h.boot = weft::detail::this_boot();
    h.door = weft::value_or_raise(server.door());
    h.key = weft::detail::random_number();
    h.size = huge;
    server.offer(h.key, h.kind, [&] {
      return std::make_shared<const weft::detail::share_grant>(weft::detail::share_grant{file.get(), {}, huge, 0, -1});
    });
    with->wire = weft::detail::encode(h);
    with->say(1);
    return with->hear(9) ? 0 : 1;
  }};
  ASSERT_TRUE(with->hear(1));
  const machine m = two_devices();
  const auto refused =
      error_of([&] { const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang}; });
  EXPECT_EQ(refused.code, errc::corrupt);
  EXPECT_NE(refused.what.find("huge pages"), std::string::npos) << refused.what;
}

TEST(memory_handle, opened_in_another_process_shows_the_same_bytes_both_ways) {
  shared<board> with;
  const std::size_t count = 100'003, offset = 64;
  child importer{[&] {
    if (!with->hear(1)) return 1;
    const machine m = two_devices();
    for (const weft::device& by : m.devices()) {
      const opened_memory<byte> open{by, received(with->wire), samples::only_a_hang};
      if (open.size() != count - offset || open.owner() != samples::gpu1) return 2;
      samples::data expected = pattern(count, 1);
      expected.erase(expected.begin(), expected.begin() + offset);
      if (!samples::same(samples::contents(open), expected)) return 3;
      // through the device's own memory, and by its kernels
      const samples::byte_buffer own{by, open.size()};
      weft::copy(own, open);
      if (!samples::same(samples::contents(own), expected)) return 4;
      if (weft::copy(own, open).path != weft::copy_path::direct) return 5;
    }
    const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
    const samples::byte_buffer ones{m[0], open.size()};
    weft::fill(ones, byte{41});
    const weft::stream order{m[0]};
    weft::launch(order, "memory_handle_next", weft::range(static_cast<std::int64_t>(open.size())), ones, open.span())
        .wait();
    return 0;
  }};
  const machine m = two_devices();
  const shareable_buffer<byte> memory{m[1], count};
  weft::copy(memory, pattern(count, 1));
  with->wire = weft::export_memory(memory.subspan(offset, count - offset)).bytes();
  with->say(1);
  ASSERT_EQ(importer.wait(), 0);
  samples::data expected = pattern(count, 1);
  std::fill(expected.begin() + offset, expected.end(), byte{42});
  EXPECT_TRUE(samples::same(samples::contents(memory), expected));
}

TEST(memory_handle, exposes_no_neighbour) {
  shared<board> with;
  const child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  const machine m = two_devices();
  const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
  const weft::memory_description seen = weft::address_range(m[0], open.data());
  EXPECT_EQ(seen.size.value(), 5000U);
  EXPECT_EQ(seen.kind, weft::memory_kind::mapped);
}

TEST(memory_handle, opened_twice_has_one_address_and_is_closed_twice) {
  shared<board> with;
  const child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  const machine m = two_devices();
  const std::size_t before = processes::mappings_of("weft-shared");
  auto first = std::make_unique<opened_memory<byte>>(m[0], received(with->wire), samples::only_a_hang);
  auto second = std::make_unique<opened_memory<byte>>(m[0], received(with->wire), samples::only_a_hang);
  const opened_memory<byte> elsewhere{m[1], received(with->wire), samples::only_a_hang};
  EXPECT_EQ(first->data(), second->data());
  EXPECT_NE(first->data(), elsewhere.data()) << "each device has its own";
  byte* const at = first->data();
  first.reset();
  EXPECT_TRUE(samples::same(samples::contents(*second), pattern(5000, 1)));
  second.reset();
  EXPECT_EQ(processes::mappings_of("weft-shared"), before + 1);
  const auto& own = weft::detail::state_of(m);
  EXPECT_EQ(own->backend_of(samples::gpu0).close_memory(at).error().code, errc::not_found) << "a third close";
}

TEST(memory_handle, is_refused_in_its_own_process_and_its_memory_is_not_closed_there) {
  const machine m = two_devices(), n = two_devices();
  const shareable_buffer<byte> memory{m[0], 100};
  for (const machine* opener : {&m, &n}) {
    const weft::error e =
        error_of([&] { const opened_memory<byte> open{(*opener)[1], memory.handle(), samples::only_a_hang}; });
    EXPECT_EQ(e.code, errc::invalid_argument);
    EXPECT_EQ(e.native_code, 201);
  }
  auto& own = weft::detail::state_of(m)->backend_of(samples::gpu0);
  EXPECT_EQ(own.close_memory(memory.data()).error().code, errc::invalid_argument);
  int stranger = 0;
  EXPECT_EQ(own.close_memory(&stranger).error().code, errc::not_found);
}

TEST(memory_handle, a_handle_of_memory_freed_meanwhile_is_stale_and_its_pages_stay_until_closed) {
  shared<board> with;
  child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  const machine m = two_devices();
  {
    const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
    const auto window = weft::value_or_raise(weft::detail::state_of(m)
                                                 ->backend_of(samples::gpu0)
                                                 .host_window(samples::gpu0, open.data(), weft::bytes{5000}));
    with->say(5);
    ASSERT_TRUE(with->hear(6));
    EXPECT_EQ(std::memcmp(window.get(), pattern(5000, 1).data(), 5000), 0) << "no fault, and the bytes that were there";
    const weft::error e = error_of([&] { samples::contents(open); });
    EXPECT_EQ(e.code, errc::closed);
    EXPECT_NE(e.what.find("stale"), std::string::npos) << e.what;
    EXPECT_FALSE(m[0].is_lost());
    EXPECT_EQ(error_of([&] { const opened_memory<byte> again{m[0], received(with->wire), samples::only_a_hang}; }).code,
              errc::closed);
    // kernels too
    const samples::byte_buffer own{m[0], 5000};
    const weft::stream order{m[0]};
    EXPECT_EQ(
        error_of([&] { weft::launch(order, "memory_handle_next", weft::range(5000), own, open.span()).wait(); }).code,
        errc::closed);
    EXPECT_FALSE(m[0].is_lost());
  }
  EXPECT_EQ(processes::mappings_of("weft-shared"), 0U);
  EXPECT_EQ(error_of([&] { const opened_memory<byte> late{m[0], received(with->wire), samples::only_a_hang}; }).code,
            errc::closed);
  with->say(9);
  EXPECT_EQ(other.wait(), 0);
  EXPECT_EQ(error_of([&] { const opened_memory<byte> dead{m[0], received(with->wire), samples::only_a_hang}; }).code,
            errc::peer_dead);
}

TEST(memory_handle, opened_stays_open_whatever_peer_access_does_and_ends_with_a_reset) {
  shared<board> with;
  const child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  const machine m = two_devices();
  const opened_memory<byte> open{m[1], received(with->wire), samples::only_a_hang};
  {
    const weft::peer_access lease{m, samples::gpu1, samples::gpu0};
  }
  EXPECT_TRUE(samples::same(samples::contents(open), pattern(5000, 1)));
  const samples::byte_buffer elsewhere{m[0], 5000};
  EXPECT_EQ(weft::copy(elsewhere, open).path, weft::copy_path::staged) << "opened for gpu1 alone";
  EXPECT_TRUE(samples::same(samples::contents(elsewhere), pattern(5000, 1)));
  m[0].reset();
  EXPECT_TRUE(samples::same(samples::contents(open), pattern(5000, 1))) << "it is no memory of this process";
  m[1].reset();
  EXPECT_EQ(error_of([&] { samples::contents(open); }).code, errc::not_found);
  const opened_memory<byte> again{m[1], received(with->wire), samples::only_a_hang};
  EXPECT_TRUE(samples::same(samples::contents(again), pattern(5000, 1)));
}

TEST(memory_handle, a_handle_of_a_killed_process_fails_soon_and_leaves_nothing) {
  shared<board> with;
  auto other = std::make_unique<child>(exporter(with, 5000));
  ASSERT_TRUE(with->hear(1));
  const machine m = two_devices();
  {
    const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
    EXPECT_TRUE(samples::same(samples::contents(open), pattern(5000, 1)));
    other->kill(SIGKILL);
    other->wait();
    const auto start = clock_type::now();
    errc seen = errc::not_ready;
    while (seen == errc::not_ready && clock_type::now() - start < samples::soon) {
      seen = error_of([&] { samples::contents(open); }).code;
    }
    EXPECT_EQ(seen, errc::peer_dead);
    weft::mapping block{weft::physical_block{m[0], weft::bytes{std::uint64_t{2} << 20}}};
    block.grant(m[0].id(), weft::access_right::read_write);
    EXPECT_EQ(error_of([&] { weft::copy(block.span<byte>().first(5000), open); }).code, errc::peer_dead)
        << "nothing is wrong with the right to the block";
    RecordProperty("death_seen_us", static_cast<int>((clock_type::now() - start).count() / 1000));
    EXPECT_FALSE(m[0].is_lost());
  }
  EXPECT_EQ(processes::mappings_of("weft-shared"), 0U);
  EXPECT_EQ(error_of([&] { const opened_memory<byte> late{m[0], received(with->wire), samples::only_a_hang}; }).code,
            errc::peer_dead);
}

TEST(memory_handle, a_stopped_process_is_waited_for_until_the_limit) {
  shared<board> with;
  const child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  other.kill(SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(other.pid(), &status, WUNTRACED), other.pid());  // all its threads have stopped
  const machine m = two_devices();
  EXPECT_EQ(error_of([&] { const opened_memory<byte> open{m[0], received(with->wire), 100ms}; }).code, errc::timed_out);
  other.kill(SIGCONT);
  const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
  EXPECT_TRUE(samples::same(samples::contents(open), pattern(5000, 1)));
}

TEST(memory_handle, a_killed_importer_pins_nothing) {
  shared<board> with;
  child importer{[&] {
    if (!with->hear(1)) return 1;
    const machine m = two_devices();
    const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
    with->say(2);
    static_cast<void>(with->hear(99));
    return 0;
  }};
  const machine m = two_devices();
  const std::uint64_t before = m[0].free_memory().value();
  const std::size_t descriptors = processes::open_descriptors();
  {
    const shareable_buffer<byte> warm{m[0], 1};
    static_cast<void>(warm.handle());
  }
  const std::size_t served = processes::open_descriptors();
  EXPECT_EQ(served, descriptors + 2) << "a socket and a bell, whatever is exported";
  {
    const shareable_buffer<byte> memory{m[0], 5000};
    with->wire = memory.handle().bytes();
    with->say(1);
    ASSERT_TRUE(with->hear(2));
    importer.kill(SIGKILL);
    EXPECT_EQ(importer.wait(), -SIGKILL);
    EXPECT_TRUE(samples::contents(memory).size() == 5000);
  }
  EXPECT_TRUE(comes_to(served)) << "the answer's connection, which goes last";
  EXPECT_EQ(m[0].free_memory().value(), before);
  EXPECT_EQ(processes::mappings_of("weft-shared"), 0U);
}

TEST(memory_handle, a_thousand_exports_opens_and_closes_leave_counts_as_they_were) {
  shared<board> with;
  child importer{[&] {
    const machine m = two_devices();
    std::size_t descriptors = 0, mappings = 0;
    for (int i = 1; i <= 1000; ++i) {
      if (!with->hear(2 * i - 1)) return 1;
      {
        const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang},
            again{m[0], received(with->more), samples::only_a_hang};
        if (open.data() + 10 != again.data()) return 2;
      }
      if (i == 10) descriptors = processes::open_descriptors(), mappings = processes::mappings_of("weft-");
      if (i == 1000 && !comes_to(descriptors)) return 3;
      if (i == 1000 && processes::mappings_of("weft-") != mappings) return 4;
      with->say(2 * i);
    }
    return 0;
  }};
  const machine m = two_devices();
  std::size_t descriptors = 0, mappings = 0;
  const auto cycles = [&](int from, int to) {
    for (int i = from; i <= to; ++i) {
      const shareable_buffer<byte> memory{m[0], 4000};
      with->wire = memory.handle().bytes();
      with->more = weft::export_memory(memory.subspan(10, 20)).bytes();
      with->say(2 * i - 1);
      ASSERT_TRUE(with->hear(2 * i)) << i;
    }
  };
  {
    const shareable_buffer<byte> first{m[0], 4000};
    static_cast<void>(first.handle());  // whoever serves it is there from now on
  }
  descriptors = processes::open_descriptors();
  cycles(1, 10);
  ASSERT_TRUE(comes_to(descriptors));
  mappings = processes::mappings_of("weft-");
  cycles(11, 1000);
  EXPECT_TRUE(comes_to(descriptors)) << processes::open_descriptors() << ", not " << descriptors;
  EXPECT_EQ(processes::mappings_of("weft-"), mappings);
  EXPECT_EQ(importer.wait(), 0);
}

TEST(memory_handle, survives_kills_of_exporters_and_importers_while_copies_run) {
  const int rounds = samples::by_night() ? 400 : 40;
  samples::played_faults(2 * static_cast<std::uint64_t>(rounds));
  std::mt19937 random{17};
  std::chrono::nanoseconds worst{0};
  shared<board> with;
  const std::size_t count = std::size_t{1} << 20;
  // importers first: this process has a machine afterwards, and must not fork any more
  child exporters_are_killed{[&] {
    // a driver of its own: it forks all exporters before it has a machine in each round's child
    std::chrono::nanoseconds slowest{0};
    for (int i = 0; i < rounds; ++i) {
      with->say(0);
      with->turns = 0;
      auto victim = std::make_unique<child>(exporter(with, count));
      if (!with->hear(1)) return 1;
      child survivor{[&] {
        const machine m = two_devices();
        const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
        const samples::byte_buffer own{m[0], count};
        with->say(2);
        for (std::uint64_t turn = 0;; ++turn) {
          const errc seen = error_of([&] { weft::copy(own, open); }).code;
          if (seen == errc::not_ready) {
            ++with->turns;
            continue;
          }
          with->count.store(static_cast<std::uint64_t>(clock_type::now().time_since_epoch().count()));
          if (seen != errc::peer_dead) return 3;
          if (!samples::same(samples::contents(own), pattern(count, 1))) return 4;
          return turn == 0 ? 5 : 0;
        }
      }};
      if (!with->hear(2)) return 2;
      const std::uint64_t enough = random() % 60;
      if (!processes::comes_true([&] { return with->turns >= enough; })) return 3;
      victim->kill(SIGKILL);
      const auto killed = clock_type::now().time_since_epoch().count();
      victim->wait();
      if (const int value = survivor.wait(); value != 0 && value != 5) return 10 + value;
      slowest = std::max(slowest, std::chrono::nanoseconds{static_cast<std::int64_t>(with->count.load()) - killed});
    }
    with->count.store(static_cast<std::uint64_t>(slowest.count()));
    return 0;
  }};
  ASSERT_EQ(exporters_are_killed.wait(), 0) << "seed 17";
  worst = std::chrono::nanoseconds{static_cast<std::int64_t>(with->count.load())};
  RecordProperty("death_seen_us", static_cast<int>(worst.count() / 1000));

  with->say(0);
  child importers_are_killed{[&] {
    // one exporter for all: what it has must not grow
    child owner{[&] {
      const machine m = two_devices();
      const shareable_buffer<byte> memory{m[0], count};
      weft::copy(memory, pattern(count, 1));
      with->wire = memory.handle().bytes();
      const std::size_t descriptors = processes::open_descriptors();
      const std::size_t mappings = processes::mappings_of("weft-shared");
      with->say(1);
      if (!with->hear(7, 10 * samples::soon)) return 1;
      // the last of the killed may have left a connection to look at
      if (!comes_to(descriptors)) return 2;
      if (processes::mappings_of("weft-shared") > mappings + 8) return 3;
      return samples::contents(memory).size() == count ? 0 : 4;
    }};
    if (!with->hear(1)) return 1;
    for (int i = 0; i < rounds; ++i) {
      const child importer{[&] {
        const machine m = two_devices();
        const samples::byte_buffer own{m[0], count};
        for (;;) {
          ++with->turns;
          const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
          for (int k = 0; k < 3; ++k, ++with->turns) weft::copy(own, open);
        }
        return 0;
      }};
      const std::uint64_t enough = with->turns + random() % 24;  // from its first breath to its sixth time round
      if (!processes::comes_true([&] { return with->turns >= enough; })) return 2;
      importer.kill(SIGKILL);
    }
    with->say(7);
    return owner.wait();
  }};
  EXPECT_EQ(importers_are_killed.wait(), 0);
}

TEST(memory_handle, without_descriptors_is_resource_exhausted_and_works_again_once_there_are_some) {
  shared<board> with;
  const child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  child importer{[&] {
    const machine m = two_devices();
    samples::byte_buffer warm{m[0], 10};
    weft::fill(warm, byte{1});
    {
      const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
    }
    const std::size_t used = processes::open_descriptors();
    int refused = 0, opened = 0;
    for (std::size_t limit = 3; limit <= 64; ++limit) {
      const auto open = [&] { const opened_memory<byte> one{m[0], received(with->wire), samples::soon}; };
      const weft::error e = error_of([&] { processes::with_descriptors_below(limit, open); });
      if (e.code != errc::resource_exhausted && e.code != errc::not_ready) return 1;
      ++(e.code == errc::not_ready ? opened : refused);
      if (processes::open_descriptors() != used) return 2;
    }
    if (refused < 4 || opened < 4) return 3;
    const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
    return samples::same(samples::contents(open), pattern(5000, 1)) ? 0 : 4;
  }};
  EXPECT_EQ(importer.wait(), 0);
}

sockaddr_un door_of(const weft::shared_bytes& wire, socklen_t& length) {
  const auto h = weft::value_or_raise(weft::detail::decode(wire));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int size = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "weft.share.%016llx",
                                 static_cast<unsigned long long>(h.door));
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(size));
  return address;
}

TEST(memory_handle, is_worth_nothing_to_another_user) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  shared<board> with;
  const child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  child stranger{[&] {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 1;
    const machine m = two_devices();
    if (error_of([&] { const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang}; }).code !=
        errc::corrupt)
      return 2;
    // whatever it says itself: the exporter closes before it reads a byte
    socklen_t length = 0;
    const sockaddr_un address = door_of(with->wire, length);
    const int s = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (::connect(s, reinterpret_cast<const sockaddr*>(&address), length) != 0) return 3;
    const auto request = weft::detail::encode_request(weft::value_or_raise(weft::detail::decode(with->wire)));
    static_cast<void>(::send(s, request.data(), request.size(), MSG_NOSIGNAL));
    std::byte answer[64];
    return ::recv(s, answer, sizeof answer, 0) <= 0 ? 0 : 4;
  }};
  EXPECT_EQ(stranger.wait(), 0);
}

TEST(memory_handle, a_handle_of_another_pid_namespace_is_unsupported_and_says_why) {
  constexpr int not_permitted = 77;
  shared<board> with;
  const child other = exporter(with, 5000);
  ASSERT_TRUE(with->hear(1));
  child elsewhere{[&] {
    if (::unshare(CLONE_NEWPID) != 0) return not_permitted;
    const pid_t inside = ::fork();  // the first process of the new namespace
    if (inside == 0) {
      const machine m = two_devices();
      const auto e =
          error_of([&] { const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang}; });
      const bool told = e.code == errc::unsupported && e.what.find("PID namespace") != std::string::npos;
      ::_exit(told ? 0 : 1);
    }
    int status = 0;
    if (inside < 0 || ::waitpid(inside, &status, 0) != inside) return 2;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
  }};
  const int outcome = elsewhere.wait();
  if (outcome == not_permitted) GTEST_SKIP() << "this process may not make a PID namespace";
  EXPECT_EQ(outcome, 0);
}

TEST(memory_handle, is_served_while_junk_floods_the_exporter) {
  shared<board> with;
  const int junk = samples::by_night() ? 100'000 : 5'000;
  child owner{[&] {
    const machine m = two_devices();
    const shareable_buffer<byte> memory{m[0], 5000};
    weft::copy(memory, pattern(5000, 1));
    with->wire = memory.handle().bytes();
    const std::size_t descriptors = processes::open_descriptors();
    with->say(1);
    std::size_t most = 0;
    const auto until = clock_type::now() + 4 * samples::soon;
    while (!with->hear(5, 2ms) && clock_type::now() < until) most = std::max(most, processes::open_descriptors());
    return most <= descriptors + weft::detail::share_server::max_pending + 1 ? 0 : 1;
  }};
  ASSERT_TRUE(with->hear(1));
  child flooder{[&] {
    socklen_t length = 0;
    const sockaddr_un address = door_of(with->wire, length);
    std::vector<weft::descriptor> held;
    for (int i = 0; i < junk; ++i) {
      weft::descriptor s{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
      if (::connect(s.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return 1;
      const byte nonsense[100] = {1, 2, 3};
      if (i % 3 != 0) static_cast<void>(::send(s.get(), nonsense, static_cast<std::size_t>(1 + i % 100), MSG_NOSIGNAL));
      held.push_back(std::move(s));
      if (held.size() == 100) held.clear();
      with->count.store(static_cast<std::uint64_t>(i));
    }
    return 0;
  }};
  const machine m = two_devices();
  std::chrono::nanoseconds worst{0};
  for (int i = 0; i < 20; ++i) {
    const auto start = clock_type::now();
    const opened_memory<byte> open{m[0], received(with->wire), samples::only_a_hang};
    worst = std::max<std::chrono::nanoseconds>(worst, clock_type::now() - start);
    EXPECT_TRUE(samples::same(samples::contents(open), pattern(5000, 1)));
  }
  RecordProperty("slowest_open_us", static_cast<int>(worst.count() / 1000));
  EXPECT_EQ(flooder.wait(), 0);
  with->say(5);
  EXPECT_EQ(owner.wait(), 0);
}

// ---- fork -----------------------------------------------------------------------------------------------------------

TEST(machine_after_fork, is_closed_in_the_child_and_lives_on_in_the_parent) {
  auto m = std::make_unique<machine>(two_devices());
  auto memory = std::make_unique<shareable_buffer<byte>>((*m)[0], 5000);
  weft::copy(*memory, pattern(5000, 1));
  const memory_handle handle = memory->handle();
  auto order = std::make_unique<weft::stream>((*m)[0]);
  samples::gate gate;
  const weft::event held = gate.hold(*order);
  child heir{[&] {
    const auto refused = [](auto&& f) {
      const weft::error e = error_of(f);
      return e.code == errc::closed && e.what.find("fork") != std::string::npos;
    };
    if (!refused([&] { weft::copy(*memory, pattern(5000, 2)); })) return 1;
    if (!refused([&] { const samples::byte_buffer fresh{(*m)[0], 10}; })) return 2;
    if (!refused([&] { static_cast<void>(memory->handle()); })) return 3;
    if (!refused([&] { held.wait(); })) return 4;
    if (!refused([&] { order->synchronize(); })) return 5;
    if (!refused([&] { const opened_memory<byte> open{(*m)[0], handle, samples::only_a_hang}; })) return 6;
#ifndef WEFT_TSAN  // which lets the child of a process with threads start none
    // its own machine works, and may even open what the parent shares
    {
      const machine own = two_devices();
      const opened_memory<byte> open{own[0], handle, samples::only_a_hang};
      if (!samples::same(samples::contents(open), pattern(5000, 1))) return 7;
    }
#endif
    memory.reset();
    order.reset();
    m.reset();
    return 0;
  }};
  EXPECT_EQ(heir.wait(), 0);
  gate.open();
  held.wait();
  EXPECT_TRUE(samples::same(samples::contents(*memory), pattern(5000, 1)));
}

}  // namespace memory_handle_test
